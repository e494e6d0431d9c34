"""What is wrong with the metadata of tablets, by itself. Pure."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from common.metadata.changes import (
    ClearMarks,
    EndReservation,
    FillHole,
    MoveFile,
    RecountRecord,
)
from common.metadata.store_values import RawTablet
from common.model.file import DataFile
from common.model.tablet import PLUS_INFINITY, Bounds, Tablet, TabletId
from neve.recovery.findings import Code, Finding

NAMED_MAX = 5


def check_tablet(found: RawTablet) -> Iterator[Finding]:
    """Yield what is wrong with one tablet."""
    if found.broken:
        yield Finding(code=Code.UNDECODABLE, tablet=found.id, sentence=found.broken)
    if found.tablet is None:
        return
    if found.miscounted:
        yield _miscounted(found)
    for attempt in sorted(found.outcomes):
        yield Finding(
            code=Code.STALE_RESERVATION,
            tablet=found.id,
            sentence=f"attempt {attempt} has ended, but holds a reservation",
            repair="remove the reservation",
            changes=(EndReservation(tablet=found.id, attempt=attempt),),
        )
    if found.ended:
        yield _stale_marks(found)
    yield from _stale_selection(found.tablet)


def _miscounted(found: RawTablet) -> Finding:
    wrong = ", ".join(
        f"{said} {name}, there are {there}" for name, (said, there) in found.miscounted.items()
    )
    return Finding(
        code=Code.COUNTS,
        tablet=found.id,
        sentence=f"the record counts {wrong}",
        repair="count anew",
        changes=(RecountRecord(tablet=found.id),),
    )


def _stale_marks(found: RawTablet) -> Finding:
    requests = tuple(sorted(found.ended))
    return Finding(
        code=Code.STALE_MARKS,
        tablet=found.id,
        sentence=f"requests that are over have a selection or marker here: {_named(requests)}",
        repair="remove selection and markers",
        changes=(ClearMarks(tablet=found.id, requests=requests),),
    )


def _stale_selection(tablet: Tablet) -> Iterator[Finding]:
    if tablet.selection is None:
        return
    if gone := sorted(set(tablet.selection.files) - tablet.files.keys()):
        yield Finding(
            code=Code.STALE_SELECTION,
            tablet=tablet.id,
            sentence=f"request {tablet.selection.request} selected files that are not here: "
            f"{_named(gone)}; cancel the request",
        )


def check_bounds(tablet: Tablet, others: Sequence[Bounds]) -> Iterator[Finding]:
    """Yield the files of a tablet whose keys lie outside it.

    Args:
        tablet: With its files.
        others: Bounds of all tablets.
    """
    if tablet.bounds.partition is not None:
        return
    for path, file in sorted(tablet.files.items()):
        if _belongs(tablet.bounds, file):
            continue
        home = next((each for each in others if _belongs(each, file)), None)
        target = None if home is None else TabletId(tablet.id.table, home.end)
        changes = () if target is None else (MoveFile(tablet=tablet.id, target=target, path=path),)
        yield Finding(
            code=Code.OUTSIDE,
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
    """Yield holes between the tablets of a table, ascending by end.

    Args:
        table: Its id.
        tablets: Bounds of all tablets that have any, in the order of the index.
    """
    reached: bytes | None = None
    for bounds in tablets:
        if bounds.start is not None and (reached is None or bounds.start > reached):
            yield _hole(table, reached, bounds.start)
        reached = bounds.end
    if reached != PLUS_INFINITY:
        yield _hole(table, reached, PLUS_INFINITY)


def overlaps(tablets: Sequence[Bounds]) -> Iterator[tuple[Bounds, Bounds]]:
    """Yield pairs of neighbours, in the order of the index, of which one reaches into the other."""
    for left, right in pairwise(tablets):
        if right.start is None or right.start < left.end:
            yield left, right


def _hole(table: str, start: bytes | None, end: bytes) -> Finding:
    tablet = TabletId(table, end)
    return Finding(
        code=Code.HOLE,
        tablet=tablet,
        sentence=f"no tablet holds the keys from {_shown(start)} to {_shown(end)}",
        repair="make the tablet",
        changes=(FillHole(tablet=tablet, start=start),),
    )


def _shown(key: bytes | None) -> str:
    if key is None:
        return "the beginning"
    return "the end" if key == PLUS_INFINITY else key.hex()


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
