"""Which files count from a manifest on: worked cases of what may lie beside what it names."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from common.metadata.store_values import AcceptedLoss
from neve.recovery.rebuild.live_files import (
    COMMIT_DELAY_MAX_S,
    AttemptOutputs,
    Lineage,
    PublishedManifest,
    trace_since_manifest,
)
from neve.recovery.scope import Steps
from neve.recovery.stored_files import StoredFile

BEGUN_S = 10_000.0
OLD_S = BEGUN_S - COMMIT_DELAY_MAX_S - 1


def attempt(name: str, inputs: str, found: str | None = None, count: int = 1) -> AttemptOutputs:
    """Return an attempt over files named by letters, with outputs `<name>0`, `<name>1`."""
    outputs = tuple(f"{name}{number}" for number in range(count))
    there = outputs if found is None else tuple(found.split())
    return AttemptOutputs(
        id=name, inputs=tuple(inputs.split()), request=None, outputs=outputs, found=there
    )


def traced(
    named: str, young: str, old: str, *attempts: AttemptOutputs, loss: AcceptedLoss | None = None
) -> Lineage:
    """Return the lineage, the same for every order of attempts.

    Args:
        named: Files in the manifest.
        young: Files in storage that were written about when it was begun, or later.
        old: Files in storage that were there long before.
        attempts: With outputs in storage.
        loss: Of which the manifest tells.
    """
    stored = {path: StoredFile(path, 1, BEGUN_S) for path in young.split()}
    stored |= {path: StoredFile(path, 1, OLD_S) for path in old.split()}
    made = {path for each in attempts for path in each.found}
    published = PublishedManifest(
        number=7,
        begun_s=BEGUN_S,
        table="t",
        files=dict.fromkeys(named.split(), "last"),
        loss=loss,
    )
    added = sorted(stored.keys() - made)
    answers = [
        trace_since_manifest(published, stored, added, permutation, (), steps=Steps())
        for permutation in itertools.permutations(attempts)
    ]
    assert all(answer == answers[0] for answer in answers)
    return answers[0]


X, Y = attempt("x", "a b"), attempt("y", "x0 c")
CASES: list[tuple[str, tuple[str, str, str], list[AttemptOutputs], str, str]] = [
    ("nothing happened since", ("a b", "", "a b"), [], "a b", ""),
    ("a file came since", ("a", "b", "a"), [], "a b", ""),
    ("one that was never added, or is replaced", ("a", "", "a b"), [], "a", ""),
    ("one that is gone", ("a b", "", "a"), [], "a", "b"),
    ("replaced before", ("x0", "a b x0", ""), [X], "x0", ""),
    ("replaced before, an input kept for ever", ("x0", "x0", "a"), [X], "x0", ""),
    ("replaced since", ("a b", "x0", "a b"), [X], "x0", ""),
    ("replaced since, the inputs collected", ("a b", "x0", ""), [X], "x0", ""),
    ("replaced since, with what came since", ("a", "b x0", "a"), [X], "x0", ""),
    ("a chain since", ("a b c", "x0 y0", "a b c"), [X, Y], "y0", ""),
    ("a chain, the manifest in its middle", ("x0 c", "y0 x0", "a c"), [X, Y], "y0", ""),
    ("a chain before", ("y0", "x0 y0 c", "a b"), [X, Y], "y0", ""),
    (
        "a chain before, broken: what was kept does not rise",
        ("y0", "y0", "a b"),
        [Y],
        "y0",
        "",
    ),
    (
        "an old output that was replaced by one that is gone",
        ("z", "", "a b x0 z"),
        [X],
        "z",
        "",
    ),
    ("never committed, not whole", ("a b", "x0", "a b"), [attempt("x", "a b", "x0", 2)], "a b", ""),
    (
        "two over one input",
        ("a b c", "x0 w0", "a b c"),
        [X, attempt("w", "b c")],
        "a b c",
        "",
    ),
    (
        "another had committed before: who comes too late",
        ("w0 a", "x0 w0", "a b c"),
        [X, attempt("w", "b c")],
        "w0 a",
        "",
    ),
    (
        "some outputs of one attempt were replaced before",
        ("x1 z", "x0 x1 z", "a"),
        [attempt("x", "a", "x0 x1", 2), attempt("v", "x0", "")],
        "x1 z",
        "",
    ),
    ("left no row since: a mark", ("a b", "x0", "a b"), [X], "x0", ""),
    ("an old file, added and reserved since", ("b", "x0", "a b"), [X], "x0", ""),
    (
        "an old file, added and reserved since, its job not whole",
        ("b", "x0", "a b"),
        [attempt("x", "a b", "x0", 2)],
        "a b",
        "",
    ),
]


@pytest.mark.parametrize(("story", "where", "attempts", "files", "lost"), CASES)
def test_lineage_since_a_manifest_finds_live_and_lost_files(
    story: str, where: tuple[str, str, str], attempts: list[AttemptOutputs], files: str, lost: str
) -> None:
    found = traced(*where, *attempts)
    assert found.files == tuple(sorted(files.split())), story
    assert sorted(found.lost) == sorted(lost.split()), story
    named, young, old = (set(each.split()) for each in where)
    assert found.left.keys() == (young | old) - {*found.files}, story
    assert not named & {path for path, why in found.left.items() if "does not name" in why}


FORGOTTEN = AcceptedLoss(since_s=OLD_S, until_s=OLD_S)
BEFORE = AcceptedLoss(
    since_s=OLD_S - 2 * COMMIT_DELAY_MAX_S - 2, until_s=OLD_S - COMMIT_DELAY_MAX_S - 1
)
AFTER = AcceptedLoss(since_s=OLD_S + COMMIT_DELAY_MAX_S + 1, until_s=BEGUN_S)
V = attempt("v", "x0 d")
LOSSES: list[tuple[str, tuple[str, str, str], list[AttemptOutputs], str]] = [
    ("an append was forgotten", ("a", "", "a b"), [], "a b"),
    ("a commit was forgotten, its inputs are gone", ("a b", "", "x0"), [X], "x0"),
    ("a commit was forgotten, its inputs were removed", ("c", "", "c x0"), [X], "c x0"),
    ("a chain was forgotten, its middle is gone", ("d", "", "d y0"), [Y], "d y0"),
    ("two were forgotten", ("a b", "", "x0 v0 d"), [X, V], "v0"),
    ("done again since", ("z0", "z0", "a b x0"), [X, attempt("z", "a b")], "z0"),
    ("done again since, the inputs gone", ("z0", "z0", "x0"), [X, attempt("z", "a b")], "z0"),
    ("one input is there, and was replaced", ("z0", "z0", "a x0"), [X, attempt("z", "a")], "z0"),
    ("not whole", ("a b", "", "a b x0"), [attempt("x", "a b", "x0", 2)], "a b"),
    ("what came since needs its inputs", ("c", "x0", "c"), [X], "c"),
]


@pytest.mark.parametrize(("story", "where", "attempts", "files"), LOSSES)
def test_no_file_of_a_time_of_lost_changes_is_lost(
    story: str, where: tuple[str, str, str], attempts: list[AttemptOutputs], files: str
) -> None:
    found = traced(*where, *attempts, loss=FORGOTTEN)
    assert found.files == tuple(sorted(files.split())), story
    assert not found.lost, story


@pytest.mark.parametrize("loss", [BEFORE, AFTER, None])
def test_outside_of_the_lost_time_the_manifest_counts(
    loss: AcceptedLoss | None,
) -> None:
    found = traced("a", "", "a b x0", attempt("x", "c"), loss=loss)
    assert found.files == ("a",)


def test_lineage_says_why_a_file_does_not_count() -> None:
    found = traced("x0 e", "a x0 v0 e w0", "d", X, attempt("v", "g"), attempt("w", "e"))
    assert found.files == ("w0", "x0")
    assert found.left == {
        "a": "it was replaced before manifest 7",
        "d": "manifest 7 does not name it, and is younger",
        "e": "it was replaced",
        "v0": "manifest 7 does not name it, and its inputs were not in the table then",
    }
    gone = traced("a", "", "")
    assert gone.lost == {"a": "it was in the table by manifest 7, and is not in storage"}


def test_a_storage_that_tells_no_times_leaves_everything_young() -> None:
    stored = {path: StoredFile(path, 1, None) for path in ("a", "b")}
    published = PublishedManifest(number=1, begun_s=BEGUN_S, table="t", files={"a": "last"})
    assert trace_since_manifest(published, stored, ["a", "b"], [], (), steps=Steps()).files == (
        "a",
        "b",
    )
    stored["x0"] = StoredFile("x0", 1, None)
    forgotten = replace(published, loss=FORGOTTEN)
    assert trace_since_manifest(
        published, stored, ["a", "b"], [attempt("x", "c")], (), steps=Steps()
    ).files == (
        "a",
        "b",
    )
    assert trace_since_manifest(
        forgotten, stored, ["a", "b"], [attempt("x", "c")], (), steps=Steps()
    ).files == (
        "a",
        "b",
        "x0",
    )
