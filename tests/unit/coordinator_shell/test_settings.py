"""What the settings say reaches the parts of a coordinator."""

from __future__ import annotations

import asyncio

import pytest

from common.config import load_settings
from common.errors import ConfigError
from common.settings import Settings
from coordinator.context import ShellContext
from coordinator.core.views import coordinator_status
from coordinator.wiring import CoordinatorParts, assemble
from tests.support.memory_store import MemoryStore
from tests.support.predictable import CountedIds
from tests.support.sim_loop import World

pytestmark = pytest.mark.unit


def assembled(*flags: str) -> CoordinatorParts:
    settings = load_settings(environ={}, flags=flags)

    async def put_together(settings: Settings) -> CoordinatorParts:
        world = World(1)
        context = ShellContext(
            MemoryStore(world), world, CountedIds("a"), lambda _event, **_fields: None, "coord-1"
        )
        return assemble(settings, context)

    return asyncio.run(put_together(settings))


def test_groups_with_and_without_compactors_are_known_from_the_start() -> None:
    parts = assembled(
        "groups.small.compactors=1",
        'services.default.groups=[{ group = "small", max_size = "1MB" }, { group = "large" }]',
    )
    status = parts.state.status(0.0)
    assert [group.group for group in status.groups] == ["large", "small"]


def test_patience_counts_the_heartbeats_that_compactors_send() -> None:
    flags = ("compactor.beat_interval_s=4", "coordinator.lost_answer_beats=5")
    limits = assembled(*flags).state._cluster.limits
    assert (limits.lost_answer_beats, limits.unlisted_max_s) == (5, 18.0)


def test_jobs_of_a_volume_and_its_slowest_rate_are_bounded() -> None:
    flags = ("coordinator.volume_running_max=1", "coordinator.volume_least_bytes_s=1MB")
    limits = assembled(*flags).state._cluster.limits
    assert (limits.volume_running_max, limits.volume_least_bytes_s) == (1, 1024**2)


def test_windows_of_a_group_are_those_of_the_settings() -> None:
    flags = (
        "groups.night.windows=0 22 * * * for 8h in Europe/Berlin",
        "groups.night.window_input_bytes=1TB",
        "groups.night.window_cost_s=10h",
        "groups.night.window_exempt=requests",
    )
    state = assembled(*flags).state
    (window,) = state.look(coordinator_status, "c", 12 * 3600.0, 0, 0).windows
    assert (window.kind, window.name, window.is_open) == ("group", "night", False)
    assert window.opens_text == "1970-01-01 22:00 (Europe/Berlin)"
    assert (window.bytes_max, window.cost_max_s) == (1024**4, 36_000.0)
    (rule,) = state._cluster.limits.windows.values()
    assert rule.exempt == {"requests"}


@pytest.mark.parametrize("flag", ["dispatcher=nope", "services.default.planner=nope"])
def test_a_plug_in_that_is_not_installed_stops_the_coordinator(flag: str) -> None:
    with pytest.raises(ConfigError, match="'nope' is not installed"):
        assembled(flag)
