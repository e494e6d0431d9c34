"""Splits and merges that sizes ask for, through the shell over the memory store."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import RequestError
from common.metadata.changes import AbandonOperation, AddFiles, Applied, ChangeTable
from common.model.file import DataFile
from common.model.key_values import KeyType
from common.model.keys import encode_key
from common.model.table import Column, Table, TableSettings
from common.model.tablet import PLUS_INFINITY, Bounds, OperationKind, Tablet, TabletId
from common.parquet.file_inspection import SAMPLES, sample_keys
from common.parquet.location import open_location
from common.readers.pool import ReaderDeathError
from common.rows.rules import RowRules
from common.runtime import call_id
from common.settings import CoordinatorSettings, Settings
from coordinator.core import events as on
from coordinator.split_merge import choose_split_keys
from tests.support.operation_shell import Land, key, work
from tests.support.request_shell import run, until

pytestmark = pytest.mark.unit

LAST = PLUS_INFINITY


@pytest.fixture(autouse=True)
def quick_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the sizes of a table more often than every few seconds."""
    monkeypatch.setattr("coordinator.split_merge.WALK_REST_S", 0.01)


LOOK_S = 0.05
"""How long a look into a file takes: several walks over the sizes of its table."""
SIDE_BY_SIDE = [(10 * number, 10 * number + 9) for number in range(8)]


async def land_of(splits: tuple[bytes, ...] = (), **settings: object) -> Land:
    land = Land()
    await land.found(splits, **settings)
    for keys in SIDE_BY_SIDE:
        assert await land.append(*keys)
    return land


def test_a_tablet_that_grew_too_large_is_split_until_none_is() -> None:
    async def story() -> None:
        land = await land_of(split_bytes=250, ratio=100)
        async with land.coordinator() as it:
            await work(land, it, lambda: none_is_larger(land, 250))
            assert await land.ends() == [key(19), key(39), key(59), LAST]
            (first, *_) = [fields for event, fields in land.logged if event == "split begins"]
            assert first["cause"] == "its files have 800 B, more than split_bytes 250 B"
            await land.check()

    run(story())


async def none_is_larger(land: Land, most: int) -> bool:
    sizes = [
        sum(file.size_bytes for file in tablet.files.values()) for tablet in await land.tablets()
    ]
    return max(sizes) <= most and await land.is_free()


def test_settings_that_change_begin_and_end_it() -> None:
    async def story() -> None:
        land = await land_of(ratio=100)
        async with land.coordinator() as it:
            assert await it.take(wait_max_s=0.05) is None
            assert await land.ends() == [LAST]
            await change_settings(land, split_bytes=400, ratio=100)
            await work(land, it, lambda: none_is_larger(land, 400))
            assert len(await land.ends()) == 2
            await change_settings(land, split_bytes=2000, merge_bytes=1000, ratio=100)
            await until(lambda: is_one(land))
            await land.check()

    run(story())


async def change_settings(land: Land, **settings: object) -> None:
    table = await land.store.table("t1")
    assert table is not None
    chosen = TableSettings(**settings)  # type: ignore[arg-type]  # settings by name
    wanted = ChangeTable(table="t1", settings_version=table.settings_version, settings=chosen)
    assert isinstance(await land.store.apply(wanted), Applied)


async def is_one(land: Land) -> bool:
    return await land.ends() == [LAST]


def test_small_neighbours_are_merged_as_far_as_their_sizes_allow() -> None:
    async def story() -> None:
        splits = tuple(key(10 * number + 9) for number in range(7))
        land = await land_of(splits, merge_bytes=450, ratio=100)
        async with land.coordinator() as it:
            await until(lambda: are(land, 2))
            assert await it.take(wait_max_s=0.05) is None
            assert await land.ends() == [key(39), LAST]
            await land.check()

    run(story())


async def are(land: Land, count: int) -> bool:
    return len(await land.ends()) == count and await land.is_free()


def test_splits_and_merges_do_not_chase_each_other() -> None:
    async def story() -> None:
        splits = tuple(key(10 * number + 9) for number in range(7))
        land = await land_of(splits, split_bytes=500, merge_bytes=250, ratio=100)
        async with land.coordinator() as it:
            await until(lambda: are(land, 4))
            for keys in SIDE_BY_SIDE[:3]:
                assert await land.append(*keys, size_bytes=200)
            await work(land, it, lambda: none_is_larger(land, 500))
            begun = len(begins(land))
            for _ in range(3):
                it.parts.operations.table_changed("t1")
                it.parts.scanner.ask(TabletId("t1", LAST))
                assert await it.take(wait_max_s=0.05) is None
            assert len(begins(land)) == begun
            await land.check()

    run(story())


