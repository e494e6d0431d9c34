"""The Spark engine with tasks in the driver itself: all but RayDP, in seconds.

One engine serves all tests: a start takes longer than most of them. A test that loses the driver
leaves its successor to the next one.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from common.errors import (
    AttemptCancelledError,
    ConfigError,
    EngineDiedError,
    EngineRestartedError,
    InputError,
    RewriteError,
)
from compactor.core import RewriteProgress
from compactor.spark import driver_protocol
from compactor.spark.child import SIGN_INTERVAL_S
from compactor.spark.driver_protocol import DriverSettings, EngineKind
from compactor.spark.engine import SparkEngine
from neve.local.machine import find_java
from tests.support.patience import PATIENCE_S, SERVICE_S

pytestmark = [pytest.mark.slow]

ADD = {"do": "add", "count": 1000}
SUM = 500_500


@pytest.fixture(autouse=True)
def java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the machine's Java or the wheel's."""
    monkeypatch.setenv("JAVA_HOME", str(find_java(os.environ).home))


def settings(tmp_path: Path, **more: Any) -> DriverSettings:
    chosen = {"name": "c1", "engine": EngineKind.LOCAL, "work": "tests.support.spark_work:work"}
    return DriverSettings(**chosen | {"log_file": str(tmp_path / "driver.log")} | more)


def ignore(_: RewriteProgress) -> None:
    return


@dataclass(frozen=True, slots=True)
class Bench:
    """An engine that runs, the loop that it runs on, and the log of its driver."""

    engine: SparkEngine
    runner: asyncio.Runner
    log: Path

    def run(self, body: Callable[[SparkEngine], Awaitable[None]], starts: int = 0) -> str:
        """Run a test; return what the driver logged, after so many further starts of drivers."""
        before, begin = self.engine.starts, len(self.log.read_bytes())

        async def main() -> None:
            await body(self.engine)

        self.runner.run(main())
        assert self.engine.starts == before + starts
        return self.log.read_bytes()[begin:].decode()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("engine")
    before = set(psutil.Process().children(recursive=True))
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setenv("JAVA_HOME", str(find_java(os.environ).home))
        engine = SparkEngine(settings(folder))
        runner.run(engine.start())
        try:
            yield Bench(engine, runner, folder / "driver.log")
        finally:
            runner.run(engine.stop())
    assert set(psutil.Process().children(recursive=True)) <= before


async def sleeping(engine: SparkEngine, attempt: str) -> asyncio.Task[Any]:
    """Start an attempt that waits in a Spark task, and return when it does."""
    begun = asyncio.Event()
    work = engine.run_payload(attempt, {"do": "sleep", "for_s": 60}, lambda _: begun.set())
    task = asyncio.create_task(work)
    await begun.wait()
    await asyncio.sleep(1.0)
    return task


def jvm_of(engine: SparkEngine) -> psutil.Process:
    """Return the driver's Java process."""
    (jvm,) = psutil.Process(engine.pid).children()
    return jvm


async def heard_of(engine: SparkEngine) -> None:
    """Return when the driver has said something more."""
    heard = engine.health().signs
    while engine.health().signs == heard:
        await asyncio.sleep(0.05)


def test_grants_and_cancellations_reach_the_work_of_their_attempt(bench: Bench) -> None:
    async def body(engine: SparkEngine) -> None:
        begun = asyncio.Event()
        work = engine.run_payload("a", {"do": "valve"}, lambda _: begun.set())
        task = asyncio.create_task(work)
        await begun.wait()
        for bytes_s in (1e6, 2.5e6, None):
            await engine.grant("a", bytes_s)
            await engine.grant("another", 5.0)
        assert await task == {"granted": [1e6, 2.5e6, None]}

        begun.clear()
        task = asyncio.create_task(engine.run_payload("b", {"do": "valve"}, lambda _: begun.set()))
        await begun.wait()
        await engine.cancel("b")
        with pytest.raises(AttemptCancelledError):
            await task

    bench.run(body)


def test_every_way_of_a_job_uses_the_daemon_that_was_warmed_up(bench: Bench) -> None:
    async def body(engine: SparkEngine) -> None:
        found = await engine.run_payload("a", {"do": "daemons"}, ignore)
        assert found["plain"] == found["in_sql"]

    bench.run(body)


def test_a_driver_without_attempts_evaluates_expressions_so_that_no_job_is_the_first(
    bench: Bench,
) -> None:
    at_start = 1  # It loads libraries.

    async def body(engine: SparkEngine) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (await engine.run_payload("a", {"do": "own-jobs"}, ignore))["count"] == at_start:
                await asyncio.sleep(0.5)

    assert "not warmed up" not in bench.run(body)


def test_attempts_run_side_by_side_each_in_its_pool(bench: Bench) -> None:
    async def body(engine: SparkEngine) -> None:
        heard: list[RewriteProgress] = []
        alone = await engine.run_payload("a", ADD, heard.append)
        assert alone == {"sum": SUM, "pool": "slot-0"}
        assert heard == [RewriteProgress(fraction=1.0, rows_done=1000)]
        waiting = await sleeping(engine, "b")
        assert await engine.run_payload("c", ADD, ignore) == {"sum": SUM, "pool": "slot-1"}
        assert not waiting.done()
        await engine.cancel("b")
        with pytest.raises(AttemptCancelledError):
            await waiting
        assert (await engine.run_payload("d", ADD, ignore))["pool"] == "slot-0"

    bench.run(body)


