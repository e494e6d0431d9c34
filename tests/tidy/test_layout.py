"""Packages map their modules, and files stay short."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.tidy.tree import PACKAGES, ROOT, name_of, python_files, tree_of

FILE_LINES_MAX = 800
MAP_LINE = re.compile(r"^ *([a-z_0-9]+)/? {2,}\S", re.MULTILINE)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_maps_its_modules(package: str) -> None:
    wrong = []
    for init in sorted((ROOT / package).rglob("__init__.py")):
        listed = set(MAP_LINE.findall(ast.get_docstring(tree_of(init)) or ""))
        there = children(init.parent)
        wrong += [f"{name_of(init)}: {name} has no line" for name in sorted(there - listed)]
        wrong += [f"{name_of(init)}: {name} is gone" for name in sorted(listed - there)]

    assert not wrong


def children(folder: Path) -> set[str]:
    """Return the names of a package's modules and sub-packages."""
    files = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
    return files | {path.parent.name for path in folder.glob("*/__init__.py")}


def test_no_file_is_too_long() -> None:
    """Ruff limits the statements of a function."""
    lengths = {name_of(path): path.read_text("utf-8").count("\n") for path in python_files()}

    assert not {name: length for name, length in lengths.items() if length > FILE_LINES_MAX}
