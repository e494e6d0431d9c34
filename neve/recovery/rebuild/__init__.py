"""`neve rebuild`: reconstruct a table's metadata from its location, after the loss of Redis.

    table_rebuild   the whole rebuild: reads manifest, description and footers, makes the table
    live_files      the evidence; the files that hold the rows, and the ends of tablets (pure)

List and read the location → derive the live files from the manifest and the lineage of outputs →
read the facts of the live files → create the table with `table_creation`, and report what could
not be recovered.
"""
