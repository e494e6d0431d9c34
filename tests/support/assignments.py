"""Assignments for tests: a job, its reservation and table, as a coordinator would send them."""

from __future__ import annotations

from typing import Any

from common.model.file import DataFile
from common.model.job import Job, Kind, job_id
from common.model.request import Request
from common.model.table import Column, Table
from common.model.tablet import PLUS_INFINITY, Bounds, Reservation, TabletId
from common.wire import Assignment

KEYED_SCHEMA = (
    Column("k", "int64"),
    Column("v", "int64"),
    Column("dead", "bool"),
    Column("s", "string"),
)


def a_table(**changes: Any) -> Table:
    fields: dict[str, Any] = {
        "id": "table-1",
        "name": "events",
        "location": "file:///nowhere",
        "schema": KEYED_SCHEMA,
        "key": ("k",),
        "version_column": "v",
        "tombstone_column": "dead",
    }
    return Table(**fields | changes)


def an_assignment(
    inputs: tuple[DataFile, ...] = (
        DataFile(path="a.parquet", size_bytes=60, rows=3),
        DataFile(path="b.parquet", size_bytes=40, rows=2),
    ),
    *,
    attempt: str = "attempt-1",
    table: Table | None = None,
    bounds: Bounds | None = None,
    cuts: tuple[bytes, ...] = (),
    outputs_max: int | None = None,
    now_s: float = 1_000_000.0,
    request: str | Request | None = None,
    **more: Any,
) -> Assignment:
    table = table or a_table()
    if isinstance(request, str):
        request = Request(id=request, table=table.id)
    named = request.id if request is not None else None
    bounds = bounds or Bounds(None, PLUS_INFINITY)
    tablet = TabletId(table.id, bounds.end)
    paths = tuple(sorted(file.path for file in inputs))
    kind = Kind.USER if request else Kind.SYSTEM
    job = Job(
        id=job_id(tablet, kind, named, paths, cuts),
        tablet=tablet,
        table_name=table.name,
        kind=kind,
        inputs=paths,
        input_bytes=sum(file.size_bytes for file in inputs),
        group="default",
        priority=1,
        reason="a test wants it",
        request=named,
        outputs_expected=len(cuts) + 1,
        cuts=cuts,
    )
    reservation = Reservation(
        attempt=attempt,
        job=job.id,
        kind=kind,
        inputs=paths,
        output_prefix=f"_neve/{tablet.text}/{job.id}-{attempt}",
        outputs_max=outputs_max or len(cuts) + 1,
        group="default",
        compactor="c-1",
        since_s=now_s,
        now_s=now_s,
        request=named,
    )
    return Assignment(
        job=job,
        reservation=reservation,
        table=table,
        bounds=bounds,
        inputs=inputs,
        outside=more.pop("outside", ()),
        request=request,
        **more,
    )
