"""A store that is full, has no replicas, cannot write or starts: work waits, and room is made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis.exceptions import ResponseError

from common.errors import ConfigError, UnavailableError
from common.metadata.changes import AddFiles, DropTable, ForgetGarbage, StampGarbage
from common.metadata.keys import FULL, RESERVE
from common.metadata.keyspace import Command, Reply, StoreBusyError, get
from common.metadata.redis.connection import Link, parse_address
from common.metadata.redis.keyspace import RedisKeyspace, translate_errors
from common.model.tablet import TabletId
from common.runtime import SystemClock, call_id
from common.settings import StoreSettings
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import executable, running
from tests.support.store_harness import (
    MIDDLE,
    Harness,
    applied,
    commit,
    file,
    release,
    reserve,
)

pytestmark = pytest.mark.anyio

RESERVE_BYTES = 256 * 1024
MEMORY_BYTES = 16 * 1024**2
ROOM_BYTES = 3 * 1024**2


@dataclass
class Full(Harness):
    """A store on a server of its own, whose memory the test bounds."""

    folder: Path = Path()
    port: int = 0

    async def say(self, *commands: Command) -> Sequence[Reply]:
        return [
            reply for (reply,) in await self.keyspace.fetch([[command] for command in commands])
        ]

    async def bound(self, maxmemory: int) -> None:
        await self.say(("CONFIG", "SET", "maxmemory", maxmemory))

    async def fill(self, tablet: TabletId) -> int:
        """Add files until the store takes no more; return how many came in."""
        number = 0
        while True:
            names = [f"full-{number}-{index:04}" for index in range(200)]
            try:
                applied(await self.add(tablet, *map(file, names)))
            except UnavailableError:
                return number
            number += 1

    async def keeps_reserve(self) -> None:
        """Look after the reserve, as the coordinator does, until adds go on.

        Redis frees what is deleted in a thread of its own, so the room may come a moment later.
        """
        async with asyncio.timeout(PATIENCE_S):
            while await self.say(get(FULL)) != [None]:
                await self.store.keep_reserve()

    async def used(self) -> int:
        return (await self.store.health()).memory_bytes


@pytest.fixture
async def full(anyio_backend: str) -> AsyncIterator[Full]:
    if executable() is None:
        pytest.skip("no redis-server")
    with running(append_only=False) as server:
        keyspace = RedisKeyspace(
            StoreSettings(url=server.url, timeout_s=5.0, reserve_bytes=RESERVE_BYTES)
        )
        yield Full(
            "redis",
            keyspace,
            SystemClock(),
            tries_max=6,
            folder=server.folder,
            port=server.port,
        )
        await keyspace.close()


async def test_at_maxmemory_what_frees_memory_is_done_and_what_needs_it_waits(full: Full) -> None:
    tablet = await full.tablet_with("a", "b", "c")
    doomed = await full.tablet_with(*(f"{number:0200}" for number in range(5000)))
    applied(await full.apply(reserve(tablet, "t1", "a", "b")))
    applied(await full.apply(reserve(tablet, "t2", "c")))
    await full.bound(await full.used() + ROOM_BYTES)
    await full.store.keep_reserve()
    assert len((await full.say(get(RESERVE)))[0]) == RESERVE_BYTES
    assert await full.fill(tablet) > 3
    assert await full.say(get(FULL), get(RESERVE)) == [b"1", None]
    health = await full.store.health()
    assert health.full
    assert any("was full" in sentence for sentence in health.warnings)

    applied(await full.apply(commit(tablet, "t1")))
    applied(await full.apply(release(tablet, "t2")))
    assert await full.store.tablet(tablet) is not None
    garbage = [entry.path for entry in await full.store.garbage(tablet.table)]
    assert garbage
    applied(await full.apply(StampGarbage(table=tablet.table, paths=tuple(garbage))))
    applied(await full.apply(ForgetGarbage(table=tablet.table, paths=tuple(garbage))))
    with pytest.raises(UnavailableError, match="was full"):
        await full.add(tablet, file("z"))
    await full.store.keep_reserve()
    assert (await full.store.health()).full, "there is no room yet"

    # What is dropped makes room by itself: nobody raises the bound.
    applied(await full.apply(DropTable(table=doomed.table, delete_files=False)))
    await full.keeps_reserve()
    applied(await full.add(tablet, file("z")))


async def test_a_full_store_without_a_reserve_gives_its_streams(full: Full) -> None:
    tablet = await full.tablet_with("a")
    told: Command = ("XADD", f"neve:{{{tablet.table}}}:changes", "*", "t", b"x" * 900)
    for _ in range(50):
        await full.write(*[told] * 100)
    applied(await full.apply(reserve(tablet, "t1", "a")))
    await full.bound(await full.used())
    applied(await full.apply(commit(tablet, "t1")))
    (kept,) = await full.say(("XLEN", told[1]))
    assert kept < 1200


async def test_an_add_goes_on_as_soon_as_there_is_room(full: Full) -> None:
    tablet = await full.tablet_with("a")
    await full.bound(1024**2)
    change = AddFiles(table=tablet.table, call=call_id(), files={MIDDLE: (file("b"),)})
    with pytest.raises(UnavailableError, match="OOM"):
        await full.apply(change)
    await full.bound(0)
    await full.store.keep_reserve()
    applied(await full.apply(change))


async def test_a_commit_waits_for_replicas(full: Full) -> None:
    tablet = await full.tablet_with("a")
    applied(await full.apply(reserve(tablet, "t1", "a")))
    await full.say(("CONFIG", "SET", "min-replicas-to-write", 1))
    with pytest.raises(UnavailableError, match="NOREPLICAS"):
        await full.apply(commit(tablet, "t1"))
    await full.say(("CONFIG", "SET", "min-replicas-to-write", 0))
    applied(await full.apply(commit(tablet, "t1")))


async def test_a_commit_waits_for_a_disk_that_takes_writes(full: Full) -> None:
    tablet = await full.tablet_with("a")
    applied(await full.apply(reserve(tablet, "t1", "a")))
    in_the_way = full.folder / "dump.rdb"
    in_the_way.mkdir()
    await full.say(("CONFIG", "SET", "save", "3600 1000000"), ("BGSAVE",))
    while not (await full.store.health()).write_failure:
        await asyncio.sleep(0.05)
    with pytest.raises(UnavailableError, match="MISCONF"):
        await full.apply(commit(tablet, "t1"))
    assert any("cannot write" in warning for warning in (await full.store.health()).warnings)
    in_the_way.rmdir()
    await full.say(("BGSAVE",))
    while (await full.store.health()).write_failure:
        await asyncio.sleep(0.05)
    applied(await full.apply(commit(tablet, "t1")))


async def test_health_warns_of_eviction_and_missing_persistence(full: Full) -> None:
    await full.tablet_with("a")
    health = await full.store.health()
    health.check()
    assert [warning for warning in health.warnings if "append-only" in warning]
    await full.say(("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"))
    health = await full.store.health()
    with pytest.raises(ConfigError, match="maxmemory-policy allkeys-lru"):
        health.check()
    assert any("evict files" in warning for warning in health.warnings)
    await full.bound(health.memory_bytes + 1000)
    assert any("nearly full" in warning for warning in (await full.store.health()).warnings)


async def test_health_names_the_durability_of_acknowledged_changes(full: Full) -> None:
    assert "appendonly no" in (await full.store.health()).durability
    with running() as server:
        keyspace = RedisKeyspace(StoreSettings(url=server.url, timeout_s=5.0))
        for sync, words in (("everysec", "the last second"), ("always", "before the answer")):
            server.say("CONFIG", "SET", "appendfsync", sync)
            health = await keyspace.health()
            assert f"appendfsync {sync}" in health.durability
            assert words in health.durability
        await keyspace.close()
        # A user with Névé's rights only may not read settings: they have passwords, too.
        keyspace = RedisKeyspace(StoreSettings(url=server.user_url, timeout_s=5.0, wait_replicas=2))
        for _ in range(2):
            health = await keyspace.health()
            assert health.lacks == ()
            assert "and 2 replicas, synced to disk as its appendfsync says" in health.durability
        await keyspace.close()
        keyspace = RedisKeyspace(
            StoreSettings(url=server.user_url, timeout_s=5.0, append_fsync="always")
        )
        assert "appendfsync always" in (await keyspace.health()).durability
        await keyspace.close()
        refused = [entry for entry in server.say("ACL", "LOG") if b"config" in entry[b"object"]]
        assert [entry[b"count"] for entry in refused] == [2], "each process asks once"


async def test_no_reserve_is_kept_that_is_not_wanted(full: Full) -> None:
    await full.bound(MEMORY_BYTES)
    await full.store.keep_reserve()
    assert (await full.say(("STRLEN", RESERVE))) == [RESERVE_BYTES]
    await full.bound(0)
    await full.store.keep_reserve()
    assert (await full.say(("EXISTS", RESERVE))) == [0]


async def test_missing_replicas_are_told() -> None:
    if executable() is None:
        pytest.skip("no redis-server")
    with running(append_only=False) as server:
        keyspace = RedisKeyspace(StoreSettings(url=server.url, timeout_s=5.0, wait_replicas=2))
        health = await Harness("redis", keyspace, SystemClock()).store.health()
        assert any("requires 2" in warning for warning in health.warnings)
        await keyspace.close()


async def test_the_reason_counts_also_when_only_exec_is_refused(full: Full) -> None:
    address = parse_address(f"redis://127.0.0.1:{full.port}")
    link = Link(address=address, timeout_s=5.0)
    await link.open()
    await link.exchange([("MULTI",), ("SET", "x", 1)])
    await full.say(("CONFIG", "SET", "min-replicas-to-write", 1))
    (answer,) = await link.exchange([("EXEC",)])
    await link.disconnect()
    assert isinstance(answer, ResponseError)
    assert str(answer).startswith("EXECABORT")
    error = translate_errors(answer)
    assert isinstance(error, StoreBusyError)
    assert str(error).startswith("NOREPLICAS")
