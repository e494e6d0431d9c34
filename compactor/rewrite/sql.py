"""The rewrite as Spark jobs. Beside it only `handing` and `spark_errors` know Spark.

A transform with expressions puts two stages before the others, in the same tasks: one
reads the columns that the expressions need, Spark works them out, and whoever reads the
inputs takes the values row by row. Nothing else of a row crosses.

Whatever writes an output runs in one task, once: its files have final names, and a
second try beside a first one that was only thought dead would write into them.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from common.errors import NotStitchableError
from common.expressions import SPARK_SETTINGS
from compactor.rewrite import tasks
from compactor.rewrite.carriers import KEY, carried_schema
from compactor.rewrite.handing import only_once, result_of, run_tasks
from compactor.rewrite.kernel.words import LongKeyError
from compactor.rewrite.native import has_long_bounds, is_native
from compactor.rewrite.native_job import merge_natively
from compactor.rewrite.plan import RewritePlan
from compactor.rewrite.questions import Answers, Asking, ask
from compactor.rewrite.shortage import bounded_memory, within_memory
from compactor.rewrite.spark_errors import translated
from compactor.rewrite.stitch_job import StitchPlan, stitch_whole
from compactor.rewrite.tasks import RESULT_SCHEMA, TaskResult
from compactor.rewrite.telling import without_inputs
from compactor.rewrite.whole import rewrite_natively

IN_MEMORY_BYTES = 64 * 1024**2
IN_MEMORY_ROWS = 2_000_000
READ_TASK_BYTES = 32 * 1024**2
"""Decoded bytes that one task reads for a sort, at least."""
READ_TASKS_MAX = 64
STITCH_HERE_BYTES = 256 * 1024**2
"""Copied by the driver itself: a task takes as long to begin as a disk to copy half of it."""
STITCH_HERE_FOOTER_BYTES = 1024**2
"""Opened, footers take up to seventy times as much, and nothing bounds a driver's memory."""
STITCH, MERGE = "stitch", "merge"
NATIVE = True
"""Whether the kernel merges what it knows; tests hold the general ways against it."""

Batches = Iterator[pa.RecordBatch]
Task = Callable[[RewritePlan, Answers | None], TaskResult]


def rewrite_with_spark(
    spark: Any, plan: RewritePlan, stitching: StitchPlan | None = None
) -> tuple[TaskResult, str]:
    """Run the rewrite; return what came of it and the way that was taken.

    Args:
        spark: The session.
        plan: What to do.
        stitching: How to do it without reading a row; None: they must be read.

    Raises:
        RewriteError: It failed; nothing is left under the outputs' names.
    """
    if stitching is not None:
        with suppress(NotStitchableError):
            return _stitched(spark, plan, stitching), STITCH
    if not plan.rules.key:
        return _outcome(plan, lambda: _one_task(spark, plan, tasks.rewrite_bag)), "bag"
    if NATIVE and is_native(plan):
        if _fits_memory(plan):
            (merged,) = run_tasks(spark, plan, [partial(rewrite_natively, plan)])
            return merged, MERGE
        if not has_long_bounds(plan):
            with suppress(LongKeyError):
                run = partial(run_tasks, spark, without_inputs(plan))
                cores = spark.sparkContext.defaultParallelism
                return merge_natively(plan, run, cores), MERGE
    if _fits_memory(plan):
        return _outcome(plan, lambda: _one_task(spark, plan, tasks.rewrite_in_memory)), "memory"
    return _outcome(plan, lambda: _sorted(spark, plan)), "sql"


def _stitched(spark: Any, plan: RewritePlan, stitching: StitchPlan) -> TaskResult:
    work = partial(stitch_whole, stitching, plan)
    small = stitching.size_bytes <= STITCH_HERE_BYTES
    if small and plan.footer_bytes <= STITCH_HERE_FOOTER_BYTES:
        return work()
    result: TaskResult
    (result,) = run_tasks(spark, plan, [work])
    return result


def passes_of(plan: RewritePlan) -> int:
    """Return how often each row is counted in the marks of progress."""
    native = NATIVE and is_native(plan)
    return 2 if plan.rules.key and not _fits_memory(plan) and not native else 1


