"""What a request does next: in one tablet, and over all of them. Pure.

Everything is decided from what the store shows; `Asked` carries what plug-ins have
said of exactly the tablet given. A step may be refused by the store, where the same
rules hold: then the tablet is looked at again. See `docs/design/0003-user-compactions.md`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from common.metadata.changes import (
    CancelHere,
    CompleteHere,
    FinishHere,
    MarkWaiting,
    MoveRequest,
    SelectFiles,
)
from common.metadata.request_predicates import cancelled_here
from common.model.request import Request, RequestState
from common.model.table import Table, TableState
from common.model.tablet import Selection, Tablet
from common.spi.selector import Chosen
from coordinator.core.request_facts import (
    concerns,
    holds,
    is_done,
    left,
    running,
    shown_files,
)


@dataclass(frozen=True, slots=True)
class Settled:
    """Nothing is left to do here, whatever changes in the tablet."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be done until the tablet changes."""

    reason: str


@dataclass(frozen=True, slots=True)
class AskSelector:
    """The selector has to be asked about the tablet as it was read."""


@dataclass(frozen=True, slots=True)
class AskPlanner:
    """The planner has to be asked for the jobs of the selection as it was read."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The request cannot end well: it is cancelled everywhere, and ends FAILED."""

    cause: str


Step = (
    Settled
    | Wait
    | AskSelector
    | AskPlanner
    | Fail
    | MarkWaiting
    | SelectFiles
    | CompleteHere
    | CancelHere
    | FinishHere
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What plug-ins have said of a tablet. Nothing of it may be used for another reading."""

    chosen: Chosen | None = None
    """The selector's answer."""
    jobs: int | None = None
    """How many further jobs the planner wants for the selection."""
    left: str = ""
    """If it wants none: why."""
    given_up: str = ""
    """Why one of these jobs is not tried any more; empty: all are."""
    problem: str = ""
    """How a plug-in has failed."""


NOTHING = Asked()


def next_step(request: Request, tablet: Tablet, asked: Asked = NOTHING) -> Step:
    """Return what a request does next in a tablet that may hold keys of its range.

    Args:
        request: As it was read; the store checks its state again.
        tablet: As it was read, at one moment.
        asked: What plug-ins have said of this reading; after an `Ask…`, the answer.
    """
    here = (tablet.id, request.id)
    if request.state.ended:
        return (
            FinishHere(tablet=here[0], request=here[1]) if is_done(request, tablet) else Settled()
        )
    if request.state is RequestState.CANCELLING:
        return CancelHere(tablet=here[0], request=here[1]) if left(request, tablet) else Settled()
    if is_done(request, tablet):
        return Settled()
    if tablet.operation is not None:
        return Wait(f"a {tablet.operation.kind.value} of the tablet is under way")
    if cancelled_here(request, tablet.bounds):
        return CancelHere(tablet=here[0], request=here[1])
    if tablet.selection is None:
        return _to_selection(request, tablet, asked)
    if tablet.selection.request != request.id:
        return Wait(f"request {tablet.selection.request} is first here")
    return _through_selection(request, tablet, tablet.selection, asked)


def in_turn(requests: Iterable[Request], tablet: Tablet) -> tuple[Request, ...]:
    """Return the requests that may do something in a tablet now; the others wait.

    Among those that are not done here the oldest is first; one that holds the selection
    goes on in any case, and so does all clearing away.

    Args:
        requests: Of the tablet's table, the oldest first.
        tablet: As it was read.
    """
    here = tuple(request for request in requests if concerns(request, tablet.bounds))
    first = first_here(here, tablet)
    return tuple(
        request
        for request in here
        if request is first or holds(request, tablet) or not _wants(request, tablet)
    )


def first_here(requests: Iterable[Request], tablet: Tablet) -> Request | None:
    """Return the first of these requests that still wants files of a tablet, or None."""
    return next((request for request in requests if _wants(request, tablet)), None)


def why_cancel(request: Request, table: Table | None, now_s: float) -> MoveRequest | None:
    """Return the change that ends an ACTIVE request before its time, or None.

    Args:
        request: Any request.
        table: Its table; None: it has lost its name.
        now_s: The time now, by the store.
    """
    if request.state is not RequestState.ACTIVE:
        return None
    if table is None or table.state is TableState.GOING:
        return cancel(request, "its table is dropped")
    if request.deadline_s is not None and now_s >= request.deadline_s:
        return cancel(request, "its deadline has passed", fails=True)
    return None


def next_state(request: Request, unsettled: int) -> MoveRequest | None:
    """Return the change that moves a request on when its tablets allow it, or None.

    Args:
        request: As it was read before its tablets.
        unsettled: In how many tablets of its range something is left to do.
    """
    if unsettled or request.state.ended:
        return None
    state = request.done_state
    if request.state is RequestState.CANCELLING:
        state = RequestState.FAILED if request.fails else RequestState.CANCELLED
    return MoveRequest(table=request.table, request=request.id, state=state, cause=request.cause)


def cancel(request: Request, cause: str, *, fails: bool = False) -> MoveRequest:
    """Return the change that begins to cancel a request."""
    return MoveRequest(
        table=request.table,
        request=request.id,
        state=RequestState.CANCELLING,
        cause=cause,
        fails=fails,
    )


def _wants(request: Request, tablet: Tablet) -> bool:
    """Return whether a request will have to select, or has selected, files of a tablet."""
    over = is_done(request, tablet) or cancelled_here(request, tablet.bounds)
    return request.state is RequestState.ACTIVE and not over


def _to_selection(request: Request, tablet: Tablet, asked: Asked) -> Step:
    if tablet.running:
        if request.id in tablet.waiting:
            return Wait(f"{_jobs(len(tablet.running))} here; no system job is started meanwhile")
        return MarkWaiting(tablet=tablet.id, request=request.id)
    if asked.problem:
        return Fail(asked.problem)
    shown = shown_files(request, tablet)
    chosen = asked.chosen if shown else Chosen(reason="no file has keys of the range")
    if chosen is None:
        return AskSelector()
    return SelectFiles(
        tablet=tablet.id,
        request=request.id,
        chosen=chosen.files,
        shown=tuple(file.path for file in shown),
    )


def _through_selection(
    request: Request, tablet: Tablet, selection: Selection, asked: Asked
) -> Step:
    if under_way := running(request, tablet):
        return Wait(f"{_jobs(len(under_way))} of it")
    if asked.problem or asked.given_up:
        return Fail(asked.problem or asked.given_up)
    if asked.jobs is None:
        return AskPlanner()
    if asked.jobs:
        return Wait("its next job waits for a compactor")
    if rest := sorted(set(selection.files).difference(selection.results)):
        return Fail(f"tablet {tablet.id}: no planner takes {_named(rest)}: {asked.left}")
    return CompleteHere(tablet=tablet.id, request=request.id, files=selection.files)


def _jobs(count: int) -> str:
    return "one job runs" if count == 1 else f"{count} jobs run"


def _named(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
