"""`docs/requirements.md` names tests that exist, and counts right."""

from __future__ import annotations

import re

from tests.tidy.tree import ROOT

PAGE = (ROOT / "docs" / "requirements.md").read_text("utf-8")
ROW = re.compile(r"^\| ([A-Z]+-\d+) \| (.+) \| (.+) \| (?:(.+) )?\|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/.]+\.py)(?:::(\w+))?`")
PLACE = re.compile(
    r"`((?:common|compactor|coordinator|docs|k8s|neve)/[\w/.-]*[\w/])`(?:: `([\w.]+)`)?"
)
"""A file or folder, and perhaps a name in it."""
OPEN, PARTLY = "*open*: ", "*partly*: "
NOT_APPLICABLE = "not applicable: "


def test_every_row_says_where_and_how_it_is_shown_or_what_is_missing() -> None:
    rows = ROW.findall(PAGE)
    assert len({name for name, *_ in rows}) == len(rows), "an id is there twice"
    wrong = [name for name, _, where, shown in rows if not is_sound(where, shown)]
    assert not wrong, "say where it is done and name a test, or what is missing and why"
    without = len([shown for *_, shown in rows if shown.startswith(NOT_APPLICABLE)])
    opened = len([where for _, _, where, _ in rows if where.startswith(OPEN)])
    partly = len([where for _, _, where, _ in rows if where.startswith(PARTLY)])
    done = len(rows) - without - opened - partly
    assert f"{done} of {len(rows)} are done." in PAGE, (done, len(rows))
    assert f"{partly} are done partly, {opened} are open." in PAGE, (partly, opened)
    assert f"{without} are not applicable" in PAGE, without


def is_sound(where: str, shown: str) -> bool:
    """Return whether a row is done or partly done with a test, or not, with a reason."""
    if where.startswith(OPEN):
        return not shown and len(where) > len(OPEN) + 10
    if shown.startswith(NOT_APPLICABLE):
        return len(shown) > len(NOT_APPLICABLE) + 40
    return bool(where and TEST.search(shown))


def test_every_test_that_is_named_exists() -> None:
    named = sorted(set(TEST.findall(PAGE)))
    gone = [
        f"{path}::{test}"
        for path, test in named
        if not (ROOT / path).is_file()
        or (test and f"def {test}(" not in (ROOT / path).read_text("utf-8"))
    ]
    assert not gone, "renamed or removed: name the test that shows it now"


def test_every_place_that_is_named_exists() -> None:
    gone = [
        f"{path}: {name}" if name else path
        for path, name in sorted(set(PLACE.findall(PAGE)))
        if not is_there(path, name)
    ]
    assert not gone, "moved or renamed: name the place where it is now"


def is_there(path: str, name: str) -> bool:
    """Return whether a file or folder is there, and holds a name in one of its files."""
    place = ROOT / path
    files = place.rglob("*.py") if place.is_dir() else [place]
    last = name.rpartition(".")[2]
    return place.exists() and (not name or any(last in file.read_text("utf-8") for file in files))
