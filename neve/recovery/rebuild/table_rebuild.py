"""`neve rebuild`: reconstruct a table's metadata from its location, after the loss of Redis.

    description, newest manifest, footers → live files (`live_files`)
    → facts of the live files, read from the files again
    → tablets: the known ends, except those inside the key range of a file
    → watermarks: the highest of any output that may have held keys of the tablet
    → the table, live if nothing is lost, else paused

The report lists everything that the files do not record.
"""

import asyncio
import json
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import RefusedError, RequestError, UnavailableError
from common.metadata.keys import CALL_SKEW_S
from common.metadata.store import TabletStore
from common.metadata.store_values import AcceptedLoss
from common.model.file import DataFile
from common.model.location_identity import DESCRIPTION_PATH, is_service_path
from common.model.table import Table, TableState
from common.model.tablet import PLUS_INFINITY, Bounds, TabletId
from common.parquet.file_inspection import inspect_file, open_table_file
from common.parquet.location import Location, existing_files, fault, is_silence, open_location
from common.parquet.manifest import FORMAT, FORMAT_VERSION, POINTER_PATH
from common.parquet.service_files import read_copied, read_description, read_small
from common.readers.pool import in_reader
from common.rows.key_encoding import Partition
from common.rows.rules import RowRules
from common.rows.schema import arrow_schema, columns_of, unite_schemas
from common.runtime import growth_ignored
from common.storage_threads import StorageThreads
from common.units import format_count
from neve import api
from neve.recovery.archive import TabletDump
from neve.recovery.rebuild.live_files import (
    Evidence,
    Lineage,
    PublishedManifest,
    known_ends,
    lineage_of,
    newest_call_s,
    own_table_ids,
)
from neve.recovery.scope import (
    CALLS_FORGOTTEN,
    LOGS_WRITTEN_ANEW,
    RecoveryPorts,
    ReportProgress,
    Steps,
    TableScope,
    gather_bounded,
    in_thread,
)
from neve.recovery.stored_files import (
    FileOrigin,
    OutputFooter,
    StoredFile,
    list_location,
    look_up,
    partition_of_file,
    read_output_footer,
)
from neve.recovery.table_creation import (
    end_filling,
    find_free_site,
    former_ids_of,
    make_table,
    other_tables,
)

NEVER = (
    "buffered rows that were in no file yet: they are in the lost metadata alone",
    "requests under way, reservations and selections: submit requests again",
    CALLS_FORGOTTEN,
    "the history of finished jobs, and what waited for deletion: `neve gc` finds such files",
    "how long each version has been known: tombstones are kept one retention longer",
    LOGS_WRITTEN_ANEW,
)

