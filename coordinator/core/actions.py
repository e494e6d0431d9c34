"""What the coordinator's core wants done: imperatives that the shell performs.

The answer of an action comes back as an event; no action is remembered by the shell.
"""

from dataclasses import dataclass

from common.model.group import RateGrant
from common.model.job import Job
from common.model.outcome import AttemptEnd
from common.model.tablet import Analysis, TabletId


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
    """Answer the take with the assignment of this attempt; the same again if asked again."""

    take: str
    attempt: str
    grant_bytes_s: float | None = None
    """What the attempt begins with; None: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerNothing:
    """Answer the take with no job."""

    take: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Give an attempt's reservation up. Answer: AttemptSettled, however it had ended.

    While the store is silent there is no answer, and the core asks again.
    """

    tablet: TabletId
    attempt: str
    end: AttemptEnd
    cause: str
    for_silence: bool
    """Only the leading coordinator may; the store checks."""
    halvings: int = 0
    """What the next attempt at the job is told of memory; 0: nothing."""


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
class NoteAnalysis:
    """Write what was said of a tablet into its record, so that scans may pass it by."""

    tablet: TabletId
    analysis: Analysis
    version: int
    settings_version: int
    due_at_s: float | None = None
    """When to look again though nothing has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """Log an event with fields; the core itself never logs."""

    event: str
    fields: tuple[tuple[str, str | int | float], ...] = ()


Action = Reserve | Assign | AnswerNothing | Release | Replan | AnswerBeat | NoteAnalysis | Tell
