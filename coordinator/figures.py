"""The counters of a coordinator's parts as metric values.

`docs/reference/metrics.md` describes each metric.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from common.metadata.store_values import StoreHealth
from common.model.request import RequestState
from common.wire import MetricValue
from coordinator.core.backlog import PLANNED_JOBS
from coordinator.requests import RequestDriver, SelectorCalls
from coordinator.scan.full_scan import FullScan
from coordinator.scan.scanner import Scanner
from coordinator.table_faults import TableFaults
from neve import api


def request_figures(
    driver: RequestDriver, now_s: float, rows_transformed: int
) -> list[MetricValue]:
    """Return the number, age and final states of requests."""
    requests = driver.open_requests()
    states = Counter({RequestState.ACTIVE: 0, RequestState.CANCELLING: 0})
    states.update(request.state for request in requests)
    ended = {state: driver.ended[state] for state in RequestState if state.ended}
    oldest_s = max((now_s - each.submitted_at_s for each in requests), default=0.0)
    return [
        *(MetricValue("neve_requests", count, (state,)) for state, count in states.items()),
        *(MetricValue("neve_requests_ended_total", count, (how,)) for how, count in ended.items()),
        MetricValue("neve_requests_oldest_seconds", max(0.0, oldest_s)),
        MetricValue("neve_requests_waiting_tablets", driver.waiting_tablets),
        MetricValue("neve_requests_rows_transformed_total", rows_transformed),
    ]


def selector_figures(selectors: SelectorCalls) -> list[MetricValue]:
    """Return the numbers of selector calls and failures."""
    return [
        MetricValue("neve_selector_calls_total", selectors.calls),
        MetricValue("neve_selector_failures_total", selectors.failures),
    ]


def trigger_figures(counts: Mapping[tuple[str, str], int]) -> list[MetricValue]:
    """Return the number of planner decisions by trigger and verdict."""
    return [
        MetricValue("neve_trigger_decisions_total", count, labels)
        for labels, count in sorted(counts.items())
    ]


def scan_figures(scanner: Scanner, full_scan: FullScan) -> list[MetricValue]:
    """Return the counters of the change feed and the full scan."""
    counts = full_scan.counts
    return [
        MetricValue("neve_feed_resets_total", scanner.feed.resets),
        MetricValue("neve_tablets_planned_total", scanner.planned),
        MetricValue("neve_tablets_waiting", scanner.waiting),
        MetricValue("neve_full_scan_seconds", counts.last_s),
        MetricValue("neve_full_scan_tablets_total", counts.tablets),
        MetricValue("neve_full_scan_planned_total", counts.planned),
        MetricValue("neve_full_scan_found_total", counts.found),
        MetricValue("neve_full_scan_pieces_total", counts.ranges),
        MetricValue("neve_full_scan_pieces_failed_total", counts.ranges_failed),
    ]


def scaling_figures(groups: Collection[api.Group]) -> list[MetricValue]:
    """Return the desired, starting, draining and failed compactors of each group."""
    return [
        MetricValue(metric, value, (group.group,))
        for group in groups
        if (scaling := group.scaling) is not None
        for metric, value in (
            ("neve_compactors_desired", scaling.desired),
            ("neve_compactors_starting", scaling.starting),
            ("neve_compactors_draining", scaling.draining),
            ("neve_compactor_starts_failed_total", scaling.starts_failed),
            ("neve_compactors_blocked", float(bool(scaling.blocked))),
        )
    ]


def fault_figures(faults: TableFaults) -> list[MetricValue]:
    """Return the failures by kind of work, and the number of paused tables and tablets."""
    return [
        *(
            MetricValue("neve_table_faults_total", count, (part,))
            for part, count in faults.counts.items()
        ),
        MetricValue("neve_tables_left_alone", faults.standing),
    ]


def store_figures(health: StoreHealth) -> list[MetricValue]:
    """Return the memory use of the store."""
    return [
        MetricValue("neve_store_memory_bytes", health.memory_bytes),
        MetricValue("neve_store_memory_max_bytes", health.memory_max_bytes),
        MetricValue("neve_store_full", float(health.full)),
    ]


def scope_figures(scopes: Collection[api.Limit]) -> Iterator[MetricValue]:
    """Yield the metrics of groups and volumes; those without a limit have fewer metrics."""
    for scope in scopes:
        labels = (scope.kind, scope.name)
        if scope.rate_bytes_s is not None:
            yield MetricValue("neve_throttle_limit_bytes_per_second", scope.rate_bytes_s, labels)
            granted = scope.granted_bytes_s
            if granted is not None:
                yield MetricValue("neve_throttle_granted_bytes_per_second", granted, labels)
        yield MetricValue("neve_throttle_jobs", scope.throttled, labels)
        yield MetricValue("neve_throttle_moved_bytes_total", scope.moved_bytes, labels)
        yield MetricValue("neve_throttle_waited_seconds_total", scope.waited_s, labels)


def control_figures(control: api.Control) -> Iterator[MetricValue]:
    """Yield the decision of the controller and its effects; an absent limit yields no value."""
    for class_ in control.classes:
        yield MetricValue("neve_control_shares", class_.shares, (class_.name,))
        yield MetricValue("neve_control_granted_ratio", class_.granted, (class_.name,))
        yield MetricValue("neve_control_used_ratio", class_.used, (class_.name,))
        yield MetricValue("neve_control_bytes_total", class_.total_bytes, (class_.name,))
    for name, value in (
        ("neve_control_bytes_per_second", control.bytes_s),
        ("neve_control_slots", control.slots),
        ("neve_control_arrival_bytes_per_second", control.arrival_bytes_s),
        ("neve_control_rewrite_bytes_per_second", control.rewrite_bytes_s),
        ("neve_control_reader_wait_seconds", max(control.latencies_s.values(), default=None)),
        ("neve_control_failures_total", control.failures),
    ):
        if value is not None:
            yield MetricValue(name, value)


def backlog_figures(backlogs: Collection[api.Backlog]) -> Iterator[MetricValue]:
    """Yield the backlog of each table and group, and the number of tables without a tracker."""
    for backlog in backlogs:
        yield MetricValue("neve_backlog_bytes", backlog.size_bytes, (backlog.table or "(others)",))
    groups: Counter[str] = Counter()
    for backlog in backlogs:
        groups.update(backlog.groups)
    for group, size_bytes in sorted(groups.items()):
        yield MetricValue("neve_backlog_group_bytes", size_bytes, (group,))
    failed = sum(1 for backlog in backlogs if backlog.problem)
    untracked = sum(
        1 for backlog in backlogs if backlog.strategy == PLANNED_JOBS and not backlog.problem
    )
    for cause, count in (("none", untracked), ("failed", failed)):
        yield MetricValue("neve_backlog_untracked_tables", count, (cause,))
