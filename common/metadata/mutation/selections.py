"""A request in one tablet: mark waiting, select, complete, cancel, finish."""

from collections.abc import Collection
from dataclasses import replace

from common.metadata.changes import (
    CancelHere,
    CompleteHere,
    FinishHere,
    MarkWaiting,
    SelectFiles,
)
from common.metadata.codec.layout import VALUE_BYTES_MAX
from common.metadata.codec.tablet import (
    DONE,
    RUNNING,
    SELECTED,
    SELECTION,
    WAITING,
)
from common.metadata.commands import (
    Command,
    Word,
    delete,
    hdel,
    hset,
    sadd,
    set_string,
    smembers,
    srem,
)
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.mutation.effects import (
    attempt_ended,
    history_of,
    stream_entry,
    tablet_changed,
    uncommitted_outputs,
)
from common.metadata.mutation.needs import (
    refused_by_table,
    table_state,
    tablet_gone,
    tablet_seen,
    tablet_without_files,
    whole_tablet,
)
from common.metadata.mutation.requests import (
    own_request,
    request_has_ended,
    request_here,
    request_missing,
    request_seen,
    request_state,
)
from common.metadata.mutation.transaction import (
    Decision,
    Needs,
    NoWrite,
    Seen,
    Transaction,
    Write,
)
from common.metadata.request_predicates import (
    may_cancel,
    may_complete,
    may_select,
    may_wait,
    running_of,
)
from common.metadata.store_values import AttemptOutcome
from common.model.outcome import AttemptEnd, Refusal, RefusalCode
from common.model.request import Request, RequestState
from common.model.tablet import Reservation, Selection, Tablet

# ---- Wait, select, complete
#
# The counts of a record follow from the values read. So a change that counts a marker watches it,
# even if the decision alone would not need that.


"""Refusal code that a retry cannot resolve."""
SELECTION_BYTES_MAX = VALUE_BYTES_MAX // 2
"""Total length of the file names of a new selection. Results are listed twice."""
TEXT_HEAD_BYTES = 5
"""Longest header of a text in a value."""


def mark_waiting(change: MarkWaiting) -> Transaction:
    """Return the transaction of a marker. Mark: `waiting[r]`."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    watch = (keys.operation, keys.selection, keys.done, keys.waiting)

    def decide(seen: Seen) -> Decision:
        here = request_here(change.tablet, change.request, seen)
        if isinstance(here, Refusal):
            return here
        tablet, request = here
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


def select(change: SelectFiles) -> Transaction:
    """Return the transaction of a selection. Mark: the selection is r's, or r is done here.

    `files` is not watched: while nothing runs and no operation is running, no file leaves, and
    a new file was not in the selector's input, so it is not chosen.
    """
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    watch = (keys.operation, keys.running, keys.selection, keys.done, keys.waiting)

    def decide(seen: Seen) -> Decision:
        here = request_here(change.tablet, change.request, seen)
        if isinstance(here, Refusal):
            return here
        tablet, request = here
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


# ---- Cancel and finish
#
# Both are allowed while the table is being dropped. They count what they remove in the record, so
# they watch every key that they remove from. Cancel also watches the request and the operation: a
# done marker for a cancelled range must not be written after the request has ended, nor during a
# split or merge.


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
