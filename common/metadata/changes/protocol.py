"""What all changes share: the vocabulary of transactions, results, common reads and effects.

A change says *which* write is wanted. One transaction is `WATCH` → reads → decide → `MULTI … EXEC`.
Its decision may request further reads under the same watch. A change may consist of several
transactions. Each transaction recognises its own earlier success by its mark.
"""

import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import singledispatch

from common.metadata.codec import table as codec_table
from common.metadata.codec import tablet as codec_tablet
from common.metadata.codec.layout import broken_value_error, stored_name, whole_number
from common.metadata.codec.tablet import (
    BOUNDS,
    BYTES,
    CHUNK_HEAD,
    FILE,
    FILES,
    RESERVATION,
    RUNNING,
    VERSION,
    unpack_chunk_head,
    unpack_files,
)
from common.metadata.keys import CHANGES_MAX, HISTORY_MAX, OUTCOME_LIFE_S, TableKeys, TabletKeys
from common.metadata.keyspace import (
    Command,
    Reply,
    Word,
    get,
    hdel,
    hget,
    hgetall,
    hincrby,
    hmget,
    hset,
    set_string,
    smembers,
    xadd,
    zadd,
)
from common.metadata.store_values import (
    AttemptOutcome,
    BufferSegment,
    CallMark,
    CoordinatorClaim,
    GarbageEntry,
    HistoryEntry,
    Mirror,
)
from common.model.file import DataFile
from common.model.outcome import AttemptEnd, Refusal, RefusalCode
from common.model.table import Table, TableState
from common.model.tablet import Bounds, Operation, Reservation, Selection, Tablet, TabletId

# ------------------------------------------------------------- What is wanted, and what comes of it


class Change:
    """A wanted write. Predicates decide whether it is allowed, on values read after `WATCH`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded(Change):
    """A change that is refused if the store has lost changes in the meantime.

    Such a store has a lower generation than the location (`common.parquet.service_files`).
    """

    generation: int = 0
    """The highest known generation of the table. 0: unknown."""


def table_of(change: Guarded) -> str:
    """Return the id of the table that a change is about."""
    for name in ("tablet", "tablets", "left", "request"):
        about = getattr(change, name, None)
        if about:
            return str((about[0] if name == "tablets" else about).table)
    return str(change.table)  # type: ignore[attr-defined]  # all other changes have a table


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The change was made, now or by an earlier try."""

    tries: int = 1
    conflicts: int = 0
    now_s: float = 0.0
    """Redis `TIME` at the change."""
    reservation: Reservation | None = None
    """For Reserve: the `Reservation` written."""
    tablet: Tablet | None = None
    """For Reserve: the `Tablet` as read under `WATCH` (with all files)."""
    generation: int | None = None
    """For BumpGeneration: the new generation."""
    complete: bool = True
    """For DropTable: False while garbage is left; repeat the change after it is gone."""
    call: CallMark | None = None
    """For AddFiles and SubmitRequest: the mark of the call."""
    replaced: int = 0
    """For AddFiles with a window: the number of files that were replaced."""
    repeated: bool = False
    """Whether that mark existed before this change."""
    answers: "tuple[Applied | Refused, ...]" = ()
    """For AppendGroup: the answer to each of its calls, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The change is not allowed; nothing was written. `sent`: an `EXEC` of it was sent before."""

    code: RefusalCode
    reason: str
    sent: bool = False
    """Whether any `EXEC` of this change was ever sent without a known answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """The store did not answer: the change may have been made, or may still be on its way."""

    reason: str


Outcome = Applied | Refused | Unknown
Confirm = Callable[[], Awaitable[Refusal | None]]
"""Checks something outside the store; returns why a change must not be written, or None."""


# ------------------------------------------------------------------------------------- Transactions

MADE = Applied()
"""The plain result: the change was made."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The inputs of a decision: keys to watch, and reads by name."""

    watch: tuple[str, ...] = ()
    reads: Mapping[str, Command] = field(default_factory=dict)

    def __or__(self, other: "Needs") -> "Needs":
        return Needs(self.watch + other.watch, {**self.reads, **other.reads})


