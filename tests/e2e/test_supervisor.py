"""A whole stack outlives its Redis and its Ray, and nothing outlives `neve down`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from neve.local import LocalStack, StackOptions
from neve.local.processes import processes_of_stack
from tests.support.installed_stack import InstalledStack
from tests.support.ledger import LedgerTable, bag_rows
from tests.support.stack import SETTINGS, Service

pytestmark = [pytest.mark.slow]

FILES = 6


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("supervised")
    settings = replace(SETTINGS, compactor=replace(SETTINGS.compactor, start_timeout_s=300.0))
    options = StackOptions(compactors=1, settings=settings)
    with InstalledStack.start(home=home, name="supervised", options=options) as stack:
        yield Service(stack, home, compactors=1)


def table_of(service: Service) -> LedgerTable:
    table = LedgerTable(service.client, service.folder, keyed=False)
    table.add(*(bag_rows(10, seed) for seed in range(FILES)))
    return table


def test_redis_dies_again_and_again(service: Service) -> None:
    table = table_of(service)
    for _ in range(3):
        service.restart_redis()
    service.wait("answer", table.listed)
    service.wait_until_at_rest(table)
    table.check_rows()


@pytest.mark.parametrize("role", ["raylet", "gcs_server"])
def test_a_part_of_rays_head_dies(service: Service, role: str) -> None:
    table = table_of(service)
    service.wait("commit", table.commits, table=table)
    before = service.client.status().coordinator
    state = service.stack.folder.load()
    assert state is not None
    (reference,) = [each for each in state.processes if each.role == role]
    process = reference.process()
    assert process is not None
    process.kill()

    def another() -> bool:
        return service.client.status().coordinator != before

    service.wait("another coordinator at the same address", another)
    service.wait("compactor", service.client.compactors)
    table.check_rows()
    other = table_of(service)
    service.wait("commit by the new one", other.commits, table=other)
    assert LocalStack.attach(home=service.folder, name="supervised") is not None


def test_the_supervisor_restarts_nothing_once_the_stack_is_stopped(service: Service) -> None:
    (redis,) = service.redis()
    redis.kill()
    service.stack.stop()
    state = service.stack.state
    assert processes_of_stack(state.mark, state.processes) == []
    assert not service.stack.folder.state_file.exists()
    assert LocalStack.attach(home=service.folder, name="supervised") is None
