"""Every package's `__init__` is a map: each module has a line there, in reading order."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.tidy.tree import PACKAGES, ROOT, name_of, tree_of

ENTRY = re.compile(r"^ *([a-z_0-9]+)/? {2,}\S", re.MULTILINE)


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_every_package_maps_its_modules(package: str) -> None:
    wrong = []
    for init in sorted((ROOT / package).rglob("__init__.py")):
        listed = set(ENTRY.findall(ast.get_docstring(tree_of(init)) or ""))
        there = children(init.parent)
        wrong += [f"{name_of(init)}: {name} has no line" for name in sorted(there - listed)]
        wrong += [f"{name_of(init)}: {name} is gone" for name in sorted(listed - there)]

    assert not wrong


def children(folder: Path) -> set[str]:
    """Return the names of a package's modules and sub-packages."""
    files = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
    return files | {path.parent.name for path in folder.glob("*/__init__.py")}
