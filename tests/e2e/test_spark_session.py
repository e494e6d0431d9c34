"""The Spark engine on a real Ray with RayDP: work, cancel, and every way to die."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from common.errors import AttemptCancelledError, EngineDiedError
from compactor.core import RewriteProgress
from compactor.spark.application import executor_bytes
from compactor.spark.driver_protocol import DriverSettings
from compactor.spark.engine import SparkEngine
from neve.local import LocalStack, StackOptions
from neve.local.processes import processes_of_stack
from neve.local.servers import NODE_RESOURCE
from tests.support.installed_stack import InstalledStack
from tests.support.patience import PATIENCE_S, SERVICE_S

pytestmark = [pytest.mark.slow]

ADD = {"do": "add", "count": 1000}
SLEEP = {"do": "sleep", "for_s": 120}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    home = tmp_path_factory.mktemp("home")
    with InstalledStack.start(home=home, options=StackOptions(actors=False, compactors=2)) as stack:
        yield stack


@pytest.fixture(autouse=True)
def joined(stack: LocalStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process the environment in which drivers find the cluster."""
    for name, value in stack.driver_environ().items():
        monkeypatch.setenv(name, value)


def settings(stack: LocalStack, name: str) -> DriverSettings:
    return DriverSettings(
        name=name,
        ray_address=stack.ray_address,
        node_resource=NODE_RESOURCE,
        log_file=str(stack.folder.logs / f"{name}.log"),
        work="tests.support.spark_work:work",
        start_timeout_s=SERVICE_S,
    )


def spark_processes(stack: LocalStack) -> list[str]:
    """Return what belongs to any Spark application of the stack: drivers, masters, executors."""
    names = ("java", "ray::SparkMaster", "compactor.spark", "pyspark")
    return [line for p in stack_members(stack) if any(n in (line := shown(p)) for n in names)]


def stack_members(stack: LocalStack) -> list[psutil.Process]:
    return processes_of_stack(stack.state.mark, stack.state.processes)


def shown(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {process.name()} {' '.join(process.cmdline())}"[:200]
    except psutil.Error:
        return ""


def wait_until_gone(stack: LocalStack) -> float:
    begun_s = time.monotonic()
    while left := spark_processes(stack):
        waited_s = time.monotonic() - begun_s
        assert waited_s < PATIENCE_S, left
        time.sleep(0.1)
    return time.monotonic() - begun_s


async def sleeping(engine: SparkEngine, attempt: str) -> asyncio.Task[Any]:
    begun = asyncio.Event()
    task = asyncio.create_task(engine.run_payload(attempt, SLEEP, lambda _: begun.set()))
    await begun.wait()
    await asyncio.sleep(2.0)
    return task


def test_work_progress_cancel_and_stop(stack: LocalStack) -> None:
    chosen = settings(stack, "works")

    async def main() -> None:
        engine = SparkEngine(chosen)
        await engine.start()
        heard: list[RewriteProgress] = []
        taken = await engine.run_payload("m", {"do": "memory"}, heard.append)
        check_memory_asked_for(chosen, float(taken["taken_bytes"]))
        seen = (await engine.run_payload("z", {"do": "archives"}, heard.append))["seen"]
        assert len(seen) > len({worker for worker, _ in seen})  # One has been counted twice.
        assert {count for _, count in seen} == {0}
        assert (await engine.run_payload("a", ADD, heard.append))["sum"] == 500_500
        assert heard[-1].fraction == 1.0
        waiting = await sleeping(engine, "b")
        beside = await asyncio.gather(
            *(engine.run_payload(f"c{n}", ADD, heard.append) for n in range(2))
        )
        assert {answer["pool"] for answer in beside} == {"slot-1", "slot-2"}
        await engine.cancel("b")
        with pytest.raises(AttemptCancelledError):
            await waiting
        await engine.stop()

    asyncio.run(main())
    wait_until_gone(stack)


def check_memory_asked_for(chosen: DriverSettings, taken_bytes: float) -> None:
    """Ray is asked for the memory of Python tasks as well.

    A Spark executor is the only one here that asks Ray for memory.
    """
    assert taken_bytes == executor_bytes(chosen)
    assert executor_bytes(chosen) == (1024 + 256 + 2 * 768) * 1024**2


@pytest.mark.long
def test_two_engines_side_by_side_and_one_driver_dies(stack: LocalStack) -> None:
    async def main() -> None:
        one, two = (SparkEngine(settings(stack, f"compactor-{n}")) for n in (1, 2))
        await asyncio.gather(one.start(), two.start())
        assert one.pid is not None
        lost, kept = await sleeping(one, "a"), await sleeping(two, "b")
        os.kill(one.pid, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(EngineDiedError):
                await lost
        assert (await one.run_payload("c", ADD, lambda _: None))["sum"] == 500_500
        assert one.starts == 2
        assert not kept.done()
        await asyncio.gather(one.stop(), two.stop())
        with pytest.raises(EngineDiedError):
            await kept

    asyncio.run(main())
    wait_until_gone(stack)


PARENT = """
import asyncio, pickle, sys
from compactor.spark.engine import SparkEngine

async def main():
    engine = SparkEngine(pickle.loads(bytes.fromhex(sys.argv[1])))
    await engine.start()
    begun = lambda _: print("begun", flush=True)
    await engine.run_payload("a", {"do": "sleep", "for_s": 120}, begun)

asyncio.run(main())
"""


def test_all_die_with_a_killed_parent(stack: LocalStack) -> None:
    told = pickle.dumps(settings(stack, "orphan")).hex()
    command = [sys.executable, "-c", PARENT, told]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline().strip() == "begun"
        time.sleep(1.0)
        # A driver and its JVM, the master and its JVM, the app master, the executor.
        assert len(spark_processes(stack)) >= 6
        parent.send_signal(signal.SIGKILL)
    took_s = wait_until_gone(stack)
    print(f"gone {took_s:.1f} s after the parent's death")
