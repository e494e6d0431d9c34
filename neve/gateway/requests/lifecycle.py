"""Life cycle of a request: store, follow and cancel it, and sum up its result."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

from common.errors import ConflictError, RefusedError, RequestError, UnavailableError
from common.metadata.changes import CancelRange, MoveRequest, Outcome, SubmitRequest
from common.metadata.keys import HISTORY_MAX
from common.metadata.store_values import CallKind, HistoryEntry
from common.model.keys import PLUS_INFINITY, key_before
from common.model.outcome import AttemptEnd
from common.model.request import KeyRange, Request, RequestState, covers, key_range_of
from common.model.table import Table
from common.model.tablet import Bounds, Tablet
from common.wire import AttemptProgress
from coordinator.core.requests import meets_tablet, tablet_progress
from neve import api
from neve.gateway.access.callers import current_call
from neve.gateway.call_ids import checked_call, known_call, require_same_call
from neve.gateway.key_views import key_range
from neve.gateway.problems import UnknownRequestError, require_applied
from neve.gateway.requests.validation import checked_request, request_bytes
from neve.gateway.requests.views import ProgressTotals, request_view
from neve.gateway.services import Services, check_writable, whole_id


async def request_result(services: Services, request: Request) -> api.Result:
    """Return the result of a request that has ended."""
    entries = await services.store.history(request.table, HISTORY_MAX)
    return sum_commits(request, entries)


def sum_commits(request: Request, entries: Sequence[HistoryEntry]) -> api.Result:
    """Return the sums over the commits of a request.

    Args:
        request: The request.
        entries: History of its table, newest first.
    """
    own = [
        entry
        for entry in entries
        if entry.request == request.id and entry.end == AttemptEnd.COMMITTED.value
    ]
    read = {path for entry in own for path in entry.inputs}
    written = {path for entry in own for path in entry.outputs}
    between_bytes = between_rows = 0
    for entry in own:
        again = sum(path in read for path in entry.outputs)
        if again:
            # If only some outputs of a job were merged again, its bytes count proportionally.
            between_bytes += entry.bytes_out * again // len(entry.outputs)
            between_rows += entry.rows_out * again // len(entry.outputs)
    return api.Result(
        jobs=len(own),
        files_before=len(read - written),
        files_after=len(written - read),
        bytes_before=sum(entry.bytes_in for entry in own) - between_bytes,
        bytes_after=sum(entry.bytes_out for entry in own) - between_bytes,
        rows_before=sum(entry.rows_in for entry in own) - between_rows,
        rows_after=sum(entry.rows_out for entry in own) - between_rows,
        superseded=sum(entry.superseded for entry in own),
        expired=sum(entry.expired_dropped for entry in own),
        changed=sum(entry.rows_changed for entry in own),
        # Earlier releases counted deleted rows only for append-only tables.
        deleted=sum(max(entry.rows_deleted, entry.transform_dropped) for entry in own),
        tombstones_dropped=sum(entry.tombstones_dropped for entry in own),
        complete=len(entries) < HISTORY_MAX or entries[-1].ended_s < request.submitted_at_s,
    )


BY_USER = "cancelled by a user"
LISTED_MAX = 1000
"""Newest requests whose ids may be shortened."""


async def submit_request(
    services: Services, table: Table, body: api.NewRequest, call: str | None
) -> Request:
    """Store a request and return it; a repeated call returns the same request.

    Raises:
        RequestError: The request is invalid.
        RefusedError: The table does not accept it now, or the call was made with other content.
    """
    now_s = await services.store.now_s()
    call = checked_call(services, call)
    wanted = checked_request(table, body, call, now_s)
    known = await services.store.request(table.id, wanted.id)
    if known is None:
        try:
            require_applied(await _submit_within_share(services, table, wanted, call))
            return await stored_request(services, table, wanted.id)
        except (RequestError, RefusedError, ConflictError):
            # A concurrent repetition of the same call may have stored the request first.
            known = await services.store.request(table.id, wanted.id)
            if known is None:
                raise
    require_applied(await services.store.apply(_repeated_change(wanted, known, call)))
    return await stored_request(services, table, wanted.id)


async def _submit_within_share(
    services: Services, table: Table, wanted: Request, call: str
) -> Outcome:
    """Submit a request, which counts against the quota of its caller until it is finished.

    Raises:
        QuotaError: The caller has reached its limit of compactions.
    """
    quotas, caller = services.quotas, current_call().caller.name
    size_bytes = request_bytes(wanted)
    if not quotas.has_room(caller, size_bytes):
        compactions = quotas.use_of(caller).compactions
        for held in sorted(compactions):
            known = await services.store.request(*held)
            if known is None or known.state.ended:
                compactions.pop(held, None)
    with quotas.compaction(caller, size_bytes) as use:
        outcome = await _submit_first(services, table, wanted, call)
        use.compactions[table.id, wanted.id] = size_bytes
    return outcome


async def _submit_first(services: Services, table: Table, wanted: Request, call: str) -> Outcome:
    mark = await known_call(services, table, call)
    if mark is not None:
        require_same_call(call, mark, CallKind.COMPACT, wanted.id)
    generation = await check_writable(services, table)
    change = SubmitRequest(request=wanted, call=call, generation=generation)
    return await services.store.apply(change)


def _repeated_change(wanted: Request, known: Request, call: str) -> SubmitRequest:
    """Return the change of a repeated call, with the deadline of the first call."""
    if None not in (known.deadline_s, wanted.deadline_s):
        wanted = replace(wanted, deadline_s=known.deadline_s)
    return SubmitRequest(request=wanted, call=call)


async def stored_request(services: Services, table: Table, request: str) -> Request:
    """Return a request by its id, or by a unique prefix of one of the newest or open requests.

    Raises:
        RequestError: The ids of several requests begin with the text.
        UnknownRequestError: The table has no, or no longer a, request with this id.
    """
    store = services.store
    found = await store.request(table.id, request)
    if found is None:
        listed = (*await store.requests(table.id, LISTED_MAX), *await store.open_requests(table.id))
        known = {entry.id: entry for entry in listed}
        found = known.get(whole_id(request, known, "request") or "")
    if found is None:
        raise UnknownRequestError(
            f"table {table.name!r} has no request {request[:64]!r} (any more): "
            "`neve request list` lists them"
        )
    return found


async def cancel_request(
    services: Services, table: Table, request: Request, body: api.Cancel
) -> Request:
    """Cancel a request, or its part in a range, and return it.

    Raises:
        RequestError: The range contains no whole tablet of the request.
        RefusedError: The request has ended.
    """
    if body.start is None and body.end is None and body.tablet is None:
        if request.state is not RequestState.CANCELLING:
            move = MoveRequest(
                table=table.id, request=request.id, state=RequestState.CANCELLING, cause=BY_USER
            )
            require_applied(await services.store.apply(move))
    else:
        part = await _cancelled_range(services, table, request, body)
        change = CancelRange(table=table.id, request=request.id, range=part)
        require_applied(await services.store.apply(change))
    return await stored_request(services, table, request.id)


async def request_progress(
    services: Services, table: Table, request: Request, count: int
) -> api.Request:
    """Return a request with its progress or, once it has ended, its result.

    Args:
        services: Ports and settings.
        table: Table of the request.
        request: The request as it was read.
        count: Maximum number of tablets to list.
    """
    if request.state.ended:
        result = await request_result(services, request)
        return replace(request_view(table, request), result=result)
    others = await services.store.open_requests(table.id)
    summed = ProgressTotals(
        table, request, await _attempt_progress(services), await services.store.now_s()
    )
    async for page in request_tablets(services, table, request):
        for tablet in page:
            summed.add(tablet, tablet_progress(request, tablet, others))
    return request_view(table, request, summed.progress, summed.tablets(count))


async def request_tablets(
    services: Services, table: Table, request: Request
) -> AsyncIterator[Sequence[Tablet]]:
    """Yield the tablets in the range of a request, page by page, ascending."""
    start = request.range.start
    async for page in services.pages(table, None if start is None else key_before(start)):
        yield [tablet for tablet in page if meets_tablet(request, tablet.bounds)]
        if page and not request.range.meets(page[-1].id.end, PLUS_INFINITY):
            return


async def _attempt_progress(services: Services) -> Mapping[str, AttemptProgress]:
    """Return the reported progress of running attempts; empty if the coordinator is down."""
    try:
        running = await services.coordinator.running()
    except UnavailableError:
        return {}
    return {
        attempt.attempt: attempt.progress for attempt in running if attempt.progress is not None
    }


async def _cancelled_range(
    services: Services, table: Table, request: Request, body: api.Cancel
) -> KeyRange:
    """Return the range to cancel, extended to whole tablets."""
    if body.tablet is None:
        inside = await _tablets_wholly_within(services, table, request, body)
    elif body.start is None and body.end is None:
        found = await services.store.tablet(await services.tablet(table, body.tablet, whole=True))
        inside = [] if found is None or not meets_tablet(request, found.bounds) else [found.bounds]
        if not inside:
            raise RequestError(f"tablet {body.tablet!r} has no key of request {request.id}")
    else:
        raise RequestError("give either tablet, or start and end, not both")
    return key_range_of(inside[0], inside[-1])


async def _tablets_wholly_within(
    services: Services, table: Table, request: Request, body: api.Cancel
) -> list[Bounds]:
    part = key_range(table, body.start, body.end)
    inside = [
        tablet.bounds
        async for page in request_tablets(services, table, replace(request, range=part))
        for tablet in page
        if covers(part, tablet.bounds)
    ]
    if not inside:
        raise RequestError(
            f"no tablet of {table.name!r} lies wholly from {body.start!r} to {body.end!r}: "
            "only whole tablets are cancelled; `neve table tablets` shows where they end"
        )
    return inside
