"""Submit a request, cancel a part of it, change its state, close it. Mark: the request itself.

Before a request changes its state, every tablet of its range is checked, page by page. A page is
one transaction that writes nothing; the last one decides. The results of earlier pages are still
valid then, because they can only change after the request has changed its state:

    r is done here          no split or merge begins while a done marker exists, and only an
                            ended request's is removed; so the tablets stay the same
    nothing of r is here    mark and select require an active request, reserve requires its
                            selection; so nothing of it can appear
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from common.metadata.changes.files import call_seen, leave_call_mark, refused_call
from common.metadata.changes.protocol import (
    Applied,
    Change,
    Decision,
    Guarded,
    More,
    Needs,
    NoWrite,
    Seen,
    Transaction,
    Write,
    bounds_seen,
    buffer_segments,
    may_change,
    refused_by_buffer,
    refused_by_table,
    request_changed,
    selection_seen,
    table_seen,
    table_state,
    tablet_gone,
    tablet_seen,
    transaction_of,
    whole_table,
)
from common.metadata.codec.table import (
    REQUEST_STATE,
    VALUE,
    request_fields,
    request_member,
    request_of_member,
    submitted_at_s,
    unpack_request,
)
from common.metadata.codec.tablet import unpack_running
from common.metadata.keys import (
    MARK_LIFE_S,
    REQUESTS_KEPT,
    REQUESTS_OPEN_MAX,
    TableKeys,
    TabletKeys,
    is_table_id,
)
from common.metadata.keyspace import (
    Command,
    delete,
    get,
    hget,
    hgetall,
    hset,
    members_after,
    pexpire,
    smembers,
    zadd,
    zcard,
    zrem,
)
from common.metadata.store_values import CallKind, CallMark
from common.model.outcome import Refusal, RefusalCode
from common.model.request import KeyRange, Request, RequestState
from common.model.tablet import PLUS_INFINITY, Tablet, TabletId

# ------------------------------------------------------------------ Shared parts of request changes


def own_request(table: TableKeys, request: str, *, watch: bool = True) -> Needs:
    """Need a request."""
    key = table.request(request)
    return Needs((key,) if watch else (), {"request": hgetall(key)})


def request_seen(table: TableKeys, request: str, seen: Seen) -> Request | None:
    """Return the request, or None if it does not exist."""
    return unpack_request(table.request(request), table.id, request, seen["request"])


def request_state(table: TableKeys, request: str) -> Needs:
    """Need only the state of a request, not watched: for states that are final."""
    return Needs((), {"request-state": hget(table.request(request), REQUEST_STATE)})


def request_has_ended(state: bytes | None) -> bool:
    """Return whether a request has ended, or does not exist."""
    return state is None or state.decode(errors="replace") in {
        value for value in RequestState if value.ended
    }


def request_missing(request: str) -> Refusal:
    """Return the refusal for a missing request."""
    return Refusal(RefusalCode.REQUEST, f"request {request} does not exist")


def request_here(tablet: TabletId, request: str, seen: Seen) -> tuple[Tablet, Request] | Refusal:
    """Return the tablet and the request, or why they may not be changed (rule 5)."""
    keys, table = TabletKeys.of(tablet), TableKeys(tablet.table)
    if refusal := refused_by_table(table, seen):
        return refusal
    record = tablet_seen(tablet, keys, seen)
    if record is None:
        return tablet_gone(tablet)
    wanted = request_seen(table, request, seen)
    return request_missing(request) if wanted is None else (record, wanted)


def request_written(table: TableKeys, request: Request) -> tuple[Command, ...]:
    """Write a request and its change entry."""
    return (
        hset(table.request(request.id), request_fields(request)),
        request_changed(table.id, request.id),
    )


# ----------------------------------------------------------------- Checks of all tablets of a range

TABLETS_PER_LOOK = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeCheck:
    """A condition for every tablet of a request's range, and the decision after it."""

    table: TableKeys
    request: str
    may_begin: Callable[[Request], Decision | None]
    """Decides without a check of the tablets; None: check them."""
    reads: Callable[[TabletKeys], Mapping[str, Command]]
    """Reads for a tablet, in this order; `bounds` is read last."""
    refused: Callable[[TabletId, Seen], Refusal | None]
    """Returns why a tablet does not meet the condition, from these reads alone."""
    tiles: bool
    """Whether the tablets must cover the range without a hole."""
    then: Callable[[Request, Seen], Decision]
    """Decides after every tablet has met the condition."""


