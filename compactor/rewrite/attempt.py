"""One attempt in the driver process: plan, rewrite, verify.

`rewrite` is the entry, which the driver process calls for each assignment. Nothing is committed
here. After a failure, the outputs are deleted before the error is raised.
"""

import json
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Self, assert_never

import pyarrow as pa

from common.control_settings import CatalogSettings
from common.errors import AttemptCancelledError, NotStitchableError, RewriteError
from common.expressions import NotNativeError
from common.lake.open import unpacked_access
from common.model.file import DataFile
from common.model.job import JobAction
from common.model.key_values import KeyType
from common.model.outcome import DroppedRows, RowCounts, Statistics
from common.parquet.file_inspection import open_table_file
from common.parquet.location import Location
from common.parquet.row_batches import folders_of, place_guards
from common.rows.merge import sum_counts
from common.rows.row_facts import (
    RowFacts,
    data_file_of,
    facts_of_file,
    unite_facts,
)
from common.rows.rules import (
    CLOCK_MARGIN_S,
    DropRule,
    RowRules,
    may_hold_older_between,
    merged_spans,
)
from common.runtime import SystemClock
from common.wire import Assignment
from compactor.core import OnProgress, RewriteProgress, RewriteResult
from compactor.lake_commit import Loan
from compactor.rewrite.attempt_folder import (
    Allowance,
    ProgressMark,
    allowance_of,
    attempt_folder,
    read_change_counts,
    read_marks,
    remove_parts,
)
from compactor.rewrite.file_io import delete_file, forget_pages, table_location
from compactor.rewrite.general_merge import (
    copy_bag_part,
    copy_whole_bag,
    join_bag_parts,
    rewrite_in_memory,
)
from compactor.rewrite.kernel.normalized_keys import UnsupportedRowsError
from compactor.rewrite.lake import (
    LakePlan,
    lake_result,
    make_lake_plan,
    read_lake_inputs,
    rewrite_lake,
)
from compactor.rewrite.live_rows import count_live
from compactor.rewrite.memory_budget import (
    LAKE_ACCESS_SETTING,
    LIMIT_SETTING,
    PAGE_CACHE_SETTING,
    SCRATCH_SETTING,
    TASK_BYTES,
    TASK_SETTING,
    MemoryBudget,
)
from compactor.rewrite.merge.driver import merge_large_job, results_of
from compactor.rewrite.merge.tasks import merge_small_job
from compactor.rewrite.outputs import TaskResult, WrittenFile, open_output_writer
from compactor.rewrite.parquet_bytes.relocation import StitchedFooter, StitchPiece
from compactor.rewrite.parquet_bytes.stitch import stitch
from compactor.rewrite.plan.rewrite_plan import (
    Inputs,
    Output,
    RewritePlan,
    Rules,
    copied_inputs,
    make_plan,
)
from compactor.rewrite.spark_tasks import (
    run_in_one_task,
    run_tasks,
    sort_and_merge,
    store_expression_values,
)
from compactor.rewrite.transform import store_plugin_values
from compactor.rewrite.verify import verify

# ------------------------------------------------------------------------------------------- Choose
# Chooses the way of a job and runs it on Spark.
#
#   drop     every row has expired: none is read, and Spark is not used
#   stitch   row groups of all inputs are copied as bytes: no row wins, expires or changes
#   merge    the kernel merges a keyed table, in one task or in ranges
#   bag      an append-only table is copied row by row, without the expired rows
#   memory   a small job that the kernel does not support is merged in one task
#   sql      a larger one is sorted by Spark and merged by one task
#
# Some jobs turn out to be unsuitable for their way while it runs. They use the next one.


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
    spark: Any, plan: RewritePlan, stitching: "StitchPlan | None" = None
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
    transform, stored = plan.rules.transform, False
    for way in ways_of(plan):
        if transform is not None and not stored:
            if transform.native and way in (Way.MERGE, Way.BAG):
                with suppress(NotNativeError):
                    with suppress(UnsupportedRowsError):
                        return _run(spark, plan, way), way
                    continue
            plan, stored = _with_stored_values(spark, plan), True
        with suppress(UnsupportedRowsError):
            return _run(spark, plan, way), way
    raise AssertionError("the last way supports every job")


