"""The listing sweep: files of ours that no key knows go to garbage (`neve gc`).

In the protocol's order, for each step may move a file towards the next one only:

    list storage → `running` of all tablets → files by the tile rule, and garbage
    → job outputs and `_neve/append/` files older than the grace that appear in neither

Ownership is what the keys say, never the folder; a user's file is never touched, nor one
that was written for another table, which may be its only copy. Each file goes by a change
that looks at its tablet once more; the collector then deletes it after the grace, under
the same rules as any replaced file. What may hold the only copy of rows, because the store
has forgotten it, stays (`only_copies`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from common.errors import MetadataError, RequestError
from common.metadata.changes import DiscardFiles
from common.metadata.keys import HISTORY_MAX
from common.metadata.table_walk import walk_ids, walk_tiles
from common.model.outcome import AttemptEnd
from common.model.table import Table
from common.model.tablet import TabletId
from common.parquet.file_inspection import inspect_file
from common.parquet.location import Location, existing_files
from common.rows.rules import RowRules
from neve.recovery.check_place import check_generation
from neve.recovery.findings import Code, Finding
from neve.recovery.footers import OutputFooter, read_output_footer, table_of_file
from neve.recovery.only_copies import OnlyCopies
from neve.recovery.partitions import partition_of_file
from neve.recovery.scope import Scope, in_turn
from neve.recovery.stored import StoredFile, Whose, list_location, whose

COMMITTED = AttemptEnd.COMMITTED.value
OURS = frozenset({Whose.OUTPUT, Whose.APPENDED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a look at a location came to."""

    findings: tuple[Finding, ...]
    stored: Mapping[str, StoredFile]
    orphan_bytes: int = 0
    young: int = 0
    """Files that no key knows, and that may be about to be added or committed."""
    marks: int = 0
    """Empty outputs that still tell a rebuild that their inputs are gone."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a file would belong."""

    end: bytes | None
    key_min: bytes | None = None
    mark: bool = False
    foreign: str = ""
    """The table that it was written for, if that is another."""
    footer: OutputFooter | None = None
    """What a job's output says of itself."""


@dataclass(frozen=True, slots=True)
class Known:
    """The paths that keys of a table know."""

    reserved: frozenset[str]
    held: frozenset[str]
    garbage: frozenset[str]

    @property
    def paths(self) -> frozenset[str]:
        """All of them."""
        return self.reserved | self.held | self.garbage


async def find_orphans(scope: Scope) -> Swept:
    """Return the files of a location that no key knows; nothing is written.

    Raises:
        MetadataError: A tablet cannot be decoded, so nobody can say what it holds.
        UnavailableError: Store or storage do not answer.
    """
    scope.tell("listing the location")
    stored = await scope.run(list_location, scope.location)
    listed_s = await scope.store.now_s()
    known = await _known(scope)
    unknown = stored.keys() - known.paths
    ours = sorted(path for path in unknown if stored[path].whose in OURS)
    aged = [path for path in ours if _is_old(stored[path], listed_s - scope.grace_s)]
    there = await _there(scope, aged)
    old = [stored[path] for path in aged if path in there]  # A listing may be late.
    places = await in_turn(_place(scope, file) for file in old)
    looked = list(zip(old, places, strict=True))
    foreign = [(file, place) for file, place in looked if place.foreign]
    pairs = [(file, place) for file, place in looked if not (place.mark or place.foreign)]
    kept = await _only_copies(scope, pairs, known, stored, listed_s)
    orphans = [(file, place) for file, place in pairs if file.path not in kept]
    users = sorted(path for path in unknown if stored[path].whose is Whose.USER)
    return Swept(
        findings=(
            *(_orphan(scope.table, file, place) for file, place in orphans),
            *(_evidence(stored[path], why) for path, why in sorted(kept.items())),
            *(_foreign_file(file, place) for file, place in foreign),
            *(_user_file(stored[path]) for path in users),
        ),
        stored=stored,
        orphan_bytes=sum(file.size_bytes for file, _ in orphans),
        young=len(ours) - len(aged),
        marks=len(old) - len(pairs) - len(foreign),
    )


async def _there(scope: Scope, paths: Sequence[str]) -> Collection[str]:
    """Return those of some files that are in storage, whatever a listing says."""
    return await scope.run(existing_files, scope.location, paths) if paths else ()


async def _known(scope: Scope) -> Known:
    """Return every path that a key knows: reserved, held, or waiting for deletion."""
    reserved, held = set[str](), set[str]()
    scope.tell("reading what runs")
    async for ids in walk_ids(scope.store, scope.table.id):
        for each in await scope.store.inspect(ids):
            if each.broken:
                raise MetadataError(f"tablet {each.id} cannot be read: {each.broken}")
            running = each.tablet.running.values() if each.tablet else ()
            reserved.update(p for entry in running for p in (*entry.inputs, *entry.output_paths))
    scope.tell("reading which files are held")
    async for page in walk_tiles(scope.store, scope.table):
        for tablet in page:
            held.update(tablet.files)
    garbage = {entry.path for entry in await scope.store.garbage(scope.table.id)}
    return Known(frozenset(reserved), frozenset(held), frozenset(garbage))


