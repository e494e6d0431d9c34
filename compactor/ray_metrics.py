"""The compactor's metrics, exported through the Ray agent of its node, which Prometheus scrapes.

Ray prefixes each name with `ray_`, and adds labels such as the node's address. Where Ray collects
no metrics, nothing is exported.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import psutil
from ray.util import metrics as ray_metrics

from common.model.outcome import AttemptEnd, RowCounts
from common.telemetry import METRICS, Exporter, Metric
from common.wire import Heartbeat

SAMPLE_INTERVAL_S = 5.0
"""Ray's agent reads the metrics of processes at about this interval."""
REWRITE_BUCKETS_S = [0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0]


class RayMetrics:
    """Every metric of `METRICS` that Ray exports, for one compactor."""

    def __init__(self, compactor: str, group: str) -> None:
        """Register the metrics.

        Args:
            compactor: Name of the compactor.
            group: The compaction group that it serves.
        """
        self._tags = {"group": group, "compactor": compactor}
        self._metrics = {
            metric.name: _registered(metric)
            for metric in METRICS
            if metric.exporter is Exporter.RAY
        }
        self._starts = 0
        """Counted starts of Spark drivers, including the first one."""

    def rewrite_ended(self, elapsed_s: float) -> None:
        """Count a rewrite, whatever its outcome."""
        self._metrics["neve_compactor_rewrite_seconds"].observe(elapsed_s, self._tags)

    def attempt_ended(
        self, end: AttemptEnd, *, read_bytes: int, written_bytes: int, waited_s: float
    ) -> None:
        """Count an attempt.

        Args:
            end: Its outcome.
            read_bytes: Size of its inputs; 0 unless it committed.
            written_bytes: Size of its outputs; 0 unless it committed.
            waited_s: Total time that its tasks have waited for the grant.
        """
        self._add("attempts_total", 1, end=end.value)
        self._add("read_bytes_total", read_bytes)
        self._add("written_bytes_total", written_bytes)
        self._add("throttled_seconds_total", waited_s)

    def rows_dropped(self, counts: RowCounts) -> None:
        """Count the rows that a committed attempt dropped, by reason."""
        for reason, rows in (
            ("superseded", counts.superseded),
            ("tombstone", counts.tombstones_dropped),
            ("expired", counts.expired_dropped),
            ("transform", counts.transform_dropped),
        ):
            self._add("rows_dropped_total", rows, reason=reason)

    async def sample_forever(
        self, status: Callable[[], Heartbeat], starts: Callable[[], int]
    ) -> None:
        """Set the gauges at intervals.

        Args:
            status: Returns the current heartbeat.
            starts: Returns the number of started Spark drivers.
        """
        while True:
            beat = status()
            memory_bytes = await asyncio.to_thread(tree_bytes, beat.engine_pid)
            self._set("slots", beat.slots)
            self._set("slots_busy", len(beat.attempts))
            self._set("memory_bytes", memory_bytes)
            self._count_starts(starts())
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    def _count_starts(self, starts: int) -> None:
        """Count the starts after the first one."""
        if starts > self._starts:
            self._add("spark_restarts_total", starts - max(self._starts, 1))
            self._starts = starts

    def _add(self, name: str, amount: float, **tags: str) -> None:
        if amount > 0:  # Ray refuses an increase by 0.
            self._metrics[f"neve_compactor_{name}"].inc(amount, self._tags | tags)

    def _set(self, name: str, value: float) -> None:
        self._metrics[f"neve_compactor_{name}"].set(value, self._tags)


def tree_bytes(pid: int | None) -> int:
    """Return the resident memory of a process and its descendants; 0 without a process.

    Args:
        pid: The process, which may end at any moment.
    """
    if pid is None:
        return 0
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    return sum(map(_resident_bytes, tree))


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _registered(metric: Metric) -> Any:
    match metric.kind:
        case "counter":
            return ray_metrics.Counter(metric.name, metric.help, metric.labels)
        case "gauge":
            return ray_metrics.Gauge(metric.name, metric.help, metric.labels)
        case _:
            return ray_metrics.Histogram(metric.name, metric.help, REWRITE_BUCKETS_S, metric.labels)
