"""Rules of the full scan: which tablets it reads, its verdict on each, and the recheck time. Pure.

    record ──needs_look──► the tablet is read and planned ──scan_verdict──► ask · wanted · rest

The coordinator itself plans tablets with the result *ask*, and *wanted* tablets whose jobs are not
queued. A tablet at rest gets a note with its recheck time in its record, so that scans skip it
until then.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from operator import attrgetter

from common.metadata.changes.files import recent_adds_bound
from common.metadata.store_values import GarbageEntry, Manifest, PinEntry
from common.model.file import CHUNKS_OF_FILE_MAX, ChunkGrid, DataFile
from common.model.job import IntervalState, TabletPlan
from common.model.key_values import KeyType
from common.model.keys import encode_value
from common.model.table import Table, TableState
from common.model.tablet import (
    Analysis,
    ChunkHead,
    ChunkNote,
    ChunkNotes,
    Record,
    StoredChunks,
    Tablet,
    TabletId,
)
from common.primitives import BoundedMap, digest, earliest_s
from common.rows.rules import RowRules
from common.spi.planner import COLD, Heat
from coordinator.core.requests import must_ask_selector, table_selector
from coordinator.core.triggers import open_trigger_s

# --------------------------------------------------------------------------------- Settled versions
# The version up to which late writes to a tablet are no longer expected.
#
# A tombstone may be dropped only if the tablet reached its version at least one retention ago
# (protocol, tombstones): the retention is the maximum delay of a writer. The coordinator stores a
# few watermarks (time, highest version at that time) in the tablet's record. The settled version is
# the version of the newest watermark that is at least one retention old. Watermarks are sparse, so
# the settled version may lag by up to `1 / WATERMARKS_PER_RETENTION` of a retention, which only
# keeps a tombstone a little longer.


Watermarks = tuple[tuple[float, bytes], ...]
"""(time in seconds, highest version of the files at that time), ascending in both."""

WATERMARKS_PER_RETENTION = 6
WATERMARKS_MAX = WATERMARKS_PER_RETENTION + 2
"""The watermarks of one retention, the settled one, and the newest."""


def next_watermarks(
    watermarks: Watermarks, now_s: float, highest: bytes, retention_s: float
) -> Watermarks:
    """Return the watermarks to keep after an observation of versions up to `highest`.

    If there is nothing to add, the function returns `watermarks` itself, so that the caller need
    not write the record.

    Args:
        watermarks: The watermarks in the record.
        now_s: The store's time; if it lies before the last watermark, as after a fail-over,
            nothing is added.
        highest: Highest version of the tablet's files.
        retention_s: The table's tombstone retention.
    """
    if not watermarks:
        return ((now_s, highest),)
    last_s, last_version = watermarks[-1]
    if highest <= last_version or now_s - last_s < retention_s / WATERMARKS_PER_RETENTION:
        return watermarks
    if now_s <= last_s:
        return watermarks
    kept = _needed_watermarks(watermarks, now_s - retention_s)
    return (*kept[-(WATERMARKS_MAX - 1) :], (now_s, highest))


def settled_version(watermarks: Watermarks, now_s: float, retention_s: float) -> bytes | None:
    """Return the highest version at which tombstones may be dropped, or None if none may.

    Args:
        watermarks: The watermarks in the record.
        now_s: The store's time.
        retention_s: The table's tombstone retention.
    """
    old = [version for time_s, version in watermarks if time_s <= now_s - retention_s]
    return max(old, default=None)


def droppable_version(table: Table, record: Record, now_s: float) -> bytes | None:
    """Return the highest version at which dead rows may be dropped, or None if none may.

    The result is the settled version, with two upper bounds: the version that recent adds have
    reached, and, if versions are times, the time one retention ago. Without these bounds a single
    row from a wrong clock would raise the watermark above all later writes.

    Args:
        table: The table, for its version column and retention.
        record: The record of the tablet.
        now_s: The store's time.
    """
    retention_s = table.settings.tombstone_retention_s
    settled = settled_version(record.settled, now_s, retention_s)
    if settled is None:
        return None
    limits = [settled, recent_adds_bound(record.recent_adds, now_s)]
    limits.append(_version_at(table, now_s - retention_s))
    return min(limit for limit in limits if limit is not None)


def _version_at(table: Table, at_s: float) -> bytes | None:
    """Return the version for a point in time; None if the table's versions are not times."""
    kind = RowRules.of(table).version_type if table.version_column is not None else None
    if kind not in {KeyType.TIMESTAMP, KeyType.DATE}:
        return None
    at = datetime.fromtimestamp(max(at_s, 0.0), UTC)
    return encode_value(at.date() if kind is KeyType.DATE else at, kind)


