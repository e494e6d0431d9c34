"""Plant every fault of `tests/mutants.toml` in a copy of the tree; its suite must turn red.

python -m tests.support.mutants [words of names…]
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPIED = ("common", "coordinator", "compactor", "neve", "tests", "pyproject.toml", "docs")
SUITES = {
    "core": ["tests/unit/coordinator_core"],
    "contract": ["tests/contract", "-k", "memory"],
    "metadata": [
        f"tests/unit/metadata/test_{name}.py" for name in ("durable", "holds", "requests", "tiles")
    ],
    "compactor": ["tests/unit/compactor/test_attempt.py"],
    "lead": ["tests/unit/coordinator_shell/test_recovery.py"],
    "requests": ["tests/unit/requests/test_next_step.py"],
    "manifests": [
        "tests/unit/coordinator/test_publishing.py",
        "tests/unit/coordinator_shell/test_manifests.py",
    ],
    "imports": ["tests/unit/importing", "tests/unit/neve/test_import.py"],
    "splits": [
        *(f"tests/unit/operations/test_{name}.py" for name in ("core", "split_keys")),
        *(f"tests/unit/operations/test_{name}.py" for name in ("shell", "by_size")),
        "tests/unit/coordinator/test_planning.py",
    ],
    "rebuild": ["tests/unit/recovery/test_lineage_since.py"],
    "throttle": ["tests/unit/throttle"],
    "moving": ["tests/unit/neve/test_gateway_moving.py"],
    "sim": ["tests/sim", "-m", "not slow", "-k", "not story"],
}
"""Suite → what pytest runs. That watches are listed somewhere does not count as noticing."""

LASTS_MAX_S = 1200
"""A suite that lasts longer hangs, on the slowest of machines."""


def mutants() -> list[dict[str, str]]:
    """Return the planted faults."""
    with (ROOT / "tests" / "mutants.toml").open("rb") as file:
        return list(tomllib.load(file)["mutant"])


def survives(tree: Path, mutant: dict[str, str]) -> bool:
    """Plant one fault, run its suite, take the fault out; return whether nothing was noticed."""
    path = tree / mutant["file"]
    text = path.read_text("utf-8")
    assert text.count(mutant["old"]) == 1, f"{mutant['name']}: its text is not there, or twice"
    path.write_text(text.replace(mutant["old"], mutant["new"]), "utf-8")
    try:
        return passes(tree, mutant["suite"])
    finally:
        path.write_text(text, "utf-8")


def passes(tree: Path, suite: str) -> bool:
    """Return whether a suite is green in a tree; one that hangs is not."""
    command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", *SUITES[suite]]
    try:
        done = subprocess.run(
            command, cwd=tree, capture_output=True, check=False, timeout=LASTS_MAX_S
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main(words: list[str]) -> int:
    """Return 1 if a fault survives."""
    chosen = [each for each in mutants() if all(word in each["name"] for word in words)]
    alive: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, tree / name)
        for suite in sorted({each["suite"] for each in chosen}):
            assert passes(tree, suite), f"suite {suite} is red without any fault"
        for mutant in chosen:
            survived = survives(tree, mutant)
            print("SURVIVES" if survived else "killed  ", mutant["name"], flush=True)
            alive += [mutant["name"]] * survived
    print(f"{len(chosen) - len(alive)} of {len(chosen)} killed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
