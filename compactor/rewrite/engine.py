"""One attempt inside the driver process: plan, rewrite, verify. Spark's side calls `rewrite`."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from common.clock import SystemClock
from common.errors import AttemptCancelledError
from common.model.file import DataFile
from common.rows.facts import RowFacts, file_of
from common.wire import Assignment
from compactor.core.result import RewriteProgress, RewriteResult
from compactor.rewrite.allowance import Allowance
from compactor.rewrite.files import delete_file, table_location
from compactor.rewrite.folders import attempt_folder
from compactor.rewrite.marks import read_marks
from compactor.rewrite.memory import LIMIT_SETTING, TASK_BYTES, TASK_SETTING
from compactor.rewrite.plan import RewritePlan, make_plan
from compactor.rewrite.sql import passes_of, rewrite_with_spark
from compactor.rewrite.stitch_job import stitch_plan
from compactor.rewrite.tasks import TaskResult
from compactor.rewrite.verify import verify

OnProgress = Callable[[RewriteProgress], None]

LOOK_INTERVAL_S = 0.5
WRITTEN_FRACTION = 0.8
"""How far an attempt is when everything is written and nothing verified."""


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
        progress: Hears how far it is, from more than one thread.
        cancelled: Whether somebody wants the attempt back.
        attach: Is given what further grants, and a cancellation, have to be told to.

    Raises:
        RewriteError: It failed or was cancelled; no output is left.
        UnavailableError: The storage does not answer.
    """
    clock = SystemClock()
    begun_s = clock.now_s()
    with attempt_folder() as folder:
        allowance = Allowance.create(folder, assignment.grant_bytes_s)
        attach(allowance)
        told = _Told(progress, assignment, allowance)
        plan = make_plan(assignment, folder, _task_memory(spark))
        planned_s = clock.now_s()
        _stop_if(cancelled)
        try:
            stitching = stitch_plan(plan, assignment)
            with _watched(plan, told):
                result, kernel = rewrite_with_spark(spark, plan, stitching)
            written_s = clock.now_s()
            _stop_if(cancelled)
            told.tell("verifying", WRITTEN_FRACTION, plan.rows)
            facts = verify(plan, result, cancelled)
            allowance.settle()
        except BaseException:
            # Nothing of this attempt was ever committed, and no other has its paths.
            _delete(plan)
            raise
        told.tell("verifying", 1.0, plan.rows)
    return RewriteResult(
        outputs=_outputs(assignment, result, facts),
        counts=result.counts,
        dropped=result.dropped,
        kernel=kernel,
        timings_s={
            "plan": planned_s - begun_s,
            "rewrite": written_s - planned_s,
            "verify": clock.now_s() - written_s,
        },
    )


def _outputs(
    assignment: Assignment, result: TaskResult, facts: tuple[tuple[int, RowFacts], ...]
) -> tuple[DataFile, ...]:
    return tuple(
        _data_file(assignment, file.path, size_bytes, rows)
        for file, (size_bytes, rows) in zip(result.files, facts, strict=True)
    )


def _data_file(assignment: Assignment, path: str, size_bytes: int, rows: RowFacts) -> DataFile:
    since = [file.tombstones_since_s for file in assignment.inputs]
    known = (stamp for stamp in since if stamp is not None)
    # Inputs without tombstones: a transform has made the first ones just now.
    oldest = min(known, default=assignment.reservation.now_s)
    reservation = assignment.reservation
    file = file_of(rows, path, size_bytes, added_at_s=reservation.now_s, tombstones_since_s=oldest)
    return replace(
        file,
        schema_id=assignment.table.schema_id,
        tags=assignment.job.output_tags,
        job=assignment.job.id,
        request=reservation.request,
    )


def _task_memory(spark: Any) -> tuple[int, int]:
    """Return what the process of a task may have, and with what it is ended."""
    # The session knows its context's settings, too; asking the context copies them all.
    conf = spark.conf
    return int(conf.get(TASK_SETTING, str(TASK_BYTES))), int(conf.get(LIMIT_SETTING, "0"))


@contextmanager
def _watched(plan: RewritePlan, told: "_Told") -> Iterator[None]:
    """Pass on how far the tasks are while they run."""
    done = threading.Event()
    rows_expected = max(1, plan.rows * passes_of(plan))

    def look() -> None:
        while not done.wait(LOOK_INTERVAL_S):
            _, rows = read_marks(plan.progress_folder)
            fraction = min(1.0, rows / rows_expected)
            rows_done = int(fraction * plan.rows)
            told.tell("rewriting", fraction * WRITTEN_FRACTION, rows_done)

    told.tell("rewriting", 0.0, 0)
    watcher = threading.Thread(target=look, daemon=True, name="progress")
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


@dataclass(frozen=True, slots=True)
class _Told:
    """Whoever hears how far an attempt is."""

    progress: OnProgress
    assignment: Assignment
    allowance: Allowance

    def tell(self, state: str, fraction: float, rows: int) -> None:
        """Tell how far it is, and what it has moved."""
        size_bytes = sum(file.size_bytes for file in self.assignment.inputs)
        usage = self.allowance.usage()
        self.progress(
            RewriteProgress(
                fraction=fraction,
                bytes_done=int(fraction * size_bytes),
                rows_done=rows,
                state=state,
                moved_bytes=usage.moved_bytes,
                waited_s=usage.waited_s,
                synced_bytes=usage.synced_bytes,
                sync_s=usage.sync_s,
            )
        )


def _stop_if(cancelled: Callable[[], bool]) -> None:
    if cancelled():
        raise AttemptCancelledError("cancelled between two steps")


def _delete(plan: RewritePlan) -> None:
    location = table_location(plan.location)
    for path in plan.outputs:
        delete_file(location, path)
