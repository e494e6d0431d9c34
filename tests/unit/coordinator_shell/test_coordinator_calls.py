"""The coordinator's actor and its callers agree: the same calls, parameters and types."""

from __future__ import annotations

import inspect
import typing

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

    assert [*inspect.signature(offered).parameters] == [*inspect.signature(wanted).parameters]
    assert typing.get_type_hints(offered) == typing.get_type_hints(wanted)


@pytest.mark.parametrize("name", call_names(FakeCoordinator))
def test_the_coordinator_of_gateway_tests_is_called_as_the_actor_is(name: str) -> None:
    fake, actor = getattr(FakeCoordinator, name), getattr(CoordinatorActor, name)
    taken = inspect.signature(fake).parameters
    more = [each for key, each in inspect.signature(actor).parameters.items() if key not in taken]

    assert [*taken] == [*inspect.signature(actor).parameters][: len(taken)]
    assert all(each.default is not each.empty for each in more)


def test_a_proxy_has_public_calls_only() -> None:
    proxy = CoordinatorProxy(1.0)

    assert hasattr(proxy, "status")
    assert not hasattr(proxy, "_status")
