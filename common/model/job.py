"""A job, its priority, and the plan that it belongs to.

A job is a decision to merge some files; it holds nothing until it is reserved. A plan is a
planner's decision for one tablet: its jobs, and a reason for each file that was left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Protocol

from common.primitives import digest
from neve.api.messages import readable_across_releases
from neve.api.planning import Correction, Interval

if TYPE_CHECKING:
    from common.model.file import ChunkGrid
    from common.model.tablet import TabletId


class Kind(StrEnum):
    """The origin of a job: the service itself, or a user's request."""

    SYSTEM = "SYSTEM"
    USER = "USER"


class JobAction(StrEnum):
    """What a job does with its files."""

    REWRITE = "rewrite"
    DROP = "drop"
    """All rows have expired according to metadata: no row is read, and nothing is written. If
    footers contradict that, the job becomes a rewrite."""
    ANALYZE = "analyze"
    """Nothing is reserved, written or replaced. The columns that decide which rows are live
    are read from all files of the tablet, and the live bytes of each file become metadata. Planners
    cannot choose it."""
    MOVE = "move"
    """Files are not rewritten; they get the tags of the job's outputs. A previous release that does
    not support the action rewrites them to outputs with these tags."""


KEEPS_DELETED = "keeps-deleted"
"""Among the actions of a compactor: it keeps the rows of deletes (`keep_deleted_rows`)."""
KNOWS_BUFFERS = "buffers"
"""Among the actions of a compactor: its commits look for buffered rows before they drop rows."""
KNOWS_LAKE = "lake"
"""Among the actions of a compactor: it publishes outputs of lake tables in their own log."""
PLANNED_ACTIONS = (JobAction.REWRITE, JobAction.DROP, JobAction.MOVE)
"""Actions that a planner may choose."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One compaction of one tablet.

    `id` is derived from tablet, kind, request, inputs and range. The same decision made twice has
    the same id, so the job keeps its age and position in the queue.
    """

    id: str
    tablet: "TabletId"
    table_name: str
    kind: Kind
    inputs: tuple[str, ...]
    """Paths, sorted."""
    input_bytes: int
    group: str
    priority: int
    """Larger runs first."""
    reason: str
    """A human-readable sentence."""
    request: str | None = None
    depends_on: tuple[str, ...] = ()
    """Ids of jobs of the same plan that must be committed first."""
    outputs_expected: int = 1
    """Largest number of outputs. Outputs of a table without a key get equal numbers of rows."""
    cuts: tuple[bytes, ...] = ()
    """Keys after which a new output begins (0..n outputs); empty: one output."""
    output_tags: tuple[tuple[str, str], ...] = ()
    partition: str | None = None
    """The partition of the tablet, such as `month=1/day=2`; None: the tablet is a key range."""
    action: str = JobAction.REWRITE.value
    """A `JobAction` as text, because a previous release may lack some of them."""
    cuts_at_s: tuple[float, ...] = ()
    """Times at which a new output begins; see `PlannedJob`."""
    output_rows_max: int = 0
    """Largest number of rows of an output between two times of `cuts_at_s`; 0: no limit."""
    expected_bytes: int = 0
    """Bytes that it writes according to the table's recent jobs; 0: as many as it reads."""
    expected_s: float = 0.0
    """Time that it takes according to the table's recent jobs; 0: unknown."""

    @property
    def cost_bytes(self) -> int:
        """Bytes that it reads and is expected to write; 0 unless the job is a rewrite."""
        if self.action in _CHEAP:
            return 0
        return self.input_bytes + (self.expected_bytes or self.input_bytes)


_CHEAP = frozenset({JobAction.DROP.value, JobAction.MOVE.value, JobAction.ANALYZE.value})


def job_id(
    tablet: "TabletId",
    kind: Kind,
    request: str | None,
    inputs: tuple[str, ...],
    cuts: tuple[bytes, ...] = (),
    *,
    moves: tuple[tuple[str, str], ...] = (),
    cuts_at_s: tuple[float, ...] = (),
) -> str:
    """Return the id of a job with this content.

    Args:
        tablet: Tablet of the job.
        kind: Origin of the job.
        request: Id of the user's request, if there is one.
        inputs: Paths, in any order.
        cuts: Keys after which a new output begins.
        moves: The tags that files get, if nothing is rewritten.
        cuts_at_s: Times at which a new output begins.
    """
    parts: list[str | bytes] = [
        tablet.table,
        tablet.end,
        kind.value,
        request or "",
        *sorted(inputs),
    ]
    parts += ["cuts", *cuts]
    if cuts_at_s:
        parts += ["times", *map(repr, cuts_at_s)]
    if moves:
        parts += ["move", *(word for tag in moves for word in tag)]
    return "job-" + digest(parts)


