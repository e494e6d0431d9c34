"""Repairs of what is no file: counts, reservations and markers left over, holes, generations."""

from common.metadata.codec_file import unpack_files
from common.metadata.codec_table import LOSS, MANIFEST
from common.metadata.codec_tablet import (
    BOUNDS,
    BYTES,
    DONE,
    FILES,
    OPERATION_FLAG,
    PURGED,
    RESERVATION,
    RUNNING,
    SELECTED,
    WAITING,
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
from common.metadata.mutation import requirements as need
from common.metadata.mutation.effects import changed, table_changed, uncommitted
from common.metadata.mutation.request_parts import has_ended
from common.metadata.mutation.transaction import (
    Decision,
    Done,
    More,
    Needs,
    Seen,
    Transaction,
    Write,
)
from common.metadata.readings import Loss
from common.metadata.repair_changes import (
    AcceptGeneration,
    ClearMarks,
    EndReservation,
    FillHole,
    RecountRecord,
)
from common.model.outcome import Refusal
from common.model.tablet import PLUS_INFINITY, Bounds, TabletId


def true_counts(keys: TabletKeys, seen: Seen) -> dict[str, int]:
    """Return the fields of a record as the tablet's other keys have them."""
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
    """Return the transaction that counts a tablet anew. Mark: the record says so.

    Everything that is counted is watched; the record itself is a sum of increments that
    come with changes of those.
    """
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    watch = [key for key in keys.every if key != keys.record]
    needs = need.table_state(table) | need.whole_tablet(keys, watch)

    def decide(seen: Seen) -> Decision:
        if refusal := need.refused_by_table(table, seen):
            return refusal
        if seen["bounds"] is None:
            return need.gone(change.tablet)
        wrong = {
            name: count
            for name, count in true_counts(keys, seen).items()
            if seen["record"].get(name.encode(), b"0") != b"%d" % count
        }
        return Write(changed(change.tablet, "recount", flags=wrong)) if wrong else Done()

    return Transaction(needs, decide)


def end_reservation(change: EndReservation) -> Transaction:
    """Return the transaction that removes a reservation left over. Mark: it is gone."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    reads = {"files": hgetall(keys.files)}
    needs = need.attempt(table, keys, change.attempt) | Needs((), reads)

    def decide(seen: Seen) -> Decision:
        if seen["entry"] is None:
            return Done()
        if seen["outcome"] is None:
            return Refusal("running", f"attempt {change.attempt} has no outcome: it may be running")
        where = f"{keys.running} {change.attempt}"
        entry = RESERVATION.unpack(where, seen["entry"], attempt=change.attempt)
        waste = [path for path in entry.output_paths if path.encode() not in seen["files"]]
        return Write(
            (
                hdel(keys.running, change.attempt),
                *uncommitted(table, change.tablet.end, entry, waste),
                *changed(change.tablet, "release", attempt=change.attempt, counts={RUNNING: -1}),
            )
        )

    return Transaction(needs, decide)


def clear_marks(change: ClearMarks) -> Transaction:
    """Return the transaction that removes what ended requests left. Mark: nothing is left."""
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
            if not has_ended(seen[f"state/{key}"]):
                return Refusal("request", f"request {request} has not ended")
        effects = _cleared(change, keys, seen)
        return Write(effects) if effects else Done()

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
    return (*effects, *changed(change.tablet, "clear", counts=counts, flags=flags))


def fill_hole(change: FillHole) -> Transaction:
    """Return the transaction that makes a missing tablet. Mark: its bounds are there."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    reads = {"bounds": get(keys.bounds), "behind": members_after(table.index, change.start, 2)}
    watch = [keys.bounds, table.index]
    if change.start is not None:
        before = TabletKeys.of(TabletId(change.tablet.table, change.start))
        watch.append(before.bounds)
        reads["before"] = get(before.bounds)

    def decide(seen: Seen) -> Decision:
        if refusal := need.refused_by_table(table, seen):
            return refusal
        if seen["bounds"] is not None:
            return Done()
        if change.start is not None and seen["before"] is None:
            return _no_hole(change, "nothing ends where it would start")
        return _fill(change, seen)

    return Transaction(need.table_state(table) | Needs(tuple(watch), reads), decide)


def _fill(change: FillHole, seen: Seen) -> Decision:
    end = change.tablet.end
    following = [each for each in seen["behind"] if each != end]
    if following and following[0] < end:
        return _no_hole(change, "there is a tablet within it")
    if end == PLUS_INFINITY:
        return Write(_filled(change))
    if not following:
        return _no_hole(change, "nothing follows it")
    beyond = TabletKeys.of(TabletId(change.tablet.table, following[0]))
    more = Needs((beyond.bounds,), {"beyond": get(beyond.bounds)})
    return More(more, lambda further: _fill_before(change, beyond, further))


def _fill_before(change: FillHole, beyond: TabletKeys, seen: Seen) -> Decision:
    bounds = need.bounds_seen(beyond, seen["beyond"])
    if bounds is None or bounds.start != change.tablet.end:
        return _no_hole(change, "the next tablet does not start where it would end")
    return Write(_filled(change))


def _filled(change: FillHole) -> tuple[Command, ...]:
    keys = TabletKeys.of(change.tablet)
    return (
        set_string(keys.bounds, BOUNDS.pack(Bounds(change.start, change.tablet.end))),
        zadd(TableKeys(change.tablet.table).index, change.tablet.end),
        *changed(change.tablet, "fill"),
    )


def _no_hole(change: FillHole, why: str) -> Refusal:
    return Refusal("bounds", f"tablet {change.tablet} cannot be made: {why}")


def accept_generation(change: AcceptGeneration) -> Transaction:
    """Return the transaction that raises the generation. Mark: it is that high.

    Between which moments changes were lost is kept: a listing sweep leaves alone what nobody
    knows and what is older, and a rebuild takes it in. A table has one such time, from the
    first loss to the last.
    """
    keys = TableKeys(change.table)

    def decide(seen: Seen) -> Decision:
        if refusal := need.refused_by_table(keys, seen):
            return refusal
        if int(seen["generation"] or 0) >= change.generation:
            return Done()
        effects: tuple[Command, ...] = (set_string(keys.generation, change.generation),)
        if change.lost:
            loss = Loss(since_s=_lost_since_s(keys, seen), until_s=seen.now_s)
            effects += (set_string(keys.loss, LOSS.pack(loss)),)
        return Write((*effects, *table_changed(change.table, "accept")), durable=True)

    reads = {
        "generation": get(keys.generation),
        "manifest": get(keys.manifest),
        "loss": get(keys.loss),
    }
    needs = Needs((keys.generation, keys.manifest, keys.loss), reads)
    return Transaction(need.table_state(keys) | needs, decide)


def _lost_since_s(keys: TableKeys, seen: Seen) -> float:
    """Return a moment before which nothing was lost.

    The store has gone back to a moment after the last manifest that it knows.
    """
    if seen["loss"] is not None:
        return LOSS.unpack(keys.loss, seen["loss"]).since_s
    if seen["manifest"] is not None:
        return MANIFEST.unpack(keys.manifest, seen["manifest"]).begun_s
    return 0.0
