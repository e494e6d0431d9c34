"""Import and export: register an existing directory as a table, without moving its files.

    check the location → list files → read footers → survey → (dry run: report)
    → create the table as filling → add files in batches → check that all files are in
    → write mark and description → pause the table, or make it live if readers are ready

An interrupted import can be repeated and continues: files in the table are skipped, and the call id
of a batch is derived from its paths. A repetition takes over the table, so that an older import
that still runs cannot add files. Nothing reads or changes the table before the last batch is in.
Once the table is paused or live, a repetition adds new files.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from math import ceil

from fastapi.responses import StreamingResponse

from common.errors import CompactionError, RefusedError, RequestError
from common.metadata.changes import ChangeTable, FinishFilling, ResumeFilling
from common.metadata.store import walk_tiles
from common.model.location_identity import APPEND_FOLDER, GUARD_NAME
from common.model.outcome import RefusalCode
from common.model.table import Filling, Table, TableState, filling_text
from common.parquet.location import open_location
from common.parquet.service_files import read_copied, write_copied
from common.primitives import digest
from common.rows.schema import READERS, arrow_schema, has_nanoseconds, unreadable_columns
from common.units import format_bytes, format_count
from neve import api
from neve.api import LINES
from neve.gateway.access.callers import ADMIN_ALL, READ, current_call, route
from neve.gateway.bodies import begun_stream, progress_lines
from neve.gateway.problems import ChangeRefusedError, require_applied
from neve.gateway.rows.add import add_files, inspect_incoming
from neve.gateway.rows.scan import manifest_json, manifest_names
from neve.gateway.services import LONG_STEP_MAX_S, Services, checked_label, flush_rows
from neve.gateway.table_settings import UnreadableError
from neve.gateway.tables import create_table, new_table
from neve.import_survey import (
    FooterFacts,
    FoundFile,
    ImportedDirectory,
    ImportOptions,
    check_import_location,
    list_directory,
    list_former,
    read_import_footer,
    survey,
)
from neve.recovery.table_creation import other_tables, sign_site

# ------------------------------------------------------------------------------------------- Report


LISTED_MAX = 10_000
TRUNCATED = "us-truncated"


def import_view(directory: ImportedDirectory, table: Table, planner: str = "") -> api.ImportReport:
    """Return the report of an import.

    Args:
        directory: The directory after its last step.
        table: The table as it is now, or as it would be.
        planner: Sentence on the planner of a new table; empty: the table existed before.
    """
    body, survey = directory.body, directory.survey
    exists = not body.dry_run or directory.table is not None
    parts = islice(sorted(survey.partitions.items()), LISTED_MAX)
    misfits = islice(sorted(survey.misfits.items()), LISTED_MAX)
    return api.ImportReport(
        table=table.name,
        location=table.location,
        state=table.state.value if exists else "",
        files=survey.total.files + directory.already,
        rows=survey.total.rows,
        size_bytes=survey.total.size_bytes,
        added=directory.added,
        already=directory.already,
        ignored=directory.listing.ignored,
        misfits=len(survey.misfits),
        schema=tuple(
            api.Column(name=column.name, type=column.type, nullable=column.nullable)
            for column in table.schema
        ),
        key=table.key,
        partition_by=table.partition_by,
        partitions=len(survey.partitions),
        per_partition=tuple(
            api.PartitionTotals(
                partition=text, files=part.files, rows=part.rows, size_bytes=part.size_bytes
            )
            for text, part in parts
        ),
        misfit_files=tuple(api.Misfit(path=path, why=why) for path, why in misfits),
        notes=(*filter(None, [planner]), *_import_notes(directory, table)),
        dry_run=body.dry_run,
    )


def _import_notes(directory: ImportedDirectory, table: Table) -> list[str]:
    body, survey = directory.body, directory.survey
    notes = [*_reader_notes(table), *_microseconds_notes(directory)]
    if not body.readers_use_manifest:
        notes.append(
            "the table stays paused: a compaction replaces files of this directory, so first let "
            "every reader use the manifest (docs/import.md), then "
            f"`neve resume {table.name}` or repeat with --readers-use-manifest"
        )
    if table.settings.manifest_interval_s is None:
        notes.append("no manifest is published: the setting manifest_interval_s is off")
    lose = "rows without a version lose against every other row of their key"
    if survey.unversioned_rows:
        notes.append(
            f"{body.version_column} is null in "
            f"{format_count(survey.unversioned_rows, 'row')}; {lose}"
        )
    if survey.unknown_nulls:
        notes.append(
            f"{format_count(survey.unknown_nulls, 'file does', 'files do')} not say whether "
            f"{body.version_column} is null; {lose}"
        )
    if survey.misfits:
        left = "left out" if body.dry_run else "left out, and unseen by readers of the manifest"
        notes.append(
            f"{format_count(len(survey.misfits), 'file does', 'files do')} not fit: {left}"
        )
    return notes


def _reader_notes(table: Table) -> list[str]:
    """Return notes for readers of the table."""
    notes = [
        f"{reader} cannot read this table: {'; '.join(reasons)}"
        for reader in READERS
        if (reasons := unreadable_columns(table.schema, reader))
    ]
    if table.settings.directory_guard:
        notes.append(
            "the first append, or the first compaction that replaces files, puts a file "
            f"{GUARD_NAME} into their folders: programs that read the directory itself then fail "
            "instead of counting wrongly (setting directory_guard)"
        )
    return notes


def _microseconds_notes(directory: ImportedDirectory) -> list[str]:
    """Return notes on files with nanosecond timestamps; empty if there are none."""
    body, fine = directory.body, directory.survey.nanosecond_files
    if not fine:
        return []
    size_bytes = sum(file.size_bytes for file in directory.survey.files if file.path in fine)
    files = f"{format_count(len(fine), 'file')} with nanoseconds ({format_bytes(size_bytes)})"
    if body.timestamps is None:
        return [
            f"to keep microseconds, import with --timestamps us: it copies {files} to "
            f"{APPEND_FOLDER}, leaves the originals as they are, and refuses a value with more "
            "digits; --timestamps us-truncated cuts such digits off"
        ]
    notes = [
        f"{files} are copied in microseconds to {APPEND_FOLDER}; the originals stay, and no "
        "file of the table needs them. The guard of the directory comes with the first copy"
    ]
    if body.timestamps == TRUNCATED and (body.key or body.version_column):
        notes.append(
            "rows whose key or version differs only below a microsecond become equal: --timestamps "
            "us refuses such files"
        )
    return notes


# ------------------------------------------------------------------------------------------ Batches


VERB = "import"
BATCH_FILES = 500
"""Files per change; each file adds watched keys, so larger changes conflict more often."""
CALL_HOUR_S = 3600
TRIES_MAX = 4
KNOWN_BY_NOW = frozenset({RefusalCode.EXISTS, RefusalCode.REPLACED, RefusalCode.CALL_CONTENT})
"""Refusals because files are or were in the table; the other files are added without them."""
ReportImportProgress = Callable[..., None]


async def read_known(services: Services, directory: ImportedDirectory) -> None:
    """Read the paths that need not be added, because they are in the table or were replaced."""
    if directory.table is None:
        return
    paths: set[str] = set()
    async for page in walk_tiles(services.store, directory.table):
        for tablet in page:
            paths.update(tablet.files)
    paths.update(entry.path for entry in await services.store.garbage(directory.table.id))
    directory.known = paths


async def read_copies(services: Services, directory: ImportedDirectory) -> None:
    """Read the files whose copies the table has, or had before their compaction."""
    table = directory.table
    if table is None:
        return
    uri, location = directory.location.uri, directory.location
    directory.copied = await services.footers.run(uri, read_copied, location, table.own_ids)
    directory.copied |= copied_files(directory, table)


def copied_files(directory: ImportedDirectory, table: Table) -> dict[str, int]:
    """Return the listed files whose copies are in the table: path → size."""
    files = directory.listing.files
    return {
        file.path: file.size_bytes for file in files if copy_path(table, file) in directory.known
    }


def copy_path(table: Table, file: FoundFile) -> str:
    """Return the path of a file's copy; it is the same in each run of an import."""
    folders = [part for part in file.path.split("/")[:-1] if "=" in part]
    name = digest([table.id, file.path, str(file.size_bytes)], 32)
    return "/".join([APPEND_FOLDER, *folders, f"import-{name}.parquet"])


