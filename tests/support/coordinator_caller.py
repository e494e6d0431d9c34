"""Calls the coordinator of a stack through its proxy: answering, refusing, frozen, killed.

Before that: what Ray tells of a compactor whose process was killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import ray

from common.coordinator_proxy import compactor_calls
from common.errors import UnavailableError
from common.wire import COORDINATOR_NAME, NAMESPACE, TakeRequest, compactor_actor_name
from coordinator.actor import CoordinatorActor, RayCompactors
from neve.gateway.actor import operator_calls
from neve.local import LocalStack
from neve.local.processes import processes_of_stack
from tests.support.patience import SERVICE_S

TAKE = TakeRequest(take="t", compactor="c", incarnation="i", group="default", wait_max_s=1.0)


async def call_through_a_death(stack: LocalStack) -> None:
    """Call a coordinator that answers, is frozen, thaws, dies and comes back."""
    operators = operator_calls()
    assert (await operators.status()).compactors
    assert list(await operators.queue(group=None, count=5)) == []
    assert await compactor_calls().take(TAKE) is None
    with pytest.raises(UnavailableError, match="the coordinator failed: ValueError"):
        await operators.explain("t", "no tablet")

    process = coordinator_process(stack)
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(UnavailableError, match=r"does not answer \(TimeoutError\)"):
        await operators.status()
    process.send_signal(signal.SIGCONT)
    await until_it_answers(operators)

    process.send_signal(signal.SIGKILL)
    process.wait(SERVICE_S)
    await until_it_answers(operators)
    assert coordinator_process(stack).pid != process.pid


class Stayer:
    """Answers those who wait for its death as a compactor does; its process is started again."""

    def pid(self) -> int:
        return os.getpid()

    async def stay(self, incarnation: str) -> str:
        if incarnation != str(os.getpid()):
            return "it was started again"
        await asyncio.sleep(SERVICE_S)
        return "nobody killed it"


async def wait_for_a_process_that_is_started_again() -> None:
    """Kill the process of an actor: its next one says so, and nobody takes that one for dead."""
    name = compactor_actor_name("stayer")
    actor = ray.remote(Stayer).options(name=name, num_cpus=0, max_restarts=1).remote()
    first = await actor.pid.remote()
    notice = asyncio.create_task(RayCompactors().wait_for_death("stayer", str(first)))
    await asyncio.sleep(0.5)
    os.kill(first, signal.SIGKILL)
    assert await asyncio.wait_for(notice, SERVICE_S) == "it was started again"
    os.kill(await actor.pid.remote(), signal.SIGKILL)
    cause = await asyncio.wait_for(RayCompactors().wait_for_death("stayer", "x"), SERVICE_S)
    assert cause.startswith(("its actor died", "its actor is gone")), cause


async def until_it_answers(operators: CoordinatorActor) -> None:
    """Call with the same proxy until the coordinator answers."""
    until_s = time.monotonic() + SERVICE_S
    while True:
        with suppress(UnavailableError):
            await operators.status()
            return
        assert time.monotonic() < until_s
        await asyncio.sleep(0.2)


def coordinator_process(stack: LocalStack) -> psutil.Process:
    """Return the process of the stack's coordinator."""
    for process in processes_of_stack(stack.state.mark, stack.state.processes):
        if "ray::CoordinatorActor" in " ".join(process.cmdline()):
            return process
    raise AssertionError("no coordinator runs")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    running = LocalStack.attach(home=folder.parent, name=folder.name)
    assert running is not None
    ray.init(
        address=running.ray_address,
        namespace=NAMESPACE,
        log_to_driver=False,
        logging_level="ERROR",
    )
    ray.get(ray.get_actor(COORDINATOR_NAME, namespace=NAMESPACE).ping.remote())
    asyncio.run(wait_for_a_process_that_is_started_again())
    asyncio.run(call_through_a_death(running))
