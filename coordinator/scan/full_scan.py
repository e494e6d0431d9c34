"""The full scan: a cheap check of every tablet's record, for changes that the feed missed.

    table ─► spans of about `RANGE_TABLETS` ─► ranges, several at a time ─► what they found
                                                                             │
    tablets asked, wanted and not queued, queued and not wanted ─► the scanner's second lane

If a table has several ranges, they are scanned in Ray tasks (`coordinator.ray_compactors`),
otherwise in this process. The scanner plans the tablets found, after those from the change feed.
The scan waits while the scanner's second lane is long, so that memory is bounded. A failed range is
retried and counted. See `docs/design/0005-full-scan.md`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from common.errors import BrokenValueError, MetadataError, UnavailableError
from common.metadata.bulk_reads import LARGE_FILES
from common.metadata.changes import WriteAnalyses, WriteAnalysis
from common.metadata.store import TabletStore
from common.metadata.store_values import UnreadableTablet
from common.model.job import analysis_id
from common.model.table import Table
from common.model.tablet import Analysis, Tablet, TabletId
from common.telemetry import Log
from coordinator.core.maintenance import OperationStatistics
from coordinator.core.scans import (
    ANALYSES_AT_ONCE,
    ScanVerdict,
    TabletSpan,
    analysis_at_rest,
    jobs_digest,
    must_ask,
    needs_look,
    recheck_at_s,
    scan_verdict,
    spans_between,
)
from coordinator.ports import PlanTablet, QueuedJobs
from coordinator.scan.scanner import Scanner, read_request_facts, with_watermarks

# -------------------------------------------------------------------------------------- Scan ranges
# One range of a full scan: a span of a table's tablets.
#
# A scan reads the records first. It then reads and plans only the tablets that are not quiet
# according to their records. The findings list the tablets that the coordinator must handle;
# tablets at rest are marked in their records. No decision of a scan is final, so a range may be
# lost, late or repeated.


PAGE_TABLETS = 1000
BATCH_TABLETS = 256
"""Tablets that are read and planned before the event loop may run other tasks."""
RESULT_BYTES_MAX = 1024**2
"""Maximum total size of the ends in one answer; the rest of the range needs another scan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRange:
    """The tablets to scan. Small, regardless of the size of the table."""

    table: Table
    span: TabletSpan
    fresh: bool = False
    """Whether to include deferred tablets (`needs_look`)."""
    every: bool = False
    """Whether to include quiet tablets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeFindings:
    """The result of a range scan: ends of tablets, about `RESULT_BYTES_MAX` bytes at most."""

    ask: tuple[bytes, ...] = ()
    """Tablets that the coordinator must handle."""
    wanted: tuple[tuple[bytes, str], ...] = ()
    """Tablets that want jobs, each with the digest of the jobs' ids."""
    deferred: tuple[bytes, ...] = ()
    """Tablets that were skipped because the coordinator replans them."""
    tablets: int = 0
    """Number of records read."""
    planned: int = 0
    """Number of tablets read and planned."""
    rest: TabletSpan | None = None
    """The rest of the range if the answer is full."""


class RangeScans(Protocol):
    """An executor of range scans."""

    async def scan(self, scan_range: ScanRange) -> RangeFindings:
        """Scan a range.

        Raises:
            MetadataError: The store did not answer as it should.
            UnavailableError: The store or the executor did not answer in time.
        """
        ...


class LocalRangeScans:
    """Scans ranges in this process, interleaved with its other tasks."""

    def __init__(self, store: TabletStore, plan: PlanTablet) -> None:
        """Create scans that use these planners."""
        self._store = store
        self._plan = plan

    async def scan(self, scan_range: ScanRange) -> RangeFindings:
        """Scan a range."""
        return await _RangeScan(self._store, self._plan, scan_range).run()


