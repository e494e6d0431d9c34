"""No setting is dead: each is read where it belongs, or said to be without effect."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import pytest

from common.config import SECTIONS
from common.model.fields import known_fields
from common.model.table import FIXED_SETTINGS, PLANNER_SETTINGS, TableSettings
from coordinator.plugins.planners.bin_pack import BinPackPlanner
from coordinator.plugins.planners.budgeted import BudgetedPlanner
from coordinator.plugins.planners.ratio import RatioPlanner
from tests.tidy.tree import PACKAGES, ROOT, name_of, nodes_of, python_files

ACTORS = ("coordinator/actor", "compactor/actor", "neve/gateway/actor")
READERS = {
    "store": ("common/metadata/redis/",),
    "coordinator": ("coordinator/",),
    "compactor": ("compactor/", "common/compactor_needs.py"),
    "gateway": ("neve/gateway/", "neve/local/"),
    "readers": ("common/readers/",),
    "autoscaler": ("coordinator/core/autoscaling.py",),
    "control": ("coordinator/registry.py",),
    "cluster": ("neve/serve/",),
    "ingest": ("coordinator/wiring.py", "neve/gateway/"),
    "catalog": ("coordinator/lake.py", "common/lake/open.py"),
    "access": ("neve/gateway/", "neve/local/"),
    "notify": ("neve/gateway/", "common/control_settings.py", "coordinator/actor.py"),
    "trace": ("common/tracing.py",),
    "log": tuple(f"{name}.py" for name in ("common/log_files", *ACTORS)),
}
"""Section → where its settings must be read: elsewhere a field of the same name is another."""
ABOUT_TABLE_SETTINGS = (
    "common/model/table.py",
    "common/metadata/codec/table.py",
    "neve/gateway/table_settings.py",
    "neve/setting_values.py",
    "coordinator/plugins/planners/",
)
"""Where settings of tables are declared, stored or checked; and the planners."""


def reads(paths: Iterable[Path]) -> set[str]:
    """Return the names of all attributes that are read in some files."""
    return {
        node.attr
        for path in paths
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_is_read_by_the_part_that_it_is_for(section: str) -> None:
    own = [path for path in python_files(*PACKAGES) if name_of(path).startswith(READERS[section])]
    unread = {entry.name for entry in fields(SECTIONS[section])} - reads(own)
    assert not unread, f"nothing in {', '.join(READERS[section])} reads {section}.{sorted(unread)}"


def test_a_setting_of_a_table_is_read_or_known_to_be_for_planners() -> None:
    about, files = ABOUT_TABLE_SETTINGS, python_files(*PACKAGES)
    elsewhere = [path for path in files if not name_of(path).startswith(about)]
    names = {entry.name for entry in known_fields(TableSettings)}
    assert names >= PLANNER_SETTINGS | FIXED_SETTINGS
    unread = names - PLANNER_SETTINGS - FIXED_SETTINGS - reads(elsewhere)
    assert not unread, "read it, or say in PLANNER_SETTINGS that only planners do"


@pytest.mark.parametrize("planner", [RatioPlanner, BinPackPlanner, BudgetedPlanner])
def test_a_planner_reads_the_settings_that_it_declares_and_no_others(
    planner: type[RatioPlanner | BinPackPlanner | BudgetedPlanner],
) -> None:
    own = ROOT / (planner.__module__.replace(".", "/") + ".py")
    names = {entry.name for entry in known_fields(TableSettings)}
    assert reads([own]) & names == planner.setting_names
