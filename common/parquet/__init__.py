"""Parquet files in a table's location: where they may be, reading them, writing them.

  location             storage, paths in a location, and whether it is usable
  resolved_locations   identities of locations on this machine, with links and mounts resolved
  service_files        owner, generation and description of a table below `_neve/`
  footer_checks        codecs, and consistency of footers
  foreign_formats      marks of Delta, Iceberg and other formats, whose files are left alone
  row_batches          rows in bounded memory
  file_inspection      facts, rows and key samples of a file
  write                files according to the table's settings
  manifest             the list of a table's files for readers
  read_guard           a file that makes plain readers of a directory fail

How a file of a user is added:

    1. `location` opens the storage and resolves the path.
    2. `footer_checks` refuses an inconsistent footer.
    3. `row_batches` reads the columns that the facts depend on.
    4. `file_inspection` returns the facts, from a reader process if the service has readers.
"""
