"""A job, its priority, and the plan that it belongs to.

A job is a decision to merge some files; it holds nothing until it is reserved. A plan is what a
planner wants for one tablet: its jobs, and for every file that was left out, why.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

from common.digests import digest
from neve import api
from neve.api.messages import readable_across_releases

if TYPE_CHECKING:
    from common.model.tablet import TabletId


class Kind(StrEnum):
    """Who wants a job: the service for its own reasons, or a user's request."""

    SYSTEM = "SYSTEM"
    USER = "USER"


class JobAction(StrEnum):
    """What a job does with its files."""

    REWRITE = "rewrite"
    DROP = "drop"
    """All rows have expired, as metadata tells: no row is read, and nothing is written. Where
    footers leave a doubt it is rewritten after all."""
    ANALYZE = "analyze"
    """Nothing is reserved, written or replaced: the cheap columns of all files of the tablet are
    read, and what is live of each file becomes metadata. No planner may want it."""
    MOVE = "move"
    """Files stay where they are, and their tags change: they get those of the job's outputs. A
    release before, which does not know it, rewrites them to outputs with these tags."""


PLANNED_ACTIONS = (JobAction.REWRITE, JobAction.DROP, JobAction.MOVE)
"""What a planner may want."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One compaction of one tablet.

    `id` is derived from tablet, kind, request, inputs and range: the same decision
    taken twice has the same id, so a queue keeps its age and place.
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
    """A sentence that a person understands."""
    request: str | None = None
    depends_on: tuple[str, ...] = ()
    """Ids of jobs of the same plan that must be committed first."""
    outputs_expected: int = 1
    """At most so many are written. Those of a table without a key get the same number of rows."""
    cuts: tuple[bytes, ...] = ()
    """Keys after which a new output begins (0..n outputs); empty: one output."""
    output_tags: tuple[tuple[str, str], ...] = ()
    partition: str | None = None
    """The partition that the tablet is, `month=1/day=2`; None: it is a range of keys."""
    action: str = JobAction.REWRITE.value
    """Of `JobAction`, as its text: a release before may not know all of them."""
    cuts_at_s: tuple[float, ...] = ()
    """Times at which a new output begins; see `PlannedJob`."""
    output_rows_max: int = 0
    """Most rows of an output between two times of `cuts_at_s`; 0: any number."""

    @property
    def cost_bytes(self) -> int:
        """Bytes in plus bytes out, the latter taken to be as many; only a rewrite counts."""
        return 0 if self.action in _CHEAP else 2 * self.input_bytes


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
    """Return the id of the job that would do exactly this.

    Args:
        tablet: Where.
        kind: Who wants it.
        request: Of whom, if a user wants it.
        inputs: Paths, in any order.
        cuts: Keys after which another output begins.
        moves: The tags that files get, if nothing is rewritten.
        cuts_at_s: Times at which another output begins.
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
    """Return the job that counts what is live in a tablet; there is one of each tablet.

    It comes after all others of its group: nobody waits for it but a user who asked.

    Args:
        tablet: Whose files are read.
        table_name: For people.
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
        reason="live bytes are counted, as somebody asked",
        outputs_expected=0,
        action=JobAction.ANALYZE.value,
    )


TIME_CUTS_MAX = 32
"""Most times at which one job may cut: its outputs are written beside each other."""


def time_outputs_max(cuts: int, rows: int, output_rows_max: int) -> int:
    """Return how many outputs a job may need that cuts at times.

    Args:
        cuts: Number of times at which it cuts; rows without a time have an output besides.
        rows: Rows of all inputs.
        output_rows_max: Most rows of one output; 0: any number.
    """
    return cuts + 2 + (rows // output_rows_max if output_rows_max else 0)


# ---- Priorities
#
# Four classes, each a range of numbers, so that a priority alone tells its class:
#
#     URGENT      30,000 …   somebody asked for it with the largest boost
#     OVER_LIMIT  20,000 …   the tablet has more files than its table allows
#     USER        10,000 …   somebody asked for it and waits
#     SYSTEM           0 …   the service tidies up for its own reasons
#
# Inside a class, more files in the tablet and in the job come first: such a job takes the most
# work from readers. How a queue orders jobs of equal priority, and how old ones rise, is the
# queue's affair.


CLASS_WIDTH = 10_000
"""Numbers per class; what would be more is cut to the last of its class."""
AGEING_PER_S = 0.1
"""Points that a queued job gains per second over one offered later, if nothing else is set.

