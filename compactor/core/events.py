"""What an attempt is told: the past tense of everything that happened to it."""

from dataclasses import dataclass

from common.model.outcome import AttemptEnd, RefusalCode
from compactor.core.progress import RewriteProgress, RewriteResult


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """The compactor holds the assignment and has a free slot for it."""


@dataclass(frozen=True, slots=True)
class RewriteProgressed:
    """The engine told how far it is."""

    progress: RewriteProgress


@dataclass(frozen=True, slots=True)
class RewriteDone:
    """The engine has written and verified the outputs."""

    result: RewriteResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteFailed:
    """The engine gave up; the inputs are as they were."""

    error_class: str
    cause: str
    end: AttemptEnd = AttemptEnd.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested:
    """The coordinator wants the attempt back, or the compactor stops."""

    cause: str
    end: AttemptEnd = AttemptEnd.CANCELLED


@dataclass(frozen=True, slots=True)
class GrantReceived:
    """The coordinator lets the attempt move so many bytes/s from now on; None: no limit."""

    bytes_s: float | None


@dataclass(frozen=True, slots=True)
class CommitApplied:
    """The store has replaced the inputs by the outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRefused:
    """The store does not allow the commit.

    `sent`: an `EXEC` of it went out before without a known answer.
    """

    code: RefusalCode
    reason: str
    sent: bool = False


@dataclass(frozen=True, slots=True)
class CommitUnknown:
    """The store went silent: made, not made, or still on its way."""

    reason: str


@dataclass(frozen=True, slots=True)
class CommitConflicted:
    """Nothing was written: something required changed on every try of the store."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRead:
    """The store was asked how the attempt ended. `end` None: it has no mark of it."""

    end: AttemptEnd | None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class OutcomeReadFailed:
    """The store could not be asked."""

    reason: str


@dataclass(frozen=True, slots=True)
class OutputsDeleted:
    """The attempt's own outputs are gone, or left to the collector."""


@dataclass(frozen=True, slots=True)
class ReportDelivered:
    """The coordinator knows how the attempt ended."""


RewriteEvent = (
    AttemptStarted
    | RewriteProgressed
    | RewriteDone
    | RewriteFailed
    | CancelRequested
    | GrantReceived
)
CommitEvent = CommitApplied | CommitRefused | CommitUnknown | CommitConflicted
OutcomeEvent = OutcomeRead | OutcomeReadFailed
EndEvent = OutputsDeleted | ReportDelivered
Event = RewriteEvent | CommitEvent | OutcomeEvent | EndEvent
