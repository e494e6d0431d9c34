"""Maintenance operations: their scores, which one runs next, and the rows of `neve ops`.

    OwnOperations ──► the next operation of the coordinator itself: deletion, manifest, full scan
    TabletFacts ──► `KINDS`: one function per kind ──► rows ──► `ranked`

Both choose by `find_best_operation`. Rows report decisions that other code makes: merges, drops and
delta compactions are the jobs of the tablet's plan, splits and merges of tablets come from
`split_merge`, garbage from the collector, analysis from `scans`. The list includes kinds of other
systems that have no work here, with the reason, so that operators who know them find an answer.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from operator import attrgetter

from common.model.file import total_bytes
from common.model.job import (
    CLASS_WIDTH,
    Job,
    JobAction,
    Kind,
    PriorityClass,
    TabletPlan,
    adjusted_priority,
    adjusted_score,
    analysis_job,
    class_of,
)
from common.model.table import Table
from common.model.tablet import Tablet
from common.spi.deltas import (
    DELTA_TAG,
    MAJOR,
    MINOR,
    delta_sets,
    major_delta_score,
    minor_delta_score,
)
from common.spi.planner import COLD, Heat
from common.units import format_count, format_duration
from coordinator.core.scans import needs_look, wanted_analysis, workload_score
from coordinator.core.split_merge import (
    merge_bytes,
    why_merge,
    why_not_merge,
    why_not_split,
    why_split,
)
from coordinator.core.triggers import ANALYSIS, refusal_reason, unmeasured_share
from neve import api

# ------------------------------------------------------------------------------------------- Scores
# Apache Kudu's scores of maintenance operations, and the choice of its scheduler. Pure.
# The formulas come from `maintenance_manager.cc` and `tablet_replica_mm_ops.cc`. Random draws are
# arguments from 0 to 1.

FLUSH_LATE_MS = 120_000.0
"""Age above which a buffer gets a score for its age."""
FLUSH_UPPER_MS = 3_600_000.0
"""Age at which a buffer gets the full age score."""


def flush_score(anchored_mb: float, age_ms: float, threshold_mb: float) -> float:
    """Return the score of flushing a buffer.

    At or above the threshold, the score is the excess in MiB, at least 1, without an upper bound.
    Below the threshold, the score of an old buffer is the larger of its age and size scores, up
    to 1; a young buffer scores 0.

    Args:
        anchored_mb: Memory that the flush frees, in MiB.
        age_ms: Age of the buffer, in milliseconds.
        threshold_mb: Size at which a buffer is flushed, in MiB; more than 0.
    """
    if anchored_mb >= threshold_mb:
        return max(1.0, anchored_mb - threshold_mb)
    if age_ms > FLUSH_LATE_MS:
        return min(1.0, max(age_ms / FLUSH_UPPER_MS, anchored_mb / threshold_mb))
    return 0.0


# --------------------------------------------------------------------- Choosing the next operation


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationStatistics:
    """Inputs of the scheduler for one operation."""

    name: str
    why: str = ""
    """Why it has work."""
    runnable: bool = True
    """Whether it may run now: not cancelled, not running, and with work to do."""
    low_io: bool = False
    """Whether it needs almost no I/O."""
    logs_retained_bytes: int = 0
    """Log bytes that it frees."""
    ram_anchored_bytes: int = 0
    """Memory that it frees."""
    data_retained_bytes: int = 0
    """Disk space that it frees; a file of unknown size counts as one byte."""
    perf: float = 0.0
    """Improvement of later reads and writes."""
    workload: float = 0.0
    priority: int = 0
    """Priority of its table."""

    @property
    def adjusted(self) -> float:
        """The score that step 5 compares."""
        return adjusted_score(self.perf, self.workload, self.priority)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerRules:
    """Limits of the scheduler, with Kudu's defaults."""

    pressure_pct: float = 60.0
    """Memory use, in percent, at which operations that free memory take precedence."""
    soft_pct: float = 80.0
    """Memory use, in percent, at which only operations that free memory run."""
    log_target_bytes: int = 1024 * 1024**2
    """An operation that frees this much log takes precedence over the scores of others."""
    data_min_bytes: int = 0
    """An operation that frees no more than this is not chosen for its space."""
    data_probability: float = 0.5
    """Probability that freeing space takes precedence over the best score."""
    other_probability: float = 0.0
    """Probability that other operations run at the onset of memory pressure; it falls to 0 at
    `soft_pct`."""


