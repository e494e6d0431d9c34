"""Tasks on Spark: each runs once, and small jobs of several attempts share a Spark job.

A Spark job costs about as much as a small merge. While all cores are busy, small jobs wait and
then share one Spark job. Spark's errors become errors of this project: the error that a task has
raised, a lack of memory, or a bad value.

A task that writes an output runs once. Files have their final names, so a second try that runs
concurrently with a first one, wrongly believed dead, would write to the same files.

A transform whose expressions only Spark evaluates has a Spark job of its own before the others. Its
tasks read the columns that the expressions need, Spark evaluates them without moving rows between
tasks, and the values are stored in the attempt's folder. No other columns cross Spark.
"""

import pickle
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Generic, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import AnalysisException

from common.errors import CompactionError, RewriteError, TransformError, error_by_name
from common.expressions import SPARK_SETTINGS
from common.parquet.location import storage_error
from compactor.rewrite.attempt_folder import allowance_of
from compactor.rewrite.general_merge import (
    KEY_COLUMN,
    read_for_sort,
    spark_schema,
    write_sorted,
)
from compactor.rewrite.memory import StartNote, bounded_memory, memory_error_of, with_memory_limit
from compactor.rewrite.memory_budget import MemoryBudget
from compactor.rewrite.outputs import (
    RESULT_SCHEMA,
    TaskFailure,
    TaskResult,
    outcome_batch,
    pickled_outcome,
)
from compactor.rewrite.plan.rewrite_plan import RewritePlan
from compactor.rewrite.transform import (
    ExpressionInputs,
    read_expression_inputs,
    write_values,
)

_RAISED = re.compile(r"common\.errors\.(\w+): (.*)")
_VALUE_ERRORS = re.compile(
    r"(?:org\.apache\.spark\.Spark(?:Arithmetic|ArrayIndexOutOfBounds|DateTime|IllegalArgument|"
    r"NoSuchElement|NumberFormat|Runtime|UnsupportedOperation)Exception|"
    r"java\.lang\.ArithmeticException|java\.lang\.RuntimeException(?=: column )): (.*)"
)
"""Spark errors that are caused by a value, not by a machine. Every retry fails again."""
_ADVICE = re.compile(r" (?:If necessary set|Use [`'\"]try_).*")
"""Advice that does not apply to users: settings are fixed, functions are allow-listed."""
_PLACE = re.compile(r"== SQL\(line \d+, position \d+\) ==\n(.*)\n( *)(\^+)")
_IGNORED_CHARACTERS = re.compile(r"[\s`()]")
_OUR_CAST = re.compile(r"CAST\((.*) AS \w+(?:\(\d+, ?\d+\))?\)")
"""The cast around an expression that gives its value the column's type."""


def translate_error(plan: RewritePlan, error: Exception) -> CompactionError:
    """Return an error of Spark as one of this project: the one raised in a task, if any."""
    text = str(error)
    if raised := _RAISED.findall(text):
        return error_by_name(*raised[-1])
    if (short := memory_error_of(plan.memory, plan.folder, text)) is not None:
        return short
    if plan.rules.transform is not None and plan.rules.transform.asks_spark:
        subject = plan.rules.transform.transform.description
        if causes := _VALUE_ERRORS.findall(text):
            cause = f"{_ADVICE.sub('', causes[0])}{_place(text, subject)}"
            return TransformError(f"{subject}: failed for a row: {cause}")
        if isinstance(error, AnalysisException):
            return TransformError(f"{subject}: Spark does not take it: {text}")
    return storage_error(RewriteError, f"Spark job failed: {text}", error)