class _RangeScan:
    """One scan of a range, with its findings so far."""

    def __init__(self, store: TabletStore, plan: PlanTablet, scan_range: ScanRange) -> None:
        self._store = store
        self._plan = plan
        self._range = scan_range
        self._ask: list[bytes] = []
        self._wanted: list[tuple[bytes, str]] = []
        self._deferred: list[bytes] = []
        self._bytes = self._tablets = self._planned = 0
        self._now_s = 0.0

    async def run(self) -> RangeFindings:
        """Scan page after page until the span ends or the answer is full."""
        table, span = self._range.table.id, self._range.span
        after, rest = span.after, None
        while ids := await self._store.tablet_ids(table, after=after, count=PAGE_TABLETS):
            page = [tablet for tablet in ids if span.holds(tablet.end)]
            self._now_s = await self._store.now_s()
            await self._look(page)
            after = ids[-1].end
            if len(page) < len(ids):
                break
            if self._bytes >= RESULT_BYTES_MAX:
                rest = TabletSpan(after, span.until)
                break
        return RangeFindings(
            ask=tuple(self._ask),
            wanted=tuple(self._wanted),
            deferred=tuple(self._deferred),
            tablets=self._tablets,
            planned=self._planned,
            rest=rest,
        )

    async def _look(self, page: Sequence[TabletId]) -> None:
        scan_range = self._range
        self._tablets += len(page)
        look = page if scan_range.every else await self._not_quiet(page)
        for first in range(0, len(look), BATCH_TABLETS):
            batch = look[first : first + BATCH_TABLETS]
            analyses: list[WriteAnalysis] = []
            for tablet, seen in zip(batch, await self._store.readable(batch), strict=True):
                if seen is None or isinstance(seen, UnreadableTablet):
                    self._found(tablet.end)  # The coordinator reads it and reports the problem.
                elif (analysis := await self._judge(seen)) is not None:
                    analyses.append(analysis)
            await self._write(analyses)
            await asyncio.sleep(0)

    async def _not_quiet(self, page: Sequence[TabletId]) -> Sequence[TabletId]:
        """Return the tablets that are not quiet according to their records."""
        scan_range = self._range
        try:
            records = await self._store.records(page)
        except BrokenValueError:
            return page  # A record is broken: read each tablet, so that it is reported.
        look: list[TabletId] = []
        for tablet, record in zip(page, records, strict=True):
            if needs_look(record, scan_range.table, self._now_s, fresh=scan_range.fresh):
                look.append(tablet)
            elif record is not None and record.analysis is Analysis.DEFERRED:
                self._deferred.append(tablet.end)
                self._bytes += len(tablet.end)
        return look

    async def _judge(self, tablet: Tablet) -> WriteAnalysis | None:
        """Add a tablet to the findings, or return the new analysis of a tablet at rest."""
        table, now_s = self._range.table, self._now_s
        self._planned += 1
        if must_ask(tablet, table, now_s) or len(tablet.files) > LARGE_FILES:
            self._found(tablet.id.end)  # The scanner plans a large one in a thread.
            return None
        tablet = await with_watermarks(self._store, tablet, table, now_s)
        try:
            plan = self._plan(tablet, table, now_s, await read_request_facts(self._store, tablet))
        except (MetadataError, UnavailableError):
            raise
        except Exception:  # The coordinator plans the tablet again and reports the error.
            self._found(tablet.id.end)
            return None
        match scan_verdict(tablet, table, plan):
            case ScanVerdict.WANTED:
                wanted = [job.id for job in plan.jobs]
                if plan.analysis_group:
                    wanted.append(analysis_id(tablet.id))
                self._found(tablet.id.end, jobs_digest(wanted))
            case ScanVerdict.BUSY:
                pass
            case ScanVerdict.RESTS:
                due_at_s = recheck_at_s(tablet, table, plan)
                return self._new_analysis(tablet, due_at_s, plan.triggered_at_s)
        return None

    def _new_analysis(
        self, tablet: Tablet, due_at_s: float | None, triggered_at_s: float
    ) -> WriteAnalysis | None:
        """Return the analysis to write for a tablet at rest, or None if its record has it."""
        record, settings_version = tablet.record, self._range.table.settings_version
        analysis = analysis_at_rest(len(tablet.files))
        fresh = (record.analysis_version, record.analysis_settings) == (
            record.version,
            settings_version,
        )
        same = fresh and (record.analysis, record.due_at_s) == (analysis, due_at_s)
        if same and not triggered_at_s:
            return None
        return WriteAnalysis(
            tablet=tablet.id,
            analysis=analysis,
            version=record.version,
            settings_version=settings_version,
            due_at_s=due_at_s,
            answered_s=triggered_at_s or None,
        )

    def _found(self, end: bytes, wanted: str | None = None) -> None:
        if wanted is None:
            self._ask.append(end)
        else:
            self._wanted.append((end, wanted))
        self._bytes += len(end) + len(wanted or "")

    async def _write(self, analyses: Sequence[WriteAnalysis]) -> None:
        """Write analyses of tablets at rest; the store refuses those of changed tablets."""
        for first in range(0, len(analyses), ANALYSES_AT_ONCE):
            batch = tuple(analyses[first : first + ANALYSES_AT_ONCE])
            await self._store.apply(WriteAnalyses(table=self._range.table.id, notes=batch))


