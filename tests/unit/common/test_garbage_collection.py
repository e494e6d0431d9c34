"""What a process has loaded is left out of collections; the oldest objects are seldom looked at."""

import subprocess
import sys

import pytest

from common.runtime import pause_after
from tests.support.patience import PATIENCE_S

PROGRAM = """
import gc
from common.runtime import ignore_what_is_loaded

ignore_what_is_loaded()
loaded = gc.get_freeze_count()
later = [[] for _ in range(1_000)]
ignore_what_is_loaded()
print(loaded > 1_000, gc.get_freeze_count() == loaded, len(gc.get_objects()) >= len(later))
"""
"""In a process of its own: pytest has frozen objects itself."""


def test_what_is_loaded_at_the_first_call_is_ignored_and_nothing_that_comes_later() -> None:
    said = subprocess.check_output([sys.executable, "-c", PROGRAM], text=True)

    assert said.split() == ["True", "True", "True"]


OLDEST = """
import asyncio, gc, weakref
from common.runtime import collect_oldest_forever

class Node:
    def __init__(self):
        self.own = self

def oldest():
    return gc.get_stats()[2]["collections"]

async def grow():
    loop = asyncio.create_task(collect_oldest_forever(every_s=3600.0))
    await asyncio.sleep(0)
    before = oldest()
    kept = [[number] for number in range(500_000)]
    young = gc.get_stats()[0]["collections"]
    loop.cancel()
    return oldest() == before, young > 100, len(kept)

async def end():
    node = Node()
    gone = weakref.ref(node)
    gc.collect(1)  # It is old from now on.
    del node
    gc.collect(1)
    alive = gone() is not None
    loop = asyncio.create_task(collect_oldest_forever(every_s=0.001))
    while gone() is not None:
        await asyncio.sleep(0.001)
    loop.cancel()
    return alive

print(*asyncio.run(grow()), asyncio.run(end()))
"""


def test_the_oldest_generation_is_collected_by_the_clock_and_not_for_its_growth() -> None:
    said = subprocess.check_output([sys.executable, "-c", OLDEST], text=True, timeout=PATIENCE_S)

    assert said.split() == ["True", "True", "500000", "True"]


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.0, 60.0), (0.05, 60.0), (0.5, 500.0)])
def test_long_collections_are_seldom(took_s: float, pause_s: float) -> None:
    assert pause_after(took_s, 60.0) == pytest.approx(pause_s)
