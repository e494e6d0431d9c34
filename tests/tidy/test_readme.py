"""The README is one page, and its commands exist."""

from __future__ import annotations

import re
import shlex

from tests.tidy.tree import ROOT

README = (ROOT / "README.md").read_text("utf-8")
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
LINES_MAX = 60


def commands() -> list[list[str]]:
    blocks = re.findall(r"```bash\n(.*?)```", README, re.S)
    lines = [line.partition("#")[0] for block in blocks for line in block.splitlines()]
    return [shlex.split(part) for line in lines for part in line.split("&&") if part.strip()]


def test_the_readme_is_one_page() -> None:
    assert len(README.splitlines()) <= LINES_MAX


def test_the_quick_start_is_two_commands_that_make_knows() -> None:
    targets = [words[1] for words in commands() if words[0] == "make"]

    assert targets == ["demo", "test"]
    for target in targets:
        assert re.search(rf"^{target}:.*\binstall\b", MAKEFILE, re.M)


def test_the_way_without_make_is_what_make_does() -> None:
    installs = [words[2:] for words in commands() if words[:2] == ["pip", "install"]]

    assert installs == [
        ["--require-hashes", "--no-deps", "-r", "requirements/lock.txt"],
        ["--no-build-isolation", "--no-deps", "-e", "."],
    ]
    for words in installs:
        assert " ".join(words).replace("requirements/lock.txt", "$(LOCK)") in MAKEFILE


def test_every_link_leads_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", README)

    assert targets
    assert not [target for target in targets if not (ROOT / target).exists()]


def test_every_target_is_explained_and_none_is_empty() -> None:
    targets = re.findall(r"^([a-z0-9]+):.*?(?:##\s*(.*))?$", MAKEFILE, re.M)

    assert {name for name, _ in targets} >= {"install", "demo", "test", "check", "lock", "clean"}
    assert not [name for name, meaning in targets if not meaning]
