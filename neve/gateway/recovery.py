"""Routes of fsck, gc, rebuild, backup and restore: long work that answers with lines of JSON.

`neve.recovery` does the work. Lists in answers are bounded; omitted entries are counted.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import IO, Annotated, Any

from fastapi import Query, Request
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from common.errors import RequestError, UnknownTableError
from common.model.table import Table
from common.units import parse_duration_s
from neve import api
from neve.gateway.access.callers import ADMIN, ADMIN_ALL, current_call, route
from neve.gateway.bodies import LongWork, error_line, progress_lines
from neve.gateway.problems import BodyError
from neve.gateway.services import Services, checked_label, flush_rows
from neve.gateway.tables import GatewayAdmission
from neve.recovery.backup import NOT_IN_ARCHIVES, BackupOptions, RestoreOptions, backup, restore
from neve.recovery.gc import GcResult, collect_orphans
from neve.recovery.rebuild.table_rebuild import RebuildOptions, rebuild
from neve.recovery.repair import RepairOptions, RepairReport, check_and_repair
from neve.recovery.scope import (
    NOTES,
    UNDER_WAY,
    Finding,
    RecoveryPorts,
    RepairedFinding,
    ReportProgress,
    TableScope,
    ignore_progress,
)
from neve.recovery.table_creation import CreatedTable

# --------------------------------------------------------------------------- Results as wire models


LISTED_MAX = 10_000


def fsck_view(table: Table, report: RepairReport) -> api.FsckReport:
    """Return the wire model of a check's report."""
    first = report.checked.findings
    first_findings = {*first}
    findings = [
        *first,
        *(done.finding for done in report.settled if done.finding not in first_findings),
    ]
    repairs = _repairs_of(findings, report.settled)
    pairs = list(zip(findings, repairs, strict=True))
    wrong = [(finding, repair) for finding, repair in pairs if finding.code not in NOTES]
    return api.FsckReport(
        table=table.name,
        sound=all(done and done.done and finding.code not in UNDER_WAY for finding, done in wrong),
        findings=tuple(finding_view(*pair) for pair in pairs[:LISTED_MAX]),
        more=max(0, len(pairs) - LISTED_MAX),
        tablets=report.checked.tablets,
        files=report.checked.files,
        size_bytes=report.checked.size_bytes,
    )


def _repairs_of(
    findings: Sequence[Finding], settled: Sequence[RepairedFinding]
) -> Sequence[RepairedFinding | None]:
    """Return the repair of each finding: of the same object, or of the first equal finding."""
    same = {id(repaired.finding): repaired for repaired in settled}
    equal = {repaired.finding: repaired for repaired in reversed(settled)}
    return [same.get(id(finding)) or equal.get(finding) for finding in findings]


def finding_view(finding: Finding, settled: RepairedFinding | None = None) -> api.Finding:
    """Return the wire model of a finding and its repair."""
    return api.Finding(
        code=finding.code.value,
        sentence=finding.sentence,
        repair=finding.repair,
        path=finding.path,
        tablet=None if finding.tablet is None else finding.tablet.text,
        done=None if settled is None else settled.done,
        outcome="" if settled is None else settled.outcome,
    )


def gc_view(table: Table, done: GcResult) -> api.GcReport:
    """Return the wire model of a sweep's result."""
    return api.GcReport(
        table=table.name,
        orphans=tuple(finding_view(finding) for finding in done.found[:LISTED_MAX]),
        files=done.orphans,
        size_bytes=done.orphan_bytes,
        given=done.given,
        young=done.young,
        evidence=done.evidence,
        marks=done.marks,
    )


def restored_view(done: Iterable[CreatedTable], *, dry_run: bool) -> api.RestoreReport:
    """Return the wire model of a restore's result."""
    tables = (
        api.Restored(
            table=table.table.name,
            location=table.table.location,
            state=table.table.state.value,
            tablets=table.tablets,
            files=table.files,
            missing=table.missing[:LISTED_MAX],
            unused=table.unused[:LISTED_MAX],
        )
        for table in done
    )
    return api.RestoreReport(tables=tuple(tables), dry_run=dry_run, not_recovered=NOT_IN_ARCHIVES)


def _limited(named: Mapping[str, str]) -> dict[str, str]:
    return dict(islice(named.items(), LISTED_MAX))


# ------------------------------------------------------------------------------------------- Routes


HOLD_MAX_S = 7 * 86_400.0
_ARCHIVE_BODY = {"requestBody": {"content": {api.ARCHIVE: {"schema": {"type": "string"}}}}}
Pairs = Annotated[list[str] | None, Query(description="`name=value`; may be repeated.")]


