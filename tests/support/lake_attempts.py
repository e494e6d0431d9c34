"""Attempts at a real lake table, without Spark: their assignment, and their rewrite in order."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.lake.mirror import mirrored_file
from common.lake.open import CatalogAccess, open_source, storage_options
from common.lake.source import Snapshot, TableSource
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
from tests.support.iceberg_tables import IcebergTable

CORES = 2


LakeTableOfTest = DeltaTable | IcebergTable


def access_of(lake: LakeTableOfTest) -> CatalogAccess:
    """Return how a table is reached, as the settings of a service have it."""
    if isinstance(lake, DeltaTable):
        return CatalogAccess()
    properties = {"type": "sql", **lake.catalog.properties}
    return CatalogAccess(named={lake.catalog.name: properties}, locations=("file:///",))


def uri_of(lake: LakeTableOfTest) -> str:
    """Return the address with which a table is attached."""
    if isinstance(lake, DeltaTable):
        return lake.folder.as_uri()
    return f"{lake.catalog.name}:{lake.identifier}"


def source_of(lake: LakeTableOfTest) -> TableSource:
    """Return the access of the service to a table."""
    uri, access = uri_of(lake), access_of(lake)
    return open_source(format_of(lake), uri, storage_options(access, uri))


def format_of(lake: LakeTableOfTest) -> str:
    """Return the name of a table's format."""
    return "delta" if isinstance(lake, DeltaTable) else "iceberg"


def snapshot_of(lake: LakeTableOfTest) -> Snapshot:
    """Return the head of a table, as the service reads it."""
    return source_of(lake).load()


def service_table(lake: LakeTableOfTest) -> Table:
    """Return a table as it is attached."""
    head, folder = snapshot_of(lake), "" if isinstance(lake, DeltaTable) else lake.table.location()
    return Table(
        id="table-1",
        name="sales",
        location=folder or uri_of(lake),
        schema=head.columns,
        partition_by=tuple(head.partition_columns),
        lake=LakeTable(format=format_of(lake), uri=uri_of(lake), table_id=head.table_id),
    )


def assignment_of(
    lake: LakeTableOfTest,
    paths: Sequence[str],
    *,
    attempt: str = "att-1",
    outputs: int = 1,
    table: Table | None = None,
    head: Snapshot | None = None,
    **more: Any,
) -> Assignment:
    """Return a job that rewrites some files of a table."""
    head = head or snapshot_of(lake)
    inputs = tuple(mirrored_file(head.files[path]) for path in sorted(paths))
    table = table or service_table(lake)
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


def rewrite(
    assignment: Assignment,
    folder: Path,
    task_bytes: int = TASK_BYTES,
    access: CatalogAccess | None = None,
) -> Rewritten:
    """Rewrite the inputs of an assignment, with every task in this process.

    Args:
        assignment: The reserved job.
        folder: An empty folder for the attempt.
        task_bytes: Memory of a task.
        access: How the table is reached; None: by its folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    inputs = read_lake_inputs(assignment, access or CatalogAccess(), lambda: None)
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
