"""The rewrite benchmark: its data sets, what it compares, which rounds count, what it ends."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.rewrite.datasets import CHANGES, SOURCES, dataset
from benchmarks.rewrite.goals import GOALS, reached
from benchmarks.rewrite.machine import Machine
from benchmarks.rewrite.markdown import page
from benchmarks.rewrite.measure import MemorySampler, Used, tree
from benchmarks.rewrite.outputs import inspect_outputs, row_digest
from benchmarks.rewrite.report import differing, usd_per_tb
from benchmarks.rewrite.runners import NEVE, Budget, Record, Round
from benchmarks.rewrite.spark_work import joined_seconds
from benchmarks.rewrite.wanted import Wanted
from benchmarks.rewrite.worker import EngineError, EngineProcess

pytestmark = pytest.mark.unit

SCALE = 0.002
MADE = sorted(
    name
    for name, source in SOURCES.items()
    # Those of TPC-H need its generator, which only the benchmark installs.
    if source.key == ("key",) and not source.large
)


@pytest.mark.parametrize("name", MADE)
def test_no_two_rows_of_a_set_have_one_key_and_version(name: str, tmp_path: Path) -> None:
    data = dataset(name, tmp_path, SCALE)

    counts = (
        duckdb.connect()
        .execute(
            "SELECT count(*), count(DISTINCT (key, version)), count(DISTINCT key) "
            f"FROM read_parquet({data.paths})"
        )
        .fetchone()
    )

    assert counts is not None
    rows, versions, keys = counts
    assert rows == versions == data.rows
    assert keys < rows


@pytest.mark.parametrize(("name", "share"), [("dead-0", 0.0), ("dead-10", 0.1), ("dead-50", 0.5)])
def test_sets_of_deletes_have_their_share_of_tombstones(
    name: str, share: float, tmp_path: Path
) -> None:
    data = dataset(name, tmp_path, 0.02)

    dead = np.mean([rows["dead"].to_numpy().mean() for rows in map(pq.read_table, data.paths)])

    assert dead == pytest.approx(share, abs=0.02)


def test_a_set_with_a_change_uses_the_files_of_another(tmp_path: Path) -> None:
    for name, (files, change) in CHANGES.items():
        data = dataset(name, tmp_path, SCALE)

        assert data.paths == dataset(files, tmp_path, SCALE).paths
        assert (data.name, data.change) == (name, change)


def test_pages_of_the_checked_set_have_checksums(tmp_path: Path) -> None:
    plain, checked = (dataset(name, tmp_path, SCALE) for name in ("lsm", "lsm-checked"))

    assert checked.rows == plain.rows
    assert checked.size_bytes > plain.size_bytes
    for path in checked.paths:
        pq.read_table(path, page_checksum_verification=True)


ROWS = pa.table(
    {
        "key": ["a", "b", "c"],
        "version": pa.array([1, 2, 3], pa.int64()),
        "at": pa.array([1, 2, 3], pa.timestamp("s")),
        "amount": [0.5, None, 1.5],
    }
)


@pytest.mark.parametrize("column", ROWS.column_names)
def test_the_digest_covers_every_column_of_every_row(column: str, tmp_path: Path) -> None:
    like = tmp_path / "input.parquet"
    pq.write_table(ROWS, like)
    original = row_digest([str(like)], str(like))
    for row in range(ROWS.num_rows):
        values = ROWS[column].to_pylist()
        values[row] = values[row - 1]
        changed = ROWS.set_column(
            ROWS.column_names.index(column),
            column,
            pa.array(values, ROWS.schema.field(column).type),
        )
        pq.write_table(changed, tmp_path / "output.parquet")

        assert row_digest([str(tmp_path / "output.parquet")], str(like)) != original


def test_the_digest_is_that_of_values_not_of_files(tmp_path: Path) -> None:
    like = str(tmp_path / "input.parquet")
    pq.write_table(ROWS, like)
    other = ROWS.set_column(2, "at", ROWS["at"].cast(pa.timestamp("us")))
    for number in range(3):
        pq.write_table(other.slice(2 - number, 1), tmp_path / f"{number}.parquet")
    files = [str(tmp_path / f"{number}.parquet") for number in range(3)]

    assert row_digest(files, like) == row_digest([like], like)
    assert inspect_outputs(files, like).group_rows == 1
    assert inspect_outputs(files, like).codecs == ("snappy",)


def a_round(seconds: float, *, disturbed: bool = False) -> Round:
    used = Used(cpu_s=seconds, foreign_s=0.0, steal_s=0.0, wall_s=seconds)
    return Round(seconds=seconds, unsynced_s=None, used=used, disturbed=disturbed)


def test_rounds_that_were_disturbed_do_not_count_unless_all_were() -> None:
    record = Record(NEVE, rounds=[a_round(9.0, disturbed=True), a_round(1.0), a_round(2.0)])

    assert (record.median_s, record.disturbed) == (1.5, False)

    record.rounds = [a_round(9.0, disturbed=True), a_round(5.0, disturbed=True)]

    assert (record.median_s, record.disturbed) == (7.0, True)


def test_foreign_time_and_steal_disturb_a_round_but_not_a_few_ticks() -> None:
    cores = os.cpu_count() or 1

    def share(foreign_s: float, steal_s: float) -> float:
        return Used(cpu_s=1.0, foreign_s=foreign_s, steal_s=steal_s, wall_s=1.0).disturbance

    assert share(0.3, 0.1) == pytest.approx(0.4 / cores)
    assert share(0.02, 0.02) == 0.0


def test_goals_take_the_fastest_other_and_those_who_finish_with_limited_memory(
    tmp_path: Path,
) -> None:
    data = dataset("uuid", tmp_path, SCALE)
    own = Record(NEVE, rounds=[a_round(1.0)], budget=Budget(seconds=2.0))
    polars = Record("polars", rounds=[a_round(0.9)], budget=Budget(seconds=None))
    duckdb_record = Record("duckdb", rounds=[a_round(1.2)], budget=Budget(seconds=3.0))
    limit = Record("limit", rounds=[a_round(0.4)])

    outcomes = {
        outcome.goal.what: outcome
        for outcome in reached([(data, [polars, duckdb_record, limit, own])])
    }

    assert {what: outcome.against for what, outcome in outcomes.items()} == {
        "best other engine": "polars",
        "best other engine, memory limited": "duckdb",
        "decode + encode, long keys": "limit",
    }
    assert [round(outcome.ratio, 2) for outcome in outcomes.values()] == [0.9, 0.4, 1.5]
    assert [outcome.state for outcome in outcomes.values()] == ["below", "reached", "reached"]


def test_the_page_marks_what_misses_a_goal_and_what_was_disturbed(tmp_path: Path) -> None:
    data = dataset("uuid", tmp_path, SCALE)
    own = Record(NEVE, rounds=[a_round(1.0)], budget=Budget(seconds=2.0))
    fast = Record("polars", rounds=[a_round(0.9, disturbed=True)], budget=Budget(seconds=None))
    slow = Record("duckdb", rounds=[a_round(1.2)], budget=Budget(seconds=3.0))
    results = [(data, [fast, slow, own])]

    text = page(results, reached(results), Machine.now())

    assert "| set | Névé (least to most) | Polars | DuckDB |" in text
    assert "| `uuid`, 0 MB | 1.00 s (1.00 to 1.00) | 0.90* | 1.20 |" in text
    assert "| best other engine | 1.00 (1.30) | `uuid` **0.90** |" in text
    assert "| best other engine, memory limited | 1.00 | `uuid` 1.50 |" in text


def test_every_keyed_set_has_a_bar_against_the_best_other_engine() -> None:
    best = next(goal for goal in GOALS if goal.what == "best other engine")

    assert set(best.sets) == {*(n for n, source in SOURCES.items() if source.key), *CHANGES}


def test_contenders_that_write_other_rows_are_named(tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet")
    pq.write_table(ROWS.slice(1), tmp_path / "b.parquet")
    like = str(tmp_path / "a.parquet")
    records = [
        Record(name, output=inspect_outputs([str(tmp_path / file)], like))
        for name, file in (("polars", "a.parquet"), ("duckdb", "b.parquet"), (NEVE, "a.parquet"))
    ]

    assert sorted(differing(records).values()) == [["duckdb"], ["polars", NEVE]]


def test_the_union_of_intervals_counts_time_once() -> None:
    assert joined_seconds([(4.0, 5.0), (0.0, 2.0), (1.0, 3.0), (1.5, 1.6)]) == 4.0


def test_a_terabyte_at_one_megabyte_per_core_and_second_takes_278_core_hours() -> None:
    assert usd_per_tb(1.0) == pytest.approx(278 * 0.048, rel=0.01)


def wanted(tmp_path: Path) -> Wanted:
    out = tmp_path / "out"
    out.mkdir()
    data = dataset("lsm", tmp_path, 0.02)
    return Wanted(data=data, out=str(out), group_rows=50_000, level=1)


def run_until_it_fails(process: EngineProcess, asked: Wanted) -> None:
    while True:
        process.run("sort-unique", asked)


def test_an_engine_above_the_limit_is_ended_and_others_finish(tmp_path: Path) -> None:
    asked = wanted(tmp_path)
    process = EngineProcess("polars", str(tmp_path / "log"))
    try:
        timing = process.run("sort-unique", asked)
        assert timing.seconds >= timing.unsynced_s > 0
        sampler = MemorySampler(tree(process.pid)(), limit_bytes=1_000_000)
        sampler.start()
        with pytest.raises(EngineError, match="the process has ended"):
            run_until_it_fails(process, asked)
        assert sampler.stop().ended
    finally:
        process.end()


def test_the_sampler_sees_memory_and_its_own_cost() -> None:
    sampler = MemorySampler([psutil.Process()])
    sampler.start()
    block = np.ones(200_000_000, np.uint8)
    while sampler.samples < 3:
        pass
    memory = sampler.stop()

    assert memory.process_bytes > block.nbytes
    assert memory.peak_bytes >= memory.process_bytes
    assert memory.cost_s > 0
    assert not memory.ended