A point is one file: beside an endless stream of jobs of the next higher class a job
waits for about 28 hours, not for ever.
"""
BOOST_MAX = 2 * CLASS_WIDTH
"""Of a request: lifts its jobs before all that the service wants for reasons of its own."""


class PriorityClass(IntEnum):
    """The classes, in order; a job of a higher one runs before any of a lower one."""

    SYSTEM = 0
    USER = 1
    OVER_LIMIT = 2
    URGENT = 3


def job_priority(kind: Kind, *, files_in_tablet: int, files_in_job: int, file_limit: int) -> int:
    """Return the priority of a job.

    Args:
        kind: Who wants the job. A user's job is never counted as over the limit:
            its request has a boost for that.
        files_in_tablet: All files of the tablet, candidates or not.
        files_in_job: The inputs of the job.
        file_limit: The table's limit of files per tablet; 0: no limit known.
    """
    if kind is Kind.USER:
        return _within(PriorityClass.USER, files_in_tablet + files_in_job)
    if 0 < file_limit < files_in_tablet:
        excess = files_in_tablet - file_limit
        return _within(PriorityClass.OVER_LIMIT, excess + files_in_job)
    return _within(PriorityClass.SYSTEM, files_in_tablet + files_in_job)


def cut_priority(files_in_job: int) -> int:
    """Return the priority of a job that cuts files where a tablet is being split.

    The best there is but for a boost: until it is done nothing else runs in that tablet.
    """
    return _within(PriorityClass.OVER_LIMIT, CLASS_WIDTH // 2 + files_in_job)


def class_of(priority: int) -> PriorityClass:
    """Return the class of a priority; a boost may have lifted it into a higher one."""
    return PriorityClass(min(max(priority // CLASS_WIDTH, 0), PriorityClass.URGENT))


def is_urgent(job: Job) -> bool:
    """Return whether a job gets the slots that a group keeps for urgent ones.

    Its tablet has more files than its table allows or is being split, or somebody asked for it with
    the largest boost.
    """
    return class_of(job.priority) >= PriorityClass.OVER_LIMIT


class LaneClass(IntEnum):
    """The classes of priority, and beneath them the analyses, which have no priority of theirs."""

    STATISTICS = -1
    SYSTEM = PriorityClass.SYSTEM
    USER = PriorityClass.USER
    OVER_LIMIT = PriorityClass.OVER_LIMIT
    URGENT = PriorityClass.URGENT


_ANALYZE = JobAction.ANALYZE.value
_LANES = (LaneClass.SYSTEM, LaneClass.USER, LaneClass.OVER_LIMIT, LaneClass.URGENT)


def lane_class(job: Job) -> LaneClass:
    """Return the class in which a job waits for its turn."""
    if job.action == _ANALYZE:
        return LaneClass.STATISTICS
    # As `class_of`, without making an enum of a number: each job that is offered comes by here.
    place = job.priority // CLASS_WIDTH
    return _LANES[place if 0 <= place < len(_LANES) else 0 if place < 0 else -1]


def _within(rank: PriorityClass, points: int) -> int:
    return rank * CLASS_WIDTH + min(points, CLASS_WIDTH - 1)


# -------------------------------------------------------------------------------------------- Plans


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """A job as a planner proposes it, before ids, tablet and request are written on it.

    A planner refers to earlier jobs of its plan by their position in `Plan.jobs`.
    """

    kind: Kind
    files: tuple[str, ...]
    group: str
    priority: int
    reason: str
    depends_on: tuple[int, ...] = ()
    outputs_expected: int = 1
    """At most so many are written. Those of a table without a key get the same number of rows:
    about the size of all inputs divided by it."""
    cuts: tuple[bytes, ...] = ()
    """Keys after which a new output begins, ascending; of tables with a key only."""
    cuts_at_s: tuple[float, ...] = ()
    """Times in seconds since the epoch at which a new output begins, ascending; of tables without
    a key that have a time column. A row of exactly such a time is in the output that begins there.
    Rows without a time get an output of their own, after all others. `outputs_expected` must be at
    least `time_outputs_max`."""
    output_rows_max: int = 0
    """With `cuts_at_s`: most rows of one output. Where more rows are between two times, they get
    several outputs of about the same number of rows. 0: any number."""
    output_tags: tuple[tuple[str, str], ...] = ()
    """Tags of every output: level, run, window."""
    action: JobAction = JobAction.REWRITE


INTERVALS_MAX = 1000
"""Of one plan."""


class IntervalState(StrEnum):
    """What a planner makes of an interval of time, in Apache Druid's words."""

    RUNNING = "running"
    SKIPPED = "skipped"
    """It may not be compacted now."""
    POLICY_EXCLUDED = "policy-excluded"
    """It might be, and the planner's policy is against it."""
    PENDING = "pending"
    COMPLETE = "complete"


PlannedInterval = api.Interval
"""What a planner makes of an interval of time, and why: the first check that decides it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a planner wants for one tablet and one kind.

    Jobs without open dependencies are disjoint.
    """

    jobs: tuple[PlannedJob, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)
    """Path → why it was left out."""
    due_at_s: float | None = None
    """When the planner has to be asked again though nothing has changed; None: never."""
    intervals: tuple[PlannedInterval, ...] = ()
    """In order, if the planner goes by intervals of time; for people. At most `INTERVALS_MAX` are
    shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletBacklog:
    """What the planner of a tablet has still to rewrite, at one reading of the tablet."""

    strategy: str
    """The tracker that measured it."""
    size_bytes: int
    """As if nothing that is under way were done."""
    falls: Mapping[str, int] = field(default_factory=dict)
    """Attempt under way → bytes by which it is less when that is done."""
    problem: str = ""
    """Why the planner's own tracker did not measure it; empty: it did, or there is none."""
    group: str = ""
    """Whose compactors do the work: the group of the first wanted job, or else of one that runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletPressure:
    """What a tablet presses with, at one reading of it."""

    overlapping_files: int = 0
    """The most files that may hold one key; 0: no work waits."""
    stored_bytes: int = 0
    garbage_bytes: int = 0
    """Of `stored_bytes`, those that a rewrite would leave out, as far as they are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletPlan:
    """All jobs wanted for a tablet, of every kind, with ids; replaces what is queued."""

    jobs: tuple[Job, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)
    holds: tuple[str, ...] = ()
    """Which requests hold files, or wait to; a sentence each."""
    due_at_s: float | None = None
    """When planners have to be asked again though nothing has changed; None: never."""
    backlog: TabletBacklog | None = None
    """None: the tablet is at rest, or nobody has measured it."""
    triggered_at_s: float = 0.0
    """The trigger that the plan answers (`Table.triggered_at_s`); 0: none that is still open."""
    analysis_group: str = ""
    """Group that is to analyse the tablet, as the trigger `analysis` asks; empty: it does not."""
    intervals: tuple[PlannedInterval, ...] = ()
    """Of system jobs; see `Plan`."""
    pressure: TabletPressure | None = None
    """None: nobody has measured it."""
