"""Recovery: check, sweep, rebuild, back up and restore tables. The gateway offers it.

scope               one table, its location, threads: what every tool works on
findings            what may be wrong, where, and what would mend it
stored_files        what lies in a location: by name, footer, partition
location_ownership  whose a location is; sites where a table may be made
fsck/               metadata against itself and against storage; repairs
gc                  files of the service that no key knows
table_creation      making a table; create, import, restore and rebuild end here
rebuild/            metadata out of a location
archive             the format of a backup
backup              backup and restore
"""
