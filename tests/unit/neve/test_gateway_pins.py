"""Readers whose protection ends, in simulated time: they are told so, and get no short answer.

The gateway's own scan, append and dry run run here on the event loop of the simulations, over
real files.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import ConflictError, UnavailableError
from common.metadata.changes import (
    Applied,
    Change,
    CommitAttempt,
    CreateTable,
    Outcome,
    PinFiles,
    ReserveFiles,
)
from common.metadata.file_pin import LEASE_S
from common.model.job import Kind
from common.model.key_values import KeyType
from common.model.keys import encode_key
from common.model.outcome import RowCounts
from common.model.request import KeyRange, Request
from common.model.table import Table
from common.parquet.location import open_location
from common.parquet.service_files import LocationOwner, write_owner
from common.rows.schema import columns_of
from common.runtime import Clock
from common.settings import GatewaySettings, Settings
from coordinator.actor import CoordinatorActor
from coordinator.core.scans import GarbageRules
from coordinator.storage.garbage_collector import GarbageCollector
from neve.api import STREAM_PROBLEM
from neve.client.arrow import stream_of
from neve.gateway.requests import dry_run
from neve.gateway.rows.ingestion import append_rows
from neve.gateway.rows.scan import (
    arrow_stream,
    manifest_json,
    open_scan,
    scan_options,
)
from neve.gateway.services import Services
from neve.gateway.store_watch import StoreWatch
from tests.support.gateway import FakeCoordinator, plan_all
from tests.support.memory_store import MemoryStore
from tests.support.predictable import CountedIds
from tests.support.sim_loop import EPOCH_S, SimLoop, World

pytestmark = pytest.mark.unit
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


class Silent(MemoryStore):
    """Answers no renewal for a while."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.silent = False
        self.pinned: Callable[[], object] = lambda: None
        """Called when a pin has begun."""

    async def apply(self, change: Change) -> Outcome:
        if isinstance(change, PinFiles) and change.renews and self.silent:
            raise UnavailableError("simulated: the store does not answer")
        outcome = await super().apply(change)
        if isinstance(change, PinFiles):
            self.pinned()
        return outcome


@dataclass
class Stage:
    """A gateway in simulated time, with a table of three tablets."""

    world: World
    process: SimLoop
    store: Silent
    services: Services
    table: Table
    folder: Path

    async def append(self, *ids: int) -> None:
        rows = pa.table({"id": ids, "v": [1] * len(ids)}, schema=SCHEMA)
        await append_rows(self.services, self.table, stream_of(rows), None)

    def lose_files(self) -> None:
        """Do what a collector does when a pin has run out."""
        for path in self.folder.rglob("*.parquet"):
            path.unlink()

    async def rows(self, then: Callable[[int], Coroutine[Any, Any, None]]) -> list[int]:
        """Scan, and do something after each piece; return the ids."""
        found: list[int] = []
        async with open_scan(
            self.services, self.table, scan_options(self.table, None, None, None)
        ) as got:
            async for piece in got:
                found += piece.column("id").to_pylist()
                await then(len(found))
        return found


def quiet(_event: str, **_fields: object) -> None:
    """Log nothing."""