@dataclass(frozen=True, slots=True)
class BestOperation:
    """The operation that runs next, and why."""

    operation: OperationStatistics
    step: str
    """`low-io`, `memory`, `log`, `space` or `score`."""


_RULES = SchedulerRules()


def flush_probability(
    used_pct: float, other_probability: float, rules: SchedulerRules = _RULES
) -> float:
    """Return the probability that memory pressure selects an operation that frees memory.

    Args:
        used_pct: Used percentage of the memory limit.
        other_probability: As in `SchedulerRules`.
        rules: Rules with the memory limits.
    """
    if used_pct < rules.pressure_pct:
        return 0.0
    ramp, left = rules.soft_pct - rules.pressure_pct, rules.soft_pct - used_pct
    return 1.0 if ramp <= 0 or left <= 0 else 1.0 - other_probability * left / ramp


def find_best_operation(
    operations: Iterable[OperationStatistics],
    *,
    used_pct: float = 0.0,
    memory_draw: float = 0.0,
    data_draw: float = 0.0,
    rules: SchedulerRules = _RULES,
) -> BestOperation | None:
    """Return the operation that runs next, or None if no operation has a benefit.

    1. Among operations that need almost no I/O, the one that frees the most log.
    2. Under memory pressure, the one that frees the most log, then the most memory; while the
       pressure is low, a random draw may let other operations run.
    3. The one that frees the most log, then the most memory, if the log exceeds its target.
    4. The one that frees the most space, by a random draw, or if no score is above 0.
    5. The one with the best adjusted score above 0.

    Ties go to the first operation.

    Args:
        operations: All operations, in a fixed order.
        used_pct: Used percentage of the memory limit.
        memory_draw: A random number from 0 to 1 for step 2.
        data_draw: A random number from 0 to 1 for step 4.
        rules: Limits of the scheduler.
    """
    able = [operation for operation in operations if operation.runnable]
    for step in (_free_log_cheaply, _free_memory, _free_log):
        if (choice := step(able, used_pct, memory_draw, rules)) is not None:
            return choice
    best = max(able, key=attrgetter("adjusted"), default=None)
    gains = best is not None and best.adjusted > 0
    most = max(able, key=attrgetter("data_retained_bytes"), default=None)
    frees = most is not None and most.data_retained_bytes > rules.data_min_bytes
    if most is not None and frees and (not gains or data_draw <= rules.data_probability):
        return BestOperation(most, "space")
    return BestOperation(best, "score") if best is not None and gains else None


def ranked_operations(
    operations: Sequence[OperationStatistics],
) -> list[tuple[OperationStatistics, str]]:
    """Return the operations that would run, in the order of `find_best_operation`, with its step.

    The order assumes no memory pressure and gives precedence to freeing space.
    """
    left, ranked = list(operations), list[tuple[OperationStatistics, str]]()
    while (best := find_best_operation(left)) is not None:
        left.remove(best.operation)
        ranked.append((best.operation, best.step))
    return ranked


def _log_then_memory(operation: OperationStatistics) -> tuple[int, int]:
    return operation.logs_retained_bytes, operation.ram_anchored_bytes


def _free_log_cheaply(
    able: Sequence[OperationStatistics], _used_pct: float, _draw: float, _rules: SchedulerRules
) -> BestOperation | None:
    cheap = [
        statistics
        for statistics in able
        if statistics.low_io and statistics.logs_retained_bytes > 0
    ]
    if not cheap:
        return None
    return BestOperation(max(cheap, key=attrgetter("logs_retained_bytes")), "low-io")


