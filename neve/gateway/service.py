"""The service as a whole: status, settings, audit, probes and metrics."""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import chain
from typing import Annotated

from fastapi import Query, Response
from fastapi.responses import HTMLResponse

from common.errors import (
    MetadataError,
    UnavailableError,
)
from common.metadata.keys import AUDIT_KINDS
from common.model.table import recovery_note
from common.units import format_duration
from common.wire import MetricValue
from neve import api
from neve.gateway.access.audit import entry_from, folded
from neve.gateway.access.callers import (
    ADMIN_ALL,
    OPEN,
    READ_ALL,
    route,
    sees_table,
)
from neve.gateway.metrics import RequestMetrics
from neve.gateway.services import (
    LIST_MAX,
    Services,
    SharedAnswer,
    bounded_count,
)
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
