"""Routes of requests: submit, list, follow, cancel, dry run."""

from typing import Annotated

from fastapi import Query, Response

from neve import api
from neve.gateway.access.callers import Role, require_role
from neve.gateway.access.route_rights import COMPACT, READ, route
from neve.gateway.call_ids import (
    Call,
)
from neve.gateway.requests.dry_run import dry_run
from neve.gateway.requests.lifecycle import (
    cancel_request,
    request_progress,
    stored_request,
    submit_request,
)
from neve.gateway.requests.validation import checked_request
from neve.gateway.requests.views import (
    TABLETS_MAX,
    request_view,
)
from neve.gateway.services import Services, bounded_count

LIST_MAX = 1000


class RequestRoutes:
    """The routes under `/v1/tables/{table}/compactions`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @route(
        "POST /v1/tables/{table}/compactions",
        COMPACT.noted("`write` as well if it changes or deletes rows"),
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
        found = await services.table(table)
        if any(each is not None for each in (body.delete_where, body.set, body.transform)):
            require_role(Role.WRITE, found.name)
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
