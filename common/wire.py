"""Messages between gateway, coordinator and compactor. Values only; Ray carries them.

The coordinator never imports a compactor nor the other way round: they meet here. While
releases are exchanged, a message is read by the release before or after the sender's: a new
field comes last, with a default.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, NamedTuple, Protocol

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
"""Amount of a custom Ray resource that only binds an actor to a node with the resource."""
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
    """Random id of the compactor's process: a restarted compactor holds nothing."""
    group: str
    node: str = ""
    wait_max_s: float = 30.0
    actions: tuple[str, ...] = ()
    """Supported values of `JobAction` in addition to rewrites and drops, `KEEPS_DELETED` and
    `KNOWS_BUFFERS`; earlier releases send none."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideFile:
    """A file of the tablet that is not an input, reduced to what dropping dead rows needs."""

    path: str
    key_min: bytes | None
    key_max: bytes | None
    version_min: bytes | None


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A reserved job for a compactor, with everything that it needs, as read at the reservation."""

    job: Job
    reservation: Reservation
    table: Table
    bounds: Bounds
    inputs: tuple[DataFile, ...]
    outside: tuple[OutsideFile, ...]
    settled: bytes | None = None
    """Highest version of tombstones that may be dropped; None: none."""
    purge: bytes | None = None
    request: Request | None = None
    """For kind USER: the request whose transform and output settings are applied."""
    grant_bytes_s: float | None = None
    """Initial limit on the bytes per second of reads and writes together; None: no limit."""
    halvings: int = 0
    """How often attempts at this job ran out of memory; each halves the memory of a task."""
    trace: str = ""
    """Trace context of the compactor's spans, as `traceparent`; empty: not traced."""
    analyzed: tuple[DataFile, ...] = ()
    """For an analysis: all files of the tablet, not reserved."""
    tablet_version: int = 0
    """For an analysis: version of the tablet with these files."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptProgress:
    """Progress of an attempt; bytes and rows only grow."""

    attempt: str
    state: str
    """`preparing`, `rewriting`, `verifying` or `committing`."""
    fraction: float = 0.0
    """Part of the attempt that is over, with verification."""
    bytes_done: int = 0
    """Bytes of the inputs that were read so far, by row groups."""
    bytes_total: int = 0
    rows_done: int = 0
    since_s: float = 0.0
    volume: str = "default"
    granted_bytes_s: float | None = None
    """The limit that the compactor applies now; None: no limit."""
    moved_bytes: int = 0
    """Bytes read and written so far, counted as in `docs/operations.md`."""
    waited_s: float = 0.0
    """Total time that tasks have waited for the grant."""
    synced_bytes: int = 0
    """Bytes of large writes that were made durable in `sync_s`."""
    sync_s: float = 0.0
    quiet_s: float = 0.0
    """Time since its last progress."""
    written_bytes: int = 0
    """Bytes of `moved_bytes` that were written to outputs; earlier releases send none."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeUse:
    """What reads and appends of a gateway move on a volume; totals only grow."""

    volume: str
    moved_bytes: int = 0
    waited_s: float = 0.0
    granted_bytes_s: float | None = None
    """The limit that the gateway applies now; None: no limit."""


