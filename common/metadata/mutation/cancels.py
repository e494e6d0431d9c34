"""Cancel here, finish here: what a request leaves in a tablet goes again.

Both are allowed while the table is going. They count what they remove in the record, so
they watch every key that they remove from; and cancel also watches the request and the
operation: a done marker for a cancelled range must not come after the request has ended,
nor under a split or merge.
"""

from dataclasses import replace

from common.metadata.codec_tablet import DONE, RUNNING, SELECTED, WAITING
from common.metadata.commands import Command, Word, delete, hdel, sadd, smembers, srem
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.mutation.effects import (
    attempt_ended,
    changed,
    history_of,
    told,
    uncommitted,
)
from common.metadata.mutation.request_parts import (
    has_ended,
    missing,
    own_request,
    request_seen,
    request_state,
)
from common.metadata.mutation.requirements import tablet_seen, tablet_without_files
from common.metadata.mutation.transaction import Decision, Done, Needs, Seen, Transaction, Write
from common.metadata.readings import AttemptOutcome
from common.metadata.request_changes import CancelHere, FinishHere
from common.metadata.request_predicates import may_cancel, running_of
from common.model.outcome import AttemptEnd, Refusal
from common.model.request import Request, RequestState
from common.model.tablet import Reservation, Tablet


def cancel_here(change: CancelHere) -> Transaction:
    """Return the transaction that removes a request from a tablet. Mark: nothing of it is left."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    watch = (keys.operation, keys.running, keys.selection, keys.waiting, keys.done)

    def decide(seen: Seen) -> Decision:
        tablet = tablet_seen(change.tablet, keys, seen)
        if tablet is None:
            return Done()
        request = request_seen(table, change.request, seen)
        if request is None:
            return missing(change.request)
        if refusal := may_cancel(tablet, request):
            return refusal
        effects = _cancelled(tablet, request, seen.now_s)
        return Write(effects) if effects else Done()

    needs = own_request(table, change.request) | tablet_without_files(keys, watch)
    return Transaction(needs, decide)


def _cancelled(tablet: Tablet, request: Request, now_s: float) -> tuple[Command, ...]:
    """Remove marker, selection and reservations; a part that is cancelled alone is done here."""
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
        *changed(tablet.id, "cancel", request=request.id, counts=counts, flags=flags),
    )


def _stopped(tablet: Tablet, entry: Reservation, now_s: float) -> tuple[Command, ...]:
    """End an attempt of the request: its commit will find no reservation."""
    keys, table = TabletKeys.of(tablet.id), TableKeys(tablet.id.table)
    cause = f"request {entry.request} was cancelled"
    history = replace(history_of(tablet.id, entry, AttemptEnd.CANCELLED, now_s), cause=cause)
    mark = AttemptOutcome(attempt=entry.attempt, end=AttemptEnd.CANCELLED, cause=cause)
    return (
        *uncommitted(table, tablet.id.end, entry),
        *attempt_ended(table, keys, entry, mark, history),
        *told(tablet.id, "release", entry.attempt, entry.request),
    )


def finish_here(change: FinishHere) -> Transaction:
    """Return the transaction that removes the done marker of an ended request. Mark: absence."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)

    def decide(seen: Seen) -> Decision:
        if change.request.encode() not in seen["done"]:
            return Done()
        if not has_ended(seen["request-state"]):
            return Refusal("request", f"request {change.request} has not ended")
        effects = (
            srem(keys.done, change.request),
            *changed(change.tablet, "finish", request=change.request, counts={DONE: -1}),
        )
        return Write(effects)

    needs = request_state(table, change.request)
    return Transaction(needs | Needs((keys.done,), {"done": smembers(keys.done)}), decide)