async def _copy_fine_files(
    services: Services, directory: ImportedDirectory, table: Table, files: Sequence[FoundFile]
) -> list[str]:
    """Copy files with nanoseconds if requested, and return the paths to add."""
    body, paths = directory.body, list[str]()
    for file in files:
        if body.timestamps is None or file.path not in directory.survey.nanosecond_files:
            paths.append(file.path)
            continue
        long, path = services.rows.within(LONG_STEP_MAX_S), copy_path(table, file)
        truncate = body.timestamps == TRUNCATED
        copy = partial(services.files.copy, truncate=truncate)
        try:
            await long.run(table.location, copy, table, file.path, path)
        except RequestError as error:
            if not body.leave_misfits:
                raise
            directory.survey.misfits[file.path] = str(error)
        else:
            paths.append(path)
    return paths


async def add_in_batches(
    services: Services,
    directory: ImportedDirectory,
    table: Table,
    on_progress: ReportImportProgress,
) -> None:
    """Add all files that fit, batch by batch, ordered by path.

    Raises:
        RequestError: A file cannot be read to its end; earlier batches are in the table.
        RefusedError: The table does not accept files now.
    """
    files, rows, done_bytes = directory.survey.files, 0, 0
    for first in range(0, len(files), BATCH_FILES):
        batch = files[first : first + BATCH_FILES]
        paths = await _copy_fine_files(services, directory, table, batch)
        rows += await _add_batch(services, directory, table, paths)
        done_bytes += sum(file.size_bytes for file in batch)
        on_progress(
            "adding files",
            files_done=first + len(batch),
            files=len(files),
            bytes_done=done_bytes,
            size_bytes=directory.survey.total.size_bytes,
            rows=rows,
        )


