"""The listing sweep: files of ours that no key knows go to garbage (`neve gc`).

In the protocol's order, for each step may move a file towards the next one only:

    list storage → `running` of all tablets → files by the tile rule, and garbage
    → job outputs and `_neve/append/` files older than the grace that appear in neither

Ownership is what the keys say, never the folder; a user's file is never touched. Each
file goes by a change that looks at its tablet once more; the collector then deletes it
after the grace, under the same rules as any replaced file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from common.errors import MetadataError, RequestError
from common.metadata.repair_changes import DiscardFiles
from common.metadata.walk import walk_ids, walk_tiles
from common.model.table import Table
from common.model.tablet import TabletId
from common.parquet.inspect import inspect_file
from common.parquet.location import Location
from common.rows.rules import RowRules
from neve.recovery.findings import Code, Finding
from neve.recovery.footers import read_output_footer
from neve.recovery.partitions import partition_of_file
from neve.recovery.scope import Scope, in_turn
from neve.recovery.stored import StoredFile, Whose, list_location

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


async def find_orphans(scope: Scope) -> Swept:
    """Return the files of a location that no key knows; nothing is written.

    Raises:
        MetadataError: A tablet cannot be decoded, so nobody can say what it holds.
        UnavailableError: Store or storage do not answer.
    """
    scope.tell("listing the location")
    stored = await scope.threads.run(list_location, scope.location)
    listed_s = await scope.store.now_s()
    unknown = stored.keys() - await _known(scope)
    ours = sorted(path for path in unknown if stored[path].whose in OURS)
    old = [stored[path] for path in ours if _is_old(stored[path], listed_s - scope.grace_s)]
    places = await in_turn(_place(scope, file, stored) for file in old)
    pairs = [(file, place) for file, place in zip(old, places, strict=True) if not place.mark]
    users = sorted(path for path in unknown if stored[path].whose is Whose.USER)
    return Swept(
        findings=(
            *(_orphan(scope.table, file, place) for file, place in pairs),
            *(_user_file(stored[path]) for path in users),
        ),
        stored=stored,
        orphan_bytes=sum(file.size_bytes for file, _ in pairs),
        young=len(ours) - len(old),
        marks=len(old) - len(pairs),
    )


async def _known(scope: Scope) -> set[str]:
    """Return every path that a key knows: reserved, held, or waiting for deletion."""
    known: set[str] = set()
    scope.tell("reading what runs")
    async for ids in walk_ids(scope.store, scope.table.id):
        for each in await scope.store.inspect(ids):
            if each.broken:
                raise MetadataError(f"tablet {each.id} cannot be read: {each.broken}")
            running = each.tablet.running.values() if each.tablet else ()
            known.update(path for entry in running for path in (*entry.inputs, *entry.output_paths))
    scope.tell("reading which files are held")
    async for page in walk_tiles(scope.store, scope.table):
        for tablet in page:
            known.update(tablet.files)
    known.update(entry.path for entry in await scope.store.garbage(scope.table.id))
    return known


def _is_old(file: StoredFile, until_s: float) -> bool:
    return file.changed_s is not None and file.changed_s < until_s


async def _place(scope: Scope, file: StoredFile, stored: Mapping[str, StoredFile]) -> _Place:
    """Return where an orphan would belong, so that its tablet is looked at once more."""
    found = await scope.threads.run(_look, scope.location, scope.table, file, frozenset(stored))
    if found.mark or found.end is not None:
        return found
    if found.key_min is not None:
        tablet = await scope.store.locate(scope.table.id, found.key_min)
        return replace(found, end=tablet.end if tablet else None)
    # Nobody can add what cannot be read, and a file without keys belongs to the first.
    first = await scope.store.tablet_ids(scope.table.id, None, 1)
    return replace(found, end=first[0].end if first else None)


def _look(location: Location, table: Table, file: StoredFile, stored: frozenset[str]) -> _Place:
    try:
        footer = read_output_footer(location, file.path)
        if footer is not None and not footer.rows and stored.intersection(footer.inputs):
            return _Place(None, mark=True)
        if table.partition_by:
            return _Place(partition_of_file(location, table, file.path).end)
        return _Place(None, inspect_file(location, file.path, RowRules.of(table)).rows.key_min)
    except RequestError:
        return _Place(None)


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


def _user_file(file: StoredFile) -> Finding:
    return Finding(
        code=Code.UNKNOWN,
        path=file.path,
        sentence=f"file of {file.size_bytes} bytes that is not in the table: add it, or leave it",
    )
