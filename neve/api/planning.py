"""Planning: plans, backlog, triggers and maintenance."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from neve.api.messages import STRICT, MaxLength, Names, ShortText, readable_across_releases


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Results of a table's recent jobs, relative to their estimates. A factor of 1: as estimated.

    Each factor begins at 1, and each job moves it by an eighth of its distance to the job's own
    result. Results below a quarter and above four times the estimate count as a quarter and four
    times. Based on the last 32 committed jobs of the service; jobs of requests do not count.
    """

    jobs: int = 0
    """Number of jobs that it is based on; 0: nothing is corrected."""
    written: float = 1.0
    """Bytes written per byte read."""
    files: float = 1.0
    """Files written per file that the planner expected."""
    gain: float = 1.0
    """Decrease of the read amplification per expected decrease. The read amplification is the
    largest number of a job's files that may hold the same key."""
    bytes_s: float = 0.0
    """Bytes read per second of a job, including its waits; 0: not measured."""

    @property
    def sentence(self) -> str:
        """Human-readable description."""
        if not self.jobs:
            return "no results of recent jobs are known: estimates are not corrected"
        jobs = "job" if self.jobs == 1 else f"{self.jobs} jobs"
        kib_s = self.bytes_s / 1024
        rate = f"{kib_s:.1f} KiB/s" if kib_s < 1024 else f"{kib_s / 1024:.1f} MiB/s"
        return (
            f"results of the last {jobs} correct estimates by: bytes written {self.written:.2f}, "
            f"files written {self.files:.2f}, read amplification gained {self.gain:.2f}; a job "
            f"reads {rate}"
        )


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The maintenance windows of a table or group, and what has started in the current one."""

    kind: str
    """`table` or `group`."""
    name: str
    windows: str
    """The setting, such as `0 22 * * 1-5 for 8h in Europe/Berlin`."""
    is_open: bool
    """Whether system jobs may start: a window is open, and its budget is not used up."""
    opens_s: float
    """When the next window opens; now, if one is open."""
    opens_text: str = ""
    """The same in the time zone of the window; empty if one is open."""
    closes_s: float | None = None
    """When the open window ends; None: it is closed."""
    used_bytes: int = 0
    """Input of the system jobs that started in the current window."""
    bytes_max: int = 0
    """Budget; 0: no limit."""
    used_cost_s: float = 0.0
    """Slot-seconds of these jobs; a running job counts as long as is expected of it."""
    cost_max_s: float = 0.0
    """Budget; 0: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """A job that would be planned now or, with an id, a job that waits in a queue."""

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
    """Bytes that the job reads and is expected to write."""
    action: str = "rewrite"
    """`rewrite`, `drop` (all rows have expired), `move` (files get other tags) or `analyze`."""
    outputs: int = 1
    """Maximum number of outputs."""
    cuts_at_s: tuple[float, ...] = ()
    """Times at which a new output begins, ascending, in seconds since 1970."""
    output_rows_max: int = 0
    """Maximum number of rows of one output; 0: no limit."""
    tags: dict[str, str] = field(default_factory=dict)
    """Tags of each output or, if the job moves its files, of each moved file."""
    after: tuple[int, ...] = ()
    """In a plan: indexes in `jobs`, from 0, of the jobs that must be committed first."""
    paused: bool = False
    """In a queue: whether an operator has paused the job. A paused job has no place."""
    expected_bytes: int = 0
    """Bytes that the job is expected to write; 0 unless it is a rewrite."""
    expected_s: float = 0.0
    """Time that the job is expected to take; 0: unknown."""
    predecessors: tuple[str, ...] = ()
    """In a queue: ids of the jobs that must be committed before this one gets a place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Decision of a time-based planner on a time interval of a tablet."""

    tablet: str = ""
    """Empty in the plan of a planner, which sees only one tablet."""
    start_s: float
    end_s: float
    """Exclusive end of the interval. Seconds since 1970."""
    state: str
    """`running`, `skipped`, `policy-excluded`, `pending` or `complete`."""
    reason: str
    files: int
    size_bytes: int
    """Total size of these files."""
    table: str = ""
    index: int = 0
    """Position in the timeline; the interval that starts where this one ends has the next index."""
    previous: int | None = None
    """Index of the nearest earlier interval with files; null: there is none."""
    next: int | None = None
    """Index of the nearest later interval with files; null: there is none."""
    overlaps_previous: bool = False
    """Whether a file of the interval also has rows in the interval before it."""
    overlaps_next: bool = False
    """Whether a file of the interval also has rows in the interval after it."""
    stored: str = ""
    """State in the store, as of the last decision of the service: `stable`, `unstable`, `deferred`
    (a full queue dropped its job), `unknown` (skipped, or files in use). Empty: there is none."""
    changes: int | None = None
    """Changes of files of the interval that are counted so far; null: they are not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Jobs that would be planned now. `left`: path → why no job takes the file.

    Without planned and running jobs there is nothing to compact. `jobs`, `left` and `intervals`
    have at most as many entries as were asked for; `left` has a file of each reason, if there is
    room for it.
    """

    jobs: tuple[PlannedJob, ...] = ()
    left: dict[str, str] = field(default_factory=dict)
    running: int = 0
    """Number of running jobs. Their outputs may need further jobs."""
    intervals: tuple[Interval, ...] = ()
    """Intervals in order, if the table's planner is time-based."""
    correction: Correction = field(default_factory=Correction)
    """Correction of the estimates by the results of recent jobs."""
    waits: tuple[str, ...] = ()
    """Why planned system jobs do not start now: windows that are closed, and when they open."""
    job_count: int = 0
    """Number of planned jobs; `jobs` has the first ones."""
    input_bytes: int = 0
    """Bytes that all planned jobs read."""
    left_count: int = 0
    """Number of files that no job takes; `left` has some of them."""
    left_reasons: dict[str, int] = field(default_factory=dict)
    """Why no job takes them → number of files, the most frequent 100 reasons first."""
    interval_count: int = 0
    """Number of intervals; `intervals` has the first ones."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerFigures:
    """What a planner would have done with the files of a comparison, if its jobs ended at once."""

    planner: str = ""
    jobs: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    """Estimate, corrected by the results of the table's recent jobs."""
    files_left: int = 0
    overlapping_files: int = 0
    """Largest number of the files left that may hold the same key."""
    problem: str = ""
    """Why the planner failed in a tablet; empty: it did not."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowPlan:
    """Comparison of a table's planner with its shadow planner, which starts no jobs.

    Both begin with the files that the table has when the comparison begins, and get the files that
    users add. A change of the table's settings and a restart of the coordinator begin it anew.
    """

    table: str
    since_s: float = 0.0
    """Begin of the comparison; 0: it has not begun."""
    tablets: int = 0
    waiting: int = 0
    """Tablets with files that are not planned so far."""
    begin_files: int = 0
    """Files at the beginning."""
    added_files: int = 0
    """Files that users have added since then."""
    files: int = 0
    """Files of these tablets now."""
    partial: bool = False
    """Whether the table has more tablets or files than the service compares."""
    first: PlannerFigures = field(default_factory=PlannerFigures)
    """The planner whose jobs run."""
    shadow: PlannerFigures = field(default_factory=PlannerFigures)
    """The shadow planner."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Bytes that are still to be rewritten in a table until its planner plans no more jobs."""

    table: str
    """Name of the table; empty: all tables without an entry of their own."""
    strategy: str
    """Method of measurement: a tracker, or `planned jobs`, the inputs of the planned jobs."""
    size_bytes: int
    tablets: int
    """Tablets that are not at rest."""
    tables: int = 1
    problem: str = ""
    """Why the planner's own tracker failed to measure the table or one of its tablets; empty: it
    did not fail, or there is no tracker."""
    groups: dict[str, int] = field(default_factory=dict)
    """Compaction group whose compactors do the work → bytes."""
    requested_bytes: int = 0
    """Inputs of the queued jobs of requests. Not included in `size_bytes`."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class OwedTablet:
    """Bytes that are still to be rewritten in a tablet until its planner plans no more jobs."""

    tablet: str
    """Id of the tablet: the end of its range."""
    strategy: str
    """Method of measurement: a tracker, or `planned jobs`, the inputs of the planned jobs."""
    size_bytes: int
    group: str = ""
    """Compaction group whose compactors do the work."""
    problem: str = ""
    """Why the planner's own tracker failed; empty: it did not fail, or there is no tracker."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogPoint:
    """Backlog at one point in time."""

    at_s: float
    size_bytes: int


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class TabletBacklogHistory:
    """Backlog of a tablet since it was first asked for, an hour at most, oldest point first."""

    tablet: str
    """Id of the tablet: the end of its range."""
    history: tuple[BacklogPoint, ...]


