"""What Python's garbage collector need not look at again.

A service loads some 300,000 objects before its first call, nearly all for good. A collection
of the oldest generation visits each of them and finds nothing: tens of milliseconds in which
no turn is taken, and a third of the time of a scan that reads small records.

A coordinator then learns of work in hundreds of thousands of tablets: millions of objects that hold
no cycles, so they end without a collection. One of the oldest generation visits them all, half a
second for 300,000 tablets, and Python begins one whenever their number has grown by a quarter.
"""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@cache
def ignore_what_is_loaded() -> None:
    """Collect once, then leave all objects that are alive now out of later collections.

    Counts once per process, however often it is called. Call it when everything is imported and
    wired: what is alive then and becomes part of a cycle of garbage later is never freed.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def growth_ignored() -> Iterator[None]:
    """Collect the oldest generation not because it grows, as long as this lasts.

    For work that holds millions of values for a while, in a process that answers others meanwhile.
    """
    if not _Growth.ignored:
        _Growth.thresholds = gc.get_threshold()
        ignore_growth()
    _Growth.ignored += 1
    try:
        yield
    finally:
        _Growth.ignored -= 1
        if not _Growth.ignored:
            gc.set_threshold(*_Growth.thresholds)


class _Growth:
    """Who ignores growth now, and what held before."""

    ignored = 0
    thresholds = (700, 10, 10)


OLDEST_EVERY_S = 60.0
OLDEST_SHARE_MAX = 0.001
"""Of the time that collections of the oldest generation may take: 500 s after one of half a second,
so that they are no matter of the slowest one percent of turns."""
_NEVER = (1 << 31) - 1


def ignore_growth() -> None:
    """Collect the oldest generation no longer because it has grown, only when somebody asks."""
    gc.set_threshold(*gc.get_threshold()[:2], _NEVER)


async def collect_oldest_forever(every_s: float = OLDEST_EVERY_S) -> None:
    """Collect the oldest generation now and then, and never because it has grown.

    The younger generations are collected as before, in milliseconds. Cycles of garbage that were
    old already wait for the next collection; until then they cost memory.

    Args:
        every_s: Pause between two collections, if they are short.
    """
    ignore_growth()
    loop, pause_s = asyncio.get_running_loop(), every_s
    while True:
        await asyncio.sleep(pause_s)
        begun_s = loop.time()
        gc.collect()
        pause_s = pause_after(loop.time() - begun_s, every_s)


def pause_after(took_s: float, every_s: float) -> float:
    """Return how long to wait after a collection."""
    return max(every_s, took_s / OLDEST_SHARE_MAX)
