"""Tables: create, list, describe, change, pause, drop.

A table is created after all checks have passed. Only the owner mark of the location is written
before, which is harmless. Tables from an archive or from the description in a location pass the
same checks.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Self

import pyarrow as pa
from fastapi import Query

from common.errors import (
    BrokenValueError,
    RefusedError,
    RequestError,
    UnavailableError,
    UnknownTableError,
)
from common.metadata.changes import ChangeTable, DropTable, Refused
from common.metadata.store_values import Mirror, UnreadableTablet
from common.model.fields import as_plain, known_fields
from common.model.key_values import KeyType, key_type_of
from common.model.keys import PLUS_INFINITY, parse_key, require_short
from common.model.table import PUBLISH_OFF, Column, Filling, Table, TableSettings, TableState
from common.model.tablet import Record, Tablet, TabletId
from common.parquet.file_inspection import read_columns
from common.parquet.foreign_formats import foreign_mark, foreign_mark_below, remove_own_log
from common.parquet.location import Location, open_location
from common.parquet.resolved_location import ResolvedLocation
from common.parquet.row_batches import remove_guards
from common.rows.schema import COLUMNS_MAX, arrow_schema, changed_schema, columns_of
from common.storage_threads import StorageThreads
from common.units import format_count
from coordinator.core.split_merge import has_ranges
from neve import api
from neve.gateway import table_locations
from neve.gateway.access.callers import (
    ADMIN,
    ADMIN_ALL,
    COMPACT,
    READ,
    READ_LISTED,
    current_call,
    open_table,
    route,
    sees_table,
)
from neve.gateway.key_views import key_types, lake_view, tablet_view
from neve.gateway.problems import ChangeRefusedError, require_applied
from neve.gateway.services import (
    PAGE_TABLETS,
    Services,
    bounded_count,
    check_table_owner,
    checked_label,
    flush_rows,
)
from neve.gateway.table_files import published_log
from neve.gateway.table_settings import (
    changed_settings,
    check_lake_maintenance,
    check_lake_settings,
    check_publish,
    check_readers,
    check_table_planner,
    settings_of_new_table,
    settings_with_fixed,
)
from neve.recovery.table_creation import (
    FreeSite,
    create_at_site,
    find_free_site,
    other_tables,
    sign_site,
)

# --------------------------------------------------------------------------------------------- Drop


async def drop_named(services: Services, name: str, *, delete_files: bool) -> api.Dropped:
    """Drop a table by name, or finish a drop that has left only the name.

    Raises:
        UnknownTableError: No table that the caller may see has this name.
        RefusedError: The table was dropped before, and its name waits for the collector.
    """
    try:
        stored_table = await services.table(name, filling=True)
    except UnknownTableError:
        left = (await services.store.names()).get(name) if sees_table(name) else None
        if left is None or await services.store.table(left) is not None:
            raise
        await open_table(name)
        require_applied(await services.store.apply(DropTable(table=left, resumed=True)))
        return api.Dropped(table=name)
    return await drop_table(services, stored_table, delete_files=delete_files)


async def drop_table(services: Services, table: Table, *, delete_files: bool) -> api.Dropped:
    """Drop a table, or continue an interrupted drop.

    Raises:
        RefusedError: The table was dropped before, and its name waits for the collector; or its
            files are to be deleted, and another table format owns some of them.
    """
    if table.lake is not None:
        raise RefusedError(
            f"table {table.name!r} is a lake table, its files belong to its log: "
            f"`neve detach {table.name}` ends the maintenance and leaves every file",
            "lake",
        )
    if delete_files:
        location = open_location(table.location)
        mark = await services.footers.run(location.uri, foreign_mark, location)
        mark = mark or await services.footers.run(location.uri, foreign_mark_below, location)
        if mark is not None:
            raise RefusedError(mark.stop(table.name), "location")
    else:
        await flush_rows(services, table)
    require_applied(
        await services.store.apply(DropTable(table=table.id, delete_files=delete_files))
    )
    for remove in (remove_guards, remove_own_log):
        with suppress(UnavailableError, RefusedError):  # What remains does no harm to rows.
            await _clear(services, table, remove)
    left = await drop_remains(services, table)
    if left.files_left and table.state is TableState.GOING:
        raise being_dropped_error(left)
    return left


async def _clear(services: Services, table: Table, remove: Callable[[Location], object]) -> None:
    """Remove what the service has put into a directory for plain readers: guards, or its log.

    Raises:
        RefusedError: The location has another owner, or another writer has added to the log.
        UnavailableError: The storage does not answer.
    """
    await check_table_owner(services, table)
    await services.footers.run(table.location, remove, open_location(table.location))


async def _published(services: Services, table: Table) -> api.PublishedLog | None:
    """Return the log that a table publishes, as its location has it."""
    if table.settings.publish == PUBLISH_OFF:
        return None
    try:
        return await services.looks.run(table.location, published_log, table)
    except UnavailableError as error:
        return api.PublishedLog(format=table.settings.publish, problem=str(error))


async def refuse_being_dropped(services: Services, name: str) -> None:
    """Reject a name that a dropped table still has, after finishing an interrupted drop.

    Raises:
        RefusedError: The name is not free; the message says when it will be.
    """
    present = await services.store.table_named(name)
    if present is not None and present.state is TableState.GOING:
        await services.store.apply(DropTable(table=present.id, resumed=True))
        left = await drop_remains(services, present)
        if left.name_free_at_s is not None:
            raise being_dropped_error(left)


async def drop_remains(services: Services, table: Table) -> api.Dropped:
    """Return the files that keep the name of a dropped table, and when the name is free."""
    if await services.store.table(table.id) is None:
        return api.Dropped(table=table.name)
    entries = await services.store.garbage(table.id)
    rules, now_s = services.settings.coordinator, await services.store.now_s()
    begun_s = max((entry.stamped_s or now_s for entry in entries), default=now_s)
    free_s = max(begun_s + rules.garbage_grace_s, now_s) + rules.collect_interval_s
    return api.Dropped(table=table.name, files_left=len(entries), name_free_at_s=free_s)


def being_dropped_error(left: api.Dropped) -> ChangeRefusedError:
    """Return the error for a table that is being dropped."""
    files, until = format_count(left.files_left, "file"), ""
    if left.name_free_at_s is not None:
        until = f", at about {datetime.fromtimestamp(left.name_free_at_s, UTC):%Y-%m-%d %H:%M} UTC"
    return ChangeRefusedError(
        f"table {left.table!r} is being dropped: its name is free when the collector has deleted "
        f"{files}{until}, or later if readers still hold them",
        "going",
    )


# ------------------------------------------------------------------------------------------- Create


TIME_TYPES = frozenset({KeyType.TIMESTAMP, KeyType.DATE, KeyType.INT, KeyType.FLOAT})


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTableSite:
    """A table that can be created, with its site."""

    table: Table
    splits: tuple[bytes, ...]
    free: FreeSite
    planner: str
    """Sentence on the choice of its planner."""


async def create_table(
    services: Services, body: api.NewTable, filling: Filling | None = None
) -> tuple[Table, str]:
    """Create a table; return the table, and a sentence on the choice of its planner.

    Args:
        services: Ports and settings.
        body: Description from the user.
        filling: Run that fills the table and then signs its location; None: create an empty table.

    Raises:
        RequestError: A value of the body is invalid; the message names it.
        RefusedError: The name is taken, or the location has another owner.
    """
    new = await new_table(services, body)
    table = new.table
    if filling is not None:
        table = replace(table, state=TableState.FILLING, filling=filling)
    creation = new.free.creation(table, new.splits)
    require_applied(await create_at_site(services.footers, services.store, new.free, creation))
    if filling is not None:
        return table, new.planner
    with suppress(UnavailableError):  # The coordinator writes the mark later if this fails.
        await sign_site(services.footers, services.store, table)
    return await services.table(table.name), new.planner


async def new_table(services: Services, body: api.NewTable) -> NewTableSite:
    """Check a description, and return the table that would be created; write nothing.

    Raises:
        RequestError: A value of the body is invalid; the message names it.
        RefusedError: The name is taken, or the location has another owner.
    """
    checked_label(body.name, "table name")
    site = await services.footers.run(body.location, services.locations.admitted, body.location)
    location = site.uri
    columns = await _new_columns(services, body, location)
    settings, planner = settings_of_new_table(
        body.name, keyed=bool(body.key), changes=body.settings, services=services.settings.services
    )
    table = Table(
        id=services.ids.next("t"),
        name=body.name,
        location=location,
        schema=columns,
        key=tuple(body.key),
        version_column=body.version_column,
        tombstone_column=body.tombstone_column,
        time_column=body.time_column,
        partition_by=tuple(body.partition_by),
        settings=settings,
        state=TableState.PAUSED if body.paused else TableState.LIVE,
        created_at_s=await services.store.now_s(),
    )
    check_columns(table)
    splits = await asyncio.to_thread(parse_splits, table, body.splits)
    await refuse_being_dropped(services, table.name)
    others = await other_tables(services.store, services.footers)
    if any(named.name == table.name for named in others.named):
        raise ChangeRefusedError(
            f"table {table.name!r} exists already; choose another name or drop it", "exists"
        )
    free = await find_free_site(services.store, services.footers, site, neighbours=others)
    return NewTableSite(table=table, splits=splits, free=free, planner=planner)


class GatewayAdmission:
    """Checks that every new table must pass; satisfies `neve.recovery.scope.TableAdmission`."""

    def __init__(
        self,
        locations: table_locations.Locations,
        threads: StorageThreads,
        services: Collection[str],
    ) -> None:
        """Combine the operator's settings.

        Args:
            locations: Allowed locations of tables.
            threads: Threads that resolve links.
            services: Names of the configured services.
        """
        self._locations = locations
        self._threads = threads
        self._services = services

    @classmethod
    def of(cls, services: Services) -> "GatewayAdmission":
        """Return the admission with the settings of a gateway."""
        return cls(services.locations, services.footers, services.settings.services)

    async def site(self, uri: str) -> ResolvedLocation:
        """Resolve a location, and check that a table is allowed there; see `TableAdmission`."""
        return await self._threads.run(uri, self._locations.admitted, uri)

    def checked(self, table: Table) -> Table:
        """Return the table as `create` would create it; see `TableAdmission`."""
        checked_label(table.name, "table name")
        schema = columns_of(arrow_schema(table.schema))
        if not schema:
            raise RequestError(f"table {table.name!r} has no columns, expected at least one")
        columns = (
            replace(was, type=is_.type) for was, is_ in zip(table.schema, schema, strict=True)
        )
        names = [known_field.name for known_field in known_fields(TableSettings)]
        settings = {name: getattr(table.settings, name) for name in names}
        table = replace(
            table,
            schema=tuple(columns),
            settings=changed_settings(TableSettings(), settings, services=self._services),
        )
        check_columns(table)
        return table


async def _new_columns(services: Services, body: api.NewTable, location: str) -> tuple[Column, ...]:
    if (body.schema is None) == (body.example is None):
        what = "neither" if body.schema is None else "both"
        raise RequestError(
            f"table {body.name!r}: give either a schema or an example file, not {what}"
        )
    if body.schema is not None:
        written = [Column(column.name, column.type, column.nullable) for column in body.schema]
        columns = columns_of(arrow_schema(written))
    else:
        example = body.example or ""
        columns = await services.footers.run(location, read_columns, location, example)
    if not columns:
        raise RequestError(f"table {body.name!r} has no columns, expected at least one")
    return columns


def check_columns(table: Table) -> None:
    """Check the key, version, tombstone, time and partition columns of a table.

    Raises:
        RequestError: A column is unsuitable; the message has the column, its type and the allowed
            types.
    """
    if len(table.schema) > COLUMNS_MAX:
        raise RequestError(
            f"table {table.name!r} has {len(table.schema)} columns, expected at most {COLUMNS_MAX}"
        )
    types = {column.name: column.type for column in table.schema}
    _check_distinct("key", table.key)
    _check_distinct("partition_by", table.partition_by)
    partition_by = () if table.lake and table.lake.partition_types else table.partition_by
    for name in (*table.key, *partition_by):
        key_type_of(_type_of_column(types, name, "key" if name in table.key else "partition_by"))
    _check_version(table, types)
    if table.tombstone_column is not None:
        kind = _type_of_column(types, table.tombstone_column, "tombstone_column")
        if kind != "bool" or table.tombstone_column in table.key:
            raise RequestError(
                f"tombstone_column {table.tombstone_column!r} is {kind}, "
                "expected a bool column outside the key"
            )
    if table.time_column is not None:
        kind = _type_of_column(types, table.time_column, "time_column")
        if key_type_of(kind) not in TIME_TYPES:
            raise RequestError(
                f"time_column {table.time_column!r} is {kind}, "
                "expected a timestamp, a date or a number of seconds"
            )
    check_settings(table)
    if table.key and (outside := set(table.partition_by) - set(table.key)):
        raise RequestError(
            f"partition column {min(outside)!r} is not in the key {list(table.key)}, "
            "expected it there: otherwise two rows of one key could lie in two partitions"
        )


def check_settings(table: Table) -> None:
    """Reject settings that do not apply to a table.

    Raises:
        RequestError: A setting needs a column or key ranges that the table lacks, or the planner
            or a reader does not support the table.
    """
    if table.settings.ttl_s is not None and table.time_column is None:
        raise RequestError(
            f"setting ttl_s {table.settings.ttl_s:g} needs a time_column, by which rows expire; "
            f"table {table.name!r} has none"
        )
    if table.lake is not None:
        check_lake_settings(table.name, table.settings)
    check_lake_maintenance(table)
    check_publish(table)
    check_readers(table)
    _check_blooms(table)
    _check_analysis_columns(table)
    check_table_planner(table)
    sizes = [name for name in ("split_bytes", "merge_bytes") if getattr(table.settings, name)]
    if sizes and not has_ranges(table):
        why = "is partitioned by " + ", ".join(table.partition_by) if table.key else "has no key"
        raise RequestError(
            f"setting {sizes[0]} is for tablets that are ranges of keys; table {table.name!r} {why}"
        )


def _check_analysis_columns(table: Table) -> None:
    names = [column.name for column in table.schema]
    strange = [name for name in table.settings.analysis_columns if name not in names]
    if strange:
        raise RequestError(
            f"setting analysis_columns names {strange[0]!r}, which table {table.name!r} does not "
            f"have; known: {', '.join(names)}"
        )


def _check_blooms(table: Table) -> None:
    types = {field.name: field.type for field in arrow_schema(table.schema)}
    for name in table.settings.bloom_columns:
        type_ = types.get(name)
        if type_ is None:
            raise RequestError(
                f"setting bloom_columns names {name!r}, which table {table.name!r} does not have; "
                f"known: {', '.join(types)}"
            )
        if pa.types.is_nested(type_) or pa.types.is_boolean(type_) or pa.types.is_null(type_):
            raise RequestError(
                f"setting bloom_columns names {name!r}, which is {type_}: Bloom filters are of "
                "numbers, texts, bytes, dates and times"
            )


def _check_version(table: Table, types: Mapping[str, str]) -> None:
    version = table.version_column
    if table.key and version is None:
        raise RequestError(
            f"table {table.name!r} has a key, but no version_column: "
            "it decides which row of a key is the newest"
        )
    if not table.key and (version or table.tombstone_column):
        name = "version_column" if version else "tombstone_column"
        raise RequestError(
            f"{name} {version or table.tombstone_column!r} needs a key, but none was given"
        )
    if version is not None:
        key_type_of(_type_of_column(types, version, "version_column"))
        if version in table.key:
            raise RequestError(f"version_column {version!r} is in the key, expected it outside")


def parse_splits(table: Table, texts: Sequence[str]) -> tuple[bytes, ...]:
    """Return the encoded ends of all tablets except the last.

    Raises:
        RequestError: A split cannot be parsed, or the splits are not in ascending order.
    """
    if not texts:
        return ()
    if not table.key or table.partition_by:
        why = "is partitioned by " + ", ".join(table.partition_by) if table.key else "has no key"
        raise RequestError(f"splits are given, but table {table.name!r} {why}")
    if len(texts) > api.SPLITS_MAX:
        raise RequestError(f"{len(texts)} splits are given, expected at most {api.SPLITS_MAX}")
    names = {column.name: column.type for column in table.schema}
    types = [key_type_of(names[name]) for name in table.key]
    ends = [parse_key(text, types) for text in texts]
    for before, after, text in zip(ends, ends[1:], texts[1:], strict=False):
        if before >= after:
            raise RequestError(f"split {text!r} does not come after the one before it; sort them")
    if ends[-1] == PLUS_INFINITY or not ends[0]:
        raise RequestError("a split cannot be empty or +inf: the last tablet ends there anyway")
    for end, text in zip(ends, texts, strict=True):
        require_short(end, f"split {text[:40]!r}")
    return tuple(ends)


def _check_distinct(what: str, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise RequestError(f"{what} {list(names)} names a column twice, expected each once")


def _type_of_column(types: Mapping[str, str], name: str, what: str) -> str:
    if name not in types:
        raise RequestError(f"{what} {name!r} is not a column; the columns are {', '.join(types)}")
    return types[name]


# -------------------------------------------------------------------------------------------- Views


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTotals:
    """Sums over the tablets of a table; `rows` None: too many tablets to count them."""

    tablets: int = 0
    files: int = 0
    size_bytes: int = 0
    rows: int | None = None
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Tablet that is not counted → what of it cannot be decoded."""

    def without(self, unreadable: Mapping[str, str]) -> Self:
        """Return the totals with further uncounted tablets."""
        return replace(self, unreadable={**self.unreadable, **unreadable})

    def plus(self, records: Sequence[Record]) -> Self:
        """Return the totals with further tablets."""
        return replace(
            self,
            tablets=self.tablets + len(records),
            files=self.files + sum(record.files for record in records),
            size_bytes=self.size_bytes + sum(record.size_bytes for record in records),
        )

    def plus_rows(self, rows: int) -> Self:
        """Return the totals with further rows."""
        return replace(self, rows=None if self.rows is None else self.rows + rows)

    def without_rows(self) -> Self:
        """Return the totals without a count of rows."""
        return replace(self, rows=None)


