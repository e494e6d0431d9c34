"""Planning: what planners want now, what is still to be rewritten, triggers and maintenance."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from neve.api.messages import MaxLength, ShortText, readable_across_releases


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

    tablet: str = ""
    """Empty in the plan of a planner, which knows one tablet only."""
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


@readable_across_releases
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


@readable_across_releases
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


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """What the planner of a table decided when an operator asked it."""

    table: str
    trigger: str
    triggered_at_s: float
    tablets: tuple[TabletTrigger, ...] = ()
    left: int = 0
    """Tablets whose planner has not answered yet. `neve status` counts them when it has."""


@readable_across_releases
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
    """What could be done in a tablet: what it gains, costs and needs, or why it is not done."""

    tablet: str
    kind: str
    """`merging`, `drops`, `split`, `merge`, `garbage`, `analysis`, `minor-delta`, `major-delta`,
    `flush`."""
    state: str = MaintenanceState.IDLE.value
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


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class TabletRates:
    """How often a tablet is read and written, per second, over about the last minute."""

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
    """Whether the table has further tablets; name one to see its operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """Scans of tablets that other readers than the service have done since they told last."""

    tablets: Annotated[dict[ShortText, int], MaxLength(10_000)]
    """End of a tablet as text → scans."""
