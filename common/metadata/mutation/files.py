"""Add files under one call id; stamps of garbage, and pins.

Mark of an add: `call:<id>`, which records what was added.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from common.metadata.changes import (
    AddFiles,
    Applied,
    ForgetGarbage,
    KeepGarbage,
    PinFiles,
    StampGarbage,
    UnpinFiles,
)
from common.metadata.codec.layout import pack
from common.metadata.codec.table import GARBAGE, PIN
from common.metadata.codec.tablet import (
    RECENT_ADDS,
    unpack_recent,
)
from common.metadata.commands import (
    Command,
    Reply,
    Word,
    get,
    hdel,
    hget,
    hmget,
    hset,
    mget,
    set_string,
)
from common.metadata.keys import TableKeys, TabletKeys, retired_name
from common.metadata.mutation.call_marks import (
    answer_repeated_call,
    call_content,
    leave_call_mark,
    names_digest,
    refused_call,
)
from common.metadata.mutation.effects import (
    file_counts,
    files_written,
    filled,
    make_tablet,
    tablet_changed,
)
from common.metadata.mutation.needs import (
    bounds_seen,
    operation_seen,
    refused_by_table,
    table_seen,
    table_state,
    tablet_gone,
    whole_table,
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
from common.metadata.predicates import is_late, may_add, may_fill
from common.metadata.recent_adds import Notes, with_add
from common.metadata.store_values import CallMark, PinEntry
from common.model.file import DataFile
from common.model.location_identity import is_service_path
from common.model.outcome import Refusal, RefusalCode
from common.model.table import Table
from common.model.tablet import Bounds, TabletId

# ---- Adding files
#
# The mark is checked first: a call that was accepted once is not validated again, whatever became
# of its files.


TABLETS_CHARS_MAX = 256
"""A mark lists its tablets if their names are at most this long in total."""
LATE = ("late", "true")
"""Tag of a file with rows at or below the watermark, in a table that accepts them."""


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

    def decide(seen: Seen) -> Decision:
        if seen["call"] is not None:
            return answer_repeated_call(keys, change.call, change.kind, call_content(change), seen)
        table = table_seen(keys, seen)
        refusal = (
            refused_call(change.call, seen.now_s, table.calls_since_s if table else 0.0)
            or may_fill(change.table, table, change.run)
            or _refused_look(change, seen.now_s)
            or _refused_paths(change, paths, seen)
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

    return Transaction(needs, decide, keys.turn, takes_turn=True)


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
    return Needs((keys.bounds, keys.operation, keys.files, keys.purge), reads)


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
    for end, files in change.files.items():
        tablet = TabletId(change.table, end)
        added = _added(change, table, tablet, files, seen)
        if isinstance(added, Refusal):
            return added
        effects += added
    mark = _mark(change, seen.now_s)
    effects += filled(TableKeys(change.table), change.run, mark.files)
    effects.append(leave_call_mark(TableKeys(change.table), change.call, mark))
    return Write(tuple(effects), Applied(call=mark), durable=True)


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


def _added(
    change: AddFiles, table: Table, tablet: TabletId, files: tuple[DataFile, ...], seen: Seen
) -> list[Command] | Refusal:
    """Return the effects for one tablet, or why a file may not join it."""
    keys = TabletKeys.of(tablet)
    stored = bounds_seen(keys, seen[f"{tablet.text}/bounds"])
    bounds = stored or _new_partition(table, tablet.end, change.partitions)
    if bounds is None:
        return tablet_gone(tablet)
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
    effects = [] if stored else make_tablet(tablet, bounds)
    effects += files_written(keys, stamped)
    before = unpack_recent(keys.record, seen[f"{tablet.text}/recent"])
    flags = _recent(table, before, [each for each in stamped if not is_late(each, purge)], seen)
    effects += tablet_changed(tablet, "add", counts=file_counts(stamped), flags=flags)
    return effects


def _recent(table: Table, before: Notes, files: Iterable[DataFile], seen: Seen) -> dict[str, Word]:
    """Return the record's notes of recent adds, if dead rows may ever be dropped here.

    Files below the watermark are left out: the table accepts them anyway.
    """
    settings = table.settings
    if table.version_column is None or (table.tombstone_column is None and settings.ttl_s is None):
        return {}
    reached = [file.version_max for file in files if file.version_max is not None]
    after = with_add(before, seen.now_s, reached, settings.tombstone_retention_s)
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


# ---- Garbage and pins
#
# Only a collector that has seen an entry stamps it, with a time that it reads afterwards. A time
# read by the committer before its `EXEC` could be older than a pin whose listing includes the file.


def stamp_garbage(change: StampGarbage) -> Transaction:
    """Return the transaction that stamps entries. Mark: they are stamped."""
    keys = TableKeys(change.table)
    assert change.paths, change.table

    def decide(seen: Seen) -> Decision:
        fields: dict[Word, Word] = {}
        for path, stored in zip(change.paths, seen["entries"], strict=True):
            if stored is None:
                continue
            entry = GARBAGE.unpack(f"{keys.garbage} {path}", stored, path=path)
            if not entry.stamped_s:
                fields[path] = GARBAGE.pack(replace(entry, stamped_s=seen.now_s))
        effects: tuple[Command, ...] = (hset(keys.garbage, fields),) if fields else ()
        if change.settled:
            effects += (hdel(keys.uncommitted, *change.settled),)
        return Write(effects) if effects else NoWrite()

    needs = Needs((keys.garbage,), {"entries": hmget(keys.garbage, change.paths)})
    return Transaction(needs, decide)


def keep_garbage(change: KeepGarbage) -> Transaction:
    """Return the transaction that resets an entry's stamp to 0. Mark: it is 0, or gone."""
    keys = TableKeys(change.table)

    def decide(seen: Seen) -> Decision:
        if seen["entry"] is None:
            return NoWrite()
        entry = GARBAGE.unpack(f"{keys.garbage} {change.path}", seen["entry"], path=change.path)
        if not entry.stamped_s:
            return NoWrite()
        fields = {change.path: GARBAGE.pack(replace(entry, stamped_s=0))}
        return Write((hset(keys.garbage, fields),))

    needs = Needs((keys.garbage,), {"entry": hget(keys.garbage, change.path)})
    return Transaction(needs, decide)


