"""What an analysis counts, against a count row by row."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from common.errors import InputError
from common.model.key_values import KeyType
from common.model.keys import encode_value
from common.model.outcome import TabletStatistics
from common.model.table import Table
from common.rows.merge import merge_tables, scan_tables
from compactor.rewrite.live_rows import LiveFiles, count_live
from compactor.rewrite.plan.rewrite_plan import make_plan
from tests.support.tables_on_disk import (
    KEYED,
    assignment_over,
    bag_table,
    keyed_table,
    random_rows,
    read_output,
    settings,
    write_file,
)

NOW_S = 1_000_000.0
TTL_S = 100.0
Rows = list[dict[str, Any]]


def run_here(calls: Sequence[Callable[[], object]]) -> list[object]:
    return [call() for call in calls]


def counted(table: Table, paths: Sequence[str], **more: Any) -> LiveFiles:
    assignment = assignment_over(table, paths, now_s=NOW_S, **more)
    return count_live(make_plan(assignment), assignment.inputs, run_here)


def live_rows(found: LiveFiles, table: Table, paths: Sequence[str]) -> list[int]:
    """Return live rows by file, as the live bytes tell them."""
    rows = [file.rows for file in assignment_over(table, paths).inputs]
    return [
        round(each.live_bytes * count / each.size_bytes)
        for each, count in zip(found.files, rows, strict=True)
    ]


def write(folder: Path, files: Sequence[Rows], **options: Any) -> list[str]:
    paths = [f"{number}.parquet" for number in range(len(files))]
    for path, rows in zip(paths, files, strict=True):
        write_file(folder, path, pa.Table.from_pylist(rows, schema=KEYED), **options)
    return paths


def expired(row: dict[str, Any]) -> bool:
    at = row["at"]
    return at is not None and at <= (NOW_S - TTL_S) * 1e6


def order(row: dict[str, Any]) -> tuple[object, ...]:
    key = (row["k"] is not None, row["k"] or 0, row["name"] is not None, row["name"] or "")
    return (*key, -row["v"], not row["dead"])


def expected(files: Sequence[Rows], settled: int) -> int:
    """Return how many rows are live in all files, by the rule itself."""
    rows = sorted((row for rows in files for row in rows), key=order)
    live = 0
    for _, same in groupby(rows, key=lambda row: order(row)[:4]):
        ranks = [list(each) for _, each in groupby(same, key=order)]
        best = ranks[0]
        deleted = bool(best[0]["dead"])
        dead = deleted or all(map(expired, best))
        if not dead:
            live += 1
        elif best[0]["v"] > settled:
            live += 1
            live += deleted and any(not rank[0]["dead"] for rank in ranks)
    return live


@pytest.mark.parametrize("seed", range(12))
def test_live_rows_of_a_keyed_table_are_those_of_the_rule(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    files = [random_rows(chance, chance.randrange(1, 120)) for _ in range(chance.randrange(1, 6))]
    table = keyed_table(tmp_path, settings=settings(ttl_s=TTL_S))
    paths = write(tmp_path, files, row_group_size=17)
    settled = chance.randrange(-1, 6)
    found = counted(table, paths, settled=encode_value(settled, KeyType.INT))
    assert sum(live_rows(found, table, paths)) == expected(files, settled)


@pytest.mark.parametrize("seed", range(6))
def test_live_are_the_rows_that_a_job_with_all_files_would_keep(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    files = [random_rows(chance, chance.randrange(1, 120)) for _ in range(4)]
    table = keyed_table(tmp_path, settings=settings(keep_deleted_rows=True))
    paths = write(tmp_path, files, row_group_size=17)
    settled = encode_value(chance.randrange(-1, 6), KeyType.INT)
    assignment = assignment_over(table, paths, settled=settled)
    plan = make_plan(assignment)
    rows = [read_output(table, path) for path in paths]
    kept = merge_tables(rows, plan.rules.row_rules, NOW_S, plan.rules.drop).table
    assert sum(live_rows(counted(table, paths, settled=settled), table, paths)) == kept.num_rows
    assert scan_tables([kept], plan.rules.row_rules, NOW_S).num_rows < kept.num_rows


def test_of_each_file_its_own_rows_are_counted(tmp_path: Path) -> None:
    def rows(keys: range, version: int, *, dead: bool = False) -> Rows:
        return [
            {"k": key, "name": "a", "v": version, "dead": dead, "at": None, "x": 1.0}
            for key in keys
        ]

    table = keyed_table(tmp_path)
    files = [rows(range(100), 1), rows(range(40), 2), rows(range(90, 100), 3, dead=True)]
    paths = write(tmp_path, files)
    old = counted(table, paths, settled=encode_value(9, KeyType.INT))
    assert live_rows(old, table, paths) == [50, 40, 0]
    young = counted(table, paths, settled=encode_value(2, KeyType.INT))
    assert live_rows(young, table, paths) == [60, 40, 10], "a delete inside its retention"
    assert live_rows(counted(table, paths), table, paths) == [60, 40, 10]


def test_ranges_of_keys_give_what_one_range_gives(tmp_path: Path) -> None:
    chance = random.Random(7)
    files = [
        [
            {
                "k": chance.randrange(20_000),
                "name": "n",
                "v": version,
                "dead": chance.random() < 0.1,
                "at": None,
                "x": 0.0,
            }
            for _ in range(12_000)
        ]
        for version in range(3)
    ]
    table = keyed_table(tmp_path)
    paths = write(tmp_path, files, row_group_size=4000)
    calls = 0

    def counting(work: Sequence[Callable[[], object]]) -> list[object]:
        nonlocal calls
        calls = len(work)
        return run_here(work)

    whole = counted(table, paths, settled=None)
    assignment = replace(assignment_over(table, paths, now_s=NOW_S), halvings=20)
    cut = count_live(make_plan(assignment), assignment.inputs, counting)
    assert calls > 2
    assert cut.files == whole.files
    assert expected(files, -1) == sum(live_rows(whole, table, paths))


def test_only_the_columns_that_tell_it_are_read(tmp_path: Path) -> None:
    wide = pa.schema([*KEYED, pa.field("text", pa.string())])
    table = keyed_table(tmp_path, wide)
    rows = pa.table(
        {
            "k": range(2000),
            "name": ["a"] * 2000,
            "v": [1] * 2000,
            "dead": [False] * 2000,
            "at": [None] * 2000,
            "x": [0.5] * 2000,
            "text": [f"{number:0200}" for number in range(2000)],
        },
        schema=wide,
    )
    write_file(tmp_path, "0.parquet", rows, compression="none")
    found = counted(table, ["0.parquet"])
    size_bytes = (tmp_path / "0.parquet").stat().st_size
    assert found.files[0].live_bytes == found.files[0].size_bytes == size_bytes
    assert 0 < found.read_bytes < size_bytes / 10


def test_rows_of_a_table_without_a_key_are_live_until_they_expire(tmp_path: Path) -> None:
    chance = random.Random(3)
    files = [random_rows(chance, 80) for _ in range(3)]
    fresh = [row | {"at": int(NOW_S) * 1_000_000} for row in random_rows(chance, 50)]
    table = bag_table(tmp_path, settings=settings(ttl_s=TTL_S))
    paths = write(tmp_path, [*files, fresh])
    found = counted(table, paths)
    assert live_rows(found, table, paths) == [
        *(sum(not expired(row) for row in rows) for rows in files),
        50,
    ]
    assert counted(bag_table(tmp_path), paths).read_bytes == 0, "nothing dies without a TTL"
    assert found.read_bytes > 0


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    table = keyed_table(tmp_path)
    paths = write(tmp_path, [random_rows(random.Random(1), 10)])
    assignment = assignment_over(table, paths)
    plan = make_plan(assignment)
    (tmp_path / paths[0]).unlink()
    with pytest.raises(InputError, match=r"0\.parquet does not exist"):
        count_live(plan, assignment.inputs, run_here)


def comparing(table: Table, paths: Sequence[str], *columns: str) -> TabletStatistics:
    assignment = assignment_over(table, paths, now_s=NOW_S)
    found = count_live(make_plan(assignment), assignment.inputs, run_here, columns).tablet
    assert found is not None
    return found


def versions(rows: Rows) -> list[list[dict[str, Any]]]:
    """Return the rows of each key, the newest first; one of those of equal rank."""
    keys = groupby(sorted(rows, key=order), key=lambda row: order(row)[:4])
    return [[next(each) for _, each in groupby(same, key=order)] for _, same in keys]


@pytest.mark.parametrize("seed", range(6))
def test_updates_are_compared_column_by_column(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    files = [
        [
            {
                "k": chance.randrange(400),
                "name": "n",
                "v": 1000 * number + at,
                "dead": chance.random() < 0.1,
                "at": None,
                "x": chance.choice([None, 0.0, 1.0]),
            }
            for at in range(count)
        ]
        for number, count in enumerate((500, 100, 60))
    ]
    table = keyed_table(tmp_path)
    paths = write(tmp_path, files, row_group_size=50)
    found = comparing(table, paths, "x", "at")
    known = versions([row for rows in files for row in rows])
    pairs = [
        (new, old)
        for same in known
        for new, old in pairwise(same)
        if not new["dead"] and not old["dead"]
    ]
    assert found.compared_rows == len(pairs)
    changed = sum(new["x"] != old["x"] for new, old in pairs)
    assert dict(found.changed_shares) == {"at": 0.0, "x": pytest.approx(changed / len(pairs))}
    assert found.rows == 660
    assert found.updated_rows == 660 - len(known)


def test_how_many_rows_of_deltas_have_an_older_row_is_counted(tmp_path: Path) -> None:
    def rows(keys: range, version: int) -> Rows:
        return [
            {"k": key, "name": "a", "v": version, "dead": False, "at": None, "x": float(version)}
            for key in keys
        ]

    table = keyed_table(tmp_path)
    paths = write(tmp_path, [rows(range(1000), 1), rows(range(970, 1010), 2)])
    found = comparing(table, paths, "x")
    assert (found.updated_rows, found.compared_rows) == (30, 30)
    assert found.changed_shares == (("x", 1.0),)
    assert found.merged_share == 0.75, "ten of forty rows are new keys"


def test_the_share_of_deltas_that_merge_is_counted_column_by_column(tmp_path: Path) -> None:
    def row(key: int, version: int, x: float | None, *, dead: bool = False) -> dict[str, Any]:
        return {"k": key, "name": "a", "v": version, "dead": dead, "at": None, "x": x}

    base = [row(key, 1, 1.0) for key in range(1000)]
    same = [row(key, 2, 1.0) for key in range(20)]
    other = [row(key, 2, None) for key in range(20, 26)]
    deleted = [row(key, 2, 1.0, dead=True) for key in range(26, 30)]
    new = [row(key, 2, 5.0) for key in range(1000, 1010)]
    paths = write(tmp_path, [base, [*same, *other, *deleted, *new]])
    found = comparing(keyed_table(tmp_path), paths, "x", "at")
    assert found.merged_share == 30 / 40
    assert found.compared_rows == 26
    assert dict(found.merged_shares) == {"x": 10 / 20, "at": 4 / 14}


def test_without_columns_nothing_but_the_columns_that_tell_live_rows_is_read(
    tmp_path: Path,
) -> None:
    chance = random.Random(3)
    table = keyed_table(tmp_path)
    paths = write(tmp_path, [random_rows(chance, 3000) for _ in range(2)])
    assignment = assignment_over(table, paths, now_s=NOW_S)
    plain = count_live(make_plan(assignment), assignment.inputs, run_here)
    dear = count_live(make_plan(assignment), assignment.inputs, run_here, ("x",))
    assert plain.tablet is not None
    assert (plain.tablet.compared_rows, plain.tablet.changed_shares) == (0, ())
    assert plain.tablet.updated_rows > 0
    assert plain.read_bytes < dear.read_bytes
    assert plain.files == dear.files


def test_the_keys_that_are_told_cut_a_tablet_into_about_equal_parts(tmp_path: Path) -> None:
    rows = [
        {"k": key, "name": "a", "v": 1, "dead": False, "at": None, "x": 0.0}
        for key in [*range(15_000), *range(100_000, 101_000)]
    ]
    table = keyed_table(tmp_path)
    paths = write(tmp_path, [rows], row_group_size=1000)
    found = comparing(table, paths)
    assert list(found.key_quantiles) == sorted(set(found.key_quantiles))
    assert 8 <= len(found.key_quantiles) <= 15
    ends = [encode_value(row["k"], KeyType.INT) for row in rows]
    parts = [bisect_right(ends, key) for key in found.key_quantiles]
    widths = [end - start for start, end in pairwise([0, *parts, len(rows)])]
    assert max(widths) <= 3 * len(rows) / 16, "most keys are the small ones"
