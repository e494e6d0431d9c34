"""How easily the code is read: counted, printed (`pytest -s`), and held where it stands.

The goals and the reasons for what is missed are in `docs/architecture.md`, `## Measures`.
"""

from __future__ import annotations

import ast
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from scripts import twins
from tests.tidy.tree import PACKAGES, ROOT, name_of, nodes_of, python_files, tree_of

MODULES_MAX = 398
SMALL_LINES = 80
SMALL_MODULES_MAX = 25
FUNCTION_LINES_MEDIAN_MAX = 10
FLOW_FILES_MAX = 25
FLOW_REWRITE_FILES_MAX = 12

TWINS_MAX, NEAR_TWINS_MAX, COPIES_MAX = 0, 5, 0

SMALL_MODULES = {
    "coordinator/scan/ray_ranges.py": "the only module of the scan that imports Ray",
    "neve/local/shutdown.py": "the program of a short-lived process, which alone loads Ray",
    "neve/simulate/example.py": "a document for people, which its importer prints",
    "neve/row_reader.py": "opens files for the command line, which may not import `common` readers",
}
"""Why a module below `SMALL_LINES` that one other imports is a module of its own."""

NOUNS = frozenset(path.stem for path in (ROOT / "neve" / "api").glob("*.py"))
"""The subjects of the operator's world: files of `api`, `gateway`, `client` and `cli`."""

# Users' words and the values of `common.model` have names in common: `Table`, `Request`.
NAMES_OF_USERS = ("neve/api/", "neve/client/")
ONE_NAME_ON_PURPOSE = {"BySize": "a selector and a configurer, each by the name that users write"}

PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
FLOWS = ("Flow: an append until it is compacted", "Flow: a request until it is done")
STEP = re.compile(r"^(\d+)\. `([\w/]+\.py)`:? (.+?)(?: → `(\w+)`)?$")


# ------------------------------------------------------------------------------------ What is there


@cache
def modules() -> Mapping[str, Path]:
    """Return the product's modules and packages by their dotted names."""
    return {dotted(path): path for path in python_files(*PACKAGES)}


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def importers() -> Mapping[str, frozenset[str]]:
    """Return which modules import a module."""
    found = defaultdict(set)
    for name, path in modules().items():
        for node in nodes_of(path):
            for imported in imported_names(node):
                if imported in modules() and imported != name:
                    found[imported].add(name)
    return {name: frozenset(names) for name, names in found.items()}


def imported_names(node: ast.AST) -> Iterator[str]:
    """Yield what an import may mean: modules, and names in modules. Relative ones are not used."""
    if isinstance(node, ast.Import):
        yield from (name.name for name in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        yield node.module
        yield from (f"{node.module}.{name.name}" for name in node.names)


def plain_modules() -> dict[str, Path]:
    """Return the modules; a package's `__init__` is a map and does not count."""
    return {name: path for name, path in modules().items() if path.name != "__init__.py"}


def line_count(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


# ------------------------------------------------------------------- Modules, functions and classes


def test_there_are_few_modules() -> None:
    count = len(plain_modules())
    print(f"product modules: {count}, at most {MODULES_MAX}")

    assert count <= MODULES_MAX, "does it belong into its only importer?"


def test_every_small_module_with_one_importer_has_its_reason() -> None:
    small = {
        name_of(path)
        for name, path in plain_modules().items()
        if line_count(path) < SMALL_LINES and len(importers().get(name, ())) == 1
        if name.rpartition(".")[2] not in NOUNS  # A noun has its file in each layer.
    }
    print(f"modules below {SMALL_LINES} lines with one importer: {len(small)}")

    assert small <= set(SMALL_MODULES), "merge it into its importer, or say why not"
    assert len(small) <= SMALL_MODULES_MAX


def test_half_of_the_functions_are_short() -> None:
    lengths = [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for path in python_files(*PACKAGES)
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    median = statistics.median(lengths)
    print(f"median length of {len(lengths)} functions: {median:g} lines")

    assert median <= FUNCTION_LINES_MEDIAN_MAX


def test_no_public_class_has_the_name_of_another() -> None:
    places = defaultdict(list)
    for path in python_files(*PACKAGES):
        if name_of(path).startswith(NAMES_OF_USERS):
            continue
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name_of(path))
    print(f"public classes: {len(places)}")

    doubled = {name: paths for name, paths in sorted(places.items()) if len(paths) > 1}
    assert doubled.keys() == ONE_NAME_ON_PURPOSE.keys(), doubled


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


# --------------------------------------------------------------------------------------- The flows


def steps_of(flow: str) -> list[tuple[str, str, str | None]]:
    """Return the steps of a flow: the file, what it decides, what it passes on."""
    section = PAGE.partition(f"\n## {flow}\n")[2].partition("\n## ")[0]
    numbered = re.sub(r"\n   +", " ", section)
    found = [STEP.match(line) for line in numbered.splitlines() if re.match(r"\d+\. ", line)]
    assert found, f"no section {flow!r}"
    assert all(found), "a step: number, file, what it decides, → and what it passes on"
    steps = [match for match in found if match is not None]
    assert [int(step[1]) for step in steps] == [*range(1, len(steps) + 1)]
    return [(step[2], step[3], step[4]) for step in steps]


@cache
def words_of(path: str) -> frozenset[str]:
    """Return the names that a file defines, imports or uses; texts do not count."""
    words = set()
    for node in nodes_of(ROOT / path):
        if not isinstance(node, ast.Constant):
            words.update(value for value in vars(node).values() if isinstance(value, str))
    return frozenset(words)


@pytest.mark.parametrize("flow", FLOWS)
def test_a_flow_takes_few_files_to_read(flow: str) -> None:
    files = {path for path, _, _ in steps_of(flow)}
    rewrite = {path for path in files if path.startswith("compactor/rewrite/")}
    print(f"{flow}: {len(files)} files, {len(rewrite)} of them of the rewrite")

    assert not [path for path in sorted(files) if not (ROOT / path).is_file()]
    assert len(files) <= FLOW_FILES_MAX
    assert len(rewrite) <= FLOW_REWRITE_FILES_MAX


@pytest.mark.parametrize("flow", FLOWS)
def test_each_step_of_a_flow_hands_on_to_the_next(flow: str) -> None:
    """What a step passes on is known to the next file, and to one that has been read by then."""
    steps = steps_of(flow)
    wrong = []
    for number, (step, following) in enumerate(pairwise(steps), start=1):
        passed = step[2]
        if passed is None:
            wrong.append(f"step {number} passes nothing on")
            continue
        read = {path for path, _, _ in steps[:number]}
        if passed not in words_of(following[0]):
            wrong.append(f"{following[0]} does not know {passed}")
        if not any(passed in words_of(path) for path in read):
            wrong.append(f"nothing up to {step[0]} knows {passed}")

    assert not wrong
    assert steps[-1][2] is None, "the last step ends the flow"
