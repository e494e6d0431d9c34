"""Repairs of tablets: counts, reservations, markers, watermarks, holes, overlaps.

Each carries what was observed, and is refused if that has changed.
"""

from dataclasses import dataclass, replace

from common.metadata.changes.attempts import attempt_entry
from common.metadata.changes.protocol import (
    Decision,
    Guarded,
    More,
    Needs,
    NoWrite,
    Seen,
    Transaction,
    Write,
    bounds_seen,
    refused_by_table,
    selection_seen,
    table_state,
    tablet_changed,
    tablet_gone,
    tablet_seen,
    transaction_of,
    uncommitted_outputs,
    whole_tablet,
)
from common.metadata.changes.requests import request_has_ended
from common.metadata.changes.split_merge import (
    merge_tablets,
    needs_of_tablet,
    tablet_there,
    tablets_seen,
    why_busy,
)
from common.metadata.codec.tablet import (
    BOUNDS,
    BYTES,
    DONE,
    FILES,
    OPERATION_FLAG,
    PURGED,
    RESERVATION,
    RUNNING,
    SELECTED,
    SETTLED,
    WAITING,
    unpack_files,
)
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.keyspace import (
    Command,
    delete,
    get,
    hdel,
    hget,
    hgetall,
    members_after,
    set_string,
    smembers,
    srem,
    zadd,
)
from common.model.file import DataFile
from common.model.outcome import Refusal, RefusalCode
from common.model.tablet import PLUS_INFINITY, Bounds, Tablet, TabletId

# ----------------------------------------------------------------------------- Counts and leftovers


@dataclass(frozen=True, slots=True, kw_only=True)
class RecountRecord(Guarded):
    """Recompute the counts and flags of a tablet's record from its other keys."""

    tablet: TabletId


def true_counts(keys: TabletKeys, seen: Seen) -> dict[str, int]:
    """Return the fields of a record, computed from the tablet's other keys."""
    files = unpack_files(keys.files, seen["files"])
    return {
        FILES: len(files),
        BYTES: sum(file.size_bytes for file in files.values()),
        RUNNING: len(seen["running"]),
        WAITING: len(seen["waiting"]),
        SELECTED: int(seen["selection"] is not None),
        OPERATION_FLAG: int(seen["operation"] is not None),
        DONE: len(seen["done"]),
        PURGED: int(seen["purge"] is not None),
    }


@transaction_of.register
def recount_record(change: RecountRecord) -> Transaction:
    """Return the transaction that recounts a tablet. Mark: the record has these counts.

    Every counted key is watched; the record itself is a sum of increments that changes of those
    keys write.
    """
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    needs = table_state(table) | whole_tablet(keys, keys.counted)

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(table, seen):
            return refusal
        if seen["bounds"] is None:
            return tablet_gone(change.tablet)
        wrong = {
            name: count
            for name, count in true_counts(keys, seen).items()
            if seen["record"].get(name.encode(), b"0") != b"%d" % count
        }
        return Write(tablet_changed(change.tablet, "recount", flags=wrong)) if wrong else NoWrite()

    return Transaction(needs, decide)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReservation(Guarded):
    """Remove the reservation of an attempt whose outcome is written."""

    tablet: TabletId
    attempt: str


@transaction_of.register
def end_reservation(change: EndReservation) -> Transaction:
    """Return the transaction that removes a stale reservation. Mark: it is gone."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    reads = {"files": hgetall(keys.files)}
    needs = attempt_entry(table, keys, change.attempt) | Needs((), reads)

    def decide(seen: Seen) -> Decision:
        if seen["entry"] is None:
            return NoWrite()
        if seen["outcome"] is None:
            return Refusal(
                RefusalCode.RUNNING, f"attempt {change.attempt} has no outcome: it may be running"
            )
        where = f"{keys.running} {change.attempt}"
        entry = RESERVATION.unpack(where, seen["entry"], attempt=change.attempt)
        waste = [path for path in entry.output_paths if path.encode() not in seen["files"]]
        return Write(
            (
                hdel(keys.running, change.attempt),
                *uncommitted_outputs(table, change.tablet.end, entry, waste),
                *tablet_changed(
                    change.tablet, "release", attempt=change.attempt, counts={RUNNING: -1}
                ),
            )
        )

    return Transaction(needs, decide)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearMarks(Guarded):
    """Remove selection and markers of requests that have ended or do not exist."""

    tablet: TabletId
    requests: tuple[str, ...]


@transaction_of.register
def clear_marks(change: ClearMarks) -> Transaction:
    """Return the transaction that removes remains of ended requests. Mark: nothing is left."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    own = [table.request(request) for request in change.requests]
    reads: dict[str, Command] = {
        "selection": get(keys.selection),
        "waiting": hgetall(keys.waiting),
        "done": smembers(keys.done),
    }
    reads |= {f"state/{key}": hget(key, "state") for key in own}
    needs = table_state(table)
    needs |= Needs((keys.selection, keys.waiting, keys.done, *own), reads)

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(table, seen):
            return refusal
        for request, key in zip(change.requests, own, strict=True):
            if not request_has_ended(seen[f"state/{key}"]):
                return Refusal(RefusalCode.REQUEST, f"request {request} has not ended")
        effects = _cleared(change, keys, seen)
        return Write(effects) if effects else NoWrite()

    return Transaction(needs, decide)