LOOKS_MAX = 5
"""How often a location is read again because files disappear from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildOptions:
    """Options of a rebuild."""

    name: str
    given: Mapping[str, object] = field(default_factory=dict)
    """`key`, `version_column`, … for a location without a description."""
    user_files: bool = True
    """Whether Parquet files of users count as added if there is no evidence either way."""
    adopt: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildResult:
    """Result of a rebuild."""

    table: Table
    files: tuple[DataFile, ...]
    report: api.RebuildReport
    """What operators read. `left` and `lost` are sorted by path, and complete."""


async def rebuild(ports: RecoveryPorts, location: str, options: RebuildOptions) -> RebuildResult:
    """Rebuild a table from the files in a location.

    Args:
        ports: External dependencies.
        location: Location as the user wrote it.
        options: Options of the rebuild.

    Raises:
        RequestError: The table has no description, or `create` would reject the description.
        RefusedError: The name or location is taken, the location belongs to another store, no
            table is allowed there, or files keep disappearing from it.
    """
    with growth_ignored():
        return await _rebuild(ports, location, options)


async def _rebuild(ports: RecoveryPorts, location: str, options: RebuildOptions) -> RebuildResult:
    site = await ports.admission.site(location)
    opened = open_location(site.uri)
    threads, on_progress = ports.threads, ports.on_progress
    store, name = ports.store, options.name
    await end_filling(store, name, site.uri, "rebuild", dry_run=options.dry_run)
    others = await other_tables(store, threads)
    if any(named.name == name for named in others.named):
        raise RefusedError(f"table {options.name!r} exists already: give another name")
    free = await find_free_site(store, threads, site, neighbours=others, take_over=options.adopt)
    state = await _read_location(ports, opened, options)
    table = state.table
    scope = ports.scope(table)
    homes = await _partitions_of(scope, state.files)
    on_progress(f"finding the tablets of {format_count(len(state.files), 'file')}")
    tablets, result = await in_thread(partial(planned_table, state, homes))
    lost = result.report.lost
    if options.dry_run:
        return result
    created = await make_table(
        scope,
        free,
        tablets,
        stored=state.evidence.stored,
        live=table.state is TableState.LIVE,
        complete=True,
        lost=bool(lost),
    )
    went = dict.fromkeys(
        created.missing, "it went while the table was rebuilt: drop it and try again"
    )
    came = dict.fromkeys(created.late, "it came while the table was rebuilt: drop it and try again")
    report = replace(
        result.report, state=created.table.state.value, lost={**lost, **went, **came}, dry_run=False
    )
    return replace(result, table=created.table, report=report)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocationState:
    """The state of a location at one point in time."""

    evidence: Evidence
    table: Table
    lineage: Lineage
    files: list[DataFile]


async def _read_location(
    ports: RecoveryPorts, location: Location, options: RebuildOptions
) -> LocationState:
    """Read a location, and read it again if a live file disappeared while it was read.

    Compactors of a recently dropped table may still be cleaning up.
    """
    threads, on_progress, gone = ports.threads, ports.on_progress, ""
    for _ in range(LOOKS_MAX):
        if delay_s := ports.listing_delay_s:
            on_progress(f"waiting {delay_s:g} s, until the storage lists what it has")
            await asyncio.sleep(delay_s)
        evidence = await gather_evidence(
            location, threads, on_progress, user_files=options.user_files
        )
        described = await described_table(evidence, location, threads, options.given)
        planned = _table_to_make(described, evidence, ports, options)
        table = ports.admission.checked(
            replace(planned, calls_since_s=await _calls_since_s(ports.store, evidence))
        )
        on_progress(f"finding which of {len(evidence.stored)} files count")
        lineage, rows = await in_thread(partial(counting_files, evidence))
        files = await facts_of(location, threads, table, rows, evidence, on_progress=on_progress)
        # A file that has disappeared is unreadable; `make_table` detects later disappearances.
        unread = [*evidence.unreadable]
        existing = await threads.run(location.uri, existing_files, location, unread)
        gone = min({*unread} - existing.keys(), default="")
        if not gone:
            return LocationState(evidence=evidence, table=table, lineage=lineage, files=files)
        on_progress(f"{gone} has disappeared: reading the list again")
    raise RefusedError(
        f"files of {location.uri} disappear while they are read, the last was {gone}: wait until "
        "no other process deletes files there, and try again"
    )


async def _calls_since_s(store: TabletStore, evidence: Evidence) -> float:
    """Return a time after all calls that the table may have accepted."""
    newest_s = await in_thread(partial(newest_call_s, evidence))
    now_s = await store.now_s()
    return max(now_s, min(newest_s + 0.001, now_s + CALL_SKEW_S))


def _table_to_make(
    table: Table, evidence: Evidence, ports: RecoveryPorts, options: RebuildOptions
) -> Table:
    live = TableState.PAUSED if table.state is TableState.PAUSED else TableState.LIVE
    # Files written under any former id of the rebuilt table belong to the new table.
    former = replace(table, former_ids=(*own_table_ids(evidence), *table.former_ids))
    return replace(
        table,
        id=ports.ids.next("t"),
        former_ids=former_ids_of(former),
        name=options.name,
        state=live,
    )


def counting_files(evidence: Evidence, steps: Steps) -> tuple[Lineage, list[str]]:
    """Return the lineage, and the live files that hold rows."""
    lineage = lineage_of(evidence, steps)
    footers = evidence.footers
    return lineage, [path for path in lineage.files if path not in footers or footers[path].rows]


def planned_table(
    state: LocationState, homes: Sequence[Partition], steps: Steps
) -> tuple[list[TabletDump], RebuildResult]:
    """Return the tablets of the table, and the result to report."""
    evidence, files = state.evidence, state.files
    footers = evidence.footers.values()
    if state.table.partition_by:
        tablets = partition_tablets(files, homes, footers, steps)
    else:
        recorded_ends = known_ends(evidence, {file.path for file in files}, steps)
        tablets = range_tablets(files, recorded_ends, footers, steps)
    left = dict(steps.in_order((dict(state.lineage.left) | evidence.misfits).items()))
    report = api.RebuildReport(
        table=state.table.name,
        location=state.table.location,
        state=state.table.state.value,
        tablets=len(tablets),
        files=len(files),
        rows=sum(file.rows for file in steps.over(files)),
        size_bytes=sum(file.size_bytes for file in steps.over(files)),
        user_files=sum(not is_service_path(file.path) for file in steps.over(files)),
        left=left,
        lost=dict(steps.in_order((dict(state.lineage.lost) | evidence.unreadable).items())),
        not_recovered=tuple(_not_recovered(evidence, state.table, len(left))),
        manifest=None if evidence.published is None else evidence.published.number,
        dry_run=True,
    )
    return tablets, RebuildResult(table=state.table, files=tuple(files), report=report)


async def _partitions_of(scope: TableScope, files: Sequence[DataFile]) -> Sequence[Partition]:
    """Return the partition of each file; an empty list for a table without partitions."""
    if not scope.table.partition_by:
        return ()
    scope.on_progress(f"finding the partitions of {format_count(len(files), 'file')}")
    return await gather_bounded(
        scope.run(partition_of_file, scope.location, scope.table, file.path) for file in files
    )


def range_tablets(
    files: Sequence[DataFile],
    recorded_ends: Collection[bytes],
    footers: Iterable[OutputFooter],
    steps: Steps,
) -> list[TabletDump]:
    """Return the tablets of a table without partitions, ascending; the tablets tile.

    Args:
        files: Live files.
        recorded_ends: Known ends of tablets.
        footers: Footers of all outputs; they provide the watermarks.
        steps: Ends the work when its caller has left.
    """
    ends = _tablet_ends(files, recorded_ends, steps)
    tablet_files: list[list[DataFile]] = [[] for _ in ends]
    for file in steps.over(files):
        tablet_files[0 if file.key_min is None else bisect_left(ends, file.key_min)].append(file)
    purges = _watermarks(ends, footers, steps)
    starts = [None, *ends[:-1]]
    return [
        TabletDump(bounds=Bounds(start, end), purge=purge, files=tuple(files))
        for start, end, purge, files in zip(starts, ends, purges, tablet_files, strict=True)
    ]


def _tablet_ends(
    files: Iterable[DataFile], recorded_ends: Collection[bytes], steps: Steps
) -> Sequence[bytes]:
    """Return the known ends of tablets, except those inside the key range of a file."""
    crossing = steps.in_order(
        (file.key_min, file.key_max)
        for file in files
        if file.key_min is not None and file.key_max is not None
    )
    ends: list[bytes] = []
    reached, following = b"", 0
    for end in steps.in_order(end for end in recorded_ends if end < PLUS_INFINITY):
        while following < len(crossing) and crossing[following][0] <= end:
            reached = max(reached, crossing[following][1])
            following += 1
        if reached <= end:
            ends.append(end)
    return [*ends, PLUS_INFINITY]


def _watermarks(
    ends: Sequence[bytes], footers: Iterable[OutputFooter], steps: Steps
) -> list[bytes | None]:
    """Return the highest watermark of the former tablets that may have held keys of each tablet.

    An output records only the end of its tablet. The tablet may have started at any lower key: a
    split moves the keys up to a cut to another tablet, with the same watermark.
    """
    highest: list[bytes | None] = [None for _ in ends]
    for footer in steps.over(footers):
        index = bisect_left(ends, min(TabletId.parse("", footer.tablet).end, PLUS_INFINITY))
        highest[index] = _higher(highest[index], footer.purge)
    return [*accumulate(reversed(highest), _higher)][::-1]


def _higher(first: bytes | None, other: bytes | None) -> bytes | None:
    return max((watermark for watermark in (first, other) if watermark is not None), default=None)


def partition_tablets(
    files: Sequence[DataFile],
    homes: Sequence[Partition],
    footers: Iterable[OutputFooter],
    steps: Steps,
) -> list[TabletDump]:
    """Return the tablets of a partitioned table, ascending.

    Args:
        files: Live files.
        homes: Partition of each file.
        footers: Footers of all outputs; they provide the watermarks.
        steps: Ends the work when its caller has left.
    """
    files_by_home: dict[Partition, list[DataFile]] = {}
    for file, home in steps.over(zip(files, homes, strict=True)):
        files_by_home.setdefault(home, []).append(file)
    purges: dict[bytes, bytes | None] = {}
    for footer in steps.over(footers):
        end = TabletId.parse("", footer.tablet).end
        purges[end] = _higher(purges.get(end), footer.purge)
    return [
        TabletDump(
            bounds=Bounds(None, home.end, home.text), purge=purges.get(home.end), files=tuple(files)
        )
        for home, files in sorted(files_by_home.items(), key=lambda pair: pair[0].end)
    ]


def _not_recovered(evidence: Evidence, table: Table, unused: int) -> Iterable[str]:
    published = evidence.published
    if unused:
        yield (
            f"{format_count(unused, 'file that was', 'files that were')} found and not "
            "used, each for"
            " its reason"
        )
    if evidence.unusable:
        yield f"what the newest manifest says: {evidence.unusable}"
    if evidence.described is None:
        yield "settings: they have their defaults"
    if table.partition_by:
        yield "partitions without a file"
    elif table.key:
        reason = "held no file" if published else "no output was made for"
        yield f"tablets that {reason}: their keys belong to the next tablet"
    if any(not is_service_path(path) for path in evidence.added):
        if published is None:
            yield "whether files of users had been added: those that no job replaced count as added"
        else:
            yield (
                f"whether files of users had been added since {published.name}: those written "
                "since then count, older ones do not"
            )
    yield from NEVER


# ----------------------------------------------------------------------------- Reading the evidence


# ------------------------------------------------------------------------------ The newest manifest


POINTER_BYTES_MAX = 64 * 1024**2


@in_reader("the manifest of {location.uri}")
def read_published_manifest(location: Location) -> PublishedManifest | None:
    """Return the newest manifest of a location, or None if no manifest was published.

    Raises:
        RequestError: The manifest cannot be read, is from another release, or is incomplete.
        UnavailableError: The storage does not answer.
    """
    content = read_small(location, POINTER_PATH, POINTER_BYTES_MAX)
    if content is None:
        return None
    try:
        body = json.loads(content)
        if (body["format"], body["version"]) != (FORMAT, FORMAT_VERSION):
            raise RequestError(
                f"{POINTER_PATH} is {body['format']} version {body['version']}, "
                f"this release reads {FORMAT} version {FORMAT_VERSION}"
            )
        files: dict[str, str] = {}
        for part in body["parts"]:
            files |= _read_manifest_part(location, part)
        for tablet in set(files.values()):
            TabletId.parse("", tablet)
        if len(files) != body["totals"]["files"]:
            raise RequestError(
                f"the parts of {POINTER_PATH} name {format_count(len(files), 'file')}, "
                f"expected {body['totals']['files']}"
            )
        if body.get("complete") is False:
            raise RequestError(
                f"{POINTER_PATH} is of a table whose recovery did not find all files"
            )
        return PublishedManifest(
            number=int(body["number"]),
            begun_s=float(body["begun_s"]),
            table=str(body["table_id"]),
            files=files,
            loss=AcceptedLoss(**body["loss"]) if "loss" in body else None,
            complete="complete" in body,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{POINTER_PATH} makes no sense: {error!r}") from error


def _read_manifest_part(location: Location, part: Mapping[str, Any]) -> dict[str, str]:
    path = str(part["path"])
    try:
        with location.open_file(path) as source:
            rows = pq.read_table(source, columns=["path", "tablet"])
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and is_silence(error):
            raise UnavailableError(fault(location, path, error)) from error
        raise RequestError(f"{path}, a part of the manifest, cannot be read: {error}") from error
    return dict(zip(rows["path"].to_pylist(), rows["tablet"].to_pylist(), strict=True))


# ------------------------------------------------------------------------------------- All evidence


async def gather_evidence(
    location: Location, threads: StorageThreads, on_progress: ReportProgress, *, user_files: bool
) -> Evidence:
    """Read the evidence in a location.

    Args:
        location: Location of the lost table.
        threads: Threads that read files.
        on_progress: Called with each progress message.
        user_files: Whether Parquet files of users count as added.

    Raises:
        RequestError: The description is from another release.
        UnavailableError: The storage does not answer.
    """
    on_progress("listing the location")
    stored = await threads.run(location.uri, list_location, location)
    described = await threads.run(location.uri, read_description, location)
    evidence = Evidence(stored=stored, described=described)
    outputs = await in_thread(partial(_of_origin, stored, {FileOrigin.OUTPUT}))
    await _read_manifest(evidence, location, threads)
    while True:
        await _read_footers(evidence, location, threads, outputs, on_progress)
        outputs = await _look_up_named(evidence, location, threads)
        if not outputs:
            break
    origins = {FileOrigin.APPENDED, FileOrigin.USER} if user_files else {FileOrigin.APPENDED}
    evidence.added = await in_thread(partial(_of_origin, stored, origins))
    if described is not None:
        copied = await threads.run(location.uri, read_copied, location, described.own_ids)
        evidence.added = [
            path for path in evidence.added if copied.get(path) != stored[path].size_bytes
        ]
    return evidence


def _of_origin(
    stored: Mapping[str, StoredFile], origins: Collection[FileOrigin], steps: Steps
) -> list[str]:
    return steps.in_order(
        path
        for path, file in stored.items()
        if path.endswith((".parquet", ".parq")) and file.whose in origins
    )


def counted(on_progress: ReportProgress, what: str, total: int) -> Callable[[int], None]:
    """Report the start of work on many files, and return a callback for its progress."""
    on_progress(f"reading {what} of {format_count(total, 'file')}")
    return lambda done: on_progress(f"reading {what}: {done} of {format_count(total, 'file')}")


async def _read_footers(
    evidence: Evidence,
    location: Location,
    threads: StorageThreads,
    outputs: Sequence[str],
    on_progress: ReportProgress,
) -> None:
    looks = await gather_bounded(
        (threads.run(location.uri, _footer, location, path) for path in outputs),
        counted(on_progress, "footers", len(outputs)),
    )
    for path, footer in zip(outputs, looks, strict=True):
        if isinstance(footer, OutputFooter):
            evidence.footers[path] = footer
        else:
            evidence.unreadable[path] = footer


async def _look_up_named(
    evidence: Evidence, location: Location, threads: StorageThreads
) -> list[str]:
    """Look up files that manifest and footers name but the listing lacks; return new outputs."""
    unlisted = await in_thread(partial(_unlisted, evidence))
    looked_up = await threads.run(location.uri, look_up, location, unlisted) if unlisted else {}
    evidence.stored.update(looked_up)
    return sorted(path for path, file in looked_up.items() if file.whose is FileOrigin.OUTPUT)


def _unlisted(evidence: Evidence, steps: Steps) -> Sequence[str]:
    """Return the files that manifest and footers name but the listing lacks, sorted."""
    stored, published = evidence.stored, evidence.published
    named = {*steps.over(published.files if published is not None else ())}
    for footer in steps.over(evidence.footers.values()):
        named.update(footer.outputs or ())
    return steps.in_order(path for path in steps.over(named) if path not in stored)


async def _read_manifest(evidence: Evidence, location: Location, threads: StorageThreads) -> None:
    try:
        manifest = await threads.run(location.uri, read_published_manifest, location)
    except RequestError as error:
        evidence.unusable = str(error)
        return
    described = evidence.described
    if manifest is None or described is None or manifest.table in described.own_ids:
        evidence.published = manifest
    else:
        evidence.unusable = f"{manifest.name} is of another table, {manifest.table}"


def _footer(location: Location, path: str) -> OutputFooter | str:
    try:
        return read_output_footer(location, path) or "it says nothing of the job that made it"
    except RequestError as error:
        return str(error)


async def described_table(
    evidence: Evidence, location: Location, threads: StorageThreads, given: Mapping[str, object]
) -> Table:
    """Return the lost table, from its description or from the given values and file schemas.

    Args:
        evidence: Evidence, with or without a description.
        location: Location of the table.
        threads: Threads that read files.
        given: `key`, `version_column`, …, if there is no description.

    Raises:
        RequestError: Nothing describes the table, and no key was given.
    """
    if evidence.described is not None:
        return replace(evidence.described, location=location.uri)
    if not given:
        raise RequestError(
            f"{DESCRIPTION_PATH} of {location.uri} is missing, so the table's key is unknown: "
            "give key and version column, or say that it is append-only"
        )
    paths = [*evidence.footers, *evidence.added]
    schemas = await gather_bounded(
        threads.run(location.uri, _schema, location, path) for path in paths
    )
    firsts: dict[pa.Schema, str] = {}
    for path, schema in zip(paths, schemas, strict=True):
        if schema is not None:
            firsts.setdefault(schema, path)
    if not firsts:
        raise RequestError(f"{location.uri} holds no Parquet file that can be read")
    columns = columns_of(unite_schemas([(path, schema) for schema, path in firsts.items()]))
    arrow_schema(columns)
    plain: dict[str, object] = {"id": "", "name": "", "location": location.uri, "schema": columns}
    return Table(**{**plain, **given})  # type: ignore[arg-type]  # checked where it came in


@in_reader("file {path}")
def _footer_schema(location: Location, path: str) -> object:
    with open_table_file(location, path) as file:
        return file.schema_arrow.remove_metadata()


def _schema(location: Location, path: str) -> object:
    try:
        return _footer_schema(location, path)
    except RequestError:
        return None


def _is_parquet(location: Location, path: str) -> bool:
    return _schema(location, path) is not None


async def facts_of(
    location: Location,
    threads: StorageThreads,
    table: Table,
    paths: Sequence[str],
    evidence: Evidence,
    *,
    on_progress: ReportProgress,
) -> list[DataFile]:
    """Return the entries of live files; record unreadable files and misfits in the evidence."""
    stored, footers = evidence.stored, evidence.footers
    looks = await gather_bounded(
        (
            threads.run(location.uri, _facts, location, table, stored[path], footers.get(path))
            for path in paths
        ),
        counted(on_progress, "facts", len(paths)),
    )
    files = []
    for path, facts in zip(paths, looks, strict=True):
        if isinstance(facts, str):
            strange = not is_service_path(path) and await threads.run(
                location.uri, _is_parquet, location, path
            )
            (evidence.misfits if strange else evidence.unreadable)[path] = facts
            continue
        files.append(facts)
    return files


def _facts(
    location: Location, table: Table, stored: StoredFile, footer: OutputFooter | None
) -> DataFile | str:
    try:
        facts = inspect_file(location, stored.path, RowRules.of(table))
    except RequestError as error:
        return str(error)
    file = facts.data_file(added_at_s=stored.changed_s or 0.0)
    return file if footer is None else replace(file, job=footer.job, request=footer.request)