@readable_across_releases
@dataclass(frozen=True, slots=True)
class MetricValue:
    """One value of a metric of `common.telemetry`."""

    metric: str
    value: float
    labels: tuple[str, ...] = ()


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A sign of life of a compactor, with the attempts that it holds."""

    compactor: str
    incarnation: str
    group: str
    node: str
    slots: int
    attempts: tuple[AttemptProgress, ...] = ()
    draining: bool = False
    engine_pid: int | None = None
    ready: bool = True
    """Whether its engine has started at least once."""
    start_problem: str = ""
    """Why the last start of its engine failed."""
    edition: str = ""
    """Identifies the settings and the release that it was started with."""
    task_memory: str = ""
    """Memory of a task, and why it is that much; earlier releases send none."""
    metrics: tuple[MetricValue, ...] = ()
    """Its metrics, without the labels `group` and `compactor`. A histogram has a value for each
    bucket with the label `le`, the observations up to this bound, and their sum with `sum`."""
    actions: tuple[str, ...] = ()
    """As in `TakeRequest`; earlier releases send none."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    """The coordinator's orders for a compactor."""

    coordinator: str
    cancel: tuple[str, ...] = ()
    drain: bool = False
    grants: tuple[RateGrant, ...] = ()
    """New limits, for attempts whose limit has changed."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReport:
    """The outcome of an attempt, reported by its compactor after the store has it."""

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
    """An entry of the queue listing."""

    job: Job
    place: int
    """Position in the order of starts of its group, from 1; 0: the job is paused."""
    age_s: float
    effective_priority: float
    paused: bool = False
    """Whether an operator has paused the job."""
    after: tuple[str, ...] = ()
    """Ids of jobs of its plan that must be committed first. It is queued then."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAttempt:
    """An entry of the jobs listing."""

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
    """Whether it recently had to wait for its grant."""
    quiet_s: float = 0.0
    """Time since its last progress."""
    files: tuple[str, ...] = ()
    """Paths of its inputs."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesQuery:
    """Which recorded values to return."""

    span_s: float
    points: int
    """Maximum number of steps; neighbours are combined."""
    measures: tuple[str, ...] = ()
    """Empty: all."""
    groups: bool = True
    tables: tuple[str, ...] = ()
    """Names of tables; empty: those with the largest backlog."""
    count: int = 0
    """Maximum number of tables without names."""
    visible: tuple[str, ...] | None = None
    """Names of recorded tables that the caller may see; None: all, and what is not of a table."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLine:
    """The values of a table or group, or a sum."""

    kind: str
    """Field of `api.Series` that gets the line."""
    name: str
    measures: tuple[str, ...]
    values: bytes
    """Little-endian 32-bit floats: all steps of the first measure, of the second one, and so on;
    NaN: nothing was recorded."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSeries:
    """Recorded values; see `api.Series`."""

    start_s: float
    step_s: float
    count: int
    lines: tuple[RecordedLine, ...]


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStatus(api.Status):
    """The status that operators see, and figures for metrics and other listings."""

    PICKLED: ClassVar[tuple[str, ...]] = (
        *("coordinator", "started_s", "now_s", "groups", "compactors", "tables", "tablets_known"),
        *("committed", "failed", "released", "conflicts", "quarantined", "turns", "stalled"),
        *("errors", "warnings", "store_warnings", "scopes", "figures", "backlogs", "triggers"),
        *("tables_unscanned", "quarantines", "queued_tables", "durability", "overlapping"),
        *("buffers_refused", "buffered", "windows"),
    )

    scopes: tuple[api.Limit, ...] = ()
    figures: tuple[MetricValue, ...] = ()
    """Counts of the parts around the core: requests, selectors, scans."""
    backlogs: tuple[api.Backlog, ...] = ()
    """Largest first."""
    overlapping: tuple[tuple[str, int], ...] = ()
    """Table id, and most overlapping files of a tablet whose merges wait; the tables with most."""
    buffers_refused: tuple[tuple[str, str], ...] = (
        ("", "the coordinator is of an older release, which knows no buffered rows"),
    )
    """Id of a table whose rows may not be buffered for now, or empty for all tables, and why.
    Earlier releases send none."""


# ------------------------------------------------------------------------------------ Notifications


OTHERS = "(others)"
"""Subject of a condition that sums up those of further tables or groups."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A state of a table, a group or the service that operators are notified of."""

    kind: str
    """One of `CONDITIONS` of the settings."""
    subject: str
    """Name of a table or group; empty: the service."""
    count: int = 1
    """Number of tablets, or bytes of a backlog."""
    text: str = ""
    """An example, or the reason; empty: the kind says it all."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEnds:
    """The requests of a table that have ended in one state since the coordinator started."""

    table: str
    state: str
    count: int
    request: str
    """Id of the last one."""
    cause: str = ""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Notices:
    """What a coordinator knows that operators may be notified of."""

    coordinator: str
    conditions: tuple[Condition, ...] = ()
    request_ends: tuple[RequestEnds, ...] = ()


def bounded_conditions(conditions: Iterable[Condition], most: int) -> list[Condition]:
    """Return the conditions with the largest counts of each kind; one more sums up the others.

    Args:
        conditions: Conditions of any kinds.
        most: Maximum number of conditions of one kind, without the sum.
    """
    kinds: dict[str, list[Condition]] = {}
    for condition in conditions:
        kinds.setdefault(condition.kind, []).append(condition)
    bounded: list[Condition] = []
    for kind, of_kind in kinds.items():
        of_kind.sort(key=lambda condition: (-condition.count, condition.subject))
        bounded += of_kind[:most]
        if len(of_kind) > most:
            rest = sum(condition.count for condition in of_kind[most:])
            bounded.append(Condition(kind=kind, subject=OTHERS, count=rest))
    return bounded


# ---------------------------------------------------------------------------- The story of a tablet


class StoryKind(StrEnum):
    """The kind of a story's entry, a stable word."""

    PLANNED = "planned"
    """Planners have decided. Code: `queued`, `held`, `deferred` or `nothing`."""
    PLANNING_FAILED = "planning-failed"
    FILE_QUARANTINED = "file-quarantined"
    SHED = "shed"
    """Queued jobs left a full queue for jobs of other tablets."""
    ASSIGNED = "assigned"
    """A job was reserved and handed to a compactor."""
    REFUSED = "refused"
    """The store refused a reservation. Code: its refusal code."""
    UNKNOWN = "unknown"
    """The store did not answer a reservation."""
    FOUND = "found"
    """A reservation that existed only in the store."""
    FAILED = "failed"
    """A compactor reported a failure. Code: the class of the error."""
    GIVEN_BACK = "given-back"
    """A compactor reported an outcome other than commit or failure. Code: the outcome."""
    RELEASING = "releasing"
    """The coordinator asked the store to release an attempt. Code: the outcome to write."""
    RELEASED = "released"
    """The files of an attempt are free again."""
    COMMITTED = "committed"
    LIFTED = "lifted"
    """An operator lifted the quarantine."""
    STEP = "step"
    """A step of a request, split or merge was taken in the tablet."""
    STEP_REFUSED = "step-refused"
    """The store refused such a step. Code: its refusal code, or `unknown`."""
    GONE = "gone"
    """The tablet was merged into another one, or its table was dropped."""
    TABLE = "table"
    """A table was seen with another state or other settings. Code: its state."""
    GROUP_PAUSED = "group-paused"
    GROUP_RESUMED = "group-resumed"