@dataclass(frozen=True, slots=True)
class Seen:
    """The values read after `WATCH`, by the names of the needs."""

    replies: Mapping[str, Reply]
    now_s: float
    """The store's time (Redis `TIME`), read with the other values."""
    sent: bool = False
    """Whether an `EXEC` of this change was sent before without a known result."""

    def __getitem__(self, name: str) -> Reply:
        return self.replies[name]


@dataclass(frozen=True, slots=True)
class Write:
    """Allowed: write these effects in one MULTI, then run the next transaction, if any."""

    effects: tuple[Command, ...]
    outcome: Applied = MADE
    then: "Transaction | None" = None
    durable: bool = False
    """Whether replicas must have it before it is acknowledged."""


@dataclass(frozen=True, slots=True)
class NoWrite:
    """The mark already exists, or there is nothing to write."""

    outcome: Applied | Refused = MADE
    then: "Transaction | None" = None


@dataclass(frozen=True, slots=True)
class More:
    """Read further under the same watch, then decide on all values."""

    needs: Needs
    decide: "Decide"


@dataclass(frozen=True, slots=True)
class Unresolved:
    """An earlier `EXEC` may still take effect, and a repetition is not safe."""

    reason: str


Decision = Write | NoWrite | More | Refusal | Unresolved
Decide = Callable[[Seen], Decision]


@dataclass(frozen=True, slots=True)
class Transaction:
    """One WATCH … EXEC. Its needs alone determine the watched keys."""

    needs: Needs
    decide: Decide
    lock: str = ""
    """Key of the table's lock: it waits while another change holds that; empty: none."""
    takes_lock: bool = False
    """Whether it takes the lock after conflicts, so that others wait for it."""


@singledispatch
def transaction_of(change: Change) -> Transaction:
    """Return the first transaction of a change; each change registers its function here."""
    raise AssertionError(f"no function is registered for {change}")


def transaction_for(change: Change) -> Transaction:
    """Return the first transaction of a change."""
    transaction = transaction_of(change)
    if isinstance(change, Guarded) and change.generation:
        return at_generation(table_of(change), change.generation, transaction)
    return transaction


def at_generation(table: str, generation: int, inner: Transaction) -> Transaction:
    """Return a transaction that a store with a lower generation refuses.

    The key is not watched, because a server does not lose changes during a connection.

    Args:
        table: Id of the table.
        generation: The generation that the store must have reached.
        inner: The transaction after that. Its own refusals keep their reasons.
    """
    keys = TableKeys(table)

    def decide(seen: Seen) -> Decision:
        decision = inner.decide(seen)
        present = whole_number(keys.generation, seen["present-generation"])
        if present >= generation or not isinstance(decision, Write | More):
            return decision
        return Refusal(
            RefusalCode.GENERATION,
            f"table {table} is read-only: its store is at generation {present}, but was at "
            f"{generation} before, so the store has lost changes",
        )

    reads = {"present-generation": get(keys.generation)}
    return Transaction(inner.needs | Needs((), reads), decide)


# ---------------------------------------------------------------------------------- Common refusals


def may_change(table: str, state: TableState | None) -> Refusal | None:
    """Return why a table may not be changed now (rule 5), or None."""
    if state in {TableState.LIVE, TableState.PAUSED}:
        return None
    fact = "does not exist" if state is None else f"is {state.value}"
    return Refusal(RefusalCode.TABLE, f"table {table} {fact}, it must be live or paused")


NAMES_MAX = 5
"""Paths listed in a message; further ones are only counted."""


def some_names(names: list[str]) -> str:
    """Return some names for a message."""
    shown = ", ".join(names[:NAMES_MAX])
    return shown if len(names) <= NAMES_MAX else f"{shown} and {len(names) - NAMES_MAX} more"


def tablet_gone(tablet: TabletId) -> Refusal:
    """Return the refusal for a missing tablet."""
    return Refusal(RefusalCode.TABLET, f"tablet {tablet} does not exist, look it up again")


