"""Every setting and metric is documented, as it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.tidy.reference import PAGES
from tests.tidy.tree import ROOT

FOLDER = ROOT / "docs" / "reference"


@pytest.mark.parametrize(("name", "page"), PAGES.items(), ids=PAGES)
def test_the_page_is_what_the_code_says(
    name: str, page: Callable[[], str], request: pytest.FixtureRequest
) -> None:
    path = FOLDER / name
    if request.config.getoption("--rewrite"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(), encoding="utf-8")

    assert path.is_file(), "`pytest tests/tidy --rewrite` writes it"
    assert path.read_text("utf-8") == page(), "`pytest tests/tidy --rewrite` brings it up to date"
