"""The operations of a tablet: gain, cost and needs of each kind, or the reason it does not run.

    TabletFacts ──► `KINDS`: one function per kind ──► rows ──► `ranked`

Rows report decisions that other code makes: merges, drops and delta compactions are the jobs of the
tablet's plan, splits and merges of tablets come from `split_merge`, garbage from
the collector, analysis from `scans`. Delta compactions are scored by the sizes of base and
deltas (`common.spi.deltas`). The list includes kinds of other systems that have no work here, with
the reason, so that operators who know them find an answer.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import exp
from operator import attrgetter

from common.model.job import CLASS_WIDTH, Job, JobAction, Kind, PriorityClass, TabletPlan, class_of
from common.model.table import Table, TableSettings
from common.model.tablet import Tablet, TabletId
from common.primitives import BoundedMap
from common.spi.deltas import DELTA_TAG, MAJOR, MINOR, delta_sets
from common.spi.planner import COLD, Heat
from common.units import format_count
from coordinator.core.scans import needs_look
from coordinator.core.split_merge import (
    merge_bytes,
    why_merge,
    why_not_merge,
    why_not_split,
    why_split,
)
from coordinator.core.triggers import refusal_reason
from neve import api

# --------------------------------------------------------------------------------------------- Heat
# Decaying read and write rates of tablets, in the coordinator's memory. Pure.
#
# Written rows are the rows of files that users added; the scanner sees them when it plans a tablet.
# Scans come from the gateway and from reports of other readers. The rates start at zero with the
# coordinator and need about a minute to become accurate.


WINDOW_S = 60.0
"""Time in which the weight of an event decays to 1/e."""


@dataclass(slots=True)
class _Counts:
    seen_s: float
    scans: float = 0.0
    rows: float = 0.0
    added_s: float = 0.0
    """Store time of the newest counted add."""

    def decay(self, now_s: float) -> None:
        """Decay the counts up to now."""
        kept = exp(-max(0.0, now_s - self.seen_s) / WINDOW_S)
        self.scans, self.rows, self.seen_s = self.scans * kept, self.rows * kept, now_s


class TabletHeat:
    """The rates of tablets. Bounded: the tablet that was inactive for longest is evicted."""

    def __init__(self, tablets_max: int) -> None:
        """Create an empty registry."""
        self._counts: BoundedMap[TabletId, _Counts] = BoundedMap(tablets_max)

    def note_adds(self, tablet: TabletId, adds: Sequence[tuple[float, int]], now_s: float) -> None:
        """Count written rows; adds that were counted before are ignored.

        Args:
            tablet: The tablet with the adds.
            adds: Store time and row count of each add.
            now_s: The current time.
        """
        before = self._counts.get(tablet)
        counted_s = 0.0 if before is None else before.added_s
        rows = sum(rows for at_s, rows in adds if at_s > counted_s)
        if not rows:
            return
        counts = self._now(tablet, now_s)
        counts.rows += rows
        counts.added_s = max(at_s for at_s, _ in adds)

    def note_scans(self, tablet: TabletId, scans: int, now_s: float) -> None:
        """Count scans of a tablet."""
        self._now(tablet, now_s).scans += scans

    def of(self, tablet: TabletId, now_s: float) -> Heat:
        """Return the current rates of a tablet."""
        counts = self._counts.get(tablet)
        if counts is None:
            return COLD
        kept = exp(-max(0.0, now_s - counts.seen_s) / WINDOW_S) / WINDOW_S
        return Heat(scans_s=counts.scans * kept, rows_s=counts.rows * kept)

    def forget(self, tablet: TabletId) -> None:
        """Remove a tablet that no longer exists."""
        self._counts.pop(tablet)

    def _now(self, tablet: TabletId, now_s: float) -> _Counts:
        counts = self._counts.get(tablet) or _Counts(seen_s=now_s)
        counts.decay(now_s)
        self._counts.put(tablet, counts)
        return counts


# ------------------------------------------------------------------------------------------- Scores
# Apache Kudu's scores of maintenance operations, and the choice of its scheduler. Pure.
#
# The formulas come from `maintenance_manager.cc`, `tablet_mm_ops.cc` and
# `tablet_replica_mm_ops.cc`. Random draws are arguments from 0 to 1.
#
# The service uses `workload_score` and `adjusted_priority` to order the system jobs of tables that
# configure it, `find_best_operation` to rank the rows of `neve ops`, and the scores of delta
# compactions for these rows. Flush scores are not used: an append is written to a file at once.


# ----------------------------------------------------------------------------- Single operations

FLUSH_LATE_MS = 120_000.0
"""Age above which a buffer gets a score for its age."""
FLUSH_UPPER_MS = 3_600_000.0
"""Age at which a buffer gets the full age score."""
STORES_UPPER = 1000
"""Number of delta stores at which a minor delta compaction gets the full score."""
MAJOR_RATIO_MIN = 0.1
"""Ratio of updates to base below which a major delta compaction scores 0."""


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


def minor_delta_score(stores: int) -> float:
    """Return the score of merging the delta stores of a row set, from 0 to 1."""
    return min(1.0, stores / STORES_UPPER) if stores > 1 else 0.0


def major_delta_score(redo_bytes: float, base_bytes: float) -> float:
    """Return the score of merging updates into their base, from 0 to 1."""
    if base_bytes <= 0 or redo_bytes / base_bytes < MAJOR_RATIO_MIN:
        return 0.0
    return min(1.0, redo_bytes / base_bytes)


# --------------------------------------------------------------- Workload and table priorities

SCANS_FULL_S = 1.0
"""Scans per second that give the full read score."""
ROWS_FULL_S = 1000.0
"""Rows written per second that give the full write score."""
PRIORITY_BASE = 1.1
PRIORITY_MAX = 5
"""Table priorities are clamped to the range from `-PRIORITY_MAX` to `PRIORITY_MAX`."""


@dataclass(frozen=True, slots=True)
class WorkloadScore:
    """Score that the workload of a tablet adds to its operations."""

    flush: float
    """Added to operations that free memory; depends on reads only."""
    compact: float
    """Added to operations that speed up reads; depends on reads and writes."""


def workload_score(
    scans_per_s: float, rows_written_per_s: float, upper_bound: float = 1.0
) -> WorkloadScore:
    """Return the scores that the workload of a tablet adds to its operations.

    Args:
        scans_per_s: Scans of the tablet per second.
        rows_written_per_s: Rows written to it per second.
        upper_bound: Maximum score that is added; 0 disables the addition.
    """
    reads = min(1.0, scans_per_s / SCANS_FULL_S) * upper_bound
    writes = min(1.0, rows_written_per_s / ROWS_FULL_S) * upper_bound
    return WorkloadScore(flush=reads, compact=min(upper_bound, reads + writes))


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


# --------------------------------------------------------------------- Choosing the next operation


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationStatistics:
    """Inputs of the scheduler for one operation."""

    name: str
    runnable: bool = True
    """Whether it may run now: not cancelled, not running, and with work to do."""
    low_io: bool = False
    """Whether it needs almost no I/O."""
    logs_retained_bytes: int = 0
    """Log bytes that it frees."""
    ram_anchored_bytes: int = 0
    """Memory that it frees."""
    data_retained_bytes: int = 0
    """Disk space that it frees."""
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
    ANALYSIS = "analysis"
    MINOR_DELTA = "minor-delta"
    MAJOR_DELTA = "major-delta"
    FLUSH = "flush"


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
    """Return a row for each kind of operation, in the order of `OperationName`."""
    settings = facts.table.settings
    heat = workload_score(facts.heat.scans_s, facts.heat.rows_s)
    rows: list[api.MaintenanceOperation] = []
    for name in OperationName:
        row = KINDS[name](facts)
        # Only scans benefit from merging deltas into their base, so writes do not count here.
        workload = heat.flush if name is OperationName.MAJOR_DELTA else heat.compact
        adjusted = adjusted_score(row.score, workload, settings.maintenance_priority)
        rows.append(replace(row, workload=workload, adjusted=adjusted))
    return tuple(rows)


def ranked(
    rows: Sequence[api.MaintenanceOperation], table_priority: int = 0
) -> tuple[api.MaintenanceOperation, ...]:
    """Return rows with the ranks that Kudu's rule gives to the runnable ones.

    Args:
        rows: Rows of any number of tablets.
        table_priority: Priority of their table.
    """
    places: dict[str, int] = {}
    statistics = [
        OperationStatistics(
            name=f"{row.tablet} {row.kind}",
            runnable=row.state == api.MaintenanceState.RUNNABLE,
            data_retained_bytes=row.freed_bytes,
            perf=row.score,
            workload=row.workload,
            priority=table_priority,
        )
        for row in rows
    ]
    for rank, (operation, _) in enumerate(ranked_operations(statistics), start=1):
        places[operation.name] = rank
    return tuple(replace(row, rank=places.get(f"{row.tablet} {row.kind}")) for row in rows)


def has_own_priorities(settings: TableSettings) -> bool:
    """Return whether a table's settings modify the priorities that its planner assigns."""
    return bool(settings.maintenance_priority or settings.workload_points)


