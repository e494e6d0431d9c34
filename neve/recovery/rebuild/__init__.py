"""`neve rebuild`: reconstruct a table's metadata from its location, after the loss of Redis.

    table_rebuild   the whole rebuild
    evidence        the newest manifest, the description and the footers in the location
    live_files      the files that hold the table's rows, and the ends of its tablets (pure)

List and read the location → derive the live files from the manifest and the lineage of outputs →
read the facts of the live files → create the table with `table_creation`, and report what could
not be recovered.
"""