# ---------------------------------------------------------------------------------------- Full scan


RANGE_TABLETS = 10_000
TRIES_MAX = 3
"""Tries of one range; after that, the range waits for the next full scan."""
RETRY_PAUSE_S = 1.0
COMPARED_AT_ONCE = 500
"""Tablets that are compared with the queue before the event loop may run other tasks."""
UNSCANNED_MAX = 1000
"""Tables without a first scan that a status names."""
_NEWS = "the table is new or has changed, or changes of it were missed"


@dataclass(slots=True)
class ScanCounts:
    """Counts since the start."""

    scans: int = 0
    """Completed scans of a table."""
    ranges: int = 0
    ranges_failed: int = 0
    """Failed tries of ranges."""
    tablets: int = 0
    planned: int = 0
    found: int = 0
    """Tablets passed to the scanner."""
    last_s: float = 0.0
    """Duration of the last scan of a table."""


@dataclass(slots=True)
class _ScanRequest:
    """Options of a requested scan."""

    fresh: bool = False
    every: bool = False


@dataclass(slots=True)
class _TableScan:
    """One scan of a table: remaining ranges with tries, and tablets with unconfirmed jobs."""

    todo: deque[tuple[ScanRange, int]]
    unconfirmed: dict[bytes, None]
    """Ends of tablets whose queued jobs no range has confirmed so far."""
    left_out: list[TabletSpan] = field(default_factory=list)
    """Spans that could not be scanned."""


