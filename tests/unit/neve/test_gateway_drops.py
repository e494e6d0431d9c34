"""What a dropped table still waits for, and who is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.metadata.changes import DropTable, ForgetGarbage
from common.model.table import Table
from common.runtime import SystemClock
from coordinator.storage.garbage_collector import finish_drops
from neve.client.errors import NotFoundError, RefusedError
from tests.support.flaky import Fault, FlakyKeyspace, Point
from tests.support.gateway import Gateway, serving
from tests.support.memory_store import MemoryStore

ROWS = pa.table({"n": [1, 2]})


def test_a_name_that_waits_for_files_says_until_when(tmp_path: Path) -> None:
    with serving() as gateway, gateway.client() as client:
        client.create_table("events", str(tmp_path / "events"), schema=ROWS.schema)
        assert client.append("events", ROWS).rows == 2
        left = client.drop("events", delete_files=True)
        assert left.files_left >= 1
        assert left.name_free_at_s is not None
        says = "'events' is being dropped: its name is free when .* has deleted .* at about 20"
        with pytest.raises(RefusedError, match=says) as caught:
            client.drop("events")
        assert caught.value.code == "going"
        with pytest.raises(RefusedError, match=says):
            client.create_table("events", str(tmp_path / "other"), schema=ROWS.schema)
        client.create_table("empty", str(tmp_path / "empty"), schema=ROWS.schema)
        assert client.drop("empty").name_free_at_s is None


# ---------------------------------------------------------------------- A drop that was broken off

WRITES = 5
"""Of the drop of a table with a tablet: going, its tablet, its keys, its name; one more than that
leaves nothing to break off."""


class _Killed(BaseException):
    """The process dies."""


def break_off_drop(store: MemoryStore, table: Table, writes: int) -> bool:
    """Drop a table, and die before another write; return whether there was one more."""

    async def drop() -> bool:
        keyspace, made = FlakyKeyspace(store.keyspace), 0
        dying = MemoryStore(keyspace=keyspace)  # type: ignore[arg-type]  # the same keys

        async def script(point: Point) -> Fault:
            nonlocal made
            if point is Point.EXEC:
                if made == writes:
                    raise _Killed
                made += 1
            return Fault.NONE

        keyspace.script = script
        try:
            await dying.apply(DropTable(table=table.id))
        except _Killed:
            return True
        return False

    return asyncio.run(drop())


def broken_off(gateway: Gateway, store: MemoryStore, folder: Path, writes: int) -> bool:
    """Make a table, and break its drop off; return whether anything was left of it to do."""
    with gateway.client() as client:
        client.create_table("side-0", str(folder), schema=ROWS.schema)
    return break_off_drop(store, gateway.ask(store.table_named("side-0")), writes)


def test_a_drop_that_was_broken_off_is_finished_by_the_same_verb(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    with serving(store) as gateway, gateway.client() as client:
        for writes in range(1, WRITES):
            left = broken_off(gateway, store, tmp_path, writes)
            assert left is (writes < WRITES - 1)
            if left:
                assert client.drop("side-0").name_free_at_s is None
            with pytest.raises(NotFoundError, match="no table is named"):
                client.drop("side-0")
            assert gateway.ask(store.names()) == {}


@pytest.mark.parametrize("name", ["side-0", "side-1"])
def test_a_creation_finishes_a_drop_that_was_broken_off(tmp_path: Path, name: str) -> None:
    """By the name of the table, or where it lay."""
    store = MemoryStore(SystemClock())
    with serving(store) as gateway, gateway.client() as client:
        for writes in range(1, WRITES):
            broken_off(gateway, store, tmp_path, writes)
            if name != "side-0" and writes < WRITES - 2:
                with pytest.raises(RefusedError, match="overlaps"):  # It is going, and there.
                    client.create_table(name, str(tmp_path), schema=ROWS.schema)
                client.drop("side-0")
            client.create_table(name, str(tmp_path), schema=ROWS.schema)
            assert client.append(name, ROWS).rows == 2
            assert [*gateway.ask(store.names())] == [name]
            client.drop(name)


def test_a_name_without_a_table_says_how_it_is_finished(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    with serving(store) as gateway, gateway.client() as client:
        assert broken_off(gateway, store, tmp_path, WRITES - 2)
        says = "'side-0' is being dropped, .* `neve table drop side-0` finishes it"
        with pytest.raises(NotFoundError, match=says):
            client.describe("side-0")
        with pytest.raises(NotFoundError, match=says):
            client.append("side-0", ROWS)


def test_the_next_round_of_the_collector_frees_a_name_without_a_table(tmp_path: Path) -> None:
    store, logged = MemoryStore(SystemClock()), list[str]()
    with serving(store) as gateway, gateway.client() as client:
        client.create_table("other", str(tmp_path / "other"), schema=ROWS.schema)
        assert broken_off(gateway, store, tmp_path / "side", WRITES - 2)
        gateway.ask(finish_drops(store, (), lambda event, **_fields: logged.append(event)))
        assert [*gateway.ask(store.names())] == ["other"]
        assert logged == ["unfinished table removed"]


# ------------------------------------------------------------------- Names that a drop has deleted


def test_a_file_under_a_name_that_was_deleted_comes_into_no_table(tmp_path: Path) -> None:
    store, path = MemoryStore(SystemClock()), "mine.parquet"
    with serving(store) as gateway, gateway.client() as client:
        client.create_table("events", str(tmp_path), schema=ROWS.schema)
        pq.write_table(ROWS, tmp_path / path)
        client.add_files("events", [path])
        table = gateway.ask(store.table_named("events"))
        client.drop("events", delete_files=True)
        # A collector has deleted the files, and another one stands still right before it does.
        entries = gateway.ask(store.garbage(table.id))
        paths = tuple(entry.path for entry in entries)
        forget = ForgetGarbage(table=table.id, paths=paths, location=table.location, retired_s=60.0)
        gateway.ask(store.apply(forget))
        client.drop("events")
        assert path in paths

        with pytest.raises(RefusedError, match=f"{path} .* is there again") as rebuilt:
            client.rebuild(str(tmp_path), "events", append_only=True)
        client.create_table("events", str(tmp_path), schema=ROWS.schema)
        with pytest.raises(RefusedError, match="was recently deleted") as added:
            client.add_files("events", [path])

        assert (rebuilt.value.code, added.value.code) == ("retired", "retired")
        (tmp_path / path).rename(tmp_path / "new.parquet")
        assert client.add_files("events", ["new.parquet"]).rows == 2
