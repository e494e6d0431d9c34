"""Routes about splits and merges of tablets."""

from typing import Annotated

from fastapi import APIRouter, Query

from neve import api_operations as api
from neve.gateway.operation_views import under_way
from neve.gateway.operations import abandon, merge, split
from neve.gateway.services import Services


class OperationRoutes:
    """The routes under `/v1/tables/{table}` that change tablets' bounds."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter(prefix="/v1/tables/{table}", tags=["tablets"])
        router.post("/split", status_code=202)(self.split)
        router.post("/merge", status_code=202)(self.merge)
        router.get("/operations")(self.operations)
        router.post("/operations/{operation}/abandon", status_code=202)(self.abandon)
        return router

    async def split(self, table: str, body: api.Split) -> api.Begun:
        """Split a tablet at a key, or into parts of about equal bytes.

        Begins one split and returns; the same wish again tells how it stands. Into more
        than two parts: wish for a split at each of the further `keys` when the one before
        is over.
        """
        return await split(self._services, await self._services.table(table), body)

    async def merge(self, table: str, body: api.Merge) -> api.Begun:
        """Merge a tablet with the next one, or begin to make one of all that hold a range.

        Begins one merge and returns. Of more than two tablets: wish again when it is over,
        until nothing is left to do.
        """
        return await merge(self._services, await self._services.table(table), body)

    async def operations(
        self,
        table: str,
        tablet: Annotated[str | None, Query(description="Only in this one, by its end.")] = None,
    ) -> api.Operations:
        """Return the splits and merges under way, and what they wait for."""
        return await under_way(self._services, await self._services.table(table), tablet)

    async def abandon(self, table: str, operation: str) -> None:
        """Give a split or merge up; tablets and files stay as they are."""
        await abandon(self._services, await self._services.table(table), operation)
