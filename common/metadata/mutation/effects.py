"""Composable effects: record, change stream, garbage, history, watermark, selection.

Every change of a tablet ends in `tablet_changed`: version, counts, an entry of the change stream.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from common.metadata.codec import table as codec_table
from common.metadata.codec.table import FILLED
from common.metadata.codec.tablet import (
    BOUNDS,
    BYTES,
    DONE,
    FILE,
    FILES,
    PURGED,
    RESERVATION,
    RUNNING,
    SELECTED,
    SELECTION,
    VERSION,
)
from common.metadata.commands import (
    Command,
    Word,
    delete,
    hdel,
    hincrby,
    hset,
    sadd,
    set_string,
    xadd,
    zadd,
)
from common.metadata.keys import CHANGES_MAX, HISTORY_MAX, OUTCOME_LIFE_S, TableKeys, TabletKeys
from common.metadata.store_values import (
    AttemptOutcome,
    GarbageEntry,
    HistoryEntry,
)
from common.model.file import DataFile
from common.model.outcome import AttemptEnd
from common.model.tablet import Bounds, Reservation, Selection, Tablet, TabletId

FAILURE_CHARS_MAX = 60
"""Longest failure text in a record; longer texts would break the record's compact encoding."""


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


def filled(keys: TableKeys, run: str, count: int) -> tuple[Command, ...]:
    """Return the effect that counts files that a run has added to a table."""
    return (hincrby(keys.table, FILLED, count),) if run and count else ()


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


# -------------------------------------------------------------- Other effects of a commit


def raise_watermark(tablet: TabletId, present: bytes | None, dropped: bytes) -> tuple[Command, ...]:
    """Raise the watermark to the highest dropped version; it never falls."""
    if present is not None and present >= dropped:
        return ()
    keys = TabletKeys.of(tablet)
    return set_string(keys.purge, dropped), hset(keys.record, {PURGED: 1})


def move_selection(
    tablet: Tablet, selection: Selection, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> tuple[Command, ...]:
    """Replace inputs by outputs in the selection; clear it if the request is done here.

    It is done if nothing is left, or one file which is a result. With several outputs only the
    planner can decide that no further job is wanted (change *complete*).
    """
    keys = TabletKeys.of(tablet.id)
    gone = {*inputs}
    files = (*(path for path in selection.files if path not in gone), *outputs)
    results = (*(path for path in selection.results if path not in gone), *outputs)
    if not files or (len(files) == 1 and files[0] in results):
        return (
            delete(keys.selection),
            sadd(keys.done, selection.request),
            hset(keys.record, {SELECTED: 0}),
            hincrby(keys.record, DONE, 1),
        )
    moved = replace(
        selection, files=files, results=results, completed_jobs=selection.completed_jobs + 1
    )
    return (set_string(keys.selection, SELECTION.pack(moved)),)
