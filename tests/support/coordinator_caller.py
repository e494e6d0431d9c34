"""Calls the coordinator of a stack through its proxy: answering, refusing, frozen, killed."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import ray

from common.coordinator_calls import OperatorCalls
from common.coordinator_proxy import compactor_calls, operator_calls
from common.errors import UnavailableError
from common.wire import COORDINATOR_NAME, NAMESPACE, TakeRequest
from neve.local import LocalStack
from neve.local.processes import processes_of_stack
from tests.support.patience import SERVICE_S

TAKE = TakeRequest(take="t", compactor="c", incarnation="i", group="default", wait_max_s=1.0)


async def call_through_a_death(stack: LocalStack) -> None:
    """Call a coordinator that answers, is frozen, thaws, dies and comes back."""
    operators = operator_calls()
    assert (await operators.status()).compactors == ()
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


async def until_it_answers(operators: OperatorCalls) -> None:
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
    running = LocalStack.attach(home=Path(sys.argv[1]))
    assert running is not None
    ray.init(
        address=running.ray_address,
        namespace=NAMESPACE,
        log_to_driver=False,
        logging_level="ERROR",
    )
    ray.get(ray.get_actor(COORDINATOR_NAME, namespace=NAMESPACE).ping.remote())
    asyncio.run(call_through_a_death(running))
