"""Rows: which one wins, how keys and rows become bytes, how schemas unite. Values only, no I/O.

    types          the one form of each column type, and its text
    schema         uniting schemas, and how a table's schema changes
    reader_limits  columns that an engine cannot read
    arrays         Arrow arrays as numpy
    conform        rows of a file in the columns and types of their table
    partitions     partitions as text, as keys, and as columns
    key_encoding   key columns as encoded keys
    row_hash       the canonical hash of a row
    rules          which row of a key wins, which dead row may go
    dead_rows      tombstones, expired rows, and which of them may go
    merge          sorting, merging, merge on read
    row_facts      statistics of rows as they stream by
    stream_size    what an Arrow stream becomes in memory

How rows are merged:

    1. `conform` brings every input to the table's schema.
    2. `key_encoding` and `merge` put the rows in order: by key, the better row first.
    3. `rules` and `dead_rows` say which rows stay.
    4. `row_facts` collects what the metadata says of the rows written.
"""
