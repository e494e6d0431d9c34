"""Notes of recent adds: few, ascending, and never above what an add of the retention reached."""

from __future__ import annotations

from itertools import product

from common.metadata.changes.files import (
    RecentAdds,
    merge_recent_adds,
    recent_adds_bound,
    with_recent_add,
)

RETENTION = 10.0


def test_the_lowest_add_of_the_retention_counts() -> None:
    for versions in product((b"1", b"5", b"9"), repeat=4):
        notes: RecentAdds = ()
        for at, version in enumerate(versions):
            notes = with_recent_add(notes, 3.0 * at, [version], RETENTION)
            assert recent_adds_bound(notes, 3.0 * at) == min(versions[: at + 1])
            assert len(notes) <= 3
            assert notes == tuple(sorted(notes))
        assert recent_adds_bound(notes, 9.5 + RETENTION) is None


def test_of_several_files_the_lowest_counts_and_none_changes_nothing() -> None:
    notes = with_recent_add((), 0.0, [b"7", b"3"], RETENTION)
    assert recent_adds_bound(notes, 1.0) == b"3"
    assert with_recent_add(notes, 1.0, [], RETENTION) == notes
    assert with_recent_add((), 1.0, [b"3"], 0.0) == ()


def test_the_lower_of_two_tablets_counts() -> None:
    assert (
        recent_adds_bound(merge_recent_adds(((5.0, b"2"),), ((9.0, b"1"), (12.0, b"4"))), 3.0)
        == b"1"
    )