def _place(text: str, expression: str) -> str:
    """Return the part of an expression that Spark's error points at; empty: unknown."""
    if (position := _PLACE.search(text)) is None:
        return ""
    shown, before, marked = position.groups()
    fragment = shown[len(before) : len(before) + len(marked)]
    written = [
        (at, char) for at, char in enumerate(expression) if not _IGNORED_CHARACTERS.match(char)
    ]
    text_written = "".join(char for _, char in written).lower()
    inner: str | None = fragment
    while inner:
        wanted = _IGNORED_CHARACTERS.sub("", inner).lower()
        start = text_written.find(wanted)
        if start >= 0 and wanted:
            first, last = written[start][0], written[start + len(wanted) - 1][0]
            last += expression[first : last + 1].count("(") > expression[first : last + 1].count(
                ")"
            )
            return f" (at column {first + 1}: {expression[first : last + 1]})"
        cast = _OUR_CAST.fullmatch(inner)
        inner = None if cast is None else cast.group(1)
    return f" (at {fragment.replace('`', '')})"


# ---------------------------------------------------------------------------- Batches of small jobs


BATCH_JOBS_MAX = 16
"""Jobs that share a Spark job; all of them get their result when the last has ended."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class _Entry(Generic[_Item, _Result]):
    def __init__(self, item: _Item) -> None:
        self.item = item
        self.result: _Result | None = None
        self.error: BaseException | None = None
        self.done = False

    def outcome(self) -> _Result:
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


class JobBatcher(Generic[_Item, _Result]):
    """The waiting items, and the number of running calls."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._waiting: deque[_Entry[_Item, _Result]] = deque()
        self._under_way = 0

    def run(
        self, item: _Item, run_all: Callable[[Sequence[_Item]], Sequence[_Result]], most: int
    ) -> _Result:
        """Run an item, alone or with others; return its result.

        Args:
            item: The item.
            run_all: Runs several items; called in the thread of one of the callers.
            most: Largest number of concurrent calls.

        Raises:
            Exception: The error of the call, raised for every item in it.
        """
        mine: _Entry[_Item, _Result] = _Entry(item)
        with self._turn:
            self._waiting.append(mine)
            self._turn.wait_for(lambda: mine.done or self._may_go(mine, most))
            if mine.done:
                return mine.outcome()
            count = min(len(self._waiting), BATCH_JOBS_MAX)
            entries = [self._waiting.popleft() for _ in range(count)]
            self._under_way += 1
        try:
            results = run_all([entry.item for entry in entries])
            for each, result in zip(entries, results, strict=True):
                each.result = result
        except BaseException as error:
            for entry in entries:
                entry.error = error
            raise
        finally:
            with self._turn:
                self._under_way -= 1
                for entry in entries:
                    entry.done = True
                self._turn.notify_all()
        return mine.outcome()

    def _may_go(self, mine: _Entry[_Item, _Result], most: int) -> bool:
        """Return whether the first waiting item may start with the others."""
        return bool(self._waiting) and self._waiting[0] is mine and self._under_way < most


# ------------------------------------------------------------------------------------ Running tasks


JOB_GROUP, SHARED_JOB_GROUP = "spark.jobGroup.id", "shared"
SHARED_BYTES = 16 * 1024**2
"""Largest decoded size of a job that may share a Spark job."""

Call = Callable[[], object]
TaskCall = tuple[RewritePlan, Call]
_BATCHER: JobBatcher[TaskCall, bytes] = JobBatcher()
"""One per process, because a driver has one session."""


def run_tasks(spark: Any, plan: RewritePlan, calls: Sequence[Call]) -> list[Any]:
    """Run native tasks, each in its own Spark task; return their results in order.

    Spark SQL is not used, because its planning takes longer than a small merge.
    """
    context, jobs = spark.sparkContext, [(plan, call) for call in calls]
    try:
        if len(jobs) == 1 and _may_share(plan):
            run_all, cores = partial(_run_spark_job, context), context.defaultParallelism
            outcomes: Sequence[bytes] = [_BATCHER.run(jobs[0], run_all, cores)]
        else:
            outcomes = _run_spark_job(context, jobs)
    except Exception as error:
        raise translate_error(plan, error) from error
    return [result_of(outcome) for outcome in outcomes]


