"""Pure decisions of a compactor: the life of an attempt, back-off, progress."""
