"""What would mend tablets that overlap, and what is mended by nobody. Pure.

The tablet that reaches into the one before it shall begin where that one ends. Files of it
that lie wholly before go to the tablet that holds their keys. A file that lies on both
sides cannot go anywhere: then the two are made one tablet, unless that could let rows rise
that were deleted, or somebody works there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from common.metadata.changes import (
    Change,
    DropDuplicate,
    JoinTablets,
    MoveFile,
    TrimTablet,
)
from common.metadata.mutation.repair_records import why_not_joined
from common.model.file import DataFile
from common.model.tablet import Bounds, Tablet, TabletId
from neve.recovery.findings import Code, Finding

NAMED_MAX = 3


def overlap(left: Tablet, right: Tablet, others: Sequence[Bounds], doubles: set[str]) -> Finding:
    """Return what is wrong between two tablets that overlap, and what would mend it.

    Args:
        left: The one before.
        right: Reaches into it.
        others: Bounds of all other tablets of the table; the left one is among them.
        doubles: Files of the right one that others hold, too.
    """
    end = left.bounds.end
    found = Finding(
        code=Code.OVERLAP,
        tablet=right.id,
        sentence=f"the tablet starts at {_shown(right.bounds.start)}, "
        f"but the one before it ends at {_shown(end)}",
    )
    if right.operation is not None:
        kind = right.operation.kind.value
        return replace(found, sentence=f"{found.sentence}; a {kind} is under way: abandon it first")
    before = [file for _, file in sorted(right.files.items()) if _reaches(file, end)]
    homes = [(file, _home(file, end, others)) for file in before]
    if homeless := [file.path for file, home in homes if home is None]:
        return _joined(found, left, right, homeless)
    trim = TrimTablet(tablet=right.id, before=right.bounds.start, start=end)
    moves = _moves(right.id, homes, doubles)
    return replace(
        found,
        repair=f"let it start there; {len(before)} of its files go to the tablets that hold them",
        changes=(*moves, trim),
    )


def _moves(
    tablet: TabletId, homes: Sequence[tuple[DataFile, Bounds | None]], doubles: set[str]
) -> Iterator[Change]:
    for file, home in homes:
        assert home is not None, file
        target = TabletId(tablet.table, home.end)
        if file.path in doubles:
            yield DropDuplicate(tablet=tablet, holder=target, path=file.path)
        else:
            yield MoveFile(tablet=tablet, target=target, path=file.path)


def _joined(found: Finding, left: Tablet, right: Tablet, paths: Sequence[str]) -> Finding:
    named = ", ".join(paths[:NAMED_MAX]) + (" …" if len(paths) > NAMED_MAX else "")
    why = f"{found.sentence}; files of it lie on both sides: {named}"
    if refusal := why_not_joined(left, right):
        advice = "restore the table from a backup, or rebuild it"
        if refusal.code != "purged":
            advice = "when nothing of that is left, check again"
        return replace(found, sentence=f"{why}; {refusal.reason}: {advice}")
    return replace(
        found,
        sentence=why,
        repair=f"make one tablet of it and tablet {left.id.text}",
        changes=(JoinTablets(left=left.id, right=right.id),),
    )


def _reaches(file: DataFile, end: bytes) -> bool:
    return file.key_min <= end if file.key_min is not None else file.rows > 0


def _home(file: DataFile, end: bytes, others: Sequence[Bounds]) -> Bounds | None:
    """Return the first tablet before a key that holds a whole file."""
    low, high = file.key_min, file.key_max
    if low is None or high is None:
        return None
    return next((each for each in others if each.end <= end and each.holds(low, high)), None)


def double(path: str, holders: Sequence[Tablet]) -> Finding:
    """Return that several tablets hold a file, and that those let it go that lack its keys."""
    names = ", ".join(each.id.text for each in holders)
    found = Finding(
        code=Code.DOUBLE,
        path=path,
        tablet=holders[0].id,
        sentence=f"several tablets hold the file: {names}",
    )
    right = [each for each in holders if _holds(each, path)]
    if len(right) != 1:
        why = "none of them holds all its keys" if not right else "their bounds overlap"
        return replace(found, sentence=f"{found.sentence}; {why}")
    (keeper,) = right
    wrong = (each for each in holders if each.id != keeper.id)
    return replace(
        found,
        repair=f"leave it in tablet {keeper.id.text}, which holds its keys, alone",
        changes=tuple(DropDuplicate(tablet=each.id, holder=keeper.id, path=path) for each in wrong),
    )


def _holds(tablet: Tablet, path: str) -> bool:
    file = tablet.files[path]
    if file.key_min is None or file.key_max is None:
        return False
    return tablet.bounds.holds(file.key_min, file.key_max)


def _shown(key: bytes | None) -> str:
    return "the beginning" if key is None else key.hex()