def _free_memory(
    able: Sequence[OperationStatistics], used_pct: float, draw: float, rules: SchedulerRules
) -> BestOperation | None:
    anchoring = [statistics for statistics in able if statistics.ram_anchored_bytes > 0]
    if used_pct < rules.pressure_pct or not anchoring:
        return None
    ramp, left = rules.soft_pct - rules.pressure_pct, rules.soft_pct - used_pct
    if ramp > 0 and left > 0 and draw * ramp < rules.other_probability * left:
        return None
    return BestOperation(max(anchoring, key=_log_then_memory), "memory")


def _free_log(
    able: Sequence[OperationStatistics], _used_pct: float, _draw: float, rules: SchedulerRules
) -> BestOperation | None:
    most = max(able, key=_log_then_memory, default=None)
    if most is None or most.logs_retained_bytes < rules.log_target_bytes:
        return None
    return BestOperation(most, "log")


# ------------------------------------------------------------ The coordinator's own operations
# The one scheduler of deletions, manifests and full scans: what runs next, and on which table?
#
#     1. cheap log, memory pressure, log target of `find_best_operation`; may use the last free slot
#     2. an operation whose longest wait is over: the one that has waited longest
#     3. space, score of `find_best_operation`
#
# Steps 1 and 3 compare the operations that are known to have work. Only the operation itself can
# find other work, so it also runs when its longest wait is over, and no kind starves another.


