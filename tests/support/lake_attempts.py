"""Attempts at a real Delta table, without Spark: their assignment, and their rewrite in order."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.control_settings import CatalogSettings
from common.lake.mirror import mirrored_file
from common.lake.open import open_source
from common.lake.source import Snapshot
from common.model.file import DataFile
from common.model.outcome import RowCounts
from common.model.table import LakeTable, Table
from common.wire import Assignment
from compactor.lake_commit import LakeResult, unpacked_result
from compactor.rewrite.lake import (
    LakePlan,
    lake_result,
    make_lake_plan,
    read_lake_inputs,
    rewrite_lake,
)
from compactor.rewrite.memory_budget import TASK_BYTES
from compactor.rewrite.plan.rewrite_plan import RewritePlan
from compactor.rewrite.verify import verify
from tests.support.assignments import an_assignment
from tests.support.delta_tables import DeltaTable

CORES = 2


def snapshot_of(delta: DeltaTable) -> Snapshot:
    """Return the head of a table, as the service reads it."""
    return open_source("delta", delta.folder.as_uri(), {}).load()


def service_table(delta: DeltaTable, **fields: Any) -> Table:
    """Return a table as it is attached."""
    head = snapshot_of(delta)
    plain: dict[str, Any] = {
        "id": "table-1",
        "name": "sales",
        "location": delta.folder.as_uri(),
        "schema": head.columns,
        "partition_by": tuple(head.partition_columns),
        "lake": LakeTable(format="delta", uri=delta.folder.as_uri(), table_id=head.table_id),
    }
    return Table(**(plain | fields))


def assignment_of(
    delta: DeltaTable,
    paths: Sequence[str],
    *,
    attempt: str = "att-1",
    outputs: int = 1,
    table: Table | None = None,
    **more: Any,
) -> Assignment:
    """Return a job that rewrites some files of a table."""
    head = snapshot_of(delta)
    inputs = tuple(mirrored_file(head.files[path]) for path in sorted(paths))
    table = table or service_table(delta)
    made = an_assignment(inputs, attempt=attempt, table=table, outputs_max=outputs, **more)
    folder = paths[0].rpartition("/")[0]
    prefix = f"{folder}/neve-{attempt}" if folder else f"neve-{attempt}"
    return replace(
        made,
        job=replace(made.job, outputs_expected=outputs),
        reservation=replace(made.reservation, output_prefix=prefix),
    )


@dataclass(frozen=True)
class Rewritten:
    """What the driver process returns."""

    plan: LakePlan
    counts: RowCounts
    files: tuple[DataFile, ...]
    packed: bytes

    @property
    def result(self) -> LakeResult:
        """What the commit needs."""
        return unpacked_result(self.packed)


def rewrite(assignment: Assignment, folder: Path, task_bytes: int = TASK_BYTES) -> Rewritten:
    """Rewrite the inputs of an assignment, with every task in this process.

    Args:
        assignment: The reserved job.
        folder: An empty folder for the attempt.
        task_bytes: Memory of a task.
    """
    folder.mkdir(parents=True, exist_ok=True)
    inputs = read_lake_inputs(assignment, CatalogSettings(), lambda: None)
    plan = make_lake_plan(assignment, inputs, str(folder), (task_bytes, 0), lambda: None)
    result = rewrite_lake(plan, _run_in_order, CORES, small=True)
    verified = verify(plan.rewrite, result, lambda: False)
    files = tuple(
        DataFile(path=file.path, size_bytes=size_bytes, rows=file.rows)
        for file, (size_bytes, _) in zip(result.files, verified, strict=True)
    )
    return Rewritten(plan, result.counts, files, lake_result(plan, result, verified))


def _run_in_order(_plan: RewritePlan, calls: Sequence[Callable[[], object]]) -> list[Any]:
    """Run tasks as Spark does: from their pickled form."""
    return [pickle.loads(pickle.dumps(call))() for call in calls]
