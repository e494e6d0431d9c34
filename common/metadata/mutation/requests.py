"""Submit a request, cancel a part of it, move it on, close it. Mark: what the request says."""

from dataclasses import replace

from common.metadata.changes import Applied
from common.metadata.codec_request import VALUE, place, request_fields
from common.metadata.codec_tablet import unpack_running
from common.metadata.commands import (
    Command,
    get,
    hget,
    hgetall,
    hset,
    smembers,
    zadd,
    zcard,
)
from common.metadata.keys import REQUESTS_OPEN_MAX, TableKeys, TabletKeys, is_table_id
from common.metadata.mutation.calls import call_seen, marked, refused_call
from common.metadata.mutation.everywhere import Everywhere, everywhere
from common.metadata.mutation.request_parts import (
    missing,
    own_request,
    request_seen,
    request_written,
)
from common.metadata.mutation.requirements import refused_by_table, selection_seen, table_state
from common.metadata.mutation.transaction import (
    Decision,
    Done,
    Needs,
    Seen,
    Transaction,
    Write,
)
from common.metadata.readings import CallKind, CallMark
from common.metadata.request_changes import CancelRange, MoveRequest, SubmitRequest
from common.metadata.request_predicates import content_of, may_cancel_range, may_move
from common.model.outcome import Refusal, RefusalCode
from common.model.request import Request, RequestState
from common.model.tablet import TabletId


def submit_request(change: SubmitRequest) -> Transaction:
    """Return the transaction that stores a request. Mark: it is there, with this content.

    A call of a user leaves its own mark, too: the id may be used for nothing else.
    """
    wanted = content_of(change.request)
    table = TableKeys(wanted.table)
    assert is_table_id(wanted.id), wanted.id

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(table, seen):
            return refusal
        present = request_seen(table, wanted.id, seen)
        if present is not None:
            return _submitted_again(table, change, present)
        if change.call is not None and (refusal := _refused_call(table, change.call, seen)):
            return refusal
        if seen["open"] >= REQUESTS_OPEN_MAX:
            return Refusal("full", f"{seen['open']} requests of the table are open already")
        made = replace(wanted, submitted_at_s=seen.now_s)
        effects = (
            zadd(table.requests, place(made)),
            zadd(table.open_requests, place(made)),
            *request_written(table, made),
            *_call_marked(table, change, seen.now_s),
        )
        return Write(effects, durable=True)

    needs = table_state(table) | own_request(table, wanted.id)
    if change.call is not None:
        key = table.call(change.call)
        needs |= Needs((key,), {"call": get(key)})
    return Transaction(needs | Needs((), {"open": zcard(table.open_requests)}), decide)


def _submitted_again(table: TableKeys, change: SubmitRequest, present: Request) -> Decision:
    if content_of(present) != content_of(change.request):
        code = RefusalCode.EXISTS if change.call is None else RefusalCode.CALL_CONTENT
        return Refusal(code, f"request {present.id} exists already, with other content")
    # Written once more, so that replicas have it before it is acknowledged again.
    effects = (hset(table.request(present.id), {VALUE: request_fields(present)[VALUE]}),)
    return Write(effects, Applied(repeated=True), durable=True)


def _refused_call(table: TableKeys, call: str, seen: Seen) -> Refusal | None:
    mark = call_seen(table, call, seen)
    if mark is None:
        return refused_call(call, seen.now_s)
    return Refusal(
        RefusalCode.CALL_CONTENT,
        f"call id {call} was used before, for `{mark.kind.value}`: use a new id for another call",
    )


def _call_marked(table: TableKeys, change: SubmitRequest, now_s: float) -> tuple[Command, ...]:
    if change.call is None:
        return ()
    request = change.request.id
    mark = CallMark(kind=CallKind.COMPACT, content=request, at_s=now_s, request=request)
    return (marked(table, change.call, mark),)


def cancel_range(change: CancelRange) -> Transaction:
    """Return the transaction that lists a range as cancelled. Mark: it is listed."""
    table = TableKeys(change.table)

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(table, seen):
            return refusal
        present = request_seen(table, change.request, seen)
        if present is None:
            return missing(change.request)
        if change.range in present.cancelled_ranges:
            return Done()
        if refusal := may_cancel_range(present, change.range):
            return refusal
        ranges = (*present.cancelled_ranges, change.range)
        return Write(
            request_written(table, replace(present, cancelled_ranges=ranges)), durable=True
        )

    return Transaction(table_state(table) | own_request(table, change.request), decide)


def move_request(change: MoveRequest) -> Transaction:
    """Return the first transaction that moves a request on. Mark: its state."""
    table = TableKeys(change.table)
    if change.state in (RequestState.DONE, RequestState.DONE_IN_PART):
        return everywhere(_all_done(table, change))
    if change.state.ended:
        return everywhere(_nothing_left(table, change))

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(table, seen):
            return refusal
        present = request_seen(table, change.request, seen)
        if present is None:
            return missing(change.request)
        return _may_move(change, present) or _moved(table, change, present, seen)

    return Transaction(table_state(table) | own_request(table, change.request), decide)


def _may_move(change: MoveRequest, present: Request) -> Decision | None:
    if present.state is change.state:
        return Done()
    return may_move(present, change.state)


def _moved(table: TableKeys, change: MoveRequest, present: Request, seen: Seen) -> Decision:
    moved = replace(
        present,
        state=change.state,
        cause=change.cause or present.cause,
        fails=present.fails or change.fails,
        ended_at_s=seen.now_s if change.state.ended else None,
    )
    return Write(request_written(table, moved), durable=not change.state.ended)


def _all_done(table: TableKeys, change: MoveRequest) -> Everywhere:
    def refused(tablet: TabletId, seen: Seen) -> Refusal | None:
        if change.request.encode() in seen["done"]:
            return None
        return Refusal("open", f"tablet {tablet}: request {change.request} is not done here")

    return Everywhere(
        table=table,
        request=change.request,
        may_begin=lambda present: _may_move(change, present),
        reads=lambda keys: {"done": smembers(keys.done)},
        refused=refused,
        tiles=True,
        then=lambda present, seen: _moved(table, change, present, seen),
    )


def _nothing_left(table: TableKeys, change: MoveRequest) -> Everywhere:
    def reads(keys: TabletKeys) -> dict[str, Command]:
        # In this order: without its selection no reservation of it comes.
        return {
            "waiting": hget(keys.waiting, change.request),
            "selection": get(keys.selection),
            "running": hgetall(keys.running),
        }

    def refused(tablet: TabletId, seen: Seen) -> Refusal | None:
        keys = TabletKeys.of(tablet)
        selection = selection_seen(keys, seen["selection"])
        running = unpack_running(keys.running, seen["running"]).values()
        if (
            seen["waiting"] is None
            and (selection is None or selection.request != change.request)
            and all(entry.request != change.request for entry in running)
        ):
            return None
        return Refusal("open", f"tablet {tablet}: something of request {change.request} is here")

    return Everywhere(
        table=table,
        request=change.request,
        may_begin=lambda present: _may_move(change, present),
        reads=reads,
        refused=refused,
        tiles=False,
        then=lambda present, seen: _moved(table, change, present, seen),
    )
