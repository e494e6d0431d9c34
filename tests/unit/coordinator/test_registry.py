"""Plug-ins are found by name, whoever ships them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType

import pytest

from common import plugins
from common.errors import ConfigError, PluginError, SettingError
from common.model.group import Service
from common.model.job import Plan
from common.model.table import TableSettings
from common.settings import CoordinatorSettings, Settings
from common.spi.planner import (
    Planner,
    PlanParameters,
    check_options,
    fixed_settings,
    settings_read_by,
)
from coordinator import registry
from coordinator.plugins.planners.ratio import RatioPlanner
from tests.support.planning import TABLET, files_of
from tests.support.scripted import install
from tests.unit.coordinator.test_planning import TABLE, tablet


class Broken:
    def __init__(self) -> None:
        raise OSError("no licence")


class Planless:
    pass


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with a planner, one that breaks, and one that claims a built-in's name."""
    module = ModuleType("their_planners")
    module.Broken, module.Planless, module.Mine = Broken, Planless, RatioPlanner  # type: ignore[attr-defined]  # made here
    monkeypatch.setitem(sys.modules, "their_planners", module)
    points = [
        EntryPoint(name, f"their_planners:{target}", plugins.PLANNERS.group)
        for name, target in {
            "mine": "Mine", "broken": "Broken", "planless": "Planless", "gone": "Gone",
            "ratio": "Mine",
        }.items()
    ]  # fmt: skip
    monkeypatch.setattr(
        plugins, "installed_points", lambda group: EntryPoints(points).select(group=group)
    )


def test_a_package_that_is_installed_meanwhile_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    os.utime(tmp_path, (1.0, 1.0))
    assert "scripted" not in plugins.PLANNERS.names()
    install(tmp_path)

    assert "scripted" in plugins.PLANNERS.names()


