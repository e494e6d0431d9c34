"""`neve rebuild`: a table's metadata out of its location, after Redis was lost.

    description and footers → which files count (`lineage`) → their facts, read anew
    → tablets: the ends that footers tell, without those that a file crosses
    → watermarks: the highest that an output of the tablet carries → the table, paused
    → live, if nothing is lost

What no file tells, the report says.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from common.errors import RequestError
from common.ids import IdSource
from common.metadata.ports import TabletStore
from common.model.file import DataFile
from common.model.table import Table, TableState
from common.model.tablet import PLUS_INFINITY, Bounds, TabletId
from common.parquet.location import open_location
from common.rows.partitions import Partition
from neve.recovery.archive import TabletDump
from neve.recovery.evidence import Evidence, described_table, facts_of, gather_evidence
from neve.recovery.footers import OutputFooter
from neve.recovery.founding import check_free, found_table
from neve.recovery.lineage import Lineage, attempts_of, trace
from neve.recovery.partitions import partition_of_file
from neve.recovery.scope import Scope, Tell, Threads, in_turn, silent

NEVER = (
    "requests under way, reservations and selections: submit requests again",
    "the history of finished jobs, and what waited for deletion: `neve gc` finds such files",
    "how long each version has been known: tombstones are kept one retention longer",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildOptions:
    """How a table is rebuilt."""

    name: str
    given: Mapping[str, object] = field(default_factory=dict)
    """`key`, `version_column`, … for a location without a description."""
    user_files: bool = True
    """Whether Parquet files of users count as added: nothing tells whether they were."""
    adopt: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilder:
    """What a rebuild needs of the outside."""

    store: TabletStore
    threads: Threads
    ids: IdSource
    tell: Tell = silent


async def rebuild(rebuilder: Rebuilder, location: str, options: RebuildOptions) -> Rebuilt:
    """Make a table out of what lies in a location.

    Args:
        rebuilder: Ports.
        location: A normal location.
        options: How.

    Raises:
        RequestError: Nothing describes the table.
        RefusedError: Name or location are taken, or another store's.
    """
    place = open_location(location)
    threads, tell = rebuilder.threads, rebuilder.tell
    evidence = await gather_evidence(place, threads, tell, user_files=options.user_files)
    table = _named(described_table(evidence, place, options.given), rebuilder, options)
    scope = Scope(store=rebuilder.store, table=table, threads=threads, grace_s=0.0, tell=tell)
    await check_free(scope, take_over=options.adopt)
    lineage = _lineage(evidence)
    rows = [path for path in lineage.files if not _is_mark(evidence, path)]
    tell(f"reading {len(rows)} files")
    files = await facts_of(place, threads, table, rows, evidence)
    tablets = await _tablets(scope, files, evidence)
    lost = {**lineage.lost, **evidence.unreadable}
    result = Rebuilt(
        table=table,
        files=tuple(files),
        tablets=len(tablets),
        user_files=sum(not file.path.startswith("_neve/") for file in files),
        left={**lineage.left, **evidence.misfits},
        lost=lost,
        not_recovered=tuple(_not_recovered(evidence, table)),
    )
    if options.dry_run:
        return result
    made = await found_table(
        scope, tablets, stored=evidence.stored, take_over=options.adopt, live=not lost
    )
    return replace(result, table=made.table)


def _named(table: Table, rebuilder: Rebuilder, options: RebuildOptions) -> Table:
    live = TableState.PAUSED if table.state is TableState.PAUSED else TableState.LIVE
    return replace(table, id=rebuilder.ids.next("t"), name=options.name, state=live)


def _lineage(evidence: Evidence) -> Lineage:
    """Trace the outputs of the table that was here last."""
    described = evidence.described
    mine = [described.id] if described and described.id in evidence.tables else evidence.tables
    if len(mine) > 1:
        raise RequestError(
            f"the location holds outputs of several tables ({', '.join(mine)}), and no "
            "description says which one was the last: move the others' files away"
        )
    footers = [each for each in evidence.footers.values() if each.table in mine]
    found = trace(evidence.added, attempts_of(footers))
    others = {
        path: f"it was made for another table, {each.table}"
        for path, each in evidence.footers.items()
        if each.table not in mine
    }
    return replace(found, left=dict(found.left) | others)


def _is_mark(evidence: Evidence, path: str) -> bool:
    footer = evidence.footers.get(path)
    return footer is not None and not footer.rows


async def _tablets(scope: Scope, files: Sequence[DataFile], evidence: Evidence) -> list[TabletDump]:
    footers = evidence.footers.values()
    if scope.table.partition_by:
        work = (
            scope.threads.run(partition_of_file, scope.location, scope.table, file.path)
            for file in files
        )
        return _partitions(files, await in_turn(work), footers)
    ends = _ends(files, footers)
    starts = [None, *ends[:-1]]
    return [
        TabletDump(
            bounds=Bounds(start, end),
            purge=_purge(footers, start, end),
            files=tuple(file for file in files if _home(ends, file) == end),
        )
        for start, end in zip(starts, ends, strict=True)
    ]


def _ends(files: Sequence[DataFile], footers: Iterable[OutputFooter]) -> list[bytes]:
    """Return the ends of tablets that outputs tell of, without those that a file crosses."""
    told = {TabletId.parse("", each.tablet).end for each in footers} - {PLUS_INFINITY}
    whole = [
        end
        for end in sorted(told)
        if not any(
            file.key_min is not None
            and file.key_max is not None
            and file.key_min <= end < file.key_max
            for file in files
        )
    ]
    return [*whole, PLUS_INFINITY]


def _home(ends: Sequence[bytes], file: DataFile) -> bytes:
    return next(end for end in ends if file.key_min is None or file.key_min <= end)


def _purge(footers: Iterable[OutputFooter], start: bytes | None, end: bytes) -> bytes | None:
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
    if evidence.described is None:
        yield "settings: they have their defaults"
    if table.partition_by:
        yield "partitions without a file"
    elif table.key:
        yield "tablets that no output was made for: their keys belong to the next tablet"
    if any(not path.startswith("_neve/") for path in evidence.added):
        yield "whether files of users had been added: those that nobody replaced count as added"
    yield from NEVER
