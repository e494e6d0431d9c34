"""Long lives of splits, merges, requests and appends together: no row is lost or doubled."""

from __future__ import annotations

import asyncio
import random

import pytest

from common.metadata.changes import AbandonOperation, Applied
from common.model.outcome import AttemptEnd
from common.model.tablet import PLUS_INFINITY
from common.wire import Assignment
from tests.support.operation_shell import Land, fail, finish, key, work
from tests.support.request_shell import Shell, run

pytestmark = pytest.mark.property
STEPS = 50
REQUESTS_MAX = 4


class Life:
    """One life: what happens is drawn, what holds is checked."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.land = Land()
        self.requests: list[str] = []
        self.operations = 0

    async def step(self, it: Shell) -> None:
        """Let one thing happen."""
        chances = ("append", "append", "split", "merge", "abandon", "ask", "take", "end", "end")
        match self.dice.choice(chances):
            case "append":
                keys = [self.dice.randint(1, 200) for _ in range(self.dice.randint(1, 5))]
                await self.land.append(*keys, size_bytes=self.dice.choice((10, 100, 1000)))
            case "split":
                await self.split()
            case "merge":
                await self.merge()
            case "abandon":
                await self.abandon()
            case "ask" if len(self.requests) < REQUESTS_MAX:
                self.requests.append(f"r{len(self.requests)}")
                await self.land.submit(self.requests[-1])
            case "take":
                await it.take(wait_max_s=0.01)
            case "end" if it.held:
                await self.end(it, self.dice.choice(it.held))
        await asyncio.sleep(self.dice.choice((0.0, 0.002)))

    async def split(self) -> None:
        """Ask for a split somewhere; it may be refused."""
        at = self.dice.randint(1, 200)
        ends = [end for end in await self.land.ends() if end >= bytes([at])]
        self.operations += 1
        await self.land.begin_split(at, ends[0], f"op{self.operations}")

    async def merge(self) -> None:
        """Ask for a merge of two neighbours; it may be refused."""
        ends = await self.land.ends()
        if len(ends) > 1:
            left = self.dice.randrange(len(ends) - 1)
            self.operations += 1
            await self.land.begin_merge(ends[left], ends[left + 1], f"op{self.operations}")

    async def abandon(self) -> None:
        """Give up what is under way somewhere, seldom."""
        operating = await self.land.operating()
        if operating and self.dice.random() < 0.3:
            operation = self.dice.choice(operating).operation
            assert operation is not None
            name = operation.operation_id
            own = [each.id for each in operating if each.operation == operation]
            change = AbandonOperation(tablets=tuple(own), operation=name)
            assert isinstance(await self.land.store.apply(change), Applied)

    async def end(self, it: Shell, taken: Assignment) -> None:
        """End a job, well or badly."""
        match self.dice.choice(("commit", "commit", "commit", "fail", "lose")):
            case "commit":
                await finish(self.land, it, taken)
            case "fail":
                await fail(it, taken)
            case "lose":
                it.report(taken, AttemptEnd.LOST)

    async def rests(self) -> bool:
        """Return whether nothing is left to do, time passing meanwhile."""
        self.land.clock.advance(5)
        free = await self.land.is_free() and await self.land.is_clean()
        for request in self.requests:
            free = free and (await self.land.request(request)).state.ended
        return free


@pytest.mark.parametrize("seed", range(12))
def test_splits_and_merges_lose_no_row_over_long_lives(seed: int) -> None:
    async def story() -> None:
        life = Life(seed)
        await life.land.found()
        for _ in range(2):
            async with life.land.coordinator() as it:
                for _ in range(STEPS):
                    await life.step(it)
                    await life.land.check()
        async with life.land.coordinator() as it:
            await work(life.land, it, life.rests)
            await life.land.check()
            end = next(each for each in await life.land.ends() if each >= key(101))
            if end != key(101):
                assert isinstance(await life.land.begin_split(101, end, "last"), Applied)
            await work(life.land, it, life.rests)
            await life.land.check()
        ends = await life.land.ends()
        assert key(101) in ends
        assert ends[-1] == PLUS_INFINITY

    run(story())
