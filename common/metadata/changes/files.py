"""Add files under one call id: what a call's mark says, which files a tablet takes.

Mark of an add: `call:<id>`, which records what was added. An add may replace the files of lower
versions in a window of time.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from common.metadata.changes.protocol import (
    Applied,
    Decision,
    Guarded,
    More,
    Needs,
    Seen,
    Transaction,
    Write,
    bounds_seen,
    buffer_segments,
    chunk_head,
    chunks_changed,
    file_counts,
    files_written,
    into_garbage,
    is_in_chunks,
    make_tablet,
    operation_seen,
    refused_by_buffer,
    refused_held,
    selection_seen,
    some_names,
    table_changed,
    table_seen,
    tablet_changed,
    tablet_gone,
    take_files_out,
    transaction_of,
    waiting_seen,
    whole_table,
)
from common.metadata.changes.tables import filled, may_fill
from common.metadata.codec.layout import pack
from common.metadata.codec.table import CALL, count_fields, segment_field, unpack_segments
from common.metadata.codec.tablet import RECENT_ADDS, unpack_files, unpack_recent, unpack_running
from common.metadata.keys import CALL_SKEW_S, MARK_LIFE_S, TableKeys, TabletKeys, retired_name
from common.metadata.keyspace import (
    Command,
    Reply,
    Word,
    delete,
    get,
    hdel,
    hget,
    hgetall,
    hlen,
    hmget,
    mget,
    pexpire,
    set_string,
)
from common.metadata.store_values import CallKind, CallMark
from common.model.file import DataFile, may_cross, with_data_version
from common.model.location_identity import is_service_path
from common.model.outcome import Refusal, RefusalCode
from common.model.table import Table
from common.model.tablet import (
    PLUS_INFINITY,
    Bounds,
    Operation,
    OperationKind,
    OperationStep,
    Tablet,
    TabletId,
)
from common.primitives import CALL_LIFE_S, call_time_s, digest
from common.units import utc_text

# ---- The mark of an accepted call
#
# It is checked first, written with the change, and kept for a day:
#
#     mark, same content       the call was accepted before: only the mark is written again
#     mark, other content      refused: one id identifies one call
#     no mark, id too old      refused: it is unknown whether it was accepted
#     no mark, older than a rebuild or restore of its table: the same
#     no mark                  the change decides, and writes the mark if it is allowed
#
# Adds, appends and compactions share the ids of calls.


def call_seen(keys: TableKeys, call: str, seen: Seen, name: str = "call") -> CallMark | None:
    """Return the mark of a call, or None; it was read under this name."""
    stored = seen[name]
    return None if stored is None else CALL.unpack(keys.call(call), stored)


def answer_repeated_call(
    keys: TableKeys, call: str, kind: CallKind, content: str, seen: Seen
) -> Write | Refusal:
    """Answer a call that has a mark: write the mark again, so that replicas have it.

    Args:
        keys: Keys of the table.
        call: Id of the call.
        kind: Kind of the present call.
        content: Digest of its content.
        seen: Values read, including the mark.
    """
    mark = call_seen(keys, call, seen)
    assert mark is not None, call
    if refusal := refused_other_content(call, mark, kind, content):
        return refusal
    effects = (pexpire(keys.call(call), MARK_LIFE_S),)
    return Write(effects, Applied(call=mark, repeated=True), durable=True)


def refused_other_content(
    call: str, mark: CallMark, kind: CallKind, content: str
) -> Refusal | None:
    """Return why a call differs from the one accepted under its id, or None if it does not."""
    if (mark.kind, mark.content) == (kind, content):
        return None
    what = "with other content" if mark.kind is kind else f"for `{mark.kind.value}`"
    return Refusal(
        RefusalCode.CALL_CONTENT,
        f"call id {call} was used before, {what}: use a new id for another call",
    )


def leave_call_mark(
    keys: TableKeys, call: str, mark: CallMark, life_s: float = MARK_LIFE_S
) -> Command:
    """Return the effect that writes the mark of a call."""
    return set_string(keys.call(call), CALL.pack(mark), life_s)


def refused_call(
    call: str, now_s: float, since_s: float, life_s: float = CALL_LIFE_S
) -> Refusal | None:
    """Return why a call without a mark is refused, or None if it is accepted.

    Args:
        call: Id of the call.
        now_s: The store's time.
        since_s: `calls_since_s` of its table.
        life_s: How long calls of this kind may be repeated.
    """
    made_s = call_time_s(call)
    if made_s is None:
        return Refusal(RefusalCode.CALL_FORM, f"call id {call[:64]!r} is not a UUIDv7")
    if made_s < now_s - life_s:
        return Refusal(
            RefusalCode.CALL_TOO_OLD,
            f"call id {call} was made {now_s - made_s:.0f} s ago, at most {life_s:.0f} s are "
            "allowed: it is unknown whether the call was accepted before",
        )
    if made_s < since_s:
        return Refusal(
            RefusalCode.CALL_TOO_OLD,
            f"call id {call} was made before the table was rebuilt or restored, so it is unknown "
            "whether it was accepted: check whether its rows are there, and send missing rows "
            "under a new id",
        )
    if made_s > now_s + CALL_SKEW_S:
        return Refusal(
            RefusalCode.CALL_TOO_NEW,
            f"call id {call} carries a time {made_s - now_s:.0f} s in the future: "
            "check the clock of the caller",
        )
    return None


def names_digest(paths: Iterable[str]) -> str:
    """Return the digest of the names of some files."""
    return digest(sorted(paths))


def files_digest(sizes: Mapping[str, int], window: "Window | None" = None) -> str:
    """Return the digest of an add, independent of the tablets of its files.

    Args:
        sizes: Path → size in bytes.
        window: The window of time that the add replaces; None: none.
    """
    files = digest(word for path, size in sorted(sizes.items()) for word in (path, str(size)))
    return files if window is None else digest([files, repr(window)])


# ---- The versions that recent adds have reached: an upper bound on the watermark
#
# The highest version in a tablet may come from a single row with a wrong clock. If a tombstone of
# that version were dropped, the watermark would rise above the versions of all other writers, and
# the tablet would refuse their files. So each add records the lowest of its files' highest versions
# for the table's retention time. No dead row above the smallest recorded version is dropped. Adds
# within half a retention share an entry, which keeps the record small.

RecentAdds = tuple[tuple[float, bytes], ...]
"""(expiry time, lowest version that adds have reached since), ascending in both."""
NOTES_PER_RETENTION = 2


def with_recent_add(
    notes: RecentAdds, now_s: float, reached: Iterable[bytes], retention_s: float
) -> RecentAdds:
    """Return the notes after files were added.

    Args:
        notes: Notes of the record.
        now_s: The store's time.
        reached: The highest version of each file.
        retention_s: Retention of the table.
    """
    lowest = min(reached, default=None)
    until_s = float(math.floor(now_s + retention_s))
    if lowest is None or until_s <= now_s:
        return _alive(notes, now_s)
    # A note that expires earlier and is not lower has no effect.
    kept = [note for note in _alive(notes, now_s) if note[1] < lowest]
    if kept and _slot(kept[-1][0], retention_s) == _slot(until_s, retention_s):
        lowest = kept.pop()[1]
    return (*kept, (until_s, lowest))


def merge_recent_adds(one: RecentAdds, other: RecentAdds) -> RecentAdds:
    """Return the notes of two tablets after their merge."""
    return tuple(sorted({*one, *other}))


def recent_adds_bound(notes: RecentAdds, now_s: float) -> bytes | None:
    """Return the version above which no dead row may be dropped; None: no such bound."""
    return min((version for _, version in _alive(notes, now_s)), default=None)


def _alive(notes: RecentAdds, now_s: float) -> RecentAdds:
    return tuple(note for note in notes if note[0] > now_s)


def _slot(until_s: float, retention_s: float) -> int:
    return int(until_s * NOTES_PER_RETENTION // retention_s)


# ----------------------------------------------------------------------- Which files a tablet takes


def may_add(
    tablet: TabletId,
    file: DataFile,
    *,
    bounds: Bounds,
    operation: Operation | None,
    purge: bytes | None,
    late_data: bool,
) -> Refusal | None:
    """Return why a file may not be added to a tablet, or None if it may.

    Args:
        tablet: Target tablet.
        file: File with its key and version range.
        bounds: As read after `WATCH`, like operation and purge.
        operation: A running split or merge.
        purge: The tablet's watermark.
        late_data: Whether the table accepts rows at or below it.
    """
    subject = f"tablet {tablet}: file {file.path}"
    if operation is not None and operation.step is OperationStep.CLOSE:
        return Refusal(
            RefusalCode.OPERATION, f"tablet {tablet}: a {operation.kind.value} is ending, try again"
        )
    if not _within(bounds, file):
        return Refusal(RefusalCode.BOUNDS, f"{subject} has keys outside the tablet")
    if _is_cut(operation, file):
        return Refusal(
            RefusalCode.CROSSES, f"{subject} may not cross the key where the tablet is split"
        )
    if purge is not None and not late_data and is_late(file, purge):
        return Refusal(
            RefusalCode.PURGED, f"{subject} has versions at or below those already purged"
        )
    return None


def is_late(file: DataFile, purge: bytes | None) -> bool:
    """Return whether a file may hold purged rows."""
    return purge is not None and (file.version_min is None or file.version_min <= purge)


def _within(bounds: Bounds, file: DataFile) -> bool:
    if bounds.partition is not None:
        return True  # The caller routes by partition values, so keys do not matter here.
    if file.key_min is None or file.key_max is None:
        return bounds.start is None and bounds.end == PLUS_INFINITY
    return bounds.holds(file.key_min, file.key_max)


def _is_cut(operation: Operation | None, file: DataFile) -> bool:
    """Return whether a file would be in both halves of a tablet that is being split."""
    at = operation.at if operation and operation.kind is OperationKind.SPLIT else None
    return at is not None and may_cross(file, at)


# ---- Replacing a window of time
#
# In an append-only table with a time column, an add may have a version and a window of time. All
# its rows are in the window. It replaces the files of lower versions that are in the window, in the
# tablets that get its files: those files leave the table in the change that brings the new ones in.


@dataclass(frozen=True, slots=True)
class Window:
    """A window of time, without its end, and the version of the files that are added to it."""

    start_s: float
    end_s: float
    version: int

    def __str__(self) -> str:
        return f"{utc_text(self.start_s)}..{utc_text(self.end_s)}"

    def overlaps(self, file: DataFile) -> bool:
        """Return whether a file may have rows in the window."""
        if file.time_min_s is None or file.time_max_s is None:
            return False
        return file.time_min_s < self.end_s and file.time_max_s >= self.start_s

    def contains(self, file: DataFile) -> bool:
        """Return whether a file has times, and all of them are in the window."""
        if file.time_min_s is None or file.time_max_s is None:
            return False
        return self.start_s <= file.time_min_s and file.time_max_s < self.end_s


def why_no_window(table: Table) -> str | None:
    """Return why a table takes no files for a window of time, or None if it does."""
    if not table.key and table.time_column is not None:
        return None
    lacks = "has a key" if table.key else "has no time column"
    return (
        f"table {table.name!r} {lacks}: version and window need an append-only table with a "
        "time column"
    )


def replaced_by(
    tablet: Tablet, added: Iterable[DataFile], window: Window
) -> list[DataFile] | Refusal:
    """Return the files of lower versions that files replace in a window, or why they may not.

    Args:
        tablet: As read after `WATCH`; a new partition has no files.
        added: The new files of the tablet.
        window: Their window and version.
    """
    present = [file for _, file in sorted(tablet.files.items()) if window.overlaps(file)]
    replaced = [file for file in present if file.data_version < window.version]
    refusal = (
        _refused_times(tablet, added, replaced, window)
        or _refused_versions(tablet, present, window)
        or _refused_waiting(tablet)
        or refused_held(
            tablet.id, [file.path for file in replaced], tablet.running, tablet.selection
        )
    )
    return replaced if refusal is None else refusal


def _refused_times(
    tablet: Tablet, added: Iterable[DataFile], replaced: Iterable[DataFile], window: Window
) -> Refusal | None:
    for file in added:
        if not window.contains(file):
            return Refusal(
                RefusalCode.WINDOW,
                f"file {file.path} has {_times_text(file)}, expected only times in {window}: widen "
                "the window, or cut the file",
            )
    for file in replaced:
        if not window.contains(file):
            return Refusal(
                RefusalCode.WINDOW,
                f"tablet {tablet.id}: file {file.path} of version {file.data_version} has "
                f"{_times_text(file)}, so it would be replaced only in part by {window}: widen the "
                "window, or compact the table so that the file is cut there",
            )
    return None


def _times_text(file: DataFile) -> str:
    if file.time_min_s is None or file.time_max_s is None:
        return "no times"
    return f"times from {utc_text(file.time_min_s)} to {utc_text(file.time_max_s)}"


def _refused_versions(
    tablet: Tablet, present: Iterable[DataFile], window: Window
) -> Refusal | None:
    newest = max(present, key=lambda file: file.data_version, default=None)
    if newest is None or newest.data_version <= window.version:
        return None
    return Refusal(
        RefusalCode.WINDOW,
        f"tablet {tablet.id}: file {newest.path} in {window} has version {newest.data_version}, "
        f"the added files have version {window.version}: expected at least the same version",
    )


def _refused_waiting(tablet: Tablet) -> Refusal | None:
    if tablet.waiting:
        waiting = some_names(sorted(tablet.waiting))
        return Refusal(
            RefusalCode.WAITING, f"tablet {tablet.id}: requests wait to select files: {waiting}"
        )
    return None


# ---- Adding files
#
# The mark is checked first: a call that was accepted once is not validated again, whatever became
# of its files.


@dataclass(frozen=True, slots=True, kw_only=True)
class AddFiles(Guarded):
    """Add files to any number of tablets at once, under one call id."""

    table: str
    call: str
    """UUIDv7 (`common.runtime.call_id`); repeating the same call succeeds without effect."""
    files: Mapping[bytes, tuple[DataFile, ...]]
    """Tablet end → its new files."""
    partitions: Mapping[bytes, str] = field(default_factory=dict)
    """For a partitioned table: tablet end → partition text, for new tablets."""
    kind: CallKind = CallKind.ADD
    content: str = ""
    """Digest of the caller's data; empty: names and sizes of the files are the content."""
    looked_s: float | None = None
    """The store's time before the check that all files exist and none is in garbage."""
    look_max_s: float = 0.0
    """Largest age of that check, shorter than the time a collector needs to delete a file."""
    run: str = ""
    """The run that fills the table, if it is being filled."""
    window: Window | None = None
    """The window of time in which the files replace those of lower versions; None: none."""
    segment: int = 0
    """For a flush: the segment of buffered rows that the files replace; `call` is its call id."""
    segment_calls: int = 0
    """For a flush: number of calls whose rows the files hold."""
    segment_closed_s: float = 0.0
    """For a flush: when the segment was closed, as it was read before its rows."""


