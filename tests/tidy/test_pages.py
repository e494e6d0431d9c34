"""Pages name modules, classes and functions that exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, name_of, python_files

PAGES = sorted(path for path in (ROOT / "docs").rglob("*.md") if path.name != "glossary.md")
"""The glossary also lists words that no code may have."""
OTHERS = {"UploadPartCopy"}
"""Names of others: an operation of S3."""

BANNED = re.compile(r"\b(told|tells?|said|nobody|whoever|whom|of which|beside)\b", re.IGNORECASE)
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
GENERATED = "do not edit"


@cache
def words_of_code() -> frozenset[str]:
    files = python_files("common", "coordinator", "compactor", "neve", "benchmarks")
    return frozenset(word for path in files for word in re.findall(r"\w+", path.read_text("utf-8")))


@cache
def modules() -> tuple[str, ...]:
    return tuple(f"/{name_of(path)}" for path in python_files())


def exists(written: str) -> bool:
    """Return whether a path is a file, whole or from some folder on."""
    return any(module.endswith(f"/{written}") for module in modules())


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    written = set(re.findall(r"`([\w./-]+\.py)`", page.read_text("utf-8")))

    assert not [path for path in sorted(written) if not exists(path)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_class_that_a_page_names_exists(page: Path) -> None:
    written = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)+)`", page.read_text("utf-8")))

    assert not sorted(written - words_of_code() - OTHERS)


def test_the_changelog_takes_lines_under_unreleased() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text("utf-8").splitlines()
    releases = [line for line in lines if line.startswith("## ")]
    sections = {line for line in lines if line.startswith("### ")}

    assert releases[0] == "## [Unreleased]"
    assert sections <= {f"### {name}" for name in ("Added", "Changed", "Fixed", "Security")}
    assert not [line for line in lines if len(line) > 120]
    assert "CHANGELOG.md merge=union" in (ROOT / ".gitattributes").read_text("utf-8")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md", ROOT / "CHANGELOG.md"], ids=name_of)
def test_a_page_is_in_plain_english(page: Path) -> None:
    text = page.read_text("utf-8")
    if GENERATED not in text:
        assert not [match.group() for match in BANNED.finditer(CODE.sub("", text))]
