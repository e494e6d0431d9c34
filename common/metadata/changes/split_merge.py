"""Splits and merges: begin, step, abandon, and end with new bounds.

Each is one transaction over all tablets of the operation.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from common.metadata.changes.files import merge_recent_adds
from common.metadata.changes.protocol import (
    Decision,
    Guarded,
    Needs,
    NoWrite,
    Seen,
    Transaction,
    Write,
    file_counts,
    files_written,
    may_change,
    refused_by_table,
    some_names,
    stream_entry,
    table_seen,
    table_state,
    tablet_changed,
    tablet_gone,
    tablet_seen,
    tablet_without_files,
    transaction_of,
    whole_table,
    whole_tablet,
)
from common.metadata.codec.layout import pack
from common.metadata.codec.tablet import (
    ABANDONED,
    ANALYSIS_GROUP,
    ANSWERED,
    BOUNDS,
    COMPACTIONS,
    OPERATION,
    OPERATION_FLAG,
    PURGED,
    RECENT_ADDS,
    SETTLED,
    STATISTICS,
    TABLET_TRIGGERED,
    VERSION,
)
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.keyspace import Command, Word, delete, hdel, hset, set_string, zadd, zrem
from common.model.file import DataFile, may_cross
from common.model.outcome import Refusal, RefusalCode
from common.model.table import Table
from common.model.tablet import (
    Operation,
    OperationKind,
    OperationStep,
    Reservation,
    Tablet,
    TabletId,
)

# ---------------------------------------------------------------------- The tablets of an operation


def operation_tablets(tablet: Tablet) -> tuple[TabletId, ...] | None:
    """Return all tablets of the operation that is running in a tablet.

    None: there is none, or this is the left tablet of a merge. The right tablet, which has the
    keys after `operation.at`, identifies both.
    """
    operation = tablet.operation
    if operation is None or operation.at == tablet.bounds.end:
        return None
    if operation.kind is OperationKind.SPLIT or operation.at is None:
        return (tablet.id,)
    return TabletId(tablet.id.table, operation.at), tablet.id


def needs_of_tablet(tablet: TabletId, needs: Needs) -> Needs:
    """Return needs of one of several tablets, with prefixed names."""
    reads = {f"{tablet.text}/{name}": command for name, command in needs.reads.items()}
    return Needs(needs.watch, reads)


def seen_of_tablet(tablet: TabletId, seen: Seen) -> Seen:
    """Return the values read for one of several tablets."""
    prefix = f"{tablet.text}/"
    own = {
        name.removeprefix(prefix): reply
        for name, reply in seen.replies.items()
        if name.startswith(prefix)
    }
    return Seen(own, seen.now_s, seen.sent)


def tablet_there(tablet: TabletId, seen: Seen) -> Tablet | None:
    """Return one of several tablets, or None if it is gone."""
    return tablet_seen(tablet, TabletKeys.of(tablet), seen_of_tablet(tablet, seen))


def tablets_seen(tablets: Sequence[TabletId], seen: Seen) -> list[Tablet] | Refusal:
    """Return several tablets, or the refusal because one is gone."""
    records: list[Tablet] = []
    for tablet in tablets:
        record = tablet_there(tablet, seen)
        if record is None:
            return tablet_gone(tablet)
        records.append(record)
    return records


# ----------------------------------------------------------------------------- Begin, step, abandon

REASON_CHARS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginOperation(Guarded):
    """Begin a split of one tablet, or a merge of two neighbours (the left one first)."""

    kind: OperationKind
    tablets: tuple[TabletId, ...]
    operation: str
    """Random id."""
    at: bytes | None = None
    """The key of a split."""
    reason: str = ""
    """Human-readable reason, truncated to `REASON_CHARS_MAX` characters."""


def may_begin(
    table: Table, tablets: Sequence[Tablet], kind: OperationKind, at: bytes | None
) -> Refusal | None:
    """Return why a split or merge may not begin, or None if it may.

    Args:
        table: Table of the tablets.
        tablets: As read after `WATCH`; the left one first.
        kind: Kind of the operation.
        at: The key of a split.
    """
    if table.partition_by or not table.key:
        return Refusal(RefusalCode.BOUNDS, f"table {table.name}: its tablets are not key ranges")
    if refusal := next(filter(None, map(why_busy, tablets)), None):
        return refusal
    bounds = tablets[0].bounds
    if kind is OperationKind.MERGE:
        if bounds.end == tablets[1].bounds.start:
            return None
        return Refusal(
            RefusalCode.BOUNDS, f"tablets {tablets[0].id} and {tablets[1].id} are not adjacent"
        )
    if at is not None and (bounds.start is None or bounds.start < at) and at < bounds.end:
        return None
    return Refusal(
        RefusalCode.BOUNDS,
        f"tablet {tablets[0].id}: the cut must be inside the tablet, not at its end",
    )


def why_busy(tablet: Tablet) -> Refusal | None:
    """Return the work that an operation would have to wait for, or None."""
    subject = f"tablet {tablet.id}"
    if tablet.operation is not None:
        return Refusal(
            RefusalCode.OPERATION, f"{subject}: a {tablet.operation.kind.value} is under way"
        )
    if tablet.selection is not None:
        return Refusal(
            RefusalCode.SELECTED, f"{subject}: request {tablet.selection.request} holds files"
        )
    if tablet.waiting:
        return Refusal(
            RefusalCode.WAITING, f"{subject}: requests wait: {some_names(sorted(tablet.waiting))}"
        )
    if tablet.done:
        done = some_names(sorted(tablet.done))
        return Refusal(
            RefusalCode.DONE, f"{subject}: requests that have not ended are done here: {done}"
        )
    return None


@transaction_of.register
def begin_operation(change: BeginOperation) -> Transaction:
    """Return the transaction that begins an operation. Mark: `operation` has this id."""
    splits = change.kind is OperationKind.SPLIT
    assert len(change.tablets) == (1 if splits else 2), change
    table = TableKeys(change.tablets[0].table)
    needs = whole_table(table)
    for tablet in change.tablets:
        keys = TabletKeys.of(tablet)
        watch = (keys.operation, keys.selection, keys.waiting, keys.done)
        needs |= needs_of_tablet(tablet, tablet_without_files(keys, watch))

    def decide(seen: Seen) -> Decision:
        stored = table_seen(table, seen)
        if refusal := may_change(table.id, stored.state if stored else None):
            return refusal
        assert stored is not None, table.id
        tablets = tablets_seen(change.tablets, seen)
        if isinstance(tablets, Refusal):
            return tablets
        if refused_step(tablets, change.operation) is None:
            return NoWrite()
        if refusal := may_begin(stored, tablets, change.kind, change.at):
            return refusal
        step = OperationStep.CUT if splits else OperationStep.DRAIN
        at = change.at if splits else tablets[0].bounds.end
        reason = change.reason[:REASON_CHARS_MAX]
        begun = Operation(change.kind, change.operation, step, at, seen.now_s, reason)
        return Write(_written(tablets, begun))

    return Transaction(needs, decide)


def _written(tablets: Sequence[Tablet], operation: Operation) -> tuple[Command, ...]:
    effects: list[Command] = []
    for tablet in tablets:
        effects.append(set_string(TabletKeys.of(tablet.id).operation, OPERATION.pack(operation)))
        effects += tablet_changed(tablet.id, operation.kind.value, flags={OPERATION_FLAG: 1})
    return tuple(effects)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOperation(Guarded):
    """Advance an operation by one step, in all its tablets at once."""

    tablets: tuple[TabletId, ...]
    operation: str
    step: OperationStep


_BEFORE = {OperationStep.DRAIN: OperationStep.CUT, OperationStep.CLOSE: OperationStep.DRAIN}
_ORDER = [*OperationStep]


def refused_step(tablets: Iterable[Tablet], operation: str) -> Refusal | None:
    """Return why a step does not apply to these tablets: they have another operation, or none."""
    for tablet in tablets:
        present = tablet.operation
        if present is None or present.operation_id != operation:
            other = "none" if present is None else present.operation_id
            return Refusal(
                RefusalCode.OPERATION,
                f"tablet {tablet.id}: operation {other} is there, not {operation}",
            )
    return None


def may_step(tablets: Sequence[Tablet], step: OperationStep) -> Refusal | None:
    """Return why the next step may not be taken, or None if it may.

    Files and jobs that block the step cannot reappear: the previous step keeps them out. Only
    `running` must be read before `files`.

    Args:
        tablets: Tablets of one operation, as read after `WATCH`, with all files.
        step: The next step.
    """
    for tablet in tablets:
        present = tablet.operation
        assert present is not None, tablet.id
        if present.step is not _BEFORE.get(step):
            return Refusal(
                RefusalCode.OPERATION,
                f"tablet {tablet.id}: {step.value} does not follow {present.step.value}",
            )
        refusal = _still_crosses(tablet, present) or _still_runs(tablet, step)
        if refusal is not None:
            return refusal
    return None


def step_is_taken(tablets: Iterable[Tablet], step: OperationStep) -> bool:
    """Return whether an operation has already reached a step."""
    present = [tablet.operation for tablet in tablets]
    return all(
        operation is not None and _ORDER.index(operation.step) >= _ORDER.index(step)
        for operation in present
    )


def _still_runs(tablet: Tablet, step: OperationStep) -> Refusal | None:
    if step is not OperationStep.CLOSE or not tablet.running:
        return None
    running = some_names(sorted(tablet.running))
    return Refusal(RefusalCode.RUNNING, f"tablet {tablet.id}: attempts are running: {running}")


def _still_crosses(tablet: Tablet, operation: Operation) -> Refusal | None:
    """Return why files block a cut: they cross it, or a running job's output may cross it."""
    at = operation.at
    if operation.kind is not OperationKind.SPLIT or at is None:
        return None
    if over := sorted(path for path, file in tablet.files.items() if may_cross(file, at)):
        return Refusal(
            RefusalCode.CROSSES, f"tablet {tablet.id}: files cross the cut: {some_names(over)}"
        )
    for attempt, entry in sorted(tablet.running.items()):
        if _joins(tablet, entry, at):
            return Refusal(
                RefusalCode.RUNNING,
                f"tablet {tablet.id}: attempt {attempt} joins files of both sides",
            )
    return None