async def _only_copies(
    scope: Scope,
    orphans: Sequence[tuple[StoredFile, _Place]],
    known: Known,
    stored: Mapping[str, StoredFile],
    listed_s: float,
) -> dict[str, str]:
    """Return those of some orphans that may hold the only copy of rows → why.

    Footers of files that are in the table are read only if there is a doubt.
    """
    if not orphans:
        return {}
    # While nobody has accepted that changes were lost, all that lies there may be rows.
    behind = bool(await check_generation(scope))
    loss = await scope.store.loss(scope.table.id)
    lost_s = None if loss is None else loss.until_s
    history = await scope.store.history(scope.table.id, HISTORY_MAX)
    ended = [(each.attempt, each.inputs) for each in history if each.end == COMMITTED]
    inputs = {path for _, place in orphans if place.footer for path in place.footer.inputs}
    held = sorted(known.held & inputs)
    # Not by the listing, which may still name what is gone: then an output would be waste.
    judge = OnlyCopies(
        held=frozenset(await _there(scope, held)),
        garbage=known.garbage,
        lost_s=listed_s if behind else lost_s,
    )
    judge.committed(ended)
    files = [(file, place.footer) for file, place in orphans]
    if not judge.among(files):
        return {}
    outputs = sorted(path for path in known.held if whose(path) is Whose.OUTPUT and path in stored)
    scope.tell(f"reading {len(outputs)} footers")
    looks = await in_turn(scope.run(_footer, scope.location, path) for path in outputs)
    judge.committed((each.attempt, each.inputs) for each in looks if each is not None)
    return judge.among(files)


def _is_old(file: StoredFile, until_s: float) -> bool:
    return file.changed_s is not None and file.changed_s < until_s


async def _place(scope: Scope, file: StoredFile) -> _Place:
    """Return where an orphan would belong, so that its tablet is looked at once more."""
    found = await scope.run(_look, scope.location, scope.table, file)
    if found.mark or found.foreign or found.end is not None:
        return found
    if found.key_min is not None:
        tablet = await scope.store.locate(scope.table.id, found.key_min)
        return replace(found, end=tablet.end if tablet else None)
    # Nobody can add what cannot be read, and a file without keys belongs to the first.
    first = await scope.store.tablet_ids(scope.table.id, None, 1)
    return replace(found, end=first[0].end if first else None)


def _look(location: Location, table: Table, file: StoredFile) -> _Place:
    if foreign := _written_for_another(location, table, file):
        return _Place(None, foreign=foreign)
    footer = None
    try:
        footer = read_output_footer(location, file.path)
        if footer is not None and not footer.rows and existing_files(location, footer.inputs):
            return _Place(None, mark=True)
        if table.partition_by:
            end = partition_of_file(location, table, file.path).end
            return _Place(end, footer=footer)
        facts = inspect_file(location, file.path, RowRules.of(table))
        return _Place(None, facts.rows.key_min, footer=footer)
    except RequestError:
        return _Place(None, footer=footer)


def _footer(location: Location, path: str) -> OutputFooter | None:
    try:
        return read_output_footer(location, path)
    except RequestError:
        return None


def _written_for_another(location: Location, table: Table, file: StoredFile) -> str:
    """Return which other table a file was written for; empty: none that can be told.

    A file that does not say it, or cannot be read, is an earlier table's if it is older
    than this one: of a table that was dropped the files may have been kept on purpose.
    """
    try:
        written_for = table_of_file(location, file.path)
    except RequestError:
        written_for = None
    if written_for is not None:
        return "" if written_for in table.own_ids else f"table {written_for}"
    old = file.changed_s is not None and file.changed_s < table.created_at_s
    return "a table that was here before" if old else ""


def _foreign_file(file: StoredFile, place: _Place) -> Finding:
    return Finding(
        code=Code.FOREIGN,
        path=file.path,
        sentence=f"file of {file.size_bytes} bytes that was written for {place.foreign}: it is "
        "left alone; `neve rebuild` brings a dropped table back, or delete it yourself",
    )


def _orphan(table: Table, file: StoredFile, place: _Place) -> Finding:
    what = "job output" if file.whose is Whose.OUTPUT else "appended file"
    sentence = f"{what} of {file.size_bytes} bytes that no key of the table knows"
    if place.end is None:
        return Finding(code=Code.ORPHANED, path=file.path, sentence=sentence)
    tablet = TabletId(table.id, place.end)
    return Finding(
        code=Code.ORPHANED,
        path=file.path,
        tablet=tablet,
        sentence=sentence,
        repair="give it to the collector, which deletes it after the grace",
        changes=(DiscardFiles(tablet=tablet, files={file.path: place.key_min}),),
    )


def _evidence(file: StoredFile, why: str) -> Finding:
    what = "job output" if file.whose is Whose.OUTPUT else "appended file"
    return Finding(
        code=Code.EVIDENCE,
        path=file.path,
        sentence=(
            f"{what} of {file.size_bytes} bytes that no key of the table knows and that may hold "
            f"the only copy of its rows: {why}; it stays. A rebuild of the table takes it in"
        ),
    )


def _user_file(file: StoredFile) -> Finding:
    return Finding(
        code=Code.UNKNOWN,
        path=file.path,
        sentence=f"file of {file.size_bytes} bytes that is not in the table: add it, or leave it",
    )
