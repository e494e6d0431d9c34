"""Compactors that are shut down while they run a job: it ends, or another compactor takes it.

The service has no compactor left, and is not asked to start others: no test comes after this one.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from common.wire import NAMESPACE, compactor_actor_name
from neve.api import Job
from neve.local.stack import shut_down
from tests.support.ledger import LedgerTable, bag_rows
from tests.support.patience import SERVICE_S
from tests.support.stack import COMPACTORS, Service

pytestmark = [pytest.mark.slow, pytest.mark.last]

VOLUME, RATE = "slow", 64 * 1024
CALLER = """
import ray, sys
address, namespace, actor, wait_max_s = sys.argv[1:]
ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level="ERROR")
# Otherwise another compactor is started in its place: the group is to have two.
ray.get(ray.get_actor("neve-coordinator").stop_scaling.remote())
ray.get(ray.get_actor(actor).shut_down.remote(float(wait_max_s)))
"""


def running_job(service: Service, table: LedgerTable, compactor: str = "") -> Job | None:
    job = service.running(table)
    return job if job is not None and compactor in ("", job.compactor) else None


def is_gone(service: Service, compactor: str) -> bool:
    known = {each.compactor for each in service.client.compactors()}
    return compactor not in known and len(service.titled("ray::CompactorActor")) == 1


def drains(service: Service, **fields: object) -> int:
    """Return how often a compactor has begun to drain, in all tests of the service."""
    return len(service.events("draining", **fields))


@contextmanager
def frozen_caller(service: Service, compactor: str) -> Iterator[None]:
    """Shut a compactor down from a process that is frozen as soon as the compactor drains."""
    actor = compactor_actor_name(compactor)
    words = [service.stack.ray_address, NAMESPACE, actor, "1.0"]
    environ = service.stack.driver_environ()
    known = drains(service, held=1)
    caller = subprocess.Popen([sys.executable, "-c", CALLER, *words], env=environ)
    try:
        service.wait("draining compactor", lambda: drains(service, held=1) > known)
        caller.send_signal(signal.SIGSTOP)
        yield
    finally:
        caller.kill()
        caller.wait()


def test_a_job_is_handed_back_by_one_compactor_and_committed_by_the_other(
    service: Service,
) -> None:
    client = service.client
    service.wait("two compactors", service.everybody_beats)
    before, drained = client.status(), drains(service)
    table = LedgerTable(
        client, service.folder, keyed=False, paused=True, settings={"volume": VOLUME}
    )
    table.add(*(bag_rows(20_000, seed=number) for number in range(4)))
    client.limit_volume(VOLUME, RATE)
    client.resume(table.name)
    first = service.wait("running job", lambda: running_job(service, table), table=table)
    (other,) = set(COMPACTORS) - {first.compactor}

    # It does not end in time.
    with frozen_caller(service, first.compactor):
        second = service.wait(
            "job on the other compactor", lambda: running_job(service, table, other), table=table
        )
        service.wait("end of the first compactor", lambda: is_gone(service, first.compactor))
    assert second.attempt != first.attempt
    assert not [path for path in table.stored() if first.attempt in path]
    now = client.status()
    assert (now.committed, now.failed) == (before.committed, before.failed)
    assert now.released == before.released + 1

    # It ends in time. Two callers ask for it, as `neve down` does.
    with ThreadPoolExecutor(2) as callers:
        calls = [callers.submit(shut_down, service.stack.folder) for _ in range(2)]
        service.wait("draining compactor", lambda: drains(service) == drained + 2)
        client.limit_volume(VOLUME, None)
        for call in calls:
            call.result(timeout=SERVICE_S)
    assert len(table.commits()) == 1
    (commit,) = [each for each in client.history(table.name) if each.end == "committed"]
    assert (commit.attempt, commit.compactor) == (second.attempt, other)
    service.wait("end of all compactors", lambda: not client.compactors())
    service.wait("end of their actors", lambda: not service.titled("ray::CompactorActor"))
    service.wait("clean storage", lambda: table.stored() >= table.listed(), table=table)
    table.check_rows()
