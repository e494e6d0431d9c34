"""Plug-ins are found by name, whoever ships them."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType

import pytest

from common import plugins
from common.errors import ConfigError, PluginError, RequestError
from common.spi.planner import PlanParameters
from compactor.rewrite.by_size import BySize
from coordinator.plugins.planners.ratio import RatioPlanner
from neve import plugins as public

ROOT = Path(__file__).parents[3]


class Broken:
    def __init__(self) -> None:
        raise OSError("no licence")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("their_plugins")
    module.Broken, module.Mine = Broken, BySize  # type: ignore[attr-defined]  # made here
    monkeypatch.setitem(sys.modules, "their_plugins", module)
    names = {"mine": "Mine", "broken": "Broken", "gone": "Gone", "by-size": "Mine"}
    points = [
        EntryPoint(name, f"their_plugins:{target}", group)
        for name, target in names.items()
        for group in (plugins.CONFIGURERS.group, plugins.TRANSFORMS.group)
    ]
    monkeypatch.setattr(
        plugins, "installed_points", lambda group: EntryPoints(points).select(group=group)
    )


def test_built_ins_are_the_entry_points_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for point in plugins.EXTENSION_POINTS:
        assert project["entry-points"].get(point.group, {}) == point.built_in


def test_built_ins_are_found_without_installing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        plugins, "installed_points", lambda group: EntryPoints().select(group=group)
    )
    assert isinstance(plugins.load_configurer("by-size"), BySize)
    assert isinstance(plugins.load_planner("ratio"), RatioPlanner)
    assert "simple" in plugins.DISPATCHERS.names()


@pytest.mark.usefixtures("installed")
def test_a_configurer_that_does_not_load_says_why() -> None:
    assert isinstance(plugins.load_configurer("mine"), BySize)
    with pytest.raises(PluginError, match=r"\(their_plugins:Broken\) does not load: OSError: no"):
        plugins.load_configurer("broken")
    with pytest.raises(PluginError, match="does not load: AttributeError"):
        plugins.load_configurer("gone")
    with pytest.raises(PluginError, match=r"has no method apply\(\)"):
        plugins.load_transform("mine")
    with pytest.raises(PluginError, match=r"is claimed by .* and .*; uninstall one of them"):
        plugins.load_configurer("by-size")
    with pytest.raises(ConfigError, match="'nope' is not installed; installed: broken, by-size"):
        plugins.load_transform("nope")


class Stubborn:
    """Refuses options in ways that nobody promised."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def check(self, options: Mapping[str, str]) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (KeyError("size"), r"selector odd refuses its options: KeyError\('size'\)"),
        (ConfigError("size is missing"), "selector odd refuses its options: size is missing"),
        (RequestError("selector odd: no size"), "^selector odd: no size$"),
    ],
)
def test_an_error_in_an_option_check_names_the_plug_in(error: Exception, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        plugins.require_options("selector", "odd", Stubborn(error), {})


def test_the_public_names_are_those_that_parts_use() -> None:
    assert public.PlanParameters is PlanParameters
    assert sorted(public.__all__, key=str.lower) == sorted(set(public.__all__), key=str.lower)
    assert all(hasattr(public, name) for name in public.__all__)