RECORDED_TABLETS_MAX = 100
"""Tablets whose backlog is recorded; those that were asked for longest ago are dropped."""


class TriggerVerdict(StrEnum):
    """Result of a trigger in a tablet."""

    ACCEPTED = "accepted"
    """The planner planned jobs, and they are queued."""
    HELD = "held"
    """Jobs are, or may be, planned but cannot be queued now; they are queued later."""
    REFUSED = "refused"
    """The planner planned no jobs."""
    FAILED = "failed"
    """The planner failed, and runs again later."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class TabletTrigger:
    """Decision of the planner for a tablet after a trigger."""

    tablet: str
    verdict: str
    """`accepted`: jobs are queued; `held`: jobs cannot be queued now, and are queued later;
    `refused`: the planner planned no jobs; `failed`: the planner failed, and runs again later."""
    jobs: int = 0
    """Number of system jobs that the planner planned."""
    files: int = 0
    """Number of their inputs."""
    reason: str = ""
    """Reason of the best job, or why there is no job."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """Decisions of a table's planner after a trigger by an operator."""

    table: str
    trigger: str
    triggered_at_s: float
    tablets: tuple[TabletTrigger, ...] = ()
    left: int = 0
    """Tablets whose planner has not answered so far. `neve status` counts them when it has."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class TableTrigger:
    """The last trigger of a table, with the number of tablets per decision."""

    table: str
    trigger: str
    triggered_at_s: float
    accepted: int = 0
    held: int = 0
    refused: int = 0
    failed: int = 0
    refusal: str = ""
    """Reason of the planner's last refusal, or why the planner did not run."""


