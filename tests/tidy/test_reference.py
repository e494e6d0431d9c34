"""Every setting and metric is documented, as it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scripts.reference import PAGES
from tests.support.reader_properties import PROPERTIES, table_text
from tests.tidy.tree import ROOT

FOLDER = ROOT / "docs" / "reference"


@pytest.mark.parametrize(("name", "page"), PAGES.items(), ids=PAGES)
def test_the_page_is_what_the_code_says(
    name: str, page: Callable[[], str], request: pytest.FixtureRequest
) -> None:
    path = FOLDER / name
    if request.config.getoption("--rewrite"):
        path.write_text(page(), encoding="utf-8")

    assert path.read_text("utf-8") == page(), "`pytest tests/tidy --rewrite` brings it up to date"


def test_the_table_of_readers_is_the_one_that_is_tried(request: pytest.FixtureRequest) -> None:
    path = FOLDER / "files.md"
    page = path.read_text("utf-8")
    end = page.index("\n\n", begin := page.index("| property |")) + 1
    if request.config.getoption("--rewrite"):
        path.write_text(page[:begin] + table_text() + page[end:], encoding="utf-8")
        return

    assert page[begin:end] == table_text(), "`pytest tests/tidy --rewrite` brings it up to date"
    assert len(PROPERTIES) == page[begin:end].count("\n") - 2
    assert "tests/integration/test_reader_properties.py" in page
