"""The glossary's words are the only ones for their things."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.tree import PACKAGES, ROOT, name_of, nodes_of, python_files, tree_of

GLOSSARY = (ROOT / "docs" / "glossary.md").read_text("utf-8")
ROW = re.compile(r"^\| \*\*(.+?)\*\* *\|.*\|([^|]*)\|$", re.MULTILINE)
REFUSED = {
    word
    for _, refused in ROW.findall(GLOSSARY)
    for word in re.findall(r"`([^`]+)`", refused)
    if word.isalpha()
}
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def test_the_glossary_says_each_word_once_and_refuses_others() -> None:
    words = [word for word, _ in ROW.findall(GLOSSARY)]

    assert len(words) > 30
    assert sorted(set(words)) == sorted(words)
    assert {"shard", "sstable", "picker"} <= REFUSED


def test_no_name_uses_a_word_that_the_glossary_refuses() -> None:
    assert not [
        f"{name_of(path)}:{line}: {name} says {', '.join(sorted(wrong))}; see docs/glossary.md"
        for path, line, name in names()
        if (wrong := words_of(name) & REFUSED)
    ]


def words_of(name: str) -> set[str]:
    """Return the words of a name, singular and in small letters."""
    words = {word.lower() for word in WORD.findall(name)}
    return words | {word.removesuffix("s") for word in words}


def names() -> Iterator[tuple[Path, int, str]]:
    """Yield every name that the packages define: modules, classes, functions, arguments, fields."""
    for path in python_files(*PACKAGES):
        yield path, 1, path.stem
        for node in nodes_of(path):
            match node:
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    yield path, node.lineno, node.name
                case ast.arg() | ast.AnnAssign(target=ast.Name()):
                    target = node.target if isinstance(node, ast.AnnAssign) else node
                    yield path, node.lineno, getattr(target, "id", getattr(target, "arg", ""))


def test_no_public_class_has_the_name_of_another() -> None:
    """Names of operators, such as `Table`, may also name a value of `common.model`."""
    classes = Counter(
        node.name
        for path in python_files(*PACKAGES)
        if not name_of(path).startswith(("neve/api/", "neve/client/"))
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )

    # A selector and a configurer, each by the name that users write.
    assert [name for name, count in classes.items() if count > 1] == ["BySize"]
