"""A whole stack outlives its Redis and its Ray, and nothing outlives `neve down`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from neve.local import LocalStack, StackOptions
from neve.local.processes import processes_of_stack
from tests.support.ledger import LedgerTable, bag_rows
from tests.support.stack import SETTINGS, Service

pytestmark = [pytest.mark.slow]

FILES = 6


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("supervised")
    settings = replace(SETTINGS, compactor=replace(SETTINGS.compactor, start_timeout_s=300.0))
    options = StackOptions(compactors=1, settings=settings)
    with LocalStack.start(home=home, name="supervised", options=options) as stack:
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

    (redis,) = service.redis()

    def another() -> bool:
        return service.client.status().coordinator != before

    service.wait("another coordinator at the same address", another)
    assert [each.pid for each in service.redis()] == [redis.pid], "only what is dead is started"
    service.wait("compactor", service.client.compactors)
    table.check_rows()
    other = table_of(service)
    service.wait("commit by the new one", other.commits, table=other)
    assert LocalStack.attach(home=service.folder, name="supervised") is not None


def test_redis_is_started_while_compactors_cannot_be(service: Service) -> None:
    """A compactor that does not come up delays neither Redis, nor the gateway, nor all of Ray."""
    log = service.stack.folder.logs / "driver-default-1.log"
    state = service.stack.folder.load()
    assert state is not None
    (raylet,) = [each for each in state.processes if each.role == "raylet"]
    kill(raylet)
    service.wait("another gateway", lambda: not service.client.status().compactors)
    with service.halted(*service.titled("ray::CompactorActor")):
        service.restart_redis()
        service.wait("answer", service.client.status)
    service.wait("compactor", service.client.compactors)
    assert log.exists()
    assert len(service.events("part is down", down="ray")) == len(
        service.events("part is up again", up="ray")
    )


def test_up_starts_another_supervisor_over_what_runs(service: Service) -> None:
    before = {each.pid for each in service.processes()}
    supervisor = state_of(service, "supervisor")
    kill(supervisor)
    options = StackOptions(compactors=1, settings=SETTINGS_OF_STACK)
    other = replace(options, compactors=2)
    with pytest.raises(ConfigError, match="its supervisor has ended: repeat `neve up` with the"):
        LocalStack.start(home=service.folder, name="supervised", options=other)
    steps: list[str] = []
    again = LocalStack.start(
        home=service.folder, name="supervised", options=options, on_progress=steps.append
    )
    assert steps == ["the supervisor has ended: starting another one; all other parts go on"]
    assert again.gateway_url == service.stack.gateway_url
    assert before - {supervisor.pid} <= {each.pid for each in service.processes()}
    service.restart_redis()
    service.wait("answer", service.client.status)


def test_the_supervisor_restarts_nothing_once_the_stack_is_stopped(service: Service) -> None:
    (redis,) = service.redis()
    redis.kill()
    service.stack.stop()
    state = service.stack.state
    assert processes_of_stack(state.mark, state.processes) == []
    assert not service.stack.folder.state_file.exists()
    assert LocalStack.attach(home=service.folder, name="supervised") is None
