"""Actions that the core asks the shell to perform.

The answer to an action arrives as an event; the shell keeps no actions.
"""

from dataclasses import dataclass, field

from common.metadata.changes import WriteAnalysis
from common.model.group import RateGrant
from common.model.job import Job
from common.model.outcome import AttemptEnd
from common.model.tablet import TabletId
from common.wire import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Reserve a job's inputs under a new attempt id, for the compactor of this take.

    Answers: JobReserved, JobRefused or JobReserveUnknown.
    """

    take: str
    job: Job
    compactor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Answer the take with the assignment of this attempt."""

    take: str
    attempt: str
    assignment: Assignment = field(compare=False)
    """Details for the compactor. Two answers are equal if their attempts are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerNothing:
    """Answer the take with no job."""

    take: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Release an attempt's reservation. Answer: AttemptSettled, however the attempt ended.

    If the store does not answer, no event follows, and the core repeats the action.
    """

    tablet: TabletId
    attempt: str
    end: AttemptEnd
    cause: str
    for_silence: bool
    """Whether to require that this coordinator leads; the store checks it."""
    halvings: int = 0
    """How often the next attempt at the job halves its memory; 0 means not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replan:
    """Read the tablet and ask its planners again."""

    tablet: TabletId


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerBeat:
    """Answer a heartbeat."""

    compactor: str
    cancel: tuple[str, ...]
    drain: bool
    grants: tuple[RateGrant, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteLog:
    """Log an event with fields; the core itself never logs."""

    event: str
    fields: tuple[tuple[str, str | int | float], ...] = ()


Action = Reserve | Assign | AnswerNothing | Release | Replan | AnswerBeat | WriteAnalysis | WriteLog
"""`WriteAnalysis` is the store change itself. It lets scans skip an idle tablet."""
