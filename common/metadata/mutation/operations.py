"""Begin a split or merge, take its next step or give it up, in all its tablets at once."""

from collections.abc import Sequence
from dataclasses import replace

from common.metadata.bounds_predicates import is_of, may_begin, may_step, taken
from common.metadata.codec_tablet import ABANDONED, OPERATION, OPERATION_FLAG
from common.metadata.commands import Command, Word, delete, set_string
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.mutation.effects import changed
from common.metadata.mutation.requirements import (
    gone,
    refused_by_table,
    table_seen,
    table_state,
    tablet_seen,
    tablet_without_files,
    whole_table,
    whole_tablet,
)
from common.metadata.mutation.transaction import Decision, Done, Needs, Seen, Transaction, Write
from common.metadata.predicates import may_change
from common.metadata.request_changes import (
    REASON_CHARS_MAX,
    AbandonOperation,
    BeginOperation,
    StepOperation,
)
from common.model.outcome import Refusal
from common.model.tablet import Operation, OperationKind, OperationStep, Tablet, TabletId


def begin_operation(change: BeginOperation) -> Transaction:
    """Return the transaction that begins an operation. Mark: `operation` has this id."""
    splits = change.kind is OperationKind.SPLIT
    assert len(change.tablets) == (1 if splits else 2), change
    table = TableKeys(change.tablets[0].table)
    needs = whole_table(table)
    for tablet in change.tablets:
        keys = TabletKeys.of(tablet)
        watch = (keys.operation, keys.selection, keys.waiting, keys.done)
        needs |= of_tablet(tablet, tablet_without_files(keys, watch))

    def decide(seen: Seen) -> Decision:
        stored = table_seen(table, seen)
        if refusal := may_change(table.id, stored.state if stored else None):
            return refusal
        assert stored is not None, table.id
        tablets = tablets_seen(change.tablets, seen)
        if isinstance(tablets, Refusal):
            return tablets
        if is_of(tablets, change.operation) is None:
            return Done()
        if refusal := may_begin(stored, tablets, change.kind, change.at):
            return refusal
        step = OperationStep.CUT if splits else OperationStep.DRAIN
        at = change.at if splits else tablets[0].bounds.end
        reason = change.reason[:REASON_CHARS_MAX]
        begun = Operation(change.kind, change.operation, step, at, seen.now_s, reason)
        return Write(_written(tablets, begun))

    return Transaction(needs, decide)


def step_operation(change: StepOperation) -> Transaction:
    """Return the transaction that takes the next step. Mark: `operation` has this step."""
    table = TableKeys(change.tablets[0].table)
    needs = table_state(table)
    for tablet in change.tablets:
        keys = TabletKeys.of(tablet)
        # `running` is read before `files`: a commit in between shows what it has made.
        needs |= of_tablet(tablet, whole_tablet(keys, (keys.operation,)))

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(table, seen):
            return refusal
        tablets = tablets_seen(change.tablets, seen)
        if isinstance(tablets, Refusal):
            return tablets
        if refusal := is_of(tablets, change.operation):
            return refusal
        if taken(tablets, change.step):
            return Done()
        if refusal := may_step(tablets, change.step):
            return refusal
        present = tablets[0].operation
        assert present is not None, change
        return Write(_written(tablets, replace(present, step=change.step)))

    return Transaction(needs, decide)


def abandon_operation(change: AbandonOperation) -> Transaction:
    """Return the transaction that gives an operation up. Mark: `operation` is gone.

    Only `operation` is asked for: it is what bars everything else, and nothing else was
    changed so far. Cut files are smaller files of the same tablet.
    """
    table = TableKeys(change.tablets[0].table)
    needs = table_state(table)
    for tablet in change.tablets:
        keys = TabletKeys.of(tablet)
        needs |= of_tablet(tablet, tablet_without_files(keys, (keys.operation,)))

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(table, seen):
            return refusal
        found = [tablet_there(tablet, seen) for tablet in change.tablets]
        own = [each for each in found if each and is_of([each], change.operation) is None]
        if not own:
            return Done()
        effects: list[Command] = []
        for tablet in own:
            effects.append(delete(TabletKeys.of(tablet.id).operation))
            flags: dict[str, Word] = {OPERATION_FLAG: 0, ABANDONED: f"{seen.now_s:.3f}"}
            effects += changed(tablet.id, "abandon", flags=flags)
        return Write(tuple(effects))

    return Transaction(needs, decide)


def _written(tablets: Sequence[Tablet], operation: Operation) -> tuple[Command, ...]:
    effects: list[Command] = []
    for tablet in tablets:
        effects.append(set_string(TabletKeys.of(tablet.id).operation, OPERATION.pack(operation)))
        effects += changed(tablet.id, operation.kind.value, flags={OPERATION_FLAG: 1})
    return tuple(effects)


def of_tablet(tablet: TabletId, needs: Needs) -> Needs:
    """Return needs of one tablet among several, under names of their own."""
    reads = {f"{tablet.text}/{name}": command for name, command in needs.reads.items()}
    return Needs(needs.watch, reads)


def part_of(tablet: TabletId, seen: Seen) -> Seen:
    """Return what was seen of one tablet among several."""
    prefix = f"{tablet.text}/"
    own = {
        name.removeprefix(prefix): reply
        for name, reply in seen.replies.items()
        if name.startswith(prefix)
    }
    return Seen(own, seen.now_s, seen.sent)


def tablet_there(tablet: TabletId, seen: Seen) -> Tablet | None:
    """Return one of several tablets, or None if it is gone."""
    return tablet_seen(tablet, TabletKeys.of(tablet), part_of(tablet, seen))


def tablets_seen(tablets: Sequence[TabletId], seen: Seen) -> list[Tablet] | Refusal:
    """Return several tablets, or the refusal because one is gone."""
    found: list[Tablet] = []
    for tablet in tablets:
        there = tablet_there(tablet, seen)
        if there is None:
            return gone(tablet)
        found.append(there)
    return found
