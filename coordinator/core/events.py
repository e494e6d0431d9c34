"""What has happened, as the coordinator's core learns it.

The shell makes these from answers of the store, calls of compactors, plans of the
scanner and the passing of time. `CoordinatorState.handle` is their only reader; it
sorts them by family, in the order of this page. Every event may come late, twice or
never.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from common.model.group import LimitScope
from common.model.job import Job, TabletPlan
from common.model.outcome import AttemptEnd, RefusalCode
from common.model.table import Table
from common.model.tablet import Record, Reservation, TabletId
from common.wire import Assignment, AttemptReport, Heartbeat, TakeRequest


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
    """A tablet was planned; the plan replaces whatever is queued for it."""

    tablet: TabletId
    plan: TabletPlan
    record: Record
    """As read with the files that the plan is made from."""
    settings_version: int
    due_at_s: float | None = None
    """When to look again though nothing has changed; None: never."""
    adds: tuple[tuple[float, int], ...] = ()
    """Lately, by the store's time: how many rows users added. May have been said before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningFailed:
    """A planner or dispatcher misbehaved on this tablet."""

    tablet: TabletId
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletGone:
    """A tablet has no bounds any more."""

    tablet: TabletId


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFatal:
    """A file has ended the process that looked into it; nobody should do that again."""

    tablet: TabletId
    path: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeAsked:
    """A compactor waits for a job."""

    request: TakeRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeLate:
    """A take's time is up: it may still get the job that is being reserved for it, and no other."""

    take: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeLeft:
    """Nobody waits for a take any more: what is reserved for it goes back."""

    take: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReserved:
    """The store has let an attempt hold the job's inputs."""

    take: str
    assignment: Assignment
    """The job, its reservation, and what a compactor needs to run it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRefused:
    """The store did not allow the reservation; nothing is held."""

    take: str
    job: Job
    code: RefusalCode
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReserveUnknown:
    """The store went silent at the reservation; it may be held by `attempt`."""

    take: str
    job: Job
    attempt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactorHeard:
    """A compactor has sent a heartbeat."""

    beat: Heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactorGone:
    """A compactor's actor is dead for sure, or it has said goodbye."""

    compactor: str
    cause: str
    incarnation: str = ""
    """The process that is gone; empty: whichever lives under this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReported:
    """A compactor says how its attempt ended."""

    report: AttemptReport


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSettled:
    """The store shows that an attempt is over (change feed, or an answer to `Release`)."""

    tablet: TabletId
    attempt: str
    end: AttemptEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationsFound:
    """A scan has read these running entries of a tablet: all that it has."""

    tablet: TabletId
    reservations: tuple[Reservation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCancelAsked:
    """An operator or request wants an attempt ended."""

    attempt: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainAsked:
    """A compactor shall finish what it holds and take nothing more."""

    compactor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPaused:
    """No job of the group is handed out."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResumed:
    """Jobs of the group are handed out again."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineLifted:
    """The operator wants a quarantined tablet, or every one of its table, tried again."""

    table: str
    tablet: TabletId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsSeen:
    """These limits of scopes are in the store: all that there are."""

    limits: Mapping[LimitScope, int]
    """Scope → bytes/s; 0: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadsReported:
    """Readers have scanned tablets. It changes no decision by itself."""

    scans: Mapping[TabletId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyReported:
    """Readers of a table have waited. The controller hears of it."""

    table: str
    latency_s: float
    """On average."""
    reads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAnswered:
    """The store has answered a step of a request, split or merge. It changes no decision."""

    tablets: tuple[TabletId, ...]
    of: str
    """Id of the request, split or merge."""
    step: str
    chosen: int = 0
    """Files that a request has chosen."""
    code: str = ""
    """Why it was not taken; empty: it was."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """Time has passed; nothing else happened."""


PlanEvent = TableSeen | TableGone | TabletPlanned | PlanningFailed | TabletGone | FileFatal
TakeEvent = TakeAsked | TakeLate | TakeLeft | JobReserved | JobRefused | JobReserveUnknown
CompactorEvent = CompactorHeard | CompactorGone | DrainAsked
AttemptEvent = AttemptReported | AttemptSettled | ReservationsFound | AttemptCancelAsked
OperatorEvent = (
    GroupPaused | GroupResumed | QuarantineLifted | LimitsSeen | ReadsReported | LatencyReported
)

DecidingEvent = PlanEvent | TakeEvent | CompactorEvent | AttemptEvent | OperatorEvent | Ticked

Event = DecidingEvent | StepAnswered
