"""A request in one tablet: mark waiting, select, complete, drop the hold, cancel, finish."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from common.metadata.changes.protocol import (
    Decision,
    Guarded,
    Needs,
    NoWrite,
    Seen,
    Transaction,
    Write,
    attempt_ended,
    history_of,
    refused_by_table,
    some_names,
    stream_entry,
    table_state,
    tablet_changed,
    tablet_gone,
    tablet_seen,
    tablet_without_files,
    transaction_of,
    uncommitted_outputs,
    whole_tablet,
)
from common.metadata.changes.requests import (
    own_request,
    request_has_ended,
    request_here,
    request_missing,
    request_seen,
    request_state,
)
from common.metadata.codec.layout import VALUE_BYTES_MAX
from common.metadata.codec.table import SETTINGS, unpack_settings
from common.metadata.codec.tablet import DONE, RUNNING, SELECTED, SELECTION, WAITING
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.keyspace import (
    Command,
    Word,
    delete,
    hdel,
    hget,
    hset,
    sadd,
    set_string,
    smembers,
    srem,
)
from common.metadata.store_values import AttemptOutcome
from common.model.outcome import AttemptEnd, Refusal, RefusalCode
from common.model.request import KeyRange, Request, RequestState, first_key
from common.model.tablet import PLUS_INFINITY, Bounds, Reservation, Selection, Tablet, TabletId

# ------------------------------------------------------------------- Which tablets a request covers


def may_hold_range(keys: KeyRange, bounds: Bounds) -> bool:
    """Return whether a tablet may hold keys of a range.

    A tablet of a partitioned table is a single point: its partition values.
    """
    if bounds.partition is not None:
        return keys.holds(bounds.end)
    return keys.meets(bounds.start, bounds.end)


def cancelled_here(request: Request, bounds: Bounds) -> bool:
    """Return whether all keys that a request covers in a tablet were cancelled.

    A tablet that overlaps a cancelled range only in part, for example after a merge, continues.
    The transform then skips the cancelled keys.
    """
    reached = max(first_key(bounds) or b"", request.range.start or b"")
    whole = bounds.partition is None and bounds.end == PLUS_INFINITY
    ends = (None if whole else bounds.end + b"\x00", request.range.until)
    until = min((end for end in ends if end is not None), default=None)
    for keys in sorted(request.cancelled_ranges, key=lambda key_range: key_range.start or b""):
        if (keys.start or b"") > reached:
            return False
        if keys.until is None:
            return True
        reached = max(reached, keys.until)
        if until is not None and reached >= until:
            return True
    return False


# ---- Wait, select, complete
#
# The counts of a record follow from the values read. So a change that counts a marker watches it,
# even if the decision alone would not need that.


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkWaiting(Guarded):
    """Set a request's marker in a tablet, which prevents new SYSTEM reservations."""

    tablet: TabletId
    request: str


def may_wait(tablet: Tablet, request: Request) -> Refusal | None:
    """Return why a request may not wait in a tablet, or None if it may.

    No request waits while a selection exists: its marker would block system jobs, for files that
    are not held, until the other request is done.

    Args:
        tablet: As read after `WATCH`; its files do not matter.
        request: As read after `WATCH`.
    """
    subject = f"tablet {tablet.id}: request {request.id}"
    if request.state is not RequestState.ACTIVE:
        return Refusal(
            RefusalCode.REQUEST, f"{subject} is {request.state.value}, it must be active"
        )
    if not may_hold_range(request.range, tablet.bounds):
        return Refusal(RefusalCode.RANGE, f"{subject} covers other keys")
    if cancelled_here(request, tablet.bounds):
        return Refusal(RefusalCode.RANGE, f"{subject} is cancelled here")
    if tablet.operation is not None:
        kind = tablet.operation.kind.value
        return Refusal(RefusalCode.OPERATION, f"tablet {tablet.id}: a {kind} is under way")
    if tablet.selection is not None:
        other = tablet.selection.request
        return Refusal(RefusalCode.SELECTED, f"tablet {tablet.id}: request {other} has a selection")
    if request.id in tablet.done:
        return Refusal(RefusalCode.DONE, f"{subject} is done here")
    return None