WAIT_STEP = "wait"
NECESSARY_STEPS = frozenset({"low-io", "memory", "log"})
"""Steps whose operations may use the last free slot, such as the flush of a buffer."""
COMPARED_MAX = 100
"""Operations of a kind that one choice compares: those with known work for the longest time."""
DECISIONS_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRules:
    """Bounds of a kind of operations."""

    tables_max: int
    """Tables on which it runs concurrently."""
    wait_max_s: float
    """Longest time between two starts on a table, unless all slots are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDecision:
    """The start of an operation, and why it was chosen."""

    kind: str
    table: str
    step: str
    why: str
    begun_s: float
    ended_s: float | None = None


@dataclass(slots=True)
class _Kind:
    rules: KindRules
    due_s: OrderedDict[str, float] = field(default_factory=OrderedDict)
    """Table → end of its longest wait, ascending."""
    known: dict[str, OperationStatistics] = field(default_factory=dict)
    """Table → its known work."""
    running: dict[str, OwnDecision] = field(default_factory=dict)

    def has_room(self) -> bool:
        return len(self.running) < self.rules.tables_max

    def overdue(self, now_s: float) -> tuple[float, str] | None:
        """Return the table that has waited longest, if its longest wait is over."""
        table = next((table for table in self.due_s if table not in self.running), None)
        return None if table is None or self.due_s[table] > now_s else (self.due_s[table], table)

    def compared(self) -> list[str]:
        """Return the first tables with known work on which it does not run."""
        idle = (table for table in self.known if table not in self.running)
        return list(islice(idle, COMPARED_MAX))


class OwnOperations:
    """At most `slots` operations run, `tables_max` of a kind, and one of a kind on a table.

    One of several slots is free unless an operation of `NECESSARY_STEPS` uses it.
    """

    def __init__(self, slots: int) -> None:
        """Create a scheduler without kinds."""
        self._slots = slots
        self._kinds: dict[str, _Kind] = {}
        self._ended: deque[OwnDecision] = deque(maxlen=DECISIONS_MAX)

    def add_kind(self, kind: str, rules: KindRules) -> None:
        """Add a kind without tables."""
        self._kinds[kind] = _Kind(rules)

    def set_tables(self, kind: str, tables: Collection[str], now_s: float) -> None:
        """Replace the tables of a kind; the longest wait of a new table begins now."""
        entry, present = self._kinds[kind], frozenset(tables)
        for gone in [table for table in entry.due_s if table not in present]:
            del entry.due_s[gone]
            entry.known.pop(gone, None)
        for table in tables:
            entry.due_s.setdefault(table, now_s + entry.rules.wait_max_s)

    def ask(self, kind: str, operation: OperationStatistics, now_s: float) -> None:
        """Note the known work of a kind on a table, which is the name of the operation."""
        entry = self._kinds[kind]
        entry.due_s.setdefault(operation.name, now_s + entry.rules.wait_max_s)
        entry.known[operation.name] = operation

    def next(self, now_s: float, used_pct: float = 0.0) -> OwnDecision | None:
        """Start the operation that runs next; None if nothing may run now.

        Args:
            now_s: The current time; it never decreases.
            used_pct: Used percentage of the memory limit.
        """
        free = self._slots - sum(len(entry.running) for entry in self._kinds.values())
        open_kinds = {kind: entry for kind, entry in self._kinds.items() if entry.has_room()}
        compared = {
            (kind, table): entry.known[table]
            for kind, entry in open_kinds.items()
            for table in entry.compared()
        }
        best = find_best_operation(compared.values(), used_pct=used_pct)
        is_necessary = best is not None and best.step in NECESSARY_STEPS
        if free <= 0 or (free == 1 < self._slots and not is_necessary):
            return None
        late = [(*due, kind) for kind, entry in open_kinds.items() if (due := entry.overdue(now_s))]
        if late and not is_necessary:
            _, table, kind = min(late)
            wait = format_duration(self._kinds[kind].rules.wait_max_s)
            return self._start(kind, table, WAIT_STEP, f"its longest wait of {wait} is over", now_s)
        if best is None:
            return None
        kind, table = next(key for key, value in compared.items() if value is best.operation)
        return self._start(kind, table, best.step, best.operation.why, now_s)

    def _start(self, kind: str, table: str, step: str, why: str, now_s: float) -> OwnDecision:
        entry = self._kinds[kind]
        entry.known.pop(table, None)
        entry.due_s[table] = now_s + entry.rules.wait_max_s
        entry.due_s.move_to_end(table)
        decision = OwnDecision(kind=kind, table=table, step=step, why=why, begun_s=now_s)
        entry.running[table] = decision
        return decision

    def ended(self, decision: OwnDecision, now_s: float) -> None:
        """Note the end of an operation."""
        del self._kinds[decision.kind].running[decision.table]
        self._ended.append(replace(decision, ended_s=now_s))

    def next_due_s(self, now_s: float) -> float | None:
        """Return when the next longest wait ends; None if all waits are over or none is known."""
        firsts = [next(iter(entry.due_s.values())) for entry in self._kinds.values() if entry.due_s]
        return min((due_s for due_s in firsts if due_s > now_s), default=None)

    def due_s(self, kind: str, table: str) -> float | None:
        """Return when the longest wait of a kind on a table ends; None if it has no such table."""
        return self._kinds[kind].due_s.get(table) if kind in self._kinds else None

    def of_table(self, table: str) -> list[OwnDecision]:
        """Return the remembered decisions about a table, the running ones first."""
        running = [entry.running[table] for entry in self._kinds.values() if table in entry.running]
        return running + [decision for decision in reversed(self._ended) if decision.table == table]


# --------------------------------------------------------------------------------------- Operations


COST_UNIT_BYTES = 64 * 1024**2
"""Scores are the gain per this many bytes read and written; a lower cost counts as this many."""


class OperationName(StrEnum):
    """Kinds of operations."""

    MERGING = "merging"
    DROPS = "drops"
    SPLIT = "split"
    MERGE = "merge"
    GARBAGE = "garbage"
    MANIFEST = "manifest"
    ANALYSIS = "analysis"
    STATISTICS = "statistics"
    MINOR_DELTA = "minor-delta"
    MAJOR_DELTA = "major-delta"
    FLUSH = "flush"
    CHECKPOINT = "checkpoint"
    LOG_CLEANUP = "log-cleanup"
    VACUUM = "vacuum"
    EXPIRE_SNAPSHOTS = "expire-snapshots"
    ORPHAN_FILES = "orphan-files"


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageCounts:
    """Replaced files of a tablet that wait for deletion."""

    waiting: int = 0
    deletable: int = 0
    """Waiting files that the next round of the collector deletes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNeeds:
    """Resources that the jobs of a group need; None if unknown."""

    memory_bytes: int | None = None
    """Memory that all tasks of a job may use together."""
    slot_bytes_s: float | None = None
    """Measured input bytes that a busy slot rewrites per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletFacts:
    """The inputs for the rows of a tablet."""

    tablet: Tablet
    table: Table
    plan: TabletPlan
    """Complete plan, as the scanner would submit it now."""
    failure: str = ""
    """Why planning failed; empty if it did not."""
    right: Tablet | None = None
    """The right neighbour; None for the last tablet."""
    now_s: float = 0.0
    """The store's time."""
    rest_s: float = 0.0
    """Pause after a split or merge of the tablet was abandoned."""
    garbage: GarbageCounts = GarbageCounts()
    heat: Heat = COLD
    why_held: Callable[[Job], str | None] = lambda _job: None
    """Returns why a job may not be queued now, for example after a failure, or None."""
    needs: Callable[[str], JobNeeds] = lambda _group: JobNeeds()
    """Returns the resources that the jobs of a group need."""


