"""Flushes buffered rows: when a buffer is too old or too large, or the store is short of memory.

    change of a table, or a visit → read its buffer → score → the scheduler of maintenance → flush

Its memory is only a cache: every table is visited once per longest wait, so a new coordinator finds
the buffers that another one has left.
"""

import asyncio
import heapq
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from common.errors import CompactionError
from common.metadata.store_values import StoreHealth, TableBuffer
from common.model.table import Table, TableState
from common.parquet.buffered import (
    Flushed,
    FlushPorts,
    FlushRules,
    buffer_text,
    flush_table,
    why_due,
)
from common.telemetry import Log
from common.units import format_bytes, format_count
from common.wire import MetricValue
from coordinator.core.maintenance import OperationName, OperationStatistics, flush_score
from neve import api

LOOK_S = 1.0
"""Interval between readings of the buffers that are known to have rows."""
BUFFERED_MAX = 100
"""Tables with buffered rows in a status."""
MIB = 1024**2


def flush_statistics(
    table: str, buffer: TableBuffer, now_s: float, rules: FlushRules
) -> OperationStatistics:
    """Return the inputs of the scheduler for the flush of a buffer with rows.

    Args:
        table: Id of the table.
        buffer: Its buffer.
        now_s: The store's time.
        rules: When it is flushed.
    """
    due = why_due(buffer, now_s, rules)
    age_ms = 1000 * max(0.0, now_s - buffer.segments[0].opened_s)
    score = flush_score(buffer.size_bytes / MIB, age_ms, rules.segment_bytes / MIB)
    rows = format_count(buffer.rows, "row")
    return OperationStatistics(
        name=table,
        why=due or f"{rows} in {format_bytes(buffer.size_bytes)} are buffered",
        # A flush that is due may use the last free slot: its rows are in no file.
        low_io=due is not None,
        logs_retained_bytes=buffer.size_bytes,
        ram_anchored_bytes=buffer.size_bytes,
        perf=max(score, float(due is not None)),
    )


