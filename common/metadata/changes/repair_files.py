"""Repairs of files: orphans to garbage, lost files and duplicates removed, entries corrected.

Each carries what was observed, and is refused if that has changed: a repair never interferes with
concurrent work. A file leaves a tablet here without a commit, so `running` is touched. A concurrent
reservation that has read the file watches `running`, but not `files`, and then fails.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from common.metadata.changes.attempts import raise_watermark
from common.metadata.changes.files import may_add
from common.metadata.changes.protocol import (
    Change,
    Decision,
    Guarded,
    Needs,
    NoWrite,
    Seen,
    Transaction,
    Write,
    bounds_seen,
    disturb,
    disturb_running,
    file_counts,
    files_written,
    into_garbage,
    is_in_chunks,
    make_tablet,
    may_change,
    operation_seen,
    refused_by_table,
    refused_held,
    selection_seen,
    some_files,
    table_seen,
    table_state,
    tablet_changed,
    tablet_gone,
    take_files_out,
    transaction_of,
    whole_table,
)
from common.metadata.changes.tables import filled, may_fill
from common.metadata.codec.tablet import unpack_file, unpack_running
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.keyspace import Command, delete, get, hdel, hgetall, hmget
from common.model.file import DataFile
from common.model.outcome import Refusal, RefusalCode
from common.model.table import Table
from common.model.tablet import Bounds, TabletId

# ----------------------------------------------------------- Holders of files, and removal of files


def holders(keys: TabletKeys) -> Needs:
    """Need the keys that may hold files, watched, and `files`."""
    reads = {"running": hgetall(keys.running), "selection": get(keys.selection)}
    return Needs((keys.running, keys.selection, keys.files), reads)


def _refused_held(
    tablet: TabletId, keys: TabletKeys, paths: list[str], seen: Seen
) -> Refusal | None:
    """Return why files may not be changed: they are reserved or selected."""
    running = unpack_running(keys.running, seen["running"])
    return refused_held(tablet, paths, running, selection_seen(keys, seen["selection"]))


def stored_file(keys: TabletKeys, path: str, data: bytes) -> DataFile:
    """Return a file of a `files` hash."""
    return unpack_file(f"{keys.files} {path}", path.encode(), data)


# ------------------------------------------------------------------ Orphans, lost files, duplicates


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardFiles(Guarded):
    """Hand files that are in no key to the collector."""

    tablet: TabletId
    """Tablet whose bounds contain the keys of these files; the collector checks it again."""
    files: Mapping[str, bytes | None]
    """Path → smallest key, if the file can be read and has one."""


@transaction_of.register
def discard_files(change: DiscardFiles) -> Transaction:
    """Return the transaction that hands orphans to the collector. Mark: the entries."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    paths = [*change.files]
    assert paths, change.tablet
    reads = {
        "bounds": get(keys.bounds),
        "running": hgetall(keys.running),
        "files": hmget(keys.files, paths),
        "garbage": hmget(table.garbage, paths),
    }
    needs = table_state(table) | Needs((keys.bounds, keys.files, keys.running), reads)

    def decide(seen: Seen) -> Decision:
        bounds = bounds_seen(keys, seen["bounds"])
        if refusal := refused_by_table(table, seen):
            return refusal
        if bounds is None:
            return tablet_gone(change.tablet)
        if refusal := _refused_orphans(change, bounds, keys, seen):
            return refusal
        entries = zip(paths, seen["garbage"], strict=True)
        fresh = {path: change.files[path] for path, entry in entries if entry is None}
        if not fresh:
            return NoWrite()
        # Adds of the same file watch `files`, not `garbage`, which changes all the time.
        return Write((*into_garbage(table, change.tablet.end, fresh), *disturb(keys.files)))

    return Transaction(needs, decide)


def _refused_orphans(
    change: DiscardFiles, bounds: Bounds, keys: TabletKeys, seen: Seen
) -> Refusal | None:
    running = unpack_running(keys.running, seen["running"]).values()
    held_paths = {path for entry in running for path in (*entry.inputs, *entry.output_paths)}
    for (path, key), stored in zip(change.files.items(), seen["files"], strict=True):
        if stored is not None or path in held_paths:
            return Refusal(RefusalCode.USED, f"tablet {change.tablet}: file {path} is in use")
        if key is not None and bounds.partition is None and not bounds.holds(key, key):
            return Refusal(
                RefusalCode.BOUNDS, f"tablet {change.tablet}: file {path} belongs to another tablet"
            )
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetFiles(Guarded):
    """Remove files from a tablet whose bytes are lost. Refused for reserved or selected files."""

    tablet: TabletId
    paths: tuple[str, ...]