def tablet_operations(facts: TabletFacts) -> tuple[api.MaintenanceOperation, ...]:
    """Return a row for each kind of operation of a tablet, in the order of `OperationName`."""
    settings = facts.table.settings
    heat = workload_score(facts.heat.scans_s, facts.heat.rows_s)
    rows: list[api.MaintenanceOperation] = []
    for name, row_of in KINDS.items():
        row = row_of(facts)
        # Only scans benefit from merging deltas into their base, so writes do not count here.
        workload = heat.flush if name is OperationName.MAJOR_DELTA else heat.compact
        adjusted = adjusted_score(row.score, workload, settings.maintenance_priority)
        rows.append(replace(row, workload=workload, adjusted=adjusted))
    return tuple(rows)


def ranked(rows: Sequence[api.MaintenanceOperation]) -> tuple[api.MaintenanceOperation, ...]:
    """Return rows with the rank, and the step of Kudu's rule, of the runnable ones.

    Jobs are compared by their priority in the queue, so their ranks are the order in which they
    start; the other rows by their adjusted score.
    """
    statistics = [
        OperationStatistics(
            name=f"{row.tablet} {row.kind}",
            runnable=row.state == api.MaintenanceState.RUNNABLE,
            data_retained_bytes=row.freed_bytes if row.priority is None else 0,
            perf=row.adjusted if row.priority is None else float(row.priority),
        )
        for row in rows
    ]
    order = enumerate(ranked_operations(statistics), start=1)
    places = {operation.name: (rank, step) for rank, (operation, step) in order}
    return tuple(_with_place(row, places.get(f"{row.tablet} {row.kind}")) for row in rows)


def _with_place(
    row: api.MaintenanceOperation, place: tuple[int, str] | None
) -> api.MaintenanceOperation:
    if place is None:
        return row
    rank, step = place
    return replace(row, rank=rank, step="space" if row.freed_bytes else step)


def queue_priority(job: Job, table: Table, heat: Heat, gain: float = 1.0) -> int:
    """Return the priority under which a job is queued.

    A system job that drops files frees space at no cost, so it is the first of its class. The
    settings `gain_points`, `workload_points` and `maintenance_priority` of a table change the
    points of its system jobs within their class: its score becomes the rank of a job. All others
    keep the priority that their planner assigned.

    Args:
        job: The job.
        table: Its table.
        heat: Read and write rates of its tablet.
        gain: Gain of the table's recent jobs per expected gain; multiplies the points of the job
            if the table has one of the settings.
    """
    settings = table.settings
    if job.kind is not Kind.SYSTEM or job.action == JobAction.ANALYZE:
        return job.priority
    if job.action == JobAction.DROP:
        return class_of(job.priority) * CLASS_WIDTH + CLASS_WIDTH - 1
    points, priority = settings.workload_points, job.priority
    if not (settings.gain_points or points or settings.maintenance_priority):
        return priority
    if settings.gain_points and class_of(priority) is not PriorityClass.URGENT:
        gained = round(settings.gain_points * _job_score(job))
        priority = class_of(priority) * CLASS_WIDTH + min(gained, CLASS_WIDTH - 1)
    added = workload_score(heat.scans_s, heat.rows_s, points).compact if points else 0.0
    return adjusted_priority(priority, added, settings.maintenance_priority, gain)


