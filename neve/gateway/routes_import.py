"""Routes by which directories become tables, and tables are read by others."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from fastapi import APIRouter
from fastapi.responses import StreamingResponse

from neve import api_import as api
from neve.api_recovery import LINES
from neve.gateway.export import exported, exported_names
from neve.gateway.import_batches import Tell
from neve.gateway.importing import import_directory
from neve.gateway.services import Services
from neve.gateway.told import told


class ImportRoutes:
    """The routes of import and export."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter(prefix="/v1", tags=["import"], default_response_class=StreamingResponse)
        router.post("/import")(self.import_)
        router.get("/tables/{table}/manifest")(self.manifest)
        router.get("/tables/{table}/manifest/files")(self.names)
        return router

    async def import_(self, body: api.NewImport) -> StreamingResponse:
        """Make a table of a directory; repeated, it goes on. Answers with lines of JSON."""

        async def work(tell: Tell) -> api.ImportReport:
            return await import_directory(self._services, body, tell)

        return StreamingResponse(told(work, self._services.log), media_type=LINES)

    async def manifest(self, table: str) -> StreamingResponse:
        """Return the manifest of this moment: one JSON object that names every file."""
        found = await self._services.table(table)
        chunks = exported(self._services, found)
        # What fails before the first chunk is told as a problem, not as a broken stream.
        first = await anext(chunks)
        return StreamingResponse(_with_first(first, chunks), media_type="application/json")

    async def names(self, table: str) -> StreamingResponse:
        """Return the absolute names of the table's files of this moment, a line each."""
        found = await self._services.table(table)
        chunks = exported_names(self._services, found)
        first = await anext(chunks)
        return StreamingResponse(_with_first(first, chunks), media_type="text/plain")


async def _with_first(first: bytes, stream: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    async with aclosing(stream):
        yield first
        async for chunk in stream:
            yield chunk
