"""Messages between gateway, coordinator and compactor. Values only; Ray carries them.

The coordinator never imports a compactor nor the other way round: they meet here. While
releases are exchanged, a message is read by the release before or after the sender's: a new
field comes last, with a default.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from common.model.file import DataFile
from common.model.group import LimitStatus, RateGrant
from common.model.job import Job
from common.model.outcome import AttemptEnd, RowCounts
from common.model.request import Request
from common.model.table import Table
from common.model.tablet import Bounds, Reservation
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
class CompactorStatus:
    """A line of the compactor listing."""

    compactor: str
    group: str
    node: str
    slots: int
    busy: int
    heard_ago_s: float
    draining: bool
    failures: int = 0
    backing_off_s: float = 0.0
    ready: bool = True
    """Whether it takes jobs; until then its engine starts."""
    start_problem: str = ""
    """Why its engine did not start when it last tried."""
    edition: str = ""
    """What it was started with, as whoever started it has named that."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingDecision:
    """The number of compactors that a group was meant to have, since when, and why."""

    at_s: float
    desired: int
    reason: str
    """A sentence with the figures that decided."""
    started: tuple[str, ...] = ()
    """Compactors that were started."""
    drained: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()
    """Compactors that did not come up."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupScaling:
    """How many compactors a group has, is meant to have, and why."""

    least: int
    most: int
    set_to: int | None
    """What an operator has set; None: nobody has."""
    desired: int
    starting: int
    draining: int
    reason: str
    blocked: str = ""
    """Why it cannot grow; empty: it can."""
    missing: str = ""
    """What its compactors need and no node has; empty: nothing, or it is not known."""
    unobtainable: bool = False
    """Whether nothing that Ray knows of can give what is missing."""
    starts_failed: int = 0
    """Compactors that did not come up since the coordinator was started."""
    decisions: tuple[ScalingDecision, ...] = ()
    """The last ones that changed something, newest last."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """Counters of one compaction group."""

    group: str
    queued: int
    queued_bytes: int
    """Memory of the queue, against its bound."""
    queued_cost_bytes: int
    running: int
    compactors: int
    waiting_takes: int
    accepted: int
    rejected: int
    evicted: int
    oldest_age_s: float
    paused: bool = False
    longest_s: float = 0.0
    """How long the attempt that began first has run."""
    quiet_s: float = 0.0
    """How long ago the attempt that has stood still longest made progress."""
    queued_input_bytes: int = 0
    running_left_bytes: int = 0
    """What running attempts have not rewritten yet, as far as they have said."""
    committed_bytes: int = 0
    """What committed attempts have read since the coordinator was started."""
    deferred: int = 0
    """Tablets whose jobs a full queue dropped, to be planned again."""
    scaling: GroupScaling | None = None
    """None: nobody scales the group."""
    full_s: float = 0.0
    """How long the queue has dropped jobs without getting half empty; 0: it has room."""
    overloaded: bool = False
    """Whether it has been full for longer than `coordinator.overload_after_s`."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class TableBacklog:
    """What is still to be rewritten in a table."""

    table: str
    """Its name; empty: all tables that have no line of their own."""
    strategy: str
    """The tracker that measured it, or `planned jobs`."""
    size_bytes: int
    tablets: int
    """Tablets that are not at rest."""
    tables: int = 1
    problem: str = ""
    """Why the planner's own tracker did not measure it, or one of its tablets."""
    groups: dict[str, int] = field(default_factory=dict)
    """Compaction group whose compactors do the work → bytes."""
    requested_bytes: int = 0
    """Inputs of the queued jobs of requests; no part of `size_bytes`."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class OwedTablet:
    """What is still to be rewritten in a tablet."""

    tablet: str
    strategy: str
    """The tracker that measured it, or `planned jobs`."""
    size_bytes: int
    group: str = ""
    """Compaction group whose compactors do the work."""
    problem: str = ""
    """Why the planner's own tracker did not measure it."""


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


