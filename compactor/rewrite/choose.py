"""Chooses the way of a job and runs it on Spark.

  drop     every row has expired: none is read, and Spark is not used (`stitch_job`)
  stitch   row groups of all inputs are copied as bytes: no row wins, expires or changes
  merge    the kernel merges a keyed table, in one task or in ranges
  bag      an append-only table is copied row by row, without the expired rows
  memory   a small job that the kernel does not support is merged in one task
  sql      a larger one is sorted by Spark and merged by one task

Some jobs turn out to be unsuitable for their way while it runs. They use the next one.
"""

from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Any, assert_never

import pyarrow as pa

from common.errors import NotStitchableError
from common.model.key_values import KeyType
from compactor.rewrite.general_merge import rewrite_bag, rewrite_in_memory
from compactor.rewrite.kernel.normalized_keys import LongKeyError
from compactor.rewrite.memory import MemoryBudget
from compactor.rewrite.merge.driver import merge_large_job
from compactor.rewrite.merge.tasks import merge_small_job
from compactor.rewrite.outputs import TaskResult
from compactor.rewrite.plan.rewrite_plan import Inputs, Output, RewritePlan, Rules
from compactor.rewrite.spark_tasks import run_in_one_task, run_tasks, sort_and_merge
from compactor.rewrite.stitch_job import StitchPlan, stitch_whole

IN_MEMORY_BYTES = 64 * 1024**2
IN_MEMORY_ROWS = 2_000_000
STITCH_HERE_BYTES = 256 * 1024**2
"""Copied by the driver itself: starting a task takes as long as a disk needs for half of it."""
STITCH_HERE_FOOTER_BYTES = 1024**2
"""Decoded footers take up to seventy times as much, and a driver's memory is not limited."""
KEY_BYTES_MAX = 64
"""Longer keys may differ in bytes that the kernel's words do not hold."""


class Way(StrEnum):
    """How a job is rewritten."""

    DROP = "drop"
    STITCH = "stitch"
    MERGE = "merge"
    BAG = "bag"
    MEMORY = "memory"
    SORT = "sql"


def rewrite_with_spark(
    spark: Any, plan: RewritePlan, stitching: StitchPlan | None = None
) -> tuple[TaskResult, Way]:
    """Run the rewrite; return its result and the way that was used.

    Args:
        spark: The session.
        plan: The plan of the job.
        stitching: Plan of a stitch, without reading rows; None: rows must be read.

    Raises:
        RewriteError: It failed; no outputs are left.
    """
    if stitching is not None:
        with suppress(NotStitchableError):
            return _run_stitch(spark, plan, stitching), Way.STITCH
    for way in ways_of(plan):
        with suppress(LongKeyError):
            return _run(spark, plan, way), way
    raise AssertionError("the last way supports every job")


def ways_of(plan: RewritePlan) -> tuple[Way, ...]:
    """Return the ways to rewrite the rows of a job, best way first; the last one always works."""
    if not plan.rules.row_rules.key:
        return (Way.BAG,)
    fits = _fits_memory(plan.inputs, plan.memory)
    general = Way.MEMORY if fits else Way.SORT
    if kernel_supports(plan.rules) and (fits or not _has_long_cuts(plan.rules, plan.output)):
        return (Way.MERGE, general)
    return (general,)


def count_passes(plan: RewritePlan) -> int:
    """Return how often each row is counted in the progress marks."""
    # A job that the kernel gives up has already been counted.
    two = not kernel_supports(plan.rules) and ways_of(plan)[-1] is Way.SORT
    return 2 if two else 1


def kernel_supports(rules: Rules) -> bool:
    """Return whether the kernel supports these tables and jobs."""
    row_rules = rules.row_rules
    if not row_rules.key or rules.transform is not None:
        return False
    assert row_rules.version_column is not None
    names = (*row_rules.key, row_rules.version_column)
    types = [rules.schema.field(name).type for name in names]
    return not any(pa.types.is_decimal256(arrow) or pa.types.is_null(arrow) for arrow in types)


def _has_long_cuts(rules: Rules, output: Output) -> bool:
    """Return whether cuts may be finer than the resolution of words."""
    text = {KeyType.STRING, KeyType.BINARY} & set(rules.row_rules.key_types)
    return bool(text) and any(len(cut) > KEY_BYTES_MAX for cut in output.cuts)


def _fits_memory(inputs: Inputs, memory: MemoryBudget) -> bool:
    bytes_max = min(IN_MEMORY_BYTES, memory.in_memory_bytes)
    rows_max = IN_MEMORY_ROWS >> memory.halvings
    return inputs.decoded_bytes <= bytes_max and inputs.rows <= rows_max


def _run(spark: Any, plan: RewritePlan, way: Way) -> TaskResult:
    match way:
        case Way.MERGE:
            return _run_merge(spark, plan)
        case Way.BAG:
            return run_in_one_task(spark, plan, rewrite_bag)
        case Way.MEMORY:
            return run_in_one_task(spark, plan, rewrite_in_memory)
        case Way.SORT:
            return sort_and_merge(spark, plan)
        case Way.STITCH | Way.DROP:
            raise AssertionError(f"{way} reads no rows")
        case _:
            assert_never(way)


def _run_merge(spark: Any, plan: RewritePlan) -> TaskResult:
    if not _fits_memory(plan.inputs, plan.memory):
        totals = replace(plan, inputs=plan.inputs.only(()))
        cores = spark.sparkContext.defaultParallelism
        return merge_large_job(plan, partial(run_tasks, spark, totals), cores)
    merged: TaskResult
    (merged,) = run_tasks(spark, plan, [partial(merge_small_job, plan)])
    return merged


def _run_stitch(spark: Any, plan: RewritePlan, stitching: StitchPlan) -> TaskResult:
    work = partial(stitch_whole, stitching, plan)
    small = stitching.size_bytes <= STITCH_HERE_BYTES
    if small and plan.inputs.footer_bytes <= STITCH_HERE_FOOTER_BYTES:
        return work()
    result: TaskResult
    (result,) = run_tasks(spark, plan, [work])
    return result
