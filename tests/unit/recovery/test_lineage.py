"""Which files count: worked cases of what a crash of Redis may leave in storage."""

from __future__ import annotations

import itertools

import pytest

from neve.recovery.rebuild.live_files import (
    AttemptOutputs,
    Lineage,
    attempts_of,
    trace_lineage,
)
from neve.recovery.scope import Steps
from neve.recovery.stored_files import OutputFooter


def attempt(name: str, inputs: str, *, count: int = 1, **more: object) -> AttemptOutputs:
    """Return an attempt over files named by letters, with outputs `<name>0`, `<name>1`."""
    paths = tuple(f"{name}{number}" for number in range(count))
    plain: dict[str, object] = {
        "id": name,
        "inputs": tuple(inputs.split()),
        "request": None,
        "outputs": paths,
        "found": paths,
    }
    return AttemptOutputs(**plain | more)  # type: ignore[arg-type]  # by name


def traced(base: str, *attempts: AttemptOutputs) -> Lineage:
    """Return the lineage, the same for every order of attempts."""
    answers = [
        trace_lineage(base.split(), permutation, Steps())
        for permutation in itertools.permutations(attempts)
    ]
    assert all(answer == answers[0] for answer in answers)
    return answers[0]


CASES: list[tuple[str, str, list[AttemptOutputs], str, str]] = [
    ("nothing happened", "a b", [], "a b", ""),
    ("inputs still there", "a b c", [attempt("x", "a b")], "c x0", ""),
    ("inputs collected", "c", [attempt("x", "a b")], "c x0", ""),
    ("a chain", "a c", [attempt("x", "a b"), attempt("y", "x0 c")], "y0", ""),
    ("the middle is collected", "", [attempt("y", "x0 c")], "y0", ""),
    ("several outputs", "a", [attempt("x", "a b", count=3)], "x0 x1 x2", ""),
    ("an output not written", "a b", [attempt("x", "a b", count=2, found=("x0",))], "a b", ""),
    (
        "the last output, which knows all, not written",
        "a b",
        [attempt("x", "a b", count=2, found=("x0",))],
        "a b",
        "",
    ),
    ("nobody knows the outputs", "a", [attempt("x", "a", outputs=None, found=("x0",))], "a", ""),
    ("two over one input", "a b c", [attempt("x", "a b"), attempt("y", "b c")], "a b c", ""),
    (
        "two over one input, one of them replaced later",
        "a b c d",
        [attempt("x", "a b"), attempt("y", "b c"), attempt("z", "x0 d")],
        "c z0",
        "",
    ),
    ("the same work twice, the inputs gone", "", [attempt("x", "a"), attempt("y", "a")], "x0", ""),
    ("other work over an input gone", "b", [attempt("x", "a"), attempt("y", "a b")], "b", "a"),
    (
        "what is made of a refused output",
        "a b c",
        [attempt("x", "a b"), attempt("y", "b c"), attempt("z", "y9 a", count=1)],
        "a b c",
        "y9",
    ),
    (
        "a part was replaced, another stays",
        "a",
        [attempt("x", "a", count=2, found=("x1",)), attempt("y", "x0")],
        "x1 y0",
        "",
    ),
    (
        "a committed output is gone",
        "",
        [attempt("x", "a", count=2, found=("x0",)), attempt("y", "x0")],
        "y0",
        "x1",
    ),
]


@pytest.mark.parametrize(
    ("base", "attempts", "files", "lost"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_lineage_finds_live_and_lost_files(
    base: str, attempts: list[AttemptOutputs], files: str, lost: str
) -> None:
    found = traced(base, *attempts)

    assert {*found.files} == {*files.split()}
    assert {*found.lost} == {*lost.split()}
    stored = {*base.split(), *(path for each in attempts for path in each.found)}
    assert {*found.left} == stored - {*found.files}
    assert all(found.left.values())


def test_a_request_of_its_own_is_other_work() -> None:
    found = traced("", attempt("x", "a"), attempt("y", "a", request="r1"))

    assert found.files == ()
    assert "counts is unknown" in found.lost["a"]


def test_attempts_are_what_their_outputs_say_together() -> None:
    def footer(path: str, outputs: tuple[str, ...] | None) -> OutputFooter:
        return OutputFooter(
            path=path,
            table="t",
            tablet="last",
            job="j",
            attempt="x",
            inputs=("a",),
            request=None,
            purge=None,
            outputs=outputs,
            rows=1,
        )

    (made,) = attempts_of([footer("x1", ("x0", "x1")), footer("x0", None)], ["t"], Steps())

    assert made == attempt("x", "a", count=2, table="t")
