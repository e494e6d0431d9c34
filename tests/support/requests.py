"""Short words for changes of requests and operations, for contract tests."""

from __future__ import annotations

from common.metadata.changes import (
    CancelHere,
    CloseRequest,
    CompleteHere,
    FinishHere,
    MarkWaiting,
    MoveRequest,
    SelectFiles,
    SubmitRequest,
)
from common.model.request import KeyRange, Request, RequestState
from common.model.tablet import Tablet, TabletId
from tests.support.store_harness import Harness, applied


async def submitted(harness: Harness, table: str, request: str = "r1", **fields: object) -> Request:
    """Store a request and return it as it was stored."""
    wanted = Request(id=request, table=table, **fields)  # type: ignore[arg-type]  # any field
    applied(await harness.apply(SubmitRequest(request=wanted)))
    found = await harness.store.request(table, request)
    assert found is not None
    return found


def wait(tablet: TabletId, request: str = "r1") -> MarkWaiting:
    """Return a marker."""
    return MarkWaiting(tablet=tablet, request=request)


def select(
    tablet: TabletId, *chosen: str, request: str = "r1", shown: tuple[str, ...] = ()
) -> SelectFiles:
    """Return a selection of files that are among those shown."""
    return SelectFiles(tablet=tablet, request=request, chosen=chosen, shown=(*chosen, *shown))


def complete(tablet: TabletId, *files: str, request: str = "r1") -> CompleteHere:
    """Return the end of a selection."""
    return CompleteHere(tablet=tablet, request=request, files=files)


def cancel(tablet: TabletId, request: str = "r1") -> CancelHere:
    """Return the removal of a request from a tablet."""
    return CancelHere(tablet=tablet, request=request)


def finish(tablet: TabletId, request: str = "r1") -> FinishHere:
    """Return the removal of a done marker."""
    return FinishHere(tablet=tablet, request=request)


def move(table: str, state: RequestState, request: str = "r1", **fields: object) -> MoveRequest:
    """Return a step of a request."""
    return MoveRequest(table=table, request=request, state=state, **fields)  # type: ignore[arg-type]  # any field


def close(table: str, request: str = "r1") -> CloseRequest:
    """Return the end of all care for a request."""
    return CloseRequest(table=table, request=request)


def keys(start: bytes | None = None, until: bytes | None = None) -> KeyRange:
    """Return a range."""
    return KeyRange(start, until)


async def tablet_of(harness: Harness, tablet: TabletId) -> Tablet:
    """Return a tablet that must be there, and whose record must count what is there."""
    (seen,) = await harness.store.inspect([tablet])
    assert seen.tablet is not None, seen
    assert seen.miscounted == {}, seen
    found = await harness.store.tablet(tablet)
    assert found == seen.tablet, "the quick read and the thorough one agree"
    return seen.tablet


async def state_of(harness: Harness, table: str, request: str = "r1") -> str:
    """Return a request's state."""
    found = await harness.store.request(table, request)
    return "none" if found is None else found.state.value