def _needed_watermarks(watermarks: Watermarks, before_s: float) -> Watermarks:
    """Drop watermarks that a later, equally old enough watermark replaces."""
    overtaken = sum(1 for time_s, _ in watermarks[1:] if time_s <= before_s)
    return watermarks[overtaken:]


# -------------------------------------------------------------------- Reading tablets, and verdicts


QUIET_ANALYSES = frozenset({Analysis.EMPTY, Analysis.STABLE, Analysis.DEFERRED})
"""Analyses with which a scan skips a tablet."""
NO_JOBS = ""
ANALYSES_AT_ONCE = 64
"""Analyses that are written in one change."""


def needs_look(
    record: Record | None, table: Table, now_s: float = 0.0, *, fresh: bool = False
) -> bool:
    """Return whether a scan must read more of a tablet than its record.

    Args:
        record: The tablet's record; None if it does not exist, which requires a read.
        table: The table, for the version of its settings.
        now_s: The store's time, for tablets with a recheck time.
        fresh: Whether this is the first scan of a coordinator. The previous coordinator's list of
            deferred tablets is then lost, so deferred tablets must be read, too.
    """
    if record is None or record.running or record.waiting or record.operation:
        return True
    if wanted_analysis(record):
        return True
    is_current = (
        record.analysis_version == record.version
        and record.analysis_settings == table.settings_version
    )
    if not is_current or record.analysis not in QUIET_ANALYSES:
        return True
    if open_trigger_s(table, record):
        return True
    return is_recheck_due(record, now_s) or (fresh and record.analysis is Analysis.DEFERRED)


def wanted_analysis(record: Record) -> str:
    """Return the group that shall count a tablet's live bytes, or "" if no analysis is wanted.

    A tablet without files has nothing to count.
    """
    return record.analysis_group if record.files else ""


def is_recheck_due(record: Record, now_s: float) -> bool:
    """Return whether a recheck time of a tablet has passed."""
    due_s, selector_due_s = record.due_at_s, record.selector_due_s
    return (due_s is not None and due_s <= now_s) or (
        selector_due_s is not None and selector_due_s <= now_s
    )


class ScanVerdict(StrEnum):
    """Verdict of a scan on a tablet that it has read and planned."""

    WANTED = "wanted"
    """Jobs are wanted; if exactly these are queued, nothing needs to be done."""
    RESTS = "rests"
    """Nothing is wanted, which may be noted in the tablet's record."""
    BUSY = "busy"
    """Nothing is wanted now, but a request or pause may change that: the next scan reads it."""


def scan_verdict(tablet: Tablet, table: Table, plan: TabletPlan) -> ScanVerdict:
    """Return the verdict on a tablet that does not require the coordinator (see `must_ask`).

    Args:
        tablet: A consistent snapshot.
        table: Its table.
        plan: The plan of its planners.
    """
    if plan.jobs or plan.analysis_group:
        return ScanVerdict.WANTED
    rests = tablet.selection is None and table.state is TableState.LIVE
    return ScanVerdict.RESTS if rests else ScanVerdict.BUSY


def must_ask(tablet: Tablet, table: Table, now_s: float) -> bool:
    """Return whether the coordinator must handle a tablet, regardless of its plan.

    Reservations may be orphaned; requests, operations, selectors and analyses are driven by the
    coordinator.
    """
    if tablet.running or tablet.waiting or tablet.operation is not None:
        return True
    if wanted_analysis(tablet.record):
        return True
    spec = table_selector(table)
    return spec is not None and must_ask_selector(tablet, table, spec, now_s)


