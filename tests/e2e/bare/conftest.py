"""The one stack of this package: Redis and Ray without a service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from neve.local import LocalStack, StackOptions
from neve.local.machine import free_ports
from tests.support.installed_stack import InstalledStack
from tests.support.redis_server import RedisServer, running
from tests.support.serving import end_actors


@pytest.fixture(scope="package")
def dashboard_port() -> int:
    return free_ports(1)[0]


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory, dashboard_port: int) -> Iterator[LocalStack]:
    home = tmp_path_factory.mktemp("bare")
    # Ray takes jobs over HTTP only with its dashboard.
    options = StackOptions(actors=False, compactors=2, dashboard_port=dashboard_port)
    with InstalledStack.start(home=home, options=options) as stack:
        yield stack


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    """The store of a file's parts."""
    with running() as server:
        yield server


@pytest.fixture(scope="module")
def emptied(stack: LocalStack) -> Iterator[LocalStack]:
    """The stack, on which no actor is left after the tests of a file."""
    try:
        yield stack
    finally:
        end_actors(stack)
