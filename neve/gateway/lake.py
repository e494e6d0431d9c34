"""Lake tables: attach a table of another format, or show what that would do; detach it.

    attach   check name and location → read the log → columns and tablets → create the table. The
             coordinator fills the mirror: losing the store loses no row
    dry run  the same without the creation, and the jobs that would be planned
    detach   drop the table from the store. Its files and its log stay as they are

The log is untrusted input: it is read in a thread, with a deadline and within the bounds of its
source. Nothing is written into the folder of the table.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from common.errors import RefusedError, RequestError
from common.lake.mirror import (
    MirroredTablet,
    data_folder_of,
    mirrored_file,
    partition_names,
    tablets_of,
    target_bytes_of,
    why_refused,
)
from common.lake.open import catalog_access, open_source, storage_options
from common.lake.source import LakeFormat, Snapshot
from common.metadata.changes import CreateTable, DropTable
from common.model.job import Job
from common.model.table import LakeTable, Table, TableState
from common.model.tablet import Bounds, Tablet, TabletId
from common.parquet.location import Location, lend, open_location
from common.parquet.resolved_location import ResolvedLocation
from neve import api
from neve.gateway.access.callers import ADMIN, ADMIN_ALL, current_call, route
from neve.gateway.problems import ChangeRefusedError, require_applied
from neve.gateway.services import Services, checked_label
from neve.gateway.table_settings import LAKE_SETTINGS, settings_of_new_table
from neve.gateway.tables import check_columns, drop_remains, refuse_being_dropped
from neve.recovery.table_creation import OtherTables, other_tables, owners_upwards
from neve.setting_values import settings_by_name

REASONS_MAX = 10
"""Jobs whose reasons a dry run shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attachment:
    """A table that can be attached, and the version of its log that was read."""

    table: Table
    snapshot: Snapshot
    tablets: dict[bytes, MirroredTablet]
    site: ResolvedLocation
    others: OtherTables
    planner: str
    refusal: str


async def _prepare(services: Services, name: str, body: api.AttachTable) -> _Attachment:
    """Check a table that is to be attached; write nothing.

    Raises:
        ConfigError: The packages of its format are not installed.
        RequestError: The name, the location, a setting or the log is malformed.
        RefusedError: The name is taken, or the location is not free or not allowed.
        UnavailableError: The log does not answer.
    """
    if body.format not in set(LakeFormat):
        raise RequestError(
            f"format {body.format!r} is unknown, expected one of {', '.join(LakeFormat)}"
        )
    if "?" in body.uri:
        raise RequestError(
            f"the URI of table {name!r} has options, expected them in the file of the setting "
            "catalog.options_file or in the environment of the service"
        )
    await refuse_being_dropped(services, name)
    others = await other_tables(services.store, services.footers)
    if any(named.name == name for named in others.named):
        raise ChangeRefusedError(f"table {name!r} exists already; choose another name", "exists")
    if body.format == LakeFormat.ICEBERG:
        # Its catalog names the location; every file that it names is held against the settings.
        uri, snapshot = body.uri, await _read(services, body.format, body.uri)
        site = await _free_site(services, snapshot.root, others)
    else:
        site = await _free_site(services, body.uri, others)
        uri, snapshot = site.uri, await _read(services, body.format, site.uri)
    settings, planner = settings_of_new_table(
        name, keyed=False, changes=body.settings, services=services.settings.services
    )
    given, _ = settings_by_name(body.settings)
    fixed = {name: value for name, value in LAKE_SETTINGS.items() if name not in given}
    if "target_bytes" not in given and (target_bytes := target_bytes_of(snapshot)):
        fixed["target_bytes"] = target_bytes
    table = Table(
        id=services.ids.next("t"),
        name=name,
        location=site.uri,
        schema=snapshot.columns,
        partition_by=partition_names(body.format, snapshot),
        settings=replace(settings, **fixed),
        state=TableState.PAUSED if body.paused else TableState.LIVE,
        created_at_s=await services.store.now_s(),
        lake=LakeTable(
            format=body.format,
            uri=uri,
            table_id=snapshot.table_id,
            root=snapshot.root,
            data_folder=data_folder_of(snapshot) if body.format == LakeFormat.ICEBERG else "",
        ),
    )
    refusal, tablets = why_refused(table, snapshot), dict[bytes, MirroredTablet]()
    if not refusal:
        check_columns(table)
        tablets = await asyncio.to_thread(tablets_of, table, snapshot.files.values())
    return _Attachment(
        table=table,
        snapshot=snapshot,
        tablets=tablets,
        site=site,
        others=others,
        planner=planner,
        refusal=refusal,
    )


