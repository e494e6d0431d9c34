"""Splits and merges to their end, through the shell over the memory store."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from common.errors import UnavailableError
from common.metadata.changes import (
    AbandonOperation,
    Applied,
    Change,
    DropTable,
    EndOperation,
    Outcome,
    StepOperation,
)
from common.model.job import Kind
from common.model.request import RequestState
from common.model.tablet import PLUS_INFINITY, Tablet, TabletId
from coordinator.context import Generations
from tests.support.operation_shell import Land, fail, finish, hangs_at, key, work
from tests.support.patience import PATIENCE_S
from tests.support.request_shell import Shell, ended, run, until

pytestmark = pytest.mark.unit

LAST = PLUS_INFINITY


async def land_of(*files: tuple[int, ...], splits: tuple[bytes, ...] = ()) -> Land:
    land = Land()
    await land.found(splits)
    for keys in files:
        assert await land.append(*keys)
    return land


def test_a_split_that_a_user_has_begun_comes_to_its_end() -> None:
    async def story() -> None:
        land = await land_of((1, 5, 9), (2, 8), (1, 2), (8, 9))
        async with land.coordinator() as it:
            assert isinstance(await land.begin_split(5, LAST), Applied)
            taken = await it.take()
            assert taken is not None
            assert (taken.job.kind, taken.job.cuts) == (Kind.SYSTEM, (key(5),))
            assert len(taken.inputs) == 2, "only what crosses, and all of it in one job"
            await finish(land, it, taken)
            await until(land.is_free)
            assert await land.ends() == [key(5), LAST]
            await land.check()

    run(story())


def test_nothing_crosses_no_job_is_needed() -> None:
    async def story() -> None:
        land = await land_of((1, 2), (8, 9))
        async with land.coordinator():
            await land.begin_split(5, LAST)
            await until(land.is_free)
            assert await land.ends() == [key(5), LAST]
            await land.begin_merge(key(5), LAST, "op2")
            await until(land.is_free)
            assert await land.ends() == [LAST]
            await land.check()

    run(story())


def test_a_job_under_way_is_waited_for_and_then_cut() -> None:
    async def story() -> None:
        land = await land_of((1, 2), (8, 9), (3, 4), (6, 7))
        async with land.coordinator() as it:
            taken = await it.take()
            assert taken is not None
            await land.begin_split(5, LAST)
            waits = "joins files of both sides"
            await until(lambda: told(it, waits))
            assert await it.take(wait_max_s=0.05) is None
            await finish(land, it, taken)
            cuts = await it.take()
            assert cuts is not None
            assert cuts.job.cuts == (key(5),)
            await until(lambda: told(it, "files cross the cut"))
            await finish(land, it, cuts)
            await until(land.is_free)
            assert await land.ends() == [key(5), LAST]
            await land.check()

    run(story())


async def told(it: Shell, words: str) -> bool:
    tablet = TabletId("t1", LAST)
    sentences = it.parts.explain(tablet, 0.0).sentences
    return any(words in sentence for sentence in sentences)


def test_a_merge_waits_for_the_jobs_of_both_tablets() -> None:
    async def story() -> None:
        files = [(1, 2), (2, 3), (3, 4), (4,), (8, 9), (7, 8), (8,), (9,)]
        land = await land_of(*files, splits=(key(5),))
        async with land.coordinator() as it:
            left, right = await it.take(), await it.take()
            assert left is not None
            assert right is not None
            assert left.job.tablet != right.job.tablet
            await land.begin_merge(key(5), LAST)
            await until(lambda: told(it, "a merge at 05 has been running"))
            assert await it.take(wait_max_s=0.05) is None
            await finish(land, it, right)
            assert await land.append(1, 9)
            for _ in range(5):  # So that the right tablet does not happen to be read later.
                await it.take(wait_max_s=0.02)
            await finish(land, it, left)
            await until(land.is_free)
            assert await land.ends() == [LAST]
            await land.check()

    run(story())


STEPS = [
    ("split", StepOperation, 0),
    ("split", StepOperation, 1),
    ("split", EndOperation, 0),
    ("merge", StepOperation, 0),
    ("merge", EndOperation, 0),
    ("abandon", AbandonOperation, 0),
]


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize(("what", "change", "number"), STEPS)
def test_a_coordinator_that_dies_at_any_step_is_followed_by_another(
    what: str, change: type, number: int, applied: bool
) -> None:
    async def story() -> None:
        splits = (key(5),) if what == "merge" else ()
        land = await land_of((1, 9), (2, 8), (3,), splits=splits)
        there, heal = hangs_at(land, change, number, applied=applied)
        async with land.coordinator() as it:
            if what == "merge":
                await land.begin_merge(key(5), LAST)
            else:
                await land.begin_split(5, LAST)
            if what == "abandon":
                land.clock.advance(3601)
                it.parts.scanner.ask(TabletId("t1", LAST))
                await asyncio.wait_for(there.wait(), PATIENCE_S)
            else:
                await work(land, it, lambda: is_set(there))
        heal()
        assert await land.append(4, 6)
        async with land.coordinator() as it:
            await work(land, it, land.is_free)
        wanted = {"split": [key(5), LAST], "merge": [LAST], "abandon": [LAST]}
        assert await land.ends() == wanted[what]
        await land.check()

    run(story())


async def is_set(event: asyncio.Event) -> bool:
    return event.is_set()


def test_a_coordinator_that_dies_again_and_again_brings_a_split_to_its_end() -> None:
    async def story() -> None:
        land = await land_of(*[(number, 10 - number) for number in range(1, 5)])
        await land.begin_split(5, LAST)
        for life in range(80):
            async with land.coordinator() as it:
                await asyncio.sleep(0.002 * (life % 5))
                taken = await it.take(wait_max_s=0.01)
                if taken is not None and life % 3:
                    await finish(land, it, taken)
                for _ in range(30):  # In one leap it would look as if nobody could have beaten.
                    land.clock.advance(1)
                    await it.beat()
                await asyncio.sleep(0.002 * (life % 3))
            await land.check()
            if await land.is_free():
                break
        assert await land.ends() == [key(5), LAST]

    run(story())


def test_a_quarantined_job_ends_the_split_and_other_jobs_go_on() -> None:
    async def story() -> None:
        land = await land_of((1, 9), (2, 8), (3, 7), (4, 6), (1, 2))
        async with land.coordinator() as it:
            await land.begin_split(5, LAST)
            async with asyncio.timeout(PATIENCE_S):
                while await land.operating():
                    taken = await it.take(wait_max_s=0.02)
                    if taken is not None and taken.job.cuts:
                        await fail(it, taken)
                    elif taken is not None:
                        await finish(land, it, taken)
                    land.clock.advance(20)
            assert await land.ends() == [LAST]
            (tablet,) = await land.tablets()
            assert tablet.record.abandoned_s > 0
            await until(lambda: told(it, "ago: quarantined, failed 5 times"))
            await work(land, it, lambda: merged(land))
            await land.check()

    async def merged(land: Land) -> bool:
        return len((await land.tablets())[0].files) == 1

    run(story())


def test_a_split_that_stands_still_is_abandoned_after_its_time() -> None:
    async def story() -> None:
        land = await land_of((1, 9))
        async with land.coordinator() as it:
            await land.begin_split(5, LAST)
            await until(lambda: told(it, "(begun because a user asked for it), at step cut"))
            land.clock.advance(3500)
            it.parts.scanner.ask(TabletId("t1", LAST))
            await until(lambda: told(it, "has been running for 3500 s"))
            assert await land.operating()
            land.clock.advance(101)
            it.parts.scanner.ask(TabletId("t1", LAST))
            await until(land.is_free)
            assert await land.ends() == [LAST]
            await until(lambda: told(it, "not finished after 3600 s"))

    run(story())


def test_a_request_waits_for_a_split_and_is_done_in_both_halves() -> None:
    async def story() -> None:
        land = await land_of((1, 9), (2, 8))
        async with land.coordinator() as it:
            await land.begin_split(5, LAST)
            await land.submit("r1")
            await until(lambda: told(it, "has been running"))
            await work(land, it, land.is_free)
            assert not (await land.request("r1")).state.ended

            async def over() -> bool:
                return (await land.request("r1")).state.ended

            await work(land, it, over)
            assert await ended(land, "r1") is RequestState.DONE
            for tablet in await land.tablets():
                assert {file.request for file in tablet.files.values()} == {"r1"}
            await land.check()

    run(story())


def test_a_table_is_dropped_though_an_operation_is_under_way() -> None:
    async def story() -> None:
        land = await land_of((1, 9), (2, 8), splits=(key(20),))
        async with land.coordinator() as it:
            await land.begin_split(5, key(20))
            taken = await it.take()
            assert taken is not None
            await land.begin_merge(key(20), LAST, "op2")
            dropped = await land.store.apply(DropTable(table="t1", delete_files=True))
            assert isinstance(dropped, Applied)
            assert not await finish(land, it, taken)
            garbage = {entry.path for entry in await land.store.garbage("t1")}
            assert {"added-0.parquet", taken.reservation.output_path(0)} <= garbage
            assert await land.store.tablet_ids("t1") == []

            async def forgotten() -> bool:
                return not await told(it, "has been running")

            await until(forgotten)
            names = list(land.store.keyspace.values.keys())
            left = [name for name in names if ":tablet:" in name]
            assert left == []

    run(story())


@pytest.mark.parametrize("silent", [{StepOperation}, {EndOperation}, {StepOperation, EndOperation}])
def test_a_store_that_is_silent_for_a_step_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, silent: set[type]
) -> None:
    async def story() -> None:
        land = await land_of((1, 2), (8, 9))
        apply, read, unheard = land.store.apply, land.store.tablet, [True, True]
        monkeypatch.setattr("coordinator.split_merge.RETRY_S", 0.01)

        async def sometimes(change: Change) -> Outcome:
            if type(change) in silent:
                silent.remove(type(change))
                raise UnavailableError("no answer")
            return await apply(change)

        async def seldom(tablet: TabletId) -> Tablet | None:
            if unheard:
                unheard.pop()
                raise UnavailableError("no answer")
            return await read(tablet)

        await land.begin_split(5, LAST)
        monkeypatch.setattr(land.store, "apply", sometimes)
        monkeypatch.setattr(land.store, "tablet", seldom)
        async with land.coordinator():
            await until(land.is_free)
        assert await land.ends() == [key(5), LAST]
        assert (silent, unheard) == (set(), [])
        assert "operation waits for the store" in [event for event, _ in land.logged]

    run(story())


def test_nothing_moves_on_while_the_store_is_behind_its_files() -> None:
    async def story() -> None:
        land = await land_of((1, 2), (8, 9))
        await land.begin_split(5, LAST)
        async with land.coordinator() as it:
            steps = it.parts.operations._steps
            behind = Behind(land.store, it.parts.context.log)
            steps._context = replace(it.parts.context, generations=behind)
            await until(lambda: told(it, "the store has gone back"))
            assert await land.operating()
            behind.reason = None
            it.parts.scanner.ask(TabletId("t1", LAST))
            await until(land.is_free)

    run(story())


class Behind(Generations):
    """Tables of a store that was restored from an old copy."""

    reason: str | None = "the store has gone back"

    async def refusal(self, table: str) -> str | None:
        """Return why a table is read-only."""
        assert table == "t1"
        return self.reason
