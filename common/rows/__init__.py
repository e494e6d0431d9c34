"""Rows: which one wins, how keys and rows become bytes, how schemas unite. Values only, no I/O."""
