"""A request over many tablets, while coordinators and compactors die at random."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from common.metadata.changes import AddFiles, Applied
from common.model.file import DataFile
from common.model.request import RequestState
from common.model.tablet import PLUS_INFINITY
from common.runtime import call_id
from tests.support.mortal import COMPACTOR, COORDINATOR, MortalCluster

pytestmark = [pytest.mark.property, pytest.mark.slow]

FILES = 2
DEATHS = 25
CHANGES = 4
"""About so many changes of each tablet the store sees; deaths are spread over them."""
TELL_MAX_S = 400.0


def key(number: int) -> bytes:
    return b"%05d" % number


async def filled(cluster: MortalCluster, tablets: int) -> None:
    """Create a table of tablets with two files in each."""
    await cluster.create(splits=tuple(key(number) for number in range(1, tablets)))
    for number in range(tablets):
        end = key(number + 1) if number + 1 < tablets else PLUS_INFINITY
        files = tuple(
            DataFile(
                path=f"{number}-{index}.parquet",
                size_bytes=100,
                rows=10,
                key_min=key(number) + b"a",
                key_max=key(number) + b"b",
            )
            for index in range(FILES)
        )
        change = AddFiles(table="t1", call=call_id(cluster.clock), files={end: files})
        outcome = await cluster.store.apply(change)
        assert isinstance(outcome, Applied), outcome


def drawn(seed: int, tablets: int) -> dict[int, tuple[str, ...]]:
    """Return who dies at which change after the table was filled."""
    dice = random.Random(seed)
    fates = ((COORDINATOR,), (COMPACTOR,), (COORDINATOR, COMPACTOR))
    places = dice.sample(range(tablets + 5, tablets + CHANGES * tablets), DEATHS)
    return {at: dice.choice(fates) for at in places}


async def over(cluster: MortalCluster, request: str) -> bool:
    return (await cluster.request(request)).state.ended and await cluster.is_clean()


@pytest.mark.parametrize("tablets", [250, pytest.param(1000, marks=pytest.mark.long)])
def test_every_tablet_is_compacted_once_whoever_dies(tablets: int) -> None:
    async def story() -> None:
        cluster = MortalCluster(deaths=drawn(36, tablets), takes_at_once=40)
        await filled(cluster, tablets)
        await cluster.submit("r1")
        async with cluster.living(), asyncio.timeout(TELL_MAX_S):
            while not await over(cluster, "r1"):
                await cluster.pulse()
        assert (await cluster.request("r1")).state is RequestState.DONE
        assert cluster.started > 10, "not enough coordinators have died"
        assert cluster.compactors > 10, "not enough compactors have died"
        assert set((cluster.handed - cluster.dropped).values()) == {1}

        files = Counter(
            (len(tablet.files), *{file.request for file in tablet.files.values()})
            for tablet in await cluster.tablets()
        )
        assert files == {(1, "r1"): tablets}
        history = await cluster.store.history("t1", 10 * tablets)
        assert len([entry for entry in history if entry.end == "committed"]) == tablets

    asyncio.run(story())
