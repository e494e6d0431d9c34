"""Messages between gateway, coordinator and compactor. Values only; Ray carries them.

The coordinator never imports a compactor nor the other way round: they meet here. While
releases are exchanged, a message is read by the release before or after the sender's: a new
field comes last, with a default.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, NamedTuple

from common.model.file import DataFile
from common.model.group import RateGrant
from common.model.job import Job
from common.model.outcome import AttemptEnd, RowCounts
from common.model.request import Request
from common.model.table import Table
from common.model.tablet import Bounds, Reservation
from neve import api
from neve.api.messages import readable_across_releases

NAMESPACE = "neve"
"""Ray namespace of the actors. The Spark driver of a compactor has one of its own."""
PIN_AMOUNT = 0.001
"""Enough of a custom Ray resource to be placed on a node that has it, whatever its amount."""
COORDINATOR_NAME = "neve-coordinator"
GATEWAY_NAME = "neve-gateway"


def compactor_actor_name(compactor: str) -> str:
    """Return the Ray name of a compactor's actor."""
    return f"neve-compactor-{compactor}"


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class TakeRequest:
    """A compactor with a free slot waits for a job of its group."""

    take: str
    """Random id of this call; a repeated call with the same id gets the same answer."""
    compactor: str
    incarnation: str
    """Random id of the compactor's process: a restarted one starts with nothing held."""
    group: str
    node: str = ""
    wait_max_s: float = 30.0
    actions: tuple[str, ...] = ()
    """Of `JobAction`, what the compactor can do besides rewrites and drops; a release before says
    nothing."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideFile:
    """A file of the tablet that is not an input, as far as dropping dead rows needs it."""

    path: str
    key_min: bytes | None
    key_max: bytes | None
    version_min: bytes | None


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A reserved job on its way to a compactor: all that it needs, read at reserve."""

    job: Job
    reservation: Reservation
    table: Table
    bounds: Bounds
    inputs: tuple[DataFile, ...]
    outside: tuple[OutsideFile, ...]
    settled: bytes | None = None
    """Highest version at which tombstones may be dropped; None: none may."""
    purge: bytes | None = None
    request: Request | None = None
    """For kind USER: the request whose transform and output settings are applied."""
    grant_bytes_s: float | None = None
    """What the attempt may move at first, reads and writes together; None: no limit."""
    halvings: int = 0
    """How often attempts at this job ran out of memory: each halves what a task may hold."""
    trace: str = ""
    """Where the compactor's spans belong, as a `traceparent`; empty: the attempt is not traced."""
    analyzed: tuple[DataFile, ...] = ()
    """For an analysis: all files of the tablet. None of them is reserved."""
    tablet_version: int = 0
    """For an analysis: of the tablet whose files these are."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptProgress:
    """How far an attempt is; bytes and rows only grow."""

    attempt: str
    state: str
    """`preparing`, `rewriting`, `verifying` or `committing`."""
    fraction: float = 0.0
    bytes_done: int = 0
    bytes_total: int = 0
    rows_done: int = 0
    since_s: float = 0.0
    volume: str = "default"
    granted_bytes_s: float | None = None
    """The grant that the compactor applies now; None: no limit."""
    moved_bytes: int = 0
    """Read and written so far, as `docs/operations.md` counts them."""
    waited_s: float = 0.0
    """How long tasks have waited for the grant, together."""
    synced_bytes: int = 0
    """Of large writes, made durable in `sync_s`."""
    sync_s: float = 0.0
    quiet_s: float = 0.0
    """How long ago the compactor saw its last progress."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A compactor is alive; these are the attempts that it holds."""

    compactor: str
    incarnation: str
    group: str
    node: str
    slots: int
    attempts: tuple[AttemptProgress, ...] = ()
    draining: bool = False
    engine_pid: int | None = None
    ready: bool = True
    """Whether its engine is up, or has been."""
    start_problem: str = ""
    """Why its engine did not start when it last tried."""
    edition: str = ""
    """What it was started with, as whoever started it has named that."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    """What the coordinator wants of a compactor."""

    coordinator: str
    cancel: tuple[str, ...] = ()
    drain: bool = False
    grants: tuple[RateGrant, ...] = ()
    """Of attempts that shall apply others than their last."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReport:
    """How an attempt ended, told by its compactor after the store has been told."""

    compactor: str
    attempt: str
    end: AttemptEnd
    error_class: str = ""
    cause: str = ""
    counts: RowCounts = field(default_factory=RowCounts)
    outputs: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    moved_bytes: int = 0
    waited_s: float = 0.0
    halvings: int = 0
    trace: str = ""
    """As in the assignment."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A line of the queue listing."""

    job: Job
    place: int
    age_s: float
    effective_priority: float


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAttempt:
    """A line of the jobs listing."""

    job_id: str
    attempt: str
    tablet: str
    table_name: str
    kind: str
    group: str
    compactor: str
    inputs: int
    input_bytes: int
    since_s: float
    progress: AttemptProgress | None = None
    reason: str = ""
    throttled: bool = False
    """Whether it had to wait for its grant lately."""
    quiet_s: float = 0.0
    """How long ago it made progress."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogSample:
    """What was still to be rewritten at a moment."""

    at_s: float
    size_bytes: int
    """In all tables."""
    tables: dict[str, int]
    """Name → bytes, of the tables with most; a table at rest is missing."""


@readable_across_releases
@dataclass(frozen=True, slots=True)
class MetricValue:
    """One value of a metric of `common.telemetry`."""

    metric: str
    value: float
    labels: tuple[str, ...] = ()


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStatus(api.Status):
    """The status that operators see, and figures for metrics and other listings."""

    PICKLED: ClassVar[tuple[str, ...]] = (
        *("coordinator", "started_s", "now_s", "groups", "compactors", "tables", "tablets_known"),
        *("committed", "failed", "released", "conflicts", "quarantined", "turns", "stalled"),
        *("errors", "warnings", "store_warnings", "scopes", "figures", "backlogs", "triggers"),
        *("tables_unscanned", "quarantines"),
    )

    stalled: int = 0
    scopes: tuple[api.Limit, ...] = ()
    figures: tuple[MetricValue, ...] = ()
    """What the parts round the core count: requests, selectors, scans."""
    backlogs: tuple[api.Backlog, ...] = ()
    """The largest first."""


# ---------------------------------------------------------------------------- The story of a tablet


class StoryKind(StrEnum):
    """What an entry of a story is about. Stable words."""

    PLANNED = "planned"
    """Planners have spoken. Code: `queued`, `held`, `deferred` or `nothing`."""
    PLANNING_FAILED = "planning-failed"
    FILE_QUARANTINED = "file-quarantined"
    SHED = "shed"
    """Queued jobs left a full queue for jobs of other tablets."""
    ASSIGNED = "assigned"
    """A job was reserved and handed to a compactor."""
    REFUSED = "refused"
    """The store did not allow a reservation. Code: its refusal code."""
    UNKNOWN = "unknown"
    """The store did not answer a reservation."""
    FOUND = "found"
    """A reservation that only the store knew."""
    FAILED = "failed"
    """A compactor reported a failure. Code: the class of the error."""
    GIVEN_BACK = "given-back"
    """A compactor reported another end than a commit or a failure. Code: which."""
    RELEASING = "releasing"
    """The coordinator asked the store to release an attempt. Code: the end to write."""
    RELEASED = "released"
    """The files of an attempt are free again."""
    COMMITTED = "committed"
    LIFTED = "lifted"
    """An operator lifted the quarantine."""
    STEP = "step"
    """A step of a request, split or merge was taken in the tablet."""
    STEP_REFUSED = "step-refused"
    """The store did not take such a step. Code: its refusal code, or `unknown`."""
    GONE = "gone"
    """The tablet was merged into another one, or its table was dropped."""
    TABLE = "table"
    """A table was seen with another state or other settings. Code: its state."""
    GROUP_PAUSED = "group-paused"
    GROUP_RESUMED = "group-resumed"


class StoryEntry(NamedTuple):
    """One thing that happened to a tablet. A tuple, because very many are kept."""

    at_s: float
    kind: StoryKind
    code: str = ""
    reason: str = ""
    """Why, redacted and cut."""
    job: str = ""
    attempt: str = ""
    compactor: str = ""
    request: str = ""
    """Id of the request, split or merge."""
    step: str = ""
    group: str = ""
    files: tuple[str, ...] = ()
    """Paths; the first few only."""
    number: int = 0
    """Of the jobs of a plan, the inputs of a job, the outputs of a commit, the chosen files."""
    until_s: float | None = None
    """When a pause of the inputs that followed is over."""
    quarantined: bool = False
    """Whether that pause lasts until somebody lifts it."""
    times: int = 1
    """How often in a row the same happened."""
    last_s: float | None = None
    """When it happened last, if it did more than once."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class TabletStory:
    """What a coordinator remembers of a tablet, oldest entry first."""

    tablet: str
    coordinator: str
    started_s: float
    """When the coordinator started: of the time before nothing is known."""
    forgotten: int = 0
    """Older entries of this tablet that were dropped."""
    gap_until_s: float | None = None
    """Entries from before may have been dropped, because memory was needed for others."""
    entries: tuple[StoryEntry, ...] = ()


# ------------------------------------------- Names under which older releases send operators' words


ClassControl = api.ClassControl
ControlPoint = api.ControlPoint
ControlStatus = api.Control
GroupScaling = api.GroupScaling
MaintenanceOperation = api.MaintenanceOperation
ScalingDecision = api.ScalingDecision
TableBacklog = api.Backlog
TableTrigger = api.TableTrigger
TabletTrigger = api.TabletTrigger
TriggerReport = api.Trigger
OwedTablet = api.OwedTablet
TabletRates = api.TabletRates
TableMaintenance = api.TableMaintenance
CompactorStatus = api.Compactor
GroupStatus = api.Group
Explanation = api.Explanation
Quarantine = api.Quarantine
TriggerVerdict = api.TriggerVerdict
MaintenanceState = api.MaintenanceState
