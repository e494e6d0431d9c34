"""The events that the coordinator's core handles.

The shell creates events from answers of the store, calls of compactors, plans of the scanner and
the passing of time. `CoordinatorState.handle` is their only reader; it dispatches them by family,
in the order of this file. Every event may arrive late, twice or never.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from common.model.group import LimitScope
from common.model.job import Job, TabletPlan
from common.model.outcome import AttemptEnd, RefusalCode
from common.model.table import Table
from common.model.tablet import Record, Reservation, StoredChunks, TabletId
from common.wire import Assignment, AttemptReport, Heartbeat, TakeRequest, VolumeUse


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSeen:
    """A table exists, with these settings."""

    table: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class TableGone:
    """A table has been dropped."""

    table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletPlanned:
    """A tablet was planned; the plan replaces the queued jobs of the tablet."""

    tablet: TabletId
    plan: TabletPlan
    record: Record
    """Record of the version that was planned."""
    settings_version: int
    due_at_s: float | None = None
    """When to plan again even if nothing has changed; None means never."""
    adds: tuple[tuple[float, int], ...] = ()
    """Recent adds of users: store time and row count. Earlier events may have listed them."""
    chunks: StoredChunks | None = None
    """Stored states of chunks of time, as they were read; None: the table has none."""
    files: Collection[str] = ()
    """Paths of all files of the tablet, if only a part of it was planned."""
    numbers: Mapping[str, Collection[int]] = field(default_factory=dict)
    """Input of a job → the chunks in which the file is, if `chunks` is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningFailed:
    """A planner or dispatcher failed on this tablet."""

    tablet: TabletId
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletGone:
    """A tablet no longer exists: the store has no bounds for it."""

    tablet: TabletId


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFatal:
    """A file has crashed the process that read it, and must not be read again."""

    tablet: TabletId
    path: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeAsked:
    """A compactor waits for a job."""

    request: TakeRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeLate:
    """A take has timed out: it may get the job that is being reserved for it, but no other."""

    take: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeLeft:
    """The caller of a take has left: a reservation made for it is released."""

    take: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReserved:
    """The store has reserved the inputs of a job for an attempt."""

    take: str
    assignment: Assignment
    """The job, its reservation, and the details that a compactor needs to run it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRefused:
    """The store refused the reservation; no file is reserved."""

    take: str
    job: Job
    code: RefusalCode
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReserveUnknown:
    """The outcome of a reservation is unknown; `attempt` may hold it."""

    take: str
    job: Job
    attempt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactorHeard:
    """A compactor has sent a heartbeat."""

    beat: Heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactorGone:
    """The death of a compactor's actor is confirmed, or the compactor has signed off."""

    compactor: str
    cause: str
    incarnation: str = ""
    """The process that is gone; empty means the living process of this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReported:
    """A compactor reports how its attempt ended."""

    report: AttemptReport


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSettled:
    """The store shows that an attempt has ended (change feed, or an answer to `Release`)."""

    tablet: TabletId
    attempt: str
    end: AttemptEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationsFound:
    """A scan has read the reservations of a tablet; the list is complete."""

    tablet: TabletId
    reservations: tuple[Reservation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCancelAsked:
    """An operator or a request asks for the end of an attempt, or it has lost an input."""

    attempt: str
    cause: str
    lost_input: bool = False
    """Whether an input of a lake table was replaced by others, so its files may be planned again
    at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJobCancelled:
    """An operator removes a job from its queue; its files are not planned again for a while."""

    job: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJobPaused:
    """An operator pauses a job that waits in a queue."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJobResumed:
    """An operator ends the pause of a job."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainAsked:
    """A compactor shall finish its attempts and take no further jobs."""

    compactor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPaused:
    """The group is paused: its jobs are not assigned."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResumed:
    """The group is resumed: its jobs are assigned again."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineLifted:
    """An operator ends the quarantine of a tablet, or of every tablet of a table."""

    table: str
    tablet: TabletId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsSeen:
    """The store has these limits of scopes; the mapping is complete."""

    limits: Mapping[LimitScope, int]
    """Scope → bytes/s; 0 means no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowUsesSeen:
    """The store has what an earlier coordinator has started in windows with a budget."""

    packed: bytes
    """Its stored form, which `windows.unpacked_usages` can read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadsReported:
    """Readers have scanned tablets. The event alone changes no decision."""

    scans: Mapping[TabletId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyReported:
    """Read latency of a table, an input of the controller."""

    table: str
    latency_s: float
    """Average latency."""
    reads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForegroundReported:
    """Bytes that reads and appends of a gateway move, by volume; the list is complete."""

    gateway: str
    uses: tuple[VolumeUse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAnswered:
    """The store has answered a step of a request, split or merge. It affects no decision."""

    tablets: tuple[TabletId, ...]
    of: str
    """Id of the request, split or merge."""
    step: str
    chosen: int = 0
    """Number of files that a request has chosen."""
    code: str = ""
    """Why the store refused the step; empty if it was applied."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """Time has passed."""

    scaling: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Group → its desired and its starting compactors, for groups that the service scales."""


PlanEvent = TableSeen | TableGone | TabletPlanned | PlanningFailed | TabletGone | FileFatal
TakeEvent = TakeAsked | TakeLate | TakeLeft | JobReserved | JobRefused | JobReserveUnknown
CompactorEvent = CompactorHeard | CompactorGone | DrainAsked
AttemptEvent = AttemptReported | AttemptSettled | ReservationsFound | AttemptCancelAsked
QueuedJobEvent = QueuedJobCancelled | QueuedJobPaused | QueuedJobResumed
OperatorEvent = (
    GroupPaused
    | GroupResumed
    | QuarantineLifted
    | LimitsSeen
    | WindowUsesSeen
    | ReadsReported
    | LatencyReported
    | ForegroundReported
)

DecidingEvent = (
    PlanEvent | TakeEvent | CompactorEvent | AttemptEvent | QueuedJobEvent | OperatorEvent | Ticked
)

Event = DecidingEvent | StepAnswered
