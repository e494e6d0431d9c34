"""A large add beside many small ones: it loses races, takes the turn, and gets through."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from common.metadata.changes import AddFiles
from common.metadata.executor import RetryLimits
from common.metadata.keys import TableKeys
from common.metadata.keyspace import get, set_string
from common.metadata.redis.keyspace import RedisKeyspace
from common.metadata.store import TabletStore
from common.model.tablet import TabletId
from common.runtime import SystemClock, call_id
from common.settings import StoreSettings
from tests.support.flaky import Fault, FlakyKeyspace, Point
from tests.support.redis_server import RedisServer
from tests.support.store_harness import Harness, applied, commit, file, reserve

pytestmark = pytest.mark.anyio

TABLETS = 1000
WRITERS, ADDS_PER_S = 4, 100
"""Of so many, one nearly always falls between the look and the write of a large add."""


def end_of(number: int) -> bytes:
    return b"%04d" % number


async def table_of(harness: Harness, tablets: int) -> str:
    table = await harness.table(splits=tuple(end_of(number) for number in range(tablets)))
    return table.id


def in_every_tablet(harness: Harness, table: str, name: str, tablets: int = TABLETS) -> AddFiles:
    files = {
        end_of(number): (file(f"{name}-{number}", end_of(number), end_of(number)),)
        for number in range(tablets)
    }
    return AddFiles(table=table, call=call_id(harness.clock), files=files)


def in_one(harness: Harness, table: str, name: str, number: int) -> AddFiles:
    small = file(name, end_of(number), end_of(number))
    return AddFiles(table=table, call=call_id(harness.clock), files={end_of(number): (small,)})


async def small_adds(url: str, table: str, seed: int, ended: threading.Event) -> int:
    """Add small files one after the other until the end; return how many came in."""
    small = Harness("redis", RedisKeyspace(StoreSettings(url=url, timeout_s=30.0)), SystemClock())
    dice, number = random.Random(seed), 0
    while not ended.is_set():
        change = in_one(small, table, f"small-{seed}-{number}", dice.randrange(TABLETS))
        applied(await small.apply(change))
        number += 1
        await asyncio.sleep(WRITERS / ADDS_PER_S)
    await small.keyspace.close()
    return number


async def test_an_add_to_a_thousand_tablets_gets_through_beside_a_hundred_adds_a_second(
    redis_server: RedisServer,
) -> None:
    large = Harness(
        "redis",
        RedisKeyspace(StoreSettings(url=redis_server.user_url, timeout_s=30.0)),
        SystemClock(),
    )
    table, ended = await table_of(large, TABLETS), threading.Event()
    with ThreadPoolExecutor(WRITERS) as threads:
        writers = [
            threads.submit(asyncio.run, small_adds(redis_server.user_url, table, seed, ended))
            for seed in range(WRITERS)
        ]
        try:
            outcomes = [
                applied(await large.apply(in_every_tablet(large, table, name))) for name in "abc"
            ]
        finally:
            ended.set()
    assert all(writer.result() > 0 for writer in writers)
    assert await large.read(get(TableKeys(table).lock)) is None
    assert all(outcome.tries <= 8 for outcome in outcomes)
    await large.keyspace.close()


async def test_a_change_that_always_loses_takes_a_turn_and_others_wait(harness: Harness) -> None:
    tablets = 3
    table = await table_of(harness, tablets)
    store, keyspace = harness.flaky()
    await store.store_id()
    losses = 0

    async def script(point: Point) -> Fault:
        """Somebody adds between look and write, whenever nobody has the turn."""
        nonlocal losses
        if point is Point.LOOKED and await harness.read(get(TableKeys(table).lock)) is None:
            losses += 1
            applied(
                await harness.apply(in_one(harness, table, f"small-{losses}", losses % tablets))
            )
        return Fault.NONE

    keyspace.script = script
    outcome = applied(await store.apply(in_every_tablet(harness, table, "large", tablets)))
    assert outcome.conflicts == 3
    assert await harness.read(get(TableKeys(table).lock)) is None


async def test_others_wait_for_the_end_of_a_turn(harness: Harness) -> None:
    table = await table_of(harness, 3)
    tablet, turn = TabletId(table, end_of(1)), TableKeys(table).lock
    applied(await harness.apply(in_one(harness, table, "a", 1)))
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    for change in (in_one(harness, table, "b", 1), commit(tablet, "t1")):
        await harness.write(set_string(turn, 1, 600.0))
        waits = 0

        async def sleep(_seconds: float) -> None:
            nonlocal waits
            waits += 1
            if waits == 5:
                await harness.write(("DEL", turn))

        store = TabletStore(
            harness.keyspace,
            patience=RetryLimits(),
            sleep=sleep,
            chance=lambda: 0.5,
            new_store_id=lambda: "store",
        )
        outcome = applied(await store.apply(change))
        assert (waits, outcome.tries) == (5, 1)


async def test_waiting_for_a_lost_turn_is_bounded(harness: Harness) -> None:
    table = await table_of(harness, 3)
    await harness.write(set_string(TableKeys(table).lock, 1, 600.0))
    waits = 0

    async def sleep(_seconds: float) -> None:
        nonlocal waits
        waits += 1

    store = TabletStore(
        FlakyKeyspace(harness.keyspace),
        patience=RetryLimits(),
        sleep=sleep,
        chance=lambda: 0.5,
        new_store_id=lambda: "store",
    )
    applied(await store.apply(in_one(harness, table, "b", 1)))
    assert waits == 150
