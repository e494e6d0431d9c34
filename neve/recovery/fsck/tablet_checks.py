"""Checks of the metadata of single tablets and of neighbouring tablets. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from common.metadata.changes import (
    Change,
    ClearMarks,
    DropDuplicate,
    EndReservation,
    FillHole,
    JoinTablets,
    MoveFile,
    RecountRecord,
    TrimTablet,
)
from common.metadata.mutation.repair_records import why_not_joined
from common.metadata.store_values import RawTablet
from common.model.file import DataFile
from common.model.outcome import RefusalCode
from common.model.tablet import PLUS_INFINITY, Bounds, Tablet, TabletId
from neve.recovery.findings import Finding, FindingCode

TABLETS_NAMED_MAX = 5


def check_tablet(found: RawTablet) -> Iterator[Finding]:
    """Yield the findings about one tablet."""
    if found.broken:
        yield Finding(code=FindingCode.UNDECODABLE, tablet=found.id, sentence=found.broken)
    if found.tablet is None:
        return
    if found.miscounted:
        yield _count_finding(found)
    for attempt in sorted(found.outcomes):
        yield Finding(
            code=FindingCode.STALE_RESERVATION,
            tablet=found.id,
            sentence=f"attempt {attempt} has ended, but holds a reservation",
            repair="remove the reservation",
            changes=(EndReservation(tablet=found.id, attempt=attempt),),
        )
    if found.ended:
        yield _stale_marks(found)
    yield from _stale_selection(found.tablet)


def _count_finding(found: RawTablet) -> Finding:
    wrong = ", ".join(
        f"{said} {name}, there are {there}" for name, (said, there) in found.miscounted.items()
    )
    return Finding(
        code=FindingCode.COUNTS,
        tablet=found.id,
        sentence=f"the record counts {wrong}",
        repair="count anew",
        changes=(RecountRecord(tablet=found.id),),
    )


def _stale_marks(found: RawTablet) -> Finding:
    requests = tuple(sorted(found.ended))
    return Finding(
        code=FindingCode.STALE_MARKS,
        tablet=found.id,
        sentence=f"requests that are over have a selection or marker here: {_list_of(requests)}",
        repair="remove selection and markers",
        changes=(ClearMarks(tablet=found.id, requests=requests),),
    )


def _stale_selection(tablet: Tablet) -> Iterator[Finding]:
    if tablet.selection is None:
        return
    if gone := sorted(set(tablet.selection.files) - tablet.files.keys()):
        yield Finding(
            code=FindingCode.STALE_SELECTION,
            tablet=tablet.id,
            sentence=f"request {tablet.selection.request} selected files that are not here: "
            f"{_list_of(gone)}; cancel the request",
        )


class TabletIndex:
    """Finds the tablets of a table by key, even if tablets overlap or leave holes."""

    def __init__(self, bounds: Sequence[Bounds]) -> None:
        """Create an index.

        Args:
            bounds: Bounds of all tablets, ascending by end.
        """
        self.bounds = bounds
        self._ends = [bound.end for bound in bounds]
        self._lower = _next_with_lower_start(bounds)

    def home(self, file: DataFile) -> Bounds | None:
        """Return the first tablet whose bounds contain all keys of a file."""
        if file.key_min is None or file.key_max is None:
            last = self.bounds[-1:]
            return last[0] if last and _belongs(last[0], file) else None
        index = bisect_left(self._ends, file.key_max)
        while index < len(self.bounds):
            if self.bounds[index].holds(file.key_min, file.key_max):
                return self.bounds[index]
            index = self._lower[index]
        return None

    def ends_within(self, start: bytes | None, end: bytes) -> Sequence[bytes]:
        """Return the tablet ends greater than `start` and at most `end`."""
        first = 0 if start is None else bisect_right(self._ends, start)
        return self._ends[first : bisect_right(self._ends, end)]


def _next_with_lower_start(bounds: Sequence[Bounds]) -> list[int]:
    """Return, per tablet, the index of the next tablet with a lower start; `len(bounds)`: none."""
    following = [len(bounds)] * len(bounds)
    starts = [bound.start or b"" for bound in bounds]
    for index in reversed(range(len(bounds))):
        other = index + 1
        while other < len(bounds) and starts[other] >= starts[index]:
            other = following[other]
        following[index] = other
    return following


def check_bounds(tablet: Tablet, others: TabletIndex) -> Iterator[Finding]:
    """Yield the files of a tablet whose keys lie outside it.

    Args:
        tablet: The tablet, with its files.
        others: All tablets of the table.
    """
    if tablet.bounds.partition is not None:
        return
    for path, file in sorted(tablet.files.items()):
        if _belongs(tablet.bounds, file):
            continue
        home = others.home(file)
        target = None if home is None else TabletId(tablet.id.table, home.end)
        changes = () if target is None else (MoveFile(tablet=tablet.id, target=target, path=path),)
        yield Finding(
            code=FindingCode.OUTSIDE,
            path=path,
            tablet=tablet.id,
            sentence="the file has keys outside its tablet",
            repair="" if target is None else f"move its entry to tablet {target.text}",
            changes=changes,
        )


def _belongs(bounds: Bounds, file: DataFile) -> bool:
    if file.key_min is None or file.key_max is None:
        return not file.rows or (bounds.start is None and bounds.end == PLUS_INFINITY)
    return bounds.holds(file.key_min, file.key_max)


def check_holes(table: str, tablets: Sequence[Bounds]) -> Iterator[Finding]:
    """Yield the holes between the tablets of a table, in ascending order.

    Args:
        table: Id of the table.
        tablets: Bounds of all tablets that have bounds, ascending by end.
    """
    reached: bytes | None = None
    for bounds in tablets:
        if bounds.start is not None and (reached is None or bounds.start > reached):
            yield _hole_finding(table, reached, bounds.start)
        reached = bounds.end
    if reached != PLUS_INFINITY:
        yield _hole_finding(table, reached, PLUS_INFINITY)


def overlapping_neighbours(tablets: Sequence[Bounds]) -> Iterator[tuple[Bounds, Bounds]]:
    """Yield the pairs of neighbouring tablets that overlap, ascending by end."""
    for left, right in pairwise(tablets):
        if right.start is None or right.start < left.end:
            yield left, right


def _hole_finding(table: str, start: bytes | None, end: bytes) -> Finding:
    tablet = TabletId(table, end)
    return Finding(
        code=FindingCode.HOLE,
        tablet=tablet,
        sentence=f"no tablet holds the keys from {_bound_text(start)} to {_bound_text(end)}",
        repair="make the tablet",
        changes=(FillHole(tablet=tablet, start=start),),
    )


def _bound_text(key: bytes | None) -> str:
    if key is None:
        return "the beginning"
    return "the end" if key == PLUS_INFINITY else key.hex()


def _list_of(names: Sequence[str]) -> str:
    more = f" and {len(names) - TABLETS_NAMED_MAX} more" if len(names) > TABLETS_NAMED_MAX else ""
    return ", ".join(names[:TABLETS_NAMED_MAX]) + more


# ----------------------------------------------------------------------------- Tablets that overlap


FILES_NAMED_MAX = 3


def overlap_finding(left: Tablet, right: Tablet, others: TabletIndex, doubles: set[str]) -> Finding:
    """Return the finding for two overlapping tablets, with a repair if there is one.

    Args:
        left: The tablet with the lower end.
        right: The next tablet, which starts before the end of `left`.
        others: All tablets of the table.
        doubles: Files of the right tablet that other tablets hold as well.
    """
    end = left.bounds.end
    found = Finding(
        code=FindingCode.OVERLAP,
        tablet=right.id,
        sentence=f"the tablet starts at {_bound_text(right.bounds.start)}, "
        f"but the one before it ends at {_bound_text(end)}",
    )
    if right.operation is not None:
        kind = right.operation.kind.value
        return replace(found, sentence=f"{found.sentence}; a {kind} is under way: abandon it first")
    before = [file for _, file in sorted(right.files.items()) if _reaches(file, end)]
    homes = [(file, _home_of(file, end, others)) for file in before]
    if homeless := [file.path for file, home in homes if home is None]:
        return _join_finding(found, left, right, homeless)
    trim = TrimTablet(tablet=right.id, before=right.bounds.start, start=end)
    moves = _move_changes(right.id, homes, doubles)
    return replace(
        found,
        repair=f"let it start there; {len(before)} of its files go to the tablets that hold them",
        changes=(*moves, trim),
    )


def _move_changes(
    tablet: TabletId, homes: Sequence[tuple[DataFile, Bounds | None]], doubles: set[str]
) -> Iterator[Change]:
    for file, home in homes:
        assert home is not None, file
        target = TabletId(tablet.table, home.end)
        if file.path in doubles:
            yield DropDuplicate(tablet=tablet, holder=target, path=file.path)
        else:
            yield MoveFile(tablet=tablet, target=target, path=file.path)


def _join_finding(found: Finding, left: Tablet, right: Tablet, paths: Sequence[str]) -> Finding:
    named = ", ".join(paths[:FILES_NAMED_MAX]) + (" …" if len(paths) > FILES_NAMED_MAX else "")
    why = f"{found.sentence}; files of it lie on both sides: {named}"
    if refusal := why_not_joined(left, right):
        advice = "restore the table from a backup, or rebuild it"
        if refusal.code != RefusalCode.PURGED:
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


def _home_of(file: DataFile, end: bytes, others: TabletIndex) -> Bounds | None:
    """Return the first tablet that contains all keys of a file, if it ends at or before `end`."""
    home = None if file.key_min is None else others.home(file)
    return None if home is None or home.end > end else home


def duplicate_finding(path: str, holders: Sequence[Tablet]) -> Finding:
    """Return a finding that several tablets hold a file; only the one with its keys keeps it."""
    names = ", ".join(holder.id.text for holder in holders)
    found = Finding(
        code=FindingCode.DOUBLE,
        path=path,
        tablet=holders[0].id,
        sentence=f"several tablets hold the file: {names}",
    )
    right = [holder for holder in holders if _holds(holder, path)]
    if len(right) != 1:
        why = "none of them holds all its keys" if not right else "their bounds overlap"
        return replace(found, sentence=f"{found.sentence}; {why}")
    (keeper,) = right
    wrong = (holder for holder in holders if holder.id != keeper.id)
    return replace(
        found,
        repair=f"leave it in tablet {keeper.id.text}, which holds its keys, alone",
        changes=tuple(
            DropDuplicate(tablet=tablet.id, holder=keeper.id, path=path) for tablet in wrong
        ),
    )


def _holds(tablet: Tablet, path: str) -> bool:
    file = tablet.files[path]
    if file.key_min is None or file.key_max is None:
        return False
    return tablet.bounds.holds(file.key_min, file.key_max)
