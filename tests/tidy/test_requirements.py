"""`docs/requirements.md` names tests that exist, and counts right."""

from __future__ import annotations

import re

from tests.tidy.tree import ROOT

PAGE = (ROOT / "docs" / "requirements.md").read_text("utf-8")
ROW = re.compile(r"^\| ([A-Z]+-\d+) \| (.+) \| (.+) \| (?:(.+) )?\|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/.]+\.py)(?:::(\w+))?`")
OPEN = "*open*"


def test_every_row_is_open_or_says_where_and_how_it_is_shown() -> None:
    rows = ROW.findall(PAGE)
    assert len({name for name, *_ in rows}) == len(rows), "an id is there twice"
    wrong = [
        name
        for name, _, where, shown in rows
        if (where == OPEN and shown) or (where != OPEN and not (where and TEST.search(shown)))
    ]
    assert not wrong, "say where it is done and name a test, or leave it open"
    done = len([where for _, _, where, _ in rows if where != OPEN])
    assert f"{done} of {len(rows)} are done." in PAGE, (done, len(rows))


def test_every_test_that_is_named_exists() -> None:
    named = sorted(set(TEST.findall(PAGE)))
    gone = [
        f"{path}::{test}"
        for path, test in named
        if not (ROOT / path).is_file()
        or (test and f"def {test}(" not in (ROOT / path).read_text("utf-8"))
    ]
    assert not gone, "renamed or removed: name the test that shows it now"