def begins(land: Land) -> list[str]:
    return [event for event, _ in land.logged if event.endswith(" begins")]


def test_not_more_begin_at_once_than_may() -> None:
    async def story() -> None:
        splits = tuple(key(10 * number + 9) for number in range(7))
        land = await land_of(splits, ratio=100)
        seen: list[int] = []

        async def settled() -> bool:
            operating = {each.operation for each in await land.operating()}
            seen.append(len(operating))
            return len(await land.ends()) == 16 and not operating

        for low, high in SIDE_BY_SIDE:
            assert await land.append(low + 4, high)
        async with land.coordinator() as it:
            await change_settings(land, split_bytes=150, ratio=100)
            await work(land, it, settled)
            await land.check()
        assert 1 <= max(seen) <= 4

    run(story())


def test_after_it_was_abandoned_a_split_by_size_rests() -> None:
    async def story() -> None:
        land = Land()
        await land.found(split_bytes=250, ratio=100)
        for keys in ((1, 5), (1, 5), (2, 5), (3, 9)):
            assert await land.append(*keys)
        async with land.coordinator() as it:
            await until(lambda: operates(land))
            (tablet,) = await land.operating()
            assert tablet.operation is not None
            assert tablet.operation.kind is OperationKind.SPLIT
            name = tablet.operation.operation_id
            await land.store.apply(AbandonOperation(tablets=(tablet.id,), operation=name))
            await asyncio.sleep(0.05)
            it.parts.operations.table_changed("t1")
            await asyncio.sleep(0.05)
            assert not await land.operating()
            land.clock.advance(3601)
            assert await land.append(2, 9)
            await until(lambda: operates(land))
            await land.check()

    run(story())


def test_no_split_begins_that_a_file_still_written_would_hold_up() -> None:
    async def story() -> None:
        land = await land_of(split_bytes=2000, ratio=100)
        unfinished = replace(land.file("open", [(key(1), 16), (key(79), 17)], 50), open=True)
        call = call_id(land.clock)
        change = AddFiles(table="t1", call=call, files={LAST: (unfinished,)})
        assert isinstance(await land.store.apply(change), Applied)
        land.added += 2
        async with land.coordinator():
            await change_settings(land, split_bytes=400, ratio=100)
            await until(lambda: logged(land, "a file still written crosses"))
            assert await land.ends() == [LAST]
            assert not await land.operating()
            await land.check()

    run(story())


async def logged(land: Land, event: str) -> bool:
    return any(each == event for each, _ in land.logged)


async def operates(land: Land) -> bool:
    return bool(await land.operating())


SCHEMA = pa.schema([("x", pa.int32()), ("name", pa.string()), ("v", pa.int64())])
KEYED = Table(
    id="t1",
    name="events",
    location="",
    schema=(Column("x", "int64"), Column("name", "string"), Column("v", "int64")),
    key=("x", "name"),
    version_column="v",
)


def written(folder: Path, name: str, values: list[int], row_group: int) -> DataFile:
    names = [f"n{value % 7}" for value in values]
    rows = pa.table({"x": values, "name": names, "v": [1] * len(values)}, schema=SCHEMA)
    pq.write_table(rows, folder / name, row_group_size=row_group)
    keys = [encoded(value) for value in values]
    return DataFile(
        path=name,
        size_bytes=(folder / name).stat().st_size,
        rows=len(values),
        key_min=min(keys, default=None),
        key_max=max(keys, default=None),
    )


def encoded(value: int) -> bytes:
    return encode_key([value, f"n{value % 7}"], [KeyType.INT, KeyType.STRING])


@pytest.mark.parametrize("row_group", [10, 300, 100_000])
def test_sampled_keys_are_spread_over_the_rows(tmp_path: Path, row_group: int) -> None:
    written(tmp_path, "a.parquet", [*range(10_000)], row_group)
    keys = sample_keys(open_location(f"file://{tmp_path}"), "a.parquet", RowRules.of(KEYED))
    assert SAMPLES / 2 <= len(keys) <= SAMPLES
    assert (keys[0], keys[-1]) == (encoded(0), encoded(9999))
    below = sum(sample <= encoded(5000) for sample in keys)
    assert abs(below - len(keys) / 2) <= len(keys) / 8


def test_sampling_a_file_of_few_rows_or_none(tmp_path: Path) -> None:
    location, rules = open_location(f"file://{tmp_path}"), RowRules.of(KEYED)
    written(tmp_path, "none.parquet", [], 10)
    written(tmp_path, "one.parquet", [7], 10)
    assert sample_keys(location, "none.parquet", rules) == []
    assert sample_keys(location, "one.parquet", rules) == [encoded(7)]
    with pytest.raises(RequestError, match=r"gone.parquet does not exist"):
        sample_keys(location, "gone.parquet", rules)


