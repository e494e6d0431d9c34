"""`neve rebuild`: a table's metadata out of its location, after Redis was lost.

    description, newest manifest, footers → which files count (`counting`)
    → their facts, read anew
    → tablets: the ends that these tell, without those that a file crosses
    → watermarks: the highest that an output of the tablet carries → the table, paused
    → live, if nothing is lost

What no file tells, the report says.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from common.errors import RefusedError
from common.ids import IdSource
from common.metadata.ports import TabletStore
from common.model.file import DataFile
from common.model.service_paths import is_service_path
from common.model.table import Table, TableState
from common.model.tablet import PLUS_INFINITY, Bounds, TabletId
from common.parquet.location import (
    Location,
    existing_files,
    open_location,
)
from common.rows.partitions import Partition
from common.storage_threads import StorageThreads
from neve.recovery.archive import TabletDump
from neve.recovery.location_ownership import (
    find_free_site,
)
from neve.recovery.rebuild.evidence import (
    Evidence,
    described_table,
    facts_of,
    gather_evidence,
)
from neve.recovery.rebuild.live_files import (
    Lineage,
    known_ends,
    lineage_of,
    own_table_ids,
)
from neve.recovery.scope import (
    ReportProgress,
    TableAdmission,
    TableScope,
    gather_bounded,
    ignore_progress,
)
from neve.recovery.stored_files import OutputFooter, partition_of_file
from neve.recovery.table_creation import (
    end_filling,
    former_ids_of,
    make_table,
)

NEVER = (
    "requests under way, reservations and selections: submit requests again",
    "the history of finished jobs, and what waited for deletion: `neve gc` finds such files",
    "how long each version has been known: tombstones are kept one retention longer",
)

LOOKS_MAX = 5
"""So often a location is looked at anew, from which somebody deletes files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildOptions:
    """How a table is rebuilt."""

    name: str
    given: Mapping[str, object] = field(default_factory=dict)
    """`key`, `version_column`, … for a location without a description."""
    user_files: bool = True
    """Whether Parquet files of users count as added of which nothing tells whether they were."""
    adopt: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildResult:
    """What a rebuild came to."""

    table: Table
    files: tuple[DataFile, ...]
    tablets: int
    user_files: int
    """How many of them users brought in by `add`, perhaps."""
    left: Mapping[str, str]
    """Files that do not count → why."""
    lost: Mapping[str, str]
    """What rows are, or may be, lost → why."""
    not_recovered: tuple[str, ...]
    """What no file tells."""
    manifest: int | None = None
    """Number of the manifest that it began with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildPorts:
    """What a rebuild needs of the outside."""

    store: TabletStore
    threads: StorageThreads
    ids: IdSource
    admission: TableAdmission
    on_progress: ReportProgress = ignore_progress
    listing_delay_s: float = 0.0
    """So long listings may miss what was written, and name what was deleted."""


async def rebuild(rebuilder: RebuildPorts, location: str, options: RebuildOptions) -> RebuildResult:
    """Make a table out of what lies in a location.

    Args:
        rebuilder: Ports.
        location: As somebody wrote it.
        options: How.

    Raises:
        RequestError: Nothing describes the table, or what does is nothing that `create`
            would take.
        RefusedError: Name or location are taken, or another store's, or no table may be there;
            or somebody deletes files there.
    """
    site = await rebuilder.admission.site(location)
    place = open_location(site.uri)
    threads, on_progress = rebuilder.threads, rebuilder.on_progress
    if not options.dry_run:
        await end_filling(rebuilder.store, options.name, site.uri, "rebuild")
    if options.name in await rebuilder.store.names():
        raise RefusedError(f"table {options.name!r} exists already: give another name")
    free = await find_free_site(rebuilder.store, threads, site, take_over=options.adopt)
    seen = await _read_location(rebuilder, place, options)
    evidence, table, lineage, files = seen.evidence, seen.table, seen.lineage, seen.files
    scope = TableScope(
        store=rebuilder.store, table=table, threads=threads, grace_s=0.0, on_progress=on_progress
    )
    tablets = await _tablets(scope, files, evidence)
    lost = {**lineage.lost, **evidence.unreadable}
    result = RebuildResult(
        table=table,
        files=tuple(files),
        tablets=len(tablets),
        user_files=sum(not is_service_path(file.path) for file in files),
        left={**lineage.left, **evidence.misfits},
        lost=lost,
        not_recovered=tuple(_not_recovered(evidence, table)),
        manifest=None if evidence.published is None else evidence.published.number,
    )
    if options.dry_run:
        return result
    made = await make_table(
        scope,
        free,
        tablets,
        stored=evidence.stored,
        live=table.state is TableState.LIVE,
        complete=True,
        lost=bool(lost),
    )
    went = dict.fromkeys(made.missing, "it went while the table was rebuilt: drop it and try again")
    came = dict.fromkeys(made.late, "it came while the table was rebuilt: drop it and try again")
    return replace(result, table=made.table, lost=lost | went | came)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LocationState:
    """What a location was like at one moment."""

    evidence: Evidence
    table: Table
    lineage: Lineage
    files: list[DataFile]


async def _read_location(
    rebuilder: RebuildPorts, place: Location, options: RebuildOptions
) -> _LocationState:
    """Look at a location until no file that counts has gone while it was looked at.

    Compactors of a table that was dropped a moment ago may still be tidying up.
    """
    threads, on_progress, gone = rebuilder.threads, rebuilder.on_progress, ""
    for _ in range(LOOKS_MAX):
        if delay_s := rebuilder.listing_delay_s:
            on_progress(f"waiting {delay_s:g} s, until the storage lists what it has")
            await asyncio.sleep(delay_s)
        evidence = await gather_evidence(place, threads, on_progress, user_files=options.user_files)
        described = described_table(evidence, place, options.given)
        table = rebuilder.admission.checked(_table_to_make(described, evidence, rebuilder, options))
        lineage = lineage_of(evidence)
        rows = [path for path in lineage.files if not _is_mark(evidence, path)]
        on_progress(f"reading {len(rows)} files")
        files = await facts_of(place, threads, table, rows, evidence)
        # What has gone could not be read; what goes later is missed when the table is there.
        unread = [*evidence.unreadable]
        there = await threads.run(place.uri, existing_files, place, unread)
        gone = min({*unread} - there.keys(), default="")
        if not gone:
            return _LocationState(evidence=evidence, table=table, lineage=lineage, files=files)
        on_progress(f"{gone} has gone meanwhile: looking once more")
    raise RefusedError(
        f"files of {place.uri} go while they are looked at, the last was {gone}: wait until "
        "whoever works there is done, and try again"
    )


def _table_to_make(
    table: Table, evidence: Evidence, rebuilder: RebuildPorts, options: RebuildOptions
) -> Table:
    live = TableState.PAUSED if table.state is TableState.PAUSED else TableState.LIVE
    # What was written for the table that is rebuilt is its own, under whatever id.
    known = replace(table, former_ids=(*own_table_ids(evidence), *table.former_ids))
    return replace(
        table,
        id=rebuilder.ids.next("t"),
        former_ids=former_ids_of(known),
        name=options.name,
        state=live,
    )


def _is_mark(evidence: Evidence, path: str) -> bool:
    footer = evidence.footers.get(path)
    return footer is not None and not footer.rows


async def _tablets(
    scope: TableScope, files: Sequence[DataFile], evidence: Evidence
) -> list[TabletDump]:
    footers = evidence.footers.values()
    if scope.table.partition_by:
        work = (
            scope.run(partition_of_file, scope.location, scope.table, file.path) for file in files
        )
        return _partitions(files, await gather_bounded(work), footers)
    ends = _tablet_ends(files, known_ends(evidence, {file.path for file in files}))
    starts = [None, *ends[:-1]]
    return [
        TabletDump(
            bounds=Bounds(start, end),
            purge=_watermark_of(footers, start, end),
            files=tuple(file for file in files if _tablet_end_of(ends, file) == end),
        )
        for start, end in zip(starts, ends, strict=True)
    ]


def _tablet_ends(files: Sequence[DataFile], told: Collection[bytes]) -> list[bytes]:
    """Return the ends of tablets that are told of, without those that a file crosses."""
    whole = [
        end
        for end in sorted({*told} - {PLUS_INFINITY})
        if not any(
            file.key_min is not None
            and file.key_max is not None
            and file.key_min <= end < file.key_max
            for file in files
        )
    ]
    return [*whole, PLUS_INFINITY]


def _tablet_end_of(ends: Sequence[bytes], file: DataFile) -> bytes:
    return next(end for end in ends if file.key_min is None or file.key_min <= end)


def _watermark_of(footers: Iterable[OutputFooter], start: bytes | None, end: bytes) -> bytes | None:
    """Return the highest watermark of the tablets that lie in this one, or reach into it."""
    known = []
    for each in footers:
        told = TabletId.parse("", each.tablet).end
        within = (start is None or told > start) and (told <= end or told == PLUS_INFINITY)
        if each.purge is not None and within:
            known.append(each.purge)
    return max(known, default=None)


def _partitions(
    files: Sequence[DataFile],
    homes: Sequence[Partition],
    footers: Iterable[OutputFooter],
) -> list[TabletDump]:
    found: dict[Partition, list[DataFile]] = {}
    for file, home in zip(files, homes, strict=True):
        found.setdefault(home, []).append(file)
    told = [(TabletId.parse("", each.tablet).end, each.purge) for each in footers]
    return [
        TabletDump(
            bounds=Bounds(None, home.end, home.text),
            purge=max(
                (purge for end, purge in told if end == home.end and purge is not None),
                default=None,
            ),
            files=tuple(some),
        )
        for home, some in sorted(found.items(), key=lambda pair: pair[0].end)
    ]


def _not_recovered(evidence: Evidence, table: Table) -> Iterable[str]:
    published = evidence.published
    if evidence.unusable:
        yield f"what the newest manifest says: {evidence.unusable}"
    if evidence.described is None:
        yield "settings: they have their defaults"
    if table.partition_by:
        yield "partitions without a file"
    elif table.key:
        held = "held no file" if published else "no output was made for"
        yield f"tablets that {held}: their keys belong to the next tablet"
    if any(not is_service_path(path) for path in evidence.added):
        if published is None:
            yield "whether files of users had been added: those that nobody replaced count as added"
        else:
            yield (
                f"whether files of users had been added since {published.name}: those written "
                "since then count, older ones do not"
            )
    yield from NEVER