def check_range(wanted: RangeCheck, reached: bytes | None = None) -> Transaction:
    """Return the transaction of one page.

    Args:
        wanted: The check.
        reached: End of the last checked tablet; None: begin.
    """
    needs = whole_table(wanted.table) | own_request(wanted.table, wanted.request)

    def decide(seen: Seen) -> Decision:
        table = table_seen(wanted.table, seen)
        if refusal := may_change(wanted.table.id, table.state if table else None):
            return refusal
        request = request_seen(wanted.table, wanted.request, seen)
        if request is None:
            return request_missing(wanted.request)
        if (early := wanted.may_begin(request)) is not None:
            return early
        partitioned = table is not None and bool(table.partition_by)
        page = _RangePage(wanted, request, reached, partitioned)
        return More(Needs((), {"page": page.command}), page.look)

    return Transaction(needs, decide)


@dataclass(frozen=True, slots=True)
class _RangePage:
    """Consecutive tablets, from the end of the previous page."""

    wanted: RangeCheck
    request: Request
    reached: bytes | None
    partitioned: bool

    @property
    def command(self) -> Command:
        """Return the read of the ends of the next tablets."""
        begins = self.reached is None
        first = self.request.range.start if begins else self.reached
        return members_after(self.wanted.table.index, first, TABLETS_PER_LOOK, inclusive=begins)

    def look(self, seen: Seen) -> Decision:
        """Read the tablets of the page."""
        ends, last = self._inside(seen["page"])
        tablets = [TabletId(self.wanted.table.id, end) for end in ends]
        reads: dict[str, Command] = {}
        for tablet in tablets:
            keys = TabletKeys.of(tablet)
            own = {**self.wanted.reads(keys), "bounds": get(keys.bounds)}
            reads |= {f"{tablet.text}/{name}": command for name, command in own.items()}
        return More(Needs((), reads), lambda more: self._decide(tablets, more, last=last))

    def _inside(self, ends: Sequence[bytes]) -> tuple[list[bytes], bool]:
        """Return the ends of the tablets in the range, and whether the page is the last."""
        if self.partitioned:
            until = self.request.range.until
            inside = [end for end in ends if until is None or end < until]
            return inside, len(inside) < TABLETS_PER_LOOK
        before = sum(not self._reaches(end) for end in ends)
        return [*ends[: before + 1]], before < len(ends) or len(ends) < TABLETS_PER_LOOK

    def _reaches(self, end: bytes | None) -> bool:
        """Return whether no tablet after this end may hold keys of the range."""
        return end is not None and not (
            end < PLUS_INFINITY and self.request.range.meets(end, PLUS_INFINITY)
        )

    def _decide(self, tablets: Sequence[TabletId], seen: Seen, *, last: bool) -> Decision:
        reached = self.reached
        for number, tablet in enumerate(tablets):
            begins = not number and reached is None
            if refusal := self._refused(tablet, reached, seen, begins=begins):
                return refusal
            reached = tablet.end
        if not last:
            return NoWrite(then=check_range(self.wanted, reached))
        if self.wanted.tiles and not self.partitioned and not self._reaches(reached):
            return Refusal(
                RefusalCode.BOUNDS,
                f"request {self.request.id}: its tablets have changed, look again",
            )
        return self.wanted.then(self.request, seen)

    def _refused(
        self, tablet: TabletId, reached: bytes | None, seen: Seen, *, begins: bool
    ) -> Refusal | None:
        """Return why a tablet does not meet the condition, or does not follow the previous one."""
        keys, prefix = TabletKeys.of(tablet), f"{tablet.text}/"
        own = {name: seen[prefix + name] for name in (*self.wanted.reads(keys), "bounds")}
        if refusal := self.wanted.refused(tablet, Seen(own, seen.now_s)):
            return refusal
        if not self.wanted.tiles or self.partitioned:
            return None
        bounds = bounds_seen(keys, own["bounds"])
        start = self.request.range.start
        if bounds is None:
            follows = False
        elif begins:
            follows = bounds.start is None or (start is not None and bounds.start < start)
        else:
            follows = bounds.start == reached
        return (
            None
            if follows
            else Refusal(RefusalCode.BOUNDS, f"tablet {tablet} has changed, look again")
        )