def story(folder: Path, tell: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    world = World(3)
    process, store, told = world.process("gateway"), Silent(world), list[bool]()
    types = (KeyType.INT,)
    table = Table(
        id="t1",
        name="events",
        location=folder.as_uri(),
        schema=columns_of(SCHEMA),
        key=("id",),
        version_column="v",
    )
    services = Services(
        store=store,
        store_watch=StoreWatch(store, world, quiet),
        coordinator=cast("CoordinatorActor", FakeCoordinator()),
        plan=plan_all,
        settings=Settings(gateway=GatewaySettings(locations=("/",))),
        clock=world,
        ids=CountedIds(),
        log=quiet,
    )

    async def run() -> None:
        write_owner(open_location(table.location), LocationOwner(await store.store_id()))
        splits = tuple(encode_key([number], types) for number in (10, 20))
        assert isinstance(await store.apply(CreateTable(table=table, splits=splits)), Applied)
        stage = Stage(world, process, store, services, table, folder)
        await stage.append(1, 11, 21)
        await tell(stage)
        told.append(True)

    process.start(run())
    world.run_until(EPOCH_S + 100_000.0)
    world.end()
    services.footers.close()
    services.rows.close()
    assert told


def test_a_slow_reader_is_protected_through_short_troubles(tmp_path: Path) -> None:
    async def tell(stage: Stage) -> None:
        async def then(_: int) -> None:
            stage.store.silent = True
            await asyncio.sleep(LEASE_S - 40)
            stage.store.silent = False
            await asyncio.sleep(1000.0)

        assert await stage.rows(then) == [1, 11, 21]
        await asyncio.gather(*stage.services.pending)
        assert await stage.store.pins("t1") == []

    story(tmp_path, tell)


@pytest.mark.parametrize("freezes", [True, False])
def test_a_scan_that_lost_its_pin_says_so(tmp_path: Path, freezes: bool) -> None:
    """Not that a file is missing, as if that were damage."""

    async def tell(stage: Stage) -> None:
        async def then(count: int) -> None:
            if count == 2:
                stage.store.silent = True
                if freezes:
                    stage.process.frozen_until_s = stage.world.now_s() + LEASE_S + 1
                await asyncio.sleep(0.0 if freezes else LEASE_S + 1)
                stage.lose_files()

        with pytest.raises(ConflictError, match="no longer protected from deletion"):
            await stage.rows(then)

    story(tmp_path, tell)


def test_rows_that_were_read_without_protection_are_not_told(tmp_path: Path) -> None:
    """The files are there by chance: nobody knows whether others are, that replaced them."""

    async def tell(stage: Stage) -> None:
        async def then(_: int) -> None:
            stage.store.silent = True
            await asyncio.sleep(LEASE_S + 1)

        with pytest.raises(ConflictError, match="begin again"):
            await stage.rows(then)

    story(tmp_path, tell)


def test_a_stream_ends_with_the_reason(tmp_path: Path) -> None:
    async def tell(stage: Stage) -> None:
        chunks = []
        asked = scan_options(stage.table, None, None, None)
        async for chunk in arrow_stream(stage.services, stage.table, asked):
            chunks.append(chunk)
            if len(chunks) == 1:
                stage.store.silent = True
                await asyncio.sleep(LEASE_S + 1)
        *rows, last = chunks
        assert len(rows) == 1
        problem = json.loads(last[8 + len(STREAM_PROBLEM) :])
        assert (problem["status"], problem["error"]) == (409, "ConflictError")
        assert "no longer protected" in problem["detail"]
        with pytest.raises((pa.ArrowInvalid, OSError)):
            pa.ipc.open_stream(b"".join(chunks)).read_all()

    story(tmp_path, tell)


def test_other_readers_of_files_hold_them_too(tmp_path: Path) -> None:
    async def tell(stage: Stage) -> None:
        stage.store.silent = True
        listing = manifest_json(stage.services, stage.table)
        await anext(listing)
        await asyncio.sleep(LEASE_S + 1)
        with pytest.raises(ConflictError):
            async for _ in listing:
                pass

        keys = KeyRange(encode_key([1], (KeyType.INT,)), encode_key([15], (KeyType.INT,)))
        request = Request(id="r1", table="t1", range=keys)
        told = await dry_run(stage.services, stage.table, request)
        assert told.rows_in_range == 2
        other = stage.world.process("chaos")

        def freeze() -> None:
            stage.process.frozen_until_s = stage.world.now_s() + LEASE_S + 1

        stage.store.pinned = lambda: other.call_soon(freeze)
        with pytest.raises(ConflictError):
            await dry_run(stage.services, stage.table, request)

    story(tmp_path, tell)


def test_a_simulated_append_knows_no_other_time(tmp_path: Path) -> None:
    """Ids of calls, stamps and looks are of the world's time."""

    async def tell(stage: Stage) -> None:
        now_s = stage.world.now_s()
        added = await append_rows(
            stage.services,
            stage.table,
            stream_of(pa.table({"id": [5], "v": [1]}, schema=SCHEMA)),
            None,
        )
        mark = await stage.store.call("t1", added.call)
        assert mark is not None
        assert now_s <= mark.at_s <= stage.world.now_s()

    story(tmp_path, tell)


class Folder:
    """The collector's view of a table's folder."""

    async def delete(self, location: str, path: str, until_s: float) -> bool:
        where = Path(location.removeprefix("file://")) / path
        there = where.exists()
        where.unlink(missing_ok=True)
        return there

    async def owner(self, location: str) -> LocationOwner | None:
        return None

    async def foreign_mark(self, location: str, paths: Sequence[str]) -> None:
        return None

    async def only_copies(
        self, location: str, outputs: Sequence[str], inputs: Sequence[str]
    ) -> Sequence[str]:
        return []


async def compact(stage: Stage, number: int) -> None:
    """Replace the files of each tablet by one with the newest row of each key."""
    for tablet in await stage.store.read_range(stage.table.id):
        name, rows = f"{number}-{tablet.id.text}", dict[int, int]()
        files = sorted(tablet.files.values(), key=lambda file: file.version_max or b"")
        for file in files:
            found = pq.read_table(stage.folder / file.path)
            rows.update(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))
        reserve = ReserveFiles(
            tablet=tablet.id,
            attempt=name,
            job=name,
            kind=Kind.SYSTEM,
            inputs=tuple(tablet.files),
            output_prefix=name,
            outputs_max=1,
            group="default",
            compactor="c1",
        )
        assert isinstance(await stage.store.apply(reserve), Applied)
        written = pa.table({"id": [*rows], "v": [*rows.values()]}, schema=SCHEMA)
        pq.write_table(written, stage.folder / f"{name}-0.parquet")
        size_bytes = (stage.folder / f"{name}-0.parquet").stat().st_size
        output = replace(files[-1], path=f"{name}-0.parquet", rows=len(rows), size_bytes=size_bytes)
        counts = RowCounts(rows_in=len(rows) + 1, rows_out=len(rows), superseded=1)
        commit = CommitAttempt(tablet=tablet.id, attempt=name, outputs=(output,), counts=counts)
        assert isinstance(await stage.store.apply(commit), Applied)


