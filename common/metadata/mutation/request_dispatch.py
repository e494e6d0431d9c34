"""Which module answers for which change of a request, or of a tablet's bounds."""

from typing import assert_never

from common.metadata import request_changes as asked
from common.metadata.mutation import bounds, cancels, closing, operations, requests, selections
from common.metadata.mutation.transaction import Transaction

_Here = asked.MarkWaiting | asked.Select | asked.CompleteHere | asked.CancelHere | asked.FinishHere
_Bounds = asked.BeginOperation | asked.StepOperation | asked.EndOperation | asked.AbandonOperation
_Whole = asked.SubmitRequest | asked.MoveRequest | asked.CancelRange | asked.CloseRequest


def request_transaction(change: asked.RequestChange) -> Transaction:
    """Return the first transaction of a change of requests or bounds."""
    if isinstance(change, _Here):
        return _here(change)
    if isinstance(change, _Whole):
        return _whole(change)
    return _of_bounds(change)


def _here(change: _Here) -> Transaction:
    match change:
        case asked.MarkWaiting():
            return selections.mark_waiting(change)
        case asked.Select():
            return selections.select(change)
        case asked.CompleteHere():
            return selections.complete_here(change)
        case asked.CancelHere():
            return cancels.cancel_here(change)
        case asked.FinishHere():
            return cancels.finish_here(change)
        case _:
            assert_never(change)


def _whole(change: _Whole) -> Transaction:
    match change:
        case asked.SubmitRequest():
            return requests.submit_request(change)
        case asked.MoveRequest():
            return requests.move_request(change)
        case asked.CancelRange():
            return requests.cancel_range(change)
        case asked.CloseRequest():
            return closing.close_request(change)
        case _:
            assert_never(change)


def _of_bounds(change: _Bounds) -> Transaction:
    match change:
        case asked.BeginOperation():
            return operations.begin_operation(change)
        case asked.StepOperation():
            return operations.step_operation(change)
        case asked.EndOperation():
            return bounds.end_operation(change)
        case asked.AbandonOperation():
            return operations.abandon_operation(change)
        case _:
            assert_never(change)
