"""Parquet files in a table's location: where they may be, what is in them, writing them.

    location             storage, paths in a location, whether it can be used
    resolved_locations   what locations are on this machine: links and mounts resolved
    service_files        owner, generation and description of a table below `_neve/`
    footer_checks        codecs, and whether a footer can be true
    foreign_formats      marks of Delta, Iceberg and others: what they own is left alone
    row_batches          rows in bounded memory
    file_inspection      facts, rows and samples of keys of a file
    write                files as the table's settings want them
    manifest             which files of a table a reader should read
    read_guard           a file that makes plain readers of a directory fail

How a file of others is taken in:

    1. `location` opens the storage and resolves the path.
    2. `footer_checks` refuses a footer that cannot be true.
    3. `row_batches` reads the columns that facts are about.
    4. `file_inspection` returns the facts, from a reader process where there are some.
"""