TABLETS_CHARS_MAX = 256
"""A mark lists its tablets if their names are at most this long in total."""
LATE = ("late", "true")
"""Tag of a file with rows at or below the watermark, in a table that accepts them."""


@transaction_of.register
def add_files(change: AddFiles) -> Transaction:
    """Return the transaction that adds files, all or none."""
    keys = TableKeys(change.table)
    paths = [file.path for files in change.files.values() for file in files]
    reads = {"call": get(keys.call(change.call))}
    users = [path for path in paths if not is_service_path(path)]
    if paths:
        reads["garbage"] = hmget(keys.garbage, paths)
    needs = whole_table(keys) | Needs((keys.call(change.call),), reads)
    for end in change.files:
        needs |= _tablet_needs(TabletId(change.table, end), change.files[end])
        if change.window is not None:
            needs |= _window_needs(TabletId(change.table, end))
    needs |= _buffer_needs(change, keys)

    def decide(seen: Seen) -> Decision:
        if seen["call"] is not None:
            return answer_repeated_call(keys, change.call, change.kind, call_content(change), seen)
        table = table_seen(keys, seen)
        refusal = (
            _refused_new_call(change, table, seen)
            or may_fill(change.table, table, change.run)
            or _refused_look(change, seen.now_s)
            or _refused_paths(change, paths, seen)
            or _refused_table(change, table, seen)
        )
        if refusal is not None:
            return refusal
        assert table is not None, change.table
        if not users:
            return _add(change, table, seen)
        # Read after the garbage: a collector retires a name before it removes the entry.
        location = table.location
        retired = Needs((), {"retired": mget(retired_name(location, path) for path in users)})
        return More(
            retired,
            lambda more: _refused_names(users, more["retired"]) or _add(change, table, more),
        )

    return Transaction(needs, decide, keys.lock, takes_lock=True)