def _job_score(job: Job) -> float:
    """Return the number of files that a job saves per 64 MiB read and written."""
    return _per_cost(_files_saved(job), job.cost_bytes)


def _files_saved(job: Job, size_factor: float = 1.0) -> float:
    return max(1.0, len(job.inputs) - job.outputs_expected * size_factor)


# ---------------------------------------------------------------------------- One function per kind


def _merging(facts: TabletFacts) -> api.MaintenanceOperation:
    return _of_jobs(facts, OperationName.MERGING)


def _drops(facts: TabletFacts) -> api.MaintenanceOperation:
    return _of_jobs(facts, OperationName.DROPS)


def _minor_delta(facts: TabletFacts) -> api.MaintenanceOperation:
    """Return the row of minor delta compactions, with Kudu's score of the best delta set."""
    if not facts.table.key:
        return _not_applicable(OperationName.MINOR_DELTA, _NO_KEY)(facts)
    row = _of_jobs(facts, OperationName.MINOR_DELTA)
    sets = delta_sets(facts.tablet.files.values())
    score = max((minor_delta_score(len(set_.deltas)) for set_ in sets), default=0.0)
    return replace(row, score=score, why=row.why or _why_no_delta_jobs(facts))


def _major_delta(facts: TabletFacts) -> api.MaintenanceOperation:
    """Return the row of major delta compactions, with Kudu's score of the best delta set."""
    if not facts.table.key:
        return _not_applicable(OperationName.MAJOR_DELTA, _NO_KEY)(facts)
    row = _of_jobs(facts, OperationName.MAJOR_DELTA)
    sets = delta_sets(facts.tablet.files.values())
    scores = (major_delta_score(set_.delta_bytes, set_.base_bytes) for set_ in sets)
    return replace(row, score=max(scores, default=0.0), why=row.why or _why_no_delta_jobs(facts))


def _why_no_delta_jobs(facts: TabletFacts) -> str:
    deltas = {
        file.path
        for delta_set in delta_sets(facts.tablet.files.values())
        for file in delta_set.deltas
    }
    if not deltas:
        return "no deltas: no file overlaps a larger one"
    left = {path: why for path, why in facts.plan.left.items() if path in deltas}
    if facts.table.settings.planner != "delta":
        return "its planner has no separate delta jobs: it merges base and deltas together"
    return refusal_reason(left) if left else "its deltas are in other jobs of the plan"


def _kind_of(job: Job) -> OperationName:
    """Return the operation kind of a system job."""
    if job.action == JobAction.DROP:
        return OperationName.DROPS
    made = dict(job.output_tags).get(DELTA_TAG)
    kinds = {MINOR: OperationName.MINOR_DELTA, MAJOR: OperationName.MAJOR_DELTA}
    return kinds.get(made or "", OperationName.MERGING)


