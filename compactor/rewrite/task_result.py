"""The outcome of a task, in the form that travels from its process to the driver."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from common.errors import CompactionError, MemoryShortError, RewriteError
from common.model.outcome import DroppedRows, RowCounts
from common.parquet.location import storage_error
from common.rows.row_facts import RowFacts
from compactor.rewrite.memory_guard import release_memory
from compactor.rewrite.output_writer import WrittenFile

RESULT_SCHEMA = "result binary"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """The result of a task that wrote outputs."""

    counts: RowCounts
    dropped: DroppedRows | None
    files: tuple[WrittenFile, ...]
    digest: int | None = None
    """Sum of the hashes of the expected output rows; None: not computed."""
    facts: tuple[RowFacts, ...] | None = None
    """Facts of each file from reading it back; None: not read back."""


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """An error that a retry would repeat; no output is left."""

    error_class: str
    cause: str


def outcome_batch(task: Callable[[], object]) -> pa.RecordBatch:
    """Run a task that writes outputs; return its outcome in Spark SQL's form."""
    return pa.record_batch([pa.array([pickled_outcome(task)], pa.binary())], names=["result"])


def pickled_outcome(task: Callable[[], object]) -> bytes:
    """Run a task that writes outputs; return its outcome, pickled."""
    outcome: object
    try:
        outcome = task()
    except CompactionError as error:
        outcome = TaskFailure(type(error).__name__, str(error))
    except Exception as error:
        # A boundary: Spark would retry, and report only that there was an earlier try.
        failure = storage_error(RewriteError, f"{type(error).__name__}: {error}", error)
        outcome = TaskFailure(type(failure).__name__, str(failure))
    if isinstance(outcome, TaskFailure) and outcome.error_class == MemoryShortError.__name__:
        release_memory()
    return pickle.dumps(outcome)