class MaintenanceState(StrEnum):
    """Whether a maintenance operation of a tablet can run."""

    RUNNABLE = "runnable"
    RUNNING = "running"
    """The operation runs, and no further operation of its kind can begin."""
    WAITING = "waiting"
    """The operation has work, but may not begin now."""
    IDLE = "idle"
    """The operation has no work."""
    NOT_APPLICABLE = "not-applicable"
    """This service has no operation of this kind."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceOperation:
    """Maintenance of a tablet: its gain, cost and memory, or why it is not done."""

    tablet: str
    """Empty: the operation is one of the whole table."""
    kind: str
    """`merging`, `drops`, `split`, `merge`, `garbage`, `manifest`, `analysis`, `statistics`,
    `minor-delta`, `major-delta`, `flush`; of lake tables `checkpoint`, `log-cleanup`, `vacuum`,
    `expire-snapshots`, `orphan-files`, `manifests`."""
    state: str = MaintenanceState.IDLE.value
    """`runnable`; `running`: no further operation of its kind can begin; `waiting`: it may not
    begin now; `idle`: it has no work; `not-applicable`: the service has none of this kind."""
    why: str = ""
    """Why the operation runs, or why it does not."""
    jobs: int = 0
    """Number of jobs that the planner plans now; the other values are those of the best job."""
    running: int = 0
    files: int = 0
    gain: float = 0.0
    gain_unit: str = ""
    cost_bytes: int = 0
    """Maximum number of bytes that the operation reads and writes."""
    cpu_s: float | None = None
    """Seconds of a slot, at the measured rate of its group; None: no rate was measured."""
    memory_bytes: int | None = None
    """Memory that its tasks may use together; None: unknown."""
    freed_bytes: int = 0
    """Space that the operation certainly frees."""
    score: float = 0.0
    """Gain per 64 MiB read and written."""
    workload: float = 0.0
    """Contribution of the tablet's reads and writes to the score, from 0 to 1."""
    adjusted: float = 0.0
    """The score, adjusted for workload and table priority."""
    rank: int | None = None
    """Rank among the runnable operations of the table, by the rule of Apache Kudu. Jobs run on
    compactors, other kinds in the coordinator, so the first of both run at the same time."""
    step: str = ""
    """Step of the rule that gives the rank: `space` or `score`."""
    due_s: float | None = None
    """Seconds until its longest wait is over; None: it is a job, or runs when it has work."""
    priority: int | None = None
    """Priority of its best job in the queue."""
    group: str = ""
    age_s: float | None = None
    """For a flush: age of the oldest buffered row; None: there is none."""
    later_bytes: int = 0
    """For a flush: bytes that later compactions of its files read and write, at least."""
    scan_bytes_s: float = 0.0
    """For a flush: bytes of buffered rows that scans of the listed tablets read per second, which
    they no longer do after it."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceDecision:
    """The start of an operation of the coordinator on a table, and why it was chosen."""

    kind: str
    """`garbage`, `manifest`, `analysis`, `flush`, or an operation of a lake table."""
    step: str
    """`memory` (it frees memory of the metadata store), `wait` (its longest wait was over), `space`
    or `score`."""
    why: str
    ago_s: float
    """Seconds since the start."""
    took_s: float | None = None
    """Duration; None: it is running."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class TabletRates:
    """Reads and writes of a tablet per second, averaged over about the last minute."""

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
    decisions: tuple[MaintenanceDecision, ...] = ()
    """The last starts of operations of the coordinator on the table, the running ones first."""
    more: bool = False
    """Whether the table has further tablets; name one to see its operations."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class LakeOrder:
    """One run of a maintenance operation of a lake table, as an operator asks for it."""

    operation: str
    dry_run: bool = False
    """Only show what the operation would do."""
    files: int | None = None
    """Files to delete at most; null: `lake_maintenance_files` of the table."""
    wait_max_s: float = 60.0
    """Longest wait for the end of the run; it goes on after that."""


class LakeRunState(StrEnum):
    """How far a run of a maintenance operation of a lake table has come."""

    DRY_RUN = "dry-run"
    """Nothing was changed."""
    DONE = "done"
    WAITING = "waiting"
    """The files are deleted after the grace, unless a version names them by then."""
    RUNNING = "running"
    NOTHING = "nothing"
    """There was nothing to do."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class LakeRun:
    """What a maintenance operation of a lake table has done, or would do."""

    table: str
    operation: str
    """`checkpoint`, `log-cleanup`, `vacuum`, `expire-snapshots`, `orphan-files` or `manifests`."""
    state: str
    """`dry-run`, `done`, `running`, `nothing`; `waiting`: the files are deleted after the grace,
    unless a version names them by then."""
    why: str = ""
    """Why there is nothing to do, or what it waits for."""
    files: int = 0
    """Files that were deleted, or will be."""
    size_bytes: int = 0
    """Space that is freed."""
    more: int = 0
    """Further files, which a later run deletes or merges."""
    created: str = ""
    """What was written, or would be; empty: nothing."""
    spared: dict[str, int] = field(default_factory=dict)
    """Why other files stay → their number."""
    paths: tuple[str, ...] = ()
    """The first files, relative to the folder of the table."""

    @property
    def text(self) -> str:
        """The result as a sentence."""
        if self.state == LakeRunState.NOTHING:
            return self.why or "nothing to do"
        done = [f"wrote the {self.created}"] if self.created else []
        if self.files:
            files = "1 file" if self.files == 1 else f"{self.files:,} files"
            done.append(f"deleted {files} of {self.size_bytes:,} bytes")
        return "the last run " + (" and ".join(done) or "had nothing to do")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """Scans of tablets outside the service, since the last report."""

    tablets: Annotated[dict[ShortText, int], MaxLength(10_000)]
    """End of a tablet as text → number of scans."""


