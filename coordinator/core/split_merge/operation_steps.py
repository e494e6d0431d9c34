"""The next change of a split or merge, and the decision to begin one. Pure.

    bytes of tablets ──► why_split, pairs_to_merge, why_merge ──► BeginOperation
    a user's call ──────────────────────────────────────────────► BeginOperation
    all tablets of one operation, read together ──► next_change ──► StepOperation …
                                             EndOperation, AbandonOperation, or a `WaitForTablets`

Protocol for a caller that reads tablets and applies changes. No state is kept between two steps, so
any process can take the next step, and a new coordinator continues where the last one stopped.

1. Read a tablet. If it has an `operation`, read all tablets of the operation together:
   `split_merge_predicates.operation_tablets` returns them; None means that the tablet is the
   left one of a merge, whose right neighbour refers to both.
2. Apply the result of `next_change` and read again, until it returns a `WaitForTablets`. Continue
   after the next change of one of these tablets, or after some time. Handle a refusal likewise.
3. While a split is at step *cut*, `split_jobs.cut_plan` (called by `planning.plan_tablet`) returns
   the jobs that cut the crossing files. Reserve them with `cuts_at=job.cuts[0]`.
4. To begin by size: call `why_split` on a tablet, then `split_keys.split_keys` for the keys; or
   `pairs_to_merge` on neighbouring records, then `why_merge` on both tablets. The store checks both
   again.

Splits and merges cannot alternate without end: a table's `merge_bytes` is at most half of its
`split_bytes`. The two halves of a split tablet together exceed that limit, and a merged tablet has
less than half of the split size. Without new bytes, no further operation begins.
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
    """The operation waits for a change of a tablet, or for time to pass."""

    reason: str


@dataclass(frozen=True, slots=True)
class AbandonStep:
    """The operation is abandoned."""

    change: AbandonOperation
    reason: str


OperationChange = StepOperation | EndOperation | AbandonStep | WaitForTablets


def next_change(
    tablets: Sequence[Tablet], now_s: float, *, lasts_max_s: float, stuck: str = ""
) -> OperationChange:
    """Return the next change of an operation.

    A possible step is taken even after the time limit, because finishing is then faster than
    abandoning.

    Args:
        tablets: All tablets of one operation, the left one first, read together.
        now_s: The store's time.
        lasts_max_s: Age at which an operation that cannot proceed is abandoned.
        stuck: Why a job that the operation waits for is no longer retried; empty if none.
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
    """Return whether the tablets of a table are key ranges, which can be split."""
    return bool(table.key) and not table.partition_by


def why_split(tablet: Tablet, table: Table, now_s: float, rest_s: float) -> str | None:
    """Return why a tablet shall be split, as a sentence, or None if it shall not.

    Args:
        tablet: The version that was read.
        table: Its table with `split_bytes`; 0 disables splits.
        now_s: The store's time.
        rest_s: Pause after an operation of the tablet was abandoned.
    """
    if why_not_split(tablet, table, now_s, rest_s) is not None:
        return None
    size, limit = _size_bytes(tablet), table.settings.split_bytes
    return f"its files have {format_bytes(size)}, more than split_bytes {format_bytes(limit)}"


def why_not_split(tablet: Tablet, table: Table, now_s: float, rest_s: float) -> str | None:
    """Return why a tablet is not split by size, as a sentence, or None if it is.

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
    """Return why two neighbours shall be merged, or None if they shall not.

    Args:
        left: The version that was read.
        right: Likewise; begins where the left tablet ends.
        table: Their table with `merge_bytes`; 0 disables merges.
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
    """Return why two neighbours are not merged, as a sentence, or None if they are.

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
    """Return the size below which neighbours are merged: at most half of `split_bytes`.

    Validation of the settings ensures this bound, but a table of an earlier release may violate it.
    """
    settings = table.settings
    if not settings.split_bytes:
        return settings.merge_bytes
    return min(settings.merge_bytes, settings.split_bytes // 2)


def pairs_to_merge(
    records: Sequence[tuple[TabletId, Record]], table: Table, now_s: float, rest_s: float
) -> list[tuple[TabletId, TabletId]]:
    """Return pairs of neighbours that may be merged according to their records.

    No tablet is in two pairs. `why_merge` makes the final decision.

    Args:
        records: Records of consecutive tablets without gaps.
        table: As for `why_merge`.
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
    """Return why a tablet cannot be split or merged now, or None."""
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
    """Return whether a tablet has neither an operation nor traces of a request."""
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
