"""What a split or merge does next, and where one is wanted. Pure.

    bytes of tablets ──► why_split, pairs_to_merge, why_merge ──► BeginOperation
    a user's call ──────────────────────────────────────────────► BeginOperation
    all tablets of one operation, read together ──► next_change ──► StepOperation …
                                             EndOperation, AbandonOperation, or a `WaitForTablets`

How to drive it, for anything that reads tablets and applies changes: nothing is kept
between two looks, so that anybody may take the next step, and a new coordinator goes on.

1. Read a tablet. If it has an `operation`, read all tablets of that together:
   `split_merge_predicates.operation_tablets` names them; None means that the tablet is the
   left one of a merge, whose right neighbour names both.
2. Apply what `next_change` returns and look again, until it returns a `WaitForTablets`: then the
   next change of one of these tablets, or time, brings it on. A refusal means the same.
3. While a split is at *cut*, `split_jobs.cut_plan` (`planning.plan_tablet` asks it) names the
   jobs that take away what is in the way. Reserve them with `cuts_at=job.cuts[0]`.
4. To begin by size: `why_split` on a tablet that was read, then `split_keys.split_keys`
   for where to cut; `pairs_to_merge` on neighbouring records, then `why_merge` on both
   tablets as read. Both are checked once more by the store.

Split and merge cannot chase each other: a table's `merge_bytes` is at most half of its
`split_bytes`. Two halves of what was split have together more than that, and what was
merged has less than half of what is split; so without new bytes it comes to rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from common.metadata.changes import (
    AbandonOperation,
    EndOperation,
    StepOperation,
)
from common.metadata.split_merge_predicates import may_end, may_step
from common.model.table import Table, TableState
from common.model.tablet import OperationKind, OperationStep, Record, Tablet, TabletId
from common.units import format_bytes

_FOLLOWING_STEP = {OperationStep.CUT: OperationStep.DRAIN, OperationStep.DRAIN: OperationStep.CLOSE}


@dataclass(frozen=True, slots=True)
class WaitForTablets:
    """Nothing can be done until a tablet changes or time has passed."""

    reason: str


@dataclass(frozen=True, slots=True)
class AbandonStep:
    """The operation is given up."""

    change: AbandonOperation
    reason: str


OperationChange = StepOperation | EndOperation | AbandonStep | WaitForTablets


def next_change(
    tablets: Sequence[Tablet], now_s: float, *, lasts_max_s: float, stuck: str = ""
) -> OperationChange:
    """Return what comes next in an operation.

    Whatever can be done is done, also when its time is up: the end is nearer than the way
    back.

    Args:
        tablets: All tablets of one operation, the left one first, as read together.
        now_s: The store's time.
        lasts_max_s: An operation that stands still after so long is given up.
        stuck: Why a job that it waits for is not tried any more; empty: none is so.
    """
    operation = tablets[0].operation
    assert operation is not None, tablets[0].id
    if operation.kind is OperationKind.MERGE and len(tablets) < 2:
        alone = AbandonOperation(tablets=(tablets[0].id,), operation=operation.operation_id)
        return AbandonStep(alone, "its other tablet is not part of the operation")
    ids, name = tuple(tablet.id for tablet in tablets), operation.operation_id
    following = _FOLLOWING_STEP.get(operation.step)
    refusal = may_end(tablets) if following is None else may_step(tablets, following)
    if refusal is None and following is None:
        return EndOperation(tablets=ids, operation=name)
    if refusal is None and following is not None:
        return StepOperation(tablets=ids, operation=name, step=following)
    assert refusal is not None, ids
    abandon = AbandonOperation(tablets=ids, operation=name)
    if stuck:
        return AbandonStep(abandon, stuck)
    if now_s - operation.since_s > lasts_max_s:
        return AbandonStep(abandon, f"not finished after {lasts_max_s:.0f} s: {refusal.reason}")
    return WaitForTablets(refusal.reason)


def has_ranges(table: Table) -> bool:
    """Return whether the tablets of a table are ranges of keys, which can be split."""
    return bool(table.key) and not table.partition_by


def why_split(tablet: Tablet, table: Table, now_s: float, rest_s: float) -> str | None:
    """Return why a tablet shall be split, in a sentence, or None if it shall not.

    Args:
        tablet: As it was read.
        table: Its table, whose `split_bytes` counts; 0: never.
        now_s: The store's time.
        rest_s: How long a tablet is left alone after an operation was abandoned in it.
    """
    if why_not_split(tablet, table, now_s, rest_s) is not None:
        return None
    size, limit = _size_bytes(tablet), table.settings.split_bytes
    return f"its files have {format_bytes(size)}, more than split_bytes {format_bytes(limit)}"


def why_not_split(tablet: Tablet, table: Table, now_s: float, rest_s: float) -> str | None:
    """Return why a tablet is not split by its size, in a sentence, or None if it is.

    Args:
        tablet: As for `why_split`.
        table: Likewise.
        now_s: Likewise.
        rest_s: Likewise.
    """
    limit = table.settings.split_bytes
    if not has_ranges(table):
        return "its tablets are not key ranges"
    if not limit:
        return "the table's setting split_bytes is 0, which disables splits"
    size = _size_bytes(tablet)
    if size <= limit:
        has, most = format_bytes(size), format_bytes(limit)
        return f"its files have {has}, not more than split_bytes {most}"
    return _why_left_alone(tablet, table, now_s, rest_s)


def why_merge(left: Tablet, right: Tablet, table: Table, now_s: float, rest_s: float) -> str | None:
    """Return why two neighbours shall become one tablet, or None if they shall not.

    Args:
        left: As it was read.
        right: Likewise; begins where the left one ends.
        table: Their table, whose `merge_bytes` counts; 0: never.
        now_s: The store's time.
        rest_s: As for `why_split`.
    """
    if why_not_merge(left, right, table, now_s, rest_s) is not None:
        return None
    size, limit = _size_bytes(left) + _size_bytes(right), merge_bytes(table)
    both = f"the files of both tablets have {format_bytes(size)}"
    return f"{both}, less than merge_bytes {format_bytes(limit)}"


def why_not_merge(
    left: Tablet, right: Tablet, table: Table, now_s: float, rest_s: float
) -> str | None:
    """Return why two neighbours do not become one tablet, in a sentence, or None if they do.

    Args:
        left: As for `why_merge`.
        right: Likewise.
        table: Likewise.
        now_s: Likewise.
        rest_s: Likewise.
    """
    if not has_ranges(table):
        return "its tablets are not key ranges"
    limit = merge_bytes(table)
    if not limit:
        return "the table's setting merge_bytes is 0, which disables merges"
    if left.bounds.end != right.bounds.start:
        return "the tablets are not neighbours (any more)"
    size = _size_bytes(left) + _size_bytes(right)
    if size >= limit:
        has, least = format_bytes(size), format_bytes(limit)
        return (
            f"the files of the tablet and its right neighbour have {has}, at least merge_bytes"
            f" {least}"
        )
    reasons = (_why_left_alone(tablet, table, now_s, rest_s) for tablet in (left, right))
    return next((why for why in reasons if why is not None), None)


def merge_bytes(table: Table) -> int:
    """Return below how many bytes neighbours are merged: never more than half a split's.

    Settings are validated so; a table of an earlier release may hold others.
    """
    settings = table.settings
    if not settings.split_bytes:
        return settings.merge_bytes
    return min(settings.merge_bytes, settings.split_bytes // 2)


def pairs_to_merge(
    records: Sequence[tuple[TabletId, Record]], table: Table, now_s: float, rest_s: float
) -> list[tuple[TabletId, TabletId]]:
    """Return neighbours that may be merged according to their records, no tablet twice.

    Args:
        records: Of tablets one after the other, none left out.
        table: As for `why_merge`, which has the last word.
        now_s: The store's time.
        rest_s: As for `why_split`.
    """
    pairs: list[tuple[TabletId, TabletId]] = []
    limit = merge_bytes(table)
    if not limit or not _takes_operations(table):
        return pairs
    free = [_may_join(record, now_s, rest_s) for _, record in records]
    at = 0
    while at + 1 < len(records):
        (left, one), (right, other) = records[at], records[at + 1]
        joins = free[at] and free[at + 1] and one.size_bytes + other.size_bytes < limit
        if joins:
            pairs.append((left, right))
        at += 2 if joins else 1
    return pairs


def _size_bytes(tablet: Tablet) -> int:
    return sum(file.size_bytes for file in tablet.files.values())


def _why_left_alone(tablet: Tablet, table: Table, now_s: float, rest_s: float) -> str | None:
    """Return why nothing changes the bounds of a tablet now, or None."""
    if not _takes_operations(table):
        return f"table {table.name} is {table.state.value}"
    if not _is_free(tablet):
        return f"a request, a split or a merge is active in tablet {tablet.id.text}"
    if _rests_after_abandon(tablet.record, now_s, rest_s):
        return f"a split or merge was abandoned in tablet {tablet.id.text} recently"
    return None


def _takes_operations(table: Table) -> bool:
    return has_ranges(table) and table.state is TableState.LIVE


def _is_free(tablet: Tablet) -> bool:
    """Return whether a tablet has neither an operation nor a request."""
    return (
        tablet.operation is None
        and tablet.selection is None
        and not tablet.waiting
        and not tablet.done
    )


def _rests_after_abandon(record: Record, now_s: float, rest_s: float) -> bool:
    return record.abandoned_s > 0 and now_s - record.abandoned_s < rest_s


def _may_join(record: Record, now_s: float, rest_s: float) -> bool:
    busy = record.operation or record.selected or record.waiting
    return not busy and not _rests_after_abandon(record, now_s, rest_s)
