"""A whole stack outlives each of its processes, killed or frozen; nothing outlives `neve down`.

First the processes below a compactor, in each phase of an attempt: the job is committed in the
end, readers see exactly the rows of the ledger, and the compactor's slot is free again. `make test`
plays one case, `make long` the others that once left a job hanging; `make deaths` plays all.
Then Redis, a part of Ray's head and the supervisor die.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import RefusedError
from neve.local import LocalStack, StackOptions
from neve.local.processes import ProcessRef, processes_of_stack
from tests.support.installed_stack import InstalledStack
from tests.support.ledger import LedgerTable, bag_rows
from tests.support.spark_deaths import EVERY, Case, Deaths, How, Part, Phase
from tests.support.stack import SETTINGS, Service

pytestmark = [pytest.mark.slow]

FILES = 6
START_TIMEOUT_S = 300.0
STALL_S = 20.0
"""Short enough to be waited for; on a busy machine a task may take some seconds to begin."""
SOME = [
    Case(Part.EXECUTOR, How.KILL, Phase.COMMITTING),
    pytest.param(Case(Part.JVM, How.FREEZE, Phase.REWRITING), marks=pytest.mark.long),
    pytest.param(Case(Part.DRIVER, How.FREEZE, Phase.VERIFYING), marks=pytest.mark.long),
    pytest.param(Case(Part.JVM, How.KILL, Phase.PREPARING), marks=pytest.mark.long),
    pytest.param(Case(Part.EXECUTOR, How.KILL, Phase.WAITING), marks=pytest.mark.long),
]
CASES = EVERY if os.environ.get("NEVE_DEATHS") == "all" else SOME
SECRET = f"-Dspark.authenticate.secret={'5ec7e7' * 8}\n"


@pytest.fixture(scope="module")
def spark_secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file without which no Spark driver starts."""
    file = tmp_path_factory.mktemp("spark") / "secret"
    file.write_text(SECRET)
    return file


@pytest.fixture(scope="module")
def options(spark_secret: Path) -> StackOptions:
    """Patient with jobs that fail and with starts, and not with attempts that stall."""
    settings = replace(
        SETTINGS,
        coordinator=replace(SETTINGS.coordinator, quarantine_failures=1000),
        compactor=replace(
            SETTINGS.compactor,
            start_timeout_s=START_TIMEOUT_S,
            attempt_stall_s=STALL_S,
            spark_secret_file=str(spark_secret),
        ),
    )
    return StackOptions(compactors=1, settings=settings)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, options: StackOptions) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("supervised")
    with InstalledStack.start(home=home, name="supervised", options=options) as stack:
        yield Service(stack, home, compactors=1)


@pytest.fixture(scope="module")
def deaths(service: Service) -> Deaths:
    return Deaths(service)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_job_outlives_its_processes(deaths: Deaths, case: Case) -> None:
    deaths.play(case)


def table_of(service: Service) -> LedgerTable:
    table = LedgerTable(service.client, service.folder, keyed=False)
    table.add(*(bag_rows(10, seed) for seed in range(FILES)))
    return table


def process_of(service: Service, role: str) -> ProcessRef:
    state = service.stack.folder.load()
    assert state is not None
    (reference,) = [process for process in state.processes if process.role == role]
    return reference


def kill(service: Service, role: str) -> None:
    process = process_of(service, role).process()
    assert process is not None
    service.kill(process)


def test_redis_dies_again_and_again(service: Service) -> None:
    table = table_of(service)
    for _ in range(3):
        service.restart_redis()
    service.wait("answer", table.listed)
    service.wait_until_at_rest(table)
    table.check_rows()


@pytest.mark.parametrize("role", ["raylet", pytest.param("gcs_server", marks=pytest.mark.long)])
def test_a_part_of_rays_head_dies(service: Service, role: str, spark_secret: Path) -> None:
    """Then Redis dies, and no compactor starts: neither delays the other parts, nor Ray twice."""
    table = table_of(service)
    service.wait("commit", table.commits, table=table)
    before = service.client.status().coordinator
    heads = len(service.events("part is down", down="ray"))
    spark_secret.unlink()
    kill(service, role)
    service.restart_redis()

    def another() -> bool:
        return service.client.status().coordinator != before

    service.wait("another coordinator at the same address", another)
    table.check_rows()
    service.wait("failed start of Spark", lambda: start_problem(service))
    assert len(service.events("part is down", down="ray")) == heads + 1
    spark_secret.write_text(SECRET)
    other = table_of(service)
    service.wait("commit by the new one", other.commits, table=other)
    assert len(service.events("part is down", down="ray")) == heads + 1
    assert LocalStack.attach(home=service.folder, name="supervised") is not None


def start_problem(service: Service) -> str:
    return "".join(compactor.start_problem for compactor in service.client.status().compactors)


def test_up_starts_another_supervisor_over_what_runs(
    service: Service, options: StackOptions
) -> None:
    before = {process.pid for process in service.processes()} - {
        process_of(service, "supervisor").pid
    }
    kill(service, "supervisor")
    other = replace(options, compactors=2)
    with pytest.raises(RefusedError, match="its supervisor has ended: repeat `neve up` with the"):
        LocalStack.start(home=service.folder, name="supervised", options=other)
    steps: list[str] = []
    again = LocalStack.start(
        home=service.folder, name="supervised", options=options, on_progress=steps.append
    )
    assert steps == ["the supervisor has ended: starting another one; living processes continue"]
    assert again.gateway_url == service.stack.gateway_url
    assert before <= {process.pid for process in service.processes()}
    # And over one whose Redis has died as well.
    kill(service, "supervisor")
    kill(service, "redis")
    LocalStack.start(home=service.folder, name="supervised", options=options)
    service.wait("answer", service.client.tables)
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
