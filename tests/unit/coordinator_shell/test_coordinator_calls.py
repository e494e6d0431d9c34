"""The coordinator's actor and its ports agree: the same calls, parameters and types."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Sequence

import pytest

from common.coordinator_calls import CompactorCalls, CoordinatorCalls, OperatorCalls, call_names
from common.coordinator_proxy import CoordinatorProxy
from coordinator.actor import CoordinatorActor

PORTS = (CompactorCalls, OperatorCalls)
FOR_STARTERS = {"ping", "edition", "stop_scaling"}
"""Whoever starts the actor calls it by its handle."""
CALLS = [(port, name) for port in PORTS for name in sorted(call_names(port))]


@pytest.mark.parametrize(("port", "name"), CALLS, ids=lambda each: getattr(each, "__name__", each))
def test_the_actor_answers_each_call_of_a_port(port: type, name: str) -> None:
    wanted, offered = getattr(port, name), getattr(CoordinatorActor, name)
    parameters = inspect.signature(wanted).parameters
    own = inspect.signature(offered).parameters
    wanted_types, own_types = typing.get_type_hints(wanted), typing.get_type_hints(offered)

    assert inspect.iscoroutinefunction(offered)
    assert list(own)[: len(parameters)] == list(parameters)
    assert all(own[each].default is not own[each].empty for each in own.keys() - parameters.keys())
    assert {each: own_types[each] for each in wanted_types if each != "return"} == {
        each: kind for each, kind in wanted_types.items() if each != "return"
    }
    assert same_answer(own_types["return"], wanted_types["return"])


def same_answer(offered: object, wanted: object) -> bool:
    """Whether two types of answers are the same; a list is a sequence."""
    if typing.get_origin(wanted) is Sequence and typing.get_origin(offered) is list:
        return typing.get_args(offered) == typing.get_args(wanted)
    return offered == wanted


def test_each_call_of_the_actor_is_in_one_port() -> None:
    public = {name for name in vars(CoordinatorActor) if not name.startswith("_")}

    assert not call_names(CompactorCalls) & call_names(OperatorCalls)
    assert public - FOR_STARTERS == call_names(CompactorCalls) | call_names(OperatorCalls)


@pytest.mark.parametrize("port", PORTS, ids=lambda each: each.__name__)
def test_a_proxy_has_the_calls_of_its_port_alone(port: type) -> None:
    proxy = CoordinatorProxy(port, 1.0)
    every = call_names(CompactorCalls) | call_names(OperatorCalls) | FOR_STARTERS

    assert {name for name in every if hasattr(proxy, name)} == call_names(port)


def test_the_port_of_the_actor_has_the_calls_of_both() -> None:
    assert set(PORTS) <= set(CoordinatorCalls.__mro__)
