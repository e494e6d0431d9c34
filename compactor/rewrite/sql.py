"""The rewrite as Spark jobs. The only module here that knows Spark.

Whatever writes an output runs in one task, once: its files have final names, and a
second try beside a first one that was only thought dead would write into them.
"""

import pickle
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from common import errors
from common.errors import CompactionError, EngineDiedError, RewriteError
from compactor.rewrite import tasks
from compactor.rewrite.carriers import KEY, carried_schema
from compactor.rewrite.plan import RewritePlan
from compactor.rewrite.tasks import RESULT_SCHEMA, TaskFailure, TaskResult

IN_MEMORY_BYTES = 64 * 1024**2
IN_MEMORY_ROWS = 2_000_000
READ_TASK_BYTES = 32 * 1024**2
"""Decoded bytes that one task reads for a sort, at least."""
READ_TASKS_MAX = 64
_RAISED = re.compile(r"common\.errors\.(\w+): (.*)")

Batches = Iterator[pa.RecordBatch]
Task = Callable[[RewritePlan], TaskResult]


def rewrite_with_spark(spark: Any, plan: RewritePlan) -> tuple[TaskResult, str]:
    """Run the rewrite; return what came of it and the way that was taken.

    Args:
        spark: The session.
        plan: What to do.

    Raises:
        RewriteError: It failed; nothing is left under the outputs' names.
    """
    if not plan.rules.key:
        return _outcome(_one_task(spark, plan, tasks.rewrite_bag)), "bag"
    if _fits_memory(plan):
        return _outcome(_one_task(spark, plan, tasks.rewrite_in_memory)), "memory"
    return _outcome(_sorted(spark, plan)), "sql"


def passes_of(plan: RewritePlan) -> int:
    """Return how often each row is counted in the marks of progress."""
    return 2 if plan.rules.key and not _fits_memory(plan) else 1


def _fits_memory(plan: RewritePlan) -> bool:
    return plan.decoded_bytes <= IN_MEMORY_BYTES and plan.rows <= IN_MEMORY_ROWS


def _one_task(spark: Any, plan: RewritePlan, task: Task) -> Any:
    """Return a frame whose one row says how the task ended."""
    one = spark.range(0, 1, 1, numPartitions=1)
    return one.mapInArrow(partial(_run_alone, plan, task), RESULT_SCHEMA)


def _sorted(spark: Any, plan: RewritePlan) -> Any:
    """Return a frame whose one row says how reading, sorting and writing ended."""
    count = len(plan.inputs)
    readers = min(count, READ_TASKS_MAX, 1 + plan.decoded_bytes // READ_TASK_BYTES)
    numbers = spark.range(0, count, 1, numPartitions=readers)
    rows = numbers.mapInArrow(partial(_read, plan), carried_schema(plan.schema))
    # Encoded keys are bytes, and Spark compares bytes unsigned: the order of keys.
    ordered = rows.repartition(1).sortWithinPartitions(KEY)
    return ordered.mapInArrow(partial(_write, plan), RESULT_SCHEMA)


def _run_alone(plan: RewritePlan, task: Task, batches: Batches) -> Batches:
    _only_once()
    for _ in batches:  # One row, which stands for the job.
        yield tasks.outcome_batch(partial(task, plan))


def _read(plan: RewritePlan, batches: Batches) -> Batches:
    numbers = (number for batch in batches for number in batch.column(0).to_pylist())
    yield from tasks.read_for_sort(plan, numbers)


def _write(plan: RewritePlan, batches: Batches) -> Batches:
    _only_once()
    yield tasks.outcome_batch(partial(tasks.write_sorted, plan, batches))


def _only_once() -> None:
    """Refuse a second try of a task that writes; the coordinator hands out a new attempt.

    Raises:
        EngineDiedError: An earlier try of this task has died, or seems to have.
    """
    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        message = "the executor died while it wrote, or was taken for dead"
        raise EngineDiedError(message)


def _outcome(frame: Any) -> TaskResult:
    """Run the job and return its result, or raise what ended it."""
    try:
        (row,) = frame.collect()
    except Exception as error:
        raise _translated(error) from error
    outcome = pickle.loads(row["result"])
    if isinstance(outcome, TaskFailure):
        raise _named_error(outcome.error_class, outcome.cause)
    assert isinstance(outcome, TaskResult), type(outcome)
    return outcome


def _translated(error: Exception) -> CompactionError:
    """Return an error of Spark as one of ours: the one raised in a task, if there is one."""
    raised = _RAISED.findall(str(error))
    if raised:
        return _named_error(*raised[-1])
    return RewriteError(f"Spark job failed: {error}")


def _named_error(name: str, cause: str) -> CompactionError:
    kind = getattr(errors, name, RewriteError)
    assert issubclass(kind, CompactionError), kind
    return kind(cause)
