"""Excerpts: some pages of a column chunk as a Parquet file of its own, in memory.

Readers take the stored bytes of a whole row group even where few of its rows are wanted.
Where a row group is larger than a task, they are given only the pages that hold these rows.
"""
