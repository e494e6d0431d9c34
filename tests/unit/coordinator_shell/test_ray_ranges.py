"""Ranges in tasks: what a worker keeps from one range for the next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.settings import Settings
from coordinator import ray_compactors as ray_ranges
from coordinator.ports import PlanTablet
from coordinator.registry import planner_for


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Return the settings whose planners were loaded, in turn."""
    found = list[Settings]()

    def load(settings: Settings) -> PlanTablet:
        found.append(settings)
        return planner_for(settings)

    monkeypatch.setattr(ray_ranges, "planner_for", load)
    return found


def test_planners_are_loaded_once_until_the_settings_are_others(loaded: list[Settings]) -> None:
    planners = ray_ranges.LoadedPlanners()
    one = Settings()
    other = replace(one, coordinator=replace(one.coordinator, full_scan_tasks=1))
    first = planners.of(one)

    # A task reads its settings from its message, so they are equal and not the same.
    assert planners.of(Settings()) is first
    assert planners.of(other) is not first
    assert planners.of(one) is not first
    assert loaded == [one, other, one]