def analysis_at_rest(tablet_files: int) -> Analysis:
    """Return the analysis of a tablet at rest."""
    return Analysis.STABLE if tablet_files else Analysis.EMPTY


def jobs_digest(job_ids: Collection[str]) -> str:
    """Return a digest for the comparison of two plans of a tablet; `NO_JOBS` without jobs."""
    return digest(sorted(job_ids)) if job_ids else NO_JOBS


@dataclass(frozen=True, slots=True)
class TabletSpan:
    """Tablet ends greater than `after` and up to `until`, inclusive; None means unbounded."""

    after: bytes | None = None
    until: bytes | None = None

    def holds(self, end: bytes) -> bool:
        """Return whether the tablet with this end belongs to the span."""
        return (self.after is None or end > self.after) and (
            self.until is None or end <= self.until
        )


def spans_between(cuts: list[bytes]) -> list[TabletSpan]:
    """Return the spans between ascending cuts; n cuts give n + 1 spans that cover all tablets."""
    starts: list[bytes | None] = [None, *cuts]
    return [TabletSpan(after, until) for after, until in zip(starts, [*cuts, None], strict=True)]


# ----------------------------------------------------------------------------------- Chunks of time
# A planner by chunks of time is asked only for chunks that have changed since its last verdict, for
# those that do not rest, and for those that share files with them. Their states are stored beside
# the record of the tablet; each change of files counts there in the same transaction.
#
# The whole tablet is planned if its states were not read, hold for another policy, or were not
# counted by an older release, which the numbers of files and bytes reveal.


def has_chunks(table: Table) -> bool:
    """Return whether the states of chunks may be stored for the tablets of a table."""
    return not table.key and table.time_column is not None


@dataclass(frozen=True, slots=True)
class PlanScope:
    """The part of a tablet that is planned."""

    tablet: Tablet
    """The tablet, with the files of the part."""
    asked: frozenset[int] | None = None
    """Numbers of the chunks; None: the whole tablet."""
    latest_s: float | None = None
    """Latest time of all files of the tablet that is not in the future; None: whole tablet."""


def scope_of(tablet: Tablet, table: Table, grid: ChunkGrid, policy: str, now_s: float) -> PlanScope:
    """Return the part of a tablet that must be planned.

    Args:
        tablet: A consistent snapshot, with the states of its chunks.
        table: Its table.
        grid: The chunks of its planner.
        policy: Digest of what the planner decides by.
        now_s: The store's time.
    """
    stored = tablet.chunks
    if stored is None or not _is_counted(tablet, stored, grid, policy, now_s):
        return PlanScope(tablet)
    if tablet.selection is not None or tablet.waiting or tablet.operation is not None:
        return PlanScope(tablet)
    if table.settings.triggers or open_trigger_s(table, tablet.record):
        return PlanScope(tablet)
    survey = _survey(tablet.files.values(), grid, now_s)
    if survey is None:
        return PlanScope(tablet)
    timed, others, latest_s = survey
    numbers = stored.restless
    reserved = (tablet.files[path] for path in tablet.reserved_files if path in tablet.files)
    numbers.update(number for file in reserved for number in grid.chunks_of(file))
    files = (*_with_neighbours(timed, numbers, grid), *others)
    part = replace(tablet, files={file.path: file for file in files})
    return PlanScope(part, frozenset(numbers), latest_s)


def _survey(
    files: Iterable[DataFile], grid: ChunkGrid, now_s: float
) -> tuple[list[DataFile], list[DataFile], float] | None:
    """Return the files with times, those without, and the latest time that is not in the future.

    None: a file is in more chunks than are counted.
    """
    timed, others = list[DataFile](), list[DataFile]()
    narrow_s = (CHUNKS_OF_FILE_MAX - 2) * grid.length_s  # Such files need no exact count.
    latest_s = -math.inf
    for file in files:  # One loop: a tablet may have very many files.
        low_s, high_s = file.time_min_s, file.time_max_s
        if low_s is None or high_s is None:
            others.append(file)
            continue
        if high_s - low_s > narrow_s and not grid.counted(file):
            return None
        if latest_s < high_s <= now_s:
            latest_s = high_s
        timed.append(file)
    return timed, others, latest_s if timed and latest_s > -math.inf else now_s


