"""End a split or merge: new bounds, files by key, watermark and record, in one MULTI over all."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from common.metadata.bounds_predicates import Marks, is_of, may_end, merged_marks
from common.metadata.codec import pack
from common.metadata.codec_tablet import (
    BOUNDS,
    OPERATION_FLAG,
    PURGED,
    RECENT_ADDS,
    SETTLED,
    VERSION,
)
from common.metadata.commands import Command, Word, delete, hdel, hset, set_string, zadd, zrem
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.mutation.effects import changed, file_counts, files_written, told
from common.metadata.mutation.operations import of_tablet, part_of, tablets_seen
from common.metadata.mutation.requirements import (
    refused_by_table,
    table_state,
    tablet_seen,
    whole_tablet,
)
from common.metadata.mutation.transaction import Decision, Done, Seen, Transaction, Write
from common.metadata.recent_adds import joined
from common.metadata.request_changes import EndOperation
from common.model.file import DataFile
from common.model.outcome import Refusal
from common.model.tablet import Operation, OperationKind, Tablet, TabletId


def end_operation(change: EndOperation) -> Transaction:
    """Return the transaction that carries an operation out. Mark: `operation` is gone."""
    table = TableKeys(change.tablets[0].table)
    needs = table_state(table)
    for tablet in change.tablets:
        keys = TabletKeys.of(tablet)
        watch = (keys.operation, keys.running, keys.files, keys.bounds)
        needs |= of_tablet(tablet, whole_tablet(keys, watch))

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(table, seen):
            return refusal
        if _ended(change.tablets, seen):
            return Done()
        tablets = tablets_seen(change.tablets, seen)
        if isinstance(tablets, Refusal):
            return tablets
        if refusal := is_of(tablets, change.operation) or may_end(tablets):
            return refusal
        operation = tablets[0].operation
        assert operation is not None, change
        return Write(_carried_out(tablets, operation))

    return Transaction(needs, decide)


def _ended(tablets: Sequence[TabletId], seen: Seen) -> bool:
    """Return whether an operation is over: none is there, and a merge has left one tablet."""
    last = tablets[-1]
    found = tablet_seen(last, TabletKeys.of(last), part_of(last, seen))
    if found is None or found.operation is not None:
        return False
    before = [part_of(tablet, seen) for tablet in tablets[:-1]]
    return all(each["bounds"] is None or each["operation"] is None for each in before)


def _carried_out(tablets: Sequence[Tablet], operation: Operation) -> tuple[Command, ...]:
    if operation.kind is OperationKind.MERGE:
        return merged(tablets[0], tablets[1], tablets[0].bounds.start)
    assert operation.at is not None, operation
    return _split(tablets[0], operation.at)


def _split(tablet: Tablet, at: bytes) -> tuple[Command, ...]:
    """Make `(start, at]` a tablet of its own; the old one keeps its end, and so its name."""
    left = TabletId(tablet.id.table, at)
    keys, own = TabletKeys.of(left), TabletKeys.of(tablet.id)
    moved = [
        file for file in tablet.files.values() if file.key_max is not None and file.key_max <= at
    ]
    flags = _facts(tablet.purge, tablet.record.settled, tablet.record.recent_adds)
    effects: tuple[Command, ...] = (
        set_string(keys.bounds, BOUNDS.pack(replace(tablet.bounds, end=at))),
        set_string(own.bounds, BOUNDS.pack(replace(tablet.bounds, start=at))),
        zadd(TableKeys(left.table).index, at),
        # The counting goes on, so that no note made before fits by chance.
        hset(keys.record, {VERSION: tablet.record.version}),
        *files_written(keys, moved),
        *_without(own, moved),
        delete(own.operation),
    )
    if tablet.purge is not None:
        effects += (set_string(keys.purge, tablet.purge),)
    return (
        *effects,
        *changed(left, "split", counts=file_counts(moved), flags=flags),
        *changed(tablet.id, "split", counts=file_counts((), moved), flags={OPERATION_FLAG: 0}),
    )


def merged(left: Tablet, right: Tablet, start: bytes | None) -> tuple[Command, ...]:
    """Give everything of the left tablet to the right one, whose end and name stay.

    Args:
        left: As read, with all files.
        right: Likewise.
        start: Of what they become.
    """
    keys, own = TabletKeys.of(right.id), TabletKeys.of(left.id)
    moved = [file for path, file in left.files.items() if path not in right.files]
    purge = max(filter(None, (left.purge, right.purge)), default=None)
    settled = merged_marks(left.record.settled, right.record.settled)
    effects: tuple[Command, ...] = (
        delete(*own.every),
        zrem(TableKeys(left.id.table).index, left.id.end),
        set_string(keys.bounds, BOUNDS.pack(replace(right.bounds, start=start))),
        *files_written(keys, moved),
        delete(keys.operation),
    )
    if purge is not None:
        effects += (set_string(keys.purge, purge),)
    recent = joined(left.record.recent_adds, right.record.recent_adds)
    flags = _facts(purge, settled, recent) | {OPERATION_FLAG: 0}
    return (
        *effects,
        *changed(right.id, "merge", counts=file_counts(moved), flags=flags),
        *told(left.id, "merge"),
    )


def _facts(purge: bytes | None, settled: Marks, recent: Marks) -> dict[str, Word]:
    """Return what a record says of watermark, settled versions and recent adds."""
    flags: dict[str, Word] = {SETTLED: pack([[at_s, version] for at_s, version in settled])}
    if recent:
        flags[RECENT_ADDS] = pack([list(note) for note in recent])
    return flags | {PURGED: 1} if purge is not None else flags


def _without(keys: TabletKeys, files: Iterable[DataFile]) -> tuple[Command, ...]:
    paths = [file.path for file in files]
    return (hdel(keys.files, *paths),) if paths else ()