@pytest.mark.usefixtures("installed")
def test_a_planner_of_another_package_is_found() -> None:
    assert isinstance(plugins.load_planner("mine"), RatioPlanner)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (
            "nope",
            ConfigError,
            "'nope' is not installed; installed: bin-pack, broken, budgeted, delta, gone",
        ),
        ("broken", PluginError, r"\(their_planners:Broken\) does not load: OSError: no licence"),
        ("gone", PluginError, "does not load: AttributeError"),
        ("planless", PluginError, r"'planless' has no method plan\(\)"),
        ("ratio", PluginError, "is claimed by .* and .*; uninstall one of them"),
    ],
)
def test_a_planner_that_does_not_load_says_why(
    name: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        plugins.load_planner(name)


def test_tablets_are_planned_by_what_is_configured() -> None:
    plan = registry.planner_for(Settings())
    files = files_of(dict.fromkeys("abcd", 10))
    assert [job.tablet for job in plan(tablet(files=files), TABLE, 0.0).jobs] == [TABLET]


def test_planners_without_a_tracker_owe_what_the_settings_say() -> None:
    files = files_of(dict.fromkeys("abcdefgh", 10))

    def owed(planner: str) -> tuple[str, int] | None:
        settings = Settings(
            coordinator=CoordinatorSettings(untracked_backlog_bytes=1000),
            services={"default": Service(planner=planner)},
        )
        found = registry.planner_for(settings)(tablet(files=files), TABLE, 0.0).backlog
        return None if found is None else (found.strategy, found.size_bytes)

    assert "bin-pack" not in registry.load_trackers()
    assert owed("bin-pack") == ("fixed", 1000)
    assert owed("ratio") == ("ratio", 80)


def test_a_planner_that_is_missing_stops_the_start() -> None:
    settings = Settings(services={"default": Service(planner="nope")})
    with pytest.raises(ConfigError, match="'nope' is not installed"):
        registry.planner_for(settings)


class Strict(RatioPlanner):
    """Declares what it knows, and refuses more than names."""

    option_names = frozenset({"small_bytes"})
    setting_names = frozenset({"target_bytes"})

    def check(self, options: Mapping[str, object]) -> None:
        if "small_bytes" not in options:
            raise KeyError("small_bytes is missing")


class Old:
    """As planners were before they declared anything."""

    def plan(self, parameters: PlanParameters) -> Plan:
        return Plan()


@pytest.mark.parametrize(
    ("planner", "options", "message"),
    [
        (RatioPlanner(), {"ratoi": 2.0}, "planner 'p': option 'ratoi' is unknown; did you mean 'r"),
        (RatioPlanner(), {"x": 2.0}, "option 'x' is unknown; known: backlog_mode, file_limit"),
        (RatioPlanner(), {"ratio": 0.5}, "planner 'p' refuses its options: .*ratio is 0.5, exp"),
        (RatioPlanner(), {"max_files": "ten"}, "max_files is 'ten', expected a whole number"),
        (Strict(), {}, "planner 'p' refuses its options: KeyError.*small_bytes is missing"),
    ],
)
def test_a_planner_refuses_options(
    planner: Planner, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_options("p", planner, options)


def test_a_planner_that_declares_nothing_takes_what_it_is_given() -> None:
    check_options("old", Old(), {"whatever": 1})
    check_options("p", Strict(), {"small_bytes": 1})
    assert settings_read_by(Old()) is None


def test_options_of_every_service_are_checked_at_the_start() -> None:
    wrong = Service(name="night", planner="ratio", options={"ratoi": 1.0})
    settings = Settings(services={"default": Service(), "night": wrong})
    with pytest.raises(SettingError, match="service 'night': planner 'ratio': option") as refused:
        registry.planner_for(settings)
    assert refused.value.names == ("services.night.planner", "services.night.options.ratoi")


class Greedy:
    """Fixes a setting that is the user's."""

    def plan(self, parameters: PlanParameters) -> Plan:
        return Plan()

    def fixed_settings(
        self, options: Mapping[str, object], settings: TableSettings
    ) -> Mapping[str, object]:
        return {str(options["name"]): 7}


def test_a_planner_fixes_no_setting_that_is_the_users() -> None:
    fixed = fixed_settings("own", Greedy(), {"name": "log_segment_bytes"}, TableSettings())
    assert fixed == {"log_segment_bytes": 7}
    with pytest.raises(ConfigError, match="fixes setting 'weight', expected one of keep_deleted_r"):
        fixed_settings("own", Greedy(), {"name": "weight"}, TableSettings())
    with pytest.raises(ConfigError, match=r"'own' refuses its options: KeyError\('name'\)"):
        fixed_settings("own", Greedy(), {}, TableSettings())
    assert fixed_settings("ratio", RatioPlanner(), {}, TableSettings()) == {}


def test_settings_that_no_planner_reads_are_told() -> None:
    told = registry.unread_settings(registry.load_planners(Settings().services))
    assert told == {
        "target_bytes": "has no effect yet: no planner that the table uses reads it (ratio)"
    }


def test_each_planner_adds_what_it_reads() -> None:
    own: dict[str, Planner] = {"own": Strict()}
    unread = {"ratio", "lowest_ratio", "file_limit", "backlog_mode"}
    assert registry.unread_settings(own).keys() == unread
    assert registry.unread_settings({**own, "ratio": RatioPlanner()}) == {}


def test_a_planner_that_does_not_tell_may_read_anything() -> None:
    assert registry.unread_settings({"old": Old()}) == {}


def test_a_table_is_told_what_its_own_planner_does_not_read() -> None:
    unread = registry.unread_of_table(Settings())
    assert unread(TableSettings()).keys() == {"target_bytes"}
    assert unread(TableSettings(planner="ratio")).keys() == {"target_bytes"}
    assert unread(TableSettings(planner="gone")) == {}


def test_planners_are_loaded_when_a_table_names_them() -> None:
    planners = registry.InstalledPlanners({"own": Strict()})
    assert isinstance(planners["ratio"], RatioPlanner)
    assert planners["ratio"] is planners["ratio"]
    assert planners.get("gone") is None
    assert "ratio" in set(planners)