def _is_counted(
    tablet: Tablet, stored: StoredChunks, grid: ChunkGrid, policy: str, now_s: float
) -> bool:
    """Return whether the stored states hold for this policy, and every change was counted."""
    head, record = stored.head, tablet.record
    if head is None or (head.grid, head.policy) != (grid, policy):
        return False
    if head.due_at_s is not None and head.due_at_s <= now_s:
        return False
    uncounted = (record.files - stored.files, record.size_bytes - stored.size_bytes)
    return (head.files, head.size_bytes) == uncounted


def _with_neighbours(
    files: Sequence[DataFile], numbers: set[int], grid: ChunkGrid
) -> list[DataFile]:
    """Return the files of chunks, and add the other chunks of these files to their numbers."""
    while True:
        spans = _spans(numbers, grid)
        first_s, last_s = (spans[0][0], spans[-1][1]) if spans else (0.0, 0.0)
        near = [
            file
            for file in files
            if file.time_min_s < last_s and file.time_max_s >= first_s  # type: ignore[operator]  # timed
        ]
        chosen = [file for file in near if _meets(file, spans)]
        count = len(numbers)
        numbers.update(number for file in chosen for number in grid.chunks_of(file))
        if len(numbers) == count:
            return chosen


def _spans(numbers: Collection[int], grid: ChunkGrid) -> list[tuple[float, float]]:
    """Return the ranges of chunks; those of adjacent chunks are merged."""
    spans: list[tuple[float, float]] = []
    for number in sorted(numbers):
        start_s, end_s = grid.span(number)
        if spans and spans[-1][1] == start_s:
            start_s = spans.pop()[0]
        spans.append((start_s, end_s))
    return spans


def _meets(file: DataFile, spans: Sequence[tuple[float, float]]) -> bool:
    low_s, high_s = file.time_min_s, file.time_max_s
    assert low_s is not None and high_s is not None, file.path  # noqa: PT018
    at = bisect_right(spans, (high_s, math.inf))
    return bool(at) and spans[at - 1][1] > low_s


def with_scope(
    plan: TabletPlan, tablet: Tablet, scope: PlanScope, grid: ChunkGrid, policy: str
) -> TabletPlan:
    """Return a plan with what is needed to store the states of its chunks.

    Args:
        plan: Plan of the scope.
        tablet: The whole tablet.
        scope: What was planned.
        grid: The chunks of the planner.
        policy: Digest of what it decides by.
    """
    files = scope.tablet.files.values()
    counts = Counter(number for file in files for number in grid.counted(file))
    plan = replace(plan, grid=grid, policy=policy, asked=scope.asked, chunk_files=counts)
    head = None if tablet.chunks is None else tablet.chunks.head
    if scope.asked is None or head is None:
        return plan
    pressure = plan.pressure
    if pressure is not None:
        pressure = replace(pressure, stored_bytes=tablet.record.size_bytes)
    due_at_s = plan.due_at_s if head.due_at_s is None else earliest_s(plan.due_at_s, head.due_at_s)
    return replace(plan, due_at_s=due_at_s, pressure=pressure)


def chunk_notes(
    plan: TabletPlan, record: Record, stored: StoredChunks | None, deferred: Collection[int] = ()
) -> ChunkNotes | None:
    """Return the states of chunks to store, or None if nothing is to be stored.

    Args:
        plan: Plan of a tablet.
        record: Record of the version that was planned.
        stored: The states as they were read.
        deferred: Numbers of the chunks whose jobs a full queue dropped.
    """
    if stored is None or plan.grid is None:
        return None
    head, stored = _head_of(plan, plan.grid, record, stored)
    numbers = {*plan.chunks, *plan.chunk_files, *(plan.asked or ())}
    if plan.asked is None:
        numbers |= {*stored.notes, *stored.versions}
    notes = {number: _chunk_note(plan, number, stored, deferred) for number in numbers}
    changed = {number: note for number, note in notes.items() if stored.notes.get(number) != note}
    if not changed and head == stored.head:
        return None
    return ChunkNotes(head=head, notes=changed, begins_at=None if stored.head else record.version)


