"""One range of a full scan: a span of a table's tablets.

A scan reads the records first. It then reads and plans only the tablets that are not quiet
according to their records. The findings list the tablets that the coordinator must handle; tablets
at rest are marked in their records. No decision of a scan is final, so a range may be lost, late or
repeated.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from common.errors import BrokenValueError, MetadataError, UnavailableError
from common.metadata.changes import WriteAnalyses, WriteAnalysis
from common.metadata.store import TabletStore
from common.metadata.store_values import UnreadableTablet
from common.model.job import analysis_id
from common.model.table import Table
from common.model.tablet import Analysis, Tablet, TabletId
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
)
from coordinator.ports import PlanTablet
from coordinator.scan.scanner import read_request_facts, with_watermarks

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
        if must_ask(tablet, table, now_s):
            self._found(tablet.id.end)
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
            some = tuple(analyses[first : first + ANALYSES_AT_ONCE])
            await self._store.apply(WriteAnalyses(table=self._range.table.id, notes=some))