def _tablet_needs(tablet: TabletId, files: tuple[DataFile, ...]) -> Needs:
    keys = TabletKeys.of(tablet)
    reads = {
        f"{tablet.text}/bounds": get(keys.bounds),
        f"{tablet.text}/operation": get(keys.operation),
        f"{tablet.text}/purge": get(keys.purge),
        f"{tablet.text}/recent": hget(keys.record, RECENT_ADDS),
    }
    if files:
        reads[f"{tablet.text}/files"] = hmget(keys.files, [file.path for file in files])
    if any(map(is_in_chunks, files)):
        reads |= chunk_head(keys, f"{tablet.text}/chunks").reads
    return Needs((keys.bounds, keys.operation, keys.files, keys.purge), reads)


def _window_needs(tablet: TabletId) -> Needs:
    """Need everything that may hold a tablet's files; `files` is watched by every add."""
    keys = TabletKeys.of(tablet)
    reads = {
        f"{tablet.text}/running": hgetall(keys.running),
        f"{tablet.text}/selection": get(keys.selection),
        f"{tablet.text}/waiting": hgetall(keys.waiting),
        f"{tablet.text}/present": hgetall(keys.files),
    }
    return Needs((keys.running, keys.selection, keys.waiting), reads)


def call_content(change: AddFiles) -> str:
    """Return the digest of the caller's data."""
    if change.content:
        return change.content
    files = (file for files in change.files.values() for file in files)
    return files_digest({file.path: file.size_bytes for file in files}, change.window)


