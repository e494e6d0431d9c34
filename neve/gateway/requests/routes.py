"""Routes of requests: submit, list, follow, cancel, dry run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
from fastapi import Query, Response

from common.errors import PluginError
from common.model.file import DataFile
from common.model.request import KeyRange, Request
from common.model.table import Table
from common.model.tablet import Tablet
from common.parquet.file_inspection import open_table_file, read_summaries
from common.parquet.location import open_location
from common.parquet.row_batches import OpenFile, row_batches
from common.plugins import summary_names
from common.readers.pool import in_reader
from common.rows.conform import conform
from common.rows.key_encoding import encode_keys
from common.rows.rules import RowRules
from common.rows.schema import arrow_schema
from common.spi.selector import SelectorParameters
from coordinator.core.requests import matching_files, shown_files
from neve import api
from neve.gateway.access.callers import Role, current_call
from neve.gateway.access.route_rights import COMPACT, READ, route
from neve.gateway.key_views import key_text, key_types
from neve.gateway.requests.lifecycle import (
    TABLETS_MAX,
    cancel_request,
    request_progress,
    request_tablets,
    request_view,
    retention_notes,
    stored_request,
    submit_request,
    transform_text,
)
from neve.gateway.requests.validation import checked_request, load_request_selector
from neve.gateway.rows.calls import (
    Call,
)
from neve.gateway.rows.scan import pin_listed_files
from neve.gateway.services import LONG_STEP_MAX_S, Services, bounded_count

# ------------------------------------------------------------------------------------------ Dry run
# Dry run of a request: the files that it would select.


LISTED_MAX = 1000


KEYS_READ_MAX = 50_000_000
"""Limit of keys that one dry run reads; beyond it, rows in the range are not counted."""


async def dry_run(services: Services, table: Table, request: Request) -> api.DryRun:
    """Return the files and rows that a request would select.

    Args:
        services: Ports and settings.
        table: Table of the request.
        request: A valid request that is not stored.
    """
    now_s = await services.store.now_s()
    counter, long = _SelectionCounter(table, request, now_s), services.rows.within(LONG_STEP_MAX_S)
    taken: list[api.DryTablet] = []
    async with pin_listed_files(services, table) as pin:
        async for page in request_tablets(services, table, request):
            for tablet in page:
                try:
                    found = await long.run(table.location, counter.of, tablet)
                finally:
                    pin.check()
                taken += [found] if found.files else []
    counted = [each.rows_in_range for each in taken if each.rows_in_range is not None]
    return api.DryRun(
        table=table.name,
        tablets=len(taken),
        files=sum(each.files for each in taken),
        size_bytes=sum(each.size_bytes for each in taken),
        rows=sum(each.rows for each in taken),
        rows_in_range=sum(counted) if len(counted) == len(taken) else None,
        transform=transform_text(request.transform),
        notes=retention_notes(table, request, now_s),
        per_tablet=tuple(taken[:LISTED_MAX]),
    )


@dataclass(slots=True)
class _SelectionCounter:
    """Runs the selector, and counts the selected files; used by one thread at a time."""

    table: Table
    request: Request
    now_s: float
    keys_left: int = KEYS_READ_MAX

    def of(self, tablet: Tablet) -> api.DryTablet:
        """Return what the request would select in a tablet."""
        files = self._chosen(tablet)
        bounds = tablet.bounds
        types = key_types(self.table)
        return api.DryTablet(
            tablet=tablet.id.text,
            files=len(files),
            size_bytes=sum(file.size_bytes for file in files),
            rows=sum(file.rows for file in files),
            rows_in_range=self._rows_in_range(files),
            end=None if bounds.partition else key_text(bounds.end, types),
            partition=bounds.partition,
            held=bool(tablet.running) or tablet.selection is not None,
        )

    def _chosen(self, tablet: Tablet) -> list[DataFile]:
        spec = self.request.selector
        shown = matching_files(self.request, self.table, tablet, shown_files(self.request, tablet))
        if not shown:
            return []
        parameters = SelectorParameters(
            tablet=tablet.id,
            table=self.table,
            files=shown,
            options=spec.options,
            now_s=self.now_s,
        )
        try:
            selector = load_request_selector(spec)
            if names := summary_names(selector, spec.options):
                location, paths = open_location(self.table.location), [f.path for f in shown]
                parameters = replace(parameters, summaries=read_summaries(location, paths, names))
            chosen = frozenset(selector.select(parameters).files)
        except Exception as error:
            message = f"selector {spec.name!r} failed: {type(error).__name__}: {error}"
            raise PluginError(message) from error
        return [file for file in shown if file.path in chosen]

    def _rows_in_range(self, files: Sequence[DataFile]) -> int | None:
        rows = 0
        for file in files:
            # A partition is in the range entirely, or not at all.
            if self.table.partition_by or _lies_within(file, self.request.range):
                rows += file.rows
                continue
            self.keys_left -= file.rows
            if self.keys_left < 0:
                return None
            rows += _count_rows_of_file(self.table, file, self.request.range)
        return rows


def _lies_within(file: DataFile, keys: KeyRange) -> bool:
    if keys == KeyRange():
        return True
    if file.key_min is None or file.key_max is None:
        return file.rows == 0
    return keys.holds(file.key_min) and keys.holds(file.key_max)


@in_reader("file {file.path}")
def _count_rows_of_file(table: Table, file: DataFile, keys: KeyRange) -> int:
    """Return the number of a file's rows with a key in a range, by reading its keys."""
    rules = RowRules.of(table)
    full = arrow_schema(rules.schema)
    schema = pa.schema([full.field(name) for name in rules.key])
    rows = 0
    location = open_location(table.location)
    with open_table_file(location, file.path) as source:
        known = [name for name in schema.names if name in source.schema_arrow.names]
        for batch in row_batches(OpenFile(location, file.path, source), known):
            part = conform(batch, schema, f"file {file.path}")
            rows += _count_keys(encode_keys(part, rules.key, rules.key_types), keys)
    return rows


