"""The reference pages of the doors say what the code does."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from neve.client import Client
from tests.support.gateway import serving
from tests.support.gateway_pages import cli_page, http_page

FOLDER = Path(__file__).parents[3] / "docs" / "reference"


@pytest.mark.parametrize("name", ["cli.md", "http.md"])
def test_the_page_is_what_the_code_says(name: str, request: pytest.FixtureRequest) -> None:
    if name == "cli.md":
        page = cli_page()
    else:
        with serving() as gateway:
            page = http_page(httpx.get(f"{gateway.url}/openapi.json").json())
    page = page.rstrip("\n") + "\n"
    path = FOLDER / name
    if request.config.getoption("--rewrite"):
        path.write_text(page, encoding="utf-8")
    assert path.read_text("utf-8") == page, "`pytest tests/unit/neve --rewrite` writes it"


def test_every_method_of_the_client_is_documented() -> None:
    text = (FOLDER / "client.md").read_text("utf-8")
    methods = [name for name in dir(Client) if not name.startswith("_")]

    assert len(methods) > 25
    assert [name for name in methods if f"`{name}" not in text] == []
