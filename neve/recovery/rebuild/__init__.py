"""`neve rebuild`: a table's metadata out of its location, after Redis was lost.

    table_rebuild   the whole rebuild
    evidence        the newest manifest, descriptions and footers that lie in the location
    live_files      which files are the table's rows, and where tablets ended (pure)

The location is listed and read → the manifest and the lineage of outputs say which files count →
their facts are read → `table_creation` makes the table, and what could not be recovered is
reported.
"""