def _of_jobs(facts: TabletFacts, name: OperationName) -> api.MaintenanceOperation:
    """Return the row of the plan's jobs of one kind, with the figures of the best job.

    Without jobs, the row of a delta compaction has no reason; the caller adds it.
    """
    jobs = [job for job in facts.plan.jobs if job.kind is Kind.SYSTEM and _kind_of(job) is name]
    # A running entry does not record its operation kind, so it is counted as a merge.
    merges = name is OperationName.MERGING
    running = (
        sum(entry.kind is Kind.SYSTEM for entry in facts.tablet.running.values()) if merges else 0
    )
    row = api.MaintenanceOperation(
        tablet=facts.tablet.id.text, kind=name.value, running=running, jobs=len(jobs)
    )
    if not jobs:
        return _without_jobs(facts, row, name)
    able = [job for job in jobs if facts.why_held(job) is None]
    best = max(able or jobs, key=lambda job: queue_priority(job, facts.table, facts.heat))
    held, needs = facts.why_held(best), facts.needs(best.group)
    state = api.MaintenanceState.RUNNABLE if held is None else api.MaintenanceState.WAITING
    correction = facts.plan.correction
    gain = _files_saved(best, correction.files)
    rate = correction.bytes_s or needs.slot_bytes_s
    return replace(
        row,
        state=state.value,
        why=best.reason if held is None else held,
        files=len(best.inputs),
        gain=gain,
        gain_unit="files fewer",
        cost_bytes=best.cost_bytes,
        cpu_s=best.input_bytes / rate if rate and best.cost_bytes else None,
        memory_bytes=needs.memory_bytes if best.cost_bytes else 0,
        freed_bytes=best.input_bytes if name is OperationName.DROPS else 0,
        score=_per_cost(gain, best.cost_bytes),
        priority=queue_priority(best, facts.table, facts.heat, correction.gain),
        group=best.group,
    )


def _without_jobs(
    facts: TabletFacts, row: api.MaintenanceOperation, name: OperationName
) -> api.MaintenanceOperation:
    if facts.failure:
        return replace(row, state=api.MaintenanceState.WAITING.value, why=facts.failure)
    if row.running:
        jobs = format_count(row.running, "job")
        why = f"{jobs} running on its files; a file is in at most one job"
        return replace(row, state=api.MaintenanceState.RUNNING.value, why=why)
    if facts.plan.holds:
        why = "; ".join(facts.plan.holds)
        return replace(row, state=api.MaintenanceState.WAITING.value, why=why)
    if name is OperationName.MERGING:
        why = refusal_reason(facts.plan.left)
    elif name is OperationName.DROPS:
        why = (
            "no job of the plan drops files: no file has expired completely, or the planner merges"
        )
    else:
        why = ""
    return replace(row, why=why)


def _split(facts: TabletFacts) -> api.MaintenanceOperation:
    tablet, table = facts.tablet, facts.table
    row = api.MaintenanceOperation(tablet=tablet.id.text, kind=OperationName.SPLIT.value)
    why_not = why_not_split(tablet, table, facts.now_s, facts.rest_s)
    if why_not is not None:
        return replace(row, why=why_not)
    size = sum(file.size_bytes for file in tablet.files.values())
    gain = size / table.settings.split_bytes - 1
    return replace(
        row,
        state=api.MaintenanceState.RUNNABLE.value,
        why=why_split(tablet, table, facts.now_s, facts.rest_s) or "",
        files=len(tablet.files),
        gain=gain,
        gain_unit="times split_bytes above the limit",
        cost_bytes=2 * size,
        score=_per_cost(gain, 2 * size),
    )


def _merge(facts: TabletFacts) -> api.MaintenanceOperation:
    tablet, table, right = facts.tablet, facts.table, facts.right
    row = api.MaintenanceOperation(tablet=tablet.id.text, kind=OperationName.MERGE.value)
    why_not: str | None = "it is the last tablet: the previous tablet would be merged into it"
    if right is not None:
        why_not = why_not_merge(tablet, right, table, facts.now_s, facts.rest_s)
    if right is None or why_not is not None:
        return replace(row, why=why_not or "")
    size = sum(file.size_bytes for part in (tablet, right) for file in part.files.values())
    return replace(
        row,
        state=api.MaintenanceState.RUNNABLE.value,
        why=why_merge(tablet, right, table, facts.now_s, facts.rest_s) or "",
        files=len(tablet.files) + len(right.files),
        gain=1.0,
        gain_unit="tablets fewer",
        score=1 - size / merge_bytes(table),
    )


