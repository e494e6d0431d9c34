"""The controller, recorded values (`GET /v1/series`), and reports of read latency."""

from collections.abc import Iterable
from math import isfinite
from typing import Annotated

import numpy as np
from fastapi import Query

from common.errors import RequestError
from common.wire import RecordedLine, RecordedSeries, SeriesQuery
from neve import api
from neve.gateway.access.callers import (
    READ_ALL,
    READ_LISTED,
    begin_call,
    current_call,
    route,
    sees_table,
)
from neve.gateway.services import LATENCIES_MAX, Services, bounded_count

READ_REPORT_MAX = 1_000_000
"""Largest number of reads of one table in one report."""
LATENCY_MAX_S = 3600.0


POINTS_MAX = 1440
MEASURES = (*api.SERIES_MEASURES, *api.SERIES_OF_GROUPS, *api.SERIES_OF_CONTROL)


class ControlRoutes:
    """Routes of the controller."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @route("GET /v1/control", READ_ALL)
    async def control(self) -> api.Control:
        """Return what the controller reads and decides, and what each class of work was handed."""
        return await self._services.coordinator.control()

    @route(
        "GET /v1/series",
        READ_LISTED.noted("groups and the whole service need a grant on all tables"),
    )
    async def series(
        self,
        *,
        span_s: Annotated[
            float, Query(description="Up to 3600: steps of 5 s. Up to 86400: steps of 1 min.")
        ] = api.SERIES_SPAN_S,
        points: Annotated[
            int, Query(description="At most so many steps; neighbours are combined.")
        ] = POINTS_MAX,
        measure: Annotated[
            list[str] | None, Query(description="Names of measures; all by default.")
        ] = None,
        table: Annotated[
            list[str] | None,
            Query(description="Names of tables; by default those with the largest backlog."),
        ] = None,
        count: Annotated[
            int,
            Query(description="Without names: number of tables at most; the others are summed."),
        ] = 20,
        groups: Annotated[bool, Query(description="Whether to return the groups.")] = True,
    ) -> api.Series:
        """Return recorded values of the last hour or day: backlog, queue, throughput and more.

        They are kept in the memory of the coordinator, for 447 tables: others are summed as
        *others*. A table that has lost its values to a larger one, or has been at rest, has 0 or
        null where its values are not known. Null is a gap: nothing was recorded, for example
        because no coordinator ran. A snapshot in the store survives a restart. A caller that may
        not see every table gets the tables that it may see, their sum as `total`, and no groups.
        """
        tables = tuple(dict.fromkeys(table or ()))
        _checked_tables(len(tables))
        for name in tables:
            await self._services.table(name)
        query = SeriesQuery(
            span_s=_checked_span_s(span_s),
            points=bounded_count(points, POINTS_MAX, "points"),
            measures=_checked_measures(measure or ()),
            groups=groups,
            tables=tables,
            count=_checked_tables(count),
            visible=await self._visible(),
        )
        recorded = await self._services.coordinator.series(query)
        return _series_view(recorded, self._services.clock.now_s())

    async def _visible(self) -> tuple[str, ...] | None:
        """Return the recorded tables that the caller may see; None: everything."""
        if current_call().caller.sees_all:
            return None
        recorded = await self._services.coordinator.recorded_tables()
        return tuple(name for name in recorded if sees_table(name))

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


# ------------------------------------------------------------------------------------------- Series


def _checked_span_s(span_s: float) -> float:
    if not api.SERIES_STEP_S <= span_s <= api.SERIES_SPAN_MAX_S:
        raise RequestError(f"span_s is {span_s:g}, expected 5 to {api.SERIES_SPAN_MAX_S:g} seconds")
    return span_s


def _checked_tables(count: int) -> int:
    if not 0 <= count <= api.SERIES_TABLES_MAX:
        raise RequestError(f"{count} tables are wanted, expected 0 to {api.SERIES_TABLES_MAX}")
    return count


def _checked_measures(names: Iterable[str]) -> tuple[str, ...]:
    for name in names:
        if name not in MEASURES:
            raise RequestError(f"measure is {name[:64]!r}, expected one of {', '.join(MEASURES)}")
    return tuple(names)


def _series_view(recorded: RecordedSeries, now_s: float) -> api.Series:
    lines: dict[str, list[api.SeriesLine]] = {}
    for line in recorded.lines:
        lines.setdefault(line.kind, []).append(_line_view(line, recorded.count))
    return api.Series(
        now_s=now_s,
        start_s=recorded.start_s,
        step_s=recorded.step_s,
        count=recorded.count,
        total=lines["total"][0],
        groups=tuple(lines.get("groups", ())),
        tables=tuple(lines.get("tables", ())),
        others=lines["others"][0] if "others" in lines else None,
    )


def _line_view(line: RecordedLine, count: int) -> api.SeriesLine:
    """Return a line as numbers of JSON: large ones without fraction, which 32 bits do not have."""
    values = np.frombuffer(line.values, "<f4").astype(np.float64)
    rounded = np.where(np.abs(values) >= 1000, np.rint(values), np.round(values, 4))
    numbers = [None if value != value else value for value in rounded.tolist()]
    return api.SeriesLine(
        name=line.name,
        values={
            measure: numbers[start * count : (start + 1) * count]
            for start, measure in enumerate(line.measures)
        },
    )
