"""Recovery: check, sweep, rebuild, back up and restore tables. The gateway serves these calls.

scope               the common context of all tools; kinds of damage
stored_files        listing of a location; classification by name, footer and partition
table_creation      owners of locations; creation of a table, as import, restore and rebuild end
fsck                checks of metadata against itself and against storage
repair              repairs as conditional changes, in an order without conflicts
gc                  files of the service that no metadata refers to
rebuild/            reconstruction of metadata from a location
archive             the format of a backup
backup              backup and restore
"""