def _with_stored_values(spark: Any, plan: RewritePlan) -> RewritePlan:
    """Have the values of a transform computed and stored, and return the plan that uses them."""
    remove_parts(plan.folder)
    plan = without_native(plan)
    assert plan.rules.transform is not None
    if plan.rules.transform.asks_spark:
        store_expression_values(spark, plan)
    else:
        numbers = range(len(plan.inputs.paths))
        count = min(len(numbers), spark.sparkContext.defaultParallelism)
        # Tasks need neither row groups nor facts of inputs, which may be megabytes.
        narrow = replace(plan, inputs=replace(plan.inputs, row_groups=(), clean={}, small={}))
        calls = [partial(store_plugin_values, narrow, numbers[at::count]) for at in range(count)]
        run_tasks(spark, plan, calls)
    return plan


def without_native(plan: RewritePlan) -> RewritePlan:
    """Return a plan that uses stored values of its transform."""
    assert plan.rules.transform is not None
    transform = replace(plan.rules.transform, native=False)
    return replace(plan, rules=replace(plan.rules, transform=transform))


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
    if not row_rules.key:
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
            return _run_bag(spark, plan)
        case Way.MEMORY:
            return run_in_one_task(spark, plan, rewrite_in_memory)
        case Way.SORT:
            return sort_and_merge(spark, plan)
        case Way.STITCH | Way.DROP:
            raise AssertionError(f"{way} reads no rows")
        case _:
            assert_never(way)