def _refused_table(change: AddFiles, table: Table | None, seen: Seen) -> Refusal | None:
    if change.window is None or table is None:
        return None
    if (why := why_no_window(table)) is not None:
        return Refusal(RefusalCode.WINDOW, why)
    return refused_by_buffer(TableKeys(change.table), seen, "replacing a window")


def _buffer_needs(change: AddFiles, keys: TableKeys) -> Needs:
    """Need the buffered rows that an add replaces, or that would make its window incomplete."""
    if change.segment:
        rows = keys.segment(change.segment)
        return buffer_segments(keys) | Needs((rows,), {"segment": hlen(rows)})
    return Needs() if change.window is None else buffer_segments(keys)


def _refused_new_call(change: AddFiles, table: Table | None, seen: Seen) -> Refusal | None:
    if change.segment:  # It proves that it was not flushed before, however old it is.
        return _refused_segment(change, TableKeys(change.table), seen)
    return refused_call(change.call, seen.now_s, table.calls_since_s if table else 0.0)


def _refused_segment(change: AddFiles, keys: TableKeys, seen: Seen) -> Refusal | None:
    """Return why files may not replace a segment of buffered rows, or None."""
    segments = {segment.number: segment for segment in unpack_segments(keys.rows, seen["segments"])}
    segment = segments.get(change.segment)
    subject = f"table {change.table}: segment {change.segment}"
    if segment is None or segment.flush != change.call:
        return Refusal(RefusalCode.GONE, f"{subject} was flushed by another try")
    if segment.is_open:
        return Refusal(RefusalCode.BUFFERED, f"{subject} is open: close it before its flush")
    if segment.closed_s != change.segment_closed_s:
        # The store went back to before it was closed, so it may have the rows of other calls.
        return Refusal(RefusalCode.BUFFERED, f"{subject} was closed again since it was read")
    if seen["segment"] != change.segment_calls:
        return Refusal(
            RefusalCode.BUFFERED,
            f"{subject} has the rows of {seen['segment']} calls, and the files those of "
            f"{change.segment_calls}",
        )
    return None