class FullScan:
    """Scans tables when the scheduler of maintenance chooses them; a new or changed one at once."""

    def __init__(
        self, store: TabletStore, scanner: Scanner, queued: QueuedJobs, local: RangeScans, log: Log
    ) -> None:
        """Create a full scan, and register it with the scanner."""
        self._faults = scanner.faults
        self._store = store
        self._scanner = scanner
        self._queued = queued
        self._local = local
        self._remote: RangeScans | None = None
        self._tasks = 1
        self._log = log
        self._requested: dict[str, _ScanRequest] = {}
        self._ask: Callable[[OperationStatistics], None] = lambda _operation: None
        self._scanned: set[str] = set()
        """Tables that were scanned completely since the start."""
        self.counts = ScanCounts()
        scanner.scan_by(self.look)

    def use(self, remote: RangeScans | None, tasks: int) -> None:
        """Scan tables with several ranges through `remote`, `tasks` ranges of a table at a time."""
        self._remote = remote if tasks else None
        self._tasks = max(1, tasks)

    def ask_by(self, ask: Callable[[OperationStatistics], None]) -> None:
        """Report requested scans to the scheduler, which calls `run`."""
        self._ask = ask

    def look(self, table: str, *, fresh: bool = True, every: bool = False) -> None:
        """Request the scan of a table; requests for the same table are merged."""
        request = self._requested.setdefault(table, _ScanRequest())
        request.fresh, request.every = request.fresh or fresh, request.every or every
        known = self._scanner.tables.get(table)
        self._ask(
            OperationStatistics(
                name=table,
                why="every tablet shall be planned" if request.every else _NEWS,
                perf=1.0,
                priority=0 if known is None else known.settings.maintenance_priority,
            )
        )

    async def run(self, listed: Table) -> None:
        """Scan a table as it was requested; otherwise report it as changed, and scan it."""
        request = self._requested.pop(listed.id, None)
        table = self._scanner.tables.get(listed.id)
        if table is None:
            return
        if request is None:
            self._scanner.remind(table.id)
            request = _ScanRequest()
        begun_s = asyncio.get_running_loop().time()
        await self.scan_table(table, fresh=request.fresh, every=request.every)
        self.counts.last_s = asyncio.get_running_loop().time() - begun_s

    async def scan_table(self, table: Table, *, fresh: bool = False, every: bool = False) -> None:
        """Scan one table; ranges that fail wait for the next full scan.

        Args:
            table: The current version of the table.
            fresh: Whether to include deferred tablets.
            every: Whether to include all tablets.
        """
        unconfirmed = dict.fromkeys(self._queued.queued_ends(table.id))
        try:
            spans = spans_between(list(await self._store.every(table.id, RANGE_TABLETS)))
        except (MetadataError, UnavailableError) as error:
            self._log("full scan of a table failed", table=table.name, cause=str(error))
            return
        scan_ranges = (
            ScanRange(table=table, span=span, fresh=fresh, every=every) for span in spans
        )
        work = _TableScan(deque((scan_range, 1) for scan_range in scan_ranges), unconfirmed)
        scans = self._local if self._remote is None or len(spans) == 1 else self._remote
        count = 1 if scans is self._local else min(self._tasks, len(spans))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(count):
                tasks.create_task(self._scan_ranges(work, scans))
        await self._compare(table.id, _unwanted(work), self._no_longer_wanted)
        self.counts.scans += 1
        self._scanned = {*self._scanned, table.id}.intersection(self._scanner.tables)

    @property
    def unscanned_tables(self) -> int:
        """Number of tables whose first scan since the start has not ended."""
        return len(self._unscanned())

    def why_no_buffers(self) -> list[tuple[str, str]]:
        """Return why rows of tables may not be buffered yet: their attempts are not known.

        With many such tables: one reason for all.
        """
        tables = self._unscanned()
        if len(tables) > UNSCANNED_MAX:
            return [("", f"the first scan of {len(tables):,} tables has not ended")]
        return [(table, "its first scan has not ended") for table in tables]

    def _unscanned(self) -> list[str]:
        return [table for table in self._scanner.tables if table not in self._scanned]

    async def _scan_ranges(self, work: _TableScan, scans: RangeScans) -> None:
        while work.todo:
            scan_range, tries = work.todo.popleft()
            await self._scanner.room()
            self.counts.ranges += 1
            try:
                findings = await scans.scan(scan_range)
            except (MetadataError, UnavailableError) as error:
                await self._failed(work, scan_range, tries, error)
                continue
            self._count(findings)
            if findings.rest is not None:
                rest = ScanRange(
                    table=scan_range.table,
                    span=findings.rest,
                    fresh=scan_range.fresh,
                    every=scan_range.every,
                )
                work.todo.append((rest, 1))
            await self._submit_findings(work, scan_range, findings)

    async def _failed(
        self, work: _TableScan, scan_range: ScanRange, tries: int, error: Exception
    ) -> None:
        self.counts.ranges_failed += 1
        name, again = scan_range.table.name, tries < TRIES_MAX
        self._log("piece of a full scan failed", table=name, cause=str(error), again=again)
        if again:
            await asyncio.sleep(RETRY_PAUSE_S)
            work.todo.append((scan_range, tries + 1))
        else:
            work.left_out.append(scan_range.span)

    def _count(self, findings: RangeFindings) -> None:
        self.counts.tablets += findings.tablets
        self.counts.planned += findings.planned

    async def _submit_findings(
        self, work: _TableScan, scan_range: ScanRange, findings: RangeFindings
    ) -> None:
        """Pass to the scanner the tablets to handle and those whose queued jobs differ."""
        table, wanted = scan_range.table.id, dict(findings.wanted)

        def differs(tablet: TabletId) -> bool:
            jobs = self._queued.queued_ids(tablet)
            if not jobs and self._queued.is_deferred(tablet):
                return False  # Its jobs wait for a window, or for the end of a pause.
            if jobs_digest(jobs) != wanted[tablet.end]:
                return True
            work.unconfirmed.pop(tablet.end, None)
            return False

        for end in findings.ask:
            work.unconfirmed.pop(end, None)
        await self._compare(table, findings.ask, lambda _tablet: True)
        await self._compare(table, wanted, differs)
        await self._compare(table, findings.deferred, self._is_forgotten)

    def _is_forgotten(self, tablet: TabletId) -> bool:
        """Return whether a tablet is deferred in the store, but not in the coordinator.

        A fail-over of the store may undo the end of a deferral.
        """
        return not self._queued.is_deferred(tablet)

    def _no_longer_wanted(self, tablet: TabletId) -> bool:
        return bool(self._queued.queued_ids(tablet))

    async def _compare(
        self, table: str, ends: Iterable[bytes], looks: Callable[[TabletId], bool]
    ) -> None:
        for number, end in enumerate(ends):
            tablet = TabletId(table, end)
            if looks(tablet):
                self.counts.found += 1
                self._scanner.found(tablet)
            if number % COMPARED_AT_ONCE == COMPARED_AT_ONCE - 1:
                await asyncio.sleep(0)


def _unwanted(work: _TableScan) -> list[bytes]:
    """Return the ends of tablets with queued jobs that no successful range has confirmed."""
    return [end for end in work.unconfirmed if not any(span.holds(end) for span in work.left_out)]