class RecoveryRoutes:
    """Routes of fsck, gc, rebuild, backup and restore."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @route("POST /v1/tables/{table}/fsck", ADMIN)
    async def fsck(self, table: str, body: api.FsckOptions) -> StreamingResponse:
        """Compare the metadata of a table with its files.

        Only what the body asks for is repaired.
        """
        stored_table = await self._services.table(table)
        options = RepairOptions(
            repair=body.repair,
            deep=body.deep,
            adopt=body.adopt,
            accept=body.accept,
            forget_missing=body.forget_missing,
        )

        async def work(on_progress: ReportProgress) -> api.FsckReport:
            report = await check_and_repair(self._scope(stored_table, on_progress), options)
            return await asyncio.to_thread(fsck_view, stored_table, report)

        return self._lines(work)

    @route("POST /v1/tables/{table}/gc", ADMIN)
    async def gc(
        self,
        table: str,
        *,
        delete: Annotated[
            bool, Query(description="Let the collector delete the files that were found.")
        ] = False,
    ) -> StreamingResponse:
        """Find files of the service that no metadata refers to.

        Nothing is written unless `delete` is set.
        """
        stored_table = await self._services.table(table)

        async def work(on_progress: ReportProgress) -> api.GcReport:
            return gc_view(
                stored_table,
                await collect_orphans(self._scope(stored_table, on_progress), delete=delete),
            )

        return self._lines(work)

    @route("POST /v1/rebuild", ADMIN_ALL)
    async def rebuild(self, body: api.LostTable) -> StreamingResponse:
        """Rebuild a table from the files of its location after its metadata was lost."""
        current_call().table = body.name
        options = RebuildOptions(
            name=checked_label(body.name, "table name"),
            given=_given_table_facts(body),
            user_files=body.user_files,
            adopt=body.adopt,
            dry_run=body.dry_run,
        )

        async def work(on_progress: ReportProgress) -> api.RebuildReport:
            report = (await rebuild(self._ports(on_progress), body.location, options)).report
            return replace(report, left=_limited(report.left), lost=_limited(report.lost))

        return self._lines(work)

    @route("POST /v1/backup", ADMIN_ALL)
    async def backup(self, body: api.BackupOptions) -> StreamingResponse:
        """Return the metadata of tables as an archive. The last line holds its digest.

        Buffered rows are flushed first.
        """
        services = self._services
        if body.tables:
            tables = [await services.table(name) for name in body.tables]
        else:
            every = await services.store.tables()
            tables = [table for table in every if table.filling is None and table.lake is None]
        if not tables:
            raise UnknownTableError("there is no table to back up")
        hold_s = parse_duration_s(body.hold, "hold") if body.hold else 0.0
        if hold_s > HOLD_MAX_S:
            raise RequestError(f"hold {body.hold!r} is too long, at most {HOLD_MAX_S:g} s")
        for table in tables:
            await flush_rows(self._services, table)  # Archives name files.
        options = BackupOptions(hold_s=hold_s, copy_to=body.copy_to or None)
        scopes = [self._scope(table, ignore_progress) for table in tables]
        lines = backup(scopes, services.ids, GatewayAdmission.of(services), options)
        # An error before the first line becomes a problem.
        first = await anext(lines)
        return StreamingResponse(self._archive(first, lines), media_type=api.ARCHIVE)

    @route("POST /v1/restore", ADMIN_ALL, openapi_extra=_ARCHIVE_BODY)
    async def restore(
        self,
        request: Request,
        *,
        name: Pairs = None,
        location: Pairs = None,
        only: Annotated[
            list[str] | None, Query(description="Names of the tables; all tables by default.")
        ] = None,
        adopt: Annotated[
            bool, Query(description="Take over locations that belong to another store.")
        ] = False,
        dry_run: Annotated[bool, Query(description="Only report what would be done.")] = False,
    ) -> StreamingResponse:
        """Restore tables from an archive. The files must lie in the locations of the tables."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if kind != api.ARCHIVE:
            raise BodyError(f"content type {kind!r} is not accepted here, expected {api.ARCHIVE}")
        options = RestoreOptions(
            names=_pairs(name, "name"),
            locations=_pairs(location, "location"),
            only=only or (),
            adopt=adopt,
            dry_run=dry_run,
        )
        source = await self._spooled(request)

        async def work(on_progress: ReportProgress) -> api.RestoreReport:
            with source:
                restored = await restore(self._ports(on_progress), source, options)
                return restored_view(restored, dry_run=dry_run)

        return self._lines(work)

    def _ports(self, on_progress: ReportProgress) -> RecoveryPorts:
        services = self._services
        return RecoveryPorts(
            store=services.store,
            threads=services.long_steps,
            ids=services.ids,
            admission=GatewayAdmission.of(services),
            on_progress=on_progress,
            listing_delay_s=services.settings.gateway.listing_delay_s,
        )

    def _scope(self, table: Table, on_progress: Callable[[str], None]) -> TableScope:
        services = self._services
        rules = services.settings.coordinator
        return TableScope(
            store=services.store,
            table=table,
            threads=services.long_steps,
            grace_s=rules.garbage_grace_s + rules.clock_skew_max_s,
            on_progress=on_progress,
        )

    def _lines(self, work: LongWork) -> StreamingResponse:
        return StreamingResponse(progress_lines(work, self._services.log), media_type=api.LINES)

    async def _archive(self, first: bytes, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        yield first
        try:
            async for line in lines:
                yield line
        except Exception as error:  # noqa: BLE001, RUF100 - reported as the last line of the archive
            yield error_line(error, self._services.log)

    async def _spooled(self, request: Request) -> IO[bytes]:
        """Store a body on disk, because a restore verifies the whole archive before it writes."""
        source = tempfile.TemporaryFile()  # noqa: SIM115 - closed by who reads it
        try:
            async for chunk in request.stream():
                await asyncio.to_thread(source.write, chunk)
        except ClientDisconnect as error:
            source.close()
            raise BodyError("the archive ended too early") from error
        except BaseException:
            source.close()
            raise
        return source


def _given_table_facts(body: api.LostTable) -> Mapping[str, Any]:
    """Return the caller's description of a table that has no description in its location."""
    if not body.key and not body.append_only:
        return {}
    return {
        "key": body.key,
        "version_column": body.version_column,
        "tombstone_column": body.tombstone_column,
        "time_column": body.time_column,
        "partition_by": body.partition_by,
    }


def _pairs(texts: list[str] | None, what: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not name or not equals or not value:
            raise RequestError(f"{what} {text!r} is not of the form table={what}")
        pairs[name] = value
    return pairs