def _segment_out(change: AddFiles, keys: TableKeys) -> tuple[Command, ...]:
    """Return the effects that remove the segment that files replace."""
    number = change.segment
    return (
        hdel(keys.rows, segment_field(number)),
        delete(keys.segment(number)),
        hdel(keys.row_counts, *count_fields(number)),
        table_changed(change.table, "flush"),
    )


def _refused_look(change: AddFiles, now_s: float) -> Refusal | None:
    """Refuse a check of files so old that a collector may have deleted them since."""
    if change.looked_s is None or now_s - change.looked_s <= change.look_max_s:
        return None
    return Refusal(
        RefusalCode.LOOK_TOO_OLD,
        f"the files of call {change.call} were checked {now_s - change.looked_s:.0f} s ago, "
        f"at most {change.look_max_s:.0f} s are allowed",
    )


def _refused_names(users: list[str], marks: Sequence[Reply]) -> Refusal | None:
    for path, mark in zip(users, marks, strict=True):
        if mark is not None:
            return Refusal(
                RefusalCode.RETIRED,
                f"file {path} was recently deleted from this location after a compaction or with "
                "a dropped table, and a delayed deletion would delete the new file as well; "
                "add it under another name, or after coordinator.retired_names_s",
            )
    return None


def _refused_paths(change: AddFiles, paths: list[str], seen: Seen) -> Refusal | None:
    if not paths:
        return Refusal(RefusalCode.FILES, f"call {change.call} names no file")
    if len(set(paths)) < len(paths):
        return Refusal(RefusalCode.FILES, f"call {change.call} names a file twice")
    for path, entry in zip(paths, seen["garbage"], strict=True):
        if entry is not None:
            return Refusal(
                RefusalCode.REPLACED,
                f"file {path} was replaced by a compaction and is being deleted; "
                "add it under another name",
            )
    for end, files in change.files.items():
        stored = seen[f"{TabletId(change.table, end).text}/files"] if files else ()
        for file, present in zip(files, stored, strict=True):
            if present is not None:
                return Refusal(RefusalCode.EXISTS, f"file {file.path} is already in the table")
    return None