# ------------------------------------------------------------------------------------------- Submit


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRequest(Guarded):
    """Store a request as ACTIVE. Repeating it with the same id and content succeeds."""

    request: Request
    call: str | None = None
    """Call id of the user who submits it."""
    flushed_s: float = 0.0
    """Rows in segments that were opened before this time must be in files."""


@transaction_of.register
def submit_request(change: SubmitRequest) -> Transaction:
    """Return the transaction that stores a request. Mark: it exists with this content.

    A user's call leaves its own mark as well, so the id cannot be used for another call.
    """
    content = request_content(change.request)
    table = TableKeys(content.table)
    assert is_table_id(content.id), content.id

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(table, seen):
            return refusal
        request = request_seen(table, content.id, seen)
        if request is not None:
            return _submitted_again(table, change, request)
        if change.call is not None and (refusal := _refused_call(table, change.call, seen)):
            return refusal
        if seen["open"] >= REQUESTS_OPEN_MAX:
            return Refusal(
                RefusalCode.FULL, f"{seen['open']} requests of the table are already open"
            )
        # The store may have gone back to before the flush of the call.
        if refusal := refused_by_buffer(table, seen, "a request", change.flushed_s):
            return refusal
        made = replace(content, submitted_at_s=seen.now_s)
        effects = (
            zadd(table.requests, request_member(made)),
            zadd(table.open_requests, request_member(made)),
            *request_written(table, made),
            *_call_marked(table, change, seen.now_s),
        )
        return Write(effects, durable=True)

    needs = table_state(table) | own_request(table, content.id)
    needs |= buffer_segments(table, watch=False)
    if change.call is not None:
        key = table.call(change.call)
        needs |= Needs((key,), {"call": get(key)})
    return Transaction(needs | Needs((), {"open": zcard(table.open_requests)}), decide)


def request_content(request: Request) -> Request:
    """Return a request as submitted, without its progress."""
    return replace(
        request,
        state=RequestState.ACTIVE,
        cause="",
        fails=False,
        cancelled_ranges=(),
        submitted_at_s=0.0,
        ended_at_s=None,
    )


def _submitted_again(table: TableKeys, change: SubmitRequest, request: Request) -> Decision:
    if request_content(request) != request_content(change.request):
        code = RefusalCode.EXISTS if change.call is None else RefusalCode.CALL_CONTENT
        return Refusal(code, f"request {request.id} exists already, with other content")
    # Written again, so that replicas have it before it is acknowledged again.
    effects = (hset(table.request(request.id), {VALUE: request_fields(request)[VALUE]}),)
    return Write(effects, Applied(repeated=True), durable=True)


def _refused_call(table: TableKeys, call: str, seen: Seen) -> Refusal | None:
    mark = call_seen(table, call, seen)
    if mark is None:
        return refused_call(call, seen.now_s, since_s=0.0)  # The gateway has checked its table.
    return Refusal(
        RefusalCode.CALL_CONTENT,
        f"call id {call} was used before, for `{mark.kind.value}`: use a new id for another call",
    )


def _call_marked(table: TableKeys, change: SubmitRequest, now_s: float) -> tuple[Command, ...]:
    if change.call is None:
        return ()
    request = change.request.id
    mark = CallMark(kind=CallKind.COMPACT, content=request, at_s=now_s, request=request)
    return (leave_call_mark(table, change.call, mark),)


# -------------------------------------------------------------------------- Cancel a range, move on


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRange(Change):
    """Mark a key range of an ACTIVE request as cancelled; `CancelHere` then carries it out."""

    table: str
    request: str
    range: KeyRange


