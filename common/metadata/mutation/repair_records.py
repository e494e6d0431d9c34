"""Repairs other than of files: counts, reservations, markers, holes, watermarks, overlaps."""

from dataclasses import replace

from common.metadata.changes import (
    AcceptGeneration,
    ClearMarks,
    EndReservation,
    FillHole,
    JoinTablets,
    LowerWatermark,
    RecountRecord,
    TrimTablet,
)
from common.metadata.codec.layout import whole_number
from common.metadata.codec.table import LOSS, MANIFEST
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
from common.metadata.commands import (
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
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.mutation import needs as need
from common.metadata.mutation.effects import (
    table_changed,
    tablet_changed,
    uncommitted_outputs,
)
from common.metadata.mutation.requests import request_has_ended
from common.metadata.mutation.split_merge import (
    merge_tablets,
    needs_of_tablet,
    tablet_there,
    tablets_seen,
)
from common.metadata.mutation.transaction import (
    Decision,
    More,
    Needs,
    NoWrite,
    Seen,
    Transaction,
    Write,
)
from common.metadata.predicates import may_fill
from common.metadata.split_merge_predicates import why_busy
from common.metadata.store_values import AcceptedLoss
from common.model.file import DataFile
from common.model.outcome import Refusal, RefusalCode
from common.model.tablet import PLUS_INFINITY, Bounds, Tablet, TabletId

# ------------------------------------------------------------ Counts, leftovers, holes, generations


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


def recount_record(change: RecountRecord) -> Transaction:
    """Return the transaction that recounts a tablet. Mark: the record has these counts.

    Every counted key is watched; the record itself is a sum of increments that changes of those
    keys write.
    """
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    watch = [key for key in keys.every if key != keys.record]
    needs = need.table_state(table) | need.whole_tablet(keys, watch)

    def decide(seen: Seen) -> Decision:
        if refusal := need.refused_by_table(table, seen):
            return refusal
        if seen["bounds"] is None:
            return need.tablet_gone(change.tablet)
        wrong = {
            name: count
            for name, count in true_counts(keys, seen).items()
            if seen["record"].get(name.encode(), b"0") != b"%d" % count
        }
        return Write(tablet_changed(change.tablet, "recount", flags=wrong)) if wrong else NoWrite()

    return Transaction(needs, decide)


def end_reservation(change: EndReservation) -> Transaction:
    """Return the transaction that removes a stale reservation. Mark: it is gone."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    reads = {"files": hgetall(keys.files)}
    needs = need.attempt_entry(table, keys, change.attempt) | Needs((), reads)

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
    needs = need.table_state(table)
    needs |= Needs((keys.selection, keys.waiting, keys.done, *own), reads)

    def decide(seen: Seen) -> Decision:
        if refusal := need.refused_by_table(table, seen):
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
    selection = need.selection_seen(keys, seen["selection"])
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
        if refusal := need.refused_by_table(table, seen):
            return refusal
        if seen["bounds"] is not None:
            return NoWrite()
        if change.start is not None and seen["before"] is None:
            return _no_hole(change, "no tablet ends at its start")
        return _fill(change, seen)

    return Transaction(need.table_state(table) | Needs(tuple(watch), reads), decide)


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
    bounds = need.bounds_seen(beyond, seen["beyond"])
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


def _no_hole(change: FillHole, why: str) -> Refusal:
    return Refusal(RefusalCode.BOUNDS, f"tablet {change.tablet} cannot be created: {why}")


def accept_generation(change: AcceptGeneration) -> Transaction:
    """Return the transaction that raises the generation. Mark: it is that high.

    The period in which changes were lost is stored: a listing sweep keeps unknown files of that
    period, and a rebuild adds them. A table has one such period, from the first loss to the
    last.
    """
    keys = TableKeys(change.table)

    def decide(seen: Seen) -> Decision:
        if refusal := may_fill(change.table, need.table_seen(keys, seen), change.run):
            return refusal
        if whole_number(keys.generation, seen["generation"]) >= change.generation:
            return NoWrite()
        effects: tuple[Command, ...] = (set_string(keys.generation, change.generation),)
        if change.lost:
            loss = AcceptedLoss(since_s=_lost_since_s(keys, seen), until_s=seen.now_s)
            effects += (set_string(keys.loss, LOSS.pack(loss)),)
        return Write((*effects, table_changed(change.table, "accept")), durable=True)

    reads = {
        "generation": get(keys.generation),
        "manifest": get(keys.manifest),
        "loss": get(keys.loss),
    }
    needs = Needs((keys.generation, keys.manifest, keys.loss), reads)
    return Transaction(need.whole_table(keys) | needs, decide)


def _lost_since_s(keys: TableKeys, seen: Seen) -> float:
    """Return a time before which nothing was lost.

    The store has gone back to a moment after the last manifest that it has.
    """
    if seen["loss"] is not None:
        return LOSS.unpack(keys.loss, seen["loss"]).since_s
    if seen["manifest"] is not None:
        return MANIFEST.unpack(keys.manifest, seen["manifest"]).begun_s
    return 0.0


# ---------------------------------------------------------------------------------------- Watermark


def lower_watermark(change: LowerWatermark) -> Transaction:
    """Return the transaction that lowers the watermark and resets its marks."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    reads = {"bounds": get(keys.bounds), "purge": get(keys.purge)}

    def decide(seen: Seen) -> Decision:
        if refusal := need.refused_by_table(table, seen):
            return refusal
        if seen["bounds"] is None:
            return need.tablet_gone(change.tablet)
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

    return Transaction(need.table_state(table) | Needs((keys.bounds, keys.purge), reads), decide)


# ---- Tablets that overlap
#
# Splits and merges do not cause overlaps; a damaged or mixed store does. By the tile rule readers
# see only one of the two tablets, or are refused, until the overlap is repaired.


def trim_tablet(change: TrimTablet) -> Transaction:
    """Return the transaction that moves the start of a tablet. Mark: its bounds.

    All its files are after the new start, so running attempts may continue.
    """
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    before = TabletKeys.of(TabletId(change.tablet.table, change.start))
    needs = need.table_state(table)
    needs |= need.whole_tablet(keys, (keys.bounds, keys.files, keys.operation))
    needs |= Needs((before.bounds,), {"before": get(before.bounds)})

    def decide(seen: Seen) -> Decision:
        if refusal := need.refused_by_table(table, seen):
            return refusal
        tablet = need.tablet_seen(change.tablet, keys, seen)
        if tablet is None:
            return need.tablet_gone(change.tablet)
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


def join_tablets(change: JoinTablets) -> Transaction:
    """Return the transaction that joins two tablets. Mark: the left one is gone."""
    table, both = TableKeys(change.left.table), (change.left, change.right)
    needs = need.table_state(table)
    for tablet in both:
        keys = TabletKeys.of(tablet)
        watch = [key for key in keys.every if key != keys.record]
        needs |= needs_of_tablet(tablet, need.whole_tablet(keys, watch))

    def decide(seen: Seen) -> Decision:
        if refusal := need.refused_by_table(table, seen):
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
