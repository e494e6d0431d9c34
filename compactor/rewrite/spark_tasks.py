"""Tasks on Spark: each job runs once, and jobs of several attempts share a task.

A Spark job costs about as much as a small merge, so a task stays for the jobs that follow. Spark's
errors become errors of this project: the error that a task has raised, a lack of memory, or a bad
value.

A task that writes an output runs once. Files have their final names, so a second try that runs
concurrently with a first one, wrongly believed dead, would write to the same files.

A transform whose expressions only Spark evaluates has a Spark job of its own before the others. Its
tasks read the columns that the expressions need, Spark evaluates them without moving rows between
tasks, and the values are stored in the attempt's folder. No other columns cross Spark.
"""

import importlib
import os
import pickle
import re
import shutil
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache, partial
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import AnalysisException

from common.errors import (
    AttemptCancelledError,
    CompactionError,
    EngineDiedError,
    MemoryShortError,
    RewriteError,
    TransformError,
    error_by_name,
)
from common.expressions import SPARK_SETTINGS
from common.parquet.location import storage_error
from common.runtime import ignore_what_is_loaded
from compactor.rewrite.attempt_folder import allowance_of
from compactor.rewrite.general_merge import (
    KEY_COLUMN,
    read_for_sort,
    spark_schema,
    write_sorted,
)
from compactor.rewrite.memory import (
    StartNote,
    bounded_memory,
    end_this_process,
    memory_error_of,
    resident_bytes,
)
from compactor.rewrite.memory_budget import REMOTE_SETTING, TASK_BYTES, MemoryBudget
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
    if isinstance(error, CompactionError):
        return error
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


# ------------------------------------------------------------------------------------- Shared tasks
# Jobs of several attempts run in tasks that they share, one after the other.
#
# A Spark job takes as much processor time as a small merge, and a tenth of a second. So a shared
# task stays for a while after a job, and the next job that needs one task goes to it over a local
# socket, without Spark, and finds the memory that the last one has freed. A job has its own plan,
# folder, memory limit and outcome, and gets its result when it ends. Cancelling it does not end the
# task: the job stops when it moves its next bytes. If it moves none, its process is killed.


SHARED_TASK_S = 30.0
"""Time for which a shared task waits for the next job, if no other Spark job runs."""
CANCEL_CHECK_S = 0.5
CANCEL_CHECKS_MAX = 20
"""After so many checks, the process of a cancelled job is killed, since its storage may hang."""
SOCKET_FOLDER_BYTES_MAX = 80
"""The system limits the path of a socket to 107 bytes, on some systems to 103."""
SHARED_TASK = (-1, -1)
"""Stage and partition in the notes of jobs in shared tasks."""
SHARED_JOB_GROUP, JOB_GROUP = "shared", "spark.jobGroup.id"

Call = Callable[[], object]
TaskCall = tuple[RewritePlan, Call]


class OpenTask(Protocol):
    """A task that waits for jobs."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended, so that it takes no job."""
        ...

    def run(self, job: TaskCall) -> bytes:
        """Run a job and return its outcome, or raise why the task has ended."""
        ...

    def kill(self) -> None:
        """Kill the process of the task, and with it the job that runs."""
        ...

    def close(self) -> None:
        """End the task."""
        ...


class _Entry:
    """A job, its outcome or error, and whether it has ended."""

    def __init__(self, job: TaskCall, group: str | None) -> None:
        self.job, self.group = job, group
        self.over = threading.Event()
        self.checks = 0
        """How often it was found to be cancelled."""
        self._outcome: bytes | None = None
        self._error: Exception | None = None

    def end(self, outcome: bytes | None = None, error: Exception | None = None) -> None:
        self._outcome, self._error = outcome, error
        self.over.set()

    def result(self) -> bytes:
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        return self._outcome


