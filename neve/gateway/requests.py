"""Requests of users: store one, tell how far it is, cancel it or a part of it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

from common.errors import ConflictError, RefusedError, RequestError, UnavailableError
from common.metadata.changes import (
    CancelRange,
    MoveRequest,
    Outcome,
    SubmitRequest,
)
from common.metadata.store_values import CallKind
from common.model.keys import PLUS_INFINITY
from common.model.request import KeyRange, Request, RequestState, covers, key_range_of
from common.model.table import Table
from common.model.tablet import Bounds, Tablet
from common.wire import AttemptProgress
from coordinator.core.requests.next_step import meets_tablet
from coordinator.core.requests.progress import tablet_progress
from neve import api_requests
from neve.gateway.calls import checked_call, known_call, require_same
from neve.gateway.problems import UnknownRequestError, applied
from neve.gateway.request_door import checked_request, key_range
from neve.gateway.request_results import result_of
from neve.gateway.request_views import Followed, request_view
from neve.gateway.scan import before
from neve.gateway.services import Services, check_writable

BY_USER = "cancelled by a user"


async def submit(
    services: Services, table: Table, body: api_requests.NewRequest, call: str | None
) -> Request:
    """Store a request and return it; the same call again returns the same.

    Raises:
        RequestError: Something in it is wrong.
        RefusedError: The table does not take it now, or the call was made with other content.
    """
    now_s = await services.store.now_s()
    call = checked_call(services, call)
    wanted = checked_request(table, body, call, now_s)
    known = await services.store.request(table.id, wanted.id)
    if known is None:
        try:
            applied(await _submit_first(services, table, wanted, call))
            return await stored(services, table, wanted.id)
        except (RequestError, RefusedError, ConflictError):
            # Perhaps for the sake of the same call, which was quicker.
            known = await services.store.request(table.id, wanted.id)
            if known is None:
                raise
    applied(await services.store.apply(_again(wanted, known, call)))
    return await stored(services, table, wanted.id)


async def _submit_first(services: Services, table: Table, wanted: Request, call: str) -> Outcome:
    mark = await known_call(services, table, call)
    if mark is not None:
        require_same(call, mark, CallKind.COMPACT, wanted.id)
    generation = await check_writable(services, table)
    change = SubmitRequest(request=wanted, call=call, generation=generation)
    return await services.store.apply(change)


def _again(wanted: Request, known: Request, call: str) -> SubmitRequest:
    """Return the change of a repeated call: the deadline is the first one's, not a later one."""
    if None not in (known.deadline_s, wanted.deadline_s):
        wanted = replace(wanted, deadline_s=known.deadline_s)
    return SubmitRequest(request=wanted, call=call)


async def stored(services: Services, table: Table, request: str) -> Request:
    """Return a request by its id.

    Raises:
        UnknownRequestError: The table has none of this id (any more).
    """
    found = await services.store.request(table.id, request)
    if found is None:
        raise UnknownRequestError(
            f"table {table.name!r} has no request {request[:64]!r} (any more): "
            "`neve request list` tells which there are"
        )
    return found


async def cancel(
    services: Services, table: Table, request: Request, body: api_requests.Cancel
) -> Request:
    """Cancel a request, or its part in a range, and return it.

    Raises:
        RequestError: The range or tablet holds no whole tablet of the request.
        RefusedError: The request has ended.
    """
    if body.start is None and body.end is None and body.tablet is None:
        if request.state is not RequestState.CANCELLING:
            move = MoveRequest(
                table=table.id, request=request.id, state=RequestState.CANCELLING, cause=BY_USER
            )
            applied(await services.store.apply(move))
    else:
        part = await _part(services, table, request, body)
        change = CancelRange(table=table.id, request=request.id, range=part)
        applied(await services.store.apply(change))
    return await stored(services, table, request.id)


async def followed(
    services: Services, table: Table, request: Request, count: int
) -> api_requests.Request:
    """Return how far a request is.

    Args:
        services: Ports.
        table: Its table.
        request: As it was read.
        count: Of how many tablets to tell.
    """
    if request.state.ended:
        result = await result_of(services, request)
        return replace(request_view(table, request), result=result)
    others = await services.store.open_requests(table.id)
    summed = Followed(table, request, await _attempts(services), await services.store.now_s())
    async for page in tablets_of(services, table, request):
        for tablet in page:
            summed.add(tablet, tablet_progress(request, tablet, others))
    return request_view(table, request, summed.progress, summed.tablets(count))


async def tablets_of(
    services: Services, table: Table, request: Request
) -> AsyncIterator[Sequence[Tablet]]:
    """Yield the tablets that a request concerns, page by page, ascending."""
    start = request.range.start
    async for page in services.pages(table, None if start is None else before(start)):
        yield [tablet for tablet in page if meets_tablet(request, tablet.bounds)]
        if page and not request.range.meets(page[-1].id.end, PLUS_INFINITY):
            return


async def _attempts(services: Services) -> Mapping[str, AttemptProgress]:
    """Return what compactors tell of attempts; nothing while the coordinator is away."""
    try:
        running = await services.coordinator.running()
    except UnavailableError:
        return {}
    return {each.attempt: each.progress for each in running if each.progress is not None}


async def _part(
    services: Services, table: Table, request: Request, body: api_requests.Cancel
) -> KeyRange:
    """Return the part to cancel, from the first key of a tablet to the last of one."""
    if body.tablet is None:
        inside = await _wholly_between(services, table, request, body)
    elif body.start is None and body.end is None:
        found = await services.store.tablet(await services.tablet(table, body.tablet))
        inside = [] if found is None or not meets_tablet(request, found.bounds) else [found.bounds]
        if not inside:
            raise RequestError(f"tablet {body.tablet!r} has no key of request {request.id}")
    else:
        raise RequestError("tablet is given, and start or end, too: wanted one way to say it")
    return key_range_of(inside[0], inside[-1])


async def _wholly_between(
    services: Services, table: Table, request: Request, body: api_requests.Cancel
) -> list[Bounds]:
    part = key_range(table, body.start, body.end)
    inside = [
        tablet.bounds
        async for page in tablets_of(services, table, replace(request, range=part))
        for tablet in page
        if covers(part, tablet.bounds)
    ]
    if not inside:
        raise RequestError(
            f"no tablet of {table.name!r} lies wholly from {body.start!r} to {body.end!r}: "
            "only whole tablets are cancelled; `neve table tablets` shows where they end"
        )
    return inside
