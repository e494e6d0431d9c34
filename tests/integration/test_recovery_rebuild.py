"""Redis is lost: a table is rebuilt from its files, and what is lost is said."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import RefusedError, RequestError
from common.model.location_identity import DESCRIPTION_PATH
from common.model.outcome import AttemptEnd
from common.model.table import Table, TableState
from common.parquet.service_files import OWNER_PATH
from neve.recovery.rebuild import table_rebuild as rebuilding
from neve.recovery.rebuild.table_rebuild import (
    RebuildOptions,
    RebuildResult,
    facts_of,
    rebuild,
)
from neve.recovery.repair import RepairOptions, check_and_repair
from neve.recovery.scope import RecoveryPorts
from tests.support.recovery import Ground, key, rows
from tests.support.store_harness import applied, release

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


async def lose_redis(ground: Ground) -> None:
    await ground.harness.read(("FLUSHALL",))
    ground.harness.store = ground.harness.another()
    await ground.store.store_id()


async def rebuilt(ground: Ground, table: Table, **options: object) -> RebuildResult:
    rebuilder = RecoveryPorts(
        store=ground.store, threads=ground.threads, ids=ground.ids, admission=ground.door
    )
    plain: dict[str, object] = {"name": table.name, "adopt": True}
    chosen = RebuildOptions(**plain | options)  # type: ignore[arg-type]  # by name
    return await rebuild(rebuilder, table.location, chosen)


async def sound(ground: Ground, table: Table) -> bool:
    report = await check_and_repair(ground.scope(table), RepairOptions(deep=True))
    spare = {"unknown", "orphaned", "evidence"}
    return all(finding.code.value in spare for finding in report.checked.findings)


async def worked_on(ground: Ground) -> tuple[Table, list[str]]:
    """Return a table with files of all kinds, and those that it holds."""
    table = await ground.table()
    first = await ground.add(table, "a.parquet", 1, 2)
    await ground.add(table, "b.parquet", 2, 50, v=2)
    await ground.add(table, "_neve/append/c.parquet", 60)
    (made,) = await ground.compact(table, first, "a.parquet", "b.parquet")
    await ground.compact(table, first, made, "_neve/append/c.parquet")
    last = await ground.add(table, "d.parquet", 150)
    await ground.add(table, "_neve/append/e.parquet", 160)
    await ground.add(table, "f.parquet", 170)
    await ground.compact(table, last, "d.parquet", "f.parquet")
    return table, await ground.paths(table)


async def test_a_rebuild_restores_the_files_that_the_table_held(ground: Ground) -> None:
    table, held = await worked_on(ground)
    (first, last) = await ground.store.read_range(table.id)
    await lose_redis(ground)

    done = await rebuilt(ground, table)

    assert await ground.paths(done.table) == held
    assert done.table.state is TableState.LIVE
    assert (done.table.schema, done.table.settings) == (table.schema, table.settings)
    assert (done.report.lost, done.report.user_files) == ({}, 0)
    assert {*done.report.left} >= {"a.parquet", "b.parquet", "d.parquet", "f.parquet"}
    again = await ground.store.read_range(done.table.id)
    assert [each.bounds for each in again] == [first.bounds, last.bounds]
    for before, after in zip((first, last), again, strict=True):
        for path, file in after.files.items():
            was = before.files[path]
            assert (file.rows, file.key_min, file.job) == (was.rows, was.key_min, was.job)
    assert await sound(ground, done.table)
    assert any("history" in line for line in done.report.not_recovered)
    assert any("buffered rows" in line for line in done.report.not_recovered)


async def test_collected_inputs_are_not_missed(ground: Ground) -> None:
    table, held = await worked_on(ground)
    for entry in await ground.store.garbage(table.id):
        ground.place(table, entry.path).unlink()
    await lose_redis(ground)

    done = await rebuilt(ground, table)

    assert await ground.paths(done.table) == held
    assert done.report.lost == {}


async def test_a_compactor_that_tidies_up_meanwhile_takes_nothing_along(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its output looks committed, until it is deleted."""
    table = await ground.table()
    tablet = await ground.add(table, "a.parquet", 1)
    await ground.add(table, "b.parquet", 2)
    late = ground.rewrite(await ground.reserve(table, tablet, "a.parquet", "b.parquet"))
    output = ground.place(table, late.outputs[0].path)
    await lose_redis(ground)

    async def meanwhile(*values: Any, **named: Any) -> object:
        output.unlink(missing_ok=True)
        return await facts_of(*values, **named)

    monkeypatch.setattr(rebuilding, "facts_of", meanwhile)
    done = await rebuilt(ground, table)

    assert done.report.lost == {}
    assert sorted(file.path for file in done.files) == ["a.parquet", "b.parquet"]


