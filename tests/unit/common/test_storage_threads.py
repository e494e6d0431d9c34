"""A storage that stands still takes some threads, and holds up its own locations only."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine

import pytest

from common.errors import UnavailableError
from common.storage_threads import StorageThreads
from tests.support.patience import PATIENCE_S

HELD, OTHER = "file:///mnt/gone", "file:///data"
SOON_S = 0.05


def hung(release: threading.Event) -> Callable[[], str]:
    def work() -> str:
        assert release.wait(PATIENCE_S)
        return "late"

    return work


def play(story: Coroutine[object, object, None]) -> None:
    """Run a story; one that does not end fails."""
    asyncio.run(asyncio.wait_for(story, PATIENCE_S))


async def until_answered(threads: StorageThreads) -> None:
    """Wait until the location is asked again."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                assert await threads.run(HELD, lambda: "again") == "again"
            except UnavailableError:
                await asyncio.sleep(0.01)
            else:
                return


def test_a_location_that_stands_still_gets_no_more_work_until_it_answers() -> None:
    release = threading.Event()

    async def story() -> None:
        threads = StorageThreads(threads=2, deadline_s=2.0)
        with pytest.raises(UnavailableError, match=r"mnt/gone has not answered for 2 s; is it"):
            await threads.run(HELD, hung(release))
        for _ in range(5):
            with pytest.raises(UnavailableError, match="has not answered an operation"):
                await threads.run(HELD, hung(release))
            assert await threads.run(OTHER, lambda: "at once") == "at once"
        release.set()
        await until_answered(threads)

    play(story())


def test_errors_come_as_they_are() -> None:
    def work() -> None:
        raise TimeoutError("a client of an object store gave up")

    async def story() -> None:
        threads = StorageThreads(deadline_s=PATIENCE_S)
        for _ in range(2):
            with pytest.raises(TimeoutError, match="gave up"):
                await threads.run(HELD, work)

    play(story())


def test_a_stuck_location_frees_its_places_but_gets_no_more_threads() -> None:
    release, begun = threading.Event(), list[str]()

    async def story() -> None:
        threads = StorageThreads(threads=2, deadline_s=PATIENCE_S, slow_s=SOON_S)
        stuck = [asyncio.create_task(threads.run(HELD, hung(release))) for _ in range(2)]
        waiting = asyncio.create_task(threads.run(HELD, lambda: begun.append("third")))
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(5):
                assert await threads.run(OTHER, lambda: "at once") == "at once"
        assert begun == []
        release.set()
        assert await asyncio.gather(*stuck) == ["late", "late"]
        await waiting
        assert begun == ["third"]

    play(story())


def test_work_that_waits_for_what_stands_still_is_refused_with_it() -> None:
    release, begun = threading.Event(), list[str]()

    async def story() -> None:
        threads = StorageThreads(threads=1, deadline_s=SOON_S)
        rows = threads.with_threads(1)
        work = [
            threads.run(HELD, hung(release)),
            threads.run(HELD, lambda: begun.append("waited")),
            rows.within(PATIENCE_S).run(HELD, hung(release)),
            rows.within(PATIENCE_S).run(HELD, lambda: begun.append("waited for rows")),
        ]
        tasks = [asyncio.create_task(each) for each in work]
        for each in (tasks[0], tasks[1], tasks[3]):
            with pytest.raises(UnavailableError, match="mnt/gone has not answered for"):
                await each
        with pytest.raises(UnavailableError, match="has not answered an operation"):
            await rows.run(HELD, hung(release))
        release.set()
        assert await tasks[2] == "late"
        await until_answered(rows)
        assert begun == []

    play(story())


def test_threads_serve_locations_in_turn() -> None:
    release, order = threading.Event(), list[str]()

    async def story() -> None:
        threads = StorageThreads(threads=1, deadline_s=PATIENCE_S, slow_s=PATIENCE_S)
        first = asyncio.create_task(threads.run(HELD, hung(release)))
        places = [HELD, HELD, HELD, OTHER]
        rest = [asyncio.create_task(threads.run(place, order.append, place)) for place in places]
        await asyncio.sleep(0)
        release.set()
        await asyncio.gather(first, *rest)

    play(story())
    assert order.index(OTHER) <= 1


def test_long_steps_do_not_let_others_wait_for_ever() -> None:
    release = threading.Event()

    async def story() -> None:
        threads = StorageThreads(threads=1, deadline_s=SOON_S, slow_s=SOON_S)
        long = asyncio.create_task(threads.within(PATIENCE_S).run(HELD, hung(release)))
        await asyncio.sleep(0)
        with pytest.raises(UnavailableError, match="1 operations on it are running"):
            await threads.run(HELD, lambda: "not begun")
        release.set()
        assert await long == "late"
        assert await threads.run(HELD, lambda: "at once") == "at once"

    play(story())


def test_work_of_a_caller_who_has_left_counts_until_it_comes_back() -> None:
    release = threading.Event()

    async def story() -> None:
        threads = StorageThreads(threads=1, deadline_s=SOON_S)
        caller = asyncio.create_task(threads.run(HELD, hung(release)))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        with pytest.raises(UnavailableError):
            await threads.run(HELD, lambda: "behind it")
        release.set()
        await until_answered(threads)

    play(story())


def test_work_that_waits_for_a_caller_who_has_left_is_not_begun() -> None:
    release, begun = threading.Event(), list[str]()

    async def story() -> None:
        threads = StorageThreads(threads=1, deadline_s=PATIENCE_S, slow_s=PATIENCE_S)
        first = asyncio.create_task(threads.run(HELD, hung(release)))
        second = asyncio.create_task(threads.run(HELD, lambda: begun.append("second")))
        await asyncio.sleep(0)
        second.cancel()
        release.set()
        assert await first == "late"
        assert await threads.run(HELD, lambda: "at once") == "at once"
        assert begun == []

    play(story())


def test_a_process_ends_although_storage_stands_still() -> None:
    program = """
import asyncio, threading
from common.errors import UnavailableError
from common.storage_threads import StorageThreads

async def story():
    threads = StorageThreads(deadline_s=0.01)
    try:
        await threads.run("file:///mnt/gone", threading.Event().wait)
    except UnavailableError:
        print("refused", flush=True)
    threads.close()
    try:
        await threads.run("file:///data", print)
    except UnavailableError as error:
        print(error, flush=True)

asyncio.run(story())
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stdout == "refused\nno thread can be started: the service is shutting down\n"