def _cleared(change: ClearMarks, keys: TabletKeys, seen: Seen) -> tuple[Command, ...]:
    effects: list[Command] = []
    counts: dict[str, int] = {}
    flags: dict[str, str | bytes | int | float] = {}
    selection = selection_seen(keys, seen["selection"])
    if selection is not None and selection.request in change.requests:
        effects.append(delete(keys.selection))
        flags[SELECTED] = 0
    names = [request.encode() for request in change.requests]
    if waiting := [name for name in names if name in seen["waiting"]]:
        effects.append(hdel(keys.waiting, *waiting))
        counts[WAITING] = -len(waiting)
    if done := [name for name in names if name in seen["done"]]:
        effects.append(srem(keys.done, *done))
        counts[DONE] = -len(done)
    if not effects:
        return ()
    return (*effects, *tablet_changed(change.tablet, "clear", counts=counts, flags=flags))


# ---------------------------------------------------------------------------------------- Watermark


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerWatermark(Guarded):
    """Let a tablet accept rows again at versions whose tombstones were dropped.

    Rows that such a tombstone had deleted may reappear with files that are added again.
    """

    tablet: TabletId
    to: bytes | None
    """The new watermark; None: none."""


@transaction_of.register
def lower_watermark(change: LowerWatermark) -> Transaction:
    """Return the transaction that lowers the watermark and resets its marks."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    reads = {"bounds": get(keys.bounds), "purge": get(keys.purge)}

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(table, seen):
            return refusal
        if seen["bounds"] is None:
            return tablet_gone(change.tablet)
        present = seen["purge"]
        if present == change.to:
            return NoWrite()
        if present is None or (change.to is not None and change.to > present):
            return Refusal(
                RefusalCode.WATERMARK,
                f"tablet {change.tablet}: its watermark is not above that, so nothing is lowered",
            )
        write: Command = (
            delete(keys.purge) if change.to is None else set_string(keys.purge, change.to)
        )
        flags = {PURGED: int(change.to is not None)}
        return Write(
            (
                write,
                hdel(keys.record, SETTLED),
                *tablet_changed(change.tablet, "watermark", flags=flags),
            ),
            durable=True,
        )

    return Transaction(table_state(table) | Needs((keys.bounds, keys.purge), reads), decide)


# ---- Holes and overlaps
#
# Splits and merges do not cause overlaps; a damaged or mixed store does. By the tile rule readers
# see only one of the two tablets, or are refused, until the overlap is repaired.


@dataclass(frozen=True, slots=True, kw_only=True)
class FillHole(Guarded):
    """Create a tablet that is missing between two others."""

    tablet: TabletId
    """Its end is the start of the next tablet."""
    start: bytes | None


@transaction_of.register
def fill_hole(change: FillHole) -> Transaction:
    """Return the transaction that creates a missing tablet. Mark: its bounds exist."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    reads = {"bounds": get(keys.bounds), "following": members_after(table.index, change.start, 2)}
    watch = [keys.bounds, table.index]
    if change.start is not None:
        before = TabletKeys.of(TabletId(change.tablet.table, change.start))
        watch.append(before.bounds)
        reads["before"] = get(before.bounds)

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(table, seen):
            return refusal
        if seen["bounds"] is not None:
            return NoWrite()
        if change.start is not None and seen["before"] is None:
            return _no_hole(change, "no tablet ends at its start")
        return _fill(change, seen)

    return Transaction(table_state(table) | Needs(tuple(watch), reads), decide)


def _fill(change: FillHole, seen: Seen) -> Decision:
    end = change.tablet.end
    following = [other for other in seen["following"] if other != end]
    if following and following[0] < end:
        return _no_hole(change, "another tablet is inside its range")
    if end == PLUS_INFINITY:
        return Write(_filled(change))
    if not following:
        return _no_hole(change, "no tablet follows it")
    beyond = TabletKeys.of(TabletId(change.tablet.table, following[0]))
    more = Needs((beyond.bounds,), {"beyond": get(beyond.bounds)})
    return More(more, lambda further: _fill_before(change, beyond, further))


def _fill_before(change: FillHole, beyond: TabletKeys, seen: Seen) -> Decision:
    bounds = bounds_seen(beyond, seen["beyond"])
    if bounds is None or bounds.start != change.tablet.end:
        return _no_hole(change, "the next tablet does not start at its end")
    return Write(_filled(change))


def _filled(change: FillHole) -> tuple[Command, ...]:
    keys = TabletKeys.of(change.tablet)
    return (
        set_string(keys.bounds, BOUNDS.pack(Bounds(change.start, change.tablet.end))),
        zadd(TableKeys(change.tablet.table).index, change.tablet.end),
        *tablet_changed(change.tablet, "fill"),
    )