def _run_bag(spark: Any, plan: RewritePlan) -> TaskResult:
    """Copy the rows of an append-only table, in as many tasks as cores if they have one output."""
    numbers, small = range(len(plan.inputs.paths)), _fits_memory(plan.inputs, plan.memory)
    count = min(len(numbers), spark.sparkContext.defaultParallelism)
    if small or count == 1 or len(plan.output.paths) > 1 or plan.output.cuts_at_s:
        (result,) = run_tasks(spark, plan, [partial(copy_whole_bag, plan)])
        if result is None:
            raise NotNativeError("Spark has to evaluate the expressions")
        assert isinstance(result, TaskResult), type(result)
        return result
    ends = [len(numbers) * at // count for at in range(count + 1)]
    calls = [
        partial(copy_bag_part, plan, numbers[begin:end], f"part-{begin}.parquet")
        for begin, end in pairwise(ends)
    ]
    parts = run_tasks(spark, plan, calls)
    if any(part is None for part in parts):
        raise NotNativeError("Spark has to evaluate the expressions")
    return join_bag_parts(plan, parts)


def _run_merge(spark: Any, plan: RewritePlan) -> TaskResult:
    if not _fits_memory(plan.inputs, plan.memory):
        totals = replace(plan, inputs=plan.inputs.only(()))
        cores = spark.sparkContext.defaultParallelism
        return merge_large_job(plan, partial(run_tasks, spark, totals), cores)
    (merged,) = results_of(run_tasks(spark, plan, [partial(merge_small_job, plan)]), TaskResult)
    assert isinstance(merged, TaskResult), "a small job is merged without statistics"
    return merged


def _run_stitch(spark: Any, plan: RewritePlan, stitching: "StitchPlan") -> TaskResult:
    work = partial(stitch_whole, stitching, plan)
    small = stitching.size_bytes <= STITCH_HERE_BYTES
    if small and plan.inputs.footer_bytes <= STITCH_HERE_FOOTER_BYTES:
        return work()
    result: TaskResult
    (result,) = run_tasks(spark, plan, [work])
    return result


# ------------------------------------------------------------------------------------------ Attempt


REPORT_INTERVAL_S = 0.5
WRITTEN_FRACTION = 0.8
"""Progress of an attempt when everything is written and nothing verified."""


def rewrite(
    spark: Any,
    assignment: Assignment,
    progress: OnProgress,
    cancelled: Callable[[], bool],
    attach: Callable[[Allowance], None] = lambda _: None,
) -> RewriteResult:
    """Rewrite the inputs of an assignment and verify the outputs; nothing is committed.

    Args:
        spark: The session. Its job group is the attempt's, so that it can be cancelled.
        assignment: The reserved job.
        progress: Called with the progress, from more than one thread.
        cancelled: Whether the attempt was cancelled.
        attach: Called with the allowance, which receives grants and a cancellation.

    Raises:
        RewriteError: It failed or was cancelled; no output is left.
        UnavailableError: The storage does not answer.
    """
    if assignment.job.action == JobAction.ANALYZE:
        return _analyze(spark, assignment, progress, cancelled, attach)
    clock = SystemClock()
    begun_s = clock.now_s()
    session = _session_settings(spark)
    with attempt_folder(session.scratch) as folder:
        allowance = Allowance.create(folder, assignment.grant_bytes_s)
        attach(allowance)
        with _ProgressReporter(progress, assignment, allowance, folder) as reporter:
            plan, lake = _plans(assignment, folder, session, reporter.step)
            planned_s = clock.now_s()
            _raise_if_cancelled(cancelled)
            try:
                reporter.rewriting(plan)
                result, way = _rewritten(spark, plan, assignment, lake)
                written_s = clock.now_s()
                _raise_if_cancelled(cancelled)
                reporter.verifying(plan.inputs.rows)
                facts = verify(plan, result, reporter.counting_cancelled(cancelled))
                packed = lake_result(lake, result, facts) if lake else b""
                allowance.settle()
                _guard_directory(plan, assignment)
            except BaseException:
                # Nothing of this attempt was committed, and no other attempt has its paths.
                _delete(plan.location, plan.output.paths)
                raise
            if session.drops_pages:
                _give_pages_back(plan, assignment, result)
            reporter.done(plan.inputs.rows)
            changes = read_change_counts(folder)
    general = RowCounts(changed=changes.changed, deleted=changes.deleted)
    return RewriteResult(
        outputs=_outputs(assignment, result, facts),
        counts=sum_counts(result.counts, general),
        dropped=result.dropped,
        kernel=way.value,
        timings_s={
            "plan": planned_s - begun_s,
            "rewrite": written_s - planned_s,
            "verify": clock.now_s() - written_s,
        },
        lake=packed,
    )


def _plans(
    assignment: Assignment, folder: str, session: "_SessionSettings", step: Callable[[], None]
) -> tuple[RewritePlan, LakePlan | None]:
    """Return the plan of a job, and for a lake table what it has in addition."""
    if assignment.table.lake is None:
        return make_plan(assignment, folder, session.task, step), None
    Loan.of(assignment, session.catalog).take()
    inputs = read_lake_inputs(assignment, session.catalog, step)
    lake = make_lake_plan(assignment, inputs, folder, session.task, step)
    return lake.rewrite, lake


def _rewritten_lake(spark: Any, plan: LakePlan, loan: Loan) -> tuple[TaskResult, Way]:
    size_bytes = sum(file.size_bytes for file in plan.inputs.files)
    small = size_bytes <= STITCH_HERE_BYTES
    small = small and plan.rewrite.inputs.footer_bytes <= STITCH_HERE_FOOTER_BYTES
    cores = int(spark.sparkContext.defaultParallelism)
    result = rewrite_lake(plan, loan.around(partial(run_tasks, spark)), cores, small=small)
    return result, Way.STITCH if plan.copies_all else Way.BAG


def _analyze(
    spark: Any,
    assignment: Assignment,
    progress: OnProgress,
    cancelled: Callable[[], bool],
    attach: Callable[[Allowance], None],
) -> RewriteResult:
    """Count the live bytes of a tablet's files; arguments and errors as for `rewrite`."""
    clock = SystemClock()
    begun_s = clock.now_s()
    if not assignment.analyzed:
        raise RewriteError("an analysis came without files, expected those of its tablet")
    read = replace(
        assignment,
        inputs=assignment.analyzed,
        # The plan requires one output, although none is written.
        reservation=replace(assignment.reservation, outputs_max=1),
    )
    session = _session_settings(spark)
    with attempt_folder(session.scratch) as folder:
        allowance = Allowance.create(folder, assignment.grant_bytes_s)
        attach(allowance)
        with _ProgressReporter(progress, read, allowance, folder) as reporter:
            plan = make_plan(read, folder, session.task, reporter.step)
            _raise_if_cancelled(cancelled)
            reporter.rewriting(plan)
            columns = assignment.table.settings.analysis_columns
            live = count_live(plan, read.inputs, partial(run_tasks, spark, plan), columns)
            _raise_if_cancelled(cancelled)
            allowance.settle()
            reporter.done(plan.inputs.rows)
    statistics = Statistics(
        files=live.files,
        tablet_version=assignment.tablet_version,
        rows=plan.inputs.rows,
        read_bytes=live.read_bytes,
        elapsed_s=clock.now_s() - begun_s,
        tablet=live.tablet,
    )
    return RewriteResult(outputs=(), counts=RowCounts(), kernel="analyze", statistics=statistics)


def _rewritten(
    spark: Any, plan: RewritePlan, assignment: Assignment, lake: LakePlan | None
) -> tuple[TaskResult, Way]:
    """Rewrite by the cheapest correct way; only the last of these reads rows."""
    if lake is not None:
        return _rewritten_lake(spark, lake, Loan.of(assignment, _session_settings(spark).catalog))
    dropped = drop_whole(plan, assignment)
    if dropped is not None:
        return dropped, Way.DROP
    return rewrite_with_spark(spark, plan, stitch_plan(plan, assignment))


def _guard_directory(plan: RewritePlan, assignment: Assignment) -> None:
    """Write guards into the folders of the inputs, before the commit becomes visible.

    Raises:
        UnavailableError: The storage does not answer, or forbids it.
    """
    if assignment.table.settings.directory_guard and assignment.table.lake is None:
        folders = folders_of(file.path for file in assignment.inputs)
        place_guards(table_location(plan.location), folders)


def _outputs(
    assignment: Assignment, result: TaskResult, facts: tuple[tuple[int, RowFacts], ...]
) -> tuple[DataFile, ...]:
    return tuple(
        _data_file(assignment, file.path, size_bytes, rows)
        for file, (size_bytes, rows) in zip(result.files, facts, strict=True)
    )


def _data_file(assignment: Assignment, path: str, size_bytes: int, rows: RowFacts) -> DataFile:
    since = [file.tombstones_since_s for file in assignment.inputs]
    stamps = (stamp for stamp in since if stamp is not None)
    # If inputs have no tombstones, a transform has just created the first ones.
    oldest = min(stamps, default=assignment.reservation.now_s)
    reservation = assignment.reservation
    file = data_file_of(
        rows,
        path,
        size_bytes,
        key_types=RowRules.of(assignment.table).key_types,
        added_at_s=reservation.now_s,
        tombstones_since_s=oldest,
    )
    return replace(
        file,
        schema_id=assignment.table.schema_id,
        tags=assignment.job.output_tags,
        job=assignment.job.id,
        request=reservation.request,
    )


@dataclass(frozen=True, slots=True)
class _SessionSettings:
    """The settings of a session that a rewrite uses."""

    scratch: str
    """Folder that executors and driver share; empty: that for temporary files."""
    drops_pages: bool
    """Whether pages of inputs and outputs are released after a job."""
    task: tuple[int, int]
    """Memory of a task's process, and the limit at which it is ended; 0: no limit."""
    catalog: CatalogSettings
    """How the logs of lake tables are reached."""


@lru_cache(maxsize=1)
def _session_settings(spark: Any) -> _SessionSettings:
    """Return the settings of a session, which never change.

    PySpark's own call copies all settings to Python and back, one by one, for each job. Spark SQL's
    call waits for the SQL state of the session, which the first job does not need otherwise.
    """
    settings = spark.sparkContext._jsc.sc().conf()  # noqa: SLF001 - PySpark has no public API
    return _SessionSettings(
        scratch=str(settings.get(SCRATCH_SETTING, "")),
        drops_pages=settings.get(PAGE_CACHE_SETTING, "keep") == "drop",
        task=(
            int(settings.get(TASK_SETTING, str(TASK_BYTES))),
            int(settings.get(LIMIT_SETTING, "0")),
        ),
        catalog=unpacked_access(str(settings.get(LAKE_ACCESS_SETTING, ""))),
    )


def _give_pages_back(plan: RewritePlan, assignment: Assignment, result: TaskResult) -> None:
    read, written = assignment.inputs, result.files
    paths = [*(file.path for file in read), *(file.path for file in written)]
    forget_pages(table_location(plan.location), paths)


@dataclass(frozen=True, slots=True)
class _Stage:
    """The progress of an attempt without that of its tasks."""

    state: str = "preparing"
    fraction: float = 0.0
    rows: int = 0
    rows_expected: int = 0
    """Number of rows that tasks will report in total; 0: no task runs."""
    read_expected: int = 0
    """Bytes of row groups that tasks will read; 0: no task runs."""


class _ProgressReporter:
    """Reports the progress of an attempt repeatedly, from a separate thread."""

    def __init__(
        self, progress: OnProgress, assignment: Assignment, allowance: Allowance, folder: str
    ) -> None:
        self._progress = progress
        self._size_bytes = sum(file.size_bytes for file in assignment.inputs)
        self._allowance = allowance
        self._folder = folder
        self._stage = _Stage()
        self._steps = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._report_forever, daemon=True, name="progress")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def step(self) -> None:
        """Count a piece of work that no other number shows."""
        self._steps += 1  # A lost update by another thread is harmless.

    def counting_cancelled(self, cancelled: Callable[[], bool]) -> Callable[[], bool]:
        """Return the same function, with each call counted as a step."""

        def is_cancelled() -> bool:
            self.step()
            return cancelled()

        return is_cancelled

    def rewriting(self, plan: RewritePlan) -> None:
        """Report the progress of tasks from now on."""
        rows = max(1, plan.inputs.rows * count_passes(plan))
        row_groups_bytes = max(1, self._size_bytes - plan.inputs.footer_bytes)
        self._enter(_Stage("rewriting", 0.0, plan.inputs.rows, rows, row_groups_bytes))

    def verifying(self, rows: int) -> None:
        """Report that everything is written."""
        self._enter(_Stage("verifying", WRITTEN_FRACTION, rows))

    def done(self, rows: int) -> None:
        """Report that everything is verified."""
        self._enter(_Stage("verifying", 1.0, rows))

    def _enter(self, stage: _Stage) -> None:
        self._stage = stage
        self._report_progress()

    def _report_forever(self) -> None:
        while not self._over.wait(REPORT_INTERVAL_S):
            self._report_progress()

    def _done_bytes(self, stage: _Stage, read_bytes: int) -> int:
        """Return the bytes of the inputs that were read, by row groups."""
        if stage.read_expected:
            return min(self._size_bytes, self._size_bytes * read_bytes // stage.read_expected)
        return self._size_bytes if stage.fraction else 0

    def _report_progress(self) -> None:
        """Report the progress, and the bytes moved."""
        stage, usage = self._stage, self._allowance.usage()
        done_bytes, done_rows = read_marks(self._folder)
        fraction, rows = stage.fraction, stage.rows
        if stage.rows_expected:
            part = min(1.0, done_rows / stage.rows_expected)
            fraction, rows = part * WRITTEN_FRACTION, int(part * stage.rows)
        self._progress(
            RewriteProgress(
                fraction=fraction,
                bytes_done=self._done_bytes(stage, usage.read_bytes),
                rows_done=rows,
                state=stage.state,
                moved_bytes=usage.moved_bytes,
                waited_s=usage.waited_s,
                synced_bytes=usage.synced_bytes,
                sync_s=usage.sync_s,
                steps=self._steps + done_bytes,
                written_bytes=usage.written_bytes,
            )
        )


def _raise_if_cancelled(cancelled: Callable[[], bool]) -> None:
    if cancelled():
        raise AttemptCancelledError("cancelled between two steps")


def _delete(table: str, paths: Iterable[str]) -> None:
    location = table_location(table)
    for path in paths:
        delete_file(location, path)


# --------------------------------------------------------------------------------- The way `stitch`
# The way `stitch`: a whole job whose rows stay unchanged, copied as row groups.
#
# It is used if no row can win over another, expire or change: for append-only tables, and for
# keyed ones whose inputs are clean and do not overlap. The output's metadata is derived from the
# inputs', which was exact when they were added or verified.


@dataclass(frozen=True, slots=True, kw_only=True)
class StitchPlan:
    """The plan of a stitch."""

    paths: tuple[str, ...]
    """Paths of the inputs, in key order."""
    size_bytes: int
    """Total size of the inputs."""
    facts: RowFacts
    """Facts of the output."""


def stitch_plan(plan: RewritePlan, assignment: Assignment) -> StitchPlan | None:
    """Return the plan of a stitch; None: the rows have to be read.

    Args:
        plan: The plan of the job.
        assignment: The assignment of the job.
    """
    files = copied_inputs(plan, assignment)
    if files is None:
        return None
    facts = unite_facts(list(map(facts_of_file, files)))
    return StitchPlan(
        paths=tuple(file.path for file in files),
        size_bytes=sum(file.size_bytes for file in files),
        facts=facts,
    )


def stitch_whole(stitching: StitchPlan, plan: RewritePlan) -> TaskResult:
    """Stitch the inputs of a job.

    Raises:
        NotStitchableError: They cannot be copied unchanged; no output is left.
        RewriteError: See `stitch`; no output is left.
    """
    location, output = table_location(plan.location), plan.output.paths[0]
    mark, total_bytes = ProgressMark(plan.folder, "write"), max(1, plan.inputs.decoded_bytes)
    allowance = allowance_of(plan.folder)

    def copied(size_bytes: int) -> None:
        allowance.pay(size_bytes, written_bytes=size_bytes)
        mark.add(size_bytes, plan.inputs.rows * size_bytes // total_bytes)

    purge = plan.output.purge.hex() if plan.output.purge else ""
    last_file = {"neve.purge": purge, "neve.outputs": json.dumps([output])}
    footing = StitchedFooter(
        metadata={**dict(plan.output.footer), **last_file}, schema=plan.rules.schema
    )
    made = stitch(
        location,
        list(map(StitchPiece, stitching.paths)),
        output,
        footing=footing,
        on_copied=copied,
    )
    allowance.synced(made.synced_bytes, made.sync_s)
    try:
        _require_schema(location, output, plan.rules.schema)
    except BaseException:
        delete_file(location, output)
        raise
    counts = RowCounts(rows_in=made.rows, rows_out=made.rows)
    written = WrittenFile(0, output, made.rows)
    return TaskResult(counts=counts, dropped=None, files=(written,), facts=(stitching.facts,))


def _require_schema(location: Location, output: str, schema: pa.Schema) -> None:
    """Refuse an output whose columns readers would see incorrectly."""
    with open_table_file(location, output) as parquet:
        output_schema = parquet.schema_arrow
    if not output_schema.equals(schema):
        raise NotStitchableError(f"output {output} has columns {output_schema}, not {schema}")


# ----------------------------------------------------------------------------------------- Drop job
# The way `drop`: a whole job whose rows have all expired ends without reading a row.
#
# Metadata gives the latest time of each input and the bounds of its keys and versions, and footers
# show that no row lacks a time. If either leaves a doubt, the rows are read, and those that have
# not expired are kept. So a job that was planned as a drop may cost time, but never loses a row.


def drop_whole(plan: RewritePlan, assignment: Assignment) -> TaskResult | None:
    """End a job whose rows may all be dropped; None: its rows have to be read.

    The only output is the empty file that shows a rebuild that the inputs are gone.

    Args:
        plan: The plan of the job.
        assignment: The assignment of the job.

    Raises:
        RewriteError: That file cannot be written.
        UnavailableError: The storage does not answer.
    """
    files = assignment.inputs
    if plan.rules.transform is not None or not _all_expired(plan, files):
        return None
    dropped = None
    if plan.rules.row_rules.key:
        # An expired row hides older ones of its key, as a tombstone does.
        dropped = _droppable(files, plan.rules.drop)
        if dropped is None:
            return None
    with open_output_writer(plan) as writer:
        outputs = writer.finish(dropped)
    rows = plan.inputs.rows
    counts = RowCounts(rows_in=rows, expired_dropped=rows)
    return TaskResult(counts=counts, dropped=dropped, files=outputs, facts=())


def _all_expired(plan: RewritePlan, files: Iterable[DataFile]) -> bool:
    """Return whether every row has certainly expired."""
    rules, now_s = plan.rules.row_rules, plan.rules.now_s
    if rules.ttl_s is None or rules.time_column is None or not plan.inputs.timed:
        return False
    if pa.types.is_floating(plan.rules.schema.field(rules.time_column).type):
        return False  # A time such as NaN never expires, and is in no file's bounds.
    safe_s = now_s - rules.ttl_s - CLOCK_MARGIN_S
    return all(file.time_max_s is not None and file.time_max_s <= safe_s for file in files)


def _droppable(files: Iterable[DataFile], rule: DropRule) -> DroppedRows | None:
    """Return the keys and versions of droppable files; None: some row may have to stay."""
    spans, versions = [], []
    for file in files:
        low, high, version = file.key_min, file.key_max, file.version_max
        if low is None or high is None or version is None:
            return None
        if rule.settled is None or version > rule.settled:
            return None
        if any(may_hold_older_between(other, low, high, version) for other in rule.outside):
            return None
        spans.append((low, high))
        versions.append(version)
    return DroppedRows(spans=merged_spans(spans), version_max=max(versions)) if spans else None
