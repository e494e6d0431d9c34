"""How easily the code is read: counted, printed (`pytest -s`), and held where it stands.

The goals and the reasons for what is missed are in `docs/architecture.md`, `## Measures`.
"""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from itertools import pairwise

import pytest

from scripts import twins
from tests.tidy.tree import PACKAGES, ROOT, nodes_of, python_files

MODULES_MAX = 353
FLOW_FILES_MAX, FLOW_REWRITE_FILES_MAX = 25, 12
CALL_FILES_MAX = 8
TWINS_MAX, NEAR_TWINS_MAX, COPIES_MAX = 0, 3, 0

PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
FLOWS = ("Flow: an append until it is compacted", "Flow: a request until it is done")
STEP = re.compile(r"^(\d+)\. `([\w/]+\.py)`:? (.+?)(?: → `(\w+)`)?$")


def test_there_are_few_modules() -> None:
    count = sum(path.name != "__init__.py" for path in python_files(*PACKAGES))
    print(f"product modules: {count}, at most {MODULES_MAX}")

    assert count <= MODULES_MAX, "does it belong into its only importer?"


def test_a_call_with_a_metric_changes_few_files() -> None:
    page = (ROOT / "docs" / "development.md").read_text("utf-8")
    (commit, block) = re.findall(r"The commit\n`(\w+)`.+?```text\n(.+?)```", page, re.DOTALL)[0]
    listed = {line.split()[0] for line in block.splitlines()}
    show = ["git", "show", "--name-only", "--format=", commit]
    shown = subprocess.run(show, cwd=ROOT, capture_output=True, text=True)

    assert 0 < len(listed) <= CALL_FILES_MAX
    if shown.returncode == 0:  # An archive or a shallow clone does not have the commit.
        changed = {path for path in shown.stdout.split() if not path.startswith("tests/")}
        assert changed - {"CHANGELOG.md"} == listed


def test_a_fact_has_one_class() -> None:
    """Classes with the same fields are listed by `python scripts/twins.py`."""
    files = python_files(*PACKAGES)
    classes = twins.classes_by_fields(files)
    groups, pairs = twins.twins(classes), twins.near_twins(classes)
    copies = twins.copies(files)
    print(f"twins: {len(groups)} groups, {len(pairs)} near ones, {len(copies)} copies")

    assert len(groups) <= TWINS_MAX, groups
    assert len(pairs) <= NEAR_TWINS_MAX, pairs
    assert len(copies) <= COPIES_MAX, copies


def steps_of(flow: str) -> list[tuple[str, str | None]]:
    """Return the steps of a flow: the file, and what it passes on."""
    section = PAGE.partition(f"\n## {flow}\n")[2].partition("\n## ")[0]
    numbered = re.sub(r"\n   +", " ", section)
    steps = [STEP.match(line) for line in numbered.splitlines() if re.match(r"\d+\. ", line)]
    assert steps, f"no section {flow!r}"
    assert all(steps), "a step: number, file, what it decides, → and what it passes on"
    return [(step[2], step[4]) for step in steps if step is not None]


@cache
def words_of(path: str) -> frozenset[str]:
    """Return the names that a file defines, imports or uses; texts do not count."""
    nodes = [node for node in nodes_of(ROOT / path) if not isinstance(node, ast.Constant)]
    return frozenset(
        value for node in nodes for value in vars(node).values() if isinstance(value, str)
    )


@pytest.mark.parametrize("flow", FLOWS)
def test_a_flow_takes_few_files_and_each_step_hands_on_to_the_next(flow: str) -> None:
    """What a step passes on is known to the next file, and to one that has been read by then."""
    steps = steps_of(flow)
    files = {path for path, _ in steps}
    rewrite = {path for path in files if path.startswith("compactor/rewrite/")}
    print(f"{flow}: {len(files)} files, {len(rewrite)} of them of the rewrite")

    assert len(files) <= FLOW_FILES_MAX
    assert len(rewrite) <= FLOW_REWRITE_FILES_MAX
    for number, ((path, passed), (following, _)) in enumerate(pairwise(steps), start=1):
        assert passed, f"step {number} passes nothing on"
        assert passed in words_of(following), f"{following} does not know {passed}"
        known = any(passed in words_of(read) for read, _ in steps[:number])
        assert known, f"nothing up to {path} knows {passed}"
    assert steps[-1][1] is None, "the last step ends the flow"
