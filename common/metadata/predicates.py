"""What is allowed in a tablet. Pure, and the only definition.

Each predicate is evaluated twice: by the coordinator, so that a stale decision costs nothing, and
after `WATCH` inside the conditional write, where it is binding. Both use this module, so they
cannot disagree. The order of the tests is the order in which an operator wants to read the reasons.
"""

from collections.abc import Collection, Container

from common.model.file import DataFile
from common.model.job import Kind
from common.model.outcome import DroppedRows, Refusal, RefusalCode
from common.model.table import Table, TableState
from common.model.tablet import (
    PLUS_INFINITY,
    Bounds,
    Operation,
    OperationKind,
    OperationStep,
    Tablet,
    TabletId,
)

NAMES_MAX = 5
"""Paths listed in a message; further ones are only counted."""


def may_change(table: str, state: TableState | None) -> Refusal | None:
    """Return why a table may not be changed now (rule 5), or None."""
    if state in {TableState.LIVE, TableState.PAUSED}:
        return None
    fact = "does not exist" if state is None else f"is {state.value}"
    return Refusal(RefusalCode.TABLE, f"table {table} {fact}, it must be live or paused")


def may_fill(table: str, found: Table | None, run: str) -> Refusal | None:
    """Return why a run may not put files into a table, or None.

    Args:
        table: Its id.
        found: The current table.
        run: Fencing token of the run; empty: no run, so no run may be filling the table.
    """
    if not run:
        return may_change(table, found.state if found else None)
    if found is None:
        return may_change(table, None)
    filling = found.filling
    if filling is None:
        return Refusal(
            RefusalCode.STATE, f"table {table} is {found.state.value}: its filling has ended"
        )
    if filling.run != run:
        return Refusal(
            RefusalCode.STATE,
            f"table {table} is being filled by run {filling.run}, which has replaced run {run}",
        )
    return None


def may_reserve(
    tablet: Tablet,
    *,
    state: TableState | None,
    kind: Kind,
    inputs: Collection[str],
    request: str | None,
    cuts_at: bytes | None = None,
) -> Refusal | None:
    """Return why a job may not reserve its inputs now, or None if it may.

    Args:
        tablet: The current tablet; inside the conditional write: as read after `WATCH`.
        state: The table's state.
        kind: USER jobs use files of their request's selection, SYSTEM jobs all others.
        inputs: Paths; empty for an analysis, which only reads.
        request: The request of a USER job; None for a SYSTEM job.
        cuts_at: The key at which the job cuts, for a tablet that will be split there.
    """
    assert isinstance(tablet, Tablet), tablet
    assert (kind is Kind.USER) == (request is not None), (kind, request)
    if state is TableState.PAUSED:
        return Refusal(RefusalCode.PAUSED, f"table {tablet.id.table} is paused")
    refusal = may_change(tablet.id.table, state) or _refused_by_operation(tablet, cuts_at)
    if refusal is None:
        refusal = _refused_by_files(tablet, inputs)
    if refusal is None and request is None:
        return _refused_to_system(tablet, inputs)
    if refusal is None and request is not None:
        return _refused_to_user(tablet, inputs, request)
    return refusal


def may_commit(
    tablet: Tablet,
    attempt: str,
    *,
    dropped: DroppedRows | None = None,
    outside: Container[str] = (),
) -> Refusal | None:
    """Return why an attempt may not replace its inputs now, or None if it may.

    Args:
        tablet: The current tablet. Only the inputs among its files matter, unless rows were
            dropped.
        attempt: The fencing token; reservations are compared by it alone.
        dropped: Dead rows that the attempt dropped.
        outside: Non-input files that it considered when it dropped them.
    """
    entry = tablet.running.get(attempt)
    if entry is None:
        return Refusal(
            RefusalCode.RELEASED, f"tablet {tablet.id}: attempt {attempt} holds no reservation"
        )
    if missing := sorted(path for path in entry.inputs if path not in tablet.files):
        return Refusal(
            RefusalCode.GONE, f"tablet {tablet.id}: inputs are gone: {some_names(missing)}"
        )
    if entry.request is not None and (
        refusal := _refused_to_user(tablet, entry.inputs, entry.request)
    ):
        return refusal
    if dropped is None:
        return None
    given = {*entry.inputs}
    for file in tablet.files.values():
        if (
            file.path not in given
            and file.path not in outside
            and may_hold_dropped_key(file, dropped)
        ):
            return Refusal(
                RefusalCode.RESURFACE,
                f"tablet {tablet.id}: {file.path} was added later and may hold rows older than "
                f"those that attempt {attempt} dropped",
            )
    return None


