"""`GET /v1/control`, `POST /v1/reads`: state of the controller, and reports of read latency."""

from math import isfinite

from common.errors import RequestError
from neve import api
from neve.gateway.access.callers import READ_ALL, READ_LISTED, begin_call, route
from neve.gateway.services import LATENCIES_MAX, Services, bounded_count

READ_REPORT_MAX = 1_000_000
"""Largest number of reads of one table in one report."""
LATENCY_MAX_S = 3600.0


class ControlRoutes:
    """Routes of the controller."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @route("GET /v1/control", READ_ALL)
    async def control(self) -> api.Control:
        """Return what the controller reads and decides, and what each class of work was handed."""
        return await self._services.coordinator.control()

    @route(
        "POST /v1/reads",
        READ_LISTED.noted("readers report how long they have waited", late=True),
        status_code=202,
    )
    async def reads(self, body: api.ReadReport) -> None:
        """Report how long readers have waited.

        While they wait longer than `control.foreground_limit_s`, rewrites get fewer bytes per
        second, but never fewer than keep the backlog from growing. Nothing of a report is taken if
        a part of it is refused.
        """
        services = self._services
        bounded_count(len(body.tables), LATENCIES_MAX, "number of tables")
        for name, table_reads in body.tables.items():
            bounded_count(table_reads.reads, READ_REPORT_MAX, f"reads of table {name[:64]!r}")
            _require_latency(table_reads.latency_s, name)
        tables = {name: await services.table(name) for name in body.tables}
        await begin_call()
        for name, table in tables.items():
            report = body.tables[name]
            services.waits.note(services, table.id, report.latency_s, report.reads)


def _require_latency(latency_s: float, table: str) -> None:
    if not (isfinite(latency_s) and 0 <= latency_s <= LATENCY_MAX_S):
        raise RequestError(
            f"latency of table {table[:64]!r} is {latency_s} s, expected 0 to {LATENCY_MAX_S:g} s"
        )