@transaction_of.register
def mark_waiting(change: MarkWaiting) -> Transaction:
    """Return the transaction of a marker. Mark: `waiting[r]`."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    watch = (keys.operation, keys.selection, keys.done, keys.waiting)

    def decide(seen: Seen) -> Decision:
        tablet_and_request = request_here(change.tablet, change.request, seen)
        if isinstance(tablet_and_request, Refusal):
            return tablet_and_request
        tablet, request = tablet_and_request
        if change.request in tablet.waiting:
            return NoWrite()
        if refusal := may_wait(tablet, request):
            return refusal
        effects = (
            hset(keys.waiting, {change.request: seen.now_s}),
            *tablet_changed(change.tablet, "wait", request=change.request, counts={WAITING: 1}),
        )
        return Write(effects)

    needs = table_state(table) | own_request(table, change.request)
    return Transaction(needs | tablet_without_files(keys, watch), decide)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectFiles(Guarded):
    """Hold the files that a request's selector chose; an empty choice completes it here."""

    tablet: TabletId
    request: str
    chosen: tuple[str, ...]
    shown: tuple[str, ...]
    """Every file that the selector received; all must still exist."""


def may_select(
    tablet: Tablet, request: Request, *, shown: Collection[str], chosen: Collection[str]
) -> Refusal | None:
    """Return why a request may not select, or None if it may.

    Args:
        tablet: As read after `WATCH`, with all files.
        request: As read after `WATCH`.
        shown: Paths of every file that the selector received.
        chosen: Paths that it chose.
    """
    if refusal := may_wait(tablet, request):
        return refusal
    if tablet.running:
        running = some_names(sorted(tablet.running))
        return Refusal(RefusalCode.RUNNING, f"tablet {tablet.id}: attempts are running: {running}")
    if missing := sorted(path for path in shown if path not in tablet.files):
        return Refusal(
            RefusalCode.GONE, f"tablet {tablet.id}: files are gone: {some_names(missing)}"
        )
    if strange := sorted(set(chosen).difference(shown)):
        return Refusal(
            RefusalCode.FILES,
            f"tablet {tablet.id}: chosen, but not given to the selector: {some_names(strange)}",
        )
    return None


SELECTION_BYTES_MAX = VALUE_BYTES_MAX // 2
"""Total length of the file names of a new selection. Results are listed twice."""
TEXT_HEAD_BYTES = 5
"""Longest header of a text in a value."""


@transaction_of.register
def select_files(change: SelectFiles) -> Transaction:
    """Return the transaction of a selection. Mark: the selection is r's, or r is done here.

    `files` is not watched: while nothing runs and no operation is running, no file leaves, and
    a new file was not in the selector's input, so it is not chosen.
    """
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    watch = (keys.operation, keys.running, keys.selection, keys.done, keys.waiting)

    def decide(seen: Seen) -> Decision:
        tablet_and_request = request_here(change.tablet, change.request, seen)
        if isinstance(tablet_and_request, Refusal):
            return tablet_and_request
        tablet, request = tablet_and_request
        if seen.sent and _selected(tablet, change.request):
            return NoWrite()
        if refusal := may_select(tablet, request, shown=change.shown, chosen=change.chosen):
            return refusal
        files = tuple(path for path in change.chosen if not tablet.files[path].open)
        if refusal := selection_too_large(tablet, change.request, files):
            return refusal
        if files:
            selection = Selection(request=change.request, files=files, since_s=seen.now_s)
            return Write(_held(tablet, selection))
        return Write(_nothing_chosen(tablet, change.request))

    needs = table_state(table) | own_request(table, change.request)
    return Transaction(needs | whole_tablet(keys, watch), decide)


def selection_too_large(tablet: Tablet, request: str, files: Collection[str]) -> Refusal | None:
    """Return why these files cannot be held, or None if they can.

    A selection is one value, and its jobs must be able to add all their results to it.
    """
    size_bytes = sum(len(path.encode()) + TEXT_HEAD_BYTES for path in files)
    if size_bytes <= SELECTION_BYTES_MAX:
        return None
    return Refusal(
        RefusalCode.TOO_LARGE,
        f"tablet {tablet.id}: the names of the {len(files):,} files that request {request} "
        f"selects have {size_bytes:,} bytes, at most {SELECTION_BYTES_MAX:,} can be held: "
        "select fewer files (`--start`, `--end`, a selector), or have the tablet split",
    )


def _selected(tablet: Tablet, request: str) -> bool:
    """Return whether an earlier try has selected, or chose nothing."""
    selection = tablet.selection
    return request in tablet.done or (selection is not None and selection.request == request)


def _held(tablet: Tablet, selection: Selection) -> tuple[Command, ...]:
    """Hold the files. All markers are removed: requests take turns by age, and mark again."""
    keys = TabletKeys.of(tablet.id)
    flags: dict[str, Word] = {SELECTED: 1, WAITING: 0}
    return (
        set_string(keys.selection, SELECTION.pack(selection)),
        delete(keys.waiting),
        *tablet_changed(tablet.id, "select", request=selection.request, flags=flags),
    )


