"""Parquet files in a table's location: where they may be, what is in them, writing them."""