class TriggerVerdict(StrEnum):
    """What became of a trigger in a tablet."""

    ACCEPTED = "accepted"
    """The planner wanted jobs, and they are queued."""
    HELD = "held"
    """Jobs are wanted or may be, and cannot be queued now: they follow by themselves."""
    REFUSED = "refused"
    """The planner wanted nothing."""
    FAILED = "failed"
    """The planner failed. It is asked again."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class TableTrigger:
    """The last trigger of a table, and what became of it: counts of its tablets."""

    table: str
    trigger: str
    triggered_at_s: float
    accepted: int = 0
    held: int = 0
    refused: int = 0
    failed: int = 0
    refusal: str = ""
    """Why the planner refused last, or why it was not asked at all."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class TabletTrigger:
    """What the planner decided for a tablet when a trigger asked."""

    tablet: str
    verdict: str
    """One of `TriggerVerdict`."""
    jobs: int = 0
    """System jobs that the planner wanted."""
    files: int = 0
    """Their inputs."""
    reason: str = ""
    """Of the best job, or why there is none."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerReport:
    """What a planner decided when an operator asked it."""

    table: str
    trigger: str
    triggered_at_s: float
    tablets: tuple[TabletTrigger, ...] = ()
    left: int = 0
    """Tablets whose planner has not answered yet; `neve status` counts them when it has."""


class MaintenanceState(StrEnum):
    """Whether a maintenance operation of a tablet can run."""

    RUNNABLE = "runnable"
    RUNNING = "running"
    """It runs, and nothing more of its kind can begin."""
    WAITING = "waiting"
    """There is something to do, and it may not begin now."""
    IDLE = "idle"
    """There is nothing to do."""
    NOT_APPLICABLE = "not-applicable"
    """This service has no operation of this kind."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceOperation:
    """A maintenance operation of a tablet: what it gains, costs and needs, or why it is not run."""

    tablet: str
    kind: str
    state: str = MaintenanceState.IDLE.value
    why: str = ""
    """Why it runs, or why it does not."""
    jobs: int = 0
    """Jobs that its planner wants now; the figures are those of the best one."""
    running: int = 0
    files: int = 0
    gain: float = 0.0
    gain_unit: str = ""
    cost_bytes: int = 0
    """Bytes that it reads and writes, at most."""
    cpu_s: float | None = None
    """Seconds of a slot, at the measured rate of its group; None: nothing has been measured."""
    memory_bytes: int | None = None
    """Memory that its tasks may have together; None: it is not known."""
    freed_bytes: int = 0
    """Space that it frees for sure."""
    score: float = 0.0
    """Gain per 64 MiB read and written."""
    workload: float = 0.0
    """What the tablet's reads and writes add to the score, from 0 to 1."""
    adjusted: float = 0.0
    """The score with workload and table priority counted in."""
    rank: int | None = None
    """Place by Kudu's rule among those that can run."""
    priority: int | None = None
    """Of its best job in the queue."""
    group: str = ""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class TabletRates:
    """How often a tablet is read and written, per second."""

    tablet: str
    scans_s: float = 0.0
    rows_s: float = 0.0


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class TableMaintenance:
    """The maintenance operations of the tablets of a table."""

    table: str
    operations: tuple[MaintenanceOperation, ...] = ()
    rates: tuple[TabletRates, ...] = ()
    more: bool = False
    """Whether the table has further tablets."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class ClassControl:
    """A class of work: the shares that it is granted, and what it was handed."""

    name: str
    """One of `common.spi.controller.ShareClass`."""
    shares: float
    granted: float
    """Part of all shares, 0 to 1: its part of bytes while every class has jobs."""
    used: float
    """Part of the bytes that were handed out in the last minute, 0 to 1."""
    used_bytes: int
    """In the last minute."""
    total_bytes: int
    """Since the coordinator was started."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPoint:
    """A moment of the history of control."""

    at_s: float
    backlog_bytes: float
    shares: dict[str, float]
    used: dict[str, float]
    """Class → part of the bytes of the minute before."""
    bytes_s: float | None
    slots: int | None
    busy_slots: int
    latency_s: float | None


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class ControlStatus:
    """What the controller reads, what it has decided and why, and what became of it."""

    controller: str
    now_s: float
    decided_at_s: float | None
    """None: nothing has been decided yet."""
    period_s: float
    classes: tuple[ClassControl, ...]
    bytes_s: float | None
    """All rewrites together may move so much per second; None: no limit."""
    slots: int | None
    """Slots of system jobs and statistics in all; None: as many as there are."""
    reasons: tuple[str, ...]
    table_weights: dict[str, float]
    """Table → factor of its weight, where it is not 1."""
    backlog_bytes: float
    memory_bytes: int
    arrival_bytes_s: float | None
    rewrite_bytes_s: float | None
    slot_bytes_s: float | None
    living_slots: int
    busy_slots: int
    slots_max: int
    latencies_s: dict[str, float]
    """Table → how long its readers wait on average."""
    latency_limit_s: float | None
    """None: readers are not listened to."""
    failure: str = ""
    """Why the controller's last answer does not count."""
    failures: int = 0
    history: tuple[ControlPoint, ...] = ()
    """Oldest first; an hour at most."""
    deepest_files: int = 0
    """Files that overlap in the tablet that has the most of those with work. 0: no work waits."""
    garbage_fraction: float = 0.0
    """Garbage of all stored bytes, 0 to 1, as far as it is known."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """A tablet with files that no job reads until an operator lifts it."""

    table: str
    """Its name."""
    tablet: str
    reason: str


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStatus:
    """The coordinator's own view, for status pages and metrics."""

    coordinator: str
    started_s: float
    now_s: float
    groups: tuple[GroupStatus, ...]
    compactors: tuple[CompactorStatus, ...]
    tables: int
    tablets_known: int
    committed: int
    failed: int
    released: int
    conflicts: int
    quarantined: int
    turns: int
    stalled: int = 0
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """What keeps jobs from running, a sentence each."""
    store_warnings: tuple[str, ...] = ()
    """What is wrong with the store itself, a sentence each."""
    scopes: tuple[LimitStatus, ...] = ()
    figures: tuple[MetricValue, ...] = ()
    """What the parts round the core count: requests, selectors, scans."""
    backlogs: tuple[TableBacklog, ...] = ()
    """The largest first."""
    triggers: tuple[TableTrigger, ...] = ()
    """Tables whose planners were asked by a trigger last, newest first; a bounded number."""
    tables_unscanned: int = 0
    """Tables whose first scan since the start has not ended."""
    quarantines: tuple[Quarantine, ...] = ()
    """A bounded number."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a tablet is as it is: one sentence per rule that applies, most telling first."""

    tablet: str
    table_name: str
    sentences: tuple[str, ...]
    left: dict[str, str] = field(default_factory=dict)
    """Path → why no job takes it."""
    queued: tuple[str, ...] = ()
    running: tuple[str, ...] = ()


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
