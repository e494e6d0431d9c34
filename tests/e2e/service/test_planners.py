"""Tables whose planner fills files up to a target, from their creation until they rest."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.ledger import LedgerTable, bag_rows, keyed_rows
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


def test_files_of_a_level_move_or_are_merged_and_never_overlap(service: Service) -> None:
    rows = keyed_rows(range(1000), 1)
    buffer = pa.BufferOutputStream()
    pq.write_table(rows, buffer)
    settings = {
        "planner": "leveled",
        "planner_options": f"min_file=0,max_file={buffer.getvalue().size}",
    }
    table = LedgerTable(
        service.client, service.folder, keyed=True, stem="levels", settings=settings
    )
    table.add(rows)

    def levels() -> list[str]:
        return sorted(each.tags.get("level", "") for each in service.client.files(table.name))

    service.wait("move", lambda: levels() == ["1"], table=table)
    assert table.listed() == {"in-000.parquet"}, "nothing was rewritten"
    assert table.commits() == []
    (moved,) = service.client.history(table.name)
    assert (moved.inputs, moved.outputs) == (("in-000.parquet",),) * 2
    assert "which has nothing at its keys" in moved.reason
    table.check_rows()

    table.add(keyed_rows(range(500, 1500), 2))
    service.wait("merge", table.commits, table=table)
    service.wait_until_at_rest(table)
    table.check_rows()
    (inputs,) = table.commits()
    assert inputs == ("in-000.parquet", "in-001.parquet"), (
        "the file that was moved goes like others"
    )
    files = service.client.files(table.name)
    assert len(files) >= 2
    assert levels() == ["1"] * len(files)
    spans = sorted(
        (json.loads(each.key_min or "")[0], json.loads(each.key_max or "")[0]) for each in files
    )
    assert all(one[1] < other[0] for one, other in pairwise(spans)), spans


def times(start: int, seed: int) -> pa.Table:
    """Return rows of a hundred seconds."""
    return pa.table(
        [pa.array(range(start, start + 100)), bag_rows(100, seed)["text"]], names=["n", "text"]
    )


def test_windows_become_one_file_and_go_when_they_have_expired(service: Service) -> None:
    settings = {"planner": "time-window", "planner_options": "window=100s"}
    table = LedgerTable(
        service.client,
        service.folder,
        keyed=False,
        stem="windows",
        settings=settings,
        time_column="n",
        paused=True,
    )
    table.add(times(100, 1), times(100, 2), times(100, 3), times(1000, 4), times(1000, 5))
    service.client.resume(table.name)
    service.wait("merge of a window", table.commits, table=table)
    service.wait_until_at_rest(table)
    table.check_rows()
    assert [len(inputs) for inputs in table.commits()] == [3]
    tags = {file.tags.get("window"): file.path for file in service.client.files(table.name)}
    assert set(tags) == {None, "100"}
    left = service.client.explain(table.name)[0].left
    assert left[tags["100"]] == (
        "is the only file that may be used in the 100s window from 1970-01-01 00:01 UTC"
    )

    # The rows of the older window expire; those of the newer one do not.
    service.client.set(table.name, {"ttl": f"{int(time.time()) - 600}s"})
    table.add(times(1000, 6))  # A change of settings alone waits for the next full scan.
    service.wait("drop", lambda: tags["100"] not in table.listed(), table=table)
    dropped = next(each for each in service.client.history(table.name) if not each.outputs)
    assert "all rows of 1 file" in dropped.reason
    assert (dropped.rows_in, dropped.rows_out) == (300, 0)
    assert sorted(set(service.client.scan(table.name)["n"].to_pylist())) == [*range(1000, 1100)]
