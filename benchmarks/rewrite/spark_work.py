"""What the benchmark asks of a Spark driver: the same merge in Spark SQL, or Névé's rewrite.

Both run in the very process that a compactor uses: RayDP, one executor, two cores.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.rewrite.datasets import TOMBSTONE, VERSION
from benchmarks.rewrite.wanted import THREADS, Wanted
from benchmarks.rewrite.worker import sync_outputs
from common.wire import Assignment
from compactor.core import RewriteProgress
from compactor.rewrite.attempt import rewrite
from compactor.rewrite.spark_tasks import JOB_GROUP, SHARED_TASKS, SparkTask, TaskCall

TASK_END_S = 0.5
_run_in_shared_task, _shared_s = SparkTask.run, [0.0]


def _timed_run(task: SparkTask, job: TaskCall) -> bytes:
    """Run a job in a shared task, whose time Spark does not know, and add its time."""
    begun_s = time.perf_counter()
    outcome = _run_in_shared_task(task, job)
    _shared_s[0] += time.perf_counter() - begun_s
    return outcome


SparkTask.run = _timed_run  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class Ask:
    """One run: of a form of Spark's, or of Névé over an assignment."""

    form: str
    wanted: Wanted
    assignment: Assignment | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """How long it took, and by which kernel."""

    seconds: float
    unsynced_s: float | None = None
    """Without waiting for the disk; None: it cannot be separated."""
    kernel: str = ""
    split_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the parts of a job, in order."""


def work(
    spark: Any,
    ask: Ask,
    progress: Callable[[RewriteProgress], None],
    cancelled: Callable[[], bool],
    attach: Callable[[Any], None],
) -> Answer:
    """Do one run."""
    if ask.assignment is not None:
        return _rewritten(spark, ask, progress, cancelled, attach)
    wanted = ask.wanted
    SHARED_TASKS.end_tasks()  # One that waits for Névé's next job has one of the two cores.
    time.sleep(TASK_END_S)
    begun_s = time.perf_counter()
    frame = FORMS[ask.form](spark, wanted)
    context = spark.sparkContext
    context._jsc.hadoopConfiguration().set(  # noqa: SLF001 - PySpark has no other door to it
        "parquet.compression.codec.zstd.level", str(wanted.level)
    )
    writer = frame.write.mode("overwrite").option("compression", "zstd")
    writer.option("parquet.block.row.count.limit", str(wanted.group_rows)).parquet(wanted.out)
    written_s = time.perf_counter()
    sync_outputs(wanted.out)
    return Answer(time.perf_counter() - begun_s, written_s - begun_s)


def _rewritten(
    spark: Any,
    ask: Ask,
    progress: Callable[[RewriteProgress], None],
    cancelled: Callable[[], bool],
    attach: Callable[[Any], None],
) -> Answer:
    """Run Névé's job, whose outputs are always made durable, and split its time."""
    assert ask.assignment is not None
    jobs_before, shared_before_s = _job_ids(spark), _shared_s[0]
    begun_s = time.perf_counter()
    done = rewrite(spark, ask.assignment, progress, cancelled, attach)
    seconds = time.perf_counter() - begun_s
    own_s = _task_seconds(spark, _job_ids(spark) - jobs_before)
    task_s = own_s + _shared_s[0] - shared_before_s
    parts = done.timings_s
    split_s = {
        "plan": parts.get("plan", 0.0),
        "start": max(0.0, parts.get("rewrite", 0.0) - task_s),
        "task body": task_s,
        "read back": parts.get("verify", 0.0),
    }
    split_s["rest"] = max(0.0, seconds - sum(split_s.values()))
    return Answer(seconds, kernel=done.kernel, split_s=split_s)


def _job_ids(spark: Any) -> set[int]:
    group = spark.sparkContext.getLocalProperty(JOB_GROUP)
    return set(spark.sparkContext.statusTracker().getJobIdsForGroup(group))


def _task_seconds(spark: Any, job_ids: set[int]) -> float:
    """Return for how long any task of some Spark jobs ran, from Spark's own records."""
    context = spark.sparkContext
    records = context._jsc.sc().statusStore()  # noqa: SLF001 - PySpark has no other door to it
    intervals: list[tuple[float, float]] = []
    for job_id in job_ids:
        info = context.statusTracker().getJobInfo(job_id)
        for stage_id in info.stageIds if info is not None else ():
            tasks = records.taskList(int(stage_id), 0, 10_000)
            for number in range(tasks.size()):
                task = tasks.apply(number)
                if task.duration().isDefined():
                    begun_s = task.launchTime().getTime() / 1000
                    intervals.append((begun_s, begun_s + task.duration().get() / 1000))
    return joined_seconds(intervals)


def joined_seconds(intervals: list[tuple[float, float]]) -> float:
    """Return the length of the union of intervals."""
    sum_s, end_s = 0.0, float("-inf")
    for begun_s, ended_s in sorted(intervals):
        sum_s += max(0.0, ended_s - max(begun_s, end_s))
        end_s = max(end_s, ended_s)
    return sum_s


def _read(spark: Any, wanted: Wanted) -> Any:
    return spark.read.parquet(*wanted.data.paths)


def _window(spark: Any, wanted: Wanted) -> Any:
    """Range-partition once; Spark's window and the order of the output both use it."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    key = list(wanted.data.key)
    best_first = Window.partitionBy(*key).orderBy(f.desc(VERSION), f.desc(TOMBSTONE))
    ranged = _read(spark, wanted).repartitionByRange(THREADS, *key)
    ranked = ranged.withColumn("newest", f.row_number().over(best_first))
    best = ranked.where(f"newest = 1 AND NOT {TOMBSTONE}").drop("newest")
    return _changed(wanted, best).sortWithinPartitions(*key)


def _changed(wanted: Wanted, frame: Any) -> Any:
    """Apply the change of the job."""
    from pyspark.sql import functions as f

    change = wanted.data.change
    if change is None:
        return frame
    if change.delete_where:
        return frame.where(f"NOT ({change.delete_where})")
    return frame.withColumn(change.column, f.expr(change.value))


def _max_by(spark: Any, wanted: Wanted) -> Any:
    from pyspark.sql import functions as f

    key = list(wanted.data.key)
    rows = _read(spark, wanted)
    row = f.struct(*(name for name in rows.columns if name not in key))
    best = rows.groupBy(*key).agg(f.max_by(row, f.struct(VERSION, TOMBSTONE)).alias("best"))
    kept = best.select(*key, "best.*").where(f"NOT {TOMBSTONE}").select(*rows.columns)
    return _changed(wanted, kept).repartitionByRange(THREADS, *key).sortWithinPartitions(*key)


def _coalesce(spark: Any, wanted: Wanted) -> Any:
    """Bin-pack one group of files into one, as Iceberg's rewrite does it with Spark."""
    return _read(spark, wanted).coalesce(1)


FORMS: Mapping[str, Callable[[Any, Wanted], Any]] = {
    "window": _window,
    "max-by": _max_by,
    "coalesce": _coalesce,
}


def forms_for(key: tuple[str, ...]) -> list[str]:
    """Return the forms that make sense for a table."""
    return ["window", "max-by"] if key else ["coalesce"]