def refused_held(
    tablet: TabletId,
    paths: Collection[str],
    running: Mapping[str, Reservation],
    selection: Selection | None,
) -> Refusal | None:
    """Return why files may not be changed: they are reserved or selected."""
    for attempt, entry in running.items():
        if reserved := sorted(set(paths).intersection(entry.inputs)):
            return Refusal(
                RefusalCode.RESERVED,
                f"tablet {tablet}: file {reserved[0]} is reserved by attempt {attempt}",
            )
    if selection is not None and (selected := sorted(set(paths).intersection(selection.files))):
        return Refusal(
            RefusalCode.SELECTED,
            f"tablet {tablet}: file {selected[0]} is selected by request {selection.request}",
        )
    return None


# ---- Common reads, and the values read for them
#
# A change watches only what its decision uses. In a busy tablet, further watches would cause
# endless conflicts.


def table_state(keys: TableKeys, *, watch: bool = True) -> Needs:
    """Need the table's state only."""
    return Needs((keys.table,) if watch else (), {"state": hget(keys.table, codec_table.STATE)})


def state_seen(keys: TableKeys, seen: Seen) -> TableState | None:
    """Return the table's state, or None if there is no such table."""
    stored = seen["state"]
    return None if stored is None else codec_table.unpack_state(keys.table, stored)


def refused_by_table(keys: TableKeys, seen: Seen) -> Refusal | None:
    """Return why rule 5 refuses a change: the table is neither live nor paused."""
    return may_change(keys.id, state_seen(keys, seen))


def whole_table(keys: TableKeys, *, watch: bool = True) -> Needs:
    """Need the whole table: schema, settings, state."""
    return Needs((keys.table,) if watch else (), {"table": hgetall(keys.table)})


def table_seen(keys: TableKeys, seen: Seen) -> Table | None:
    """Return the table, or None."""
    stored = seen["table"]
    return codec_table.unpack_table(keys.table, keys.id, stored) if stored else None


def whole_tablet(keys: TabletKeys, watch: Iterable[str]) -> Needs:
    """Need everything of a tablet, and watch only the given keys."""
    return tablet_without_files(keys, watch) | Needs((), {"files": hgetall(keys.files)})


def tablet_without_files(keys: TabletKeys, watch: Iterable[str]) -> Needs:
    """Need everything of a tablet but its files, and watch only the given keys."""
    return Needs(
        tuple(watch),
        {
            "bounds": get(keys.bounds),
            "running": hgetall(keys.running),
            "selection": get(keys.selection),
            "waiting": hgetall(keys.waiting),
            "done": smembers(keys.done),
            "operation": get(keys.operation),
            "purge": get(keys.purge),
            "record": hgetall(keys.record),
        },
    )


def waiting_seen(keys: TabletKeys, stored: Mapping[bytes, bytes]) -> dict[str, float]:
    """Return the requests that wait, with the start of their wait."""
    try:
        return {stored_name(keys.waiting, name): float(since) for name, since in stored.items()}
    except ValueError as error:
        raise broken_value_error(keys.waiting, f"has a malformed time ({error})") from error


def tablet_seen(tablet: TabletId, keys: TabletKeys, seen: Seen) -> Tablet | None:
    """Return the tablet, or None if its bounds do not exist."""
    bounds = bounds_seen(keys, seen["bounds"])
    if bounds is None:
        return None
    return Tablet(
        id=tablet,
        bounds=bounds,
        files=unpack_files(keys.files, seen.replies.get("files", {})),
        running=codec_tablet.unpack_running(keys.running, seen["running"]),
        selection=selection_seen(keys, seen["selection"]),
        waiting=waiting_seen(keys, seen["waiting"]),
        done=frozenset(stored_name(keys.done, name) for name in seen["done"]),
        operation=operation_seen(keys, seen["operation"]),
        purge=seen["purge"],
        record=codec_tablet.unpack_record(keys.record, seen["record"]),
        chunks=codec_tablet.unpack_chunks(keys.chunks, seen["notes"])
        if "notes" in seen.replies
        else None,
    )


