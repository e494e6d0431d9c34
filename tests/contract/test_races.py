"""Many processes at once: one reservation wins, nothing is lost or doubled."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from common.metadata.changes import Applied, Refused
from tests.support.store_harness import Harness, applied, commit, file, release, reserve

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("round_number", range(5))
async def test_of_sixteen_reservations_exactly_one_wins(
    harness: Harness, round_number: int
) -> None:
    tablet = await harness.tablet_with("a", "b", "c")
    stores = [harness.another() for _ in range(16)]
    outcomes = await asyncio.gather(
        *(
            store.apply(reserve(tablet, f"t{number}", "ab"[number % 2], "c"))
            for number, store in enumerate(stores)
        )
    )
    winners = [outcome for outcome in outcomes if isinstance(outcome, Applied)]
    losers = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
    assert (len(winners), len(losers)) == (1, 15), round_number
    assert {loser.code for loser in losers} == {"reserved"}
    found = await harness.store.tablet(tablet)
    assert found is not None
    assert len(found.running) == found.record.running == 1


async def test_two_coordinators_release_and_commit_once(harness: Harness) -> None:
    for _ in range(10):
        tablet = await harness.tablet_with("a", "b")
        applied(await harness.apply(reserve(tablet, "t1", "a", "b")))
        await asyncio.gather(
            *(harness.another().apply(release(tablet, "t1")) for _ in range(2)),
            harness.another().apply(commit(tablet, "t1")),
        )
        found = await harness.store.tablet(tablet)
        assert found is not None
        assert found.running == {}
        assert len(await harness.store.history(tablet.table)) == 1
        outcome = await harness.store.outcome(tablet.table, "t1")
        assert outcome is not None
        committed = outcome.end.value == "committed"
        assert ("a" in found.files) is not committed
        assert found.record.failures == (0 if committed else 1)


async def test_adders_committers_and_reservers_together(harness: Harness) -> None:
    tablet = await harness.tablet_with()

    async def adder(name: str) -> None:
        for number in range(15):
            applied(await harness.add(tablet, file(f"{name}{number}", rows=1)))

    async def worker(name: str) -> int:
        store = harness.another()
        done = 0
        for number in range(15):
            found = await store.tablet(tablet)
            assert found is not None
            free = sorted(set(found.files) - found.reserved_files)[:2]
            attempt = f"{name}{number}"
            if len(free) < 2:
                await asyncio.sleep(0)
                continue
            if not isinstance(await store.apply(reserve(tablet, attempt, *free)), Applied):
                continue
            rows = sum(found.files[path].rows for path in free)
            output = file(f"out/{attempt}-0.parquet", rows=rows)
            change = commit(tablet, attempt)
            applied(await store.apply(replace(change, outputs=(output,))))
            done += 1
        return done

    await asyncio.gather(adder("a"), adder("b"), worker("x"), worker("y"), worker("z"))
    found = await harness.store.tablet(tablet)
    assert found is not None
    assert sum(each.rows for each in found.files.values()) == 30
    assert found.record.files == len(found.files)
    assert found.record.size_bytes == sum(each.size_bytes for each in found.files.values())
    garbage = {each.path for each in await harness.store.garbage(tablet.table)}
    assert not garbage.intersection(found.files)
