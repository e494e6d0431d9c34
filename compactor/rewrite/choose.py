"""Chooses the way of a job and runs it on Spark.

    stitch   row groups of all inputs are copied as bytes: no row wins, expires or changes
    merge    the kernel merges a keyed table, in one task or in ranges
    bag      an append-only table is copied row by row, without the expired rows
    memory   a small job that the kernel does not support is merged in one task
    sql      a larger one is sorted by Spark and merged by one task

A transform with expressions adds two stages before the others, in the same tasks: one
reads the columns that the expressions need, and Spark works the values out. Whoever reads
the inputs takes the values row by row. Nothing else of a row crosses.

Whatever writes an output runs in one task, once. Files have their final names, so a second
try beside a first one that was only thought dead would write into the same files.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from common.errors import NotStitchableError
from common.expressions import SPARK_SETTINGS
from compactor.rewrite import general_merge
from compactor.rewrite.general_merge import KEY_COLUMN, RESULT_SCHEMA, TaskResult, spark_schema
from compactor.rewrite.kernel.normalized_keys import LongKeyError
from compactor.rewrite.memory_guard import bounded_memory, with_memory_limit
from compactor.rewrite.merge.driver import merge_large_job
from compactor.rewrite.merge.tasks import (
    has_long_bounds,
    kernel_supports,
    merge_small_job,
    plan_without_inputs,
)
from compactor.rewrite.plan.rewrite_plan import RewritePlan
from compactor.rewrite.spark_tasks import (
    refuse_second_try,
    result_of,
    run_tasks,
    translate_error,
)
from compactor.rewrite.stitch_job import StitchPlan, stitch_whole
from compactor.rewrite.transform_expressions import (
    ExpressionInputs,
    ExpressionValues,
    read_expression_inputs,
)

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
USE_KERNEL = True
"""Whether the kernel merges what it knows; tests hold the general ways against it."""

Batches = Iterator[pa.RecordBatch]
Task = Callable[[RewritePlan, ExpressionValues | None], TaskResult]


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
            return _run_stitch(spark, plan, stitching), STITCH
    if not plan.rules.key:
        return _result_of_frame(
            plan, lambda: _one_task_frame(spark, plan, general_merge.rewrite_bag)
        ), "bag"
    if USE_KERNEL and kernel_supports(plan):
        if _fits_memory(plan):
            (merged,) = run_tasks(spark, plan, [partial(merge_small_job, plan)])
            return merged, MERGE
        if not has_long_bounds(plan):
            with suppress(LongKeyError):
                run = partial(run_tasks, spark, plan_without_inputs(plan))
                cores = spark.sparkContext.defaultParallelism
                return merge_large_job(plan, run, cores), MERGE
    if _fits_memory(plan):
        return _result_of_frame(
            plan, lambda: _one_task_frame(spark, plan, general_merge.rewrite_in_memory)
        ), "memory"
    return _result_of_frame(plan, lambda: _sorted_frame(spark, plan)), "sql"


def _run_stitch(spark: Any, plan: RewritePlan, stitching: StitchPlan) -> TaskResult:
    work = partial(stitch_whole, stitching, plan)
    small = stitching.size_bytes <= STITCH_HERE_BYTES
    if small and plan.footer_bytes <= STITCH_HERE_FOOTER_BYTES:
        return work()
    result: TaskResult
    (result,) = run_tasks(spark, plan, [work])
    return result


def count_passes(plan: RewritePlan) -> int:
    """Return how often each row is counted in the marks of progress."""
    native = USE_KERNEL and kernel_supports(plan)
    return 2 if plan.rules.key and not _fits_memory(plan) and not native else 1


def _fits_memory(plan: RewritePlan) -> bool:
    bytes_max = min(IN_MEMORY_BYTES, plan.memory.in_memory_bytes)
    rows_max = IN_MEMORY_ROWS >> plan.memory.halvings
    return plan.decoded_bytes <= bytes_max and plan.rows <= rows_max


def _one_task_frame(spark: Any, plan: RewritePlan, task: Task) -> Any:
    """Return a frame whose one row says how the task ended."""
    if (answered := _expression_values_frame(spark, plan, 1)) is not None:
        return answered.mapInArrow(partial(_run_with_expression_values, plan, task), RESULT_SCHEMA)
    one = spark.range(0, 1, 1, numPartitions=1)
    return one.mapInArrow(partial(_run_alone, plan, task), RESULT_SCHEMA)


def _sorted_frame(spark: Any, plan: RewritePlan) -> Any:
    """Return a frame whose one row says how reading, sorting and writing ended."""
    count = len(plan.inputs)
    readers = min(count, READ_TASKS_MAX, 1 + plan.decoded_bytes // READ_TASK_BYTES)
    schema = spark_schema(plan.schema)
    if (answered := _expression_values_frame(spark, plan, readers)) is not None:
        rows = answered.mapInArrow(partial(general_merge.read_with_expression_values, plan), schema)
    else:
        numbers = spark.range(0, count, 1, numPartitions=readers)
        rows = numbers.mapInArrow(partial(_read, plan), schema)
    # Encoded keys are bytes, and Spark compares bytes unsigned: the order of keys.
    ordered = rows.repartition(1).sortWithinPartitions(KEY_COLUMN)
    return ordered.mapInArrow(partial(_write, plan), RESULT_SCHEMA)


def _expression_values_frame(spark: Any, plan: RewritePlan, readers: int) -> Any:
    """Return a frame of the values of the transform's expressions; None: it has none.

    Its partitions hold whole inputs, each in the order of its rows.
    """
    if plan.transform is None or not plan.transform.asks_spark:
        return None
    asking = ExpressionInputs(plan, plan.transform)
    own = spark.newSession()  # What expressions mean depends on settings of the session.
    for name, value in SPARK_SETTINGS.items():
        own.conf.set(name, value)
    numbers = own.range(0, len(plan.inputs), 1, numPartitions=readers)
    questions = numbers.mapInArrow(partial(_read_expression_inputs, plan), asking.schema)
    return questions.selectExpr(*asking.answers)


def _read_expression_inputs(plan: RewritePlan, batches: Batches) -> Batches:
    yield from read_expression_inputs(plan, _numbers(batches))


def _run_alone(plan: RewritePlan, task: Task, batches: Batches) -> Batches:
    refuse_second_try(plan)
    for _ in batches:  # One row, which stands for the job.
        yield general_merge.outcome_batch(with_memory_limit(plan, partial(task, plan, None)))


def _run_with_expression_values(plan: RewritePlan, task: Task, batches: Batches) -> Batches:
    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        # An expression that failed fails again here, and says more than that it did.
        for _ in batches:
            continue
    refuse_second_try(plan)
    yield general_merge.outcome_batch(
        with_memory_limit(plan, partial(task, plan, ExpressionValues(batches)))
    )


def _read(plan: RewritePlan, batches: Batches) -> Batches:
    with bounded_memory(plan):
        yield from general_merge.read_for_sort(plan, _numbers(batches))


def _numbers(batches: Batches) -> Iterator[int]:
    return (number for batch in batches for number in batch.column(0).to_pylist())


def _write(plan: RewritePlan, batches: Batches) -> Batches:
    refuse_second_try(plan)
    yield general_merge.outcome_batch(
        with_memory_limit(plan, partial(general_merge.write_sorted, plan, batches))
    )


def _result_of_frame(plan: RewritePlan, frame: Callable[[], Any]) -> TaskResult:
    """Run the job and return its result, or raise what ended it."""
    (row,) = _collect(plan, frame)
    outcome = result_of(row["result"])
    assert isinstance(outcome, TaskResult), type(outcome)
    return outcome


def _collect(plan: RewritePlan, frame: Callable[[], Any]) -> list[Any]:
    try:
        return list(frame().collect())
    except Exception as error:
        raise translate_error(plan, error) from error
