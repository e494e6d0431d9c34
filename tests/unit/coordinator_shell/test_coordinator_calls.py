"""The coordinator's actor and its callers agree: the same calls, parameters and types."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable

import pytest

from common.coordinator_proxy import CoordinatorProxy
from common.wire import CompactorCalls
from coordinator.actor import CoordinatorActor
from tests.support.gateway import FakeCoordinator


def call_names(kind: type) -> list[str]:
    calls = inspect.getmembers(kind, inspect.iscoroutinefunction)
    return sorted(name for name, _ in calls if not name.startswith("_"))


@pytest.mark.parametrize("name", call_names(CompactorCalls))
def test_the_actor_answers_each_call_of_a_compactor(name: str) -> None:
    wanted, offered = getattr(CompactorCalls, name), getattr(CoordinatorActor, name)
    types = typing.get_type_hints(wanted)

    assert_takes_the_same(wanted, offered)
    assert {key: typing.get_type_hints(offered)[key] for key in types} == types


@pytest.mark.parametrize("name", call_names(FakeCoordinator))
def test_the_coordinator_of_gateway_tests_is_called_as_the_actor_is(name: str) -> None:
    assert_takes_the_same(getattr(FakeCoordinator, name), getattr(CoordinatorActor, name))


def assert_takes_the_same(wanted: Callable[..., object], offered: Callable[..., object]) -> None:
    """Assert that both calls take the same; Ray adds an optional parameter of its own."""
    taken = inspect.signature(wanted).parameters
    own = inspect.signature(offered).parameters

    assert [*own][: len(taken)] == [*taken]
    assert all(
        parameter.default is not parameter.empty for parameter in [*own.values()][len(taken) :]
    )


def test_a_proxy_has_public_calls_only() -> None:
    proxy = CoordinatorProxy(1.0)

    assert hasattr(proxy, "status")
    assert not hasattr(proxy, "_status")