def _add(change: AddFiles, table: Table, seen: Seen) -> Decision:
    """Check every file against its tablet, then write all of them."""
    effects: list[Command] = []
    replaced = 0
    for end, files in change.files.items():
        tablet = TabletId(change.table, end)
        old = _replaced(change.window, tablet, files, seen)
        if isinstance(old, Refusal):
            return old
        added = _added(change, table, tablet, files, old, seen)
        if isinstance(added, Refusal):
            return added
        effects += added
        replaced += len(old)
    mark = _mark(change, seen.now_s)
    effects += filled(TableKeys(change.table), change.run, mark.files)
    effects.append(leave_call_mark(TableKeys(change.table), change.call, mark))
    if change.segment:
        effects += _segment_out(change, TableKeys(change.table))
    return Write(tuple(effects), Applied(call=mark, replaced=replaced), durable=True)


def _replaced(
    window: Window | None, tablet: TabletId, added: Iterable[DataFile], seen: Seen
) -> list[DataFile] | Refusal:
    """Return the files that an add replaces in a tablet, or why it may not."""
    if window is None:
        return []
    keys = TabletKeys.of(tablet)
    present = Tablet(
        id=tablet,
        bounds=Bounds(None, tablet.end),
        files=unpack_files(keys.files, seen[f"{tablet.text}/present"]),
        running=unpack_running(keys.running, seen[f"{tablet.text}/running"]),
        selection=selection_seen(keys, seen[f"{tablet.text}/selection"]),
        waiting=waiting_seen(keys, seen[f"{tablet.text}/waiting"]),
        operation=operation_seen(keys, seen[f"{tablet.text}/operation"]),
    )
    return replaced_by(present, added, window)


