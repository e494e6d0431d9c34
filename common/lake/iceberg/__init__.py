"""Iceberg tables of version 2: their catalogs, metadata, manifests and delete files.

In reading order:

    catalogs   clients of catalogs; files at allowed locations only
    manifests  manifest lists and manifests, read as untrusted values
    deletes    which delete files apply to a data file, and the rows that they remove
    write      columns of data files, by their field ids
    commit     one snapshot of the operation `replace`, sent once
    expiry     old snapshots leave the table, and files that only they reached are deleted
    orphans    files that no snapshot names are deleted
    source     the port: load, look, positions of deleted rows, maintenance
    publication  the metadata that the service writes of a native table
"""
