"""Long lives of requests and system jobs together: what must hold after every step."""

import asyncio
import random

import pytest

from common.metadata.changes import CancelRange
from common.model.job import Kind
from common.model.outcome import AttemptEnd
from common.model.request import KeyRange, RequestState
from common.model.tablet import Tablet
from common.wire import Assignment
from tests.support.request_shell import (
    ENDS,
    SPLITS,
    Cluster,
    Shell,
    cancelling,
    commit_of,
    ended,
    run,
)

pytestmark = pytest.mark.property
RANGES = (KeyRange(), KeyRange(SPLITS[0] + b"\x01"), KeyRange(until=SPLITS[1]))
STEPS = 40
REQUESTS_MAX = 6


def broken(tablet: Tablet) -> str | None:
    """Return which rule a tablet breaks, or None."""
    selection = tablet.selection
    if selection is not None and not selection.files:
        return "an empty selection"
    if selection is not None and not set(selection.files) <= tablet.files.keys():
        return "a selected file is gone"
    if selection is not None and tablet.waiting:
        return "a marker beside a selection"
    for entry in tablet.running.values():
        if entry.request is None:
            continue
        if selection is None or selection.request != entry.request:
            return f"a job of {entry.request} without its selection"
        if not set(entry.inputs) <= set(selection.files):
            return f"a job of {entry.request} beyond its selection"
    return breaks_a_hold(tablet)


def breaks_a_hold(tablet: Tablet) -> str | None:
    """Return which SYSTEM job holds a selected file, or None."""
    selected = set() if tablet.selection is None else set(tablet.selection.files)
    for attempt, entry in tablet.running.items():
        if entry.kind is Kind.SYSTEM and selected.intersection(entry.inputs):
            return f"{tablet.id}: {attempt} holds {sorted(selected.intersection(entry.inputs))}"
    return None


class Life:
    """One life: what happens is drawn, what holds is checked."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.cluster = Cluster()
        self.requests: list[str] = []
        self.files = 0

    async def step(self, it: Shell) -> None:
        """Let one thing happen."""
        what = self.dice.choice(("add", "ask", "take", "take", "end", "end", "back", "later"))
        match what:
            case "add":
                await self.add()
            case "ask" if len(self.requests) < REQUESTS_MAX:
                self.requests.append(f"r{len(self.requests)}")
                await self.cluster.submit(self.requests[-1], range=self.dice.choice(RANGES))
            case "take":
                await it.take(wait_max_s=0.01)
            case "end" if it.held:
                await self.end(it, self.dice.choice(it.held))
            case "back" if self.requests:
                await self.take_back(self.dice.choice(self.requests))
            case "later":
                self.cluster.clock.advance(self.dice.choice((1, 5, 130)))
            case _:
                pass

    async def add(self) -> None:
        names = [f"n{self.files + number}" for number in range(self.dice.randint(1, 4))]
        self.files += len(names)
        size_bytes = self.dice.choice((50, 100, 400))
        await self.cluster.add(self.dice.choice(ENDS), *names, size_bytes=size_bytes)

    async def end(self, it: Shell, taken: Assignment) -> None:
        """Commit or fail a job, unless it was taken back."""
        tablet = await self.cluster.tablet(taken.job.tablet.end)
        if taken.reservation.attempt not in tablet.running:
            it.report(taken, AttemptEnd.CANCELLED, "it was taken back")
        elif self.dice.random() < 0.2:
            it.report(taken, AttemptEnd.FAILED, "no luck")
        else:
            await it.commit(taken)

    async def take_back(self, request: str) -> None:
        """Cancel a request, or its part in the middle, if it is still active."""
        if (await self.cluster.request(request)).state is not RequestState.ACTIVE:
            return
        part = KeyRange(SPLITS[0] + b"\x00", SPLITS[1] + b"\x00")
        # It may end meanwhile: then the store refuses.
        if self.dice.random() < 0.5:
            await self.cluster.store.apply(cancelling(request))
        else:
            change = CancelRange(table="t1", request=request, range=part)
            await self.cluster.store.apply(change)

    async def check(self) -> None:
        for tablet in await self.cluster.tablets():
            assert broken(tablet) is None, (broken(tablet), tablet)


@pytest.mark.parametrize("seed", range(6))
def test_requests_keep_their_promises_over_long_lives(seed: int) -> None:
    async def story() -> None:
        life = Life(seed)
        await life.cluster.create()
        for _ in range(3):
            async with life.cluster.coordinator() as it:
                for _ in range(STEPS):
                    await life.step(it)
                    await asyncio.sleep(life.dice.choice((0, 0, 0.002)))
                    await life.check()
                held = list(it.held)
            # What the last coordinator's compactor held goes on without it.
            for taken in held:
                await life.cluster.store.apply(commit_of(taken))
        async with life.cluster.coordinator() as it:
            await it.work(*life.requests)
            for request in life.requests:
                await ended(life.cluster, request)
            await life.check()

    run(story())
