"""Count classes that repeat the fields of another class, and calls that copy one onto the other.

`python scripts/twins.py` prints three lists:

* groups of dataclasses with the same six or more fields: one fact with two homes,
* pairs in which one dataclass has all of the six or more fields of the other one and some more,
* calls such as `decode(Kind, asdict(value))`, which copy a value onto a twin of its class.

`tests/tidy/test_measures.py` holds the numbers.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("common", "coordinator", "compactor", "neve")
FIELDS_MIN = 6
COPIERS = {"asdict", "as_plain"}

Fields = frozenset[str]


def product_files() -> Iterator[Path]:
    """Yield the product's Python files."""
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def called_name(node: ast.AST) -> str:
    """Return the last part of the name of what is called; empty: it has no name."""
    target = node.func if isinstance(node, ast.Call) else node
    return getattr(target, "attr", getattr(target, "id", ""))


def classes_by_fields(files: Sequence[Path]) -> dict[Fields, list[str]]:
    """Return dataclasses and named tuples with six or more fields of their own, by their fields."""
    classes = defaultdict(list)
    for path in files:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and _is_value(node):
                names = frozenset(_field_names(node))
                if len(names) >= FIELDS_MIN:
                    classes[names].append(f"{path.relative_to(ROOT).as_posix()}:{node.name}")
    return dict(classes)


def _is_value(node: ast.ClassDef) -> bool:
    decorated = any(called_name(decorator) == "dataclass" for decorator in node.decorator_list)
    return decorated or any(called_name(base) == "NamedTuple" for base in node.bases)


def _field_names(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                if "ClassVar" not in ast.unparse(annotation):
                    yield name


def twins(classes: dict[Fields, list[str]]) -> list[list[str]]:
    """Return the groups of classes with the same fields."""
    return sorted(names for names in classes.values() if len(names) > 1)


def near_twins(classes: dict[Fields, list[str]]) -> list[tuple[str, str]]:
    """Return pairs: a class, and another that has all of its fields and more."""
    return sorted(
        (small, large)
        for one, other in combinations(sorted(classes, key=len), 2)
        if one < other
        for small in classes[one]
        for large in classes[other]
    )


def copies(files: Sequence[Path]) -> list[str]:
    """Return where a value is copied onto a twin of its class: `decode(Kind, asdict(value))`."""
    return [
        f"{path.relative_to(ROOT).as_posix()}:{node.lineno}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and called_name(node) == "decode" and _is_copy(node)
    ]


def _is_copy(call: ast.Call) -> bool:
    value = call.args[-1] if call.args else call
    value = value.left if isinstance(value, ast.BinOp) else value
    return isinstance(value, ast.Call) and called_name(value) in COPIERS


def main() -> None:
    """Print the three lists and their lengths."""
    files = list(product_files())
    classes = classes_by_fields(files)
    groups, pairs, calls = twins(classes), near_twins(classes), copies(files)
    lines = [f"same fields: {', '.join(group)}" for group in groups]
    lines += [f"all fields of {small} in {large}" for small, large in pairs]
    lines += [f"copy: {call}" for call in calls]
    lines.append(f"{len(groups)} groups, {len(pairs)} pairs, {len(calls)} copies")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