def _may_share(plan: RewritePlan) -> bool:
    """Return whether a job is certainly short, because others may have to wait for its end."""
    transform = plan.rules.transform
    if transform is not None and not transform.asks_spark:
        return False  # How long a plug-in takes is not known.
    small = plan.inputs.decoded_bytes <= SHARED_BYTES and not plan.memory.halvings
    # The duration of a job with a limit depends on its grant.
    return small and not allowance_of(plan.folder).limited


def _run_spark_job(context: Any, jobs: Sequence[TaskCall]) -> Sequence[bytes]:
    """Run tasks as one Spark job; return their outcomes."""
    # Each task gets only its own part; those of all tasks may be tens of megabytes.
    parcels = context.parallelize([pickle.dumps(job) for job in jobs], len(jobs))
    group = context.getLocalProperty(JOB_GROUP)
    several = len({plan.folder for plan, _ in jobs}) > 1
    if several:  # A cancellation of one must not end the others.
        context.setJobGroup(SHARED_JOB_GROUP, "small jobs of several attempts")
    try:
        results: list[bytes] = parcels.mapPartitions(_run_jobs).collect()
    finally:
        if several and group is not None:
            context.setJobGroup(group, group, interruptOnCancel=True)
    return results


def _run_jobs(parcels: Iterator[bytes]) -> Iterator[bytes]:
    for parcel in parcels:
        yield pickled_outcome(partial(_run_once, *pickle.loads(parcel)))


def _run_once(plan: RewritePlan, call: Call) -> object:
    refuse_second_try(plan.memory, plan.folder)
    return with_memory_limit(plan.memory, plan.folder, call)()


def refuse_second_try(memory: MemoryBudget, folder: str) -> None:
    """Refuse a second try of a task that writes; the coordinator hands out a new attempt.

    Raises:
        MemoryShortError: The process of an earlier try was killed.
        EngineDiedError: An earlier try has died with its executor, or appears to have.
    """
    context = TaskContext.get()
    if context is None:
        return
    task = (context.stageId(), context.partitionId())
    note = StartNote(memory, folder, task)
    if context.attemptNumber() > 0:
        raise note.error_of_second_try()
    note.leave()


def result_of(pickled: bytes) -> Any:
    """Return the result of a task, or raise its error."""
    outcome = pickle.loads(pickled)
    if isinstance(outcome, TaskFailure):
        raise error_by_name(outcome.error_class, outcome.cause)
    return outcome


# ------------------------------------------------------------------------------ Frames of Spark SQL


READ_TASK_BYTES = 32 * 1024**2
"""Smallest decoded size that one task reads for a sort."""
READ_TASKS_MAX = 64
ANSWERS_MAX, NARROW_ANSWERS_MAX = 10_000, 65_536
"""Values of expressions that Spark sends together."""
NARROW_ROW_BYTES = 256
"""Average decoded size of a row below which many values are sent together."""

Batches = Iterator[pa.RecordBatch]


def run_in_one_task(
    spark: Any, plan: RewritePlan, task: Callable[[RewritePlan], TaskResult]
) -> TaskResult:
    """Run a whole job in one task."""
    (result,) = run_tasks(spark, plan, [partial(task, plan)])
    assert isinstance(result, TaskResult), type(result)
    return result


def sort_and_merge(spark: Any, plan: RewritePlan) -> TaskResult:
    """Let Spark sort the rows of a job by key, on disk if necessary, and one task merge them."""
    return _result_of_frame(plan, lambda: _sorted_frame(spark, plan))


