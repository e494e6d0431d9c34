"""Volumes on which as many jobs are under way as may be."""

from collections import Counter

from coordinator.core.books import Books
from coordinator.core.lifecycle import AttemptState

_UNDER_WAY = frozenset({AttemptState.FOUND, AttemptState.RUNNING})


def shut_tables(books: Books) -> frozenset[str]:
    """Return the tables that hand nothing out, because their volume is full."""
    most = books.limits.volume_running_max
    if not most:
        return frozenset()
    tables = [each.tablet.table for each in books.attempts if each.state in _UNDER_WAY]
    tables += [each.job.tablet.table for each in books.takes.reserving()]
    counts = Counter(books.volume_of(table) for table in tables)
    return frozenset(table for table in books.tables if counts[books.volume_of(table)] >= most)