@pytest.mark.anyio
async def test_a_large_file_is_split_where_its_rows_are(tmp_path: Path) -> None:
    crowd = [*range(9000, 10_000), *range(0, 9000, 100)]
    files = [
        written(tmp_path, "a.parquet", sorted(crowd), 50),
        written(tmp_path, "b.parquet", [1, 9999], 50),
    ]
    table = replace(KEYED, location=f"file://{tmp_path}")
    tablet = Tablet(
        id=TabletId("t1", LAST),
        bounds=Bounds(None, LAST),
        files={file.path: file for file in files},
    )
    logged: list[str] = []
    log = lambda event, **_: logged.append(event)  # noqa: E731  a stub of one line
    (cut,) = await choose_split_keys(tablet, table, log)
    share = sum(encoded(value) <= cut for value in crowd) / len(crowd)
    assert 0.35 <= share <= 0.65
    # A key that looks as if it halved them does not: most rows of the large file lie beyond.
    middle = written(tmp_path, "c.parquet", [5000], 50)
    more = replace(tablet, files={**tablet.files, middle.path: middle})
    (cut,) = await choose_split_keys(more, table, log)
    share = sum(encoded(value) <= cut for value in crowd) / len(crowd)
    assert 0.35 <= share <= 0.65
    assert logged == []
    (tmp_path / "a.parquet").unlink()
    assert await choose_split_keys(tablet, table, log) == ()
    assert logged == ["keys of a file not sampled"]


@pytest.mark.parametrize("lifted", [False, True])
def test_a_file_that_ends_its_reader_is_quarantined_and_not_looked_into_again(
    monkeypatch: pytest.MonkeyPatch, lifted: bool
) -> None:
    looked: list[str] = []

    def die(_location: object, path: str, _rules: object) -> list[bytes]:
        looked.append(path)
        # Meanwhile the table is looked at again and again.
        time.sleep(LOOK_S)
        raise ReaderDeathError(f"file {path} cannot be read: signal 6")

    monkeypatch.setattr("coordinator.split_merge.sample_keys", die)
    monkeypatch.setattr("coordinator.split_merge.is_sure", lambda *_: False)
    monkeypatch.setattr("coordinator.split_merge.RowRules", SimpleNamespace(of=lambda _table: None))
    monkeypatch.setattr("coordinator.split_merge.TRY_REST_S", 0.0)

    async def story() -> None:
        land = await land_of(split_bytes=250, ratio=100)
        tablet = TabletId("t1", LAST)
        async with land.coordinator() as it:

            async def hears(event: str) -> bool:
                it.parts.operations.table_changed("t1")
                return event in [each for each, _ in land.logged]

            await until(lambda: hears("a quarantined tablet is not split"))
            assert await land.ends() == [LAST]
            assert it.parts.state.status(0.0, 0, 0).quarantined == 1
            assert len({*looked}) == len(looked)
            why = it.parts.explain(tablet, 0.0).sentences
            assert any("quarantined, file" in sentence for sentence in why), why
            if lifted:
                looked.clear()
                land.logged.clear()
                it.parts.service.submit(on.QuarantineLifted(table="t1", tablet=tablet))
                await until(lambda: hears("file quarantined"))
                assert looked
            await land.check()

    run(story())


def test_one_scan_finds_compactions_splits_and_merges() -> None:
    """Everything was written before the coordinator came, so no change tells it of anything."""

    async def story() -> None:
        land = Land(settings=Settings(coordinator=CoordinatorSettings(full_scan_interval_s=1e6)))
        await land.found((key(79), key(99), key(119)), split_bytes=500, merge_bytes=50, ratio=3)
        for keys in SIDE_BY_SIDE:
            assert await land.append(*keys)
        for small in (80, 100):
            assert await land.append(small, size_bytes=10)
        for _ in range(4):
            assert await land.append(120, 121, size_bytes=40)
        async with land.coordinator() as it:

            async def all_three() -> bool:
                *ends, last = [tablet.id for tablet in await land.tablets()]
                done = [end.end for end in ends] == [key(39), key(79), key(119)]
                return done and bool(it.parts.state.queued_ids(last))

            await until(all_three)
            assert it.parts.full_scan.counts.ranges == 1, "a single look at one range"
            begun = [event for event, _ in land.logged if event.endswith("begins")]
            assert sorted(begun) == ["merge begins", "split begins"]
            await land.check()

    run(story())