CANCELLED_RANGES_MAX = 100
"""Largest number of separately cancelled ranges of a request."""


def may_cancel_range(request: Request) -> Refusal | None:
    """Return why a range of a request may not be cancelled separately, or None if it may."""
    subject = f"request {request.id}"
    if request.state is not RequestState.ACTIVE:
        return Refusal(
            RefusalCode.REQUEST, f"{subject} is {request.state.value}, it must be active"
        )
    if len(request.cancelled_ranges) >= CANCELLED_RANGES_MAX:
        return Refusal(
            RefusalCode.FULL, f"{subject} has {CANCELLED_RANGES_MAX} cancelled ranges already"
        )
    return None


@transaction_of.register
def cancel_range(change: CancelRange) -> Transaction:
    """Return the transaction that marks a range as cancelled. Mark: it is listed."""
    table = TableKeys(change.table)

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(table, seen):
            return refusal
        request = request_seen(table, change.request, seen)
        if request is None:
            return request_missing(change.request)
        if change.range in request.cancelled_ranges:
            return NoWrite()
        if refusal := may_cancel_range(request):
            return refusal
        ranges = (*request.cancelled_ranges, change.range)
        return Write(
            request_written(table, replace(request, cancelled_ranges=ranges)), durable=True
        )

    return Transaction(table_state(table) | own_request(table, change.request), decide)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRequest(Change):
    """Change the state of a request.

    DONE requires its done marker on every tablet of its range, and no cancelled range.
    DONE_IN_PART requires the same markers and a cancelled range (`CancelHere` leaves a marker
    there). CANCELLED and FAILED require that no tablet has a marker, selection or running entry
    of it. CANCELLING requires ACTIVE.
    """

    table: str
    request: str
    state: RequestState
    cause: str = ""
    fails: bool = False
    """For CANCELLING: whether it will end as FAILED."""


def may_move(request: Request, state: RequestState) -> Refusal | None:
    """Return why a request may not change to a state, whatever its tablets hold, or None."""
    before = {
        RequestState.ACTIVE: None,
        RequestState.CANCELLING: RequestState.ACTIVE,
        RequestState.DONE: RequestState.ACTIVE,
        RequestState.DONE_IN_PART: RequestState.ACTIVE,
        RequestState.CANCELLED: RequestState.CANCELLING,
        RequestState.FAILED: RequestState.CANCELLING,
    }[state]
    subject = f"request {request.id}"
    if request.state is not before:
        expected = "nothing" if before is None else before.value
        return Refusal(
            RefusalCode.REQUEST,
            f"{subject} is {request.state.value}, only {expected} becomes {state.value}",
        )
    end = _end_of(request)
    if state.ended and state is not end:
        return Refusal(RefusalCode.REQUEST, f"{subject} is to end {end.value}, not {state.value}")
    return None


def _end_of(request: Request) -> RequestState:
    """Return the state in which an unfinished request will end."""
    if request.state is RequestState.CANCELLING:
        return RequestState.FAILED if request.fails else RequestState.CANCELLED
    return request.done_state


@transaction_of.register
def move_request(change: MoveRequest) -> Transaction:
    """Return the first transaction that changes a request's state. Mark: its state."""
    table = TableKeys(change.table)
    if change.state in (RequestState.DONE, RequestState.DONE_IN_PART):
        return check_range(_all_done(table, change))
    if change.state.ended:
        return check_range(_nothing_left(table, change))

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(table, seen):
            return refusal
        request = request_seen(table, change.request, seen)
        if request is None:
            return request_missing(change.request)
        return _may_move(change, request) or _moved(table, change, request, seen)

    return Transaction(table_state(table) | own_request(table, change.request), decide)


def _may_move(change: MoveRequest, request: Request) -> Decision | None:
    if request.state is change.state:
        return NoWrite()
    return may_move(request, change.state)


def _moved(table: TableKeys, change: MoveRequest, request: Request, seen: Seen) -> Decision:
    moved = replace(
        request,
        state=change.state,
        cause=change.cause or request.cause,
        fails=request.fails or change.fails,
        ended_at_s=seen.now_s if change.state.ended else None,
    )
    return Write(request_written(table, moved), durable=not change.state.ended)


