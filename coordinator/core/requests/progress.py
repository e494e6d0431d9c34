"""Progress of a request in a tablet, computed from the state in the store. Pure."""

from collections.abc import Iterable

from common.metadata.request_predicates import cancelled_here
from common.model.request import (
    Request,
    RequestProgressInTablet,
    RequestState,
    TabletProgress,
)
from common.model.tablet import Tablet
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


def tablet_progress(
    request: Request, tablet: Tablet, others: Iterable[Request] = ()
) -> RequestProgressInTablet:
    """Return the progress of a request in one tablet of its range."""
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
    """Return the state of a request in a tablet.

    An ended request has no markers in the tablet, so its own state decides.
    """
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
    first = first_request([other for other in others if meets_tablet(other, tablet.bounds)], tablet)
    if state is TabletProgress.PENDING and first is not None and first.id != request.id:
        return f"request {first.id} has precedence here"
    step = next_step(request, tablet)
    return step.reason if isinstance(step, WaitForTablet) else "its next step is in progress"
