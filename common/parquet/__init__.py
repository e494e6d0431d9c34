"""Parquet files in a table's location: where they may be, reading them, writing them.

  location             storage, paths in a location
  resolved_location    the identity of a location, with links resolved
  service_files        files below `_neve/`
  foreign_formats      tables of other formats, which are left alone; the log that is published
  row_batches          rows in bounded memory; the file that makes plain readers fail
  file_inspection      consistency of a footer; facts, rows and key samples of a file
  append               rows routed to tablets, cut, written below `_neve/append/`
  buffered             buffered rows: encoded, read with the files, flushed into files
  write                files according to the table's settings
  manifest             the list of a table's files for readers

How a file of a user is added:

    1. `location` opens the storage and resolves the path.
    2. `file_inspection` refuses an inconsistent footer.
    3. `row_batches` reads the columns that the facts depend on.
    4. The facts are returned, from a reader process if the service has readers.
"""