def _joins(tablet: Tablet, entry: Reservation, at: bytes) -> bool:
    """Return whether the output of an attempt, reserved before the cut, may cross the cut."""
    ends = [tablet.files[path].key_max for path in entry.inputs if path in tablet.files]
    is_left = [end is not None and end <= at for end in ends]
    return any(is_left) and not all(is_left)


@transaction_of.register
def step_operation(change: StepOperation) -> Transaction:
    """Return the transaction that takes the next step. Mark: `operation` has this step."""
    table = TableKeys(change.tablets[0].table)
    needs = table_state(table)
    for tablet in change.tablets:
        keys = TabletKeys.of(tablet)
        # `running` is read before `files`, so that outputs of a commit in between are included.
        needs |= needs_of_tablet(tablet, whole_tablet(keys, (keys.operation,)))

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(table, seen):
            return refusal
        tablets = tablets_seen(change.tablets, seen)
        if isinstance(tablets, Refusal):
            return tablets
        if refusal := refused_step(tablets, change.operation):
            return refusal
        if step_is_taken(tablets, change.step):
            return NoWrite()
        if refusal := may_step(tablets, change.step):
            return refusal
        present = tablets[0].operation
        assert present is not None, change
        return Write(_written(tablets, replace(present, step=change.step)))

    return Transaction(needs, decide)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonOperation(Guarded):
    """Abandon a split or merge at any step: bounds and files stay unchanged.

    Either this or `EndOperation` takes effect, whichever comes first; the other then succeeds
    without effect.
    """

    tablets: tuple[TabletId, ...]
    operation: str