def store_expression_values(spark: Any, plan: RewritePlan) -> None:
    """Let Spark evaluate the expressions of a transform, for the kernel.

    The values are in the attempt's folder afterwards, in one file for each input.

    Raises:
        TransformError: An expression fails for a row.
        RewriteError: The values cannot be computed or stored.
    """
    # Tasks need neither row groups nor facts of inputs, which may be megabytes.
    plan = replace(plan, inputs=replace(plan.inputs, row_groups=(), clean={}, small={}))

    def frame() -> Any:
        # Each task starts two Python stages, which takes as long as reading some megabytes.
        readers = min(len(plan.inputs.paths), spark.sparkContext.defaultParallelism)
        values = _expression_values_frame(spark, plan, readers)
        return values.mapInArrow(partial(_store_values, plan), RESULT_SCHEMA)

    for row in _collect(plan, frame):
        result_of(row["result"])


def _reader_count(plan: RewritePlan) -> int:
    by_size = 1 + plan.inputs.decoded_bytes // READ_TASK_BYTES
    return int(min(len(plan.inputs.paths), READ_TASKS_MAX, by_size))


def _store_values(plan: RewritePlan, batches: Batches) -> Batches:
    with bounded_memory(plan.memory, plan.folder):
        write_values(plan, batches)
    yield outcome_batch(lambda: None)


def _sorted_frame(spark: Any, plan: RewritePlan) -> Any:
    """Return a frame with one row, the outcome of reading, sorting and writing."""
    count, readers = len(plan.inputs.paths), _reader_count(plan)
    schema = spark_schema(plan.rules.schema)
    numbers = spark.range(0, count, 1, numPartitions=readers)
    rows = numbers.mapInArrow(partial(_read, plan), schema)
    # Encoded keys are bytes, and Spark compares bytes unsigned, which is the order of keys.
    ordered = rows.repartition(1).sortWithinPartitions(KEY_COLUMN)
    return ordered.mapInArrow(partial(_write, plan), RESULT_SCHEMA)


def _expression_values_frame(spark: Any, plan: RewritePlan, readers: int) -> Any:
    """Return a frame of the values of the transform's expressions.

    Its partitions hold whole inputs, each in row order.
    """
    assert plan.rules.transform is not None
    expressions = ExpressionInputs(plan.rules.schema, plan.rules.transform)
    own = _expression_session(spark, _answer_rows_max(plan))
    numbers = own.range(0, len(plan.inputs.paths), 1, numPartitions=readers)
    questions = numbers.mapInArrow(partial(_read_expression_inputs, plan), expressions.schema)
    return questions.where(expressions.condition).selectExpr(*expressions.answers)


@lru_cache(maxsize=2)
def _expression_session(spark: Any, rows_max: int) -> Any:
    """Return the session of expressions, kept because building one takes as long as a small job.

    Args:
        spark: The session of the driver.
        rows_max: Answers of a batch.
    """
    own = spark.newSession()  # Session settings define the meaning of expressions.
    for name, value in SPARK_SETTINGS.items():
        own.conf.set(name, value)
    own.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(rows_max))
    return own


def _answer_rows_max(plan: RewritePlan) -> int:
    """Return the number of answers that Spark sends together: about as many bytes as are read."""
    narrow = plan.inputs.row_bytes <= NARROW_ROW_BYTES
    return NARROW_ANSWERS_MAX if narrow else ANSWERS_MAX


def _read_expression_inputs(plan: RewritePlan, batches: Batches) -> Batches:
    yield from read_expression_inputs(plan, _numbers(batches))


def _read(plan: RewritePlan, batches: Batches) -> Batches:
    with bounded_memory(plan.memory, plan.folder):
        yield from read_for_sort(plan, _numbers(batches))


def _numbers(batches: Batches) -> Iterator[int]:
    return (number for batch in batches for number in batch.column(0).to_pylist())


def _write(plan: RewritePlan, batches: Batches) -> Batches:
    refuse_second_try(plan.memory, plan.folder)
    yield outcome_batch(
        with_memory_limit(plan.memory, plan.folder, partial(write_sorted, plan, batches))
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