async def _add_batch(
    services: Services, directory: ImportedDirectory, table: Table, paths: Sequence[str]
) -> int:
    """Add files and return their rows; skip files that another call has added."""
    directory.table = directory.table or table
    for _ in range(TRIES_MAX):
        if not paths:
            return 0
        done = await _try_to_add(services, directory, table, paths)
        if isinstance(done, api.Added):
            directory.added += done.file_count
            return done.rows
        paths = done
    raise RefusedError(f"table {table.name!r}: its files keep changing; repeat the import")


async def _try_to_add(
    services: Services, directory: ImportedDirectory, table: Table, paths: Sequence[str]
) -> api.Added | Sequence[str]:
    """Add files, or return the files that remain to be added."""
    try:
        call = batch_call_id(table, paths, await services.store.now_s())
        return await add_files(services, table, paths, call, own=True)
    except ChangeRefusedError as error:
        if error.code not in KNOWN_BY_NOW:
            raise
        await read_known(services, directory)
        left = [path for path in paths if path not in directory.known]
        if len(left) == len(paths):
            raise
    except RequestError:
        if not directory.body.leave_misfits:
            raise
        left = await _readable_files(services, directory, table, paths)
        if len(left) == len(paths):
            raise
    return left


async def _readable_files(
    services: Services, directory: ImportedDirectory, table: Table, paths: Sequence[str]
) -> list[str]:
    """Return the files that can be read to their end, and record the others as misfits."""
    good = list[str]()
    looks = await inspect_incoming(services, table, paths)
    for path, outcome in zip(paths, looks, strict=True):
        if isinstance(outcome, RequestError):
            directory.survey.misfits[path] = str(outcome)
        elif isinstance(outcome, CompactionError):
            raise outcome
        else:
            good.append(path)
    return good


