"""Create a table out of what a user wrote: check everything, claim the location, write.

Nothing is written before the last check has passed, but the mark of the location,
which says whose it is and does no harm if the table is then refused. What an archive or
a location says of a table passes the same checks (`TableDoor`).
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from common.errors import RequestError, UnavailableError
from common.model.fields import known_fields
from common.model.key_values import KeyType, key_type_of
from common.model.keys import PLUS_INFINITY, parse_key, require_short
from common.model.table import Column, Table, TableSettings, TableState
from common.parquet.resolved_locations import ResolvedLocation
from common.rows.schema import arrow_schema, columns_of
from common.storage_threads import StorageThreads
from coordinator.core.split_merge.operation_steps import has_ranges
from neve import api
from neve.gateway import storage
from neve.gateway.dropping import refuse_going
from neve.gateway.problems import ChangeRefusedError, applied
from neve.gateway.services import Services, checked_label
from neve.gateway.table_settings import changed_settings
from neve.recovery.founding import FreeSite, claim_site, find_free_site, sign_site

TIME_TYPES = frozenset({KeyType.TIMESTAMP, KeyType.DATE, KeyType.INT, KeyType.FLOAT})
SPLITS_MAX = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """A table that can be created, and where."""

    table: Table
    splits: tuple[bytes, ...]
    free: FreeSite


async def create_table(services: Services, body: api.NewTable) -> Table:
    """Create a table and return it.

    Raises:
        RequestError: Something was written wrongly; the message names it.
        RefusedError: The name is taken, or the location belongs to another.
    """
    new = await new_table(services, body)
    await claim_site(services.footers, new.free)
    applied(await services.store.apply(new.free.creation(new.table, new.splits)))
    with suppress(UnavailableError):  # The coordinator writes it, too, but later.
        await sign_site(services.footers, new.free, new.table)
    return await services.table(new.table.name)


async def new_table(services: Services, body: api.NewTable) -> Creation:
    """Return the table that would be created; nothing is written.

    Raises:
        RequestError: Something was written wrongly; the message names it.
        RefusedError: The name is taken, or the location belongs to another.
    """
    checked_label(body.name, "table name")
    site = await services.footers.run(body.location, services.locations.admitted, body.location)
    location = site.uri
    columns = await _columns(services, body, location)
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
        settings=changed_settings(
            TableSettings(), body.settings, services=services.settings.services
        ),
        state=TableState.PAUSED if body.paused else TableState.LIVE,
        created_at_s=await services.store.now_s(),
    )
    check_columns(table)
    splits = parse_splits(table, body.splits)
    if table.name in await services.store.names():
        await refuse_going(services, table.name)
        raise ChangeRefusedError(
            f"table {table.name!r} exists already; choose another name or drop it", "exists"
        )
    free = await find_free_site(services.store, services.footers, site)
    return Creation(table=table, splits=splits, free=free)


class TableDoor:
    """Lets in what may be a table here, whoever describes it (`neve.recovery.scope.Door`)."""

    def __init__(
        self, locations: storage.Locations, threads: StorageThreads, services: Collection[str]
    ) -> None:
        """Ask what the operator has set.

        Args:
            locations: Where tables may be.
            threads: Where links are looked up.
            services: Names of the services that are configured.
        """
        self._locations = locations
        self._threads = threads
        self._services = services

    @classmethod
    def of(cls, services: Services) -> "TableDoor":
        """Return the door of a gateway."""
        return cls(services.locations, services.footers, services.settings.services)

    async def site(self, written: str) -> ResolvedLocation:
        """Return a location where a table may be.

        Raises:
            RequestError: It is no location.
            RefusedError: No table may be there.
        """
        return await self._threads.run(written, self._locations.admitted, written)

    def checked(self, table: Table) -> Table:
        """Return a table as it would have been created, its settings as they would be set.

        Raises:
            RequestError: Its name, columns or settings are none that a table can have.
        """
        checked_label(table.name, "table name")
        schema = columns_of(arrow_schema(table.schema))
        if not schema:
            raise RequestError(f"table {table.name!r} has no columns, wanted at least one")
        columns = (
            replace(was, type=is_.type) for was, is_ in zip(table.schema, schema, strict=True)
        )
        names = [each.name for each in known_fields(TableSettings)]
        settings = {name: getattr(table.settings, name) for name in names}
        table = replace(
            table,
            schema=tuple(columns),
            settings=changed_settings(TableSettings(), settings, services=self._services),
        )
        check_columns(table)
        return table


async def _columns(services: Services, body: api.NewTable, location: str) -> tuple[Column, ...]:
    if (body.schema is None) == (body.example is None):
        what = "neither" if body.schema is None else "both"
        raise RequestError(
            f"table {body.name!r}: give either a schema or an example file, not {what}"
        )
    if body.schema is not None:
        written = [Column(each.name, each.type, each.nullable) for each in body.schema]
        columns = columns_of(arrow_schema(written))
    else:
        read, example = storage.read_columns, body.example or ""
        columns = await services.footers.run(location, read, location, example)
    if not columns:
        raise RequestError(f"table {body.name!r} has no columns, wanted at least one")
    return columns


def check_columns(table: Table) -> None:
    """Refuse key, version, tombstone, time and partition columns that cannot be such.

    Raises:
        RequestError: Names the column, its type and what is allowed.
    """
    types = {column.name: column.type for column in table.schema}
    _check_distinct("key", table.key)
    _check_distinct("partition_by", table.partition_by)
    for name in (*table.key, *table.partition_by):
        key_type_of(_type(types, name, "key" if name in table.key else "partition_by"))
    _check_version(table, types)
    if table.tombstone_column is not None:
        found = _type(types, table.tombstone_column, "tombstone_column")
        if found != "bool" or table.tombstone_column in table.key:
            raise RequestError(
                f"tombstone_column {table.tombstone_column!r} is {found}, "
                "wanted a bool column outside the key"
            )
    if table.time_column is not None:
        found = _type(types, table.time_column, "time_column")
        if key_type_of(found) not in TIME_TYPES:
            raise RequestError(
                f"time_column {table.time_column!r} is {found}, "
                "wanted a timestamp, a date or a number of seconds"
            )
    check_settings(table)
    if table.key and (outside := set(table.partition_by) - set(table.key)):
        raise RequestError(
            f"partition column {min(outside)!r} is not in the key {list(table.key)}, "
            "wanted it there: else two rows of one key could lie in two partitions"
        )


def check_settings(table: Table) -> None:
    """Refuse settings that ask for what a table does not have.

    Raises:
        RequestError: Rows shall expire without a time, tablets that are no ranges be split.
    """
    if table.settings.ttl_s is not None and table.time_column is None:
        raise RequestError(
            f"setting ttl_s {table.settings.ttl_s:g} needs a time_column, by which rows expire; "
            f"table {table.name!r} has none"
        )
    _check_blooms(table)
    sizes = [name for name in ("split_bytes", "merge_bytes") if getattr(table.settings, name)]
    if sizes and not has_ranges(table):
        why = "is partitioned by " + ", ".join(table.partition_by) if table.key else "has no key"
        raise RequestError(
            f"setting {sizes[0]} is for tablets that are ranges of keys; table {table.name!r} {why}"
        )


def _check_blooms(table: Table) -> None:
    types = {field.name: field.type for field in arrow_schema(table.schema)}
    for name in table.settings.bloom_columns:
        found = types.get(name)
        if found is None:
            raise RequestError(
                f"setting bloom_columns names {name!r}, which table {table.name!r} does not have; "
                f"known: {', '.join(types)}"
            )
        if pa.types.is_nested(found) or pa.types.is_boolean(found) or pa.types.is_null(found):
            raise RequestError(
                f"setting bloom_columns names {name!r}, which is {found}: Bloom filters are of "
                "numbers, texts, bytes, dates and times"
            )


def _check_version(table: Table, types: Mapping[str, str]) -> None:
    version = table.version_column
    if table.key and version is None:
        raise RequestError(
            f"table {table.name!r} has a key, but no version_column: "
            "it tells which row of a key is the newest"
        )
    if not table.key and (version or table.tombstone_column):
        name = "version_column" if version else "tombstone_column"
        raise RequestError(
            f"{name} {version or table.tombstone_column!r} needs a key, but none was given"
        )
    if version is not None:
        key_type_of(_type(types, version, "version_column"))
        if version in table.key:
            raise RequestError(f"version_column {version!r} is in the key, wanted it outside")


def parse_splits(table: Table, written: Sequence[str]) -> tuple[bytes, ...]:
    """Return the encoded ends of all tablets but the last.

    Raises:
        RequestError: One cannot be read, or they do not ascend.
    """
    if not written:
        return ()
    if not table.key or table.partition_by:
        why = "is partitioned by " + ", ".join(table.partition_by) if table.key else "has no key"
        raise RequestError(f"splits are given, but table {table.name!r} {why}")
    if len(written) > SPLITS_MAX:
        raise RequestError(f"{len(written)} splits are given, at most {SPLITS_MAX} are taken")
    names = {column.name: column.type for column in table.schema}
    types = [key_type_of(names[name]) for name in table.key]
    ends = [parse_key(text, types) for text in written]
    for before, after, text in zip(ends, ends[1:], written[1:], strict=False):
        if before >= after:
            raise RequestError(f"split {text!r} does not come after the one before it; sort them")
    if ends[-1] == PLUS_INFINITY or not ends[0]:
        raise RequestError("a split cannot be empty or +inf: the last tablet ends there anyway")
    for end, text in zip(ends, written, strict=True):
        require_short(end, f"split {text[:40]!r}")
    return tuple(ends)


def _check_distinct(what: str, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise RequestError(f"{what} {list(names)} names a column twice, wanted each once")


def _type(types: Mapping[str, str], name: str, what: str) -> str:
    if name not in types:
        raise RequestError(f"{what} {name!r} is no column; there are {', '.join(types)}")
    return types[name]