class StoryEntry(NamedTuple):
    """An event in the history of a tablet. A tuple, because very many are kept."""

    at_s: float
    kind: StoryKind
    code: str = ""
    reason: str = ""
    """Cause, redacted and truncated."""
    job: str = ""
    attempt: str = ""
    compactor: str = ""
    request: str = ""
    """Id of the request, split or merge."""
    step: str = ""
    group: str = ""
    files: tuple[str, ...] = ()
    """The first few paths."""
    number: int = 0
    """Number of a plan's jobs, a job's inputs, a commit's outputs, or of chosen files."""
    until_s: float | None = None
    """End of the pause of the inputs that followed."""
    quarantined: bool = False
    """Whether that pause lasts until an operator lifts it."""
    times: int = 1
    """Number of consecutive repetitions of the event."""
    last_s: float | None = None
    """Time of the last repetition, if there is one."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class TabletStory:
    """A coordinator's history of a tablet, oldest entry first."""

    tablet: str
    coordinator: str
    started_s: float
    """Start of the coordinator; earlier events are unknown."""
    forgotten: int = 0
    """Number of older entries of this tablet that were dropped."""
    gap_until_s: float | None = None
    """Earlier entries may have been dropped to free memory for other tablets."""
    entries: tuple[StoryEntry, ...] = ()


# ---------------------------------------------------------------------- The calls of a compactor


class CompactorCalls(Protocol):
    """Calls that a compactor makes; `coordinator.actor.CoordinatorActor` answers them.

    Every method raises `UnavailableError` when the coordinator does not answer.
    """

    async def take(self, request: TakeRequest) -> Assignment | None:
        """Wait for a job; None if none was available in time."""
        ...

    async def withdraw(self, take: str) -> None:
        """End a call of `take`, which then returns soon, possibly with a job."""
        ...

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        """Report that the compactor is alive, and which attempts it holds."""
        ...

    async def report(self, report: AttemptReport) -> None:
        """Report how an attempt ended."""
        ...

    async def leave(self, compactor: str, incarnation: str, cause: str) -> None:
        """Report that the compactor stops and holds no attempts any more."""
        ...


# ------------------------------------------- Names under which older releases send operators' words


ClassControl = api.ClassControl
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
