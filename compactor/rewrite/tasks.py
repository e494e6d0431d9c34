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

from common.errors import CompactionError, InputError, MemoryShortError, RequestError
from common.model.outcome import DroppedRows, RowCounts
from common.rows.conform import conform
from common.rows.key_encoding import encode_keys
from common.rows.merge import merge_tables
from common.rows.partitions import filled
from common.rows.row_facts import RowFacts
from compactor.rewrite.allowance import allowance_of
from compactor.rewrite.carriers import carried, restored
from compactor.rewrite.changes import Change, change_of
from compactor.rewrite.files import folder_fill, read_tables, table_location
from compactor.rewrite.marks import Mark
from compactor.rewrite.merging import Tally, filter_bag, merge_sorted
from compactor.rewrite.plan import RewritePlan
from compactor.rewrite.questions import Answers
from compactor.rewrite.shortage import give_back
from compactor.rewrite.writer import WrittenFile, writing

RESULT_SCHEMA = "result binary"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What a task that wrote outputs tells the driver."""

    counts: RowCounts
    dropped: DroppedRows | None
    files: tuple[WrittenFile, ...]
    digest: int | None = None
    """Sum of the hashes of the rows that should have come out; None: not worked out."""
    facts: tuple[RowFacts, ...] | None = None
    """Of each file, as it was read back; None: that is still to be done."""


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """An error that a second try would only meet again; nothing was left behind."""

    error_class: str
    cause: str


def outcome_batch(task: Callable[[], object]) -> pa.RecordBatch:
    """Run a task that writes outputs; return how it ended, as Spark SQL carries it."""
    return pa.record_batch([pa.array([outcome_of(task)], pa.binary())], names=["result"])


def outcome_of(task: Callable[[], object]) -> bytes:
    """Run a task that writes outputs; return how it ended, pickled."""
    outcome: object
    try:
        outcome = task()
    except CompactionError as error:
        outcome = TaskFailure(type(error).__name__, str(error))
    except Exception as error:
        # A boundary: Spark would try again, and hear only that there was a try before.
        outcome = TaskFailure("RewriteError", f"{type(error).__name__}: {error}")
    if isinstance(outcome, TaskFailure) and outcome.error_class == MemoryShortError.__name__:
        give_back()
    return pickle.dumps(outcome)


def rewrite_in_memory(plan: RewritePlan, answers: Answers | None = None) -> TaskResult:
    """Merge all inputs of a keyed table at once.

    Args:
        plan: What to do.
        answers: Spark's, about all inputs in order; None if none were needed.
    """
    mark, change = Mark(plan.progress_folder, "write"), change_of(plan, answers)
    numbers = range(len(plan.inputs))
    tables = [piece.rows for at in numbers for piece in _pieces(plan, at, mark, change)]
    result = merge_tables(tables, plan.rules, plan.now_s, plan.drop)
    del tables
    with writing(plan) as writer:
        writer.write(result.table, result.dropped)
        files = writer.finish(result.dropped)
    return TaskResult(counts=result.counts, dropped=result.dropped, files=files)


def rewrite_bag(plan: RewritePlan, answers: Answers | None = None) -> TaskResult:
    """Copy the rows of an append-only table, without those that expired or are deleted.

    Args:
        plan: What to do.
        answers: As for `rewrite_in_memory`.
    """
    tally = Tally()
    mark, change = Mark(plan.progress_folder, "write"), change_of(plan, answers)
    with writing(plan) as writer:
        for at in range(len(plan.inputs)):
            for piece in _pieces(plan, at, mark, change):
                tally.deleted(piece.deleted)
                kept = filter_bag(piece.read, piece.rows, plan.rules, plan.now_s, tally)
                writer.write(kept, None)
        files = writer.finish(None)
    return TaskResult(counts=tally.counts, dropped=None, files=files, digest=tally.digest)


def read_for_sort(
    plan: RewritePlan, inputs: Iterable[int], answers: Answers | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some inputs as they cross Spark, each with its encoded key.

    Args:
        plan: What to do.
        inputs: Their numbers.
        answers: Spark's, about these inputs in this order; None if none were needed.
    """
    change = change_of(plan, answers)
    for at in inputs:
        mark = Mark(plan.progress_folder, f"read-{at}")
        for piece in _pieces(plan, at, mark, change):
            keys = encode_keys(piece.rows, plan.rules.key, plan.rules.key_types)
            yield from carried(piece.rows, keys).combine_chunks().to_batches()


def read_answered(plan: RewritePlan, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Do `read_for_sort` of the inputs that Spark's answers are about."""
    answers = Answers(batches)
    yield from read_for_sort(plan, iter(answers.next_input, None), answers)


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


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some rows of an input: as they were read, and as they are merged."""

    read: pa.Table
    """Of other columns and types perhaps; after a transform the same as `rows`."""
    rows: pa.Table
    deleted: int = 0
    """How many of those that were read a transform has left out."""


def _pieces(plan: RewritePlan, at: int, mark: Mark, change: Change) -> Iterator[_Piece]:
    """Yield the rows of an input in the plan's schema, transformed.

    Raises:
        InputError: The file cannot be read, or a value of it does not fit.
    """
    path, start = plan.inputs[at], 0
    fill = folder_fill(plan.rules, plan.schema, path)
    pay = allowance_of(plan.progress_folder).pay
    location = table_location(plan.location)
    for found in read_tables(location, path, plan.read_rows_max, pay=pay):
        try:
            read = filled(found, fill)
            fitting = conform(read, plan.schema, f"file {path}")
        except RequestError as error:
            raise InputError(str(error)) from error
        mark.add(fitting.nbytes, fitting.num_rows)
        rows = change.rows(at, start, fitting)
        same = rows is fitting
        yield _Piece(read if same else rows, rows, fitting.num_rows - rows.num_rows)
        start += read.num_rows
    change.end(at)
