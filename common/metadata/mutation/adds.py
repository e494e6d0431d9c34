"""Add files to tablets under one call id. Mark: `call:<id>` with a digest of the content."""

from collections.abc import Mapping
from dataclasses import replace

from common.digests import CALL_LIFE_S, call_time_s, digest
from common.metadata.changes import AddFiles
from common.metadata.codec_file import FILE
from common.metadata.codec_tablet import BOUNDS, FILES, VERSION
from common.metadata.commands import (
    Command,
    get,
    hmget,
    hset,
    pexpire,
    set_string,
    zadd,
)
from common.metadata.keys import CALL_SKEW_S, MARK_LIFE_S, TableKeys, TabletKeys
from common.metadata.mutation.effects import changed, file_counts, files_written
from common.metadata.mutation.requirements import (
    bounds_seen,
    gone,
    operation_seen,
    table_seen,
    whole_table,
)
from common.metadata.mutation.transaction import Decision, Needs, Seen, Transaction, Write
from common.metadata.predicates import is_late, may_add, may_change
from common.model.file import DataFile
from common.model.outcome import Refusal
from common.model.table import Table
from common.model.tablet import Bounds, TabletId

LATE = ("late", "true")
"""Tag of a file with rows at or below the watermark, in a table that takes them."""


def add_files(change: AddFiles) -> Transaction:
    """Return the transaction that adds files, all or none."""
    keys = TableKeys(change.table)
    paths = [file.path for files in change.files.values() for file in files]
    reads = {"call": get(keys.call(change.call))}
    if paths:
        reads["garbage"] = hmget(keys.garbage, paths)
    needs = whole_table(keys) | Needs((keys.call(change.call),), reads)
    for end in change.files:
        needs |= _tablet_needs(TabletId(change.table, end), change.files[end])

    def decide(seen: Seen) -> Decision:
        if seen["call"] is not None:
            return _repeated(change, seen)
        table = table_seen(keys, seen)
        refusal = (
            _refused_call(change, seen.now_s)
            or may_change(change.table, table.state if table else None)
            or _refused_paths(change, paths, seen)
        )
        if refusal is not None:
            return refusal
        assert table is not None, change.table
        return _add(change, table, seen)

    return Transaction(needs, decide)


def _tablet_needs(tablet: TabletId, files: tuple[DataFile, ...]) -> Needs:
    keys = TabletKeys.of(tablet)
    reads = {
        f"{tablet.text}/bounds": get(keys.bounds),
        f"{tablet.text}/operation": get(keys.operation),
        f"{tablet.text}/purge": get(keys.purge),
    }
    if files:
        reads[f"{tablet.text}/files"] = hmget(keys.files, [file.path for file in files])
    return Needs((keys.bounds, keys.operation, keys.files, keys.purge), reads)


def content_digest(change: AddFiles) -> str:
    """Return what identifies the content of a call, whatever tablets it was routed to.

    Stamps are left out: a client that repeats a call does so later.
    """
    files = (file for files in change.files.values() for file in files)
    parts: list[str | bytes] = []
    for file in sorted(files, key=lambda each: each.path):
        plain = replace(file, added_at_s=0.0, tombstones_since_s=None)
        parts += [file.path, FILE.pack(plain)]
    return digest(parts, length=32)


def _repeated(change: AddFiles, seen: Seen) -> Decision:
    """Answer a call that was made before: touch its mark, so that replicas have it too."""
    key = TableKeys(change.table).call(change.call)
    if seen["call"] != content_digest(change).encode():
        return Refusal("call", f"call {change.call} was made before with other files")
    return Write((pexpire(key, MARK_LIFE_S),), durable=True)


def _refused_call(change: AddFiles, now_s: float) -> Refusal | None:
    made_s = call_time_s(change.call)
    if made_s is None:
        return Refusal("call", f"call id {change.call} carries no time, a UUIDv7 is expected")
    if not now_s - CALL_LIFE_S <= made_s <= now_s + CALL_SKEW_S:
        return Refusal("call", f"call id {change.call} is too old or from the future")
    return None


def _refused_paths(change: AddFiles, paths: list[str], seen: Seen) -> Refusal | None:
    if not paths:
        return Refusal("files", f"call {change.call} names no file")
    if len(set(paths)) < len(paths):
        return Refusal("files", f"call {change.call} names a file twice")
    for path, entry in zip(paths, seen["garbage"], strict=True):
        if entry is not None:
            return Refusal("exists", f"file {path} was replaced before and is being deleted")
    for end, files in change.files.items():
        stored = seen[f"{TabletId(change.table, end).text}/files"] if files else ()
        for file, present in zip(files, stored, strict=True):
            if present is not None:
                return Refusal("exists", f"file {file.path} is in the table already")
    return None


def _add(change: AddFiles, table: Table, seen: Seen) -> Decision:
    """Check every file against its tablet, then write them all."""
    effects: list[Command] = []
    for end, files in change.files.items():
        tablet = TabletId(change.table, end)
        added = _added(change, table, tablet, files, seen)
        if isinstance(added, Refusal):
            return added
        effects += added
    key = TableKeys(change.table).call(change.call)
    effects.append(set_string(key, content_digest(change), MARK_LIFE_S))
    return Write(tuple(effects), durable=True)


def _added(
    change: AddFiles, table: Table, tablet: TabletId, files: tuple[DataFile, ...], seen: Seen
) -> list[Command] | Refusal:
    """Return the effects for one tablet, or why a file may not join it."""
    keys = TabletKeys.of(tablet)
    stored = bounds_seen(keys, seen[f"{tablet.text}/bounds"])
    bounds = stored or _new_partition(table, tablet.end, change.partitions)
    if bounds is None:
        return gone(tablet)
    operation = operation_seen(keys, seen[f"{tablet.text}/operation"])
    purge = seen[f"{tablet.text}/purge"]
    late_data = table.settings.allow_late_data
    for file in files:
        refusal = may_add(
            tablet, file, bounds=bounds, operation=operation, purge=purge, late_data=late_data
        )
        if refusal is not None:
            return refusal
    stamped = [_stamped(file, seen.now_s, late=is_late(file, purge)) for file in files]
    effects = [] if stored else created(tablet, bounds)
    effects += files_written(keys, stamped)
    effects += changed(tablet, "add", counts=file_counts(stamped))
    return effects


def _new_partition(table: Table, end: bytes, partitions: Mapping[bytes, str]) -> Bounds | None:
    if not table.partition_by or end not in partitions:
        return None
    return Bounds(None, end, partitions[end])


def created(tablet: TabletId, bounds: Bounds) -> list[Command]:
    """Return the effects that make a tablet."""
    keys = TabletKeys.of(tablet)
    return [
        set_string(keys.bounds, BOUNDS.pack(bounds)),
        zadd(TableKeys(tablet.table).index, tablet.end),
        hset(keys.record, {VERSION: 0, FILES: 0}),
    ]


def _stamped(file: DataFile, now_s: float, *, late: bool) -> DataFile:
    """Write the store's time on a file, and whether it came late."""
    since = file.tombstones_since_s
    if file.tombstones and since is None:
        since = now_s
    tags = (*file.tags, LATE) if late else file.tags
    added_at_s = file.added_at_s or now_s
    return replace(file, added_at_s=added_at_s, tombstones_since_s=since, tags=tags)