class SharedTasks:
    """The waiting jobs, and the number of open tasks; thread-safe."""

    def __init__(self, open_task: Callable[[Any], OpenTask]) -> None:
        """Create an empty set.

        Args:
            open_task: Starts a task in a Spark context, and waits until it runs.
        """
        self._open_task = open_task
        self._turn = threading.Condition()
        self._waiting: deque[_Entry] = deque()
        self._running: dict[_Entry, OpenTask] = {}
        self._open = self._idle = self._endings = self._others = 0

    @property
    def running(self) -> frozenset[str | None]:
        """The job groups of the attempts whose jobs run now."""
        with self._turn:
            return frozenset(entry.group for entry in self._running)

    def run(
        self, context: Any, job: TaskCall, tasks_max: Callable[[], int], group: str | None = None
    ) -> bytes:
        """Run a job in a shared task; return its outcome.

        Args:
            context: The Spark context.
            job: The job.
            tasks_max: Returns the largest number of open tasks.
            group: Job group of its attempt.

        Raises:
            AttemptCancelledError: It was cancelled before it began.
            Exception: The task has ended before the job.
        """
        entry = _Entry(job, group)
        with self._turn:
            self._waiting.append(entry)
            self._turn.notify()
            try:
                self._open_another(context, tasks_max)
            except BaseException:
                self._waiting.remove(entry)
                raise
        while not entry.over.wait(CANCEL_CHECK_S):
            self._end_cancelled(entry)
        return entry.result()

    def end_tasks(self) -> None:
        """End the open tasks, each after its job, because another Spark job needs their cores."""
        with self._turn:
            self._endings += 1
            self._turn.notify_all()

    @contextmanager
    def giving_way(self) -> Iterator[None]:
        """End the open tasks, and let none wait for a job while another Spark job runs."""
        with self._turn:
            self._others += 1
            self.end_tasks()
        try:
            yield
        finally:
            with self._turn:
                self._others -= 1

    def _open_another(self, context: Any, tasks_max: Callable[[], int]) -> None:
        """Open a task if more jobs wait than tasks; the caller has the lock."""
        if len(self._waiting) > self._idle and self._open < tasks_max():
            self._open += 1
            serve = partial(self._serve, context, tasks_max)
            threading.Thread(target=serve, daemon=True, name="shared task").start()

    def _end_cancelled(self, entry: _Entry) -> None:
        """Remove a job of a cancelled attempt that still waits; kill one that does not stop."""
        try:
            allowance_of(entry.job[0].folder).settle()
        except AttemptCancelledError as error:
            with self._turn:
                entry.checks += 1
                if entry in self._waiting:
                    self._waiting.remove(entry)
                    entry.end(error=error)
                elif entry in self._running and entry.checks == CANCEL_CHECKS_MAX:
                    self._running[entry].kill()

    def _serve(self, context: Any, tasks_max: Callable[[], int]) -> None:
        """Open a task and give it jobs until there are none, or another Spark job runs."""
        entry: _Entry | None = None
        try:
            task, endings = self._open_task(context), self._endings
            try:
                while (entry := self._next(task, endings)) is not None:
                    self._end(entry, outcome=task.run(entry.job))
            finally:
                task.close()
        except Exception as error:  # Spark's, for the attempt whose job has failed
            self._fail(entry, error)
        finally:
            with self._turn:
                self._open -= 1
                self._open_another(context, tasks_max)

    def _next(self, task: OpenTask, endings: int) -> _Entry | None:
        """Return the next job for a task, or None if the task has to end."""
        with self._turn:
            self._idle += 1
            self._turn.wait_for(
                lambda: self._waiting or self._others or self._endings > endings, SHARED_TASK_S
            )
            self._idle -= 1
            # A process that has died while it waited fails no job.
            if not self._waiting or self._endings > endings or task.is_over:
                return None
            entry = self._waiting.popleft()
            self._running[entry] = task
            return entry

    def _end(self, entry: _Entry, **end: Any) -> None:
        with self._turn:
            self._running.pop(entry, None)
        entry.end(**end)

    def _fail(self, entry: _Entry | None, error: Exception) -> None:
        """Fail a job; None: the one that has waited for the longest, if any."""
        with self._turn:
            if entry is None and self._waiting:
                entry = self._waiting.popleft()
        if entry is not None:
            self._end(entry, error=error)


