"""The service as a whole: status, settings, audit, probes and metrics."""

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import chain
from typing import Annotated

from fastapi import Query, Response
from fastapi.responses import HTMLResponse
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from common.errors import MetadataError, UnavailableError
from common.metadata.keys import AUDIT_KINDS
from common.model.table import recovery_note
from common.telemetry import METRICS, Metric
from common.units import format_duration
from common.wire import CoordinatorStatus, MetricValue
from neve import api
from neve.gateway.access.audit import AuditCounts, entry_from, folded
from neve.gateway.access.callers import ADMIN_ALL, OPEN, READ_ALL, route, sees_table
from neve.gateway.access.quotas import BufferUse, ScanSlots
from neve.gateway.services import LIST_MAX, Services, SharedAnswer, bounded_count
from neve.service_settings import settings_to_document, shown_settings


class ServiceRoutes:
    """Routes of the service as a whole."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @route("GET /v1/status", READ_ALL)
    async def status(self) -> api.Status:
        """Return the status of the whole service."""
        reported = await self._services.coordinator.status()
        silence = self._services.store_watch.warning
        errors = (silence, *reported.errors) if silence else reported.errors
        warnings = (*reported.warnings, *await self._recovery_notes())
        return replace(reported, errors=errors, warnings=warnings)

    async def _recovery_notes(self) -> list[str]:
        try:
            listed = await self._services.store.listed_tables()
        except (MetadataError, UnavailableError):
            return []  # The status reports that the store is unavailable.
        notes = (recovery_note(table) for table in listed.tables if sees_table(table.name))
        return [note for note in notes if note]

    @route("GET /v1/config", ADMIN_ALL)
    async def config(self) -> dict[str, list[api.Setting]]:
        """Return every setting with its value and its source. Secrets are hidden."""
        settings = shown_settings(self._services.settings)
        return {"settings": [api.Setting(**setting) for setting in settings_to_document(settings)]}

    @route("GET /v1/notifications", ADMIN_ALL)
    async def notifications(self) -> api.Notifications:
        """Return the targets of notifications, their queues, and the conditions that last."""
        return self._services.notifier.state()

    @route("POST /v1/notifications/test", ADMIN_ALL)
    async def test_notifications(self) -> dict[str, list[api.NotificationTest]]:
        """Send a test message to each target, once, and return which of them took it."""
        return {"targets": await self._services.notifier.test()}

    @route("GET /v1/audit", ADMIN_ALL)
    async def audit(
        self,
        count: Annotated[int, Query(description="Number of entries at most.")] = 100,
        table: Annotated[str | None, Query(description="Only calls about this table.")] = None,
        caller: Annotated[str | None, Query(description="Only calls of this caller.")] = None,
    ) -> dict[str, list[api.AuditEntry]]:
        """Return calls that may have changed something, newest first. Refused calls are included.

        The newest 10,000 lines of each stream are searched. A call has one or two lines.
        """
        count = bounded_count(count, LIST_MAX, "count")
        store = self._services.store
        read = [await store.audit(LIST_MAX, kind) for kind in reversed(AUDIT_KINDS)]
        chosen = {"table": table, "caller": caller}
        filters = {name: value for name, value in chosen.items() if value is not None}
        # If a call was begun and then refused, its last line is in the stream of refused calls.
        entries = folded(chain.from_iterable(read), len(AUDIT_KINDS) * LIST_MAX, filters)
        entries = sorted(entries, key=lambda entry: entry.get("at_s", 0.0), reverse=True)[:count]
        return {"entries": [entry_from(entry) for entry in entries]}


# ----------------------------------------------------------------------- Metrics as Prometheus text
# The gateway's part of the metric table of `common.telemetry`, as Prometheus text.
#
# This module counts requests. The coordinator's metrics are read from it at each scrape. If the
# coordinator does not answer, the scrape succeeds with `neve_coordinator_up 0`.


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


# --------------------------------------------------------------------------------- Probes and pages


PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


READY_LASTS_S = 1.0
"""How long the coordinator's answer is cached, because `/readyz` is public."""


def page_policy(page: str) -> str:
    """Return a Content-Security-Policy that allows only the page's own script, styles and calls."""
    return (
        f"default-src 'none'; script-src {_digests(page, 'script')};"
        f" style-src {_digests(page, 'style')};"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _digests(page: str, tag: str) -> str:
    """Return the digests of the content of all tags of a kind, in policy notation."""
    texts = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in texts)
    return " ".join(f"'sha256-{digest.decode()}'" for digest in digests)


class ProbeRoutes:
    """Probes, metrics and the page that shows the routes."""

    def __init__(self, services: Services, metrics: RequestMetrics) -> None:
        self._services = services
        self._metrics = metrics
        self._alive = SharedAnswer(services.coordinator.status, READY_LASTS_S)
        self._page = files("neve.gateway").joinpath("static/docs.html").read_text("utf-8")
        self._policy = page_policy(self._page)

    @route("GET /healthz", OPEN)
    async def healthz(self) -> dict[str, str]:
        """Answer while the process runs."""
        return {"status": "ok"}

    @route("GET /readyz", OPEN)
    async def readyz(self) -> dict[str, str]:
        """Answer while the store and the coordinator answer; otherwise 503."""
        watch = self._services.store_watch
        await watch.until_looked()
        if silent_s := watch.silent_s:
            # The probe is public: reveal neither address nor cause.
            raise UnavailableError(f"the store has not answered for {format_duration(silent_s)}")
        await self._alive.answer()
        return {"status": "ready"}

    @route("GET /metrics", READ_ALL)
    async def metrics(self) -> Response:
        """Return the metrics as Prometheus text."""
        services = self._services
        try:
            status = await services.coordinator.status()
        except UnavailableError:
            status = None
        text = self._metrics.text(
            status,
            services.scans,
            services.audit.counts,
            services.buffers,
            figures=await self._figures(),
        )
        return Response(text, media_type=PROMETHEUS_TEXT)

    async def _figures(self) -> Sequence[MetricValue]:
        try:
            return await self._services.coordinator.figures()
        except UnavailableError:
            return ()  # It is silent, or of an earlier release.

    @route("GET /docs", OPEN, include_in_schema=False)
    async def docs(self) -> HTMLResponse:
        """Return the page that shows the routes."""
        return HTMLResponse(self._page, headers={"Content-Security-Policy": self._policy})
