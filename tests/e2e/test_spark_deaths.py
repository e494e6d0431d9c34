"""Each process below a compactor, killed and frozen, in each phase of an attempt.

Whatever happens to them, the job is committed in the end, readers see exactly the rows of the
ledger, and the compactor's slot is free again. `make test` plays some cases, those of them
that once left a job hanging, `make long` the rest of those; `make deaths` plays all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from neve.local import StackOptions
from tests.support.installed_stack import InstalledStack
from tests.support.spark_deaths import EVERY, Case, Deaths, How, Part, Phase
from tests.support.stack import SETTINGS, Service

pytestmark = [pytest.mark.slow]

STALL_S = 20.0
"""Short enough to be waited for; on a busy machine a task may take some seconds to begin."""
SOME = [
    Case(Part.JVM, How.FREEZE, Phase.REWRITING),
    Case(Part.DRIVER, How.FREEZE, Phase.VERIFYING),
    Case(Part.EXECUTOR, How.KILL, Phase.COMMITTING),
    pytest.param(Case(Part.JVM, How.KILL, Phase.PREPARING), marks=pytest.mark.long),
    pytest.param(Case(Part.EXECUTOR, How.KILL, Phase.WAITING), marks=pytest.mark.long),
]
CASES = EVERY if os.environ.get("NEVE_DEATHS") == "all" else SOME


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deaths]:
    """A service with one compactor, which is patient with jobs and not with those who stall."""
    settings = replace(
        SETTINGS,
        coordinator=replace(SETTINGS.coordinator, quarantine_failures=1000),
        compactor=replace(SETTINGS.compactor, attempt_stall_s=STALL_S),
    )
    home = tmp_path_factory.mktemp("deaths")
    options = StackOptions(compactors=1, settings=settings)
    with InstalledStack.start(home=home, name="deaths", options=options) as stack:
        yield Deaths(Service(stack, home, compactors=1))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_job_outlives_its_processes(deaths: Deaths, case: Case) -> None:
    deaths.play(case)