def _nothing_chosen(tablet: Tablet, request: str) -> tuple[Command, ...]:
    keys = TabletKeys.of(tablet.id)
    counts = {DONE: 1, WAITING: -int(request in tablet.waiting)}
    return (
        sadd(keys.done, request),
        hdel(keys.waiting, request),
        *tablet_changed(tablet.id, "select", request=request, counts=counts),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteHere(Guarded):
    """End a selection whose files are all results, and for which no job is wanted."""

    tablet: TabletId
    request: str
    files: tuple[str, ...]
    """The exact selection for which the planner had no further job."""


def may_complete(tablet: Tablet, request: str, files: Collection[str]) -> Refusal | None:
    """Return why a selection may not be ended as done, or None if it may.

    Args:
        tablet: As read after `WATCH`, with its selection and running attempts.
        request: Request of the selection.
        files: The selection for which the planner had no further job.
    """
    selection = tablet.selection
    if selection is None or selection.request != request:
        return Refusal(
            RefusalCode.SELECTED, f"tablet {tablet.id}: request {request} has no selection here"
        )
    subject = f"tablet {tablet.id}: selection of request {request}"
    if set(selection.files) != set(files):
        return Refusal(RefusalCode.SELECTED, f"{subject} has changed, ask the planner again")
    if running := running_of(tablet, request):
        return Refusal(
            RefusalCode.RUNNING, f"{subject} has attempts running: {some_names(running)}"
        )
    if rest := files_not_rewritten(selection):
        return Refusal(
            RefusalCode.RESULTS,
            f"{subject} has files that no job has rewritten: {some_names(rest)}",
        )
    return None


def running_of(tablet: Tablet, request: str) -> list[str]:
    """Return a request's running attempts in a tablet."""
    return sorted(name for name, entry in tablet.running.items() if entry.request == request)


def files_not_rewritten(selection: Selection) -> list[str]:
    """Return the files of a selection that no job of its request has written."""
    return sorted(set(selection.files).difference(selection.results))


@transaction_of.register
def complete_here(change: CompleteHere) -> Transaction:
    """Return the transaction that ends a selection. Mark: r is in done."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    watch = (keys.running, keys.selection)

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(table, seen):
            return refusal
        tablet = tablet_seen(change.tablet, keys, seen)
        if tablet is None:
            return tablet_gone(change.tablet)
        refusal = may_complete(tablet, change.request, change.files)
        if refusal is not None:
            return NoWrite() if change.request in tablet.done else refusal
        flags: dict[str, Word] = {SELECTED: 0}
        counts = {DONE: 1}
        effects = tablet_changed(
            change.tablet, "complete", request=change.request, counts=counts, flags=flags
        )
        return Write((delete(keys.selection), sadd(keys.done, change.request), *effects))

    needs = table_state(table, watch=False) | tablet_without_files(keys, watch)
    return Transaction(needs, decide)


# ---------------------------------------------------------------------------------- An expired hold


@dataclass(frozen=True, slots=True, kw_only=True)
class DropHold(Guarded):
    """Drop an expired selection without completed or running jobs."""

    tablet: TabletId


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


@transaction_of.register
def drop_hold(change: DropHold) -> Transaction:
    """Return the transaction that drops an expired hold. Mark: no selection."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    settings = Needs((), {"settings": hget(table.table, SETTINGS)})
    needs = (
        table_state(table, watch=False)
        | settings
        | whole_tablet(keys, (keys.running, keys.selection))
    )

    def decide(seen: Seen) -> Decision:
        tablet = tablet_seen(change.tablet, keys, seen)
        if refusal := refused_by_table(table, seen):
            return refusal
        if tablet is None:
            return tablet_gone(change.tablet)
        if tablet.selection is None:
            return NoWrite()
        expiry_s = unpack_settings(table.table, seen["settings"]).hold_expiry_s
        if refusal := may_drop_hold(tablet, now_s=seen.now_s, expiry_s=expiry_s):
            return refusal
        effects = (
            delete(keys.selection),
            *tablet_changed(change.tablet, "hold", flags={SELECTED: 0}),
        )
        return Write(effects)

    return Transaction(needs, decide)


# ---- Cancel and finish
#
# Both are allowed while the table is being dropped. They count what they remove in the record, so
# they watch every key that they remove from. Cancel also watches the request and the operation: a
# done marker for a cancelled range must not be written after the request has ended, nor during a
# split or merge.


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelHere(Guarded):
    """Remove a request's marker, selection and running entries from a tablet.

    The request is CANCELLING, or it is ACTIVE and its whole part of the tablet is cancelled: then
    it is done here.
    """

    tablet: TabletId
    request: str


def may_cancel(tablet: Tablet, request: Request) -> Refusal | None:
    """Return why a request may not be removed from a tablet, or None if it may.

    A separately cancelled range leaves a done marker, and no split or merge may end while such a
    marker exists. While an operation is running, the request has nothing to remove here.
    """
    if request.state is RequestState.CANCELLING:
        return None
    if request.state is not RequestState.ACTIVE or not cancelled_here(request, tablet.bounds):
        return Refusal(
            RefusalCode.REQUEST,
            f"tablet {tablet.id}: request {request.id} is {request.state.value}, "
            "it must be cancelling or have a cancelled range here",
        )
    if tablet.operation is not None:
        kind = tablet.operation.kind.value
        return Refusal(RefusalCode.OPERATION, f"tablet {tablet.id}: a {kind} is under way")
    return None


@transaction_of.register
def cancel_here(change: CancelHere) -> Transaction:
    """Return the transaction that removes a request from a tablet. Mark: nothing of it is left."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    watch = (keys.operation, keys.running, keys.selection, keys.waiting, keys.done)

    def decide(seen: Seen) -> Decision:
        tablet = tablet_seen(change.tablet, keys, seen)
        if tablet is None:
            return NoWrite()
        request = request_seen(table, change.request, seen)
        if request is None:
            return request_missing(change.request)
        if refusal := may_cancel(tablet, request):
            return refusal
        effects = _cancelled(tablet, request, seen.now_s)
        return Write(effects) if effects else NoWrite()

    needs = own_request(table, change.request) | tablet_without_files(keys, watch)
    return Transaction(needs, decide)


def _cancelled(tablet: Tablet, request: Request, now_s: float) -> tuple[Command, ...]:
    """Remove marker, selection and reservations; a separately cancelled range is done here."""
    keys = TabletKeys.of(tablet.id)
    effects: list[Command] = []
    counts: dict[str, int] = {}
    flags: dict[str, Word] = {}
    if request.id in tablet.waiting:
        effects.append(hdel(keys.waiting, request.id))
        counts[WAITING] = -1
    if tablet.selection is not None and tablet.selection.request == request.id:
        effects.append(delete(keys.selection))
        flags[SELECTED] = 0
    for attempt in running_of(tablet, request.id):
        effects += _stopped(tablet, tablet.running[attempt], now_s)
        counts[RUNNING] = counts.get(RUNNING, 0) - 1
    if request.state is RequestState.ACTIVE and request.id not in tablet.done:
        effects.append(sadd(keys.done, request.id))
        counts[DONE] = 1
    if not effects:
        return ()
    return (
        *effects,
        *tablet_changed(tablet.id, "cancel", request=request.id, counts=counts, flags=flags),
    )


def _stopped(tablet: Tablet, entry: Reservation, now_s: float) -> tuple[Command, ...]:
    """End an attempt of the request: its commit will have no reservation."""
    keys, table = TabletKeys.of(tablet.id), TableKeys(tablet.id.table)
    cause = f"request {entry.request} was cancelled"
    history = replace(history_of(tablet.id, entry, AttemptEnd.CANCELLED, now_s), cause=cause)
    mark = AttemptOutcome(attempt=entry.attempt, end=AttemptEnd.CANCELLED, cause=cause)
    return (
        *uncommitted_outputs(table, tablet.id.end, entry),
        *attempt_ended(table, keys, entry, mark, history),
        stream_entry(tablet.id, "release", entry.attempt, entry.request),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishHere(Guarded):
    """Remove the done marker of an ended request."""

    tablet: TabletId
    request: str


@transaction_of.register
def finish_here(change: FinishHere) -> Transaction:
    """Return the transaction that removes the done marker of an ended request. Mark: absence."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)

    def decide(seen: Seen) -> Decision:
        if change.request.encode() not in seen["done"]:
            return NoWrite()
        if not request_has_ended(seen["request-state"]):
            return Refusal(RefusalCode.REQUEST, f"request {change.request} has not ended")
        effects = (
            srem(keys.done, change.request),
            *tablet_changed(change.tablet, "finish", request=change.request, counts={DONE: -1}),
        )
        return Write(effects)

    needs = request_state(table, change.request)
    return Transaction(needs | Needs((keys.done,), {"done": smembers(keys.done)}), decide)
