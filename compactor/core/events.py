"""Events of an attempt, in the past tense."""

from dataclasses import dataclass

from common.model.outcome import AttemptEnd, RefusalCode
from compactor.core.progress import RewriteProgress, RewriteResult


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """The compactor holds the assignment and has a free slot for it."""


@dataclass(frozen=True, slots=True)
class RewriteProgressed:
    """The engine reported progress."""

    progress: RewriteProgress


@dataclass(frozen=True, slots=True)
class RewriteDone:
    """The engine has written and verified the outputs."""

    result: RewriteResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteFailed:
    """The engine has failed; the inputs are unchanged."""

    error_class: str
    cause: str
    end: AttemptEnd = AttemptEnd.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested:
    """The coordinator takes the attempt back, or the compactor stops."""

    cause: str
    end: AttemptEnd = AttemptEnd.CANCELLED


@dataclass(frozen=True, slots=True)
class GrantReceived:
    """The coordinator set the attempt's limit in bytes/s; None: no limit."""

    bytes_s: float | None


@dataclass(frozen=True, slots=True)
class CommitApplied:
    """The store has replaced the inputs by the outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRefused:
    """The store refused the commit.

    `sent`: an `EXEC` of it was sent before without a known answer.
    """

    code: RefusalCode
    reason: str
    sent: bool = False


@dataclass(frozen=True, slots=True)
class CommitUnknown:
    """The store did not answer: the commit may have been made, or may still be on its way."""

    reason: str


@dataclass(frozen=True, slots=True)
class CommitConflicted:
    """Nothing was written: a requirement failed on every try of the store."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRead:
    """The store returned how the attempt ended. `end` None: it has no mark."""

    end: AttemptEnd | None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class OutcomeReadFailed:
    """The store did not answer."""

    reason: str


@dataclass(frozen=True, slots=True)
class OutputsDeleted:
    """The attempt's own outputs are gone, or left to the collector."""


@dataclass(frozen=True, slots=True)
class ReportDelivered:
    """The coordinator has accepted the report."""


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
