"""What a call id means: its mark is looked for first, and answers a repeated call.

A caller that has lost an answer sends the same call again, perhaps much later. What was
accepted then is not asked again whether it is allowed: its files may have been compacted
and deleted since.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Header

from common.digests import call_time_s, digest
from common.errors import ConflictError, RefusedError, RequestError, UnavailableError
from common.ids import call_id
from common.metadata.changes import AddFiles, Applied
from common.metadata.mutation.call_marks import refused_call, refused_other_content
from common.metadata.store_values import CallKind, CallMark
from common.model.outcome import RefusalCode
from common.model.table import Table
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
    """Return the id of the request of a call: the same call again is the same request."""
    return "req-" + digest([table.id, call])


def checked_call(services: Services, written: str | None) -> str:
    """Return the id of a call, made now if the caller sent none.

    Raises:
        RequestError: It is no UUIDv7.
    """
    if written is None:
        made = current_call().call = call_id(services.clock)
        return made
    canonical = len(written) == 36 and written.count("-") == 4
    if call_time_s(written) is None or not canonical:
        raise CallIdError(
            f"call id {written[:64]!r} is not a UUIDv7; leave it out to get one",
            RefusalCode.CALL_FORM,
        )
    return written.lower()


async def known_call(services: Services, table: Table, call: str) -> CallMark | None:
    """Return the mark of a call that was accepted before, or None if it may be made now.

    Raises:
        RequestError: It has no mark, and is too old or too new to be made.
    """
    mark = await services.store.call(table.id, call)
    if mark is None and (
        refusal := refused_call(call, await services.store.now_s(), table.calls_since_s)
    ):
        raise CallIdError(refusal.reason, refusal.code)
    return mark


async def call_once(
    services: Services,
    table: Table,
    call: str,
    *,
    same: Callable[[CallMark], Awaitable[None]],
    make: Callable[[], Awaitable[api.Added]],
) -> api.Added:
    """Make a call, or answer it from the mark that its first try has left.

    The mark is looked for before everything else, and once more if the call is refused: the
    first try may have been under way still, at a gateway that stood still, and what it brought
    in may be compacted and deleted by now.

    Args:
        services: Ports.
        table: Where.
        call: Id of the call.
        same: Refuses if the mark is of another call.
        make: Makes the call.

    Raises:
        RequestError: The call cannot be made, and was not made before.
        RefusedError: The same, or its id was used for something else.
        ConflictError: The same, and nothing was written.
        UnavailableError: Nobody knows whether replicas have the mark.
    """
    mark = await known_call(services, table, call)
    if mark is None:
        try:
            return await make()
        except (RequestError, RefusedError, ConflictError):
            mark = await services.store.call(table.id, call)
            if mark is None:
                raise
    await same(mark)
    await _keep_mark(services, table, call, mark)
    return repeated_view(call, mark)


async def _keep_mark(services: Services, table: Table, call: str, mark: CallMark) -> None:
    """Have replicas keep a mark, so that no fail-over forgets what is answered from it.

    The first try may have had no answer because too few replicas had what it wrote.

    Raises:
        UnavailableError: Nobody knows whether they have it, or it is forgotten already.
    """
    again = AddFiles(table=table.id, call=call, files={}, kind=mark.kind, content=mark.content)
    outcome = await services.store.apply(again)
    if not isinstance(outcome, Applied):
        raise UnavailableError(
            f"call {call} was accepted, and may be forgotten by now ({outcome.reason}): send it"
            " again under the same id"
        )


def require_same_call(call: str, mark: CallMark, kind: CallKind, content: str) -> None:
    """Refuse a call whose id was used for something else.

    Raises:
        RefusedError: It was.
    """
    if refusal := refused_other_content(call, mark, kind, content):
        raise ChangeRefusedError(refusal.reason, refusal.code)


def repeated_view(call: str, mark: CallMark) -> api.Added:
    """Return the answer to a call that was accepted before."""
    return api.Added(
        call=call,
        files=(),
        rows=mark.rows,
        size_bytes=mark.size_bytes,
        file_count=mark.files,
        tablets=mark.tablets,
        repeated=True,
    )


async def call_view(services: Services, table: Table, written: str) -> api.Call:
    """Return what became of a call id.

    Raises:
        RequestError: It is no UUIDv7.
    """
    call = checked_call(services, written)
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