def _mark(change: AddFiles, now_s: float) -> CallMark:
    files = [file for files in change.files.values() for file in files]
    ends = tuple(TabletId(change.table, end).text for end in sorted(change.files))
    return CallMark(
        kind=change.kind,
        content=call_content(change),
        at_s=now_s,
        rows=sum(file.rows for file in files),
        files=len(files),
        size_bytes=sum(file.size_bytes for file in files),
        names=names_digest(file.path for file in files),
        tablets=ends if sum(map(len, ends)) <= TABLETS_CHARS_MAX else (),
    )


def _added(  # noqa: PLR0917 - what an add to one tablet consists of
    change: AddFiles,
    table: Table,
    tablet: TabletId,
    files: tuple[DataFile, ...],
    replaced: list[DataFile],
    seen: Seen,
) -> list[Command] | Refusal:
    """Return the effects for one tablet, or why a file may not join it."""
    keys = TabletKeys.of(tablet)
    stored = bounds_seen(keys, seen[f"{tablet.text}/bounds"])
    bounds = stored or _new_partition(table, tablet.end, change.partitions)
    if bounds is None:
        return tablet_gone(tablet)
    operation = operation_seen(keys, seen[f"{tablet.text}/operation"])
    purge = seen[f"{tablet.text}/purge"]
    # Buffered rows were accepted above the watermark, and no dropped row is newer than them.
    late_data = table.settings.allow_late_data or bool(change.segment)
    for file in files:
        refusal = may_add(
            tablet, file, bounds=bounds, operation=operation, purge=purge, late_data=late_data
        )
        if refusal is not None:
            return refusal
    stamped = [_stamped(file, seen.now_s, late=is_late(file, purge)) for file in files]
    if change.window is not None:
        stamped = [with_data_version(file, change.window.version) for file in stamped]
    effects = [] if stored else make_tablet(tablet, bounds)
    if replaced:
        gone = {file.path: file.key_min for file in replaced}
        effects += take_files_out(keys, gone)
        effects += into_garbage(TableKeys(change.table), tablet.end, gone)
    effects += files_written(keys, stamped)
    if (head := seen.replies.get(f"{tablet.text}/chunks")) is not None:
        effects += chunks_changed(keys, head, stamped, replaced)
    before = unpack_recent(keys.record, seen[f"{tablet.text}/recent"])
    flags = _recent(table, before, [file for file in stamped if not is_late(file, purge)], seen)
    effects += tablet_changed(tablet, "add", counts=file_counts(stamped, replaced), flags=flags)
    return effects


def _recent(
    table: Table, before: RecentAdds, files: Iterable[DataFile], seen: Seen
) -> dict[str, Word]:
    """Return the record's notes of recent adds, if dead rows may ever be dropped here.

    Files below the watermark are left out: the table accepts them anyway.
    """
    settings = table.settings
    if table.version_column is None or (table.tombstone_column is None and settings.ttl_s is None):
        return {}
    reached = [file.version_max for file in files if file.version_max is not None]
    after = with_recent_add(before, seen.now_s, reached, settings.tombstone_retention_s)
    return {} if after == before else {RECENT_ADDS: pack([list(note) for note in after])}


def _new_partition(table: Table, end: bytes, partitions: Mapping[bytes, str]) -> Bounds | None:
    if not table.partition_by or end not in partitions:
        return None
    return Bounds(None, end, partitions[end])


def _stamped(file: DataFile, now_s: float, *, late: bool) -> DataFile:
    """Set the store's time on a file, and a tag if it came late."""
    since = file.tombstones_since_s
    if file.tombstones and since is None:
        since = now_s
    tags = (*file.tags, LATE) if late else file.tags
    added_at_s = file.added_at_s or now_s
    return replace(file, added_at_s=added_at_s, tombstones_since_s=since, tags=tags)