def bounds_seen(keys: TabletKeys, stored: bytes | None) -> Bounds | None:
    """Return the bounds; None means that the tablet does not exist."""
    return None if stored is None else codec_tablet.BOUNDS.unpack(keys.bounds, stored)


def operation_seen(keys: TabletKeys, stored: bytes | None) -> Operation | None:
    """Return the running split or merge."""
    return None if stored is None else codec_tablet.OPERATION.unpack(keys.operation, stored)


def selection_seen(keys: TabletKeys, stored: bytes | None) -> Selection | None:
    """Return the selection."""
    return None if stored is None else codec_tablet.SELECTION.unpack(keys.selection, stored)


def claim_seen(stored: bytes | None) -> CoordinatorClaim | None:
    """Return the leading coordinator's claim, or None if there is none."""
    return None if stored is None else codec_table.unpack_claim(stored)


def some_files(tablet: TabletKeys, paths: tuple[str, ...]) -> Needs:
    """Need some files of a tablet, not watched."""
    return Needs((), {"some": hmget(tablet.files, paths)})


def buffer_segments(keys: TableKeys, *, watch: bool = True) -> Needs:
    """Need the segments of a table's buffered rows."""
    return Needs((keys.rows,) if watch else (), {"segments": hgetall(keys.rows)})


def segment_stored(keys: TableKeys, segment: BufferSegment) -> Command:
    """Return the effect that stores a segment of buffered rows."""
    fields = {codec_table.segment_field(segment.number): codec_table.SEGMENT.pack(segment)}
    return hset(keys.rows, fields)


def segments_closed(
    keys: TableKeys, segments: Iterable[BufferSegment], now_s: float
) -> tuple[Command, ...]:
    """Return the effects that close those of some segments that are open."""
    closed = [replace(segment, closed_s=now_s) for segment in segments if segment.is_open]
    return tuple(segment_stored(keys, segment) for segment in closed)


def refused_by_buffer(
    keys: TableKeys, seen: Seen, what: str, before_s: float = math.inf
) -> Refusal | None:
    """Return why a change needs all rows of a table in files, or None if they are.

    Args:
        keys: Keys of the table.
        seen: Values read, including `buffer_segments`.
        what: The change, for the message.
        before_s: Segments that were opened since may stay.
    """
    present = codec_table.unpack_segments(keys.rows, seen["segments"])
    if not (segments := [segment for segment in present if segment.opened_s < before_s]):
        return None
    return Refusal(
        RefusalCode.BUFFERED,
        f"table {keys.id}: {what} needs all rows in files, and rows are buffered in "
        f"{len(segments)} segments: run `neve flush TABLE`, and try again",
    )


def refused_by_floor(tablet: TabletId, version_max: bytes, seen: Seen) -> Refusal | None:
    """Return why dead rows may not be dropped: buffered rows may be older than these, or None.

    Args:
        tablet: Their tablet.
        version_max: The highest version among them.
        seen: Values read, including `buffer_segments`.
    """
    keys = TableKeys(tablet.table)
    for segment in codec_table.unpack_segments(keys.rows, seen["segments"]):
        if segment.floor <= version_max:
            return Refusal(
                RefusalCode.RESURFACE,
                f"tablet {tablet}: buffered rows may be older than rows that were dropped; they "
                "can be dropped after the next flush",
            )
    return None


def mirror_needs(keys: TableKeys, *, watch: bool = True) -> Needs:
    """Need the state of a lake table's mirror, without its files."""
    reads = {"mirror": hmget(keys.mirror, codec_table.MIRROR_FIELDS)}
    return Needs((keys.mirror,) if watch else (), reads)


def mirror_seen(keys: TableKeys, seen: Seen) -> Mirror:
    """Return the state of a mirror; for other tables one without a head."""
    return codec_table.unpack_mirror(keys.mirror, seen["mirror"])