@transaction_of.register
def forget_files(change: ForgetFiles) -> Transaction:
    """Return the transaction that removes lost files. Mark: they are not in files."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    needs = table_state(table) | holders(keys) | some_files(keys, change.paths)

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(table, seen):
            return refusal
        stored = zip(change.paths, seen["some"], strict=True)
        removed = [stored_file(keys, path, data) for path, data in stored if data is not None]
        if not removed:
            return NoWrite()
        paths = [file.path for file in removed]
        if refusal := _refused_held(change.tablet, keys, paths, seen):
            return refusal
        counts = file_counts((), removed)
        return Write(
            (*take_files_out(keys, paths), *tablet_changed(change.tablet, "forget", counts=counts))
        )

    return Transaction(needs, decide)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropDuplicate(Guarded):
    """Remove a file from a tablet, because the tablet that holds its keys has it as well."""

    tablet: TabletId
    holder: TabletId
    """The tablet that keeps it."""
    path: str


@transaction_of.register
def drop_duplicate(change: DropDuplicate) -> Transaction:
    """Return the transaction that removes a file from one of two tablets. Mark: it is gone."""
    keys, holder = TabletKeys.of(change.tablet), TabletKeys.of(change.holder)
    assert change.tablet != change.holder, change
    table = TableKeys(change.tablet.table)
    reads = {
        "holder/bounds": get(holder.bounds),
        "holder/files": hmget(holder.files, [change.path]),
    }
    needs = table_state(table) | holders(keys) | some_files(keys, (change.path,))
    needs |= Needs((holder.bounds, holder.files), reads)

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(table, seen):
            return refusal
        if seen["some"][0] is None:
            return NoWrite()
        file = stored_file(keys, change.path, seen["some"][0])
        bounds = bounds_seen(holder, seen["holder/bounds"])
        if bounds is None or seen["holder/files"][0] is None:
            return Refusal(
                RefusalCode.GONE, f"tablet {change.holder} does not hold file {change.path}"
            )
        low, high = file.key_min, file.key_max
        if low is None or high is None or not bounds.holds(low, high):
            return Refusal(
                RefusalCode.BOUNDS, f"tablet {change.holder}: {change.path} has keys outside it"
            )
        if refusal := _refused_held(change.tablet, keys, [change.path], seen):
            return refusal
        counts = file_counts((), [file])
        effects = tablet_changed(change.tablet, "double", counts=counts)
        return Write((*take_files_out(keys, [change.path]), *effects))

    return Transaction(needs, decide)


@dataclass(frozen=True, slots=True, kw_only=True)
class RescueFile(Guarded):
    """Remove a file from garbage that a tablet holds."""

    tablet: TabletId
    path: str


@transaction_of.register
def rescue_file(change: RescueFile) -> Transaction:
    """Return the transaction that removes a used file from garbage. Mark: no entry."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    reads = {"entry": hmget(table.garbage, [change.path])}
    needs = Needs((keys.files, table.garbage), reads) | some_files(keys, (change.path,))

    def decide(seen: Seen) -> Decision:
        if seen["entry"][0] is None:
            return NoWrite()
        if seen["some"][0] is None:
            return Refusal(
                RefusalCode.GONE, f"tablet {change.tablet}: file {change.path} is not in use"
            )
        return Write((hdel(table.garbage, change.path),))

    return Transaction(needs, decide)


# --------------------------------------------------------------------------------- Entries of files


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectFile(Guarded):
    """Correct the entry of a file. Refused if the entry has changed."""

    tablet: TabletId
    before: DataFile
    after: DataFile


@transaction_of.register
def correct_file(change: CorrectFile) -> Transaction:
    """Return the transaction that corrects a file's entry. Mark: the new entry."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    path = change.before.path
    assert path == change.after.path, change
    needs = whole_table(table) | holders(keys) | _placement(keys, "")
    needs |= some_files(keys, (path,))

    def decide(seen: Seen) -> Decision:
        present_table = table_seen(table, seen)
        stored = seen["some"][0]
        file = None if stored is None else stored_file(keys, path, stored)
        if file == change.after:
            return NoWrite()
        if file is None or file != change.before:
            return Refusal(
                RefusalCode.VERSION, f"tablet {change.tablet}: the entry of file {path} has changed"
            )
        refusal = _refused_placement(present_table, change.tablet, change.after, seen, "")
        if refusal := refusal or _refused_held(change.tablet, keys, [path], seen):
            return refusal
        counts = file_counts([change.after], [change.before])
        after = replace(change.after, unknown_fields=file.unknown_fields)
        return Write(
            (
                *disturb_running(keys),
                *files_written(keys, [after]),
                *((delete(keys.chunks),) if is_in_chunks(change.before) else ()),
                *tablet_changed(change.tablet, "restate", counts=counts),
            )
        )

    return Transaction(needs, decide)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveFile(Guarded):
    """Move a file's entry to the tablet that holds its keys."""

    tablet: TabletId
    target: TabletId
    path: str


