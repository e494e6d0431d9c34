"""The glossary's words are the only ones for their things."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.tidy.tree import PACKAGES, ROOT, name_of, nodes_of, python_files

GLOSSARY = ROOT / "docs" / "glossary.md"
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
VAGUE_ENDINGS = {"manager", "helper", "helpers", "util", "utils", "info", "data"}
VAGUE_BEGINNINGS = {"process", "handle"}
# The coordinator's only mutator, and the doors of frameworks that name their own hooks.
ALLOWED = {"handle", "handle_events"}
COUNTED = re.compile(
    r"\{[^{}]*\} (?:(?:more|selected) )?(?:files|rows|jobs|tablets|compactors|tables|slots|marks)\b"
)
"""A count in an f-string with what is counted, as one would not write it for `1`."""


def test_the_glossary_says_each_word_once() -> None:
    words = [row[0].strip("* ") for row in rows()]

    assert len(words) > 30
    assert sorted(set(words)) == sorted(words)


def test_the_glossary_refuses_words() -> None:
    assert {"shard", "sstable", "picker"} <= refused()


def test_no_name_uses_a_word_that_the_glossary_refuses() -> None:
    assert not [
        f"{name_of(path)}:{line}: {name} says {', '.join(sorted(wrong))}; see docs/glossary.md"
        for path, line, name in names()
        if (wrong := words_of(name) & refused())
    ]


def test_the_command_line_counts_one_thing_in_the_singular() -> None:
    """`format_count` writes both `1 file` and `2 files`."""
    assert not [
        f"{name_of(path)}:{number}: {found[0]}: use common.units.format_count"
        for path in python_files()
        if name_of(path).startswith("neve/cli/")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if (found := COUNTED.search(line))
    ]


def test_no_name_is_vague() -> None:
    assert not [
        f"{name_of(path)}:{line}: {name} says nothing; name what it is or does"
        for path, line, name in names()
        if is_vague(name)
    ]


def is_vague(name: str) -> bool:
    words = [word.lower() for word in WORD.findall(name)]
    if not words or name in ALLOWED:
        return False
    is_class = name.lstrip("_")[:1].isupper() and not name.isupper()
    ends_vaguely = is_class and len(words) > 1 and words[-1] in VAGUE_ENDINGS
    begins_vaguely = len(words) > 1 and "_" in name and words[0] in VAGUE_BEGINNINGS
    return ends_vaguely or (begins_vaguely and name.lstrip("_").startswith(("process_", "handle_")))


def words_of(name: str) -> set[str]:
    """Return the words of a name, singular and in small letters."""
    words = {word.lower() for word in WORD.findall(name)}
    return words | {word.removesuffix("s") for word in words}


@cache
def refused() -> frozenset[str]:
    return frozenset(
        word for row in rows() for word in re.findall(r"`([^`]+)`", row[2]) if word.isalpha()
    )


@cache
def rows() -> tuple[tuple[str, str, str], ...]:
    found = []
    for line in GLOSSARY.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("| **") and len(cells) == 3:
            found.append((cells[0], cells[1], cells[2]))
    return tuple(found)


def names() -> Iterator[tuple[Path, int, str]]:
    """Yield every name that the packages define: modules, classes, functions, arguments, fields."""
    for path in python_files(*PACKAGES):
        yield path, 1, path.stem
        for node in nodes_of(path):
            for line, name in _defined(node):
                yield path, line, name


def _defined(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.lineno, node.name
    elif isinstance(node, ast.arg):
        yield node.lineno, node.arg
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.lineno, node.target.id