def refused_by_mirror(keys: TableKeys, seen: Seen) -> Refusal | None:
    """Return why files of a lake table may not be reserved now, or None; also for other tables."""
    mirror = mirror_seen(keys, seen)
    if mirror.head is not None and mirror.head.problem:
        return Refusal(RefusalCode.MIRROR, f"table {keys.id}: {mirror.head.problem}")
    if mirror.committed >= 0 and mirror.is_behind:
        return Refusal(
            RefusalCode.MIRROR,
            f"table {keys.id}: its mirror has not reached version {mirror.committed}, which an "
            "attempt has committed",
        )
    return None


# ---- Common effects
#
# Every change of a tablet ends in `tablet_changed`: version, counts, an entry of the change stream.


def make_tablet(tablet: TabletId, bounds: Bounds) -> list[Command]:
    """Return the effects that create a tablet."""
    keys = TabletKeys.of(tablet)
    return [
        set_string(keys.bounds, BOUNDS.pack(bounds)),
        zadd(TableKeys(tablet.table).index, tablet.end),
        hset(keys.record, {VERSION: 0, FILES: 0}),
    ]


def tablet_changed(
    tablet: TabletId,
    what: str,
    *,
    attempt: str | None = None,
    request: str | None = None,
    counts: Mapping[str, int] | None = None,
    flags: Mapping[str, Word] | None = None,
) -> tuple[Command, ...]:
    """Bump the record's version, write counts and flags, append the change to the stream.

    Args:
        tablet: The changed tablet.
        what: The change's word.
        attempt: The attempt that made the change, if there is one.
        request: The request that made the change, if there is one.
        counts: Field of the record → difference.
        flags: Field of the record → new value.
    """
    record = TabletKeys.of(tablet).record
    effects = [hincrby(record, VERSION, 1)]
    effects += [hincrby(record, field, by) for field, by in (counts or {}).items() if by]
    if flags:
        effects.append(hset(record, flags))
    return (*effects, stream_entry(tablet, what, attempt, request))


def stream_entry(
    tablet: TabletId, what: str, attempt: str | None = None, request: str | None = None
) -> Command:
    """Append a change to the table's stream.

    A tablet with an empty end represents the table itself.
    """
    keys = TableKeys(tablet.table)
    text = tablet.text if tablet.end else ""
    fields: dict[str, Word] = {"t": text, "w": what}
    if attempt is not None:
        fields["a"] = attempt
    if request is not None:
        fields["q"] = request
    return xadd(keys.changes, CHANGES_MAX, fields)


def table_changed(table: str, what: str) -> Command:
    """Append a change of the table itself to the stream."""
    return stream_entry(TabletId(table, b""), what)


def request_changed(table: str, request: str) -> Command:
    """Append a change of a request to the stream."""
    return stream_entry(TabletId(table, b""), "request", request=request)


def files_written(keys: TabletKeys, files: Iterable[DataFile]) -> tuple[Command, ...]:
    """Write files into a tablet."""
    fields: dict[Word, Word] = {file.path: FILE.pack(file) for file in files}
    return (hset(keys.files, fields),) if fields else ()


_TOUCH = "touched by another change"


def disturb(key: str) -> tuple[Command, ...]:
    """Touch a hash without changing it, so that transactions that watch it fail."""
    return hset(key, {_TOUCH: ""}), hdel(key, _TOUCH)


def disturb_running(keys: TabletKeys) -> tuple[Command, ...]:
    """Touch `running`, so that transactions that watch it fail."""
    return disturb(keys.running)


def take_files_out(keys: TabletKeys, paths: Iterable[str]) -> tuple[Command, ...]:
    """Remove files without a commit; a concurrent reservation that has read them fails."""
    return (hdel(keys.files, *paths), *disturb_running(keys))


def is_in_chunks(file: DataFile) -> bool:
    """Return whether notes on chunks may count a file: it has times and no key."""
    return file.time_min_s is not None and file.key_min is None


def chunk_head(keys: TabletKeys, name: str = "chunks") -> Needs:
    """Need what a tablet's notes on chunks hold for."""
    return Needs((), {name: hget(keys.chunks, CHUNK_HEAD)})


def chunk_notes(keys: TabletKeys) -> Needs:
    """Need the notes on chunks, not watched."""
    return Needs((), {"notes": hgetall(keys.chunks)})


