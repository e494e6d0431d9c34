"""What a request has done: sums over its commits, what lies between them left out."""

from __future__ import annotations

from common.metadata.keys import HISTORY_MAX
from common.metadata.store_values import HistoryEntry
from common.model.request import Request
from common.model.tablet import PLUS_INFINITY, TabletId
from neve.gateway.requests import sum_commits

REQUEST = Request(id="r1", table="t1", submitted_at_s=100.0)


def entry(
    inputs: str,
    outputs: str,
    rows: tuple[int, int],
    *,
    request: str | None = "r1",
    end: str = "committed",
    ended_s: float = 200.0,
    expired: int = 0,
    deleted: int = 0,
    **more: int,
) -> HistoryEntry:
    return HistoryEntry(
        position="1-1",
        attempt="a",
        job="j",
        tablet=TabletId("t1", PLUS_INFINITY),
        kind="USER",
        end=end,
        group="default",
        compactor="c1",
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        bytes_in=10 * rows[0],
        bytes_out=10 * rows[1],
        rows_in=rows[0],
        rows_out=rows[1],
        started_s=ended_s - 1,
        ended_s=ended_s,
        request=request,
        expired_dropped=expired,
        transform_dropped=deleted,
        **more,
    )


def test_intermediate_files_count_neither_before_nor_after() -> None:
    history = [
        entry("xc", "y", (8, 7), deleted=1),
        entry("ab", "x", (9, 5), expired=4),
        entry("ab", "", (9, 0), end="failed"),
        entry("kl", "m", (50, 50), request=None),
    ]
    found = sum_commits(REQUEST, history)
    assert (found.jobs, found.files_before, found.files_after) == (2, 3, 1)
    assert (found.rows_before, found.rows_after) == (12, 7)
    assert (found.bytes_before, found.bytes_after) == (120, 70)
    assert (found.expired, found.deleted, found.complete) == (4, 1, True)
    assert found.rows_before == found.rows_after + found.expired + found.deleted


def test_a_history_that_does_not_go_back_far_enough_is_told() -> None:
    newer = [entry("a", "b", (1, 1), request=None, ended_s=150.0)] * HISTORY_MAX
    assert not sum_commits(REQUEST, newer).complete
    older = [*newer[1:], entry("a", "b", (1, 1), request=None, ended_s=99.0)]
    assert sum_commits(REQUEST, older).complete


def test_rows_that_were_changed_are_told_and_those_deleted_counted_once() -> None:
    history = [
        entry("a", "x", (9, 9), rows_changed=4, rows_deleted=2),
        entry("b", "y", (8, 5), deleted=3, rows_deleted=3),
        entry("c", "z", (8, 7), deleted=1),  # Of an earlier release.
    ]
    found = sum_commits(REQUEST, history)
    assert (found.changed, found.deleted) == (4, 6)