def batch_call_id(table: Table, paths: Sequence[str], now_s: float) -> str:
    """Return the id of the call that adds a batch; the same paths have the same id.

    The id contains the hour, because a call id must have a recent time (UUIDv7). A repetition in
    another hour is another call; it adds no file twice, because its paths are already in the table.

    Args:
        table: The table, whose id is part of the call id. If the table was rebuilt within the
            hour, the time of the rebuild replaces the hour.
        paths: Paths of the batch.
        now_s: Time of the store.
    """
    hour_s = now_s // CALL_HOUR_S * CALL_HOUR_S
    millis = ceil(1000 * max(hour_s, table.calls_since_s))
    text = f"{millis:012x}", digest([table.id, *sorted(paths)], 18)
    stamp, chance = text
    return f"{stamp[:8]}-{stamp[8:]}-7{chance[:3]}-8{chance[3:6]}-{chance[6:]}"


# --------------------------------------------------------------------------------------- The import


FOOTERS_AT_ONCE = 64
REPORT_EVERY = 256


async def import_directory(
    services: Services, body: api.NewImport, on_progress: ReportImportProgress
) -> api.ImportReport:
    """Import a directory as a table.

    Args:
        services: Ports and settings.
        body: Options of the import.
        on_progress: Called with a sentence and named numbers.

    Raises:
        RequestError: An option is invalid, or no file in the directory fits.
        RefusedError: The directory has another owner, or some files do not fit.
    """
    directory = await _open_directory(services, body)
    on_progress(f"listing {directory.location.uri}")
    long, uri = services.rows.within(LONG_STEP_MAX_S), directory.location.uri
    directory.listing = await long.run(uri, list_directory, directory.location)
    if directory.table is None:
        former = await long.run(uri, list_former, directory.location)
        directory.listing.misfits |= former
    await read_known(services, directory)
    await read_copies(services, directory)
    new = [file for file in directory.listing.files if not _is_known(directory, file)]
    directory.already = len(directory.listing.files) - len(new)
    footers = await _read_footers(services, directory, new, on_progress)
    options = _import_options(body, directory.table)
    directory.survey = await long.run(uri, survey, footers, options)
    directory.survey.misfits |= directory.listing.misfits
    described, planner = await _checked_table(services, directory)
    if body.dry_run:
        return import_view(directory, described, planner)
    _refuse_misfits(directory)
    table, planner = await _table_to_fill(services, directory, planner)
    await add_in_batches(services, directory, table, on_progress)
    if table.filling is not None:
        table = await _finish_filling(services, directory, table)
    return import_view(directory, await _finish(services, directory, table), planner)


def _is_known(directory: ImportedDirectory, file: FoundFile) -> bool:
    return file.path in directory.known or directory.copied.get(file.path) == file.size_bytes


async def _open_directory(services: Services, body: api.NewImport) -> ImportedDirectory:
    checked_label(body.name, "table name")
    uri = body.location
    site = await services.footers.run(uri, services.locations.admitted, uri)
    location = open_location(site.uri)
    store = await services.store.store_id()
    table = await services.store.table_named(body.name)
    if table is not None:
        _require_same_table(body, location.uri, table)
    else:  # Check before listing: files of a live table would look like those of a dropped one.
        (await other_tables(services.store, services.footers)).refuse_overlap(site)
    await services.footers.run(location.uri, check_import_location, location, store)
    return ImportedDirectory(body=body, location=location, table=table)


def _require_same_table(body: api.NewImport, location: str, table: Table) -> None:
    """Check that an existing table is the one that this import would create.

    Raises:
        ChangeRefusedError: The table differs from the options, or is being dropped.
        RefusedError: Another verb is filling the table.
    """
    expected: dict[str, object] = {
        "location": location,
        "key": tuple(body.key),
        "version_column": body.version_column,
        "tombstone_column": body.tombstone_column,
        "time_column": body.time_column,
    }
    if body.partition_by is not None:
        expected["partition_by"] = tuple(body.partition_by)
    for name, value in expected.items():
        present = getattr(table, name)
        if present != value:
            raise ChangeRefusedError(
                f"table {table.name!r} exists already, with {name} {present!r} and not {value!r}; "
                "to go on with an import, repeat it as it was; else choose another name",
                "exists",
            )
    if body.timestamps and any(map(has_nanoseconds, arrow_schema(table.schema).types)):
        raise ChangeRefusedError(
            f"table {table.name!r} exists already, and has timestamps with nanoseconds: drop it "
            "and import anew, or leave --timestamps out",
            "exists",
        )
    if table.state is TableState.GOING:
        raise ChangeRefusedError(f"table {table.name!r} is being dropped", "exists")
    if table.filling is not None and table.filling.verb != VERB:
        raise RefusedError(filling_text(table), "filling")