def _no_hole(change: FillHole, reason: str) -> Refusal:
    return Refusal(RefusalCode.BOUNDS, f"tablet {change.tablet} cannot be created: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimTablet(Guarded):
    """Move the start of a tablet that overlaps the previous one to the previous one's end.

    Refused if a file of it is, or may be, below that.
    """

    tablet: TabletId
    before: bytes | None
    """Its observed start."""
    start: bytes
    """The end of the tablet before it."""


@transaction_of.register
def trim_tablet(change: TrimTablet) -> Transaction:
    """Return the transaction that moves the start of a tablet. Mark: its bounds.

    All its files are after the new start, so running attempts may continue.
    """
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    before = TabletKeys.of(TabletId(change.tablet.table, change.start))
    needs = table_state(table)
    needs |= whole_tablet(keys, (keys.bounds, keys.files, keys.operation))
    needs |= Needs((before.bounds,), {"before": get(before.bounds)})

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(table, seen):
            return refusal
        tablet = tablet_seen(change.tablet, keys, seen)
        if tablet is None:
            return tablet_gone(change.tablet)
        if tablet.bounds.start == change.start:
            return NoWrite()
        if refusal := _refused_trim(change, tablet, seen):
            return refusal
        bounds = replace(tablet.bounds, start=change.start)
        effects = tablet_changed(change.tablet, "trim")
        return Write((set_string(keys.bounds, BOUNDS.pack(bounds)), *effects))

    return Transaction(needs, decide)


def _refused_trim(change: TrimTablet, tablet: Tablet, seen: Seen) -> Refusal | None:
    subject = f"tablet {change.tablet}"
    if tablet.bounds.start != change.before:
        return Refusal(RefusalCode.BOUNDS, f"{subject} has another start now")
    if seen["before"] is None or change.start >= change.tablet.end:
        return Refusal(
            RefusalCode.BOUNDS, f"{subject}: no previous tablet ends at {change.start.hex()}"
        )
    if tablet.operation is not None:
        return Refusal(
            RefusalCode.OPERATION, f"{subject}: a {tablet.operation.kind.value} is under way"
        )
    for path, file in sorted(tablet.files.items()):
        if _reaches(file, change.start):
            return Refusal(
                RefusalCode.BOUNDS, f"{subject}: file {path} has keys before the new start"
            )
    return None


def _reaches(file: DataFile, key: bytes) -> bool:
    """Return whether a file may hold rows up to a key."""
    return file.key_min <= key if file.key_min is not None else file.rows > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinTablets(Guarded):
    """Move everything of a tablet to the next one, which overlaps it.

    Refused while work runs in one of them, and if dead rows were dropped in one of them that
    the other may hold older rows of.
    """

    left: TabletId
    right: TabletId
    """It keeps its end, and thereby its name."""


@transaction_of.register
def join_tablets(change: JoinTablets) -> Transaction:
    """Return the transaction that joins two tablets. Mark: the left one is gone."""
    table, both = TableKeys(change.left.table), (change.left, change.right)
    needs = table_state(table)
    for tablet in both:
        keys = TabletKeys.of(tablet)
        needs |= needs_of_tablet(tablet, whole_tablet(keys, keys.counted))

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(table, seen):
            return refusal
        if _is_joined(change, seen):
            return NoWrite()
        tablets = tablets_seen(both, seen)
        if isinstance(tablets, Refusal):
            return tablets
        left, right = tablets
        if refusal := why_not_joined(left, right):
            return refusal
        starts = (left.bounds.start, right.bounds.start)
        return Write(merge_tablets(left, right, min(start or b"" for start in starts) or None))

    return Transaction(needs, decide)


def _is_joined(change: JoinTablets, seen: Seen) -> bool:
    """Return whether the left tablet is gone, and the right one holds its last key."""
    right = tablet_there(change.right, seen)
    if right is None or tablet_there(change.left, seen) is not None:
        return False
    return right.bounds.start is None or right.bounds.start < change.left.end


def why_not_joined(left: Tablet, right: Tablet) -> Refusal | None:
    """Return why two overlapping tablets may not be joined, or None if they may.

    A job that drops a dead row has checked that no other file of *its* tablet holds an older
    row. It has not checked the other tablet, whose older row would reappear.
    """
    start = right.bounds.start
    if left.bounds.end >= right.bounds.end or (start is not None and start >= left.bounds.end):
        return Refusal(RefusalCode.BOUNDS, f"tablets {left.id} and {right.id} do not overlap")
    for tablet in (left, right):
        if refusal := why_busy(tablet):
            return refusal
    if left.running:
        attempts = ", ".join(sorted(left.running))
        return Refusal(RefusalCode.RUNNING, f"tablet {left.id}: attempts are running: {attempts}")
    for one, other in ((left, right), (right, left)):
        if one.purge is not None and other.files:
            return Refusal(
                RefusalCode.PURGED,
                f"tablet {one.id}: dead rows were dropped, and tablet {other.id} may hold "
                "older rows of their keys, which would reappear",
            )
    return None