def unstable_notes(
    plan: TabletPlan, record: Record, stored: StoredChunks | None
) -> ChunkNotes | None:
    """Return the states of the chunks for which jobs are wanted; None: there are none."""
    wanted = [n for n, state in plan.chunks.items() if state is IntervalState.PENDING]
    if stored is None or plan.grid is None or not wanted:
        return None
    head, stored = _head_of(plan, plan.grid, record, stored)
    return ChunkNotes(head=head, notes={n: _chunk_note(plan, n, stored, ()) for n in wanted})


def _head_of(
    plan: TabletPlan, grid: ChunkGrid, record: Record, stored: StoredChunks
) -> tuple[ChunkHead, StoredChunks]:
    """Return what the states of a plan hold for, and the stored ones that hold for the same."""
    head = stored.head
    if head is None or (head.grid, head.policy) != (grid, plan.policy):
        epoch = record.version if head is None else max(record.version, head.epoch + 1)
        stored, head = StoredChunks(), ChunkHead(epoch=epoch, grid=grid, policy=plan.policy)
    head = replace(head, due_at_s=plan.due_at_s)
    if plan.asked is None:
        files, size_bytes = record.files - stored.files, record.size_bytes - stored.size_bytes
        head = replace(head, files=files, size_bytes=size_bytes)
    return head, stored


_VERDICTS = {
    IntervalState.COMPLETE: Analysis.STABLE,
    IntervalState.POLICY_EXCLUDED: Analysis.STABLE,
    IntervalState.PENDING: Analysis.UNSTABLE,
    IntervalState.RUNNING: Analysis.UNSTABLE,
}
"""A skipped chunk, or one whose files are in use, gets no verdict and is planned each time."""


def _chunk_note(
    plan: TabletPlan, number: int, stored: StoredChunks, deferred: Collection[int]
) -> ChunkNote:
    state, files = plan.chunks.get(number), plan.chunk_files.get(number, 0)
    analysis = Analysis.EMPTY if not files else Analysis.UNKNOWN
    if state is not None:
        analysis = _VERDICTS.get(state, analysis)
    if number in deferred and analysis is Analysis.UNSTABLE:
        analysis = Analysis.DEFERRED
    return ChunkNote(analysis, stored.versions.get(number, 0), files)


# ------------------------------------------------------------------------------- Writes to a tablet


RECENT_S = 300.0
ADDS_MAX = 1000


def recent_user_adds(tablet: Tablet, now_s: float) -> tuple[tuple[float, int], ...]:
    """Return the time and row count of users' adds to a tablet in the last `RECENT_S` seconds.

    The result covers at most `ADDS_MAX` files, the newest ones.

    Args:
        tablet: The version that was read.
        now_s: The store's time.
    """
    since_s = now_s - RECENT_S
    adds = [
        (file.added_at_s, file.rows)
        for file in tablet.files.values()
        if file.added_at_s > since_s and file.job is None
    ]
    return tuple(adds) if len(adds) <= ADDS_MAX else tuple(sorted(adds)[-ADDS_MAX:])


# ------------------------------------------------------------------------------- Heat of tablets
# Decaying read and write rates of tablets, in the coordinator's memory. Pure.
#
# Written rows are the rows of files that users added; the scanner sees them when it plans a tablet.
# Scans come from the gateway and from reports of other readers. The rates start at zero with the
# coordinator and need about a minute to become accurate. The workload score is Apache Kudu's.


WINDOW_S = 60.0
"""Time in which the weight of an event decays to 1/e."""


