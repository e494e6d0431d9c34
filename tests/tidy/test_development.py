"""The page for developers names files and commands that exist."""

from __future__ import annotations

import re
import shlex
import subprocess

from tests.tidy.tree import ROOT

PAGE = (ROOT / "docs" / "development.md").read_text("utf-8")
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
RECORDED = re.search(r"The commit\n`(\w+)`.+?```text\n(.+?)```", PAGE, re.DOTALL) or [""] * 3
"""The commit that added a call with a metric, and the list of its files."""
FILES_MAX = 8


def commands() -> list[list[str]]:
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, re.S)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def test_every_path_exists() -> None:
    written = re.findall(r"`((?:common|coordinator|compactor|neve|tests|docs)/[^` ]*)`", PAGE)
    linked = [f"docs/{path}" for path in re.findall(r"\]\(([^)#:]+)\)", PAGE)]
    typed = [word for words in commands() for word in words if word.startswith("tests/")]

    assert written
    assert linked
    assert typed
    assert not [path for path in [*written, *linked, *typed] if not (ROOT / path).exists()]


def test_every_target_and_variable_is_known_to_make_or_the_tests() -> None:
    made = [words for words in commands() if "make" in words]
    variables = [word.partition("=")[0] for words in made for word in words if "=" in word]

    assert made
    assert variables
    for words in made:
        assert re.search(rf"^{words[-1]}:", MAKEFILE, re.M), words
    assert not [name for name in variables if name not in MAKEFILE]


def test_what_is_added_in_a_table_is_declared_there() -> None:
    named = re.findall(r"`([A-Z]\w+)` in `([^`]+)`", PAGE)

    assert named
    for name, path in named:
        text = (ROOT / path).read_text("utf-8")
        assert re.search(rf"^(class {name}\b|{name}\b.*=)", text, re.M), (name, path)


def test_a_call_with_a_metric_takes_few_files() -> None:
    commit, listed = RECORDED[1], re.findall(r"^(\S+)", RECORDED[2], re.MULTILINE)
    command = ["git", "show", "--name-only", "--format=", commit]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert 0 < len(listed) <= FILES_MAX
    if shown.returncode:
        return  # An archive or a shallow clone does not have the commit.
    changed = {path for path in shown.stdout.split() if not path.startswith("tests/")}
    assert changed - {"CHANGELOG.md"} == set(listed)
