"""Pages name modules, classes, links and commands that exist, in plain English."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, name_of, python_files

README, DEVELOPMENT = ROOT / "README.md", ROOT / "docs" / "development.md"
DOCS = sorted(path for path in (ROOT / "docs").rglob("*.md"))
PAGES = [path for path in DOCS if path.name != "glossary.md"]
"""The glossary also lists words that no code may have."""
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
OTHERS = {"UploadPartCopy"}
"""Names of others: an operation of S3."""

BANNED = re.compile(r"\b(told|tells?|said|nobody|whoever|whom|of which|beside)\b", re.IGNORECASE)
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)


@cache
def words_of_code() -> frozenset[str]:
    files = python_files("common", "coordinator", "compactor", "neve", "benchmarks")
    return frozenset(word for path in files for word in re.findall(r"\w+", path.read_text("utf-8")))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_module_and_class_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    modules = [f"/{name_of(path)}" for path in python_files()]
    paths = set(re.findall(r"`([\w./-]+\.py)`", text))
    classes = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)+)`", text))

    assert not [path for path in sorted(paths) if not any(m.endswith(f"/{path}") for m in modules)]
    assert not sorted(classes - words_of_code() - OTHERS)


@pytest.mark.parametrize("page", [*PAGES, README, ROOT / "CHANGELOG.md"], ids=name_of)
def test_a_page_is_in_plain_english(page: Path) -> None:
    text = page.read_text("utf-8")
    if "do not edit" not in text:
        assert not [match.group() for match in BANNED.finditer(CODE.sub("", text))]


@pytest.mark.parametrize("page", [*DOCS, README], ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", CODE.sub("", page.read_text("utf-8")))

    assert not [target for target in targets if not (page.parent / target).exists()]


def commands(page: Path) -> list[list[str]]:
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    lines = [line.partition("#")[0] for block in blocks for line in block.splitlines()]
    return [shlex.split(part) for line in lines for part in line.split("&&") if part.strip()]


@pytest.mark.parametrize("page", [README, DEVELOPMENT], ids=name_of)
def test_commands_name_targets_variables_and_files_that_exist(page: Path) -> None:
    made = [words for words in commands(page) if "make" in words]
    variables = [word.partition("=")[0] for words in made for word in words if "=" in word]
    tests = [word for words in commands(page) for word in words if word.startswith("tests/")]

    assert made
    assert not [words for words in made if not re.search(rf"^{words[-1]}:", MAKEFILE, re.M)]
    assert not [name for name in variables if name not in MAKEFILE]
    assert not [path for path in tests if not (ROOT / path).exists()]


def test_the_readme_starts_with_two_commands_and_installs_as_make_does() -> None:
    installs = [" ".join(words[2:]) for words in commands(README) if words[0] == "pip"]

    assert [words[1] for words in commands(README) if words[0] == "make"] == ["demo", "test"]
    assert len(installs) == 2
    as_made = [line.replace("requirements/lock.txt", "$(LOCK)") for line in installs]
    assert not [line for line in as_made if line not in MAKEFILE]


def test_folders_and_declarations_of_the_page_for_developers_exist() -> None:
    text = DEVELOPMENT.read_text("utf-8")
    paths = re.findall(r"`((?:common|coordinator|compactor|neve|tests|docs)/[^` ]*)`", text)

    assert not [path for path in paths if not (ROOT / path).exists()]
    for name, path in re.findall(r"`([A-Z]\w+)` in `([^`]+)`", text):
        pattern = rf"^(class {name}\b|{name}\b.*=)"
        assert re.search(pattern, (ROOT / path).read_text("utf-8"), re.M), (name, path)


def test_the_changelog_takes_lines_under_unreleased() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text("utf-8").splitlines()
    sections = {line for line in lines if line.startswith("### ")}

    assert next(line for line in lines if line.startswith("## ")) == "## [Unreleased]"
    assert sections <= {f"### {name}" for name in ("Added", "Changed", "Fixed", "Security")}
    assert "CHANGELOG.md merge=union" in (ROOT / ".gitattributes").read_text("utf-8")
