"""`neve restore`: tables out of an archive, as new tables of this store.

    the whole archive is read, to its digest → every table that is asked for passes the
    checks of `create`, its location too → then one after the other is made

Nothing is written before all of them have passed. Each table gets a new id; its location
is the one that it had, or the one given, and its files must be there already. A location
that another store owns is refused unless it is adopted.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO

from common.errors import CompactionError, RefusedError, RequestError
from common.ids import IdSource
from common.metadata.ports import TabletStore
from common.model.location_identity import overlapping_pair
from common.model.table import Table, TableState
from common.redaction import redacted
from common.storage_threads import StorageThreads
from neve.recovery.archive import TabletDump, read_archive
from neve.recovery.founding import (
    Founded,
    FreeSite,
    Neighbours,
    absent,
    find_free_site,
    former_ids_of,
    found_table,
    neighbours_of,
)
from neve.recovery.scope import Door, Scope
from neve.recovery.stored import list_location

Dumped = tuple[Table, tuple[TabletDump, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions:
    """Which tables become what."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Name in the archive → new name."""
    locations: Mapping[str, str] = field(default_factory=dict)
    """Name in the archive → where its files are now."""
    only: Sequence[str] = ()
    """Names in the archive; none: all of them."""
    adopt: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Restorer:
    """What a restore needs of the outside."""

    store: TabletStore
    threads: StorageThreads
    ids: IdSource
    door: Door
    tell: Callable[[str], None]

    def scope(self, table: Table) -> Scope:
        """Return a table as the other tools see it."""
        return Scope(
            store=self.store, table=table, threads=self.threads, grace_s=0.0, tell=self.tell
        )


async def restore(
    restorer: Restorer, source: IO[bytes], options: RestoreOptions
) -> Sequence[Founded]:
    """Restore tables; those that are made before one fails stay.

    Args:
        restorer: Ports.
        source: The archive; can be rewound.
        options: Which tables.

    Raises:
        RequestError: The archive is not whole, or does not hold what is asked for, or what
            it says of a table is nothing that `create` would take.
        RefusedError: A name or location is taken, or another store's, or no table may be
            there.
    """
    restorer.tell("reading the archive")
    tables = await asyncio.to_thread(_read_tables, source)
    _check_options(options, [each.name for each in tables])
    wanted = [each for each in tables if _is_wanted(each, options)]
    restorer.tell(f"checking {len(wanted)} tables")
    near = await neighbours_of(restorer.store, restorer.threads)
    checked = {each.name: _checked(restorer, each, options) for each in wanted}
    _check_names(near, list(checked.values()))
    places = {name: await _place(restorer, near, name, checked[name], options) for name in checked}
    _check_apart(list(places.values()))
    founded: list[Founded] = []
    dumps = _wanted(source, options)
    while (dumped := await asyncio.to_thread(next, dumps, None)) is not None:
        place = places[dumped[0].name]
        founded.append(await _restore_one(restorer, place, dumped, dry_run=options.dry_run))
    return founded


def _read_tables(source: IO[bytes]) -> list[Table]:
    """Go through a whole archive and return its tables."""
    source.seek(0)
    tables = [each for each in read_archive(source) if isinstance(each, Table)]
    names = Counter(each.name for each in tables)
    if twice := [name for name, count in names.items() if count > 1]:
        raise RequestError(f"the archive holds table {twice[0]!r} twice")
    return tables


@dataclass(frozen=True, slots=True)
class _Place:
    """A table as it is to be made, and where."""

    table: Table
    free: FreeSite


def _checked(restorer: Restorer, dumped: Table, options: RestoreOptions) -> Table:
    """Return a table as it is to be made, its location aside, if `create` would make it.

    Raises:
        RequestError: It would not.
    """
    table = replace(
        dumped,
        id=restorer.ids.next("t"),
        former_ids=former_ids_of(dumped),
        name=options.names.get(dumped.name, dumped.name),
        location=options.locations.get(dumped.name, dumped.location),
    )
    try:
        return restorer.door.checked(table)
    except RequestError as error:
        raise _about(dumped.name, error) from error


async def _place(
    restorer: Restorer, near: Neighbours, name: str, table: Table, options: RestoreOptions
) -> _Place:
    """Return a table and where it is to be made, if `create` would make it there.

    Raises:
        RequestError: Its location is none.
        RefusedError: No table may be there, or somebody else is.
    """
    try:
        site = await restorer.door.site(table.location)
        free = await find_free_site(
            restorer.store, restorer.threads, site, neighbours=near, take_over=options.adopt
        )
    except (RequestError, RefusedError) as error:
        raise _about(name, error) from error
    return _Place(replace(table, location=site.uri), free)


def _about(name: str, error: CompactionError) -> CompactionError:
    """Return an error that says which table of the archive it is about."""
    return type(error)(f"table {redacted(name[:100])!r} of the archive: {error}")


def _check_names(near: Neighbours, tables: Sequence[Table]) -> None:
    """Refuse names that are taken, here or by another table of the archive.

    Raises:
        RefusedError: One is.
    """
    taken = {each.name for each in near.named}
    for table in tables:
        if table.name in taken:
            raise RefusedError(
                f"table {table.name!r} exists already: restore it under another name"
            )
        taken.add(table.name)


def _check_apart(places: Sequence[_Place]) -> None:
    """Refuse tables that would share files with each other.

    Raises:
        RefusedError: Two would.
    """
    pair = overlapping_pair({each.table.name: each.free.site.identity for each in places})
    if pair is not None:
        raise RefusedError(
            f"tables {pair[0]!r} and {pair[1]!r} of the archive would share files: give one of "
            "them another location"
        )


def _check_options(options: RestoreOptions, names: Sequence[str]) -> None:
    wanted = {*options.only, *options.names, *options.locations}
    if unknown := sorted(wanted - {*names}):
        raise RequestError(
            f"the archive has no table {unknown[0]!r}; it has {', '.join(names) or 'none'}"
        )


def _wanted(source: IO[bytes], options: RestoreOptions) -> Iterator[Dumped]:
    """Yield the tables that are asked for, one in memory at a time."""
    source.seek(0)
    table: Table | None = None
    tablets: list[TabletDump] = []
    for each in read_archive(source):
        if isinstance(each, TabletDump):
            tablets.append(each)
            continue
        if table is not None and _is_wanted(table, options):
            yield table, tuple(tablets)
        table, tablets = each, []
    if table is not None and _is_wanted(table, options):
        yield table, tuple(tablets)


def _is_wanted(table: Table, options: RestoreOptions) -> bool:
    return not options.only or table.name in options.only


async def _restore_one(
    restorer: Restorer, place: _Place, dumped: Dumped, *, dry_run: bool
) -> Founded:
    table, scope = place.table, restorer.scope(place.table)
    stored = await scope.run(list_location, scope.location)
    tablets = dumped[1]
    if dry_run:
        files = [file for each in tablets for file in each.files]
        missing = await absent(restorer.threads, scope.location, files, stored)
        return Founded(table=table, tablets=len(tablets), files=len(files), missing=missing)
    live = dumped[0].state is TableState.LIVE
    return await found_table(scope, place.free, tablets, stored=stored, live=live, complete=False)
