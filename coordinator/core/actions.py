"""What the coordinator's core wants done; the shell performs it.

The answer of an action comes back as an event; the shell remembers no action.
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
    """Reserve the job's inputs under a fresh attempt id, for the compactor of this take.

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
    """What the compactor is given: the attempt alone says whether two answers are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerNothing:
    """Answer the take with no job."""

    take: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Release an attempt's reservation. Answer: AttemptSettled, whichever way it ended.

    While the store does not answer, neither does this action, and the core asks again.
    """

    tablet: TabletId
    attempt: str
    end: AttemptEnd
    cause: str
    for_silence: bool
    """Only the leading coordinator may; the store checks."""
    halvings: int = 0
    """How often the next attempt at the job halves its memory; 0: not at all."""


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
class Tell:
    """Log an event with fields; the core itself never logs."""

    event: str
    fields: tuple[tuple[str, str | int | float], ...] = ()


Action = Reserve | Assign | AnswerNothing | Release | Replan | AnswerBeat | WriteAnalysis | Tell
"""`WriteAnalysis` is itself the change of the store: it lets scans pass a tablet at rest."""