class SparkTask:
    """A shared task of Spark: a Spark job in a thread, and the socket to its only task."""

    def __init__(self, context: Any) -> None:
        """Start the task and wait until it runs.

        Args:
            context: The Spark context, with executors on this machine.

        Raises:
            EngineDiedError: Its executor died.
            Exception: Spark's error.
        """
        self._context = context
        self._error: Exception | None = None
        # Only this user can connect, because the folder is private.
        short = len(os.fsencode(tempfile.gettempdir())) <= SOCKET_FOLDER_BYTES_MAX
        folder = tempfile.mkdtemp(prefix="neve-task-", dir=None if short else "/tmp")
        try:
            self._address = str(Path(folder, "link"))
            with Listener(self._address, "AF_UNIX") as listener:
                self._thread = threading.Thread(target=self._run, daemon=True, name="Spark job")
                self._thread.start()
                self._link = listener.accept()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        try:
            self._process = int(self._link.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._cause() or EngineDiedError("the executor died") from error

    @property
    def is_over(self) -> bool:
        """Whether it has ended; see `OpenTask`. It sends nothing else while it waits."""
        return bool(self._link.poll())

    def run(self, job: TaskCall) -> bytes:
        """Run a job; see `OpenTask`.

        Raises:
            MemoryShortError: The process of the task was killed.
            EngineDiedError: Its executor died.
            Exception: Spark's error.
        """
        plan, _ = job
        try:
            self._link.send_bytes(pickle.dumps(job))
            return self._link.recv_bytes()
        except (EOFError, OSError) as error:
            # Spark notices the end of the process, tries again, and gets no job.
            note = StartNote(plan.memory, plan.folder, SHARED_TASK)
            raise self._cause() or note.error_of_second_try() from error

    def kill(self) -> None:
        """Kill its process; see `OpenTask`."""
        with suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)

    def close(self) -> None:
        """End the task; see `OpenTask`."""
        self._link.close()

    def _cause(self) -> Exception | None:
        """Wait for the end of the Spark job and return its error."""
        self._thread.join()
        return self._error

    def _run(self) -> None:
        """Run the Spark job; the body of its thread."""
        try:
            self._context.setLocalProperty("spark.scheduler.pool", SHARED_JOB_GROUP)
            self._context.setJobGroup(SHARED_JOB_GROUP, "jobs of several attempts")
            addresses = self._context.parallelize([self._address], 1)
            addresses.mapPartitions(_run_shared_jobs).collect()
        except Exception as error:
            self._error = error
        finally:
            # The job may have ended without a connection.
            with suppress(OSError):
                Client(self._address, "AF_UNIX").close()


SHARED_TASKS = SharedTasks(SparkTask)
"""One per process, because a driver has one session."""


def _run_shared_jobs(addresses: Iterator[str]) -> Iterator[bytes]:
    """Run the jobs that come over a socket until it is closed; the body of a shared task."""
    for address in addresses:
        context = TaskContext.get()
        if context is not None and context.attemptNumber() > 0:
            continue  # The job during which an earlier try has died is not repeated.
        with Client(address, "AF_UNIX") as link, suppress(EOFError):
            link.send_bytes(b"%d" % os.getpid())
            while True:
                parcel = link.recv_bytes()
                link.send_bytes(pickled_outcome(partial(_run_shared_job, parcel)))
        if _holds_much():
            break
    return iter(())


def _run_shared_job(parcel: bytes) -> object:
    plan, call = pickle.loads(parcel)
    StartNote(plan.memory, plan.folder, SHARED_TASK).leave()
    return _within_memory(plan, call)


