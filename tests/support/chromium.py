"""A real browser: the system's Chromium, driven by Playwright, which downloads none of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Request, StorageState, expect, sync_playwright

AXE = (Path(__file__).parents[1] / "data/axe/axe.min.js").read_text("utf-8")
NAMES = ("chromium", "chromium-browser", "google-chrome")
WAIT_MS = 60_000
"""Patience of a step; machines may be slow."""
GRAVE = {"serious", "critical"}


def executable() -> str | None:
    """Return the browser of this machine."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def require_chromium() -> str:
    """Return the browser; without one, skip the test, and fail it in continuous integration."""
    if path := executable():
        return path
    missing = "no browser for the console's tests: apt install chromium"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser until the block ends."""
    path = require_chromium()
    with sync_playwright() as playwright:
        # Containers lack the rights for its sandbox, and space in /dev/shm.
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        yield browser
        browser.close()


@dataclass
class Visit:
    """A tab, and what it has logged and requested."""

    page: Page
    url: str
    problems: list[str] = field(default_factory=list)
    """Errors of the console and of scripts."""
    foreign: list[str] = field(default_factory=list)
    """Requests to other addresses than the gateway's."""

    def open(self, path: str) -> None:
        """Open an address of the gateway, and wait until the page is there."""
        self.page.goto(self.url + path, wait_until="load")

    def violations(self) -> list[str]:
        """Return what axe finds grave in the page: rule and element."""
        # The page's own policy forbids a script tag; the debugger may evaluate.
        before = len(self.problems)
        self.page.evaluate(AXE)
        found: Sequence[dict[str, Any]] = self.page.evaluate(
            "axe.run(document, {resultTypes: ['violations']}).then(result => result.violations)"
        )
        # To measure the contrast of plots, axe writes styles, which the policy of the page refuses.
        del self.problems[before:]
        return [
            f"{rule['id']}: {node['html'][:200]} {node.get('failureSummary', '')[:300]}"
            for rule in found
            if rule["impact"] in GRAVE
            for node in rule["nodes"]
        ]

    def overflow_px(self) -> int:
        """Return by how much the page is wider than its window."""
        width: int = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return width


@contextmanager
def visit(
    browser: Browser,
    url: str,
    *,
    width: int = 1280,
    height: int = 900,
    scheme: str = "light",
    session: StorageState | None = None,
) -> Iterator[Visit]:
    """Open a tab of a new profile until the block ends.

    Args:
        browser: The browser.
        url: Address of the gateway.
        width: Width of the window, in pixels.
        height: Height of the window, in pixels.
        scheme: `light` or `dark`.
        session: The profile begins signed in, as in this session.
    """
    viewport = {"width": width, "height": height}
    context = browser.new_context(
        viewport=viewport,  # type: ignore[arg-type]  # texts
        color_scheme=scheme,  # type: ignore[arg-type]  # texts
        storage_state=session,
    )
    context.set_default_timeout(WAIT_MS)
    tab = Visit(context.new_page(), url)

    def note(request: Request) -> None:
        if not request.url.startswith((url, "data:")):
            tab.foreign.append(request.url)

    context.on("request", note)
    tab.page.on("pageerror", lambda error: tab.problems.append(str(error)))
    tab.page.on(
        "console",
        lambda message: (
            tab.problems.append(message.text) if message.type in ("error", "warning") else None
        ),
    )
    yield tab
    context.close()


# ------------------------------------------------------------------------------------------ Steps


def sign_in(tab: Visit, secret: str) -> None:
    """Sign in as a person does: by the sign-in page."""
    send_token(tab, secret)
    expect(tab.page.get_by_role("button", name="Sign out")).to_be_visible()


def session_of(browser: Browser, url: str, secret: str) -> StorageState:
    """Sign in once, for several visits."""
    with visit(browser, url) as tab:
        sign_in(tab, secret)
        return tab.page.context.storage_state()


def send_token(tab: Visit, secret: str) -> None:
    """Send a token by the sign-in page."""
    tab.open("/console")
    tab.page.get_by_label("Token, or the code of a link").fill(secret)
    tab.page.get_by_role("button", name="Sign in").click()


def is_live(tab: Visit) -> None:
    """Wait until the page says that its figures are new."""
    expect(tab.page.locator("#age")).to_have_attribute("data-state", "fresh", timeout=WAIT_MS)
    expect(tab.page.locator("#age-text")).to_contain_text("Live")


def simulate(tab: Visit, table: str, planners: str, days: str) -> None:
    """Simulate a table in the view *What if*, and wait for the comparison."""
    tab.open(f"/console/what-if?table={table}")
    tab.page.locator("input[name=planners]").fill(planners)
    tab.page.locator("input[name=days]").fill(days)
    button = tab.page.get_by_role("region", name="A table as it is").get_by_role("button")
    button.click(no_wait_after=True)
    expect(tab.page.locator("#what-if-backlog canvas")).to_have_count(1, timeout=3 * WAIT_MS)
