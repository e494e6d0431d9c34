"""Apache Kudu's scores of maintenance operations, and the choice of its scheduler. Pure.

The formulas come from `maintenance_manager.cc`, `tablet_mm_ops.cc` and `tablet_replica_mm_ops.cc`.
Random draws are arguments from 0 to 1.

The service uses `workload_score` and `adjusted_priority` to order the system jobs of tables that
configure it, `find_best_operation` to rank the rows of `neve ops`, and the scores of delta
compactions for these rows. Flush scores are not used: an append is written to a file at once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from common.model.job import CLASS_WIDTH, PriorityClass, class_of

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


def adjusted_priority(job_priority: int, workload: float, table_priority: int) -> int:
    """Return the priority of a system job, adjusted by workload and table priority.

    The score of the job is its points within its priority class. The job stays in its class, so
    that no table priority outranks a request or a tablet over its limit.

    Args:
        job_priority: Priority from its planner.
        workload: Points that the workload of its tablet adds.
        table_priority: Priority of its table.
    """
    if not workload and not table_priority:
        return job_priority
    rank = class_of(job_priority)
    if rank is PriorityClass.URGENT:
        return job_priority
    points = adjusted_score(job_priority - rank * CLASS_WIDTH, workload, table_priority)
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
        if (found := step(able, used_pct, memory_draw, rules)) is not None:
            return found
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


def _log_then_memory(each: OperationStatistics) -> tuple[int, int]:
    return each.logs_retained_bytes, each.ram_anchored_bytes


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
