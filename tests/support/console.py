"""Callers of the console: a gateway with two tables, a token for each role, and browsers."""

from __future__ import annotations

import html
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from neve.api import Column
from neve.console.pages import PAGES
from neve.gateway.access.callers import CONSOLE, SIGN_IN, STATIC, Role
from neve.gateway.access.tokens import TokenFile
from tests.support.gateway import Gateway, serving

HIDDEN, SEEN = "users", "other-1"
"""Two tables; tokens named `other-…` have their role on the second one only."""
PAGE_ROUTES = {f"{page.method} {page.address}": page for page in PAGES}
CONSOLE_ROUTES = (
    f"GET {SIGN_IN}",
    f"POST {SIGN_IN}",
    f"GET {SIGN_IN}/issuer",
    f"GET {SIGN_IN}/issued",
    f"GET {STATIC}/{{digest}}/{{name}}",
    f"POST {CONSOLE}/sign-out",
    f"POST {CONSOLE}/call",
    f"GET {CONSOLE}/events",
    *PAGE_ROUTES,
)
"""All routes of the console."""
PATH = {
    "table": HIDDEN,
    "tablet": "last",
    "request": "req-1",
    "attempt": "att-9",
    "group": "default",
}


@dataclass
class Callers:
    """A gateway with two tables, and a token for each role, on all tables and on one."""

    gateway: Gateway
    tokens: Mapping[str, str]
    file: TokenFile

    def browser(self, name: str) -> AbstractContextManager[Browser]:
        """Return a browser that is signed in by a token, for a block."""
        return signed_in(self.gateway.url, self.tokens[name])


class Browser(httpx.Client):
    """An HTTP client that behaves like a browser: it keeps cookies and sends forms."""

    def page(self, address: str) -> str:
        """Return the page at an address, which must exist."""
        answer = self.get(address)
        assert answer.status_code == 200, (address, answer.status_code, answer.text[:500])
        return answer.text

    def page_with(self, address: str, text: str) -> str:
        """Return the page at an address as soon as it has a text: answers are shared for a time."""
        for _ in range(200):
            if text in (page := self.page(address)):
                return page
            threading.Event().wait(0.1)
        raise AssertionError(f"{address} does not show {text!r}: {page}")

    def csrf(self) -> str:
        """Return the value that forms of this session send."""
        match = re.search(r'name="csrf" value="([^"]+)"', self.page(CONSOLE))
        assert match is not None
        return match[1]

    def press(self, route: str, path: Mapping[str, str], **fields: str) -> httpx.Response:
        """Send the form of a button, without asking, and return the page that follows."""
        named = {f"path.{name}": value for name, value in path.items()}
        form = {"csrf": self.csrf(), "route": route, "next": CONSOLE, **named, **fields}
        answer = self.post(f"{CONSOLE}/call", data=form)
        assert answer.status_code == 303, answer.text
        return self.get(answer.headers["location"])


def flashes(text: str) -> list[str]:
    """Return the sentences above a page, unescaped."""
    notes = re.findall(r'<div class="flash [a-z]*"[^>]*>(.*?)</div>', text, re.DOTALL)
    return [html.unescape(note) for note in notes]


@contextmanager
def signed_in(url: str, secret: str) -> Iterator[Browser]:
    """Yield a browser that is signed in by a token or a code."""
    with Browser(base_url=url, headers={"Accept": "text/html"}, timeout=20) as browser:
        answer = browser.post(SIGN_IN, data={"secret": secret})
        assert answer.status_code == 303, flashes(answer.text)
        yield browser


@contextmanager
def callers(folder: Path, **access: Any) -> Iterator[Callers]:
    """Serve a gateway with two tables until the block ends.

    Args:
        folder: For tokens and tables.
        access: Settings of the section of that name.
    """
    file = TokenFile(folder / "tokens.json")
    tokens = {}
    for role in Role:
        for name, pattern in ((role.value, "*"), (f"other-{role.value}", "other-*")):
            tokens[name] = file.create(name, [f"{role.value}:{pattern}"], now_s=0.0, life_s=None)[1]
    settings = {"tokens_file": str(file.path), **access}
    with serving(access=settings) as gateway:
        with gateway.client() as client:
            for table in (HIDDEN, SEEN):
                (folder / table).mkdir()
                schema = [Column(name="x", type="int64")]
                client.create_table(table, str(folder / table), schema=schema)
        yield Callers(gateway, tokens, file)
