"""What is recorded and measured: the sample of the series, and metrics that only a scrape needs.

The functions only read `ClusterState`, like those of `views`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from heapq import nlargest

from common.wire import MetricValue, RecordedSeries, SeriesQuery
from coordinator.core.assignment import under_way
from coordinator.core.attempts import attempt_work, work_done
from coordinator.core.cluster_state import ClusterState
from coordinator.core.control import control_values
from coordinator.core.series import SeriesSample


def series_sample(
    cluster: ClusterState, scaling: Mapping[str, tuple[int, int]], now_s: float
) -> SeriesSample:
    """Return the values to record now. O(tables with a backlog + queued jobs).

    Args:
        cluster: The coordinator's memory.
        scaling: Group → its desired and its starting compactors.
        now_s: The current time.
    """
    table_bytes, group_bytes = cluster.backlogs.sums(work_done(cluster.attempts))
    queued = Counter(job.tablet.table for _, queue in cluster.queues for job in queue.unordered())
    busy = list(under_way(cluster))
    held = {(attempt.tablet.table, attempt.compactor) for attempt in busy}
    compactors = cluster.compactors.every()
    return SeriesSample(
        tables={
            "backlog_bytes": {table: size for table, size in table_bytes.items() if size},
            "queued_jobs": queued,
            "running_jobs": Counter(attempt.tablet.table for attempt in busy),
            "compactors": Counter(table for table, _ in held),
        },
        groups={
            "backlog_bytes": group_bytes,
            "queued_jobs": {group: len(queue) for group, queue in cluster.queues},
            "running_jobs": Counter(attempt.group for attempt in busy),
            "compactors": Counter(compactor.group for compactor in compactors),
            "compactors_desired": {group: desired for group, (desired, _) in scaling.items()},
            "compactors_starting": {group: starting for group, (_, starting) in scaling.items()},
            "compactors_draining": Counter(
                compactor.group for compactor in compactors if compactor.draining
            ),
        },
        total=control_values(cluster.control, len(busy), now_s)
        | {"backlog_bytes": sum(table_bytes.values())},
        attempts={
            attempt.id: (
                attempt.tablet.table,
                attempt.group,
                attempt.since_s,
                attempt.input_bytes * attempt_work(attempt).read_share,
            )
            for attempt in busy
        },
    )


def recorded_series(cluster: ClusterState, query: SeriesQuery) -> RecordedSeries:
    """Return recorded values; tables that were dropped are part of sums only."""
    names = {table.id: table.name for table in cluster.tables.values()}
    return cluster.series.read(query, names)


def recorded_tables(cluster: ClusterState) -> list[str]:
    """Return the names of the tables that have recorded values of their own."""
    tables = cluster.tables
    return [tables[table].name for table in cluster.series.tables.rows if table in tables]


def compactor_figures(cluster: ClusterState) -> list[MetricValue]:
    """Return the metrics of the living compactors, from their last heartbeats."""
    return [
        replace(value, labels=(compactor.group, compactor.name, *value.labels))
        for compactor in cluster.compactors.every()
        for value in compactor.metrics
    ]


WORST_TABLES_MAX = 99
"""Tables that each metric of tables names."""


def table_figures(cluster: ClusterState, now_s: float) -> list[MetricValue]:
    """Return metrics of the tables that need most attention. O(queued jobs)."""
    oldest: dict[str, float] = {}
    for _, queue in cluster.queues:
        for entry in queue.entries():
            table, age_s = entry.job.tablet.table, now_s - entry.offered_s
            oldest[table] = max(oldest.get(table, 0.0), age_s)
    quarantined = Counter(tablet.table for tablet in cluster.retry.quarantined())
    figures = [
        ("neve_table_queue_oldest_seconds", table, oldest[table])
        for table in nlargest(WORST_TABLES_MAX, oldest, key=lambda table: oldest[table])
    ]
    figures += [
        ("neve_table_quarantined_tablets", table, count)
        for table, count in quarantined.most_common(WORST_TABLES_MAX)
    ]
    for table, small, files in cluster.pressures.small_files(WORST_TABLES_MAX):
        figures.append(("neve_table_small_files", table, small))
        figures.append(("neve_table_files", table, files))
    return [
        MetricValue(metric, value, (cluster.table_name(table),)) for metric, table, value in figures
    ]
