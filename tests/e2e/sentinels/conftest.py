"""The one stack of this package."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from common.model.group import Service as PlannedBy
from tests.support.redis_sentinels import RedisGroup, group_running
from tests.support.scenario import SCRIPT
from tests.support.scripted import install
from tests.support.stack import SETTINGS, Service, service_on

SLOTS = 8


@pytest.fixture(scope="package")
def group() -> Iterator[RedisGroup]:
    with group_running() as servers:
        yield servers


@pytest.fixture(scope="package")
def service(group: RedisGroup, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with one compactor of many slots, and planners that follow a script.

    Its Spark has no executors: what counts here is what the store and the coordinator do.
    """
    folder = tmp_path_factory.mktemp("sentinels")
    settings = replace(
        SETTINGS,
        compactor=replace(SETTINGS.compactor, slots=SLOTS, engine="local"),
        services={
            **SETTINGS.services,
            "scenario": PlannedBy(name="scenario", planner="scripted", options=SCRIPT),
        },
    )
    environ = install(folder / "installed")
    with service_on(group.url, folder, settings=settings, environ=environ) as running:
        yield running
