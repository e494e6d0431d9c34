"""The full scan: a cheap check of every tablet's record, for changes that the feed missed.

    table ─► spans of about `RANGE_TABLETS` ─► ranges, several at a time ─► what they found
                                                                             │
    tablets asked, wanted and not queued, queued and not wanted ─► the scanner's second lane

If a table has several ranges, they are scanned in Ray tasks (`coordinator.scan.ray_ranges`),
otherwise in this process. The scanner plans the tablets found, after those from the change feed.
The scan waits while the scanner's second lane is long, so that memory is bounded. A failed range is
retried and counted. See `docs/design/0005-full-scan.md`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from common.errors import MetadataError, UnavailableError
from common.metadata.store import TabletStore
from common.model.table import Table
from common.model.tablet import TabletId
from common.settings import CoordinatorSettings
from common.telemetry import Log
from coordinator.core.scans import (
    TabletSpan,
    jobs_digest,
    spans_between,
)
from coordinator.ports import QueuedJobs
from coordinator.scan.scan_ranges import (
    RangeFindings,
    RangeScans,
    ScanRange,
)
from coordinator.scan.scanner import Scanner

RANGE_TABLETS = 10_000
TABLES_AT_ONCE = 4
TRIES_MAX = 3
"""Tries of one range; after that, the range waits for the next full scan."""
RETRY_PAUSE_S = 1.0
COMPARED_AT_ONCE = 500
"""Tablets that are compared with the queue before the event loop may run other tasks."""


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
    """Duration of the last scan of all tables."""


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
    """Scans all tables periodically, and a new or changed table at once."""

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
        self._busy: set[str] = set()
        self._scanned: set[str] = set()
        """Tables that were scanned completely since the start."""
        self._news = asyncio.Event()
        self.counts = ScanCounts()
        scanner.scan_by(self.look)

    def use(self, remote: RangeScans | None, tasks: int) -> None:
        """Scan tables with several ranges through `remote`, `tasks` ranges of a table at a time."""
        self._remote = remote if tasks else None
        self._tasks = max(1, tasks)

    def look(self, table: str, *, fresh: bool = True, every: bool = False) -> None:
        """Request the scan of a table; requests for the same table are merged."""
        request = self._requested.setdefault(table, _ScanRequest())
        request.fresh, request.every = request.fresh or fresh, request.every or every
        self._news.set()

    async def run_forever(self, settings: CoordinatorSettings) -> None:
        """Scan requested tables, and all tables every `full_scan_interval_s`."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(TABLES_AT_ONCE):
                tasks.create_task(self._serve_forever())
            tasks.create_task(self._request_all_forever(settings.full_scan_interval_s))

    async def _request_all_forever(self, interval_s: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(interval_s)
            begun_s = loop.time()
            self._scanner.remind()
            for table in list(self._scanner.tables):
                self.look(table, fresh=False)
            while self._requested or self._busy:
                await asyncio.sleep(min(1.0, interval_s))
            self.counts.last_s = loop.time() - begun_s

    async def _serve_forever(self) -> None:
        while True:
            await self._news.wait()
            table = next((each for each in self._requested if each not in self._busy), None)
            if table is None:
                self._news.clear()
                continue
            request, found = self._requested.pop(table), self._scanner.tables.get(table)
            if found is None:
                continue
            self._busy.add(table)
            scan = partial(self.scan_table, found, fresh=request.fresh, every=request.every)
            try:
                await self._faults.run("the full scan", table, scan)
            finally:
                self._busy.discard(table)
                self._news.set()

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
        return sum(table not in self._scanned for table in self._scanner.tables)

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
            if jobs_digest(self._queued.queued_ids(tablet)) != wanted[tablet.end]:
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
