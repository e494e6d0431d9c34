"""The next change of a split or merge, and the decision to begin one. Pure.

    bytes of tablets ──► why_split, pairs_to_merge, why_merge ──► BeginOperation
    a user's call ──────────────────────────────────────────────► BeginOperation
    all tablets of one operation, read together ──► next_change ──► StepOperation …
                                             EndOperation, AbandonOperation, or a `WaitForTablets`

Protocol for a caller that reads tablets and applies changes. No state is kept between two steps, so
any process can take the next step, and a new coordinator continues where the last one stopped.

1. Read a tablet. If it has an `operation`, read all tablets of the operation together:
   `operation_tablets` returns them; None means that the tablet is the
   left one of a merge, whose right neighbour refers to both.
2. Apply the result of `next_change` and read again, until it returns a `WaitForTablets`. Continue
   after the next change of one of these tablets, or after some time. Handle a refusal likewise.
3. While a split is at step *cut*, `planning.cut_plan` (called by `planning.plan_tablet`) returns
   the jobs that cut the crossing files. Reserve them with `cuts_at=job.cuts[0]`.
4. To begin by size: call `why_split` on a tablet, then `split_keys.split_keys` for the keys; or
   `pairs_to_merge` on neighbouring records, then `why_merge` on both tablets. The store checks both
   again.

Splits and merges cannot alternate without end: a table's `merge_bytes` is at most half of its
`split_bytes`. The two halves of a split tablet together exceed that limit, and a merged tablet has
less than half of the split size. Without new bytes, no further operation begins.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from common.metadata.changes import AbandonOperation, EndOperation, StepOperation
from common.metadata.changes.split_merge import may_end, may_step
from common.model.file import DataFile, may_cross
from common.model.keys import SPLIT_BYTES_MAX
from common.model.table import Table, TableState
from common.model.tablet import (
    PLUS_INFINITY,
    Bounds,
    OperationKind,
    OperationStep,
    Record,
    Tablet,
    TabletId,
)
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
        (left, left_record), (right, right_record) = records[at], records[at + 1]
        joins = (
            free[at] and free[at + 1] and left_record.size_bytes + right_record.size_bytes < limit
        )
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


# --------------------------------------------------------------------------------------- Split keys
# Split keys that balance the bytes of a tablet. Pure.
#
# The metadata has the smallest and greatest key of a file. For the largest files, key samples give
# more detail: `spans_of_samples` divides such a file into spans of equal bytes. The candidates are
# the bounds of the spans. If a candidate lies inside a span, the bytes of the span are divided by
# linear interpolation between its bounds. Among candidates of similar balance, the one that
# requires the fewest rewritten bytes is chosen.


BALANCE_SLACK = 0.2
"""Fraction of a part's bytes by which a cut may miss its target to save rewritten bytes."""
IMBALANCE_MAX = 0.6
"""Maximum deviation of a cut, as a fraction of a part's bytes; halves keep at least a fifth."""
SAMPLED_FILES_MAX = 4
SAMPLED_SHARE = 2 / 3
"""Fraction of a tablet's bytes; once the sampled files have it, no further file is sampled."""
SURE_SHARE = 0.1
"""Fraction of a tablet's bytes; if crossing files have no more, samples are not needed."""
CANDIDATES_MAX = 64
"""Keys near a target that are compared by the bytes to rewrite."""
_DIGITS = 8


@dataclass(frozen=True, slots=True)
class KeySpan:
    """A number of bytes whose keys lie between `key_min` and `key_max`, inclusive."""

    key_min: bytes
    key_max: bytes
    size_bytes: float


def span_of_file(file: DataFile) -> tuple[KeySpan, ...]:
    """Return a file as one span; a file without keys has no rows and gives no span."""
    if file.key_min is None or file.key_max is None:
        return ()
    return (KeySpan(file.key_min, file.key_max, file.size_bytes),)


def spans_of_samples(file: DataFile, keys: Sequence[bytes]) -> tuple[KeySpan, ...]:
    """Return a file as spans of equal bytes between sampled keys.

    Args:
        file: The file; with fewer than two samples it becomes a single span.
        keys: Keys of rows at even distances in the file, in any order.
    """
    ordered = sorted(keys)
    if len(ordered) < 2:
        return span_of_file(file)
    share = file.size_bytes / (len(ordered) - 1)
    return tuple(KeySpan(low, high, share) for low, high in pairwise(ordered))


def files_to_sample(files: Iterable[DataFile]) -> tuple[DataFile, ...]:
    """Return the files to sample, largest first; together they have most of the bytes."""
    with_keys = [file for file in files if file.key_min is not None and not file.open]
    ordered = sorted(with_keys, key=lambda file: (-file.size_bytes, file.path))
    enough = SAMPLED_SHARE * sum(file.size_bytes for file in ordered)
    chosen: list[DataFile] = []
    for file in ordered[:SAMPLED_FILES_MAX]:
        if sum(picked.size_bytes for picked in chosen) < enough:
            chosen.append(file)
    return tuple(chosen)


