"""Requests of an attempt. All but two are answered by exactly one event."""

from dataclasses import dataclass

from common.metadata.changes import CommitAttempt, RetagFiles
from common.wire import AttemptReport


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Let the engine rewrite the inputs. Answer: RewriteDone or RewriteFailed."""


@dataclass(frozen=True, slots=True)
class CancelRewrite:
    """Let the engine end the rewrite soon. No answer: that to `Rewrite` follows in any case."""


@dataclass(frozen=True, slots=True)
class ApplyGrant:
    """Let the engine apply another grant. No answer."""

    bytes_s: float | None


@dataclass(frozen=True, slots=True)
class SendCommit:
    """Ask the store to commit. Answer: one of the four Commit… events."""

    commit: CommitAttempt | RetagFiles
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ReadOutcome:
    """Ask the store how the attempt ended. Answer: OutcomeRead or OutcomeUnread."""

    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DeleteOutputs:
    """Delete files of this attempt that no commit can have named. Answer: OutputsDeleted."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SendReport:
    """Report to the coordinator, however long it takes. Answer: ReportDelivered."""

    report: AttemptReport


Action = (
    Rewrite | CancelRewrite | ApplyGrant | SendCommit | ReadOutcome | DeleteOutputs | SendReport
)
