"""How much a task may hold, and how a job is cut so that it does."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.parquet.location import open_location
from common.runtime import share_freed_memory
from compactor.rewrite.attempt import stitch_plan
from compactor.rewrite.kernel.normalized_keys import RowGroup
from compactor.rewrite.memory_budget import (
    BASE_BYTES,
    FREE_BYTES_MIN,
    MUCH_PAGES_KEPT_MS,
    PAGES_KEPT_MS,
    TASK_BYTES,
    estimate_bytes,
    memory_budget,
    rows_at_a_time,
    task_environ,
)
from compactor.rewrite.merge.ranges import split_row_groups
from compactor.rewrite.plan.inputs import (
    LARGE_ROWS,
    ROWS_MIN,
    estimate_decoded_bytes,
    read_footer,
)
from compactor.rewrite.plan.rewrite_plan import make_plan
from tests.support.run_apart import run_apart
from tests.support.tables_on_disk import assignment_over, bag_table, settings, write_file

MB = 1024**2


@pytest.mark.parametrize("task_mb", [200, 512, 768, 4096])
@pytest.mark.parametrize("group_mb", [1, 32, 128, 1024])
@pytest.mark.parametrize("halvings", range(6))
def test_a_task_that_uses_its_budget_fits(task_mb: int, group_mb: int, halvings: int) -> None:
    budget = memory_budget(task_mb * MB, halvings, group_mb * MB)
    free = max(FREE_BYTES_MIN, task_mb * MB - BASE_BYTES)
    assert budget.held_bytes > 0
    assert budget.step_bytes > 0
    assert 0 < budget.group_bytes <= group_mb * MB
    assert estimate_bytes(budget.held_bytes, budget) <= BASE_BYTES + max(
        free >> halvings, FREE_BYTES_MIN >> 3
    )


def test_each_shortage_halves_what_is_held() -> None:
    held = [memory_budget(TASK_BYTES, halvings, 128 * MB).held_bytes for halvings in range(4)]
    assert all(after <= before * 0.55 for before, after in itertools.pairwise(held))
    assert memory_budget(TASK_BYTES, 1000, 128 * MB).held_bytes > 0


def test_with_usual_limits_usual_jobs_are_merged_at_once() -> None:
    budget = memory_budget(TASK_BYTES, 0, 128 * MB)
    assert budget.group_bytes == 128 * MB
    assert budget.held_bytes > 216 * MB
    assert budget.in_memory_bytes > 64 * MB


def test_the_text_of_a_budget_says_what_to_raise() -> None:
    assert (
        "768 MB, divided by 4: raise compactor.task_memory" in memory_budget(TASK_BYTES, 2, MB).text
    )


def test_allocators_keep_pages_for_longer_where_a_task_has_much_memory() -> None:
    little, much = task_environ(TASK_BYTES), task_environ(4 * TASK_BYTES)
    changed = {name for name in little if little[name] != much[name]}
    assert changed == {"JE_ARROW_MALLOC_CONF", "_RJEM_MALLOC_CONF"}
    assert all(f"dirty_decay_ms:{PAGES_KEPT_MS}," in little[name] for name in changed)
    assert all(f"dirty_decay_ms:{MUCH_PAGES_KEPT_MS}," in much[name] for name in changed)


def backend() -> str:
    return str(pa.default_memory_pool().backend_name)


def test_arrow_has_the_allocator_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it lacks one, it takes another, and says so nowhere that anybody looks."""
    for name, value in task_environ(TASK_BYTES).items():
        monkeypatch.setenv(name, value)
    found, _ = run_apart(backend)
    assert found == task_environ(TASK_BYTES)["ARROW_DEFAULT_MEMORY_POOL"]


def shared_backend() -> str:
    share_freed_memory()
    return backend()


def test_a_service_shares_freed_memory() -> None:
    found, _ = run_apart(shared_backend)
    assert found == "jemalloc"


@pytest.mark.parametrize("row_bytes", [0.0, 1.0, 500.0, 1e5, 1e12])
def test_rows_are_read_in_portions_of_bounded_bytes(row_bytes: float) -> None:
    budget = memory_budget(TASK_BYTES, 0, 128 * MB)
    rows = rows_at_a_time(row_bytes, budget)
    assert rows == 1 or rows * row_bytes <= budget.step_bytes
    assert 1 <= rows <= 1 << 16


def group(rows: int, size_bytes: int, start: int = 0) -> RowGroup:
    return RowGroup(
        input=0, number=3, start=start, rows=rows, size_bytes=size_bytes, low=b"a", high=b"z"
    )


@pytest.mark.parametrize("rows", [1, 7, 1000])
@pytest.mark.parametrize("bytes_max", [1, 99, 10_000, 10**9])
def test_pieces_tile_their_row_group(rows: int, bytes_max: int) -> None:
    pieces = split_row_groups([group(rows, 100_000, start=50)], bytes_max)
    assert sum(piece.rows for piece in pieces) == rows
    at = 0
    for piece in pieces:
        assert (piece.skip, piece.start, piece.number) == (at, 50 + at, 3)
        assert piece.rows == 1 or piece.size_bytes <= bytes_max * 1.2
        at += piece.rows


@pytest.mark.parametrize("dictionary", [True, False])
def test_texts_count_as_long_as_they_are(tmp_path: Path, dictionary: bool) -> None:
    rows = ROWS_MIN
    texts = pa.array(["x" * 2000, "y" * 1000]).take(pa.array([n % 2 for n in range(rows)]))
    table = pa.table({"k": range(rows), "text": texts})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=dictionary)
    location = open_location(tmp_path.as_uri())
    found = estimate_decoded_bytes(location, {"a.parquet": read_footer(location, "a.parquet")})
    assert 0.9 * table.nbytes < found < 1.1 * table.nbytes


@pytest.mark.parametrize(
    ("table_settings", "is_read"),
    [({}, False), ({"ttl_s": 10.0}, True), ({"codec": "snappy"}, True)],
)
def test_texts_are_sampled_only_if_rows_are_read(
    tmp_path: Path, table_settings: dict[str, Any], is_read: bool
) -> None:
    rows = pa.table({"at": pa.array([0] * LARGE_ROWS, pa.timestamp("us", "UTC"))})
    rows = rows.append_column("text", pa.array(["x" * 200] * LARGE_ROWS))
    write_file(tmp_path, "a.parquet", rows, compression="zstd")
    table = bag_table(tmp_path, rows.schema, settings=settings(**table_settings))
    assignment = assignment_over(table, ["a.parquet"])

    plan = make_plan(assignment)

    assert (stitch_plan(plan, assignment) is None) is is_read
    assert (plan.inputs.decoded_bytes > 200 * LARGE_ROWS) is is_read
