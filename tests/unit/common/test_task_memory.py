"""The memory of a task that `auto` chooses, from the memory of a machine or a node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from common.compactor_needs import (
    COMPACTOR_BYTES,
    MACHINE_SHARE,
    NODE_BYTES,
    SERVICE_BYTES,
    TASK_BYTES_LEAST,
    TASK_BYTES_MOST,
    TASK_BYTES_USUAL,
    given_task_memory,
    group_needs,
    machine_task_memory,
    node_task_memory,
    task_bytes,
    task_limit_bytes,
    tasks_memory_bytes,
    with_task_memory,
)
from common.config import load_settings
from common.runtime import control_group_bytes
from common.settings import CompactorSettings
from compactor.spark.application import executor_bytes
from compactor.spark.driver_protocol import driver_settings
from neve import api
from neve.cli.compactors import task_memory_texts
from neve.local import StackOptions

MB, GB = 1 << 20, 1 << 30
USUAL = CompactorSettings()
"""Two tasks, a heap of 1 GB with 256 MB for the rest of its JVM, and a driver of 512 MB."""
JVM_BYTES = GB + 256 * MB + 512 * MB


def node(memory_bytes: int, cpus: float = 2) -> dict[str, float]:
    return {"CPU": cpus, "memory": float(memory_bytes)}


@pytest.mark.parametrize("machine_gb", [8, 10, 12])
def test_tasks_share_what_a_machine_has_left(machine_gb: int) -> None:
    memory = machine_task_memory([USUAL], machine_gb * GB)

    left = int(MACHINE_SHARE * machine_gb * GB) - SERVICE_BYTES - COMPACTOR_BYTES - JVM_BYTES
    assert memory is not None
    assert memory.task_bytes == left // 2 // MB * MB
    assert TASK_BYTES_LEAST < memory.task_bytes < TASK_BYTES_MOST
    assert f"75% of the {machine_gb}.0 GiB of this machine" in memory.why
    assert "for 2 tasks" in memory.why


def test_the_share_is_bounded_and_the_same_at_every_start() -> None:
    small, large = (machine_task_memory([USUAL], size * GB) for size in (2, 512))

    assert small is not None
    assert large is not None
    assert (small.task_bytes, large.task_bytes) == (TASK_BYTES_LEAST, TASK_BYTES_MOST)
    assert machine_task_memory([USUAL], 512 * GB) == large


def test_compactors_share_a_machine_with_those_whose_memory_is_given() -> None:
    alone = machine_task_memory([USUAL], 16 * GB)
    two = machine_task_memory([USUAL, USUAL], 16 * GB)
    given = replace(USUAL, task_memory="1g")
    with_given = machine_task_memory([USUAL, given], 16 * GB)

    assert alone is not None
    assert two is not None
    assert with_given is not None
    assert two.task_bytes < with_given.task_bytes < alone.task_bytes
    assert machine_task_memory([given], 16 * GB) is None


def test_a_pod_gives_its_compactor_all_of_it() -> None:
    memory = node_task_memory(USUAL, node(5 * GB), 0, alone=True)

    assert memory.task_bytes == (5 * GB - NODE_BYTES - COMPACTOR_BYTES - JVM_BYTES) // 2 // MB * MB
    assert "5.0 GiB of the node" in memory.why
    # The smaller of Ray's figure and the limit of the container counts.
    limited = node_task_memory(USUAL, node(64 * GB), 5 * GB, alone=True)
    assert limited == memory
    # What executors then request from Ray is there.
    started = driver_settings(replace(USUAL, task_memory=memory.size), name="any")
    assert started.task_bytes == memory.task_bytes
    assert executor_bytes(started) <= 5 * GB


def test_compactors_share_a_node_by_its_cpus() -> None:
    shared = node_task_memory(USUAL, node(20 * GB, cpus=8), 0, alone=False)
    alone = node_task_memory(USUAL, node(20 * GB, cpus=8), 0, alone=True)

    quarter = (20 * GB - NODE_BYTES) // 4 - COMPACTOR_BYTES - JVM_BYTES
    assert shared.task_bytes == quarter // 2 // MB * MB
    assert "25% of 20.0 GiB" in shared.why
    assert alone.task_bytes == TASK_BYTES_MOST


def test_without_a_figure_a_task_has_the_usual_memory() -> None:
    elsewhere = replace(USUAL, executor_resource="theirs")

    for memory in (
        node_task_memory(USUAL, {}, 0, alone=True),
        node_task_memory(elsewhere, node(64 * GB), 0, alone=True),
    ):
        assert memory.task_bytes == TASK_BYTES_USUAL
        assert memory.why.startswith("auto: ")


def test_the_limit_follows_and_bounds_what_is_chosen() -> None:
    assert task_limit_bytes(replace(USUAL, task_memory="300m")) == 1536 * MB
    assert task_limit_bytes(replace(USUAL, task_memory="4g")) == 5 * GB
    assert task_limit_bytes(replace(USUAL, task_memory_max="0")) == 0

    bounded = replace(USUAL, task_memory_max="600m")
    chosen = node_task_memory(bounded, node(64 * GB), 0, alone=True)
    assert chosen.task_bytes == 600 * MB
    little = replace(USUAL, task_memory_max="400m")
    on_machine = machine_task_memory([little], 64 * GB)
    assert on_machine is not None
    assert on_machine.task_bytes == 400 * MB


def test_settings_get_the_chosen_memory_and_its_reason() -> None:
    flags = ["groups.a.slots=1", "groups.b.task_memory=1g", "groups.c.task_memory=auto"]
    settings = load_settings(environ={}, flags=flags)
    memory = machine_task_memory([settings.compactor_of("a")], 8 * GB)
    assert memory is not None

    chosen = with_task_memory(settings, memory)

    assert with_task_memory(settings, None) == settings
    for group in ("a", "c"):
        assert task_bytes(chosen.compactor_of(group)) == memory.task_bytes
        assert given_task_memory(chosen, group) == memory
        assert tasks_memory_bytes(chosen.compactor_of(group)) == 2 * memory.task_bytes
    assert given_task_memory(chosen, "b").task_bytes == GB
    assert given_task_memory(chosen, "b").why == "flag --set groups.b.task_memory"


def test_a_node_needs_the_least_memory_until_it_is_chosen() -> None:
    settings = load_settings(environ={}, flags=["groups.a.resource=own"])
    (before,) = group_needs(settings, "a")
    chosen = with_task_memory(settings, machine_task_memory([settings.compactor], 64 * GB))
    (after,) = group_needs(chosen, "a")

    assert before.memory_bytes == GB + 256 * MB + 2 * TASK_BYTES_LEAST
    assert after.memory_bytes == GB + 256 * MB + 2 * TASK_BYTES_MOST


def test_a_stack_declares_to_ray_what_its_tasks_get() -> None:
    usual = StackOptions(compactors=2)

    chosen = usual.with_task_memory(64 * GB)

    memory = usual.task_memory(64 * GB)
    assert memory is not None
    assert chosen.service.compactor.task_memory == memory.size
    more_bytes = 4 * (memory.task_bytes - TASK_BYTES_USUAL)
    assert chosen.logical_bytes == usual.logical_bytes + more_bytes
    assert chosen.with_task_memory(8 * GB) == chosen


def test_the_limit_of_a_container_is_read(tmp_path: Path) -> None:
    assert control_group_bytes(tmp_path) == 0
    (tmp_path / "memory.max").write_text("max\n")
    assert control_group_bytes(tmp_path) == 0
    (tmp_path / "memory.max").write_text(f"{5 * GB}\n")
    assert control_group_bytes(tmp_path) == 5 * GB


def test_the_status_shows_each_memory_once() -> None:
    one = api.Compactor(
        compactor="a-1",
        group="a",
        node="n",
        slots=2,
        busy=0,
        heard_ago_s=0.0,
        task_memory="1.0 GiB per task (auto: x)",
    )
    another = replace(one, compactor="b-1", group="b")

    assert task_memory_texts([one, another]) == ["1.0 GiB per task (auto: x)"]
    larger = replace(another, task_memory="2.0 GiB per task (default)")
    assert task_memory_texts([one, larger]) == [
        "a: 1.0 GiB per task (auto: x)",
        "b: 2.0 GiB per task (default)",
    ]
    assert task_memory_texts([replace(one, task_memory="")]) == []
