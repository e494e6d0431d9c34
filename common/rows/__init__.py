"""Rows: which one wins, how keys and rows become bytes, how schemas unite. Values only, no I/O.

    schema         column types, schema union, schema changes, columns that engines cannot read
    conform        rows of a file in the columns and types of their table; Arrow as numpy
    key_encoding   key columns as encoded keys; partitions as text, as keys, and as columns
    rules          which row of a key wins, and which dead rows may be dropped
    merge          sorting, merging, merge on read; counts and digests of merged rows
    row_facts      statistics of streamed rows, and the canonical hash of a row

The steps of a merge:

    1. `conform` converts every input to the table's schema.
    2. `key_encoding` and `merge` sort the rows: by key, the winning row first.
    3. `rules` decides which rows stay.
    4. `row_facts` collects the metadata of the rows that are written.
"""