# ------------------------------------------------------------------------------------ Running tasks


def run_tasks(spark: Any, plan: RewritePlan, calls: Sequence[Call]) -> list[Any]:
    """Run native tasks, each in its own Spark task or in a shared one; return results in order."""
    # Spark SQL is not used, because its planning takes longer than a small merge.
    context, jobs = spark.sparkContext, [(plan, call) for call in calls]
    try:
        if len(jobs) == 1 and _may_share(plan) and has_local_executors(context):
            cores = partial(getattr, context, "defaultParallelism")
            group = context.getLocalProperty(JOB_GROUP)
            outcomes: Sequence[bytes] = [SHARED_TASKS.run(context, jobs[0], cores, group)]
        else:
            with SHARED_TASKS.giving_way():
                outcomes = _run_spark_job(context, jobs)
    except Exception as error:
        raise translate_error(plan, error) from error
    return [result_of(outcome) for outcome in outcomes]


def _may_share(plan: RewritePlan) -> bool:
    """Return whether a job ends in a time that is known, since others may have to wait for it."""
    transform = plan.rules.transform
    if transform is not None and not transform.asks_spark:
        return False  # How long a plug-in takes is not known.
    # The duration of a job with a limit depends on its grant.
    return not plan.memory.halvings and not allowance_of(plan.folder).limited


@lru_cache(maxsize=1)
def has_local_executors(context: Any) -> bool:
    """Return whether all executors of a Spark context are on this machine."""
    settings = context._jsc.sc().conf()  # noqa: SLF001 - PySpark has no public API
    return not settings.contains(REMOTE_SETTING)


def _run_spark_job(context: Any, jobs: Sequence[TaskCall]) -> Sequence[bytes]:
    """Run tasks as one Spark job; return their outcomes."""
    # Each task gets only its own part; those of all tasks may be tens of megabytes.
    parcels = context.parallelize([pickle.dumps(job) for job in jobs], len(jobs))
    results: list[bytes] = parcels.mapPartitions(_run_jobs).collect()
    return results


def _run_jobs(parcels: Iterator[bytes]) -> Iterator[bytes]:
    for parcel in parcels:
        yield pickled_outcome(partial(_run_once, *pickle.loads(parcel)))
        if _holds_much():
            return


def _holds_much() -> bool:
    """Return whether this process has freed memory that no budget counts while it has no job.

    A task that leaves a part of its input unread makes Spark end its process.
    """
    return resident_bytes() > TASK_BYTES


def _run_once(plan: RewritePlan, call: Call) -> object:
    refuse_second_try(plan.memory, plan.folder)
    return _within_memory(plan, call)


def _within_memory(plan: RewritePlan, call: Call) -> object:
    """Run a call within its memory limit; if it lacks memory, the process of the task ends."""
    try:
        with bounded_memory(plan.memory, plan.folder):
            return call()
    except MemoryShortError as error:
        if TaskContext.get() is not None:
            end_this_process(plan.folder, str(error))
        raise


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
        return _map_in_arrow(values, partial(_store_values, plan), RESULT_SCHEMA)

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
    numbers = _numbers_frame(spark, count, readers)
    rows = _map_in_arrow(numbers, partial(_read, plan), schema)
    # Encoded keys are bytes, and Spark compares bytes unsigned, which is the order of keys.
    ordered = rows.repartition(1).sortWithinPartitions(KEY_COLUMN)
    return _map_in_arrow(ordered, partial(_write, plan), RESULT_SCHEMA)


def _expression_values_frame(spark: Any, plan: RewritePlan, readers: int) -> Any:
    """Return a frame of the values of the transform's expressions.

    Its partitions hold whole inputs, each in row order.
    """
    assert plan.rules.transform is not None
    expressions = ExpressionInputs(plan.rules.schema, plan.rules.transform)
    own = _expression_session(spark, _answer_rows_max(plan))
    numbers = _numbers_frame(own, len(plan.inputs.paths), readers)
    questions = _map_in_arrow(numbers, partial(_read_expression_inputs, plan), expressions.schema)
    return questions.where(expressions.condition).selectExpr(*expressions.answers)


