"""Routes about requests: ask for a compaction, list them, follow one, cancel one."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from neve import api_requests
from neve.gateway.dry_run import dry_run
from neve.gateway.request_door import checked_request
from neve.gateway.request_views import TABLETS_MAX, request_view
from neve.gateway.requests import cancel, followed, stored, submit
from neve.gateway.routes_data import Call
from neve.gateway.services import Services, bounded

LIST_MAX = 1000


class RequestRoutes:
    """The routes under `/v1/tables/{table}/compactions`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter(prefix="/v1/tables/{table}/compactions", tags=["requests"])
        router.post("", status_code=202)(self.submit)
        router.get("")(self.requests)
        router.get("/{request}")(self.follow)
        router.post("/{request}/cancel", status_code=202)(self.cancel)
        return router

    async def submit(
        self, table: str, body: api_requests.NewRequest, response: Response, call: Call = None
    ) -> api_requests.Request | api_requests.DryRun:
        """Ask for a compaction of a range of keys; with `dry_run` only tell what it would take.

        A dry run tells files, bytes and rows in the range, not how many rows a transform
        would touch.
        """
        services = self._services
        found = await services.table(table)
        if body.dry_run:
            now_s = await services.store.now_s()
            response.status_code = 200
            return await dry_run(services, found, checked_request(found, body, "", now_s))
        return request_view(found, await submit(services, found, body, call))

    async def requests(
        self,
        table: str,
        count: Annotated[int, Query(description="At most so many.")] = 100,
    ) -> dict[str, list[api_requests.Request]]:
        """Return the compactions that were asked for, newest first."""
        services = self._services
        found = await services.table(table)
        listed = await services.store.requests(found.id, bounded(count, LIST_MAX, "count"))
        return {"requests": [request_view(found, each) for each in listed]}

    async def follow(
        self,
        table: str,
        request: str,
        tablets: Annotated[
            int, Query(description="Tell of so many tablets, those first that have not ended.")
        ] = 100,
    ) -> api_requests.Request:
        """Return how far a request is, over all and per tablet."""
        services = self._services
        found = await services.table(table)
        count = bounded(tablets + 1, TABLETS_MAX + 1, "tablets") - 1
        return await followed(services, found, await stored(services, found, request), count)

    async def cancel(
        self, table: str, request: str, body: api_requests.Cancel
    ) -> api_requests.Request:
        """Cancel a request, or its part in some tablets; what is committed stays."""
        services = self._services
        found = await services.table(table)
        known = await stored(services, found, request)
        return request_view(found, await cancel(services, found, known, body))