def _import_options(body: api.NewImport, table: Table | None) -> ImportOptions:
    return ImportOptions(
        key=tuple(body.key),
        version_column=body.version_column,
        partition_by=table.partition_by if table is not None else body.partition_by,
        partition_types=body.partition_types if table is None else {},
        columns=None if table is None else table.schema,
        # Copy only while the table is filling: an interrupted later run would not list its copies.
        narrow=body.timestamps is not None and (table is None or table.filling is not None),
    )


async def _read_footers(
    services: Services,
    directory: ImportedDirectory,
    files: Sequence[FoundFile],
    on_progress: ReportImportProgress,
) -> list[tuple[FoundFile, FooterFacts | str]]:
    """Read the footers of files concurrently."""
    body, footers_read = directory.body, list[tuple[FoundFile, FooterFacts | str]]()
    folders = {part for file in files for part in file.path.split("/")[:-1] if "=" in part}
    partition = sorted({part.partition("=")[0] for part in folders})
    columns = () if directory.table is None else directory.table.schema
    required = [column.name for column in columns if not column.nullable]
    names = [*dict.fromkeys([*filter(None, [body.version_column]), *required, *partition])]
    whole_bytes, done_bytes, rows = sum(file.size_bytes for file in files), 0, 0
    location = directory.location
    for first in range(0, len(files), FOOTERS_AT_ONCE):
        batch = files[first : first + FOOTERS_AT_ONCE]
        work = (
            services.footers.run(location.uri, read_import_footer, location, file, names)
            for file in batch
        )
        footers = await asyncio.gather(*work)
        footers_read += zip(batch, footers, strict=True)
        done_bytes += sum(file.size_bytes for file in batch)
        rows += sum(footer.rows for footer in footers if isinstance(footer, FooterFacts))
        if first % REPORT_EVERY == 0 or len(footers_read) == len(files):
            on_progress(
                "reading footers",
                files_done=len(footers_read),
                files=len(files),
                bytes_done=done_bytes,
                size_bytes=whole_bytes,
                rows=rows,
            )
    return footers_read


def _new_table(directory: ImportedDirectory) -> api.NewTable:
    body, survey = directory.body, directory.survey
    return api.NewTable(
        name=body.name,
        location=directory.location.uri,
        schema=tuple(
            api.Column(name=column.name, type=column.type, nullable=column.nullable)
            for column in survey.columns
        ),
        key=tuple(body.key),
        version_column=body.version_column,
        tombstone_column=body.tombstone_column,
        time_column=body.time_column,
        partition_by=survey.partition_by,
        settings=dict(body.settings),
        paused=True,
    )


async def _checked_table(services: Services, directory: ImportedDirectory) -> tuple[Table, str]:
    """Return the existing table, or the new one after all checks of a table creation.

    For a new table, the second value is a sentence on its planner.
    """
    if directory.table is not None:
        return directory.table, ""
    if not directory.survey.files:
        why = next(iter(sorted(directory.survey.misfits.items())), None)
        hint = f"; for example {why[0]}: {why[1]}" if why else ""
        raise RequestError(
            f"location {directory.location.uri} holds no file that can be imported{hint}"
        )
    try:
        new = await new_table(services, _new_table(directory))
    except UnreadableError as error:
        offer = _microseconds_notes(directory)
        raise RequestError("; ".join([str(error), *offer])) from error
    return new.table, new.planner


def _refuse_misfits(directory: ImportedDirectory) -> None:
    misfits = directory.survey.misfits
    if misfits and not directory.body.leave_misfits:
        path, why = min(misfits.items())
        raise RefusedError(
            f"{len(misfits)} of {len(directory.listing.files) + len(directory.listing.misfits)} "
            f"files do not fit, {path} for example: {why}. Nothing was written. A dry run lists "
            "them; move them away, or leave them out on purpose (--leave-misfits)"
        )


