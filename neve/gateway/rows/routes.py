"""Routes of ingestion: add, append, calls; and the listing of files."""

import asyncio
from typing import Annotated

from fastapi import Query, Request

from neve import api
from neve.gateway.access.route_rights import READ, WRITE, route
from neve.gateway.key_views import file_view, key_types
from neve.gateway.problems import BodyError
from neve.gateway.request_bodies import received_body
from neve.gateway.rows.add import add_files
from neve.gateway.rows.append import append_rows
from neve.gateway.rows.calls import Call, call_view
from neve.gateway.services import (
    PAGE_TABLETS,
    Services,
    bounded_count,
    parsed_tablet,
)

APPENDS_AT_ONCE = 3
"""Limit of concurrent appends, because their bodies are in memory; further appends wait."""

_BINARY = {"type": "string", "format": "binary"}
_ARROW_BODY = {"requestBody": {"content": {api.ARROW_STREAM: {"schema": _BINARY}}}}


class IngestRoutes:
    """Routes of files and rows under `/v1/tables/{table}`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._appends = asyncio.Semaphore(APPENDS_AT_ONCE)

    @route("GET /v1/tables/{table}/files", READ)
    async def files(
        self,
        table: str,
        after: Annotated[
            str | None, Query(description="Return only files of tablets after this one.")
        ] = None,
        count: Annotated[
            int, Query(description="Number of tablets at most whose files are returned.")
        ] = PAGE_TABLETS,
    ) -> api.FilePage:
        """Return a page of files, tablet by tablet.

        Pass `next` as `after` to get the following page.
        """
        services = self._services
        found = await services.table(table)
        begin = None if after is None else parsed_tablet(found, after).end
        count = bounded_count(count, PAGE_TABLETS, "count")
        ids = await services.store.tablet_ids(found.id, begin, count)
        types = key_types(found)
        files = [
            file_view(file, tablet.text, types)
            for tablet, held in zip(ids, await services.store.files(ids), strict=True)
            for _, file in sorted(held.items())
        ]
        following = ids[-1].text if len(ids) == count else None
        return api.FilePage(files=tuple(files), next=following)

    @route("POST /v1/tables/{table}/files", WRITE)
    async def add(self, table: str, body: api.NewFiles, call: Call = None) -> api.Added:
        """Add Parquet files that lie in the location of the table.

        All files are added, or none. A call takes at most 10,000 files.
        """
        found = await self._services.table(table)
        return await add_files(self._services, found, body.paths, call)

    @route("POST /v1/tables/{table}/append", WRITE, openapi_extra=_ARROW_BODY)
    async def append(self, table: str, request: Request, call: Call = None) -> api.Added:
        """Append the rows of an Arrow IPC stream: all rows, or none.

        The service sorts the rows and writes one file or more per tablet.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if kind != api.ARROW_STREAM:
            raise BodyError(
                f"content type {kind!r} is not accepted here, expected {api.ARROW_STREAM}"
            )
        found = await self._services.table(table)
        # Receive the body before entering the semaphore: a slow sender must not block others.
        async with received_body(request) as body, self._appends:
            return await append_rows(self._services, found, await body(), call)

    @route("GET /v1/tables/{table}/calls/{call}", READ)
    async def call(self, table: str, call: str) -> api.Call:
        """Return what became of a call: it was accepted, is unknown, or is too old to be known."""
        return await call_view(self._services, await self._services.table(table), call)
