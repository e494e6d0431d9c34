"""Import: an existing directory becomes a table, and its files stay where they are.

    place checked → listed → footers read → surveyed → (dry run: told)
    → table created paused → files added in batches → counted → live, if readers are ready

Killed anywhere and repeated, it goes on: what is in the table is left out, and the call
of a batch is made from its paths. The table is paused until the last batch is in.
"""

import asyncio
from collections.abc import Sequence

from common.errors import RefusedError, RequestError
from common.metadata.changes import ChangeTable
from common.model.table import Table, TableState
from common.parquet.location import open_location
from neve import api
from neve import api_import as wire
from neve.gateway.create import create_table, new_table
from neve.gateway.import_batches import Tell, add_all, read_known
from neve.gateway.import_views import import_view
from neve.gateway.problems import ChangeRefusedError, applied
from neve.gateway.services import LONG_STEP_MAX_S, Services, checked_label
from neve.importing.directory import Directory
from neve.importing.footers import Footer, look
from neve.importing.listing import Found, check_place, list_directory, list_former
from neve.importing.survey import survey
from neve.importing.values import Wanted

FOOTERS_AT_ONCE = 64
TOLD_EVERY = 256


async def import_directory(
    services: Services, body: wire.NewImport, tell: Tell
) -> wire.ImportReport:
    """Make a table of a directory.

    Args:
        services: Ports.
        body: What the user wants.
        tell: Hears how far it is: a sentence, and numbers by name.

    Raises:
        RequestError: Something was written wrongly, or nothing in the directory fits.
        RefusedError: The directory belongs to another, or some files do not fit.
    """
    directory = await _opened(services, body)
    tell(f"listing {directory.place.uri}")
    long, uri = services.rows.within(LONG_STEP_MAX_S), directory.place.uri
    directory.listing = await long.run(uri, list_directory, directory.place)
    if directory.table is None:
        former = await long.run(uri, list_former, directory.place)
        directory.listing.misfits |= former
    await read_known(services, directory)
    new = [each for each in directory.listing.files if each.path not in directory.known]
    directory.already = len(directory.listing.files) - len(new)
    looked = await _looked(services, directory, new, tell)
    wanted = _wanted(body, directory.table)
    directory.survey = await long.run(uri, survey, looked, wanted)
    directory.survey.misfits |= directory.listing.misfits
    described = await _described(services, directory)
    if body.dry_run:
        return import_view(directory, described)
    _refuse_misfits(directory)
    table = directory.table or await create_table(services, _new_table(directory))
    await add_all(services, directory, table, tell)
    return import_view(directory, await _finished(services, directory, table))


async def _opened(services: Services, body: wire.NewImport) -> Directory:
    checked_label(body.name, "table name")
    written = body.location
    site = await services.footers.run(written, services.locations.admitted, written)
    place = open_location(site.uri)
    store = await services.store.store_id()
    await services.footers.run(place.uri, check_place, place, store)
    table = await services.store.table_named(body.name)
    if table is not None:
        _require_same(body, place.uri, table)
    return Directory(body=body, place=place, table=table)


def _require_same(body: wire.NewImport, location: str, table: Table) -> None:
    """Refuse to go on with a table that is not the one that this import would make.

    Raises:
        ChangeRefusedError: It is another.
    """
    asked: dict[str, object] = {
        "location": location,
        "key": tuple(body.key),
        "version_column": body.version_column,
        "tombstone_column": body.tombstone_column,
        "time_column": body.time_column,
    }
    if body.partition_by is not None:
        asked["partition_by"] = tuple(body.partition_by)
    for name, wanted in asked.items():
        found = getattr(table, name)
        if found != wanted:
            raise ChangeRefusedError(
                f"table {table.name!r} exists already, with {name} {found!r} and not {wanted!r}; "
                "to go on with an import, repeat it as it was; else choose another name",
                "exists",
            )
    if table.state is TableState.GOING:
        raise ChangeRefusedError(f"table {table.name!r} is being dropped", "exists")


def _wanted(body: wire.NewImport, table: Table | None) -> Wanted:
    return Wanted(
        key=tuple(body.key),
        version_column=body.version_column,
        partition_by=table.partition_by if table is not None else body.partition_by,
        partition_types=body.partition_types if table is None else {},
        columns=None if table is None else table.schema,
    )


async def _looked(
    services: Services, directory: Directory, files: Sequence[Found], tell: Tell
) -> list[tuple[Found, Footer | str]]:
    """Read the footers of files, many at a time."""
    body, looked = directory.body, list[tuple[Found, Footer | str]]()
    folders = {part for each in files for part in each.path.split("/")[:-1] if "=" in part}
    partition = sorted({part.partition("=")[0] for part in folders})
    known = () if directory.table is None else directory.table.schema
    required = [column.name for column in known if not column.nullable]
    names = [*dict.fromkeys([*filter(None, [body.version_column]), *required, *partition])]
    whole_bytes, done_bytes, rows = sum(each.size_bytes for each in files), 0, 0
    place = directory.place
    for first in range(0, len(files), FOOTERS_AT_ONCE):
        some = files[first : first + FOOTERS_AT_ONCE]
        work = (services.footers.run(place.uri, look, place, each, names) for each in some)
        footers = await asyncio.gather(*work)
        looked += zip(some, footers, strict=True)
        done_bytes += sum(each.size_bytes for each in some)
        rows += sum(each.rows for each in footers if isinstance(each, Footer))
        if first % TOLD_EVERY == 0 or len(looked) == len(files):
            tell(
                "reading footers",
                files_done=len(looked),
                files=len(files),
                bytes_done=done_bytes,
                size_bytes=whole_bytes,
                rows=rows,
            )
    return looked


def _new_table(directory: Directory) -> api.NewTable:
    body, found = directory.body, directory.survey
    return api.NewTable(
        name=body.name,
        location=directory.place.uri,
        schema=tuple(
            api.Column(name=each.name, type=each.type, nullable=each.nullable)
            for each in found.columns
        ),
        key=tuple(body.key),
        version_column=body.version_column,
        tombstone_column=body.tombstone_column,
        time_column=body.time_column,
        partition_by=found.partition_by,
        settings=dict(body.settings),
        paused=True,
    )


async def _described(services: Services, directory: Directory) -> Table:
    """Return the table that is there, or that would be; everything is checked as for a new one."""
    if directory.table is not None:
        return directory.table
    if not directory.survey.files:
        why = next(iter(sorted(directory.survey.misfits.items())), None)
        hint = f"; for example {why[0]}: {why[1]}" if why else ""
        raise RequestError(
            f"location {directory.place.uri} holds no file that can be imported{hint}"
        )
    return (await new_table(services, _new_table(directory))).table


def _refuse_misfits(directory: Directory) -> None:
    misfits = directory.survey.misfits
    if misfits and not directory.body.leave_misfits:
        path, why = min(misfits.items())
        raise RefusedError(
            f"{len(misfits)} of {len(directory.listing.files) + len(directory.listing.misfits)} "
            f"files do not fit, {path} for example: {why}. Nothing was written. A dry run lists "
            "them; move them away, or leave them out on purpose (--leave-misfits)"
        )


async def _finished(services: Services, directory: Directory, table: Table) -> Table:
    """Make a table live whose files are all in, if its readers are ready."""
    found = await services.table(table.name)
    if directory.body.readers_use_manifest and found.state is TableState.PAUSED:
        change = ChangeTable(
            table=found.id, settings_version=found.settings_version, state=TableState.LIVE
        )
        applied(await services.store.apply(change))
        return await services.table(table.name)
    return found