async def test_a_location_from_which_files_keep_going_is_not_rebuilt(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = await ground.table()
    for number in range(rebuilding.LOOKS_MAX):
        await ground.add(table, f"{number}.parquet", number)
    await lose_redis(ground)

    async def meanwhile(*values: Any, **named: Any) -> object:
        ground.place(table, min(values[3])).unlink()
        return await facts_of(*values, **named)

    monkeypatch.setattr(rebuilding, "facts_of", meanwhile)
    with pytest.raises(
        RefusedError, match=r"disappear while they are read, the last was 4\.parquet"
    ):
        await rebuilt(ground, table)
    assert await ground.store.names() == {}


async def test_a_dry_run_writes_nothing(ground: Ground) -> None:
    table, held = await worked_on(ground)
    await lose_redis(ground)
    before, files = await ground.dump(), ground.files()

    done = await rebuilt(ground, table, dry_run=True)

    assert sorted(file.path for file in done.files) == held
    assert await ground.dump() == before
    assert ground.files() == files


async def test_an_attempt_that_never_committed_does_no_harm(ground: Ground) -> None:
    table = await ground.table()
    tablet = await ground.add(table, "a.parquet", 1, 2)
    await ground.add(table, "b.parquet", 2, 3, v=2)
    await ground.add(table, "c.parquet", 9)
    dead = await ground.reserve(table, tablet, "a.parquet", "c.parquet")
    ground.rewrite(dead)
    attempt = dead.reservation.attempt
    applied(await ground.store.apply(release(tablet, attempt, AttemptEnd.LOST)))
    await ground.compact(table, tablet, "a.parquet", "b.parquet")
    held = ground.rows_of(table, await ground.paths(table))
    await lose_redis(ground)

    done = await rebuilt(ground, table)

    # Two claim a.parquet, so neither counts; merged, the rows are the same.
    found = ground.rows_of(done.table, await ground.paths(done.table))
    newest = {row[0]: row for row in sorted(found)}
    assert sorted(newest.values()) == held


async def test_lost_rows_are_said_and_the_table_stays_paused(ground: Ground) -> None:
    table, _ = await worked_on(ground)
    (_, last) = await ground.store.read_range(table.id)
    (output,) = (path for path in last.files if "/job-" in path)
    full = ground.place(table, output)
    full.write_bytes(full.read_bytes()[:-9])
    for path in ("d.parquet", "f.parquet"):
        ground.place(table, path).unlink()
    await lose_redis(ground)

    done = await rebuilt(ground, table)

    assert done.report.lost.keys() == {output}
    assert done.table.state is TableState.PAUSED


async def test_files_of_users_count_unless_told_otherwise(ground: Ground) -> None:
    table = await ground.table()
    await ground.add(table, "a.parquet", 1)
    await ground.add(table, "_neve/append/b.parquet", 2)
    strange = pa.table({"x": [1]})
    ground.place(table, "strange.parquet").parent.mkdir(exist_ok=True)
    pq.write_table(strange, ground.place(table, "strange.parquet"))
    await lose_redis(ground)

    with_them = await rebuilt(ground, table, dry_run=True)
    done = await rebuilt(ground, table, user_files=False)

    assert [file.path for file in with_them.files] == ["_neve/append/b.parquet", "a.parquet"]
    assert with_them.report.left.keys() == {"strange.parquet"}
    assert with_them.report.user_files == 1
    assert await ground.paths(done.table) == ["_neve/append/b.parquet"]


async def test_without_a_description_the_key_must_be_given(ground: Ground) -> None:
    table, held = await worked_on(ground)
    ground.place(table, DESCRIPTION_PATH).unlink()
    await lose_redis(ground)

    with pytest.raises(RequestError, match="give key"):
        await rebuilt(ground, table)
    done = await rebuilt(ground, table, given={"key": ("id",), "version_column": "v"})

    assert await ground.paths(done.table) == held
    assert {column.name for column in done.table.schema} == {"id", "v", "name"}
    assert any("settings" in each for each in done.report.not_recovered)


async def test_a_file_that_crosses_an_end_joins_the_tablets(ground: Ground) -> None:
    table, _ = await worked_on(ground)
    ground.write(table, "wide.parquet", rows(5, 180))
    await lose_redis(ground)

    done = await rebuilt(ground, table)

    (tablet,) = await ground.store.read_range(done.table.id)
    assert "wide.parquet" in tablet.files
    assert key(100) < tablet.bounds.end


async def test_another_store_s_location_is_refused(ground: Ground) -> None:
    table, _ = await worked_on(ground)
    await lose_redis(ground)

    with pytest.raises(RefusedError, match="belongs to the store"):
        await rebuilt(ground, table, adopt=False)
    ground.place(table, OWNER_PATH).unlink()
    assert (await rebuilt(ground, table, adopt=False)).report.lost == {}


async def test_outputs_of_two_tables_are_told_apart_by_the_description(ground: Ground) -> None:
    table, held = await worked_on(ground)
    other = await ground.table("other", location=table.location + "-other")
    tablet = await ground.add(other, "a.parquet", 1)
    (output,) = await ground.compact(other, tablet, "a.parquet")
    strange = ground.place(table, "_neve/last/job-x-att-y-0.parquet")
    strange.write_bytes(ground.place(other, output).read_bytes())
    await lose_redis(ground)

    done = await rebuilt(ground, table, dry_run=True)
    assert "another table" in done.report.left["_neve/last/job-x-att-y-0.parquet"]
    assert sorted(file.path for file in done.files) == held
    ground.place(table, DESCRIPTION_PATH).unlink()
    with pytest.raises(RequestError, match="several tables"):
        await rebuilt(ground, table, given={"key": ("id",), "version_column": "v"})


async def test_a_rebuild_brings_partitions_back(ground: Ground) -> None:
    table = await ground.table(splits=(), partition_by=("name",), key=("id", "name"))
    ground.write(table, "name=n1/a.parquet", rows(1))
    ground.write(table, "_neve/append/b.parquet", rows(2))
    await lose_redis(ground)

    done = await rebuilt(ground, table)

    tablets = await ground.store.read_range(done.table.id)
    assert [(tablet.bounds.partition, [*tablet.files]) for tablet in tablets] == [
        ("name=n1", ["name=n1/a.parquet"]),
        ("name=n2", ["_neve/append/b.parquet"]),
    ]


async def test_an_append_only_table_keeps_every_row_once(ground: Ground) -> None:
    table = await ground.table(key=(), version_column=None, splits=())
    tablet = await ground.add(table, "a.parquet", 1, 1, 2)
    await ground.add(table, "b.parquet", 2)
    await ground.compact(table, tablet, "a.parquet", "b.parquet")
    await ground.add(table, "_neve/append/c.parquet", 1)
    held = ground.rows_of(table, await ground.paths(table))
    await lose_redis(ground)

    done = await rebuilt(ground, table)

    assert ground.rows_of(done.table, await ground.paths(done.table)) == held
