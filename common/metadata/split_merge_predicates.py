"""When tablets may be split and merged. Pure, like `common.metadata.predicates`."""

from collections.abc import Iterable, Sequence

from common.metadata.predicates import may_cross, some_names
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

Marks = tuple[tuple[float, bytes], ...]
"""Settled versions of a record: (time, highest version at that time), ascending in both."""

_BEFORE = {OperationStep.DRAIN: OperationStep.CUT, OperationStep.CLOSE: OperationStep.DRAIN}
_ORDER = [*OperationStep]


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
    left = [end is not None and end <= at for end in ends]
    return any(left) and not all(left)


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