def _numbers_frame(spark: Any, count: int, partitions: int) -> Any:
    """Return the numbers below `count`. `spark.range` loads 1,100 classes of Scala's reflection."""
    return spark.sql(f"select id from range(0, {count}, 1, {partitions})")


def _map_in_arrow(frame: Any, function: Callable[[Batches], Batches], schema: Any) -> Any:
    """Return `frame.mapInArrow(function, schema)`, whose own way loads pandas for nothing."""
    from pyspark.rdd import PythonEvalType
    from pyspark.sql import DataFrame
    from pyspark.sql.udf import UserDefinedFunction

    kind = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    call = UserDefinedFunction(function, returnType=schema, evalType=kind)
    mapped = call(*(frame[name] for name in frame.columns))
    expression = mapped._jc.expr()  # noqa: SLF001 - PySpark has no public API without pandas
    jdf = frame._jdf.pythonMapInArrow(expression, False)  # noqa: SLF001
    return DataFrame(jdf, frame.sparkSession)


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
    yield outcome_batch(partial(_within_memory, plan, partial(write_sorted, plan, batches)))


def _result_of_frame(plan: RewritePlan, frame: Callable[[], Any]) -> TaskResult:
    """Run the job and return its result, or raise what ended it."""
    (row,) = _collect(plan, frame)
    outcome = result_of(row["result"])
    assert isinstance(outcome, TaskResult), type(outcome)
    return outcome


def _collect(plan: RewritePlan, frame: Callable[[], Any]) -> list[Any]:
    try:
        with SHARED_TASKS.giving_way():
            return list(frame().collect())
    except Exception as error:
        raise translate_error(plan, error) from error


# --------------------------------------------------------------------------------------- Warming up


WARM_MODULES = ("numpy", "polars", "pyarrow.parquet", "compactor.rewrite.merge.driver")
REHEARSED_ROWS = 1 << 10
EVALUATED_ROWS = 100_000
"""Rows after which Java has compiled the code that all expressions share."""


def warm_up(_: int) -> None:
    """Load and use the libraries of every rewrite once; runs in each worker of an executor."""
    for name in WARM_MODULES:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="neve-warm-") as folder:
        _rehearse(Path(folder, "rows.parquet"))
    # Spark's worker collects garbage after each task. With all loaded objects included that takes
    # 25 ms and finds nothing.
    ignore_what_is_loaded()


def _rehearse(path: Path) -> None:
    """Write, read, sort and write a few rows, so that libraries start threads and load modules."""
    import polars as pl
    import pyarrow.parquet as pq

    numbers = [number * 7919 % REHEARSED_ROWS for number in range(REHEARSED_ROWS)]
    rows = pa.table({"number": numbers, "text": [f"{number:x}" for number in numbers]})
    pq.write_table(rows, path, compression="zstd", write_page_index=True)
    sorted_rows = pl.scan_parquet(path, glob=False).collect().sort("number")
    pq.write_table(sorted_rows[numbers].to_arrow(), path, compression="zstd")


def warm_up_expressions(spark: Any) -> None:
    """Evaluate expressions of numbers and texts, which no job is then the first to do."""
    own = _expression_session(spark, NARROW_ANSWERS_MAX)
    numbers = _numbers_frame(own, EVALUATED_ROWS, spark.sparkContext.defaultParallelism)
    rows = _map_in_arrow(numbers, iter, "id bigint")
    texts = rows.selectExpr("id % 1000 as id", "cast(id % 7 as string) as text")
    answers = texts.where("text rlike '^[0-9]'").selectExpr("id", "replace(text, '1', '2') as text")
    _map_in_arrow(answers, iter, "id bigint, text string").where("id < 0").collect()
