"""The changes of user requests and of a tablet's bounds, as values.

Like `common.metadata.changes`, which joins them to `Change`.
"""

from dataclasses import dataclass

from common.metadata.upkeep_changes import Guarded
from common.model.request import KeyRange, Request, RequestState
from common.model.tablet import OperationKind, OperationStep, TabletId

REASON_CHARS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRequest(Guarded):
    """Store a request as ACTIVE. The same id with the same content again succeeds."""

    request: Request
    call: str | None = None
    """Id of the call of a user who submits it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkWaiting(Guarded):
    """Let a request's marker stand in a tablet: no new SYSTEM reservation meanwhile."""

    tablet: TabletId
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Select(Guarded):
    """Hold the files that a request's selector chose; nothing chosen: done here."""

    tablet: TabletId
    request: str
    chosen: tuple[str, ...]
    shown: tuple[str, ...]
    """Every file that the selector was shown: all must still be there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteHere(Guarded):
    """End a selection whose files are all results and for which no job is wanted."""

    tablet: TabletId
    request: str
    files: tuple[str, ...]
    """Exactly the selection for which the planner had no further job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelHere(Guarded):
    """Remove a request's marker, selection and running entries from a tablet.

    The request is CANCELLING, or ACTIVE and all that it wants of the tablet is cancelled: then
    it is done here.
    """

    tablet: TabletId
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishHere(Guarded):
    """Remove the done marker of a request that has ended."""

    tablet: TabletId
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRequest:
    """Move a request on.

    DONE requires its done marker on every tablet of its range, and that no part was cancelled;
    DONE_IN_PART requires the same markers (`CancelHere` leaves one where a part was cancelled)
    and that a part was; CANCELLED and FAILED require that no tablet has a marker, selection
    or running entry of it; CANCELLING requires ACTIVE.
    """

    table: str
    request: str
    state: RequestState
    cause: str = ""
    fails: bool = False
    """For CANCELLING: whether it will end FAILED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRange:
    """List a key range of an ACTIVE request as cancelled; `CancelHere` then does it."""

    table: str
    request: str
    range: KeyRange


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseRequest:
    """Take a request that has ended out of the open ones: no done marker of it is left."""

    table: str
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginOperation(Guarded):
    """Begin a split of one tablet, or a merge of two neighbours (the left one first)."""

    kind: OperationKind
    tablets: tuple[TabletId, ...]
    operation: str
    """Random id."""
    at: bytes | None = None
    """Where a split cuts."""
    reason: str = ""
    """Why, for people; what is longer than `REASON_CHARS_MAX` is cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOperation(Guarded):
    """Take an operation's next step, in all its tablets at once."""

    tablets: tuple[TabletId, ...]
    operation: str
    step: OperationStep


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOperation(Guarded):
    """Carry a split or merge out, in one transaction over all its tablets."""

    tablets: tuple[TabletId, ...]
    operation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonOperation(Guarded):
    """Give a split or merge up, at any step: bounds and files stay as they are.

    Whoever comes first counts, this or `EndOperation`: both succeed when it is over.
    """

    tablets: tuple[TabletId, ...]
    operation: str


RequestChange = (
    SubmitRequest
    | MarkWaiting
    | Select
    | CompleteHere
    | CancelHere
    | FinishHere
    | MoveRequest
    | CancelRange
    | CloseRequest
    | BeginOperation
    | StepOperation
    | EndOperation
    | AbandonOperation
)