@transaction_of.register
def move_file(change: MoveFile) -> Transaction:
    """Return the transaction that moves an entry. Mark: the file is in the target."""
    keys, target = TabletKeys.of(change.tablet), TabletKeys.of(change.target)
    table = TableKeys(change.tablet.table)
    needs = whole_table(table) | holders(keys) | _placement(target, "target/")
    needs |= some_files(keys, (change.path,)) | Needs((keys.operation,))

    def decide(seen: Seen) -> Decision:
        present_table = table_seen(table, seen)
        stored = seen["some"][0]
        if stored is None:
            return NoWrite()
        file = stored_file(keys, change.path, stored)
        refusal = _refused_placement(present_table, change.target, file, seen, "target/")
        if refusal := refusal or _refused_held(change.tablet, keys, [change.path], seen):
            return refusal
        return Write(
            (
                *take_files_out(keys, [change.path]),
                *tablet_changed(change.tablet, "move", counts=file_counts((), [file])),
                *files_written(target, [file]),
                *tablet_changed(change.target, "move", counts=file_counts([file])),
            )
        )

    return Transaction(needs, decide)


def _placement(keys: TabletKeys, prefix: str) -> Needs:
    """Need the values that decide whether a file may be in a tablet."""
    reads = {
        f"{prefix}bounds": get(keys.bounds),
        f"{prefix}operation": get(keys.operation),
        f"{prefix}purge": get(keys.purge),
    }
    return Needs((keys.bounds, keys.operation, keys.files, keys.purge), reads)


def _refused_placement(
    table: Table | None, tablet: TabletId, file: DataFile, seen: Seen, prefix: str
) -> Refusal | None:
    keys = TabletKeys.of(tablet)
    if refusal := may_change(tablet.table, table.state if table else None):
        return refusal
    bounds = bounds_seen(keys, seen[f"{prefix}bounds"])
    if bounds is None:
        return tablet_gone(tablet)
    operation = operation_seen(keys, seen[f"{prefix}operation"])
    # The rows were in the table before, so the watermark, which applies to new rows, is ignored.
    return may_add(tablet, file, bounds=bounds, operation=operation, purge=None, late_data=True)


# ------------------------------------------------------------------ Files of a restore or a rebuild


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreFiles(Change):
    """Add files unchanged to a tablet of a paused table: a restore, or a rebuild.

    Existing files are skipped, so a repetition is harmless.
    """

    tablet: TabletId
    files: tuple[DataFile, ...]
    purge: bytes | None = None
    partition: str | None = None
    """Partition of a new tablet of a partitioned table."""
    run: str
    """The run that fills the table (`common.model.table.Filling`)."""


@transaction_of.register
def restore_files(change: RestoreFiles) -> Transaction:
    """Return the transaction that adds files again. Mark: they exist."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    paths = [file.path for file in change.files]
    needs = whole_table(table) | _placement(keys, "") | Needs((keys.files,))
    if paths:
        needs |= some_files(keys, tuple(paths))

    def decide(seen: Seen) -> Decision:
        present_table = table_seen(table, seen)
        if refusal := may_fill(table.id, present_table, change.run):
            return refusal
        stored = bounds_seen(keys, seen["bounds"])
        if stored is None and change.partition is None:
            return tablet_gone(change.tablet)
        fresh = _fresh(change, keys, seen)
        bounds = stored or Bounds(None, change.tablet.end, change.partition)
        if isinstance(fresh, Refusal):
            return fresh
        if refusal := _refused_files(change.tablet, fresh, bounds):
            return refusal
        effects = [] if stored else make_tablet(change.tablet, bounds)
        effects += _put(change, fresh, seen)
        effects += filled(table, change.run, len(fresh))
        return Write(tuple(effects), durable=True) if effects else NoWrite()

    return Transaction(needs, decide)


def _put(change: RestoreFiles, fresh: list[DataFile], seen: Seen) -> list[Command]:
    effects: list[Command] = []
    if change.purge is not None:
        effects += raise_watermark(change.tablet, seen["purge"], change.purge)
    effects += files_written(TabletKeys.of(change.tablet), fresh)
    if effects:
        effects += tablet_changed(change.tablet, "put", counts=file_counts(fresh))
    return effects


def _fresh(change: RestoreFiles, keys: TabletKeys, seen: Seen) -> list[DataFile] | Refusal:
    """Return the files that the tablet lacks."""
    fresh: list[DataFile] = []
    for file, stored in zip(change.files, seen["some"] if change.files else (), strict=True):
        if stored is None:
            fresh.append(file)
        elif stored_file(keys, file.path, stored) != file:
            return Refusal(
                RefusalCode.EXISTS, f"tablet {change.tablet}: a different file {file.path} exists"
            )
    return fresh


def _refused_files(tablet: TabletId, files: list[DataFile], bounds: Bounds) -> Refusal | None:
    for file in files:
        refusal = may_add(tablet, file, bounds=bounds, operation=None, purge=None, late_data=True)
        if refusal is not None:
            return refusal
    return None