async def _free_site(services: Services, uri: str, others: OtherTables) -> ResolvedLocation:
    """Return the location of a table, which is allowed and belongs to no other table.

    Raises:
        RequestError: The location is malformed.
        RefusedError: It is not free, or not allowed.
    """
    site = await services.footers.run(uri, services.locations.admitted, uri)
    others.refuse_overlap(site)
    await services.footers.run(site.uri, _refuse_owned, open_location(site.uri))
    return site


async def _read(services: Services, format_name: str, uri: str) -> Snapshot:
    catalog = catalog_access(services.settings)
    options = await asyncio.to_thread(storage_options, catalog, uri)
    source = await asyncio.to_thread(open_source, format_name, uri, options)
    snapshot = await services.footers.within(catalog.answer_max_s).run(uri, source.load)
    lend(snapshot.root, source.files)
    return snapshot


def _refuse_owned(location: Location) -> None:
    """Refuse a folder that belongs to a table of a store, or lies in such a folder.

    Raises:
        RefusedError: It does.
    """
    for folder, owner in owners_upwards(location, location.root):
        raise RefusedError(
            f"location {location.uri} is in {folder}, which belongs to a table of the store "
            f"{owner.store}: two tables may not share files",
            "location",
        )


async def _planned(services: Services, attachment: _Attachment) -> list[Job]:
    """Return the jobs that would be planned now."""
    table, now_s = attachment.table, await services.store.now_s()
    tablets = [
        Tablet(
            id=TabletId(table.id, end),
            bounds=Bounds(None, end, tablet.partition),
            files={path: mirrored_file(file) for path, file in tablet.files.items()},
        )
        for end, tablet in sorted(attachment.tablets.items())
    ]
    plan = partial(services.plan, correction=api.Correction())

    def every(some: Sequence[Tablet]) -> list[Job]:
        return [job for tablet in some for job in plan(tablet, table, now_s).jobs]

    return await services.rows.run(table.location, every, tablets)


def _view(body: api.AttachTable, attachment: _Attachment, jobs: Sequence[Job]) -> api.Attached:
    table, files = attachment.table, attachment.snapshot.files.values()
    assert table.lake is not None, table.name
    return api.Attached(
        table=table.name,
        format=table.lake.format,
        uri=table.lake.uri,
        dry_run=body.dry_run,
        version=attachment.snapshot.version,
        tablets=len(attachment.tablets),
        files=len(files),
        size_bytes=sum(file.size_bytes for file in files),
        rows=sum(file.rows for file in files),
        deleted_rows=sum(file.deleted_rows for file in files),
        files_with_deletes=sum(bool(file.deletes or file.equality) for file in files),
        partition_by=table.partition_by,
        planner=attachment.planner,
        refusal=attachment.refusal,
        jobs=len(jobs),
        planned_files=sum(len(job.inputs) for job in jobs),
        planned_bytes=sum(job.input_bytes for job in jobs),
        reasons=tuple(job.reason for job in islice(jobs, REASONS_MAX)),
    )


class LakeRoutes:
    """Routes that attach and detach tables of other formats."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @route("POST /v1/tables/{table}/attach", ADMIN_ALL)
    async def attach(self, table: str, body: api.AttachTable) -> api.Attached:
        """Attach a table of another format under a name, to compact it in place.

        The table's own log stays the truth. Other engines may read and write the table at any time.
        With `dry_run` nothing is attached, and the answer has the jobs that would be planned.
        """
        services = self._services
        checked_label(table, "table name")
        current_call().table = table
        attachment = await _prepare(services, table, body)
        if body.dry_run:
            jobs = [] if attachment.refusal else await _planned(services, attachment)
            return _view(body, attachment, jobs)
        if attachment.refusal:
            raise RefusedError(f"table {table!r} is not attached: {attachment.refusal}", "lake")
        change = CreateTable(
            table=attachment.table,
            identity=attachment.site.identity,
            others=attachment.others.identities,
        )
        require_applied(await services.store.apply(change))
        return _view(body, attachment, ())

    @route("POST /v1/tables/{table}/detach", ADMIN, status_code=202)
    async def detach(self, table: str) -> api.Dropped:
        """End the maintenance of a lake table. Its files and its log stay.

        Running attempts may not publish any more. Outputs that they have written are deleted later,
        unless they may have been published; then the table's own vacuum deletes them.
        """
        services = self._services
        stored_table = await services.table(table)
        if stored_table.lake is None:
            raise RequestError(
                f"table {table!r} is no lake table; `neve table drop {table}` drops it"
            )
        require_applied(await services.store.apply(DropTable(table=stored_table.id)))
        return await drop_remains(services, stored_table)
