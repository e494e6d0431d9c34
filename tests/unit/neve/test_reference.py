"""The reference pages say what the code does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from neve.cli import app
from tests.support.gateway import serving
from tests.support.gateway_pages import NOUNS, PAGES_LIST, http_page, noun_page

FOLDER = Path(__file__).parents[3] / "docs" / "reference"
INTRODUCTIONS = ("cli.md", "client.md", "http.md", "metrics.md", "rights.md")


@pytest.fixture(scope="module")
def document() -> Iterator[dict[str, Any]]:
    with serving() as gateway:
        yield httpx.get(f"{gateway.url}/openapi.json").json()


@pytest.mark.parametrize("name", ["http", *NOUNS])
def test_the_page_is_what_the_code_says(
    name: str, document: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    page = http_page() if name == "http" else noun_page(name, document)
    path = FOLDER / f"{name}.md"
    if request.config.getoption("--rewrite"):
        path.write_text(page, encoding="utf-8")
    assert path.read_text("utf-8") == page, "`pytest tests/unit/neve --rewrite` writes it"


@pytest.mark.parametrize("name", INTRODUCTIONS)
def test_an_introduction_links_to_every_noun(name: str) -> None:
    assert PAGES_LIST in (FOLDER / name).read_text("utf-8")


def test_every_route_of_the_document_is_on_a_page(document: dict[str, Any]) -> None:
    pages = "".join((FOLDER / f"{noun}.md").read_text("utf-8") for noun in NOUNS)
    routes = [
        f"### {method.upper()} {path}\n"
        for path, methods in document["paths"].items()
        for method in methods
    ]

    assert len(routes) > 60
    assert [route for route in routes if pages.count(route) != 1] == []


def test_every_verb_is_on_a_page() -> None:
    pages = "".join((FOLDER / f"{noun}.md").read_text("utf-8") for noun in NOUNS)
    verbs = [f"### neve {verb.words}\n" for verb in app.verbs()]

    assert len(verbs) > 60
    assert [verb for verb in verbs if pages.count(verb) != 1] == []
