"""Decisions of the compactor: values in, values out; no I/O, clock, chance or logging."""
