"""Packages map their modules; files stay short; programs end what they start."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.tidy.tree import PACKAGES, ROOT, name_of, python_files, tree_of

FILE_LINES_MAX = 800
MAP_LINE = re.compile(r"^ *([a-z_0-9]+)/? {2,}\S", re.MULTILINE)
STARTERS = re.compile(
    r"\b(?:LocalStack|InstalledStack)\.start\b|\brunning\(|\bRedisServer\(|\bStage\("
)
"""What starts a stack, or a server that outlives a program that is ended."""


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


def test_every_program_that_starts_a_service_ends_it_when_it_is_ended() -> None:
    """SIGTERM ends Python at once, without the blocks that would end what it has started."""
    mains = {
        path if "__main__" in text else path.parent / "__main__.py"
        for path in python_files("benchmarks", "tests/chaos", "tests/fuzz")
        if STARTERS.search(text := path.read_text("utf-8"))
    }

    assert len(mains) > 8
    assert not [name_of(main) for main in mains if "exit_on_sigterm()" not in main.read_text()]
