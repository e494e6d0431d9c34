"""Recovery: check, sweep, rebuild, back up and restore tables. Used by the gateway.

findings   what may be wrong, and what would mend it     walk      tablets by the tile rule
stored     what lies in a location, and whose it is      footers   what outputs say of themselves
fsck       all checks in order;  check_*: each of them   repair    findings → conditional changes
sweep      the listing sweep (`neve gc`)
rebuild    metadata from manifest (`published`) and footers
           counting, lineage, lineage_since: which files count (pure)
backup     metadata as lines;  archive: the format;  restore: into this store
"""