def may_hold_dropped_key(file: DataFile, dropped: DroppedRows) -> bool:
    """Return whether a file may hold an older row of a dropped key."""
    if not dropped.meets(file.key_min, file.key_max):
        return False
    return file.version_min is None or file.version_min <= dropped.version_max


def may_drop_hold(tablet: Tablet, *, now_s: float, expiry_s: float) -> Refusal | None:
    """Return why a selection must stay, or None if its hold has expired.

    Args:
        tablet: Tablet with its selection and its running attempts.
        now_s: Time by the store's clock.
        expiry_s: The table's setting.
    """
    selection = tablet.selection
    if selection is None:
        return Refusal(RefusalCode.HOLD, f"tablet {tablet.id} has no selection")
    subject = f"tablet {tablet.id}: selection of request {selection.request}"
    if selection.completed_jobs > 0:
        return Refusal(RefusalCode.HOLD, f"{subject} is permanent, a job of it has completed")
    if any(entry.request == selection.request for entry in tablet.running.values()):
        return Refusal(RefusalCode.HOLD, f"{subject} has a job running")
    left_s = selection.since_s + expiry_s - now_s
    if left_s > 0:
        return Refusal(RefusalCode.HOLD, f"{subject} expires in {left_s:.1f} s")
    return None


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


def _refused_by_operation(tablet: Tablet, cuts_at: bytes | None) -> Refusal | None:
    operation = tablet.operation
    if operation is None:
        return None
    cuts = operation.step is OperationStep.CUT and operation.at is not None
    if cuts and operation.at == cuts_at:
        return None
    return Refusal(
        RefusalCode.OPERATION,
        f"tablet {tablet.id}: a {operation.kind.value} is under way ({operation.step.value})",
    )


def _refused_by_files(tablet: Tablet, inputs: Collection[str]) -> Refusal | None:
    if missing := sorted(path for path in inputs if path not in tablet.files):
        return Refusal(
            RefusalCode.GONE, f"tablet {tablet.id}: files are gone: {some_names(missing)}"
        )
    wanted = set(inputs)
    for attempt, entry in sorted(tablet.running.items()):
        if taken := sorted(wanted.intersection(entry.inputs)):
            return Refusal(
                RefusalCode.RESERVED,
                f"tablet {tablet.id}: files are reserved by attempt {attempt}: {some_names(taken)}",
            )
    return None


def _refused_to_system(tablet: Tablet, inputs: Collection[str]) -> Refusal | None:
    if tablet.waiting:
        waiting = some_names(sorted(tablet.waiting))
        return Refusal(
            RefusalCode.WAITING, f"tablet {tablet.id}: requests wait to select files: {waiting}"
        )
    if tablet.selection is None:
        return None
    if taken := sorted(set(inputs).intersection(tablet.selection.files)):
        return Refusal(
            RefusalCode.SELECTED,
            f"tablet {tablet.id}: files are selected by request "
            f"{tablet.selection.request}: {some_names(taken)}",
        )
    return None


def _refused_to_user(tablet: Tablet, inputs: Collection[str], request: str) -> Refusal | None:
    selection = tablet.selection
    if selection is None or selection.request != request:
        return Refusal(
            RefusalCode.SELECTED, f"tablet {tablet.id}: request {request} has no selection here"
        )
    if missing := sorted(set(inputs).difference(selection.files)):
        return Refusal(
            RefusalCode.SELECTED,
            f"tablet {tablet.id}: not in the selection of request {request}: {some_names(missing)}",
        )
    return None


def _within(bounds: Bounds, file: DataFile) -> bool:
    if bounds.partition is not None:
        return True  # The caller routes by partition values, so keys do not matter here.
    if file.key_min is None or file.key_max is None:
        return bounds.start is None and bounds.end == PLUS_INFINITY
    return bounds.holds(file.key_min, file.key_max)


def may_cross(file: DataFile, at: bytes) -> bool:
    """Return whether a file may hold keys on both sides of a split key."""
    return file.key_min is None or file.key_max is None or file.key_min <= at < file.key_max


def _is_cut(operation: Operation | None, file: DataFile) -> bool:
    """Return whether a file would be in both halves of a tablet that is being split."""
    at = operation.at if operation and operation.kind is OperationKind.SPLIT else None
    return at is not None and may_cross(file, at)


def some_names(names: list[str]) -> str:
    """Return some names for a message."""
    shown = ", ".join(names[:NAMES_MAX])
    return shown if len(names) <= NAMES_MAX else f"{shown} and {len(names) - NAMES_MAX} more"
