"""Change modules in every way that mutmut knows, and count the changes that no test notices.

python -m tests.support.mutation [words of paths…]

Each module of `MODULES` is changed in a copy of the tree, and its tests run on each change. What
survives is printed, with the score of the module: how many changes of a hundred were noticed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.mutants import copied

CONTRACT = ["tests/contract", "-k", "memory"]
QUEUE = ["tests/unit/coordinator/test_job_queue.py", "tests/property/queue", "-m", "not slow"]
CORE = ["tests/unit/coordinator_core", "-m", "not slow"]
MERGE = ["tests/property/test_merge_kernel.py", "tests/unit/compactor", "-m", "not slow"]

MODULES = {
    "common/metadata/changes/attempts.py": CONTRACT,
    "common/metadata/changes/files.py": CONTRACT,
    "common/metadata/changes/requests.py": CONTRACT,
    "common/metadata/changes/selections.py": CONTRACT,
    "common/metadata/changes/split_merge.py": CONTRACT,
    "compactor/rewrite/kernel/range_merge.py": MERGE,
    "compactor/rewrite/kernel/winners.py": MERGE,
    "compactor/rewrite/merge/ranges.py": MERGE,
    "coordinator/core/assignment.py": CORE,
    "coordinator/core/attempt_events.py": CORE,
    "coordinator/core/retry.py": CORE,
    "coordinator/core/queue.py": QUEUE,
    "coordinator/core/queue_index.py": QUEUE,
}
"""Module → what pytest runs on it."""

COPIED = ["docs", "benchmarks", "requirements", "scripts"]
RESULTS = Path("mutants") / "mutmut-cicd-stats.json"


def settings_for(module: str, tests: list[str]) -> str:
    """Return what mutmut reads from `pyproject.toml`."""
    values = {
        "source_paths": ["common", "coordinator", "compactor", "neve"],
        "only_mutate": [module],
        "also_copy": COPIED,
        "pytest_add_cli_args_test_selection": tests,
        "pytest_add_cli_args": ["-p", "no:cacheprovider"],
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    return "\n".join(["\n[tool.mutmut]", *lines, ""])


def mutmut(tree: Path, *words: str) -> str:
    """Run mutmut in a tree, and return what it prints."""
    command = [sys.executable, "-m", "mutmut", *words]
    ran = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"mutmut {' '.join(words)} failed:\n{ran.stdout[-3000:]}{ran.stderr[-3000:]}")
    return ran.stdout


def score(module: str, tests: list[str]) -> str:
    """Change a module in a copy of the tree; return the survivors and the score as lines."""
    with tempfile.TemporaryDirectory() as folder:
        tree = copied(Path(folder))
        with (tree / "pyproject.toml").open("a", encoding="utf-8") as file:
            file.write(settings_for(module, tests))
        mutmut(tree, "run", "--max-children", "2")
        survivors = [line for line in mutmut(tree, "results").splitlines() if line.strip()]
        mutmut(tree, "export-cicd-stats")
        counts = json.loads((tree / RESULTS).read_text("utf-8"))
        shutil.rmtree(tree / "mutants")
    tried = counts["total"] - counts["skipped"]
    noticed = tried - counts["survived"] - counts["no_tests"]
    figure = f"{module}: {noticed} of {tried} noticed, {100 * noticed / max(tried, 1):.0f} %"
    return "\n".join([*survivors, f"{figure}; {counts['no_tests']} that no test runs"])


def main(words: list[str]) -> None:
    """Print the score of each module whose path holds all of the words."""
    for module, tests in MODULES.items():
        if all(word in module for word in words):
            print(score(module, tests), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
