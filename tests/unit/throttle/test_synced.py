"""How long the storage takes is measured wherever outputs are written, and told."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from compactor.rewrite import attempt_folder as module
from compactor.rewrite.attempt import stitch_plan, stitch_whole
from compactor.rewrite.attempt_folder import Allowance
from compactor.rewrite.general_merge import rewrite_bag, rewrite_in_memory
from compactor.rewrite.merge.tasks import merge_small_job
from compactor.rewrite.outputs import TaskResult
from compactor.rewrite.plan.rewrite_plan import RewritePlan, make_plan
from tests.support.tables_on_disk import (
    KEYED,
    assignment_over,
    bag_table,
    keyed_table,
    random_rows,
    settings,
    write_file,
)

pytestmark = pytest.mark.unit

Work = Callable[[RewritePlan], TaskResult]


def usage_after(folder: Path, attempt: Path, work: Work, *, keyed: bool) -> tuple[int, int, float]:
    """Return the size of what was written, how much of it was timed, and the time."""
    chance = random.Random(1)
    paths = [f"{number}.parquet" for number in range(3)]
    for path in paths:
        write_file(folder, path, pa.Table.from_pylist(random_rows(chance, 200), KEYED))
    table = keyed_table(folder) if keyed else bag_table(folder)
    allowance = Allowance.create(str(attempt), None)
    result = work(make_plan(assignment_over(table, paths), str(attempt)))
    size_bytes = sum((folder / file.path).stat().st_size for file in result.files)
    usage = allowance.usage()
    return size_bytes, usage.synced_bytes, usage.sync_s


@pytest.mark.parametrize(
    ("work", "keyed"), [(merge_small_job, True), (rewrite_in_memory, True), (rewrite_bag, False)]
)
def test_outputs_that_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Work, keyed: bool
) -> None:
    monkeypatch.setattr(module, "SYNC_BYTES_MIN", 1)
    (tmp_path / "attempt").mkdir()
    written, synced, took_s = usage_after(tmp_path, tmp_path / "attempt", work, keyed=keyed)
    assert synced == written > 0
    assert took_s > 0


def test_outputs_that_are_stitched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SYNC_BYTES_MIN", 1)
    rows = pa.table({"s": [str(n) for n in range(4000)]})
    paths = ["a.parquet", "b.parquet"]
    for path in paths:
        write_file(tmp_path, path, rows, compression="zstd")
    small = settings(row_group_bytes=64 * 1024)
    table = bag_table(tmp_path, rows.schema, settings=small, time_column=None)
    assignment = assignment_over(table, paths)
    (tmp_path / "attempt").mkdir()
    allowance = Allowance.create(str(tmp_path / "attempt"), None)
    plan = make_plan(assignment, str(tmp_path / "attempt"))
    stitching = stitch_plan(plan, assignment)
    assert stitching is not None
    stitch_whole(stitching, plan)
    usage = allowance.usage()
    assert usage.synced_bytes == (tmp_path / plan.output.paths[0]).stat().st_size
    assert usage.sync_s > 0