def test_a_reader_keeps_the_versions_of_its_moment_across_three_compactions(
    tmp_path: Path,
) -> None:
    async def tell(stage: Stage) -> None:
        rules = GarbageRules(grace_s=60.0, clock_skew_max_s=5.0)
        collector = GarbageCollector(stage.store, Folder(), rules, quiet, clock=stage.world)

        async def collected() -> set[str]:
            """Return which files are left after a collector has had time for two looks."""
            for _ in range(2):
                await collector.collect(stage.table)
                await asyncio.sleep(2 * rules.grace_s)
            await collector.collect(stage.table)
            return {path.name for path in stage.folder.rglob("*.parquet")}

        first = {path.name for path in stage.folder.rglob("*.parquet")}
        seen: list[tuple[int, int]] = []
        asked = scan_options(stage.table, None, None, None)
        async with open_scan(stage.services, stage.table, asked) as got:
            async for piece in got:
                seen += zip(piece["id"].to_pylist(), piece["v"].to_pylist(), strict=True)
                if len(seen) > 1:
                    continue
                for number in (2, 3, 4):
                    rows = pa.table({"id": [1, 11, 21], "v": [number] * 3}, schema=SCHEMA)
                    await append_rows(stage.services, stage.table, stream_of(rows), None)
                    await compact(stage, number)
                    assert first <= await collected(), f"a pinned file has gone after {number}"
        assert seen == [(1, 1), (11, 1), (21, 1)], "as it was when the reader began"
        async with open_scan(stage.services, stage.table, asked) as got:
            newest = [v async for piece in got for v in piece["v"].to_pylist()]
        assert newest == [4, 4, 4]
        left = {name for name in await collected() if "READ-WITH" not in name}
        assert len(left) == 3, "and now only what is visible is left"

    story(tmp_path, tell)
