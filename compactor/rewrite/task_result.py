"""How a task ended, as it travels from its process to the driver."""

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
    return pa.record_batch([pa.array([pickled_outcome(task)], pa.binary())], names=["result"])


def pickled_outcome(task: Callable[[], object]) -> bytes:
    """Run a task that writes outputs; return how it ended, pickled."""
    outcome: object
    try:
        outcome = task()
    except CompactionError as error:
        outcome = TaskFailure(type(error).__name__, str(error))
    except Exception as error:
        # A boundary: Spark would try again, and hear only that there was a try before.
        found = storage_error(RewriteError, f"{type(error).__name__}: {error}", error)
        outcome = TaskFailure(type(found).__name__, str(found))
    if isinstance(outcome, TaskFailure) and outcome.error_class == MemoryShortError.__name__:
        release_memory()
    return pickle.dumps(outcome)