def forget_garbage(change: ForgetGarbage) -> Transaction:
    """Return the first transaction that removes entries. Mark: they are gone.

    Nothing is watched. Only collectors remove entries, and until then no file with that path can
    be added, so the entry cannot belong to another file. For a while afterwards no table may add
    a file with that name either: a stalled collector would delete it. Names have a slot of their
    own, so they are retired first, and replicas have the mark before the entry is removed.
    """
    keys = TableKeys(change.table)
    assert change.paths, change.table
    assert change.location or not change.retired_s, change.table
    entries = Needs((), {"entries": hmget(keys.garbage, change.paths)})

    def present(seen: Seen) -> list[str]:
        known = zip(change.paths, seen["entries"], strict=True)
        return [path for path, entry in known if entry is not None]

    def forget(seen: Seen) -> Decision:
        gone = present(seen)
        return Write((hdel(keys.garbage, *gone),)) if gone else NoWrite()

    def retire(seen: Seen) -> Decision:
        names = [path for path in present(seen) if not is_service_path(path)]
        if not names:
            return NoWrite(then=Transaction(entries, forget))
        marks = [retired_name(change.location, path) for path in names]
        effects = tuple(set_string(mark, 1, change.retired_s) for mark in marks)
        return Write(effects, then=Transaction(entries, forget), durable=True)

    return Transaction(entries, retire if change.retired_s > 0 else forget)


def pin(change: PinFiles) -> Transaction:
    """Return the transaction that begins or renews a pin. Mark: the pin, with this lease.

    A pin with an expired lease may have been ignored already. Renewing it would promise files
    that are gone, so it is refused.
    """
    keys = TableKeys(change.table)

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(keys, seen):
            return refusal
        until_s = seen.now_s + change.lease_s
        entry = PinEntry(pin=change.pin, since_s=seen.now_s, until_s=until_s)
        if seen["pin"] is not None:
            present = PIN.unpack(f"{keys.pins} {change.pin}", seen["pin"], pin=change.pin)
            if present.until_s < seen.now_s:
                return Refusal(RefusalCode.PIN, f"pin {change.pin} has expired, begin a new one")
            entry = replace(present, until_s=until_s)
        elif change.renews:
            # The files that were listed under it may have been deleted.
            return Refusal(RefusalCode.PIN, f"pin {change.pin} does not exist any more")
        # A fail-over must not lose it, because the reader lists files next.
        return Write((hset(keys.pins, {change.pin: PIN.pack(entry)}),), durable=True)

    needs = table_state(keys) | Needs((keys.pins,), {"pin": hget(keys.pins, change.pin)})
    return Transaction(needs, decide)


def unpin(change: UnpinFiles) -> Transaction:
    """Return the transaction that ends a pin. Mark: it is gone."""
    keys = TableKeys(change.table)

    def decide(seen: Seen) -> Decision:
        return Write((hdel(keys.pins, change.pin),)) if seen["pin"] is not None else NoWrite()

    return Transaction(Needs((keys.pins,), {"pin": hget(keys.pins, change.pin)}), decide)