def _fits_memory(plan: RewritePlan) -> bool:
    bytes_max = min(IN_MEMORY_BYTES, plan.memory.in_memory_bytes)
    rows_max = IN_MEMORY_ROWS >> plan.memory.halvings
    return plan.decoded_bytes <= bytes_max and plan.rows <= rows_max


def _one_task(spark: Any, plan: RewritePlan, task: Task) -> Any:
    """Return a frame whose one row says how the task ended."""
    if (answered := _answered(spark, plan, 1)) is not None:
        return answered.mapInArrow(partial(_run_answered, plan, task), RESULT_SCHEMA)
    one = spark.range(0, 1, 1, numPartitions=1)
    return one.mapInArrow(partial(_run_alone, plan, task), RESULT_SCHEMA)


def _sorted(spark: Any, plan: RewritePlan) -> Any:
    """Return a frame whose one row says how reading, sorting and writing ended."""
    count = len(plan.inputs)
    readers = min(count, READ_TASKS_MAX, 1 + plan.decoded_bytes // READ_TASK_BYTES)
    schema = carried_schema(plan.schema)
    if (answered := _answered(spark, plan, readers)) is not None:
        rows = answered.mapInArrow(partial(tasks.read_answered, plan), schema)
    else:
        numbers = spark.range(0, count, 1, numPartitions=readers)
        rows = numbers.mapInArrow(partial(_read, plan), schema)
    # Encoded keys are bytes, and Spark compares bytes unsigned: the order of keys.
    ordered = rows.repartition(1).sortWithinPartitions(KEY)
    return ordered.mapInArrow(partial(_write, plan), RESULT_SCHEMA)


def _answered(spark: Any, plan: RewritePlan, readers: int) -> Any:
    """Return a frame of the values of the transform's expressions; None: it has none.

    Its partitions hold whole inputs, each in the order of its rows.
    """
    if plan.transform is None or not plan.transform.asks_spark:
        return None
    asking = Asking(plan, plan.transform)
    own = spark.newSession()  # What expressions mean depends on settings of the session.
    for name, value in SPARK_SETTINGS.items():
        own.conf.set(name, value)
    numbers = own.range(0, len(plan.inputs), 1, numPartitions=readers)
    questions = numbers.mapInArrow(partial(_ask, plan), asking.schema)
    return questions.selectExpr(*asking.answers)


def _ask(plan: RewritePlan, batches: Batches) -> Batches:
    yield from ask(plan, _numbers(batches))


def _run_alone(plan: RewritePlan, task: Task, batches: Batches) -> Batches:
    only_once(plan)
    for _ in batches:  # One row, which stands for the job.
        yield tasks.outcome_batch(within_memory(plan, partial(task, plan, None)))


def _run_answered(plan: RewritePlan, task: Task, batches: Batches) -> Batches:
    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        # An expression that failed fails again here, and says more than that it did.
        for _ in batches:
            continue
    only_once(plan)
    yield tasks.outcome_batch(within_memory(plan, partial(task, plan, Answers(batches))))


def _read(plan: RewritePlan, batches: Batches) -> Batches:
    with bounded_memory(plan):
        yield from tasks.read_for_sort(plan, _numbers(batches))


def _numbers(batches: Batches) -> Iterator[int]:
    return (number for batch in batches for number in batch.column(0).to_pylist())


def _write(plan: RewritePlan, batches: Batches) -> Batches:
    only_once(plan)
    yield tasks.outcome_batch(within_memory(plan, partial(tasks.write_sorted, plan, batches)))


def _outcome(plan: RewritePlan, frame: Callable[[], Any]) -> TaskResult:
    """Run the job and return its result, or raise what ended it."""
    (row,) = _collected(plan, frame)
    outcome = result_of(row["result"])
    assert isinstance(outcome, TaskResult), type(outcome)
    return outcome


def _collected(plan: RewritePlan, frame: Callable[[], Any]) -> list[Any]:
    try:
        return list(frame().collect())
    except Exception as error:
        raise translated(plan, error) from error