def queue_priority(job: Job, table: Table, heat: Heat, gain: float = 1.0) -> int:
    """Return the priority under which a job is queued.

    System jobs of a table with `maintenance_priority` or `workload_points` get a different priority
    within their class; all others keep the priority that their planner assigned.

    Args:
        job: The job.
        table: Its table.
        heat: Read and write rates of its tablet.
        gain: Gain of the table's recent jobs per expected gain; multiplies the points of the job.
    """
    settings = table.settings
    if job.kind is not Kind.SYSTEM or not has_own_priorities(settings):
        return job.priority
    added = workload_score(heat.scans_s, heat.rows_s, settings.workload_points).compact
    return adjusted_priority(job.priority, added, settings.maintenance_priority, gain)


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
    best = max(able or jobs, key=attrgetter("priority"))
    held, needs = facts.why_held(best), facts.needs(best.group)
    correction = facts.plan.correction
    gain = max(1.0, len(best.inputs) - best.outputs_expected * correction.files)
    rate = correction.bytes_s or needs.slot_bytes_s
    return replace(
        row,
        state=(
            api.MaintenanceState.RUNNABLE if held is None else api.MaintenanceState.WAITING
        ).value,
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
    return replace(row, state=api.MaintenanceState.IDLE.value, why=why)


def _split(facts: TabletFacts) -> api.MaintenanceOperation:
    tablet, table = facts.tablet, facts.table
    row = api.MaintenanceOperation(tablet=tablet.id.text, kind=OperationName.SPLIT.value)
    why_not = why_not_split(tablet, table, facts.now_s, facts.rest_s)
    if why_not is not None:
        return replace(row, state=api.MaintenanceState.IDLE.value, why=why_not)
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
        return replace(row, state=api.MaintenanceState.IDLE.value, why=why_not or "")
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
        return replace(row, state=api.MaintenanceState.RUNNABLE.value, why=why)
    if counts.waiting:
        files = format_count(counts.waiting, "replaced file")
        why = (
            f"{files} cannot be deleted now: a grace period, a reader or the next manifest keeps"
            " them"
        )
        return replace(row, state=api.MaintenanceState.WAITING.value, why=why)
    return replace(
        row, state=api.MaintenanceState.IDLE.value, why="no replaced file waits for deletion"
    )


def _analysis(facts: TabletFacts) -> api.MaintenanceOperation:
    """Return the row of the analysis: the next visit by planners, selectors and split rules."""
    record = facts.tablet.record
    row = api.MaintenanceOperation(tablet=facts.tablet.id.text, kind=OperationName.ANALYSIS.value)
    if needs_look(record, facts.table, facts.now_s):
        why = (
            "the tablet has changed, or has work that runs, waits or is due, since its record"
            " was written"
        )
        return replace(row, state=api.MaintenanceState.RUNNABLE.value, why=why)
    why = f"its record states {record.analysis.value} for these files and settings"
    return replace(row, state=api.MaintenanceState.IDLE.value, why=why)


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
    OperationName.MINOR_DELTA: _minor_delta,
    OperationName.MAJOR_DELTA: _major_delta,
    OperationName.FLUSH: _not_applicable(
        OperationName.FLUSH,
        "nothing is buffered: an append is written to a file before it is acknowledged",
    ),
}
"""Kind → function that returns its row. A test checks that the registry is complete."""


def _per_cost(gain: float, cost_bytes: int) -> float:
    return gain / max(1.0, cost_bytes / COST_UNIT_BYTES)