@dataclass(slots=True)
class _Counts:
    seen_s: float
    scans: float = 0.0
    rows: float = 0.0
    added_s: float = 0.0
    """Store time of the newest counted add."""

    def decay(self, now_s: float) -> None:
        """Decay the counts up to now."""
        kept = math.exp(-max(0.0, now_s - self.seen_s) / WINDOW_S)
        self.scans, self.rows, self.seen_s = self.scans * kept, self.rows * kept, now_s


class TabletHeat:
    """The rates of tablets. Bounded: the tablet that was inactive for longest is evicted."""

    def __init__(self, tablets_max: int) -> None:
        """Create an empty registry."""
        self._counts: BoundedMap[TabletId, _Counts] = BoundedMap(tablets_max)

    def note_adds(self, tablet: TabletId, adds: Sequence[tuple[float, int]], now_s: float) -> None:
        """Count written rows; adds that were counted before are ignored.

        Args:
            tablet: The tablet with the adds.
            adds: Store time and row count of each add.
            now_s: The current time.
        """
        before = self._counts.get(tablet)
        counted_s = 0.0 if before is None else before.added_s
        rows = sum(rows for at_s, rows in adds if at_s > counted_s)
        if not rows:
            return
        counts = self._now(tablet, now_s)
        counts.rows += rows
        counts.added_s = max(at_s for at_s, _ in adds)

    def note_scans(self, tablet: TabletId, scans: int, now_s: float) -> None:
        """Count scans of a tablet."""
        self._now(tablet, now_s).scans += scans

    def of(self, tablet: TabletId, now_s: float) -> Heat:
        """Return the current rates of a tablet."""
        counts = self._counts.get(tablet)
        if counts is None:
            return COLD
        kept = math.exp(-max(0.0, now_s - counts.seen_s) / WINDOW_S) / WINDOW_S
        return Heat(scans_s=counts.scans * kept, rows_s=counts.rows * kept)

    def forget(self, tablet: TabletId) -> None:
        """Remove a tablet that no longer exists."""
        self._counts.pop(tablet)

    def _now(self, tablet: TabletId, now_s: float) -> _Counts:
        counts = self._counts.get(tablet) or _Counts(seen_s=now_s)
        counts.decay(now_s)
        self._counts.put(tablet, counts)
        return counts


SCANS_FULL_S = 1.0
"""Scans per second that give the full read score."""
ROWS_FULL_S = 1000.0
"""Rows written per second that give the full write score."""


@dataclass(frozen=True, slots=True)
class WorkloadScore:
    """Score that the workload of a tablet adds to its operations."""

    flush: float
    """Added to operations that free memory; depends on reads only."""
    compact: float
    """Added to operations that speed up reads; depends on reads and writes."""


def workload_score(
    scans_per_s: float, rows_written_per_s: float, upper_bound: float = 1.0
) -> WorkloadScore:
    """Return the scores that the workload of a tablet adds to its operations.

    Args:
        scans_per_s: Scans of the tablet per second.
        rows_written_per_s: Rows written to it per second.
        upper_bound: Maximum score that is added; 0 disables the addition.
    """
    reads = min(1.0, scans_per_s / SCANS_FULL_S) * upper_bound
    writes = min(1.0, rows_written_per_s / ROWS_FULL_S) * upper_bound
    return WorkloadScore(flush=reads, compact=min(upper_bound, reads + writes))


# ----------------------------------------- Recheck time: when to read an unchanged tablet again


_TOMBSTONES = attrgetter("tombstones")


def recheck_at_s(tablet: Tablet, table: Table, plan: TabletPlan) -> float | None:
    """Return when a tablet must be read again even if it does not change, or None.

    Args:
        tablet: The version that was read.
        table: Its table.
        plan: The plan of its planners.
    """
    return earliest_s(plan.due_at_s, _watermark_due_s(tablet, table))


def wanted_watermarks(tablet: Tablet, table: Table, now_s: float) -> Watermarks | None:
    """Return the watermarks of settled versions to write, or None if they are up to date.

    Args:
        tablet: The version that was read.
        table: Its table.
        now_s: The store's time.
    """
    if not _needs_watermarks(tablet, table):
        return None
    before, retention_s = tablet.record.settled, table.settings.tombstone_retention_s
    watermarks = next_watermarks(before, now_s, _highest_version(tablet), retention_s)
    return None if watermarks == before else watermarks