class BufferFlusher:
    """Finds buffers with rows, and flushes them when the scheduler says so."""

    def __init__(
        self,
        ports: FlushPorts,
        rules: FlushRules,
        log: Log,
        *,
        known_generation: Callable[[str], int] = lambda _table: 0,
    ) -> None:
        """Create a flusher that knows no buffer.

        Args:
            ports: Ports of the process.
            rules: When buffers are flushed.
            log: Receives flushes and failures.
            known_generation: Returns the generation that the store of a table must have reached.
        """
        self._ports, self._rules, self._log = ports, rules, log
        self._known_generation = known_generation
        self._buffers: dict[str, TableBuffer] = {}
        """Table id → its buffer as it was read last; tables without buffered rows are left out."""
        self._now_s = 0.0
        self.flushed, self.failures = Flushed(), 0

    def table_changed(self, table: str) -> None:
        """Read the buffer of a table soon: it may have got its first rows."""
        self._buffers.setdefault(table, TableBuffer())

    async def watch_forever(self, ask: Callable[[OperationStatistics], None]) -> None:
        """Read the buffers with rows each second, and tell the scheduler about them.

        Args:
            ask: Notes the known work on a table.
        """
        while True:
            await asyncio.sleep(LOOK_S)
            with suppress(CompactionError):  # The next look reads them.
                await self.look()
            for table, buffer in self._buffers.items():
                if buffer.segments:  # Otherwise it was not read since its table changed.
                    ask(flush_statistics(table, buffer, self._now_s, self._rules))

    async def look(self) -> None:
        """Read the known buffers again, and forget those without rows."""
        if not self._buffers:
            return
        # Of a buffer that cannot be read, the next visit of its table reports why.
        buffers = await self._ports.store.readable_buffers(list(self._buffers))
        self._now_s = await self._ports.store.now_s()
        for table, buffer in buffers.items():
            self._buffers[table] = buffer
            if not buffer.segments:
                del self._buffers[table]

    async def run(self, table: Table) -> OperationStatistics | None:
        """Flush a table's buffer.

        Raises:
            CompactionError: It was not flushed; its rows stay buffered.
        """
        if table.state not in {TableState.LIVE, TableState.PAUSED}:
            self._buffers.pop(table.id, None)
            return None
        try:
            flushed = await flush_table(self._ports, table, self._known_generation(table.id))
        except CompactionError:
            self.failures += 1
            self.table_changed(table.id)
            raise
        if flushed.segments:
            self.flushed += flushed
            self._log(
                "buffered rows flushed", table=table.name, rows=flushed.rows, files=flushed.files
            )
        self._buffers.pop(table.id, None)
        return None

    async def row(self, table: Table, scans_s: float = 0.0) -> api.MaintenanceOperation:
        """Return the row of a table's buffer in the listing of operations.

        Args:
            table: The table.
            scans_s: Scans per second. Each reads the whole buffer.
        """
        (buffer,) = await self._ports.store.buffers([table.id])
        row = api.MaintenanceOperation(tablet="", kind=OperationName.FLUSH.value)
        if not buffer.segments:
            return replace(row, why="no rows are buffered")
        now_s = await self._ports.store.now_s()
        facts = flush_statistics(table.id, buffer, now_s, self._rules)
        reads = ""
        if scans_s:
            reads = f"; scans read {format_bytes(round(scans_s * buffer.size_bytes))}/s of them"
        return replace(
            row,
            state=api.MaintenanceState.RUNNABLE.value,
            why=f"{buffer_text(buffer, now_s, self._rules)}{reads}",
            gain=float(buffer.rows),
            gain_unit="rows in files",
            freed_bytes=buffer.size_bytes,
            cost_bytes=buffer.size_bytes,
            score=facts.perf,
            adjusted=facts.perf,
            age_s=max(0.0, now_s - buffer.segments[0].opened_s),
            later_bytes=2 * buffer.size_bytes,
            scan_bytes_s=scans_s * buffer.size_bytes,
        )

    def buffered(self, tables: Mapping[str, Table]) -> tuple[api.BufferedTable, ...]:
        """Return the tables with buffered rows, largest first.

        Args:
            tables: All tables by id.
        """
        known = [
            (tables[table].name, buffer)
            for table, buffer in self._buffers.items()
            if buffer.segments and table in tables
        ]
        largest = heapq.nlargest(BUFFERED_MAX, known, key=lambda item: item[1].size_bytes)
        return tuple(
            api.BufferedTable(
                table=name,
                rows=buffer.rows,
                size_bytes=buffer.size_bytes,
                age_s=max(0.0, self._now_s - buffer.segments[0].opened_s),
                why=buffer_text(buffer, self._now_s, self._rules),
            )
            for name, buffer in largest
        )

    def warnings(self, health: StoreHealth) -> list[str]:
        """Return a sentence if rows are acknowledged though a restart of the store loses them."""
        has_rows = self.flushed.rows or any(buffer.segments for buffer in self._buffers.values())
        if health.append_only or not has_rows:
            return []
        return [
            "rows are buffered in a store (Redis) without an append-only file (appendonly no): a"
            " restart loses acknowledged rows; `CONFIG SET appendonly yes` keeps them"
        ]

    def figures(self) -> list[MetricValue]:
        """Return the metrics of buffers and flushes."""
        opened_s = [
            buffer.segments[0].opened_s for buffer in self._buffers.values() if buffer.segments
        ]
        oldest_s = max(0.0, self._now_s - min(opened_s)) if opened_s else 0.0
        buffers = self._buffers.values()
        return [
            MetricValue("neve_buffered_bytes", sum(buffer.size_bytes for buffer in buffers)),
            MetricValue("neve_buffered_bytes_max", self._rules.bytes_max),
            MetricValue("neve_buffered_rows", sum(buffer.rows for buffer in buffers)),
            MetricValue("neve_buffered_oldest_seconds", oldest_s),
            MetricValue("neve_flushed_rows_total", self.flushed.rows),
            MetricValue("neve_flushed_files_total", self.flushed.files),
            MetricValue("neve_flush_failures_total", self.failures),
        ]
