"""`neve restore`: tables out of an archive, as new tables of this store.

The archive is read twice: first to its digest, before anything is written. Each table
gets a new id; its location is the one that it had, or the one given, and its files must
be there already. A location that another store owns is refused unless it is adopted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO

from common.errors import RefusedError, RequestError
from common.ids import IdSource
from common.metadata.ports import TabletStore
from common.model.table import DNS_LABEL, Table, TableState
from neve.recovery.archive import TabletDump, read_archive
from neve.recovery.founding import Founded, check_free, found_table
from neve.recovery.scope import Scope, Threads
from neve.recovery.stored import list_location

Dumped = tuple[Table, tuple[TabletDump, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions:
    """Which tables become what."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Name in the archive → new name."""
    locations: Mapping[str, str] = field(default_factory=dict)
    """Name in the archive → where its files are now, as a normal location."""
    only: Sequence[str] = ()
    """Names in the archive; none: all of them."""
    adopt: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Restorer:
    """What a restore needs of the outside."""

    store: TabletStore
    threads: Threads
    ids: IdSource
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
        RequestError: The archive is not whole, or does not hold what is asked for.
        RefusedError: A name or location is taken, or another store's.
    """
    restorer.tell("reading the archive")
    names = await restorer.threads.run(_checked_names, source)
    _check_options(options, names)
    taken = await restorer.store.names()
    founded: list[Founded] = []
    wanted = _wanted(source, options)
    while (dumped := await restorer.threads.run(next, wanted, None)) is not None:
        table = _renamed(dumped[0], options, restorer.ids)
        if table.name in taken:
            raise RefusedError(
                f"table {table.name!r} exists already: restore it under another name"
            )
        founded.append(await _restore_one(restorer, table, dumped, options))
    return founded


def _checked_names(source: IO[bytes]) -> list[str]:
    """Go through a whole archive and return the names of its tables."""
    source.seek(0)
    return [each.name for each in read_archive(source) if isinstance(each, Table)]


def _check_options(options: RestoreOptions, names: Sequence[str]) -> None:
    wanted = {*options.only, *options.names, *options.locations}
    if unknown := sorted(wanted - {*names}):
        raise RequestError(
            f"the archive has no table {unknown[0]!r}; it has {', '.join(names) or 'none'}"
        )
    for name in options.names.values():
        if not DNS_LABEL.fullmatch(name):
            raise RequestError(f"table name {name!r} must be a DNS label")


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


def _renamed(table: Table, options: RestoreOptions, ids: IdSource) -> Table:
    return replace(
        table,
        id=ids.next("t"),
        name=options.names.get(table.name, table.name),
        location=options.locations.get(table.name, table.location),
    )


async def _restore_one(
    restorer: Restorer, table: Table, dumped: Dumped, options: RestoreOptions
) -> Founded:
    scope = restorer.scope(table)
    await check_free(scope, take_over=options.adopt)
    stored = await restorer.threads.run(list_location, scope.location)
    tablets = dumped[1]
    if options.dry_run:
        files = [file for each in tablets for file in each.files]
        gone = (file.path for file in files if file.path not in stored)
        missing = tuple(sorted(gone))
        return Founded(table=table, tablets=len(tablets), files=len(files), missing=missing)
    return await found_table(
        scope,
        tablets,
        stored=stored,
        take_over=options.adopt,
        live=dumped[0].state is TableState.LIVE,
    )
