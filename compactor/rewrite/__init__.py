"""Rewriting files by the row rules: read, merge, write, verify. Nothing here commits."""
