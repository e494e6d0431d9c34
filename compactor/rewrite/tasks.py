"""What Spark's Python workers do: read, merge, write. Importable wherever an executor runs.

    in memory   one task reads everything, merges and writes: small jobs
    through     tasks read, Spark sorts by encoded key (on disk if need be), one task
    Spark       merges the stream and writes
    bag         one task copies the rows of an append-only table, without the expired

No task may run twice over the same output; `sql` sees to that.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from common.errors import CompactionError, InputError, RequestError
from common.model.outcome import DroppedRows, RowCounts
from common.rows.conform import conform
from common.rows.encode import encode_keys
from common.rows.merge import merge_tables
from compactor.rewrite.carriers import carried, restored
from compactor.rewrite.files import read_tables, table_location
from compactor.rewrite.marks import Mark
from compactor.rewrite.merging import Tally, filter_bag, merge_sorted
from compactor.rewrite.plan import RewritePlan
from compactor.rewrite.writer import WrittenFile, writing

READ_ROWS = 1 << 16
RESULT_SCHEMA = "result binary"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What a task that wrote outputs tells the driver."""

    counts: RowCounts
    dropped: DroppedRows | None
    files: tuple[WrittenFile, ...]
    digest: int | None = None
    """Sum of the hashes of the rows that should have come out; None: not worked out."""


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """An error that a second try would only meet again; nothing was left behind."""

    error_class: str
    cause: str


def outcome_batch(task: Callable[[], TaskResult]) -> pa.RecordBatch:
    """Run a task that writes outputs; return how it ended, as Spark carries it."""
    outcome: TaskResult | TaskFailure
    try:
        outcome = task()
    except CompactionError as error:
        outcome = TaskFailure(type(error).__name__, str(error))
    return pa.record_batch([pa.array([pickle.dumps(outcome)], pa.binary())], names=["result"])


def rewrite_in_memory(plan: RewritePlan) -> TaskResult:
    """Merge all inputs of a keyed table at once."""
    mark = Mark(plan.progress_folder, "write")
    tables = [table for path in plan.inputs for table in _conformed(plan, path, mark)]
    result = merge_tables(tables, plan.rules, plan.now_s, plan.drop)
    del tables
    with writing(plan) as writer:
        writer.write(result.table, result.dropped)
        files = writer.finish(result.dropped)
    return TaskResult(counts=result.counts, dropped=result.dropped, files=files)


def rewrite_bag(plan: RewritePlan) -> TaskResult:
    """Copy the rows of an append-only table, without the expired ones."""
    tally = Tally()
    mark = Mark(plan.progress_folder, "write")
    with writing(plan) as writer:
        for path in plan.inputs:
            for read, fitting in _pairs(plan, path, mark):
                kept = filter_bag(read, fitting, plan.rules, plan.now_s, tally)
                writer.write(kept, None)
        files = writer.finish(None)
    return TaskResult(counts=tally.counts, dropped=None, files=files, digest=tally.digest)


def read_for_sort(plan: RewritePlan, inputs: Iterable[int]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some inputs as they cross Spark, each with its encoded key."""
    for at in inputs:
        mark = Mark(plan.progress_folder, f"read-{at}")
        for table in _conformed(plan, plan.inputs[at], mark):
            keys = encode_keys(table, plan.rules.key, plan.rules.key_types)
            yield from carried(table, keys).combine_chunks().to_batches()


def write_sorted(plan: RewritePlan, batches: Iterable[pa.RecordBatch]) -> TaskResult:
    """Merge rows that come back from Spark in the order of their keys, and write them."""
    tally = Tally()
    mark = Mark(plan.progress_folder, "write")
    tables = (restored(batch, plan.schema) for batch in batches)
    with writing(plan) as writer:
        for table in merge_sorted(tables, plan.rules, plan.now_s, plan.drop, tally):
            writer.write(table, tally.dropped)
            mark.add(table.nbytes, table.num_rows)
        files = writer.finish(tally.dropped)
    return TaskResult(counts=tally.counts, dropped=tally.dropped, files=files)


def _conformed(plan: RewritePlan, path: str, mark: Mark) -> Iterator[pa.Table]:
    """Yield the rows of an input in the plan's schema."""
    return (fitting for _, fitting in _pairs(plan, path, mark))


def _pairs(plan: RewritePlan, path: str, mark: Mark) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Yield the rows of an input, as read and in the plan's schema.

    Raises:
        InputError: The file cannot be read, or a value of it does not fit.
    """
    for read in read_tables(table_location(plan.location), path, READ_ROWS):
        try:
            fitting = conform(read, plan.schema, f"file {path}")
        except RequestError as error:
            raise InputError(str(error)) from error
        mark.add(fitting.nbytes, fitting.num_rows)
        yield read, fitting