def table_view(
    table: Table,
    totals: TableTotals | None = None,
    without_effect: Mapping[str, str] | None = None,
    *,
    whole_schema: bool = True,
    mirror: Mirror | None = None,
    published: api.PublishedLog | None = None,
) -> api.Table:
    """Return the wire model of a table.

    Args:
        table: The table, as stored.
        totals: Totals of its tablets, if requested.
        without_effect: Setting without effect → reason.
        whole_schema: Whether to include all columns, or only those with a role in the table.
        mirror: State of the mirror of a lake table, if it was read.
        published: The log that the table publishes, if it was read.
    """
    named = {*table.key, *table.partition_by, table.version_column}
    named |= {table.tombstone_column, table.time_column}
    return api.Table(
        id=table.id,
        name=table.name,
        location=table.location,
        state=table.state.value,
        schema=tuple(
            api.Column(name=column.name, type=column.type, nullable=column.nullable)
            for column in table.schema
            if whole_schema or column.name in named
        ),
        columns=len(table.schema),
        schema_id=table.schema_id,
        key=table.key,
        version_column=table.version_column,
        tombstone_column=table.tombstone_column,
        time_column=table.time_column,
        partition_by=table.partition_by,
        settings=as_plain(table.settings),
        settings_version=table.settings_version,
        created_at_s=table.created_at_s,
        filling=None if table.filling is None else api.Filling(**asdict(table.filling)),
        incomplete=table.incomplete,
        lake=None if table.lake is None else lake_view(table.lake, mirror or Mirror()),
        published=published,
        without_effect=dict(without_effect or {}),
        **({} if totals is None else asdict(totals)),
    )


