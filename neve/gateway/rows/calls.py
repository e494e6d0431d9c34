"""Call ids: the mark of an accepted call answers its repetitions.

A caller that lost an answer repeats the call, perhaps much later. The gateway looks for the mark
first and does not validate an accepted call again, because its files may have been compacted and
deleted since.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Header

from common.errors import ConflictError, RefusedError, RequestError, UnavailableError
from common.metadata.changes import AddFiles, Applied
from common.metadata.changes.files import refused_call, refused_other_content
from common.metadata.store_values import CallKind, CallMark
from common.model.outcome import RefusalCode
from common.model.table import Table
from common.primitives import call_time_s, digest
from common.runtime import call_id
from neve import api
from neve.gateway.access.callers import current_call
from neve.gateway.problems import CallIdError, ChangeRefusedError
from neve.gateway.services import Services

Call = Annotated[
    str | None,
    Header(
        alias=api.CALL_HEADER, description="Id of the call, a UUIDv7. A repeated call counts once."
    ),
]


def request_id(table: Table, call: str) -> str:
    """Return the request id of a call; a repeated call gets the same request id."""
    return "req-" + digest([table.id, call])


def checked_call(services: Services, text: str | None) -> str:
    """Return the id of a call, or a new id if the caller sent none.

    Raises:
        RequestError: The id is not a UUIDv7.
    """
    if text is None:
        new_id = current_call().call = call_id(services.clock)
        return new_id
    canonical = len(text) == 36 and text.count("-") == 4
    if call_time_s(text) is None or not canonical:
        raise CallIdError(
            f"call id {text[:64]!r} is not a UUIDv7; leave it out to get one",
            RefusalCode.CALL_FORM,
        )
    return text.lower()


async def known_call(services: Services, table: Table, call: str) -> tuple[CallMark | None, float]:
    """Return the mark of an accepted call, or None if the call may be made now; and the time.

    Returns:
        The mark, and the store's time when it was read.

    Raises:
        RequestError: The call has no mark, and its id is too old or in the future.
    """
    mark, now_s = await services.store.call_and_time(table.id, call)
    if mark is None and (refusal := refused_call(call, now_s, table.calls_since_s)):
        raise CallIdError(refusal.reason, refusal.code)
    return mark, now_s


async def call_once(
    services: Services,
    table: Table,
    call: str,
    *,
    same: Callable[[CallMark], Awaitable[None]],
    make: Callable[[float], Awaitable[api.Added]],
) -> api.Added:
    """Make a call, or answer it from the mark of its first try.

    The mark is looked up first, and again if the call is refused: the first try may still have
    been in progress at a suspended gateway, and its files may be compacted and deleted by now.

    Args:
        services: Ports and settings.
        table: Table of the call.
        call: Id of the call.
        same: Raises if the mark belongs to another call.
        make: Makes the call, given the store's time.

    Raises:
        RequestError: The call is invalid, and was not made before.
        RefusedError: The call is not allowed, or its id was used for another call.
        ConflictError: The call lost to concurrent changes, and wrote nothing.
        UnavailableError: It is unknown whether the replicas have the mark.
    """
    mark, now_s = await known_call(services, table, call)
    if mark is None:
        try:
            return await make(now_s)
        except (RequestError, RefusedError, ConflictError):
            mark = await services.store.call(table.id, call)
            if mark is None:
                raise
    await same(mark)
    await _keep_mark(services, table, call, mark)
    return repeated_view(call, mark)


async def _keep_mark(services: Services, table: Table, call: str, mark: CallMark) -> None:
    """Wait until replicas have a mark, so that a fail-over cannot lose an answered call.

    The first try may have had no answer because too few replicas confirmed its write.

    Raises:
        UnavailableError: It is unknown whether the replicas have the mark, or the mark is lost.
    """
    again = AddFiles(table=table.id, call=call, files={}, kind=mark.kind, content=mark.content)
    outcome = await services.store.apply(again)
    if not isinstance(outcome, Applied):
        raise UnavailableError(
            f"call {call} was accepted, and may be forgotten by now ({outcome.reason}): send it"
            " again under the same id"
        )


def require_same_call(call: str, mark: CallMark, kind: CallKind, content: str) -> None:
    """Reject a call whose id was used for another call.

    Raises:
        RefusedError: Kind or content of the call differ from the mark.
    """
    if refusal := refused_other_content(call, mark, kind, content):
        raise ChangeRefusedError(refusal.reason, refusal.code)


def repeated_view(call: str, mark: CallMark) -> api.Added:
    """Return the answer to a repeated call, from its mark."""
    return api.Added(
        call=call,
        files=(),
        rows=mark.rows,
        size_bytes=mark.size_bytes,
        file_count=mark.files,
        tablets=mark.tablets,
        repeated=True,
    )


async def call_view(services: Services, table: Table, text: str) -> api.Call:
    """Return the outcome of a call id.

    Raises:
        RequestError: The id is not a UUIDv7.
    """
    call = checked_call(services, text)
    mark = await services.store.call(table.id, call)
    if mark is not None:
        return api.Call(
            call=call,
            state="accepted",
            kind=mark.kind.value,
            at_s=mark.at_s,
            rows=None if mark.request else mark.rows,
            file_count=None if mark.request else mark.files,
            size_bytes=None if mark.request else mark.size_bytes,
            tablets=mark.tablets,
            request=mark.request or None,
        )
    request = await services.store.request(table.id, request_id(table, call))
    if request is not None:
        return api.Call(
            call=call,
            state="accepted",
            kind=CallKind.COMPACT.value,
            at_s=request.submitted_at_s,
            request=request.id,
        )
    refusal = refused_call(call, await services.store.now_s(), table.calls_since_s)
    old = refusal is not None and refusal.code == RefusalCode.CALL_TOO_OLD
    return api.Call(call=call, state="too-old" if old else "unknown")
