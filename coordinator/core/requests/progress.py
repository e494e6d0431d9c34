"""How far a request has come: computed from the store, and from what compactors tell. Pure."""

from collections.abc import Iterable, Mapping

from common.metadata.request_predicates import cancelled_here
from common.model.request import (
    Request,
    RequestProgress,
    RequestProgressInTablet,
    RequestState,
    TabletProgress,
)
from common.model.tablet import Tablet
from common.wire import AttemptProgress
from coordinator.core.requests.next_step import (
    WaitForTablet,
    attempts_of,
    first_request,
    meets_tablet,
    next_step,
    shown_files,
)

_ENDS = {
    RequestState.DONE: TabletProgress.DONE,
    RequestState.DONE_IN_PART: TabletProgress.DONE,
    RequestState.CANCELLED: TabletProgress.CANCELLED,
    RequestState.FAILED: TabletProgress.CANCELLED,
}


def request_progress(
    request: Request,
    tablets: Iterable[Tablet],
    *,
    others: Iterable[Request] = (),
    attempts: Mapping[str, AttemptProgress] | None = None,
    now_s: float = 0.0,
) -> RequestProgress:
    """Return how far a request has come.

    Args:
        request: As it was read.
        tablets: Of its range, read afterwards; others are passed over.
        others: Open requests of the table, the oldest first, to tell whose turn it is.
        attempts: What compactors tell of attempts; None: nothing is known.
        now_s: The time now.
    """
    known = attempts or {}
    others = tuple(others)
    here = tuple(
        tablet_progress(request, tablet, others)
        for tablet in tablets
        if meets_tablet(request, tablet.bounds)
    )
    reported = [known[attempt] for each in here for attempt in each.running if attempt in known]
    bytes_left = max(
        0, sum(each.bytes_left for each in here) - sum(each.bytes_done for each in reported)
    )
    rate = sum(each.bytes_done / max(now_s - each.since_s, 1.0) for each in reported)
    eta_s = 0.0 if request.state.ended else (bytes_left / rate if rate else None)
    return RequestProgress(
        request=request, tablets=here, bytes_left=bytes_left, bytes_per_s=rate, eta_s=eta_s
    )


def tablet_progress(
    request: Request, tablet: Tablet, others: Iterable[Request] = ()
) -> RequestProgressInTablet:
    """Return how far a request has come in one tablet of its range."""
    state = _state(request, tablet)
    selection = tablet.selection
    files, results, completed = 0, 0, 0
    left = 0
    if state is TabletProgress.SELECTED and selection is not None:
        files, results = len(selection.files), len(selection.results)
        completed = selection.completed_jobs
        rest = set(selection.files).difference(selection.results)
        left = sum(tablet.files[path].size_bytes for path in rest if path in tablet.files)
    elif state in {TabletProgress.PENDING, TabletProgress.WAITING}:
        left = sum(file.size_bytes for file in shown_files(request, tablet))
    return RequestProgressInTablet(
        tablet=tablet.id,
        state=state,
        reason=_reason(request, tablet, state, tuple(others)),
        files=files,
        results=results,
        bytes_left=left,
        completed_jobs=completed,
        running=attempts_of(request, tablet),
    )


def _state(request: Request, tablet: Tablet) -> TabletProgress:
    """Return the state here; a request that has ended has left nothing to read it from."""
    if cancelled_here(request, tablet.bounds):
        return TabletProgress.CANCELLED
    if request.state in _ENDS:
        return _ENDS[request.state]
    if request.id in tablet.done:
        return TabletProgress.DONE
    if tablet.selection is not None and tablet.selection.request == request.id:
        return TabletProgress.SELECTED
    return TabletProgress.WAITING if request.id in tablet.waiting else TabletProgress.PENDING


def _reason(
    request: Request, tablet: Tablet, state: TabletProgress, others: tuple[Request, ...]
) -> str:
    match state:
        case TabletProgress.DONE:
            return "done here"
        case TabletProgress.CANCELLED:
            return request.cause or "cancelled here"
        case _:
            pass
    if request.state is RequestState.CANCELLING:
        return f"is being cancelled: {request.cause}"
    first = first_request([each for each in others if meets_tablet(each, tablet.bounds)], tablet)
    if state is TabletProgress.PENDING and first is not None and first.id != request.id:
        return f"request {first.id} is first here"
    step = next_step(request, tablet)
    return step.reason if isinstance(step, WaitForTablet) else "its next step is under way"
