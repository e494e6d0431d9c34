"""Wire models of the work on tables: jobs, plans, compactors, groups, limits, the service.

Same conventions as `neve.api.tables`; nothing of the project is imported.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any

from neve.api.tables import MaxLength, ShortText


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """A job that would be planned now or, with an id, that waits in a queue."""

    tablet: str
    files: tuple[str, ...]
    input_bytes: int
    group: str
    priority: int
    kind: str
    reason: str
    id: str | None = None
    table: str = ""
    place: int | None = None
    age_s: float | None = None
    cost_bytes: int = 0
    """Bytes that the job reads and writes, if its outputs are as large as its inputs."""
    action: str = "rewrite"
    """`rewrite`, `drop` (all rows have expired), `move` (files get other tags) or `analyze`."""
    outputs: int = 1
    """Number of outputs at most."""
    cuts_at_s: tuple[float, ...] = ()
    """Times at which a new output begins, ascending, in seconds since 1970."""
    output_rows_max: int = 0
    """Rows of one output at most; 0: no limit."""
    tags: dict[str, str] = field(default_factory=dict)
    """Tags of each output or, if the job moves its files, of each of these."""
    after: tuple[int, ...] = ()
    """Of a plan: places in `jobs`, from 0, of the jobs that must be committed first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """What a planner that goes by time makes of an interval of a tablet."""

    tablet: str
    start_s: float
    end_s: float
    """The interval ends before it. Seconds since 1970."""
    state: str
    """`running`, `skipped`, `policy-excluded`, `pending` or `complete`."""
    reason: str
    files: int
    size_bytes: int
    """Of these files, each whole."""
    table: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Jobs that would be planned now. `left`: path → why no job takes the file.

    Without planned and running jobs there is nothing to compact.
    """

    jobs: tuple[PlannedJob, ...] = ()
    left: dict[str, str] = field(default_factory=dict)
    running: int = 0
    """Number of running jobs. Their outputs may need further jobs."""
    intervals: tuple[Interval, ...] = ()
    """In order, if the table's planner goes by intervals of time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A running job."""

    id: str
    attempt: str
    table: str
    tablet: str
    kind: str
    group: str
    compactor: str
    inputs: int
    input_bytes: int
    since_s: float
    state: str = ""
    fraction: float = 0.0
    reason: str = ""
    throttled: bool = False
    """Whether the job had to wait for its grant lately."""
    granted_bytes_s: float | None = None
    """Grant of the job; None: there is no limit."""
    moved_bytes: int = 0
    """Bytes read and written so far."""
    waited_s: float = 0.0
    quiet_s: float = 0.0
    """Seconds since the job last made progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A finished attempt of the history."""

    attempt: str
    job: str
    tablet: str
    kind: str
    end: str
    group: str
    compactor: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    bytes_in: int
    bytes_out: int
    rows_in: int
    rows_out: int
    started_s: float
    ended_s: float
    reason: str = ""
    cause: str = ""
    superseded: int = 0
    """Rows that a newer one of their key replaced."""
    tombstones_dropped: int = 0
    expired_dropped: int = 0
    """Rows that had expired, and are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBytes:
    """What is live in a tablet, as far as it has been counted."""

    tablet: str
    files: int
    size_bytes: int
    measured_files: int
    """Files of which somebody has counted."""
    measured_bytes: int
    """Bytes of those files."""
    live_bytes: int
    """Live bytes of those files."""
    since_s: float | None = None
    """When the oldest of these counts was made."""
    waiting: bool = False
    """Whether an analysis was asked for that is not done."""
    read_bytes: int | None = None
    """What the last analysis has read; None: the history knows of none."""
    elapsed_s: float | None = None
    """How long it took."""
    rows: int | None = None
    """Rows that it has looked at."""
    updated_share: float | None = None
    """Of a table with a key: share of these rows that newer ones of their key hide; None: the last
    analysis is of a release before, or of other bounds."""
    compared_rows: int = 0
    """Updates whose columns were compared with the row that they hide (`analysis_columns`)."""
    changed_shares: dict[str, float] = field(default_factory=dict)
    """Column → share of those updates that change it."""
    merged_share: float | None = None
    """Share of the rows of deltas whose older row is in the tablet."""
    key_quantiles: tuple[str, ...] = ()
    """Keys that cut the tablet into parts of about equal bytes, in the form of tablets' ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a tablet is as it is. `left`: path → why no job takes the file."""

    tablet: str
    table: str
    sentences: tuple[str, ...]
    left: dict[str, str] = field(default_factory=dict)
    queued: tuple[str, ...] = ()
    running: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryEntry:
    """One thing that happened to a tablet. Texts are empty where they do not apply."""

    at_s: float
    kind: str
    """A stable word, such as `planned`, `assigned`, `failed`, `committed`."""
    sentence: str
    """What happened, who was concerned and why, for people."""
    code: str = ""
    """A stable word: the class of an error, a refusal code, or how a plan came out."""
    reason: str = ""
    """Without secrets, and cut."""
    job: str = ""
    attempt: str = ""
    compactor: str = ""
    request: str = ""
    """Id of the request, split or merge."""
    group: str = ""
    files: tuple[str, ...] = ()
    """Paths; the first few only."""
    times: int = 1
    """How often in a row the same happened."""
    last_s: float | None = None
    """When it happened last, if it did more than once."""
    until_s: float | None = None
    """When a pause of its files is over that followed."""
    quarantined: bool = False
    """Whether that pause lasts until an operator lifts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What has happened to a tablet since the coordinator started, oldest entry first."""

    tablet: str
    table: str
    coordinator: str
    entries: tuple[StoryEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredWatermark:
    """A lowered watermark: the tablet takes rows of older versions again."""

    tablet: str
    before: str | None
    """Watermark before the change; None: there was none."""
    after: str | None
    may_rise: str
    """Which deleted rows may be visible again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceOperation:
    """What could be done in a tablet: what it gains, costs and needs, or why it is not done."""

    tablet: str
    kind: str
    """`merging`, `drops`, `split`, `merge`, `garbage`, `analysis`, `minor-delta`, `major-delta`,
    `flush`."""
    state: str = ""
    """`runnable`; `running`: nothing more of its kind can begin; `waiting`: it may not begin now;
    `idle`: there is nothing to do; `not-applicable`: the service has none of this kind."""
    why: str = ""
    """Why it runs, or why it does not."""
    jobs: int = 0
    """Jobs that the planner wants now; the figures are those of the best one."""
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
    """Place by the rule of Apache Kudu among those that can run."""
    priority: int | None = None
    """Of its best job in the queue."""
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletRates:
    """How often a tablet is read and written, per second, over about the last minute."""

    tablet: str
    scans_s: float = 0.0
    rows_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMaintenance:
    """The maintenance operations of the tablets of a table."""

    table: str
    operations: tuple[MaintenanceOperation, ...] = ()
    rates: tuple[TabletRates, ...] = ()
    more: bool = False
    """Whether the table has further tablets; name one to see its operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """Scans of tablets that other readers than the service have done since they told last."""

    tablets: Annotated[dict[ShortText, int], MaxLength(10_000)]
    """End of a tablet as text → scans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletTrigger:
    """What the planner decided for a tablet when a trigger asked."""

    tablet: str
    verdict: str
    """`accepted`: jobs are queued; `held`: they cannot be queued now, and follow by themselves;
    `refused`: the planner wants nothing; `failed`: it is asked again."""
    jobs: int = 0
    """System jobs that the planner wanted."""
    files: int = 0
    """Their inputs."""
    reason: str = ""
    """Of the best job, or why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """What the planner of a table decided when an operator asked it."""

    table: str
    trigger: str
    triggered_at_s: float
    tablets: tuple[TabletTrigger, ...] = ()
    left: int = 0
    """Tablets whose planner has not answered yet. `neve status` counts them when it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTrigger:
    """The last trigger of a table, with its tablets by what the planner decided."""

    table: str
    trigger: str
    triggered_at_s: float
    accepted: int = 0
    held: int = 0
    refused: int = 0
    failed: int = 0
    refusal: str = ""
    """Why the planner refused last, or why it was not asked at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compactor:
    """A compactor as the coordinator sees it."""

    compactor: str
    group: str
    node: str
    slots: int
    busy: int
    heard_ago_s: float
    draining: bool = False
    failures: int = 0
    backing_off_s: float = 0.0
    ready: bool = True
    """Whether the compactor takes jobs. Before that, its Spark application starts."""
    start_problem: str = ""
    """Why its Spark application did not start at the last try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingDecision:
    """A change in the number of compactors of a group."""

    at_s: float
    desired: int
    """Number of compactors that the group was meant to have."""
    reason: str
    started: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()
    """Compactors that did not come up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupScaling:
    """How many compactors a group has and is meant to have, and why."""

    least: int
    most: int
    set_to: int | None
    """Number that an operator has set; None: the service decides."""
    desired: int
    starting: int
    draining: int
    reason: str
    blocked: str = ""
    """Why the group cannot grow; empty: it can."""
    missing: str = ""
    """What compactors of the group need and no node has; empty: nothing, or it is not known."""
    unobtainable: bool = False
    """Whether no node type that Ray knows of can give what is missing."""
    starts_failed: int = 0
    """Compactors that did not come up since the coordinator started."""
    decisions: tuple[ScalingDecision, ...] = ()
    """The last changes, newest last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleWish:
    """The number of compactors that a group shall have."""

    compactors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A compaction group: one queue and the compactors that serve it."""

    group: str
    queued: int
    queued_bytes: int
    queued_cost_bytes: int
    running: int
    compactors: int
    waiting_takes: int
    accepted: int
    rejected: int
    evicted: int
    oldest_age_s: float
    paused: bool = False
    queued_input_bytes: int = 0
    """Size of the files that the queued jobs read."""
    deferred: int = 0
    """Tablets that are planned again later because the queue was full."""
    full_s: float = 0.0
    """How long the queue has dropped jobs without getting half empty; 0: it has room."""
    overloaded: bool = False
    scaling: GroupScaling | None = None
    """None: the service does not start compactors of this group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What is still to be rewritten in a table until its planner wants nothing."""

    table: str
    """Name of the table; empty: all tables without a line of their own."""
    strategy: str
    """How it is measured: a tracker, or `planned jobs`, which are the inputs of wanted jobs."""
    size_bytes: int
    tablets: int
    """Tablets that are not at rest."""
    tables: int = 1
    problem: str = ""
    """Why the planner's own tracker did not measure it, or one of its tablets; empty: it did, or
    there is none."""
    groups: dict[str, int] = field(default_factory=dict)
    """Compaction group whose compactors do the work → bytes."""
    requested_bytes: int = 0
    """Inputs of the queued jobs of requests. Not a part of `size_bytes`, which planners want."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwedTablet:
    """What is still to be rewritten in a tablet until its planner wants nothing."""

    tablet: str
    """Id of the tablet: the end of its range."""
    strategy: str
    """How it is measured: a tracker, or `planned jobs`, which are the inputs of wanted jobs."""
    size_bytes: int
    group: str = ""
    """Compaction group whose compactors do the work."""
    problem: str = ""
    """Why the planner's own tracker did not measure it; empty: it did, or there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogPoint:
    """What was still to be rewritten at a moment."""

    at_s: float
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting of the running service; secrets are hidden."""

    name: str
    """Full name of the setting, such as `compactor.slots`."""
    value: Any
    """Sizes in bytes, durations in seconds."""
    text: str
    """The value as text."""
    source: str
    """Where it comes from: `default`, a file, an environment variable, a flag, `this stack`."""
    change: str
    """How to change it: `restart`, or the command that changes the running service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """A tablet with files that no job reads until an operator lifts the quarantine."""

    table: str
    tablet: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The service as a whole."""

    coordinator: str
    started_s: float
    now_s: float
    groups: tuple[Group, ...]
    compactors: tuple[Compactor, ...]
    tables: int
    tablets_known: int
    committed: int
    failed: int
    released: int
    conflicts: int
    quarantined: int
    turns: int = 0
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """What keeps jobs from running, one sentence each, such as a group without compactors."""
    store_warnings: tuple[str, ...] = ()
    """What is wrong with the store, one sentence each, such as little memory or eviction."""
    triggers: tuple[TableTrigger, ...] = ()
    """The tables whose planners were asked by a trigger last, newest first, at most 100."""
    tables_unscanned: int = 0
    """Tables whose first scan since the start of the coordinator has not ended. Until then,
    `tablets_known` and the queue are incomplete."""
    quarantines: tuple[Quarantine, ...] = ()
    """Of `quarantined` tablets at most 100."""


# ----------------------------------------------------------------------- Limits on bytes per second


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitWish:
    """A limit to set."""

    limit: int | ShortText
    """Bytes per second, or a size such as `50MB`; 0: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Limit of a compaction group or volume, and the bytes that its jobs read and write."""

    kind: str
    """`group` or `volume`; `control`: all rewrites, by the controller."""
    name: str
    limit_bytes_s: int | None
    """Limit in bytes per second; None: no limit."""
    is_default: bool = True
    """Whether the limit comes from the settings of the service."""
    rate_bytes_s: int | None = None
    """The limit, or less while the storage is slow."""
    granted_bytes_s: float | None = None
    """Sum of the grants of the jobs; None: a job has no limit."""
    attempts: int = 0
    throttled: int = 0
    """Number of jobs that had to wait lately."""
    moved_bytes: int = 0
    """Bytes read and written since the coordinator was started."""
    waited_s: float = 0.0
    """Seconds that tasks have waited since the coordinator was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """A call that may have changed something, refused ones too."""

    id: str
    at_s: float
    """When it came. Seconds since the epoch."""
    caller: str
    """Name of the token, `oidc:<subject>`, `gateway.token`, or `-` if nobody was recognised."""
    action: str
    """Method and route."""
    table: str = ""
    outcome: str = ""
    """`done`, `refused`, `failed`, or `begun`: the gateway ended before the call did."""
    status: int | None = None
    """HTTP status of the answer."""
    error: str = ""
    call: str = ""
    """Call id."""
    address: str = ""
    """Where the connection came from."""
    details: str = ""
    """What else the path and the query said."""
