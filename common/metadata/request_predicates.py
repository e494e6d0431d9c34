"""What a request may do in a tablet, and as a whole. Pure, like `common.metadata.predicates`.

The coordinator evaluates them before a try, and the conditional write again, where they bind.
"""

from collections.abc import Collection
from dataclasses import replace

from common.metadata.predicates import some_names
from common.model.outcome import Refusal, RefusalCode
from common.model.request import KeyRange, Request, RequestState, first_key
from common.model.tablet import PLUS_INFINITY, Bounds, Selection, Tablet

CANCELLED_RANGES_MAX = 100
"""Largest number of separately cancelled ranges of a request."""


def may_hold_range(keys: KeyRange, bounds: Bounds) -> bool:
    """Return whether a tablet may hold keys of a range.

    A tablet of a partitioned table is a single point: its partition values.
    """
    if bounds.partition is not None:
        return keys.holds(bounds.end)
    return keys.meets(bounds.start, bounds.end)


def cancelled_here(request: Request, bounds: Bounds) -> bool:
    """Return whether all keys that a request covers in a tablet were cancelled.

    A tablet that overlaps a cancelled range only in part, for example after a merge, continues.
    The transform then skips the cancelled keys.
    """
    reached = max(first_key(bounds) or b"", request.range.start or b"")
    whole = bounds.partition is None and bounds.end == PLUS_INFINITY
    ends = (None if whole else bounds.end + b"\x00", request.range.until)
    until = min((end for end in ends if end is not None), default=None)
    for keys in sorted(request.cancelled_ranges, key=lambda each: each.start or b""):
        if (keys.start or b"") > reached:
            return False
        if keys.until is None:
            return True
        reached = max(reached, keys.until)
        if until is not None and reached >= until:
            return True
    return False


def may_wait(tablet: Tablet, request: Request) -> Refusal | None:
    """Return why a request may not wait in a tablet, or None if it may.

    No request waits while a selection exists: its marker would block system jobs, for files that
    are not held, until the other request is done.

    Args:
        tablet: As read after `WATCH`; its files do not matter.
        request: As read after `WATCH`.
    """
    subject = f"tablet {tablet.id}: request {request.id}"
    if request.state is not RequestState.ACTIVE:
        return Refusal(
            RefusalCode.REQUEST, f"{subject} is {request.state.value}, it must be active"
        )
    if not may_hold_range(request.range, tablet.bounds):
        return Refusal(RefusalCode.RANGE, f"{subject} covers other keys")
    if cancelled_here(request, tablet.bounds):
        return Refusal(RefusalCode.RANGE, f"{subject} is cancelled here")
    if tablet.operation is not None:
        kind = tablet.operation.kind.value
        return Refusal(RefusalCode.OPERATION, f"tablet {tablet.id}: a {kind} is under way")
    if tablet.selection is not None:
        other = tablet.selection.request
        return Refusal(RefusalCode.SELECTED, f"tablet {tablet.id}: request {other} has a selection")
    if request.id in tablet.done:
        return Refusal(RefusalCode.DONE, f"{subject} is done here")
    return None


def may_select(
    tablet: Tablet, request: Request, *, shown: Collection[str], chosen: Collection[str]
) -> Refusal | None:
    """Return why a request may not select, or None if it may.

    Args:
        tablet: As read after `WATCH`, with all files.
        request: As read after `WATCH`.
        shown: Paths of every file that the selector received.
        chosen: Paths that it chose.
    """
    if refusal := may_wait(tablet, request):
        return refusal
    if tablet.running:
        running = some_names(sorted(tablet.running))
        return Refusal(RefusalCode.RUNNING, f"tablet {tablet.id}: attempts are running: {running}")
    if missing := sorted(path for path in shown if path not in tablet.files):
        return Refusal(
            RefusalCode.GONE, f"tablet {tablet.id}: files are gone: {some_names(missing)}"
        )
    if strange := sorted(set(chosen).difference(shown)):
        return Refusal(
            RefusalCode.FILES,
            f"tablet {tablet.id}: chosen, but not given to the selector: {some_names(strange)}",
        )
    return None


def may_complete(tablet: Tablet, request: str, files: Collection[str]) -> Refusal | None:
    """Return why a selection may not be ended as done, or None if it may.

    Args:
        tablet: As read after `WATCH`, with its selection and running attempts.
        request: Request of the selection.
        files: The selection for which the planner had no further job.
    """
    selection = tablet.selection
    if selection is None or selection.request != request:
        return Refusal(
            RefusalCode.SELECTED, f"tablet {tablet.id}: request {request} has no selection here"
        )
    subject = f"tablet {tablet.id}: selection of request {request}"
    if set(selection.files) != set(files):
        return Refusal(RefusalCode.SELECTED, f"{subject} has changed, ask the planner again")
    if running := running_of(tablet, request):
        return Refusal(
            RefusalCode.RUNNING, f"{subject} has attempts running: {some_names(running)}"
        )
    if rest := files_not_rewritten(selection):
        return Refusal(
            RefusalCode.RESULTS,
            f"{subject} has files that no job has rewritten: {some_names(rest)}",
        )
    return None


def may_cancel(tablet: Tablet, request: Request) -> Refusal | None:
    """Return why a request may not be removed from a tablet, or None if it may.

    A separately cancelled range leaves a done marker, and no split or merge may end while such a
    marker exists. While an operation is running, the request has nothing to remove here.
    """
    if request.state is RequestState.CANCELLING:
        return None
    if request.state is not RequestState.ACTIVE or not cancelled_here(request, tablet.bounds):
        return Refusal(
            RefusalCode.REQUEST,
            f"tablet {tablet.id}: request {request.id} is {request.state.value}, "
            "it must be cancelling or have a cancelled range here",
        )
    if tablet.operation is not None:
        kind = tablet.operation.kind.value
        return Refusal(RefusalCode.OPERATION, f"tablet {tablet.id}: a {kind} is under way")
    return None


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


def may_cancel_range(request: Request, keys: KeyRange) -> Refusal | None:
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


def running_of(tablet: Tablet, request: str) -> list[str]:
    """Return a request's running attempts in a tablet."""
    return sorted(name for name, entry in tablet.running.items() if entry.request == request)


def files_not_rewritten(selection: Selection) -> list[str]:
    """Return the files of a selection that no job of its request has written."""
    return sorted(set(selection.files).difference(selection.results))
