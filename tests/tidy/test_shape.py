"""One file, one subject; one function, one screen; every exception with its reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.tree import PACKAGES, ROOT, name_of, nodes_of, python_files, tree_of

FILE_LINES_MAX = 800
TEST_FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 60
# What switches a check off names the check, and a reason follows on the same line.
BARE = re.compile(
    r"#\s*(?:noqa(?::\s*[A-Z0-9]+(?:,\s*[A-Z0-9]+)*)?|type:\s*ignore(?:\[[\w, -]+\])?)\s*$"
)


def lines_max(path: Path) -> int:
    return FILE_LINES_MAX if path.relative_to(ROOT).parts[0] in PACKAGES else TEST_FILE_LINES_MAX


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_no_file_is_too_long() -> None:
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in python_files()}

    assert not [
        f"{name_of(path)}: {length} lines, at most {lines_max(path)}"
        for path, length in lengths.items()
        if length > lines_max(path)
    ]


def test_no_function_is_too_long() -> None:
    assert not [
        f"{name_of(path)}:{node.lineno}: {node.name} has {length} lines"
        for path in python_files()
        for node in functions(path)
        if (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]


def test_every_module_says_what_lives_there() -> None:
    assert not [name_of(path) for path in python_files() if not ast.get_docstring(tree_of(path))]


def test_every_folder_of_a_package_is_a_package() -> None:
    folders = {path.parent for path in python_files(*PACKAGES)}

    assert not [
        name_of(folder) for folder in sorted(folders) if not (folder / "__init__.py").is_file()
    ]


def test_every_silenced_check_carries_its_reason() -> None:
    assert not [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in python_files()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if BARE.search(line)
    ]


def test_fakes_satisfy_ports_and_nothing_is_patched() -> None:
    assert not [
        f"{name_of(path)}:{node.lineno}: write a fake in tests/support"
        for path in python_files()
        for node in nodes_of(path)
        if (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("unittest"))
        or (isinstance(node, ast.Import) and any(n.name.startswith("unittest") for n in node.names))
    ]


STARTERS = re.compile(
    r"\b(?:LocalStack|InstalledStack)\.start\b|\brunning\(|\bRedisServer\(|\bStage\("
)
"""Of a stack, or of a server that outlives a program that is ended."""


def test_every_program_that_starts_a_service_ends_it_when_it_is_ended() -> None:
    """SIGTERM ends Python at once, without the blocks that would end what it has started."""
    programs = [
        path
        for folder in ("benchmarks", "tests/chaos", "tests/fuzz")
        for path in python_files(folder)
        if STARTERS.search(path.read_text("utf-8"))
    ]
    mains = {
        path if "__main__" in path.read_text("utf-8") else path.parent / "__main__.py"
        for path in programs
    }
    assert len(mains) > 8
    assert not [
        name_of(path) for path in mains if "exit_on_sigterm()" not in path.read_text("utf-8")
    ]
