"""The repository's own files, for the tests that read them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("common", "coordinator", "compactor", "neve")
CODE = (*PACKAGES, "tests", "benchmarks", "scripts")
LEAVINGS = {"__pycache__", ".hypothesis", "spark-warehouse", "build", "dist"}


def name_of(path: Path) -> str:
    """Return a file's name as a message shows it."""
    return path.relative_to(ROOT).as_posix()


@cache
def python_files(*folders: str) -> tuple[Path, ...]:
    """Return the Python files below `folders`, all of them without one."""
    return tuple(path for path in files_below(folders or CODE) if path.suffix == ".py")


def files_below(folders: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files below some folders, without what builds and tests leave there."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            parts = set(path.relative_to(ROOT).parts)
            if path.is_file() and not parts & LEAVINGS and path.suffix != ".pyc":
                yield path


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a Python file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return every node of a Python file; several tests look at them all."""
    return tuple(ast.walk(tree_of(path)))
