"""`docs/requirements.md` names tests that exist, and counts right."""

from __future__ import annotations

import re

from tests.tidy.tree import ROOT

PAGE = (ROOT / "docs" / "requirements.md").read_text("utf-8")
ROW = re.compile(r"^\| ([A-Z]+-\d+) \| (.+) \| (.+) \| (?:(.+) )?\|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/.]+\.py)(?:::(\w+))?`")
OPEN, NOT_APPLICABLE = "*open*", "not applicable: "


def test_every_row_is_open_or_says_where_and_how_it_is_shown() -> None:
    rows = ROW.findall(PAGE)
    without = sum(shown.startswith(NOT_APPLICABLE) for *_, shown in rows)
    done = sum(where != OPEN for _, _, where, _ in rows) - without

    assert len({name for name, *_ in rows}) == len(rows), "an id is there twice"
    wrong = [name for name, _, where, shown in rows if not is_sound(where, shown)]
    assert not wrong, "say where it is done and name a test, or why it does not apply, or leave it"
    assert f"{done} of {len(rows)} are done." in PAGE, (done, len(rows))
    assert f"{without} are not applicable" in PAGE, without


def is_sound(where: str, shown: str) -> bool:
    """Return whether a row is open, done with a test, or not applicable with a reason."""
    if where == OPEN:
        return not shown
    if shown.startswith(NOT_APPLICABLE):
        return len(shown) > len(NOT_APPLICABLE) + 40
    return bool(where and TEST.search(shown))


def test_every_test_that_is_named_exists() -> None:
    gone = [
        f"{path}::{test}"
        for path, test in sorted(set(TEST.findall(PAGE)))
        if not (ROOT / path).is_file()
        or (test and f"def {test}(" not in (ROOT / path).read_text("utf-8"))
    ]

    assert not gone, "renamed or removed: name the test that shows it now"
