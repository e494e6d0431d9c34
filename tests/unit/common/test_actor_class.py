"""Actors can be called by processes of an older release, whose classes have fewer methods."""

from __future__ import annotations

import asyncio
import base64
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray
import ray.cloudpickle

from common.coordinator_proxy import actor_class
from compactor.actor import CompactorActor
from coordinator.actor import CoordinatorActor
from tests.support.older_release import older_release

LOAD = """
import base64, pickle, sys
kind = pickle.loads(base64.b64decode(sys.stdin.read()))
print(*sorted({"common", "compactor", "coordinator"} & sys.modules.keys()))
print(kind.__name__, *sorted(name for name in dir(kind) if not name.startswith("_")))
"""


class Echo:
    def __init__(self, word: str, *, times: int = 1) -> None:
        self._said = word * times

    async def say(self, more: str, *, end: str = "") -> str:
        return self._said + more + end


def loaded_by_older(kind: type, older: Path) -> subprocess.CompletedProcess[str]:
    """Have the older release load a class as Ray hands it to whoever calls the actor."""
    pickled = ray.cloudpickle.dumps(ray.remote(kind).__ray_metadata__.modified_class)
    return subprocess.run(
        [sys.executable, "-P", "-c", LOAD],
        env=os.environ | {"PYTHONPATH": str(older)},
        cwd=older,
        input=base64.b64encode(pickled).decode(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def public(kind: type) -> list[str]:
    return sorted(name for name in dir(kind) if not name.startswith("_"))


@pytest.mark.parametrize("kind", [CoordinatorActor, CompactorActor])
def test_an_older_release_loads_the_class(kind: type, tmp_path: Path) -> None:
    started = actor_class(f"{kind.__module__}:{kind.__name__}")
    loaded = loaded_by_older(started, older_release(tmp_path))

    assert loaded.returncode == 0, loaded.stderr
    imported, names = loaded.stdout.splitlines()
    assert imported == "", "who calls an actor does not need its modules"
    assert names.split() == [kind.__name__, *public(kind)]


def test_without_that_it_does_not(tmp_path: Path) -> None:
    """The older release lacks methods such as `activity`: the fixture shows what is at stake."""
    loaded = loaded_by_older(CoordinatorActor, older_release(tmp_path))

    assert loaded.returncode != 0
    assert "Can't get attribute 'CoordinatorActor." in loaded.stderr


@pytest.mark.parametrize("kind", [CoordinatorActor, CompactorActor])
def test_every_public_method_can_be_awaited(kind: type) -> None:
    assert all(inspect.iscoroutinefunction(getattr(kind, name)) for name in public(kind))


def test_calls_are_passed_on_with_their_arguments() -> None:
    actor = actor_class(f"{__name__}:Echo")("ab", times=2)

    assert asyncio.run(actor.say("c", end="!")) == "ababc!"