# ------------------------------------------------------------------------------------------- Routes


TRIES_MAX = 5
ROWS_COUNTED_TABLETS_MAX = 2000
"""Limit of tablets for a count of rows, which the records of tablets do not contain."""


class TableRoutes:
    """Routes under `/v1/tables` for tables as a whole."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @route("GET /v1/tables", READ_LISTED.noted("lists the tables that may be read"))
    async def list_tables(self) -> dict[str, list[api.Table]]:
        """Return the tables that the caller may read, sorted by name."""
        listed = await self._services.store.listed_tables()
        visible = [table for table in listed.tables if sees_table(table.name)]
        mirrors = await self._mirrors(visible)
        view = partial(table_view, whole_schema=False)
        return {"tables": [view(table, mirror=mirrors.get(table.id)) for table in visible]}

    async def _mirrors(self, tables: Sequence[Table]) -> dict[str, Mirror]:
        """Return the states of the mirrors of those that are lake tables, by table id."""
        lake_ids = [table.id for table in tables if table.lake is not None]
        return dict(zip(lake_ids, await self._services.store.mirrors(lake_ids), strict=True))

    @route("POST /v1/tables", ADMIN_ALL, status_code=201)
    async def create(self, body: api.NewTable) -> api.Table:
        """Create a table.

        The service claims the location of the table. All files of the table lie there.
        """
        current_call().table = body.name
        created, planner = await create_table(self._services, body)
        unread = self._services.unread_settings(created.settings)
        return replace(table_view(created, without_effect=unread), notes=(planner,))

    @route("GET /v1/tables/{table}", READ)
    async def describe(
        self,
        table: str,
        *,
        totals: Annotated[
            bool, Query(description="Count tablets, files and bytes, which reads every tablet.")
        ] = True,
    ) -> api.Table:
        """Return a table with its totals."""
        stored_table = await self._services.table(table, filling=True)
        return table_view(
            stored_table,
            await self._totals(stored_table) if totals else None,
            self._services.unread_settings(stored_table.settings),
            mirror=(await self._mirrors([stored_table])).get(stored_table.id),
            published=await _published(self._services, stored_table),
        )

    @route("PATCH /v1/tables/{table}", ADMIN)
    async def change(self, table: str, body: api.TableChange) -> api.Table:
        """Change settings and schema of a table.

        If one of the changes is not allowed, nothing is changed.
        """
        services = self._services
        stored_table = await services.table(table)
        if stored_table.lake is not None and (body.add_columns or body.widen_columns):
            raise RefusedError(
                f"table {table!r} is a lake table: its columns are changed by its own engine, and "
                "the service follows",
                "lake",
            )

        def wanted(present: TableSettings) -> TableSettings:
            return settings_with_fixed(present, body.settings, services=services.settings.services)

        added = [
            Column(add_column.name, add_column.type, add_column.nullable)
            for add_column in body.add_columns
        ]
        wider = [
            Column(widen_column.name, widen_column.type) for widen_column in body.widen_columns
        ]
        for _ in range(TRIES_MAX):
            version = body.settings_version or stored_table.settings_version
            settings = wanted(stored_table.settings)
            newer = changed_schema(stored_table, added, wider)
            check_settings(replace(newer, settings=settings))
            change = ChangeTable(
                table=stored_table.id,
                settings_version=version,
                settings=settings,
                schema=newer.schema,
            )
            outcome = await services.store.apply(change)
            again = await services.table(table)
            moved = again.settings_version != stored_table.settings_version
            if isinstance(outcome, Refused) and moved and body.settings_version is None:
                stored_table = again
                continue
            require_applied(outcome)
            if stored_table.settings.directory_guard and not settings.directory_guard:
                await _clear(services, stored_table, remove_guards)
            return table_view(again, without_effect=services.unread_settings(again.settings))
        raise RefusedError(f"table {table!r}: its settings keep changing; try again")

    @route("DELETE /v1/tables/{table}", ADMIN, status_code=202)
    async def drop(
        self,
        table: str,
        *,
        delete_files: Annotated[
            bool, Query(description="Delete the files of the table, too.")
        ] = False,
    ) -> api.Dropped:
        """Drop a table. Files of users stay unless `delete_files` is set.

        Its name is free at once, or when the collector has deleted what has to go: the answer
        says when. A table that waits for that is not dropped a second time; a drop that was broken
        off is finished.
        """
        return await drop_named(self._services, table, delete_files=delete_files)

    @route("POST /v1/tables/{table}/pause", COMPACT)
    async def pause(self, table: str) -> api.Table:
        """Pause a table: no new job starts. Running jobs go on."""
        return await self._with_state(table, TableState.PAUSED)

    @route("POST /v1/tables/{table}/resume", COMPACT)
    async def resume(self, table: str) -> api.Table:
        """Resume a paused table."""
        return await self._with_state(table, TableState.LIVE)

    @route("GET /v1/tables/{table}/tablets", READ)
    async def tablets(
        self,
        table: str,
        after: Annotated[
            str | None, Query(description="Return only tablets after this one.")
        ] = None,
        count: Annotated[int, Query(description="Number of tablets at most.")] = PAGE_TABLETS,
        tablet: Annotated[str | None, Query(description="Return only this tablet.")] = None,
    ) -> api.TabletPage:
        """Return a page of tablets, sorted by their ends.

        Pass `next` as `after` to get the following page.
        """
        services = self._services
        stored_table = await services.table(table)
        count = bounded_count(count, PAGE_TABLETS, "count")
        ids = await services.page_of_ids(stored_table, after, count, tablet)
        types = key_types(stored_table)
        read = await services.store.readable(ids)
        return api.TabletPage(
            tablets=tuple(
                tablet_view(tablet, types) for tablet in read if isinstance(tablet, Tablet)
            ),
            unreadable={
                tablet.id.text: tablet.cause
                for tablet in read
                if isinstance(tablet, UnreadableTablet)
            },
            next=ids[-1].text if len(ids) == count and tablet is None else None,
        )

    async def _with_state(self, table: str, state: TableState) -> api.Table:
        stored_table = await self._services.table(table)
        if stored_table.state is not state:
            change = ChangeTable(
                table=stored_table.id, settings_version=stored_table.settings_version, state=state
            )
            require_applied(await self._services.store.apply(change))
        return table_view(await self._services.table(table))

    async def _totals(self, table: Table) -> TableTotals:
        """Sum up a table from the records of its tablets and, for few tablets, from its files."""
        store, totals, after = self._services.store, TableTotals(rows=0), None
        while ids := await store.tablet_ids(table.id, after):
            after = ids[-1].end
            try:
                totals = await self._with_page(totals, ids)
            except BrokenValueError:
                readable, unreadable = await self._sorted_out(ids)
                totals = await self._with_page(totals.without(unreadable), readable)
        return totals

    async def _with_page(self, totals: TableTotals, ids: Sequence[TabletId]) -> TableTotals:
        """Return totals with a further page of tablets.

        Raises:
            BrokenValueError: A tablet cannot be decoded.
        """
        store = self._services.store
        totals = totals.plus([record for record in await store.records(ids) if record is not None])
        if totals.tablets > ROWS_COUNTED_TABLETS_MAX:
            return totals.without_rows()
        files = [file for tablet_files in await store.files(ids) for file in tablet_files.values()]
        return totals.plus_rows(sum(file.rows for file in files))

    async def _sorted_out(self, ids: Sequence[TabletId]) -> tuple[list[TabletId], dict[str, str]]:
        """Return the readable tablets, and the cause for each unreadable tablet."""
        read = await self._services.store.readable(ids)
        unreadable = {
            tablet.id.text: tablet.cause for tablet in read if isinstance(tablet, UnreadableTablet)
        }
        return [id_ for id_ in ids if id_.text not in unreadable], unreadable