def chunks_changed(
    keys: TabletKeys, head: bytes | None, came: Iterable[DataFile], went: Iterable[DataFile] = ()
) -> tuple[Command, ...]:
    """Count added and removed files in the notes on chunks, if a tablet has any.

    Args:
        keys: Keys of the tablet.
        head: As stored.
        came: Files that are added.
        went: Files that leave.
    """
    chunks = unpack_chunk_head(keys.chunks, head)
    if chunks is None:
        return ()
    new, old = tuple(came), tuple(went)
    changed = {number for file in (*new, *old) for number in chunks.grid.counted(file)}
    counts = file_counts(new, old)
    steps = [("files", counts[FILES]), ("bytes", counts[BYTES])]
    steps += [(str(number), 1) for number in sorted(changed)]
    return tuple(
        hincrby(keys.chunks, f"{name}.{chunks.epoch}", step) for name, step in steps if step
    )


def file_counts(
    came: Iterable[DataFile], went: Iterable[DataFile] = (), *, running: int = 0
) -> dict[str, int]:
    """Return how added and removed files change the record."""
    new, old = tuple(came), tuple(went)
    size = sum(file.size_bytes for file in new) - sum(file.size_bytes for file in old)
    return {FILES: len(new) - len(old), BYTES: size, RUNNING: running}


def into_garbage(
    table: TableKeys, end: bytes, paths: Mapping[str, bytes | None]
) -> tuple[Command, ...]:
    """Hand files to the collector, without a stamp.

    Args:
        table: Table of the garbage.
        end: The tablet's current end.
        paths: Path → smallest key, which identifies the tablet even after a split.
    """
    fields: dict[Word, Word] = {
        path: codec_table.GARBAGE.pack(
            GarbageEntry(path=path, stamped_s=0, key_min=key_min, tablet_end=end)
        )
        for path, key_min in paths.items()
    }
    return (hset(table.garbage, fields),) if fields else ()


def uncommitted_outputs(
    table: TableKeys, end: bytes, entry: Reservation, paths: Iterable[str] | None = None
) -> tuple[Command, ...]:
    """Hand the outputs of an uncommitted attempt to the collector.

    The reservation is kept with them. A store that lost changes takes a committed attempt for an
    uncommitted one. Then the inputs are gone, and the outputs are the only copy.

    Args:
        table: Table of the garbage.
        end: The tablet's current end.
        entry: The reservation that ends.
        paths: The outputs to hand over; None: all.
    """
    waste = dict.fromkeys(entry.output_paths if paths is None else paths)
    if not waste:
        return ()
    return (
        *into_garbage(table, end, waste),
        hset(table.uncommitted, {entry.attempt: RESERVATION.pack(entry)}),
    )


FAILURE_CHARS_MAX = 60
"""Longest failure text in a record; longer texts would break the record's compact encoding."""


def attempt_ended(
    table: TableKeys,
    keys: TabletKeys,
    entry: Reservation,
    mark: AttemptOutcome,
    history: HistoryEntry,
) -> tuple[Command, ...]:
    """Remove the reservation, write the outcome's mark and the history."""
    words: dict[str, Word] = {"h": codec_table.HISTORY.pack(history), "t": history.tablet.text}
    return (
        hdel(keys.running, entry.attempt),
        set_string(table.outcome(entry.attempt), codec_table.OUTCOME.pack(mark), OUTCOME_LIFE_S),
        xadd(table.history, HISTORY_MAX, words),
    )


def history_of(tablet: TabletId, entry: Reservation, end: AttemptEnd, now_s: float) -> HistoryEntry:
    """Return the history entry of an attempt that replaced nothing."""
    return HistoryEntry(
        position="",
        attempt=entry.attempt,
        job=entry.job,
        tablet=tablet,
        kind=entry.kind.value,
        end=end.value,
        group=entry.group,
        compactor=entry.compactor,
        inputs=entry.inputs,
        outputs=(),
        bytes_in=0,
        bytes_out=0,
        rows_in=0,
        rows_out=0,
        started_s=entry.since_s,
        ended_s=now_s,
        request=entry.request,
    )
