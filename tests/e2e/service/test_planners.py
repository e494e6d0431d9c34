"""Tables whose planner fills files up to a target, from their creation until they rest."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.ledger import BAG, LedgerTable, bag_rows, keyed_rows, texts
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]

DAYS = ("2024-05-01", "2024-05-02")
FILES = 30
ROWS = 60


def written(folder: Path) -> int:
    """Write a partitioned directory of small files; return its rows."""
    for day in DAYS:
        (folder / f"day={day}").mkdir(parents=True)
        for number in range(FILES):
            pq.write_table(
                bag_rows(ROWS, seed=number), folder / f"day={day}" / f"{number:02}.parquet"
            )
    return len(DAYS) * FILES * ROWS


def test_an_imported_directory_of_small_files_rests_at_one_file_per_partition(
    service: Service,
) -> None:
    client, folder = service.client, service.folder / "small-files"
    rows = written(folder)
    done = client.import_table(str(folder), "small-files", readers_use_manifest=True)
    assert done.notes[0] == (
        "planner of table small-files: bin-pack, since it has no key: small files are merged up "
        "to target_bytes"
    )
    assert client.describe("small-files").settings["planner"] == "bin-pack"

    def rests() -> bool:
        plan = client.plan("small-files")
        return not plan.jobs and not plan.running and len(client.files("small-files")) < FILES

    service.wait("rest", rests)
    files = client.files("small-files")
    assert sorted(file.path.split("/")[-2] for file in files) == [f"day={day}" for day in DAYS]
    found = client.scan("small-files")
    assert found.num_rows == rows
    expected = pa.concat_tables(bag_rows(ROWS, seed=number) for number in range(FILES))
    assert sorted(found["n"].to_pylist()) == sorted(expected["n"].to_pylist() * len(DAYS))
    for tablet in client.explain("small-files"):
        (why,) = tablet.left.values()
        assert "no other small file fits beside it" in why
    client.drop("small-files", delete_files=True)


def test_files_are_filled_up_to_the_target_and_then_left_alone(service: Service) -> None:
    settings = {"planner": "bin-pack", "planner_options": "target=40KB,min_input_files=3"}
    table = LedgerTable(
        service.client, service.folder, keyed=False, stem="packed", settings=settings
    )
    for seed in range(8):
        table.append(bag_rows(150, seed))
    service.wait_until_at_rest(table)
    table.check_rows()
    assert table.commits()
    files = service.client.files(table.name)
    assert 1 < len(files) < 8, "more than the target holds, and fewer than were added"
    assert all(file.size_bytes < 44_000 for file in files), files
    left = service.client.explain(table.name)[0].left
    assert any("near the target of 40.0 KiB" in why for why in left.values()), left
    assert set(left) == table.listed()


def test_files_that_overlap_are_merged_within_the_budget(service: Service) -> None:
    settings = {"planner": "budgeted", "planner_options": "gamma=0"}
    table = LedgerTable(
        service.client, service.folder, keyed=True, stem="budgeted", settings=settings, paused=True
    )
    table.add(
        keyed_rows(range(1000), 1),
        keyed_rows(range(1000), 2),
        keyed_rows(range(5000, 6000), 1),
    )
    service.client.resume(table.name)
    service.wait("compaction", table.commits, table=table)
    service.wait_until_at_rest(table)
    table.check_rows()
    assert [len(inputs) for inputs in table.commits()] == [2]
    assert len(table.listed()) == 2
    left = service.client.explain(table.name)[0].left
    assert set(left) == table.listed()
    assert all("at most as much as min_quality 0.01" in why for why in left.values()), left


def test_files_of_about_one_size_are_merged(service: Service) -> None:
    options = "min_file=0,enforce_min_threshold=yes"
    settings = {"planner": "size-tiered", "planner_options": options}
    table = LedgerTable(
        service.client, service.folder, keyed=True, stem="tiers", settings=settings, paused=True
    )
    for first in range(4):
        table.append(keyed_rows(range(first * 500, first * 500 + 1000), first))
    table.append(keyed_rows(range(20_000), 9))
    service.client.resume(table.name)
    service.wait("compaction", table.commits, table=table)
    service.wait_until_at_rest(table)
    table.check_rows()
    assert [len(inputs) for inputs in table.commits()] == [4]
    left = service.client.explain(table.name)[0].left
    assert set(left) == table.listed()
    assert all("no other file is of about its size" in why for why in left.values()), left


def timed_rows(times: Iterable[int | None], seed: int) -> pa.Table:
    """Return a row for each time, in a table whose time column is `n`."""
    listed = list(times)
    return pa.table([pa.array(listed, pa.int64()), texts(len(listed), seed)], schema=BAG)


def test_each_file_lies_in_one_chunk_of_time(service: Service) -> None:
    """Files of a chain share chunks, and one has rows without a time; jobs wait for each other."""
    settings = {
        "planner": "time-chunk",
        "planner_options": "granularity=100s,skip_offset=0,max_cost=60KB,small_cost=0",
    }
    table = LedgerTable(
        service.client, service.folder, keyed=False, stem="chunks", settings=settings, paused=True,
        time_column="n",
    )  # fmt: skip
    for seed in range(8):
        table.append(timed_rows(range(seed * 100, seed * 100 + 150), seed))
    table.append(timed_rows([*range(200, 220), *[None] * 5], 9))
    jobs = service.client.plan(table.name).jobs
    service.client.resume(table.name)
    service.wait("compaction", table.commits, table=table)
    service.wait_until_at_rest(table)
    table.check_rows()
    files = service.client.files(table.name)
    chunks = [
        None if file.time_min_s is None else (file.time_min_s // 100, (file.time_max_s or 0) // 100)
        for file in files
    ]
    assert sorted(chunks, key=str) == sorted([*((at, at) for at in range(9)), None], key=str)
    assert sum(file.rows for file in files) == 8 * 150 + 25
    assert {dict(file.tags).get("chunk", "").split(":")[1] for file in files} == {"100"}
    assert len(table.commits()) > 1, jobs
    left = service.client.explain(table.name)[0].left
    assert all("no smaller number" in why for why in left.values()), left
