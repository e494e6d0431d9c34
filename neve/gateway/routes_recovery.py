"""Routes of recovery: fsck, gc, rebuild, backup, restore. They answer with lines of JSON."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from typing import IO, Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from common.errors import RequestError, UnknownTableError
from common.model.table import Table
from common.units import parse_duration_s
from neve import api_recovery as api
from neve.gateway.create import TableDoor
from neve.gateway.problems import BodyError
from neve.gateway.recovery_views import fsck_view, gc_view, rebuilt_view, restored_view
from neve.gateway.services import Services, checked_label
from neve.gateway.told import Work, error_line, told
from neve.recovery.backup import BackupOptions, backup
from neve.recovery.gc import collect_orphans
from neve.recovery.rebuild import Rebuilder, RebuildOptions, rebuild
from neve.recovery.repair import Options, check_and_repair
from neve.recovery.restore import RestoreOptions, Restorer, restore
from neve.recovery.scope import Scope, Tell, silent

HOLD_MAX_S = 7 * 86_400.0
_ARCHIVE_BODY = {"requestBody": {"content": {api.ARCHIVE: {"schema": {"type": "string"}}}}}
Pairs = Annotated[list[str] | None, Query(description="`name=value`; may be repeated.")]


class RecoveryRoutes:
    """The routes that check, sweep, rebuild, back up and restore."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter(
            prefix="/v1", tags=["recovery"], default_response_class=StreamingResponse
        )
        router.post("/tables/{table}/fsck")(self.fsck)
        router.post("/tables/{table}/gc")(self.gc)
        router.post("/rebuild")(self.rebuild)
        router.post("/backup")(self.backup)
        router.post("/restore", openapi_extra=_ARCHIVE_BODY)(self.restore)
        return router

    async def fsck(self, table: str, body: api.FsckOptions) -> StreamingResponse:
        """Hold a table's metadata against its files; mend only what the body asks for."""
        found = await self._services.table(table)
        options = Options(
            repair=body.repair,
            deep=body.deep,
            adopt=body.adopt,
            accept=body.accept,
            forget_missing=body.forget_missing,
        )

        async def work(tell: Tell) -> api.FsckReport:
            return fsck_view(found, await check_and_repair(self._scope(found, tell), options))

        return self._lines(work)

    async def gc(
        self,
        table: str,
        *,
        delete: Annotated[bool, Query(description="Give what is found to the collector.")] = False,
    ) -> StreamingResponse:
        """Find files of the service that no key knows; nothing is written unless asked for."""
        found = await self._services.table(table)

        async def work(tell: Tell) -> api.GcReport:
            return gc_view(found, await collect_orphans(self._scope(found, tell), delete=delete))

        return self._lines(work)

    async def rebuild(self, body: api.LostTable) -> StreamingResponse:
        """Make a table out of the files of a location, after its metadata was lost."""
        services = self._services
        options = RebuildOptions(
            name=checked_label(body.name, "table name"),
            given=_given(body),
            user_files=body.user_files,
            adopt=body.adopt,
            dry_run=body.dry_run,
        )

        async def work(tell: Tell) -> api.RebuildReport:
            rebuilder = Rebuilder(
                store=services.store,
                threads=services.long_steps,
                ids=services.ids,
                door=TableDoor.of(services),
                tell=tell,
                listing_delay_s=services.settings.gateway.listing_delay_s,
            )
            done = await rebuild(rebuilder, body.location, options)
            return rebuilt_view(done, dry_run=body.dry_run)

        return self._lines(work)

    async def backup(self, body: api.BackupOptions) -> StreamingResponse:
        """Return the metadata of tables as an archive; its last line has the digest."""
        services = self._services
        if body.tables:
            tables = [await services.table(name) for name in body.tables]
        else:
            tables = list(await services.store.tables())
        if not tables:
            raise UnknownTableError("there is no table to back up")
        hold_s = parse_duration_s(body.hold, "hold") if body.hold else 0.0
        if hold_s > HOLD_MAX_S:
            raise RequestError(f"hold {body.hold!r} is too long, at most {HOLD_MAX_S:g} s")
        options = BackupOptions(hold_s=hold_s, copy_to=body.copy_to or None)
        scopes = [self._scope(table, silent) for table in tables]
        lines = backup(scopes, services.ids, TableDoor.of(services), options)
        # What fails before the first line is told as a problem.
        first = await anext(lines)
        return StreamingResponse(self._archive(first, lines), media_type=api.ARCHIVE)

    async def restore(
        self,
        request: Request,
        *,
        name: Pairs = None,
        location: Pairs = None,
        only: Annotated[list[str] | None, Query(description="Tables; else all.")] = None,
        adopt: Annotated[bool, Query(description="Take locations of other stores over.")] = False,
        dry_run: Annotated[bool, Query(description="Only say what would be done.")] = False,
    ) -> StreamingResponse:
        """Make tables out of an archive. Their files must lie in their locations."""
        services = self._services
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if kind != api.ARCHIVE:
            raise BodyError(f"content type {kind!r} is not taken here, wanted {api.ARCHIVE}")
        options = RestoreOptions(
            names=_pairs(name, "name"),
            locations=_pairs(location, "location"),
            only=only or (),
            adopt=adopt,
            dry_run=dry_run,
        )
        source = await self._spooled(request)

        async def work(tell: Tell) -> api.RestoreReport:
            with source:
                restorer = Restorer(
                    store=services.store,
                    threads=services.long_steps,
                    ids=services.ids,
                    door=TableDoor.of(services),
                    tell=tell,
                )
                return restored_view(await restore(restorer, source, options), dry_run=dry_run)

        return self._lines(work)

    def _scope(self, table: Table, tell: Callable[[str], None]) -> Scope:
        services = self._services
        rules = services.settings.coordinator
        return Scope(
            store=services.store,
            table=table,
            threads=services.long_steps,
            grace_s=rules.garbage_grace_s + rules.clock_skew_max_s,
            tell=tell,
        )

    def _lines(self, work: Work) -> StreamingResponse:
        return StreamingResponse(told(work, self._services.log), media_type=api.LINES)

    async def _archive(self, first: bytes, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        yield first
        try:
            async for line in lines:
                yield line
        except Exception as error:  # noqa: BLE001, RUF100 - told as the last line of the archive
            yield error_line(error, self._services.log)

    async def _spooled(self, request: Request) -> IO[bytes]:
        """Keep a body on disk: it is read to its digest before anything is written."""
        source = tempfile.TemporaryFile()  # noqa: SIM115 - closed by who reads it
        try:
            async for chunk in request.stream():
                await asyncio.to_thread(source.write, chunk)
        except ClientDisconnect as error:
            source.close()
            raise BodyError("the archive broke off") from error
        except BaseException:
            source.close()
            raise
        return source


def _given(body: api.LostTable) -> Mapping[str, Any]:
    """Return what the caller says of a table that nothing describes."""
    if not body.key and not body.append_only:
        return {}
    return {
        "key": body.key,
        "version_column": body.version_column,
        "tombstone_column": body.tombstone_column,
        "time_column": body.time_column,
        "partition_by": body.partition_by,
    }


def _pairs(written: list[str] | None, what: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in written or ():
        name, equals, value = text.partition("=")
        if not name or not equals or not value:
            raise RequestError(f"{what} {text!r} is not of the form table={what}")
        pairs[name] = value
    return pairs
