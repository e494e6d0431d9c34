"""Apache Kudu's scores of maintenance operations, and which one its scheduler runs next. Pure.

The formulas are those of `maintenance_manager.cc`, `tablet_mm_ops.cc` and
`tablet_replica_mm_ops.cc`. Chance comes in as numbers from 0 to 1.

The service uses `workload_score` and `adjusted_priority` to order system jobs of tables that ask
for it, `find_best_operation` to rank what `neve ops` shows, and the scores of delta compactions for
its rows. Scores of flushes have no use here: appends are files at once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from common.model.job import CLASS_WIDTH, PriorityClass, class_of

# ------------------------------------------------------------------------- Of single operations

FLUSH_LATE_MS = 120_000.0
"""A buffer that is older is flushed for its age."""
FLUSH_UPPER_MS = 3_600_000.0
"""A buffer of this age has the full score of age."""
STORES_UPPER = 1000
"""Delta stores that give the full score of a minor delta compaction."""
MAJOR_RATIO_MIN = 0.1
"""Below this share of the base, updates are not worth a major delta compaction."""


def flush_score(anchored_mb: float, age_ms: float, threshold_mb: float) -> float:
    """Return what the flush of a buffer is worth.

    At the threshold and above it counts every MiB too much, at least 1, without a bound. Below it
    age counts, or size if that gives more, up to 1.

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
    """Return what the merge of the delta stores of a row set is worth, from 0 to 1."""
    return min(1.0, stores / STORES_UPPER) if stores > 1 else 0.0


def major_delta_score(redo_bytes: float, base_bytes: float) -> float:
    """Return what the merge of updates into their base is worth, from 0 to 1."""
    if base_bytes <= 0 or redo_bytes / base_bytes < MAJOR_RATIO_MIN:
        return 0.0
    return min(1.0, redo_bytes / base_bytes)


# ------------------------------------------------------------ Workload, and priorities of tables

SCANS_FULL_S = 1.0
"""Scans per second that give the full score of reads."""
ROWS_FULL_S = 1000.0
"""Rows written per second that give the full score of writes."""
PRIORITY_BASE = 1.1
PRIORITY_MAX = 5
"""Priorities of tables count from its negative to it."""


@dataclass(frozen=True, slots=True)
class WorkloadScore:
    """What the workload of a tablet adds to its operations."""

    flush: float
    """To those that free memory: reads alone count."""
    compact: float
    """To those that make reads faster: reads and writes count."""


def workload_score(
    scans_per_s: float, rows_written_per_s: float, upper_bound: float = 1.0
) -> WorkloadScore:
    """Return what the workload of a tablet adds to the scores of its operations.

    Args:
        scans_per_s: Scans of the tablet per second.
        rows_written_per_s: Rows written to it per second.
        upper_bound: The most that is added; 0: nothing is.
    """
    reads = min(1.0, scans_per_s / SCANS_FULL_S) * upper_bound
    writes = min(1.0, rows_written_per_s / ROWS_FULL_S) * upper_bound
    return WorkloadScore(flush=reads, compact=min(upper_bound, reads + writes))


def priority_factor(priority: int) -> float:
    """Return by what the priority of a table multiplies scores."""
    return float(PRIORITY_BASE ** max(-PRIORITY_MAX, min(PRIORITY_MAX, priority)))


def adjusted_score(perf: float, workload: float, priority: int) -> float:
    """Return the score by which operations of different tables are compared.

    Args:
        perf: What the operation is worth by itself. 0 stays 0: nothing is gained by it, however
            busy its tablet and dear its table are. Less than 0 stays less.
        workload: What its tablet's workload adds (`workload_score`).
        priority: Of its table; what is beyond -5 and 5 counts as these.
    """
    return 0.0 if perf == 0 else (perf + workload) * priority_factor(priority)


def adjusted_priority(job_priority: int, workload: float, table_priority: int) -> int:
    """Return the priority of a system job with workload and table priority counted in.

    The points of the job inside its class are its score. It stays in its class, so that no table
    priority outranks a request or a tablet over its limit.

    Args:
        job_priority: As its planner has given it.
        workload: Points that the workload of its tablet adds.
        table_priority: Of its table.
    """
    if not workload and not table_priority:
        return job_priority
    rank = class_of(job_priority)
    if rank is PriorityClass.URGENT:
        return job_priority
    points = adjusted_score(job_priority - rank * CLASS_WIDTH, workload, table_priority)
    return rank * CLASS_WIDTH + min(max(round(points), 0), CLASS_WIDTH - 1)


# ----------------------------------------------------------------------- Which operation is next


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationStatistics:
    """What the scheduler looks at, for one operation."""

    name: str
    runnable: bool = True
    """Whether it may run now: not cancelled, not running already, with something to do."""
    low_io: bool = False
    """Whether it costs next to no I/O."""
    logs_retained_bytes: int = 0
    """Log that can go once it has run."""
    ram_anchored_bytes: int = 0
    """Memory that it frees."""
    data_retained_bytes: int = 0
    """Disk space that it frees."""
    perf: float = 0.0
    """What it is worth for later reads and writes."""
    workload: float = 0.0
    priority: int = 0
    """Of its table."""

    @property
    def adjusted(self) -> float:
        """The score that step 5 compares."""
        return adjusted_score(self.perf, self.workload, self.priority)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerRules:
    """Limits of the scheduler, with Kudu's defaults."""

    pressure_pct: float = 60.0
    """Share of the memory from which on operations that free memory go first."""
    soft_pct: float = 80.0
    """Share from which on nothing else runs."""
    log_target_bytes: int = 1024 * 1024**2
    """An operation that frees so much log runs, whatever others are worth."""
    data_min_bytes: int = 0
    """An operation that frees no more than that is not run for space."""
    data_probability: float = 0.5
    """Chance of what frees space to run before what makes reads faster."""
    other_probability: float = 0.0
    """Chance of other operations to run under memory pressure, at its beginning; it fades to 0
    at `soft_pct`."""


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
    """Return the chance that memory alone makes an operation run that frees some.

    Args:
        used_pct: Share of the memory limit that is in use, in percent.
        other_probability: As in `SchedulerRules`.
        rules: For the limits of memory.
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
    """Return the operation that runs next, or None if nothing is worth it.

    1. Of those that cost next to no I/O, the one that frees most log.
    2. Under memory pressure, the one that frees most log, then most memory; by chance, others may
       go on while the pressure is low.
    3. The one that frees most log, then most memory, if the log is over its target.
    4. The one that frees most space, by chance, or if nothing is worth anything.
    5. The one with the best adjusted score above 0.

    Of equal ones the first wins.

    Args:
        operations: All of them, in a fixed order.
        used_pct: Share of the memory limit that is in use, in percent.
        memory_draw: A number from 0 to 1 by chance, for step 2.
        data_draw: Another one, for step 4.
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
    """Return all operations that would run, in the order of `find_best_operation`, with its step.

    Without memory pressure, and with what frees space first.
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