def analysis_id(tablet: "TabletId") -> str:
    """Return the id of the analysis of a tablet."""
    return "job-" + digest([tablet.table, tablet.end, JobAction.ANALYZE.value])


def analysis_job(tablet: "TabletId", table_name: str, group: str) -> Job:
    """Return the analysis job of a tablet. A tablet has only one.

    It has the lowest priority in its group, because only the user who asked waits for it.

    Args:
        tablet: Tablet whose files are read.
        table_name: Name for messages.
        group: Group whose compactors run it.
        group: Whose compactors run it.
    """
    return Job(
        id=analysis_id(tablet),
        tablet=tablet,
        table_name=table_name,
        kind=Kind.SYSTEM,
        inputs=(),
        input_bytes=0,
        group=group,
        priority=0,
        reason="an analysis of live bytes was requested",
        outputs_expected=0,
        action=JobAction.ANALYZE.value,
    )


TIME_CUTS_MAX = 32
"""Largest number of cut times of one job, because its outputs are written concurrently."""


def time_outputs_max(cuts: int, rows: int, output_rows_max: int) -> int:
    """Return the largest number of outputs of a job that cuts at times.

    Args:
        cuts: Number of cut times; rows without a time get an extra output.
        rows: Rows of all inputs.
        output_rows_max: Largest number of rows of one output; 0: no limit.
    """
    return cuts + 2 + (rows // output_rows_max if output_rows_max else 0)


# ---- Priorities
#
# There are four classes. Each is a range of numbers, so a priority determines its class:
#
#     URGENT      30,000 …   a request with the largest boost
#     OVER_LIMIT  20,000 …   the tablet has more files than its table allows
#     USER        10,000 …   a request that a user waits for
#     SYSTEM           0 …   the service's own maintenance
#
# Within a class, more files in the tablet and in the job come first, because such jobs save
# readers the most work. The queue defines the order of jobs with equal priority and the ageing
# of old jobs.


CLASS_WIDTH = 10_000
"""Numbers per class; larger values are limited to the last number of the class."""
AGEING_PER_S = 0.1
"""Default points per second that a queued job gains over jobs offered later.

One point is worth one file. With an endless stream of jobs of the next higher class, a job waits
for about 28 hours.
"""
FAIR_BAND = 1
"""Default points of priority within which the jobs of different tables count as equal."""
BOOST_MAX = 2 * CLASS_WIDTH
"""Largest boost of a request: its jobs run before all system jobs."""


class PriorityClass(IntEnum):
    """The classes, in order; a job of a higher one runs before any of a lower one."""

    SYSTEM = 0
    USER = 1
    OVER_LIMIT = 2
    URGENT = 3


def job_priority(kind: Kind, *, files_in_tablet: int, files_in_job: int, file_limit: int) -> int:
    """Return the priority of a job.

    Args:
        kind: Origin of the job. A user's job never counts as over the limit:
            its request has a boost for that.
        files_in_tablet: All files of the tablet, candidates or not.
        files_in_job: The inputs of the job.
        file_limit: The table's limit of files per tablet; 0: no limit.
    """
    if kind is Kind.USER:
        return _within(PriorityClass.USER, files_in_tablet + files_in_job)
    if 0 < file_limit < files_in_tablet:
        excess = files_in_tablet - file_limit
        return _within(PriorityClass.OVER_LIMIT, excess + files_in_job)
    return _within(PriorityClass.SYSTEM, files_in_tablet + files_in_job)


def cut_priority(files_in_job: int) -> int:
    """Return the priority of a job that cuts files where a tablet is being split.

    It is the highest priority without a boost, because no other job runs in that tablet until
    the cut is done.
    """
    return _within(PriorityClass.OVER_LIMIT, CLASS_WIDTH // 2 + files_in_job)


def class_of(priority: int) -> PriorityClass:
    """Return the class of a priority; a boost may have lifted it into a higher one."""
    return PriorityClass(min(max(priority // CLASS_WIDTH, 0), PriorityClass.URGENT))


def is_urgent(job: Job) -> bool:
    """Return whether a job may use the slots that a group reserves for urgent jobs.

    Its tablet has more files than its table allows or is being split, or its request has the
    largest boost.
    """
    return class_of(job.priority) >= PriorityClass.OVER_LIMIT


PRIORITY_BASE = 1.1
PRIORITY_MAX = 5
"""Table priorities are clamped to the range from `-PRIORITY_MAX` to `PRIORITY_MAX`."""


def priority_factor(priority: int) -> float:
    """Return the factor by which the priority of a table multiplies scores."""
    return float(PRIORITY_BASE ** max(-PRIORITY_MAX, min(PRIORITY_MAX, priority)))


def adjusted_score(perf: float, workload: float, priority: int) -> float:
    """Return the score by which operations of different tables are compared.

    Args:
        perf: Score of the operation itself. If it is 0, the result is 0, because the operation
            gains nothing, regardless of workload and priority.
        workload: Score that the tablet's workload adds (`workload_score`).
        priority: Priority of its table, clamped to the range from -5 to 5.
    """
    return 0.0 if perf == 0 else (perf + workload) * priority_factor(priority)


def adjusted_priority(
    job_priority: int, workload: float, table_priority: int, gain: float = 1.0
) -> int:
    """Return the priority of a system job, adjusted by workload and table priority.

    The score of the job is its points within its priority class. The job stays in its class, so
    that no table priority outranks a request or a tablet over its limit.

    Args:
        job_priority: Priority from its planner.
        workload: Points that the workload of its tablet adds.
        table_priority: Priority of its table.
        gain: Factor for the score of the job.
    """
    if not workload and not table_priority and gain == 1.0:
        return job_priority
    rank = class_of(job_priority)
    if rank is PriorityClass.URGENT:
        return job_priority
    score = gain * (job_priority - rank * CLASS_WIDTH)
    points = adjusted_score(score, workload, table_priority)
    return rank * CLASS_WIDTH + min(max(round(points), 0), CLASS_WIDTH - 1)


class LaneClass(IntEnum):
    """The priority classes, and below them the analyses, which have no priority of their own."""

    STATISTICS = -1
    SYSTEM = PriorityClass.SYSTEM
    USER = PriorityClass.USER
    OVER_LIMIT = PriorityClass.OVER_LIMIT
    URGENT = PriorityClass.URGENT


_ANALYZE = JobAction.ANALYZE.value
_LANES = (LaneClass.SYSTEM, LaneClass.USER, LaneClass.OVER_LIMIT, LaneClass.URGENT)


def lane_class(job: Job) -> LaneClass:
    """Return the class in which a job is queued."""
    if job.action == _ANALYZE:
        return LaneClass.STATISTICS
    # The same as `class_of`, without the cost of an enum, because every offered job passes here.
    rank = job.priority // CLASS_WIDTH
    return _LANES[rank if 0 <= rank < len(_LANES) else 0 if rank < 0 else -1]


def _within(rank: PriorityClass, points: int) -> int:
    return rank * CLASS_WIDTH + min(points, CLASS_WIDTH - 1)


# -------------------------------------------------------------------------------------------- Plans


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """A job as a planner proposes it, before it gets an id, a tablet and a request.

    A planner refers to earlier jobs of its plan by their index in `Plan.jobs`.
    """

    kind: Kind
    files: tuple[str, ...]
    group: str
    priority: int
    reason: str
    depends_on: tuple[int, ...] = ()
    outputs_expected: int = 1
    """Largest number of outputs. Outputs of a table without a key get equal numbers of rows, and
    about the size of all inputs divided by this number."""
    cuts: tuple[bytes, ...] = ()
    """Keys after which a new output begins, ascending; only for tables with a key."""
    cuts_at_s: tuple[float, ...] = ()
    """Times in seconds since the epoch at which a new output begins, ascending; only for tables
    without a key that have a time column. A row of exactly such a time belongs to the output that
    begins there. Rows without a time get the last output. `outputs_expected` must be at least
    `time_outputs_max`."""
    output_rows_max: int = 0
    """With `cuts_at_s`: largest number of rows of one output. More rows between two times are
    divided into several outputs of similar size. 0: no limit."""
    output_tags: tuple[tuple[str, str], ...] = ()
    """Tags of every output: level, run, window."""
    action: JobAction = JobAction.REWRITE


INTERVALS_MAX = 1000
"""Largest number of intervals in one plan."""


class IntervalState(StrEnum):
    """A planner's decision about an interval of time, in the terms of Apache Druid."""

    RUNNING = "running"
    SKIPPED = "skipped"
    """It must not be compacted now."""
    POLICY_EXCLUDED = "policy-excluded"
    """The planner's policy excludes it."""
    PENDING = "pending"
    COMPLETE = "complete"


PlannedInterval = Interval
"""What a planner makes of an interval of time, and why: the first check that decides it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A planner's decision for one tablet and one kind.

    Jobs without open dependencies are disjoint.
    """

    jobs: tuple[PlannedJob, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)
    """Path → why it was left out."""
    due_at_s: float | None = None
    """When to ask the planner again even if nothing changes; None: never."""
    intervals: tuple[PlannedInterval, ...] = ()
    """Intervals in order, if the planner works by intervals of time. At most `INTERVALS_MAX` are
    shown. With an index they are chunks, whose states are stored; see `Planner.chunk_grid`."""

    @property
    def chunks(self) -> Mapping[int, IntervalState]:
        """Number of a chunk → the decision about it."""
        return {
            interval.index: IntervalState(interval.state)
            for interval in self.intervals
            if interval.index is not None
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptWork:
    """What a running attempt has done so far."""

    read_share: float = 0.0
    """Fraction of the bytes of its inputs that it has read, 0 to 1."""
    written_bytes: int = 0
    """Bytes that it has written to its outputs, which are no files of the tablet before it commits.
    """
    output_tags: tuple[tuple[str, str], ...] = ()
    """Tags of its outputs, if its job is known."""


class TrackedWork(Protocol):
    """The tracker of a tablet with running attempts, which is asked at each read."""

    def left_bytes(self, done: Mapping[str, AttemptWork]) -> int:
        """Return the backlog after attempts have done some work.

        Args:
            done: Attempt → its work; attempts that are missing have done nothing.

        Raises:
            Exception: The tracker fails.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletBacklog:
    """Bytes that the planner of a tablet has still to rewrite, as of one read of the tablet."""

    strategy: str
    """The tracker that measured it."""
    size_bytes: int
    """Backlog without the progress of running jobs."""
    falls: Mapping[str, int] = field(default_factory=dict)
    """Running attempt → bytes that its completion takes from the backlog."""
    problem: str = ""
    """Why the planner's own tracker did not measure it; empty: it did, or there is none."""
    group: str = ""
    """Group whose compactors do the work: of the first wanted job, or else of a running one."""
    tracked: TrackedWork | None = field(default=None, compare=False, repr=False)
    """Measures the effect of running attempts; None: it is their share of `falls`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletPressure:
    """Measures of the compaction pressure in a tablet, as of one read."""

    overlapping_files: int = 0
    """Largest number of files that may hold the same key; 0: no work waits."""
    stored_bytes: int = 0
    garbage_bytes: int = 0
    """Part of `stored_bytes` that a rewrite would drop, as far as it is measured."""
    files: int = 0
    small_files: int = 0
    """Files below half of the table's target size; one alone is as large as its tablet allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletPlan:
    """All wanted jobs of a tablet, of every kind, with ids; it replaces the queued jobs."""

    jobs: tuple[Job, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)
    holds: tuple[str, ...] = ()
    """Sentences about requests that hold files or wait to hold them."""
    due_at_s: float | None = None
    """When to ask planners again even if nothing changes; None: never."""
    backlog: TabletBacklog | None = None
    """None: the tablet is at rest, or was not measured."""
    triggered_at_s: float = 0.0
    """The trigger that the plan answers (`Table.triggered_at_s`); 0: no open trigger."""
    analysis_group: str = ""
    """Group that should analyse the tablet, requested by the trigger `analysis`; empty: none."""
    intervals: tuple[PlannedInterval, ...] = ()
    """Intervals of system jobs; see `Plan`."""
    pressure: TabletPressure | None = None
    """None: not measured."""
    chunks: Mapping[int, IntervalState] = field(default_factory=dict)
    """Number of a chunk → decision of the planner of system jobs, if it works by chunks of time."""
    chunk_files: Mapping[int, int] = field(default_factory=dict)
    """Number of a chunk → its files, whether a job may use them or not."""
    grid: "ChunkGrid | None" = None
    """The chunks. None: the planner has none, or their stored states were not read."""
    policy: str = ""
    """Digest of the planner and of what it decides by."""
    asked: frozenset[int] | None = None
    """Numbers of the chunks that were planned, because the others rest; None: the whole tablet."""
    correction: Correction = field(default_factory=Correction)
    """Correction of estimates that its planners have used."""