def _all_done(table: TableKeys, change: MoveRequest) -> RangeCheck:
    def refused(tablet: TabletId, seen: Seen) -> Refusal | None:
        if change.request.encode() in seen["done"]:
            return None
        return Refusal(
            RefusalCode.OPEN, f"tablet {tablet}: request {change.request} is not done here"
        )

    return RangeCheck(
        table=table,
        request=change.request,
        may_begin=lambda request: _may_move(change, request),
        reads=lambda keys: {"done": smembers(keys.done)},
        refused=refused,
        tiles=True,
        then=lambda request, seen: _moved(table, change, request, seen),
    )


def _nothing_left(table: TableKeys, change: MoveRequest) -> RangeCheck:
    def reads(keys: TabletKeys) -> dict[str, Command]:
        # In this order: without a selection the request cannot get reservations.
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
        return Refusal(
            RefusalCode.OPEN, f"tablet {tablet}: request {change.request} still has entries here"
        )

    return RangeCheck(
        table=table,
        request=change.request,
        may_begin=lambda request: _may_move(change, request),
        reads=reads,
        refused=refused,
        tiles=False,
        then=lambda request, seen: _moved(table, change, request, seen),
    )


# ---- Close
#
# A closed request is history. Above a limit the oldest are no longer listed. A closed request never
# changes, so nothing is watched for that. The request itself stays as long as the id of the call
# that submitted it, because a repetition of the call must find it.


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseRequest(Change):
    """Remove an ended request from the open ones, after all its done markers are gone."""

    table: str
    request: str


FORGOTTEN_MAX = 64
"""Old requests that are removed from the list when one is closed."""


@transaction_of.register
def close_request(change: CloseRequest) -> Transaction:
    """Return the first transaction that closes a request. Mark: it is not among the open ones."""
    table = TableKeys(change.table)

    def may_begin(request: Request) -> Decision | None:
        if request.state.ended:
            return None
        return Refusal(
            RefusalCode.REQUEST, f"request {request.id} is {request.state.value}, not ended"
        )

    def refused(tablet: TabletId, seen: Seen) -> Refusal | None:
        if change.request.encode() not in seen["done"]:
            return None
        return Refusal(
            RefusalCode.OPEN, f"tablet {tablet}: request {change.request} has its done marker"
        )

    def then(request: Request, _seen: Seen) -> Decision:
        return More(Needs((), _orders(table)), lambda seen: _closed(table, request, seen))

    return check_range(
        RangeCheck(
            table=table,
            request=change.request,
            may_begin=may_begin,
            reads=lambda keys: {"done": smembers(keys.done)},
            refused=refused,
            tiles=False,
            then=then,
        )
    )


def _orders(table: TableKeys) -> dict[str, Command]:
    return {
        "count": zcard(table.requests),
        "oldest": members_after(table.requests, None, FORGOTTEN_MAX),
        "open": members_after(table.open_requests, None, 2 * REQUESTS_OPEN_MAX),
    }


def _closed(table: TableKeys, present: Request, seen: Seen) -> Decision:
    """Remove the request from the open ones, and forget the oldest ones above the limit."""
    own, still_open = request_member(present), {*seen["open"]}
    if own not in still_open:
        return NoWrite()
    excess = max(0, seen["count"] - REQUESTS_KEPT)
    old = [member for member in seen["oldest"][:excess] if member not in still_open]
    effects: tuple[Command, ...] = (zrem(table.open_requests, own),)
    if old:
        effects += (
            zrem(table.requests, *old),
            *(_forgotten(table, request, seen) for request in old),
        )
    return Write(effects)


def _forgotten(table: TableKeys, member: bytes, seen: Seen) -> Command:
    """Let a request expire when its call can no longer be repeated."""
    key = table.request(request_of_member(member))
    left_s = submitted_at_s(member) + MARK_LIFE_S - seen.now_s
    return pexpire(key, left_s) if left_s > 0 else delete(key)
