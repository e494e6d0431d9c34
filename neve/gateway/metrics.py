"""The gateway's part of the metric table of `common.telemetry`, as Prometheus text.

This module counts requests. The coordinator's metrics are read from it at each scrape. If the
coordinator does not answer, the scrape succeeds with `neve_coordinator_up 0`.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family

from common.telemetry import METRICS, Metric
from common.wire import CoordinatorStatus, MetricValue
from neve import api
from neve.gateway.access.audit import AuditCounts
from neve.gateway.access.quotas import BufferUse, ScanSlots

_TABLE = {metric.name: metric for metric in METRICS}
_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)

# Otherwise each counter has a second series with its creation time.
disable_created_metrics()  # type: ignore[no-untyped-call]  # it takes and gives nothing

_OF_GROUP = [metric for metric in _TABLE.values() if metric.of is api.Group]
_OF_SERVICE = [metric for metric in _TABLE.values() if metric.of is api.Status]
_HERE = {
    *("neve_http_requests_total", "neve_http_request_seconds", "neve_coordinator_up"),
    *("neve_scans", "neve_scan_held_bytes", "neve_audit_failures_total"),
    *("neve_buffer_delay_seconds_total", "neve_buffer_refusals_total"),
}
_OF_COMPACTORS = [
    metric for metric in _TABLE.values() if metric.labels[:2] == ("group", "compactor")
]
"""Metrics that compactors report in heartbeats."""
_OF_PARTS = [
    metric
    for metric in _TABLE.values()
    if metric.of is None and metric.name not in _HERE and metric not in _OF_COMPACTORS
]
"""Metrics that the coordinator reports as `figures`."""


class RequestMetrics:
    """Counts requests. Each application has its own registry, so two can share a process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        requests, seconds = _TABLE["neve_http_requests_total"], _TABLE["neve_http_request_seconds"]
        self._requests = Counter(
            requests.name, requests.help, requests.labels, registry=self._registry
        )
        self._seconds = Histogram(
            seconds.name, seconds.help, seconds.labels, buckets=_BUCKETS_S, registry=self._registry
        )
        self._series: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def answered(self, route: str, method: str, status: int, elapsed_s: float) -> None:
        """Count one answer.

        Args:
            route: Pattern of the route; never the path, which would create too many labels.
            method: HTTP method of the request.
            status: HTTP status of the answer.
            elapsed_s: Time until the last byte of the answer.
        """
        label = method if method in {"GET", "POST", "PATCH", "DELETE", "HEAD"} else "other"
        series = self._series.get((route, label, status))
        if series is None:
            requests = self._requests.labels(route, label, str(status))
            series = requests, self._seconds.labels(route, label)
            self._series[route, label, status] = series
        series[0].inc()
        series[1].observe(elapsed_s)

    def text(
        self,
        status: CoordinatorStatus | None,
        scans: ScanSlots,
        audit: AuditCounts,
        buffers: BufferUse,
        *,
        figures: Sequence[MetricValue] = (),
    ) -> bytes:
        """Return all metrics as Prometheus text.

        Args:
            status: Current status of the coordinator; None: it does not answer.
            scans: Scan slots of this gateway.
            audit: Audit counts of this gateway.
            buffers: Delays and refusals of calls that buffer rows.
            figures: Metrics of compactors and of tables.
        """
        registry = CollectorRegistry(auto_describe=False)
        own = (
            _plain_family("neve_scans", scans.open),
            _plain_family("neve_scan_held_bytes", scans.held_bytes),
            _plain_family("neve_audit_failures_total", audit.failures),
            _plain_family("neve_buffer_delay_seconds_total", buffers.delayed_s),
            _plain_family("neve_buffer_refusals_total", buffers.refused),
        )
        families = [*own, *_families(status, figures), *_compactor_families(figures)]
        registry.register(_Collected(families))
        return generate_latest(self._registry) + generate_latest(registry)


class _Collected:
    """A registry collector over existing metric families."""

    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        """Return the families."""
        return self._families


def _plain_family(name: str, value: float) -> Family:
    """Return a metric with one value and no labels."""
    family = _family(_TABLE[name])
    family.add_metric((), float(value))
    return family


def _families(status: CoordinatorStatus | None, figures: Sequence[MetricValue]) -> Iterator[Family]:
    up = _family(_TABLE["neve_coordinator_up"])
    up.add_metric((), float(status is not None))
    yield up
    if status is None:
        return
    for metric in _OF_SERVICE:
        family = _family(metric)
        family.add_metric((), float(getattr(status, metric.field)))
        yield family
    for metric in _OF_GROUP:
        family = _family(metric)
        for group in status.groups:
            family.add_metric((group.group,), float(getattr(group, metric.field)))
        yield family
    for metric in _OF_PARTS:
        family = _family(metric)
        for figure in chain(status.figures, figures):
            if figure.metric == metric.name:
                family.add_metric(figure.labels, figure.value)
        yield family


def _compactor_families(values: Iterable[MetricValue]) -> Iterator[Family]:
    """Yield the metrics of compactors; values of unknown metrics are left out."""
    by_metric: dict[str, list[MetricValue]] = {}
    for value in values:
        by_metric.setdefault(value.metric, []).append(value)
    for metric in _OF_COMPACTORS:
        given = by_metric.get(metric.name, [])
        if metric.kind == "histogram":
            yield _histogram(metric, given)
            continue
        family = _family(metric)
        for value in given:
            if len(value.labels) == len(metric.labels):
                family.add_metric(value.labels, value.value)
        yield family


def _histogram(metric: Metric, values: Iterable[MetricValue]) -> HistogramMetricFamily:
    """Return a histogram; see `Heartbeat.metrics`."""
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    lines: dict[tuple[str, ...], dict[str, float]] = {}
    for value in values:
        lines.setdefault(value.labels[:-1], {})[value.labels[-1]] = value.value
    for labels, buckets in lines.items():
        total = buckets.pop("sum", 0.0)
        if "+Inf" in buckets:
            family.add_metric(labels, buckets=list(buckets.items()), sum_value=total)
    return family


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return kind(metric.name, metric.help, labels=metric.labels)