def _garbage(facts: TabletFacts) -> api.MaintenanceOperation:
    counts = facts.garbage
    row = api.MaintenanceOperation(tablet=facts.tablet.id.text, kind=OperationName.GARBAGE.value)
    row = replace(row, files=counts.waiting, gain=float(counts.deletable), gain_unit="files fewer")
    if counts.deletable:
        files = format_count(counts.deletable, "replaced file")
        why = f"{files} can be deleted: the next round of the collector deletes them"
        row = replace(row, freed_bytes=counts.deletable, score=float(counts.deletable))
        return replace(row, state=api.MaintenanceState.RUNNABLE.value, why=why)
    if counts.waiting:
        files = format_count(counts.waiting, "replaced file")
        keeper = "a grace period, a reader or the next manifest"
        why = f"{files} cannot be deleted now: {keeper} keeps them"
        return replace(row, state=api.MaintenanceState.WAITING.value, why=why)
    return replace(row, why="no replaced file waits for deletion")


def _analysis(facts: TabletFacts) -> api.MaintenanceOperation:
    """Return the row of the analysis: the next visit by planners, selectors and split rules."""
    record = facts.tablet.record
    row = api.MaintenanceOperation(tablet=facts.tablet.id.text, kind=OperationName.ANALYSIS.value)
    if needs_look(record, facts.table, facts.now_s):
        why = (
            "the tablet has changed, or has work that runs, waits or is due, since its record"
            " was written"
        )
        return replace(row, state=api.MaintenanceState.RUNNABLE.value, why=why, score=1.0)
    why = f"its record states {record.analysis.value} for these files and settings"
    return replace(row, why=why)


def _statistics(facts: TabletFacts) -> api.MaintenanceOperation:
    """Return the row of the analysis of live bytes, the job with the lowest priority."""
    tablet, settings = facts.tablet, facts.table.settings
    row = api.MaintenanceOperation(tablet=tablet.id.text, kind=OperationName.STATISTICS.value)
    group = wanted_analysis(tablet.record) or facts.plan.analysis_group
    unmeasured = unmeasured_share(tablet.files.values())
    if not group:
        trigger = f"the trigger analysis asks from {settings.analysis_share:.0%} on"
        if ANALYSIS not in settings.triggers:
            trigger = f"`neve analyze {facts.table.name}` asks for it"
        return replace(row, why=f"{unmeasured:.0%} of its bytes are not counted; {trigger}")
    job = analysis_job(tablet.id, facts.table.name, group)
    held = facts.why_held(job)
    state = api.MaintenanceState.RUNNABLE if held is None else api.MaintenanceState.WAITING
    size = total_bytes(tablet.files.values())
    row = replace(row, state=state.value, why=held or job.reason, files=len(tablet.files))
    return replace(row, cost_bytes=size, priority=job.priority, group=group)


def _not_applicable(
    name: OperationName, why: str
) -> Callable[[TabletFacts], api.MaintenanceOperation]:
    def row(facts: TabletFacts) -> api.MaintenanceOperation:
        return api.MaintenanceOperation(
            tablet=facts.tablet.id.text,
            kind=name.value,
            state=api.MaintenanceState.NOT_APPLICABLE.value,
            why=why,
        )

    return row


_NO_KEY = "the table has no key: a row never updates a row of another file"

KINDS: Mapping[OperationName, Callable[[TabletFacts], api.MaintenanceOperation]] = {
    OperationName.MERGING: _merging,
    OperationName.DROPS: _drops,
    OperationName.SPLIT: _split,
    OperationName.MERGE: _merge,
    OperationName.GARBAGE: _garbage,
    OperationName.ANALYSIS: _analysis,
    OperationName.STATISTICS: _statistics,
    OperationName.MINOR_DELTA: _minor_delta,
    OperationName.MAJOR_DELTA: _major_delta,
}
"""Kind → function that returns the row of a tablet; manifests, buffers and lakes belong to tables.
A test checks that the registry is complete."""


def _per_cost(gain: float, cost_bytes: int) -> float:
    return gain / max(1.0, cost_bytes / COST_UNIT_BYTES)