async def _table_to_fill(
    services: Services, directory: ImportedDirectory, planner: str
) -> tuple[Table, str]:
    """Return the table to add the files to, and a sentence on its planner.

    The table is new, or was left by an interrupted import, or was completed before.
    """
    table, files = directory.table, len(directory.survey.files)
    if table is not None and table.filling is None:
        return table, planner
    filling = Filling(run=services.ids.next("fill"), verb=VERB, files=files)
    if table is None:
        return await create_table(services, _new_table(directory), filling)
    filling = replace(filling, files=files + directory.already)
    change = ResumeFilling(table=table.id, run=filling.run, verb=VERB, files=filling.files)
    require_applied(await services.store.apply(change))
    directory.table = replace(table, filling=filling)
    return directory.table, planner


async def _finish_filling(services: Services, directory: ImportedDirectory, table: Table) -> Table:
    """Check that all fitting files are in the table, sign its location, and end the filling.

    Raises:
        RefusedError: The store has lost files, or another import has taken over the table.
    """
    assert table.filling is not None, table.name
    directory.table = table
    await read_known(services, directory)
    copied = copied_files(directory, table)
    misfits = directory.survey.misfits
    fitting = {
        file.path
        for file in directory.survey.files
        if file.path not in misfits and copy_path(table, file) not in misfits
    }
    if missing := sorted(fitting - directory.known - copied.keys()):
        raise RefusedError(
            f"table {table.name!r} lacks {format_count(len(missing), 'file')} that were "
            "added, the first is "
            f"{missing[0]}: repeat the import"
        )
    current = await services.table(table.name, filling=True)
    if current.filling is None or current.filling.run != table.filling.run:
        raise RefusedError(f"table {table.name!r}: another import goes on with it", "filling")
    state = TableState.LIVE if directory.body.readers_use_manifest else TableState.PAUSED
    settled = replace(table, state=state, filling=None)
    await services.footers.run(table.location, write_copied, directory.location, table.id, copied)
    await sign_site(services.footers, services.store, settled)
    change = FinishFilling(
        table=table.id,
        run=table.filling.run,
        files=len(directory.known),
        state=state,
    )
    require_applied(await services.store.apply(change))
    return settled


async def _finish(services: Services, directory: ImportedDirectory, table: Table) -> Table:
    """Make a complete table live if its readers are ready."""
    current = await services.table(table.name)
    if directory.body.readers_use_manifest and current.state is TableState.PAUSED:
        change = ChangeTable(
            table=current.id, settings_version=current.settings_version, state=TableState.LIVE
        )
        require_applied(await services.store.apply(change))
        return await services.table(table.name)
    return current


# ------------------------------------------------------------------------------------------- Routes


class ImportRoutes:
    """Routes of import and export."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @route("POST /v1/import", ADMIN_ALL)
    async def import_(self, body: api.NewImport) -> StreamingResponse:
        """Make a table of a directory. Repeat an interrupted import to continue it.

        The answer is a stream of JSON lines.
        """
        current_call().table = body.name

        async def work(on_progress: ReportImportProgress) -> api.ImportReport:
            return await import_directory(self._services, body, on_progress)

        return StreamingResponse(progress_lines(work, self._services.log), media_type=LINES)

    @route("GET /v1/tables/{table}/manifest", READ)
    async def manifest(self, table: str) -> StreamingResponse:
        """Return the current manifest of a table: a JSON object that names every file.

        Buffered rows are flushed first.
        """
        stored_table = await self._services.table(table)
        await flush_rows(self._services, stored_table)
        chunks = await begun_stream(manifest_json(self._services, stored_table))
        return StreamingResponse(chunks, media_type="application/json")

    @route("GET /v1/tables/{table}/manifest/files", READ)
    async def names(self, table: str) -> StreamingResponse:
        """Return the absolute paths of the current files of a table, one per line.

        Buffered rows are flushed first.
        """
        stored_table = await self._services.table(table)
        await flush_rows(self._services, stored_table)
        chunks = await begun_stream(manifest_names(self._services, stored_table))
        return StreamingResponse(chunks, media_type="text/plain")
