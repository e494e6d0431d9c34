"""The compactor's actor and its Spark on real Ray and Redis; only the coordinator is a stub."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from common.errors import AttemptCancelledError, EngineDiedError
from compactor.core import RewriteProgress
from compactor.spark.application import executor_bytes
from compactor.spark.driver_protocol import DriverSettings
from compactor.spark.engine import SparkEngine
from neve.local import LocalStack
from neve.local.processes import processes_of_stack
from neve.local.servers import NODE_RESOURCE
from tests.support.patience import PATIENCE_S, SERVICE_S

pytestmark = [pytest.mark.slow]

ADD = {"do": "add", "count": 1000}
SLEEP = {"do": "sleep", "for_s": 120}


def test_jobs_of_ray_are_taken_from_who_shows_its_token(
    stack: LocalStack, dashboard_port: int
) -> None:
    """Whoever may submit a job runs what he likes, as the stack's user."""
    token = stack.folder.ray_token_file.read_text().strip()
    url = f"http://127.0.0.1:{dashboard_port}/api/jobs/"
    order = {"entrypoint": "true"}

    def code(shown: str, order: dict[str, str] | None = None) -> int:
        headers = {"Authorization": f"Bearer {shown}"} if shown else {}
        method = "GET" if order is None else "POST"
        return httpx.request(
            method, url, headers=headers, json=order, timeout=PATIENCE_S
        ).status_code

    for stranger in ("", "0" * 64):
        assert {code(stranger), code(stranger, order)} <= {401, 403}
    assert code(token) == 200


@pytest.fixture
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
    names = ("java", "compactor.spark", "pyspark")
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


@pytest.mark.usefixtures("joined")
def test_work_progress_cancel_and_stop(stack: LocalStack) -> None:
    chosen = settings(stack, "works")

    async def main() -> None:
        engine = SparkEngine(chosen)
        await engine.start()
        heard: list[RewriteProgress] = []
        payload = {"do": "memory", "address": stack.ray_address}
        taken = await engine.run_payload("m", payload, heard.append)
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
    log = Path(chosen.log_file).read_text()
    assert log, "Spark warns"
    assert " INFO " not in log


def check_memory_asked_for(chosen: DriverSettings, taken_bytes: float) -> None:
    """Ray is asked for the memory of Python tasks as well.

    A Spark executor is the only one here that asks Ray for memory.
    """
    assert taken_bytes == executor_bytes(chosen)
    assert executor_bytes(chosen) == (1024 + 256 + 2 * 768) * 1024**2


@pytest.mark.long
@pytest.mark.usefixtures("joined")
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


@pytest.mark.parametrize(
    ("node_resource", "ending", "engine"),
    [
        pytest.param("", "asked", "raydp", id="at an address", marks=pytest.mark.long),
        pytest.param(
            # Nothing else can be done with the node afterwards.
            *(NODE_RESOURCE, "node", "local"),
            id="on a node that Ray takes away",
            marks=pytest.mark.last,
        ),
    ],
)
def test_a_life_with_a_death_in_it(
    stack: LocalStack, tmp_path: Path, node_resource: str, ending: str, engine: str
) -> None:
    words = [stack.redis_url, stack.ray_address, str(tmp_path), node_resource, ending, engine]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.compactor_life", *words],
        env=stack.driver_environ(),
        capture_output=True,
        text=True,
        timeout=SERVICE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
