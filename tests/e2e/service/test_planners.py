"""Tables whose planner fills files up to a target, from their creation until they rest."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from neve.api import Plan
from neve.client import Client
from tests.support.ledger import BAG, LedgerTable, bag_rows, keyed_rows, texts
from tests.support.stack import Service

# A planner decides without any I/O, which unit and property tests show. Marked `long` are those
# whose way through a service is that of another one here.
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
        assert "no other small file fits into a bin" in why
    client.drop("small-files", delete_files=True)


@pytest.mark.long
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


@pytest.mark.long
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
    assert all("not above min_quality 0.01" in why for why in left.values()), left


@pytest.mark.long
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
    assert all("no other file is of similar size" in why for why in left.values()), left


def test_live_bytes_are_counted_and_the_deadest_range_is_compacted(service: Service) -> None:
    """Eleven segments; what of them is live is counted, and the planner takes those that died."""
    client = service.client
    held = "segment=60KB,min_reclaim_segments=100"
    settings = {"planner": "log-segment", "planner_options": held}
    table = LedgerTable(client, service.folder, keyed=True, stem="segments", settings=settings)
    parts: list[tuple[Iterable[int], int]] = [
        (range(first, first + 1000), 1) for first in range(0, 8000, 1000)
    ]
    # Of the third to the fifth segment most rows are written again, of the first a few.
    parts.append(([*range(2000, 2950), *range(3000, 3950), *range(4000, 4950)], 2))
    parts += [(range(100), 2), (range(20_000, 21_000), 2)]
    for keys, version in parts:
        table.append(keyed_rows(keys, version))

    def left() -> list[str]:
        return [*client.explain(table.name)[0].left.values()]

    service.wait("reasons", lambda: sum("`neve analyze`" in why for why in left()) == 10)
    (found,) = client.analyze(table.name, timeout_s=90)
    assert (found.measured_files, found.waiting, found.rows) == (11, False, 11_950)
    assert found.read_bytes is not None
    assert 0 < found.read_bytes < found.size_bytes
    files = sorted(client.files(table.name), key=lambda file: file.added_at_s)
    live_rows = [900, 1000, 50, 50, 50, 1000, 1000, 1000, 2850, 100, 1000]
    assert [file.live_bytes for file in files] == [
        file.size_bytes * live // file.rows for file, live in zip(files, live_rows, strict=True)
    ]

    client.set(table.name, settings={"planner_options": "segment=60KB"})
    rewrites = service.wait("compaction", lambda: [commit for commit in table.commits() if commit])
    service.wait_until_at_rest(table)
    table.check_rows()
    replaced = {files[at].path for at in (2, 3, 4, 8)}
    assert [set(inputs) for inputs in rewrites] == [replaced], "and what has replaced their rows"
    assert len(client.files(table.name)) < len(files)
    client.drop(table.name, delete_files=True)


def drops_deletes(client: Client, table: str) -> bool:
    """Return whether a compaction of the whole table has left no delete in it.

    The first look after a change of the retention notes which versions are old enough.
    """
    client.compact(table).wait(timeout_s=90)
    return client.count(table, include_deleted=True) == client.count(table)


@pytest.mark.long
def test_a_table_with_deletes_all_the_time_is_compacted_and_keeps_their_rows(
    service: Service,
) -> None:
    """Every segment has young deletes; the rows that they hide are copied with them."""
    client, options = service.client, "segment=60KB,deleted_retention_days=7"
    held = {"planner": "log-segment", "planner_options": f"{options},min_reclaim_segments=100"}
    table = LedgerTable(client, service.folder, keyed=True, stem="deletes", settings=held)
    settings = client.describe(table.name).settings
    assert (settings["keep_deleted_rows"], settings["tombstone_retention_s"]) == (True, 7 * 86_400)
    updated = [*range(1000, 1950), *range(2000, 2950)]
    parts: list[tuple[Iterable[int], int]] = [
        *((range(first, first + 1000), 1) for first in range(0, 4000, 1000)),
        *((updated, 3), (range(20_000, 21_000), 3)),
    ]
    for number, (keys, version) in enumerate(parts):
        of_the_one_before = range(1000 * number - 20, 1000 * number)
        deletes = keyed_rows(of_the_one_before, 2, gone=True)
        table.append(pa.concat_tables([keyed_rows(keys, version), deletes]))
    client.analyze(table.name, timeout_s=90)
    files = sorted(client.files(table.name), key=lambda file: file.added_at_s)
    assert all(file.tombstones for file in files)

    client.set(table.name, settings={"planner_options": options})
    rewrites = service.wait("compaction", lambda: [commit for commit in table.commits() if commit])
    service.wait_until_at_rest(table)
    assert {files[1].path, files[2].path} <= set(rewrites[0])
    assert len(client.files(table.name)) < len(files)
    table.check_rows()
    deleted = client.scan(table.name, start="1980", end="1999", include_deleted=True)
    pairs = [(row["k"], row["v"], row["gone"]) for row in deleted.to_pylist()]
    assert pairs == [row for key in range(1980, 2000) for row in ((key, 2, True), (key, 1, False))]
    assert client.fsck(table.name, deep=True).sound

    over = {"planner_options": "segment=60KB", "tombstone_retention": "0s"}
    client.set(table.name, settings=over)
    service.wait("compaction without deletes", lambda: drops_deletes(client, table.name))
    table.check_rows()
    client.drop(table.name, delete_files=True)


@pytest.mark.long
def test_hybrid_goes_by_statistics_until_its_period_is_over(service: Service) -> None:
    client = service.client

    def options(**more: str) -> str:
        given = {"policy": "hybrid", "segment": "60KB", "full_every": "1000d", **more}
        return ",".join(f"{name}={value}" for name, value in given.items())

    def commits() -> list[tuple[str, ...]]:
        return [inputs for inputs in table.commits() if inputs]

    settings = {"planner": "log-segment", "planner_options": options(min_reclaim_segments="100")}
    table = LedgerTable(client, service.folder, keyed=True, stem="hybrid", settings=settings)
    for first in range(0, 4000, 1000):
        table.append(keyed_rows(range(first, first + 1000), 1))
    table.append(keyed_rows([*range(1000, 1950), *range(2000, 2950)], 2))
    table.append(keyed_rows(range(20_000, 21_000), 2))
    client.analyze(table.name, timeout_s=90)
    files = sorted(client.files(table.name), key=lambda file: file.added_at_s)
    assert client.describe(table.name).settings["log_segment_bytes"] == 60 * 1024
    assert not commits(), "no segment was there when the period of 1,000 days began"

    client.set(table.name, settings={"planner_options": options()})
    service.wait("compaction by statistics", commits, table=table)
    service.wait_until_at_rest(table)
    (by_statistics,) = commits()
    assert set(by_statistics) == {files[at].path for at in (1, 2, 4)}

    client.set(table.name, settings={"planner_options": options(full_every="5s")})
    service.wait("compaction of everything", lambda: len(commits()) > 1, table=table)
    client.set(table.name, settings={"planner_options": options()})
    service.wait_until_at_rest(table)
    table.check_rows()
    everything = next(
        entry
        for entry in client.history(table.name)
        if entry.reason.startswith("hybrid: every 5.0 s all closed segments")
    )
    assert files[5].path not in everything.inputs, "the active segment"
    assert files[5].path in table.listed()
    assert not table.listed() & {file.path for file in files[:5]}
    client.drop(table.name, delete_files=True)


@pytest.mark.long
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
        return sorted(file.tags.get("level", "") for file in service.client.files(table.name))

    service.wait("move", lambda: levels() == ["1"], table=table)
    assert table.listed() == {"in-000.parquet"}, "nothing was rewritten"
    assert table.commits() == []
    (moved,) = service.client.history(table.name)
    assert (moved.inputs, moved.outputs) == (("in-000.parquet",),) * 2
    assert "which has no files at its keys" in moved.reason
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
        (json.loads(file.key_min or "")[0], json.loads(file.key_max or "")[0]) for file in files
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
        "is the only usable file in the 100s window from 1970-01-01 00:01 UTC"
    )

    # The rows of the older window expire; those of the newer one do not.
    service.client.pause_group("default")
    try:
        service.client.set(table.name, {"ttl": f"{int(time.time()) - 600}s"})
        # Nobody sees them any more; whoever insists does, until a compaction drops them.
        assert service.client.count(table.name) == 200
        assert service.client.count(table.name, include_expired=True) == 500
    finally:
        service.client.resume_group("default")
    service.wait("drop", lambda: tags["100"] not in table.listed(), table=table)
    dropped = next(each for each in service.client.history(table.name) if not each.outputs)
    assert "all rows of 1 file" in dropped.reason
    assert (dropped.rows_in, dropped.rows_out, dropped.expired_dropped) == (300, 0, 300)
    assert service.client.scan(table.name, include_expired=True).num_rows == 200
    table.add(times(1000, 6))
    assert sorted(set(service.client.scan(table.name)["n"].to_pylist())) == [*range(1000, 1100)]


def timed_rows(times: Iterable[int | None], seed: int) -> pa.Table:
    """Return a row for each time, in a table whose time column is `n`."""
    listed = list(times)
    return pa.table([pa.array(listed, pa.int64()), texts(len(listed), seed)], schema=BAG)


def check_plan_of_chunks(service: Service, table: LedgerTable) -> None:
    """Resume a table and see what `neve plan` says of it before any job has begun."""
    client = service.client
    client.pause_group("default")
    try:
        client.resume(table.name)
        plan = client.plan(table.name)
    finally:
        client.resume_group("default")
    assert {job.action for job in plan.jobs} == {"rewrite"}
    assert all(time_s % 100 == 0 for job in plan.jobs for time_s in job.cuts_at_s)
    assert any(job.cuts_at_s and job.outputs > 1 for job in plan.jobs), plan
    assert any(job.after for job in plan.jobs), plan
    assert "pending" in {interval.state for interval in plan.intervals}


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
    check_plan_of_chunks(service, table)
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
    intervals = service.client.plan(table.name).intervals
    assert [interval.start_s for interval in intervals] == [100.0 * at for at in range(9)]
    assert {interval.state for interval in intervals} == {"complete"}
    assert {dict(file.tags).get("chunk", "").split(":")[1] for file in files} == {"100"}
    assert len(table.commits()) > 1
    left = service.client.explain(table.name)[0].left
    assert all("no smaller number" in why for why in left.values()), left
    assert {*left} == {file.path for file in files}
    check_states_of_chunks(service, table)


def check_states_of_chunks(service: Service, table: LedgerTable) -> None:
    """A late file, and one that replaces a chunk: each changes one chunk, and all come to rest."""
    client = service.client

    def changes() -> list[int | None]:
        service.wait("states of chunks", lambda: at_rest(client.plan(table.name)), table=table)
        return [interval.changes for interval in client.plan(table.name).intervals]

    before = changes()
    table.append(timed_rows(range(300, 350), 10))
    service.wait_until_at_rest(table)
    table.check_rows()
    late = changes()
    assert [at for at, pair in enumerate(zip(before, late, strict=True)) if len({*pair}) > 1] == [3]
    new = table.write(timed_rows(range(750, 800), 11))
    window = "1970-01-01T00:11:40..1970-01-01T00:13:20"
    added = client.add_files(table.name, new, version=1, window=window)
    assert (added.file_count, added.replaced) == (1, 1)
    after = changes()
    assert [at for at, pair in enumerate(zip(late, after, strict=True)) if len({*pair}) > 1] == [7]


def at_rest(plan: Plan) -> bool:
    return {interval.stored for interval in plan.intervals} == {"stable"}