def test_errors_keep_their_class(bench: Bench) -> None:
    async def body(engine: SparkEngine) -> None:
        with pytest.raises(InputError, match=r"a\.parquet is gone"):
            await engine.run_payload("a", {"do": "refuse"}, ignore)
        with pytest.raises(RewriteError, match="KeyError: 'no such thing'"):
            await engine.run_payload("b", {"do": "break"}, ignore)
        await engine.cancel("unknown")

    bench.run(body)


def test_a_dead_driver_fails_its_attempts_and_is_replaced(bench: Bench) -> None:
    async def body(engine: SparkEngine) -> None:
        first, second = await sleeping(engine, "a"), await sleeping(engine, "b")
        pid, starts = engine.pid, engine.starts
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            for task in (first, second):
                with pytest.raises(EngineDiedError, match=f"driver {pid} died"):
                    await task
        # A start returns with the next driver: a compactor takes jobs only after it.
        async with asyncio.timeout(SERVICE_S):
            while engine.starts == starts:
                with suppress(EngineDiedError):
                    await engine.start()
                    assert engine.starts == starts + 1
        assert (await engine.run_payload("c", ADD, ignore))["sum"] == SUM
        assert engine.pid != pid

    bench.run(body, starts=1)


@pytest.mark.parametrize(
    "busy",
    [
        pytest.param(True, id="under a job"),
        pytest.param(False, id="while idle", marks=pytest.mark.long),
    ],
)
def test_a_dead_jvm_takes_its_driver_along_at_once(bench: Bench, busy: bool) -> None:
    async def body(engine: SparkEngine) -> None:
        waiting = [await sleeping(engine, name) for name in "ab"[: 2 * busy]]
        pid = engine.pid
        jvm_of(engine).kill()
        async with asyncio.timeout(PATIENCE_S):
            for task in waiting:
                with pytest.raises(EngineDiedError, match=f"driver {pid} died"):
                    await task
            await engine.wait_down()
        assert (await engine.run_payload("c", ADD, ignore))["sum"] == SUM

    # Which of its threads was first to notice is chance.
    assert '"part": "spark driver", "event": ' in bench.run(body, starts=1)


@pytest.mark.long
def test_a_thread_that_fails_takes_its_driver_along(bench: Bench) -> None:
    async def body(engine: SparkEngine) -> None:
        waiting = await sleeping(engine, "a")
        # The same attempt twice: whoever reads orders refuses, and reads no more.
        with suppress(EngineDiedError):
            await engine._order(driver_protocol.Run("a", ADD))
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(EngineDiedError):
                await waiting
        assert (await engine.run_payload("b", ADD, ignore))["sum"] == SUM

    assert "attempt a runs already" in bench.run(body, starts=1)


@pytest.mark.long
@pytest.mark.parametrize("who", ["driver", "JVM"])
def test_a_frozen_process_says_nothing_and_is_gone_after_a_restart(bench: Bench, who: str) -> None:
    async def body(engine: SparkEngine) -> None:
        waiting = await sleeping(engine, "a")
        driver, jvm = psutil.Process(engine.pid), jvm_of(engine)
        async with asyncio.timeout(PATIENCE_S):
            await heard_of(engine)
            while "a" not in engine.health().busy:
                await heard_of(engine)
            (driver if who == "driver" else jvm).suspend()
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(3 * SIGN_INTERVAL_S):
                        await heard_of(engine)
                        continue
                break
            await engine.restart("nothing was heard of it")
            with pytest.raises(EngineRestartedError, match="nothing was heard"):
                await waiting
            assert not driver.is_running()
            while jvm.is_running():
                await asyncio.sleep(0.1)
        assert (await engine.run_payload("b", ADD, ignore))["sum"] == SUM

    bench.run(body, starts=1)


@pytest.mark.long
def test_a_lost_application_takes_its_driver_along(bench: Bench) -> None:
    async def body(engine: SparkEngine) -> None:
        with pytest.raises(EngineDiedError):
            await engine.run_payload("a", {"do": "lose"}, ignore)
        assert (await engine.run_payload("b", ADD, ignore))["sum"] == SUM

    bench.run(body, starts=1)


def test_cancelling_the_call_cancels_the_attempt(bench: Bench) -> None:
    async def body(engine: SparkEngine) -> None:
        waiting = await sleeping(engine, "a")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with asyncio.timeout(PATIENCE_S):
            while (await engine.run_payload("b", ADD, ignore))["pool"] != "slot-0":
                await asyncio.sleep(0.2)

    bench.run(body)


def test_a_driver_that_cannot_start_says_why(tmp_path: Path) -> None:
    # Spark of other tests may run under this process; ours must leave nothing beside it.
    before = _children()
    engine = SparkEngine(settings(tmp_path, work="tests.support.spark_work:missing"))
    with pytest.raises(ConfigError, match=r"no attribute 'missing'.*driver\.log"):
        asyncio.run(engine.start())
    assert _children() <= before


def _children() -> set[int]:
    """Return the ids of our child processes that have not ended."""
    found = set()
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if child.status() != psutil.STATUS_ZOMBIE:
                found.add(child.pid)
    return found
