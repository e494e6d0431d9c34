"""What nodes lack for a group's compactors, and whether a node may come that has it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from common.compactor_needs import NodeNeed, group_needs
from common.config import load_settings
from coordinator import ray_compactors
from coordinator.ports import Lack
from coordinator.ray_compactors import KnownNodes, RayCompactorLever, lack_of

GIB = 1 << 30
SMALL = {"CPU": 2.0, "memory": 4.0 * GIB, "own": 1.0}
LARGE = {"CPU": 8.0, "memory": 16.0 * GIB, "own": 1.0}
BARE = {"CPU": 64.0, "memory": 64.0 * GIB}


def needs(*flags: str) -> tuple[NodeNeed, ...]:
    settings = load_settings(environ={}, flags=["groups.g.resource=own", *flags])
    return tuple(group_needs(settings, "g"))


def test_a_node_must_have_room_for_all_executors_at_once() -> None:
    (need,) = needs("groups.g.executors=2", "groups.g.memory=1g", "groups.g.task_memory=512m")
    assert (need.resource, need.cpus) == ("own", 4)
    assert need.memory_bytes == 2 * (GIB + (256 << 20) + 2 * (512 << 20))
    assert need.lack([SMALL, LARGE]) == ""
    assert need.lack([SMALL, BARE]) == (
        "no node with the Ray resource 'own' has the 4 CPUs and 4.5 GiB that its Spark executors"
        " require: the largest has 2 and 4.0 GiB"
    )
    assert "8 and 2.0 GiB" in need.lack([{**LARGE, "memory": 2.0 * GIB}])
    assert need.lack([BARE]) == "no node has the Ray resource 'own'"
    assert need.lack([]) == "no node is up"


def test_executors_elsewhere_need_room_one_by_one() -> None:
    flags = ["groups.g.executors=2", "groups.g.executor_resource=theirs"]
    flags += ["compactor.scratch=/shared", "compactor.spark_secret_file=/shared/secret"]
    own, theirs = needs(*flags)
    assert (own.resource, own.cpus, own.memory_bytes) == ("own", 0, 0)
    assert (theirs.resource, theirs.cpus) == ("theirs", 2)


@pytest.mark.parametrize(
    ("known", "end", "final"),
    [
        ({}, "; no autoscaler adds such a node, so start one", True),
        (
            {"autoscaled": True},
            "; Ray's autoscaler may add a node when compactors are needed",
            False,
        ),
        (
            {"autoscaled": True, "infeasible": ({"own": 1.0, "CPU": 0.0},)},
            "; Ray's autoscaler reports that no node type has it",
            True,
        ),
        (
            {"autoscaled": True, "infeasible": ({"other": 1.0},)},
            "; Ray's autoscaler may add a node when compactors are needed",
            False,
        ),
        (
            {"types": (SMALL, LARGE)},
            "; Ray's autoscaler adds a node when compactors are needed",
            False,
        ),
        ({"types": (SMALL, BARE)}, "; no node type of Ray's autoscaler has it", True),
    ],
)
def test_whether_a_node_may_come(known: dict[str, Any], end: str, *, final: bool) -> None:
    wanted = needs("groups.g.executors=2", "groups.g.memory=2g")
    found = lack_of("it lacks", wanted, KnownNodes(nodes=(), **known))
    assert found == Lack(f"it lacks{end}", final=final)


def test_at_rest_ray_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(environ={}, flags=["groups.g.resource=own"])
    lever = RayCompactorLever(settings, node_resource="", log_folder="", edition="e")
    nodeless = KnownNodes(nodes=())
    # A lack takes two queries, as no answer is kept here.
    answers = [nodeless, nodeless, KnownNodes(nodes=(LARGE,)), nodeless, nodeless]
    monkeypatch.setattr(ray_compactors, "LOOK_AGE_MAX_S", -1.0)
    monkeypatch.setattr(ray_compactors, "known_nodes", lambda: answers.pop(0))

    async def look() -> None:
        assert (await lever.lack("g", asked=False)).sentence
        assert await lever.lack("g", asked=False) == Lack()
        # A node was there, so it matters again only when a compactor starts.
        assert await lever.lack("g", asked=False) == Lack()
        assert len(answers) == 2
        assert (await lever.lack("g", asked=True)).sentence
        assert await lever.lack("unknown", asked=True) == Lack()

    asyncio.run(look())
