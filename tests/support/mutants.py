"""Plant every fault of `tests/mutants.toml` in a copy of the tree; its suite must turn red.

python -m tests.support.mutants [--at-once 2] [words of names…]
"""

from __future__ import annotations

import argparse
import ast
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).parents[2]
COPIED = (
    *("common", "coordinator", "compactor", "neve", "tests", "docs"),
    *("benchmarks", "pyproject.toml", "requirements", "scripts"),
)
SUITES = {
    "core": ["tests/unit/coordinator_core"],
    "control": [
        "tests/unit/coordinator_core/test_control.py",
        "tests/unit/coordinator_core/test_enforcement.py",
        "tests/unit/coordinator_core/test_pressure.py",
        "tests/property/queue/test_class_shares.py",
        "tests/unit/coordinator/test_controllers.py",
    ],
    "contract": ["tests/contract", "-k", "memory"],
    "metadata": [
        "tests/unit/metadata/test_durable.py",
        "tests/unit/metadata/test_holds.py",
        "tests/unit/metadata/test_mutation.py",
        "tests/unit/metadata/test_requests.py",
        "tests/unit/metadata/test_tiles.py",
    ],
    "compactor": ["tests/unit/compactor/test_attempt.py"],
    "time-cuts": [
        "tests/unit/compactor/test_outputs_by_time.py",
        "tests/unit/coordinator/test_planning.py",
        "-m",
        "not slow",
    ],
    "manifests": [
        "tests/unit/coordinator/test_publishing.py",
        "tests/unit/coordinator_shell/test_manifests.py",
    ],
    "published": ["tests/unit/coordinator_shell/test_published_logs.py"],
    "published-iceberg": ["tests/unit/coordinator_shell/test_published_metadata.py"],
    "splits": [
        "tests/unit/operations/test_core.py",
        "tests/unit/operations/test_split_keys.py",
        "tests/unit/operations/test_shell.py",
        "tests/unit/operations/test_by_size.py",
        "tests/unit/coordinator/test_planning.py",
    ],
    "rollback": ["tests/sim/test_rollbacks.py", "-k", "not many_more"],
    "throttle": ["tests/unit/throttle"],
    "backlogs": ["tests/unit/coordinator_core/test_backlog.py"],
    "moves": [
        "tests/contract/test_moves.py",
        "tests/unit/compactor/test_attempt.py",
        "tests/unit/coordinator/test_planning.py",
        "-k",
        "not redis and not cluster",
    ],
    "calls": [
        "tests/unit/neve/test_gateway_calls.py",
        "tests/unit/neve/test_gateway_stalls.py",
        "tests/unit/neve/test_gateway_data.py",
    ],
    "collector": ["tests/unit/coordinator_shell/test_collector.py"],
    "request-ends": ["tests/unit/requests/test_request_ends.py"],
    "turns": ["tests/contract/test_turns.py", "tests/contract/test_redis.py"],
    "watermark": [
        "tests/property/test_watermark_model.py",
        "tests/contract/test_watermarks.py",
        "tests/unit/metadata/test_recent_adds.py",
        "tests/unit/neve/test_gateway_versions.py",
    ],
    "sim": ["tests/sim/test_clusters.py", "-k", "not story and not many_more"],
    "buffers": [
        "tests/sim/test_buffers.py",
        "tests/unit/neve/test_gateway_buffers.py",
        "-k",
        "not many_more",
    ],
    "silence": ["tests/unit/parquet/test_silence.py"],
}
"""Suite → what pytest runs. That watches are listed somewhere does not count as noticing."""

PROCESSOR_MAX_S = 900
"""Of the processor's time: a suite that takes more runs for ever."""


def mutants() -> list[dict[str, str]]:
    """Return the planted faults."""
    with (ROOT / "tests" / "mutants.toml").open("rb") as file:
        return list(tomllib.load(file)["mutant"])


def file_of(mutant: dict[str, str]) -> str:
    """Return the path of the file that a fault is planted in."""
    return mutant["function"].partition(":")[0]


