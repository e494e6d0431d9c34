"""The lock covers what pyproject asks for, and the base install stays light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import packages_distributions

import pytest

from tests.tidy.tree import PACKAGES, ROOT, name_of, python_files, tree_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LOCKS = {
    name: (ROOT / "requirements" / name).read_text("utf-8") for name in ("lock.txt", "bench.txt")
}
# What a notebook must not need, and must not find its own `common` folder hidden by.
HEAVY = (
    "common",
    "coordinator",
    "compactor",
    "ray",
    "pyspark",
    "raydp",
    "redis",
    "polars",
    "pandas",
)


def required(lock: str) -> set[str]:
    extras = PROJECT["optional-dependencies"].items()
    chosen = [entries for name, entries in extras if (name == "bench") == (lock == "bench.txt")]
    wanted = [*PROJECT["dependencies"], *(entry for extra in chosen for entry in extra)]
    return {re.match(r"[\w.-]+", entry).group().lower() for entry in wanted}  # type: ignore[union-attr]  # always matches


def pins_of(lock: str) -> dict[str, str]:
    line = r"^([\w.-]+)==(\S+)(?: ;.*)? \\\n +--hash=sha256:[0-9a-f]{64}"
    return dict(re.findall(line, LOCKS[lock], re.M))


@pytest.mark.parametrize("lock", LOCKS)
def test_every_requirement_is_locked_with_hashes(lock: str) -> None:
    entries = re.findall(r"^[\w.-]+.*", LOCKS[lock], re.M)

    assert len(pins_of(lock)) == len(entries)
    assert required(lock) <= set(pins_of(lock))


def test_both_locks_agree() -> None:
    main, bench = pins_of("lock.txt"), pins_of("bench.txt")

    assert {name: main.get(name, version) for name, version in bench.items()} == bench


def imported(tree: ast.Module) -> set[str]:
    """Return the top-level packages that a module imports."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def test_every_import_is_required_by_name() -> None:
    sources = packages_distributions()
    own = {*PACKAGES, *sys.stdlib_module_names}

    assert not [
        f"{name_of(path)}: {name} is not among the requirements of pyproject.toml"
        for path in python_files(*PACKAGES)
        for name in sorted(imported(tree_of(path)) - own)
        if not {source.lower().replace("_", "-") for source in sources.get(name, [])}
        & (required("lock.txt") | required("bench.txt"))
    ]


@pytest.mark.parametrize(
    "target",
    [
        *PROJECT["scripts"].values(),
        *(target for group in PROJECT["entry-points"].values() for target in group.values()),
    ],
)
def test_every_entry_point_exists(target: str) -> None:
    module, _, name = target.partition(":")

    assert callable(getattr(import_module(module), name))


def test_the_client_needs_nothing_heavy() -> None:
    script = f"import sys, neve; print([name for name in {HEAVY} if name in sys.modules])"
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert ran.stdout.strip() == "[]"