# --------------------------------------------------------------------------------------- Simulation


SPECIFICATION_CHARS_MAX = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSimulation:
    """What to simulate: a specification, or a table as it is with other planners or settings."""

    __pydantic_config__ = STRICT

    specification: Annotated[str, MaxLength(SPECIFICATION_CHARS_MAX)] = ""
    """TOML as of `neve simulate --example`; it may not name files. Empty: simulate `table`."""
    table: ShortText = ""
    """Name of a table of the service."""
    planners: Names = ()
    """Planners to compare. With a specification, they take the place of its variants."""
    settings: Annotated[dict[ShortText, ShortText], MaxLength(100)] = field(default_factory=dict)
    """With a table: changed settings of the compared variants, by name."""
    days: float | None = None
    """Simulated days; null: as the specification says, and 7 for a table."""
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCurve:
    """A measure over time."""

    name: str
    title: str
    meaning: str
    unit: str
    """`bytes`, `seconds`, or empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedVariant:
    """The outcome of a variant."""

    name: str
    figures: tuple[str, ...]
    """Results as text, in the order of `columns` of the simulation."""
    compactor_hours: float
    at_rest: bool
    """Whether all work was done at the end."""
    times_s: tuple[float, ...]
    """Times of samples, in seconds since 1970."""
    values: tuple[tuple[float, ...], ...]
    """For each curve of the simulation, its value at each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Simulated days of compaction, by variant."""

    text: str
    """What was simulated."""
    columns: tuple[str, ...]
    """Names of the results."""
    meanings: tuple[str, ...]
    """What each result is."""
    variants: tuple[SimulatedVariant, ...]
    curves: tuple[SimulatedCurve, ...]
    notes: tuple[str, ...] = ()
    """What was assumed, one sentence each."""
    hour_price: float = 0.0
    """Price of an hour of a compactor, from the settings; 0: none is set."""
    currency: str = ""