@transaction_of.register
def abandon_operation(change: AbandonOperation) -> Transaction:
    """Return the transaction that abandons an operation. Mark: `operation` is gone.

    Only `operation` is required: it blocks everything else, and no other key was changed so far.
    Files that were cut are smaller files of the same tablet.
    """
    table = TableKeys(change.tablets[0].table)
    needs = table_state(table)
    for tablet in change.tablets:
        keys = TabletKeys.of(tablet)
        needs |= needs_of_tablet(tablet, tablet_without_files(keys, (keys.operation,)))

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(table, seen):
            return refusal
        tablets = [tablet_there(tablet, seen) for tablet in change.tablets]
        own = [
            candidate
            for candidate in tablets
            if candidate and refused_step([candidate], change.operation) is None
        ]
        if not own:
            return NoWrite()
        effects: list[Command] = []
        for tablet in own:
            effects.append(delete(TabletKeys.of(tablet.id).operation))
            flags: dict[str, Word] = {OPERATION_FLAG: 0, ABANDONED: f"{seen.now_s:.3f}"}
            effects += tablet_changed(tablet.id, "abandon", flags=flags)
        return Write(tuple(effects))

    return Transaction(needs, decide)


# ---------------------------------------------- End: new bounds, files by key, watermark and record

Marks = tuple[tuple[float, bytes], ...]
"""Settled versions of a record: (time, highest version at that time), ascending in both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOperation(Guarded):
    """Carry out a split or merge, in one transaction over all its tablets."""

    tablets: tuple[TabletId, ...]
    operation: str


def may_end(tablets: Sequence[Tablet]) -> Refusal | None:
    """Return why an operation may not be carried out now, or None if it may."""
    for tablet in tablets:
        present = tablet.operation
        assert present is not None, tablet.id
        if present.step is not OperationStep.CLOSE:
            return Refusal(
                RefusalCode.OPERATION, f"tablet {tablet.id}: it is at {present.step.value}"
            )
        refusal = _still_runs(tablet, OperationStep.CLOSE) or _still_crosses(tablet, present)
        if refusal is not None:
            return refusal
    return None


@transaction_of.register
def end_operation(change: EndOperation) -> Transaction:
    """Return the transaction that carries out an operation. Mark: `operation` is gone."""
    table = TableKeys(change.tablets[0].table)
    needs = table_state(table)
    for tablet in change.tablets:
        keys = TabletKeys.of(tablet)
        watch = (keys.operation, keys.running, keys.files, keys.bounds)
        needs |= needs_of_tablet(tablet, whole_tablet(keys, watch))

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(table, seen):
            return refusal
        if _ended(change.tablets, seen):
            return NoWrite()
        tablets = tablets_seen(change.tablets, seen)
        if isinstance(tablets, Refusal):
            return tablets
        if refusal := refused_step(tablets, change.operation) or may_end(tablets):
            return refusal
        operation = tablets[0].operation
        assert operation is not None, change
        return Write(_carried_out(tablets, operation))

    return Transaction(needs, decide)


def _ended(tablets: Sequence[TabletId], seen: Seen) -> bool:
    """Return whether an operation is over: it is gone, and a merge has left one tablet."""
    last = tablets[-1]
    merged = tablet_seen(last, TabletKeys.of(last), seen_of_tablet(last, seen))
    if merged is None or merged.operation is not None:
        return False
    before = [seen_of_tablet(tablet, seen) for tablet in tablets[:-1]]
    return all(sighting["bounds"] is None or sighting["operation"] is None for sighting in before)


def _carried_out(tablets: Sequence[Tablet], operation: Operation) -> tuple[Command, ...]:
    if operation.kind is OperationKind.MERGE:
        return merge_tablets(tablets[0], tablets[1], tablets[0].bounds.start)
    assert operation.at is not None, operation
    return _split(tablets[0], operation.at)


def _split(tablet: Tablet, at: bytes) -> tuple[Command, ...]:
    """Make `(start, at]` a new tablet; the old one keeps its end, and thereby its name."""
    left = TabletId(tablet.id.table, at)
    keys, own = TabletKeys.of(left), TabletKeys.of(tablet.id)
    moved = [
        file for file in tablet.files.values() if file.key_max is not None and file.key_max <= at
    ]
    record = tablet.record
    flags = _facts(tablet.purge, record.settled, record.recent_adds, record.answered_s)
    flags |= _trigger(record.triggered_s)
    flags |= _counts(record.analysis_group, record.compactions)
    effects: tuple[Command, ...] = (
        set_string(keys.bounds, BOUNDS.pack(replace(tablet.bounds, end=at))),
        set_string(own.bounds, BOUNDS.pack(replace(tablet.bounds, start=at))),
        zadd(TableKeys(left.table).index, at),
        # The version continues, so that no earlier note matches by chance.
        hset(keys.record, {VERSION: tablet.record.version}),
        *files_written(keys, moved),
        *_without(own, moved),
        delete(own.operation),
    )
    if tablet.purge is not None:
        effects += (set_string(keys.purge, tablet.purge),)
    return (
        *effects,
        *tablet_changed(left, "split", counts=file_counts(moved), flags=flags),
        *tablet_changed(
            tablet.id,
            "split",
            counts=file_counts((), moved),
            # The statistics are of the whole range; none exist for its parts.
            flags={OPERATION_FLAG: 0, STATISTICS: b""},
        ),
    )


def merge_tablets(left: Tablet, right: Tablet, start: bytes | None) -> tuple[Command, ...]:
    """Move everything of the left tablet to the right one, which keeps its end and name.

    Args:
        left: As read, with all files.
        right: As read, with all files.
        start: Start of the merged tablet.
    """
    keys, own = TabletKeys.of(right.id), TabletKeys.of(left.id)
    moved = [file for path, file in left.files.items() if path not in right.files]
    purge = max(filter(None, (left.purge, right.purge)), default=None)
    settled = merge_settled_versions(left.record.settled, right.record.settled)
    effects: tuple[Command, ...] = (
        delete(*own.every),
        zrem(TableKeys(left.id.table).index, left.id.end),
        set_string(keys.bounds, BOUNDS.pack(replace(right.bounds, start=start))),
        *files_written(keys, moved),
        delete(keys.operation),
    )
    if purge is not None:
        effects += (set_string(keys.purge, purge),)
    recent = merge_recent_adds(left.record.recent_adds, right.record.recent_adds)
    # A trigger that one of them has not answered is open for the whole tablet.
    answered_s = min(left.record.answered_s, right.record.answered_s)
    flags = _facts(purge, settled, recent, answered_s) | {OPERATION_FLAG: 0, STATISTICS: b""}
    flags |= _trigger(max(left.record.triggered_s, right.record.triggered_s))
    flags |= _counts(
        right.record.analysis_group or left.record.analysis_group,
        max(left.record.compactions, right.record.compactions),
    )
    return (
        *effects,
        *tablet_changed(right.id, "merge", counts=file_counts(moved), flags=flags),
        stream_entry(left.id, "merge"),
    )


def merge_settled_versions(one: Marks, other: Marks) -> Marks:
    """Return the settled versions that are valid for both of two tablets."""
    merged: list[tuple[float, bytes]] = []
    for time_s in sorted({time_s for time_s, _ in (*one, *other)}):
        sides = [[version for at_s, version in marks if at_s <= time_s] for marks in (one, other)]
        if all(sides):
            lower = min(side[-1] for side in sides)
            if not merged or lower > merged[-1][1]:
                merged.append((time_s, lower))
    return tuple(merged)


def _facts(
    purge: bytes | None, settled: Marks, recent: Marks, answered_s: float
) -> dict[str, Word]:
    """Return the record's fields for watermark, settled versions, recent adds and triggers."""
    flags: dict[str, Word] = {
        SETTLED: pack([[at_s, version] for at_s, version in settled]),
        ANSWERED: repr(answered_s),
    }
    if recent:
        flags[RECENT_ADDS] = pack([list(note) for note in recent])
    return flags | {PURGED: 1} if purge is not None else flags


def _trigger(triggered_s: float) -> dict[str, Word]:
    """Return the record's field for a trigger of the tablet alone."""
    return {TABLET_TRIGGERED: repr(triggered_s)} if triggered_s else {}


def _counts(analysis_group: str, compactions: int) -> dict[str, Word]:
    """Return the record's fields for a requested analysis and the number of compactions."""
    flags: dict[str, Word] = {ANALYSIS_GROUP: analysis_group} if analysis_group else {}
    return flags | {COMPACTIONS: compactions} if compactions else flags


def _without(keys: TabletKeys, files: Iterable[DataFile]) -> tuple[Command, ...]:
    paths = [file.path for file in files]
    return (hdel(keys.files, *paths),) if paths else ()