def _count_keys(encoded: pa.LargeBinaryArray, keys: KeyRange) -> int:
    inside = pc.is_valid(encoded)
    if keys.start is not None:
        start = pa.scalar(keys.start, pa.large_binary())
        inside = pc.and_(inside, pc.greater_equal(encoded, start))
    if keys.until is not None:
        until = pa.scalar(keys.until, pa.large_binary())
        inside = pc.and_(inside, pc.less(encoded, until))
    return int(pc.sum(inside).as_py() or 0)


# ------------------------------------------------------------------------------------------- Routes


LIST_MAX = 1000


class RequestRoutes:
    """The routes under `/v1/tables/{table}/compactions`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @route(
        "POST /v1/tables/{table}/compactions",
        COMPACT.noted("`write` as well if it changes or deletes rows", late=True),
        status_code=202,
    )
    async def submit(
        self, table: str, body: api.NewRequest, response: Response, call: Call = None
    ) -> api.Request | api.DryRun:
        """Request a compaction of a range of keys.

        With `dry_run` the answer is only what the request would take: files, bytes and rows in
        the range. It does not say how many rows a transform would change.
        """
        services = self._services
        if any(each is not None for each in (body.delete_where, body.set, body.transform)):
            current_call().further_role = Role.WRITE
        found = await services.table(table)
        if body.dry_run:
            now_s = await services.store.now_s()
            response.status_code = 200
            return await dry_run(services, found, checked_request(found, body, "", now_s))
        return request_view(found, await submit_request(services, found, body, call))

    @route("GET /v1/tables/{table}/compactions", READ)
    async def requests(
        self,
        table: str,
        count: Annotated[int, Query(description="Number of requests at most.")] = 100,
    ) -> dict[str, list[api.Request]]:
        """Return the requests of a table, newest first."""
        services = self._services
        found = await services.table(table)
        listed = await services.store.requests(found.id, bounded_count(count, LIST_MAX, "count"))
        return {"requests": [request_view(found, request) for request in listed]}

    @route("GET /v1/tables/{table}/compactions/{request}", READ)
    async def follow(
        self,
        table: str,
        request: str,
        tablets: Annotated[
            int,
            Query(description="Number of tablets at most. Tablets that are not done come first."),
        ] = 100,
    ) -> api.Request:
        """Return the progress of a request, in total and per tablet."""
        services = self._services
        found = await services.table(table)
        count = bounded_count(tablets + 1, TABLETS_MAX + 1, "tablets") - 1
        return await request_progress(
            services, found, await stored_request(services, found, request), count
        )

    @route("POST /v1/tables/{table}/compactions/{request}/cancel", COMPACT, status_code=202)
    async def cancel(self, table: str, request: str, body: api.Cancel) -> api.Request:
        """Cancel a request, or its part in some tablets. Committed work stays."""
        services = self._services
        found = await services.table(table)
        known = await stored_request(services, found, request)
        return request_view(found, await cancel_request(services, found, known, body))