def split_keys(
    bounds: Bounds,
    files: Sequence[DataFile],
    samples: Mapping[str, Sequence[bytes]] | None = None,
    *,
    parts: int = 2,
) -> tuple[bytes, ...]:
    """Return the keys that split a tablet into parts of about equal bytes, ascending.

    Args:
        bounds: Bounds of the tablet.
        files: Files of the tablet.
        samples: Path → sampled keys, for the files that were sampled.
        parts: Number of parts, at least 2.

    Returns:
        Up to `parts` - 1 keys, each the last key of its part. A key is missing if no known key is
        close enough to its target.
    """
    assert parts >= 2, parts
    keys_of = samples or {}
    spans = [
        span
        for file in files
        for span in (
            spans_of_samples(file, keys_of[file.path])
            if file.path in keys_of
            else span_of_file(file)
        )
    ]
    total = sum(span.size_bytes for span in spans)
    cuts = _candidates(bounds, spans)
    if not cuts or not total:
        return ()
    chosen: list[bytes] = []
    for number in range(1, parts):
        cut = _nearest(number / parts, 1 / parts, cuts, lambda key: _up_to(key, spans) / total)
        best = None if cut is None else _cheapest(cut, files)
        if best is not None and (not chosen or best > chosen[-1]):
            chosen.append(best)
    return tuple(chosen)


def is_sure(cut: bytes, files: Sequence[DataFile]) -> bool:
    """Return whether nearly all bytes are in files that do not cross a cut."""
    total = sum(file.size_bytes for file in files)
    return sum(file.size_bytes for file in files if may_cross(file, cut)) <= SURE_SHARE * total


def _candidates(bounds: Bounds, spans: Sequence[KeySpan]) -> list[bytes]:
    """Return keys inside a tablet at which it may be cut, with keys on both sides."""
    keys = {key for span in spans for key in (span.key_min, span.key_max)}
    if not keys:
        return []
    last = max(keys)
    return sorted(key for key in keys if _is_inside(bounds, key) and key < last)


def _is_inside(bounds: Bounds, key: bytes) -> bool:
    within = (bounds.start is None or key > bounds.start) and key < bounds.end
    return within and b"" < key < PLUS_INFINITY and len(key) <= SPLIT_BYTES_MAX


def _nearest(
    aim: float, part: float, cuts: Sequence[bytes], share: Callable[[bytes], float]
) -> list[bytes] | None:
    """Return the cuts close enough to a target share, or None; shares ascend with the cuts."""
    at = bisect_left(cuts, aim, key=share)
    adjacent = cuts[max(0, at - 1) : at + 1]
    best = min(abs(share(cut) - aim) for cut in adjacent)
    if best > IMBALANCE_MAX * part:
        return None
    reach = min(best + BALANCE_SLACK * part, IMBALANCE_MAX * part)
    first, last = (
        bisect_left(cuts, aim - reach, key=share),
        bisect_right(cuts, aim + reach, key=share),
    )
    near = [*cuts[first:last], *adjacent]
    step = max(1.0, len(near) / CANDIDATES_MAX)
    fewer = [near[int(number * step)] for number in range(int(len(near) / step))]
    kept = [cut for cut in {*fewer, *adjacent} if abs(share(cut) - aim) <= reach]
    return sorted(kept, key=lambda cut: (abs(share(cut) - aim), cut))


def _cheapest(cuts: Sequence[bytes], files: Sequence[DataFile]) -> bytes:
    """Return the cut that requires the fewest rewritten bytes; the first one of a tie."""

    def rewritten(cut: bytes) -> int:
        return sum(file.size_bytes for file in files if may_cross(file, cut))

    return min(cuts, key=rewritten)


def _up_to(cut: bytes, spans: Iterable[KeySpan]) -> float:
    """Return the estimated number of bytes with keys up to a cut."""
    return sum(span.size_bytes * _share_up_to(cut, span) for span in spans)


def _share_up_to(cut: bytes, span: KeySpan) -> float:
    """Return the fraction of a span with keys up to a cut, assuming an even distribution."""
    if span.key_max <= cut:
        return 1.0
    if cut < span.key_min:
        return 0.0
    low, at, high = (_number(key, span) for key in (span.key_min, cut, span.key_max))
    return (at - low) / (high - low) if high > low else 0.5


def _number(key: bytes, span: KeySpan) -> int:
    """Return the first bytes of a key after the common prefix of a span's bounds, as a number."""
    same = 0
    for one, other in zip(span.key_min, span.key_max, strict=False):
        if one != other:
            break
        same += 1
    return int.from_bytes(key[same : same + _DIGITS].ljust(_DIGITS, b"\x00"), "big")