def planted(text: str, mutant: dict[str, str]) -> str:
    """Return a module's text with one fault in it.

    Args:
        text: Of the module, as it is.
        mutant: Names the function, and the syntax that is replaced there.

    Raises:
        AssertionError: The function does not hold that syntax exactly once.
    """
    name = mutant["function"].partition(":")[2]
    functions = [node for where, node in _functions(ast.parse(text)) if where == name]
    assert len(functions) == 1, f"{mutant['name']}: {len(functions)} functions are named {name}"
    matches = [*_matches(functions[0], mutant["old"])]
    assert len(matches) == 1, f"{mutant['name']}: {len(matches)} matches in {name}"
    first, last = matches[0][0], matches[0][-1]
    lines = text.encode().splitlines(keepends=True)
    before = b"".join(lines[: first.lineno - 1]) + lines[first.lineno - 1][: first.col_offset]
    after = lines[last.end_lineno - 1][last.end_col_offset :] + b"".join(lines[last.end_lineno :])
    new = textwrap.indent(mutant["new"] or "pass", " " * first.col_offset).lstrip()
    return (before + new.encode() + after).decode()


Node = ast.expr | ast.stmt


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}.{inner.name}", inner


def _matches(function: ast.AST, old: str) -> Iterator[list[Node]]:
    """Yield the expressions, or runs of statements, that are the same syntax as a text."""
    try:
        wanted = [ast.dump(ast.parse(old, mode="eval").body)]
    except SyntaxError:
        wanted = [ast.dump(statement) for statement in ast.parse(old).body]
        for node in ast.walk(function):
            for block in (getattr(node, field, None) for field in ("body", "orelse", "finalbody")):
                yield from _runs(block if isinstance(block, list) else [], wanted)
        return
    for node in ast.walk(function):
        if isinstance(node, ast.expr) and ast.dump(node) == wanted[0]:
            yield [node]


def _runs(block: list[ast.stmt], wanted: list[str]) -> Iterator[list[Node]]:
    dumps = [ast.dump(statement) for statement in block]
    for start in range(len(block) - len(wanted) + 1):
        if dumps[start : start + len(wanted)] == wanted:
            yield [*block[start : start + len(wanted)]]


def survives(tree: Path, mutant: dict[str, str]) -> bool:
    """Plant one fault, run its suite, take the fault out; return whether nothing was noticed."""
    path = tree / file_of(mutant)
    text = path.read_text("utf-8")
    path.write_text(planted(text, mutant), "utf-8")
    try:
        return passes(tree, mutant["suite"])
    finally:
        path.write_text(text, "utf-8")


def passes(tree: Path, suite: str) -> bool:
    """Return whether a suite is green in a tree; one that runs for ever is not.

    Time of the processor counts: on a busy machine a sound suite may last long.
    """
    pytest = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", *SUITES[suite]]
    command = ["sh", "-c", f'ulimit -t {PROCESSOR_MAX_S} && exec "$@"', "sh", *pytest]
    return subprocess.run(command, cwd=tree, capture_output=True, check=False).returncode == 0


def main(arguments: list[str]) -> int:
    """Return 1 if a fault survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="only faults whose names hold all of these")
    parser.add_argument("--at-once", type=int, default=1, help="how many suites run at a time")
    given = parser.parse_args(arguments)
    chosen = [each for each in mutants() if all(word in each["name"] for word in given.words)]
    with ExitStack() as stack:
        trees: Queue[Path] = Queue()
        for _ in range(given.at_once):
            trees.put(copied(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        workers = stack.enter_context(ThreadPoolExecutor(given.at_once))

        def in_a_tree(work: Callable[[Path], bool]) -> bool:
            tree = trees.get()
            try:
                return work(tree)
            finally:
                trees.put(tree)

        suites = sorted({each["suite"] for each in chosen})
        greens = workers.map(lambda name: in_a_tree(lambda tree: passes(tree, name)), suites)
        for suite, green in zip(suites, greens, strict=True):
            assert green, f"suite {suite} is red without any fault"
        told = workers.map(lambda each: in_a_tree(lambda tree: survives(tree, each)), chosen)
        alive = 0
        for mutant, survived in zip(chosen, told, strict=True):
            print("SURVIVES" if survived else "killed  ", mutant["name"], flush=True)
            alive += survived
    print(f"{len(chosen) - alive} of {len(chosen)} killed")
    return 1 if alive else 0


def copied(tree: Path) -> Path:
    """Copy all that suites need into a folder, and return it."""
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tree / name)
    return tree


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