def _watermark_due_s(tablet: Tablet, table: Table) -> float | None:
    """Return when the highest version may become a watermark.

    None means that it already is one, or that the tablet needs no watermark. Without this time, a
    tablet without further writes would never get another watermark, and would keep its dead rows
    forever.
    """
    if not _needs_watermarks(tablet, table):
        return None
    watermarks = tablet.record.settled
    if not watermarks:
        return None  # The scan that calls this writes the first watermark.
    last_s, version = watermarks[-1]
    if _highest_version(tablet) <= version:
        return None
    return last_s + table.settings.tombstone_retention_s / WATERMARKS_PER_RETENTION


def _needs_watermarks(tablet: Tablet, table: Table) -> bool:
    """Return whether a tablet may hold dead rows and therefore needs watermarks.

    The first watermark after the first tombstone covers the tombstone, so earlier watermarks are
    not needed.
    """
    if table.version_column is None or not tablet.files:
        return False
    expires = table.settings.ttl_s is not None and table.time_column is not None
    return expires or any(map(_TOMBSTONES, tablet.files.values()))


def _highest_version(tablet: Tablet) -> bytes:
    return max((file.version_max or b"" for file in tablet.files.values()), default=b"")


# ----------------------------------------------------------------------------------- File retention
# How long replaced files are kept, and when a table's manifest is published. Pure.
#
# A replaced file may be deleted when its grace period is over, no reader pins it, and no manifest
# in use lists it. A manifest is therefore published when a table has changed, and also when
# replaced files wait for a manifest that no longer lists them.


# ----------------------------------------------------------------------------------- Replaced files


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageRules:
    """How long files are kept, in seconds."""

    grace_s: float
    clock_skew_max_s: float
    retired_s: float = 0.0
    """How long the name of a deleted user file cannot be reused."""


def is_deletable(
    entry: GarbageEntry, pins: Sequence[PinEntry], now_s: float, rules: GarbageRules
) -> bool:
    """Return whether age and reader pins allow the deletion of a file.

    Args:
        entry: The garbage entry of the file; an entry without a time stamp is not deletable.
        pins: The pins, read after the entry.
        now_s: The store's time, read after the pins.
        rules: Grace period and clock skew.
    """
    if entry.stamped_s <= 0 or now_s - entry.stamped_s < rules.grace_s:
        return False
    # A reader that began after the stamp does not have this file in its listing.
    newest = entry.stamped_s + rules.clock_skew_max_s
    return not any(pin.since_s < newest and pin.until_s > now_s for pin in pins)


# --------------------------------------------------------------------------------------- Manifests


GAPS_PER_GRACE = 16
"""Manifests are kept for the grace period, so at most this many exist at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRules:
    """How often a table's manifest is published, in seconds."""

    interval_s: float
    """Interval between two manifests of a table that changes."""
    grace_s: float
    """How long replaced files, and replaced manifests, are kept."""

    @property
    def gap_s(self) -> float:
        """The shortest time between two manifests."""
        return self.grace_s / GAPS_PER_GRACE


def is_publish_due(
    last: Manifest | None, now_s: float, rules: PublishRules, *, changed: bool, awaited: bool
) -> bool:
    """Return whether a manifest should be published now.

    Args:
        last: The last manifest, or None if there is none.
        now_s: The store's time.
        rules: The rules of the table.
        changed: Whether the table has changed or may have changed since the last manifest.
        awaited: Whether replaced files wait for a manifest that no longer lists them.
    """
    if last is None:
        return True
    age_s = now_s - last.published_s
    if changed and age_s >= max(rules.interval_s, rules.gap_s):
        return True
    # An old manifest delays deletions. An interval longer than the grace period is meant for
    # tables that rarely change, and shall not keep replaced files.
    return awaited and age_s >= max(min(rules.interval_s, rules.grace_s), rules.gap_s)
