"""The console in a real Chromium, against a real gateway with a real Redis."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect

from common.metadata.redis import connect
from common.settings import StoreSettings
from neve.api import Column, Quarantine
from neve.gateway.access.tokens import TokenFile
from tests.support.chromium import WAIT_MS, chromium, is_live, send_token, sign_in, visit
from tests.support.gateway import TOKEN, Gateway, serving
from tests.support.issuer import AUDIENCE, running_issuer
from tests.support.redis_server import executable, free_port, running
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.skipif(executable() is None, reason="no redis-server on this machine")

HOSTILE = '"><script>document.title="taken"</script><img src=x onerror="document.title=2">'
LONG = "a-table-with-a-name-that-is-as-long-as-a-name-of-a-table-can-be"
WIDTHS = (390, 768, 1280, 1920)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running_browser:
        yield running_browser


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("console")
    file = TokenFile(folder / "tokens.json")
    file.create("reader", ["read"], now_s=0.0, life_s=None)
    access = {"tokens_file": str(file.path)}
    with (
        running() as redis,
        serving(connect(StoreSettings(url=redis.url, timeout_s=5.0)), access=access) as gateway,
    ):
        with gateway.client() as client:
            for name in ("events", LONG):
                (folder / name).mkdir()
                schema = [Column(name="x", type="int64")]
                client.create_table(name, str(folder / name), schema=schema)
        yield gateway


@pytest.fixture
def token(gateway: Gateway) -> str:
    """Return a new token that may read everything."""
    file = TokenFile(Path(gateway.services.settings.access.tokens_file))
    return file.rotate("reader", now_s=gateway.services.clock.now_s(), overlap_s=0.0)[1]


def test_a_link_opens_the_console_and_leaves_no_trace(browser: Browser, gateway: Gateway) -> None:
    with gateway.client() as client, visit(browser, gateway.url) as tab:
        link = client.console_link().link
        tab.page.goto(link)
        expect(tab.page).to_have_url(f"{gateway.url}/console")
        tab.page.go_back()
        assert "once_" not in tab.page.url
        tab.page.goto(link)
        expect(tab.page.get_by_role("alert")).to_contain_text("this link was used")
        assert "once_" not in tab.page.content()


def test_a_person_signs_in_and_out(browser: Browser, gateway: Gateway) -> None:
    with visit(browser, gateway.url) as tab:
        sign_in(tab, TOKEN)
        is_live(tab)
        tab.page.get_by_role("link", name="Tables", exact=True).click()
        expect(tab.page.get_by_role("heading", level=1)).to_have_text("Tables")
        tab.page.get_by_role("button", name="Sign out").click()
        expect(tab.page.get_by_role("heading", level=1)).to_have_text("Sign in")
        tab.open("/console/tables")
        expect(tab.page.get_by_role("heading", level=1)).to_have_text("Sign in")
        assert tab.problems == []
        assert tab.foreign == []


@pytest.mark.parametrize(
    ("path", "scheme"),
    [
        ("/console", "light"),
        ("/console", "dark"),
        ("/console/tables", "light"),
        pytest.param("/console/tables", "dark", marks=pytest.mark.long),
    ],
)
def test_a_page_is_accessible_and_fits(
    path: str, scheme: str, browser: Browser, gateway: Gateway
) -> None:
    gateway.coordinator.quarantines = (Quarantine(table=LONG, tablet="last", reason=HOSTILE),)
    with visit(browser, gateway.url, scheme=scheme) as tab:
        sign_in(tab, TOKEN)
        tab.open(path)
        if tab.page.locator("#live").count():
            is_live(tab)
        for width in WIDTHS:
            tab.page.set_viewport_size({"width": width, "height": 900})
            assert tab.overflow_px() == 0, width
        assert tab.page.title() not in ("taken", "2")
        assert tab.problems == []
        assert tab.foreign == []
        for width in (390, 1280):  # Last: axe itself logs what it tries of the policy.
            tab.page.set_viewport_size({"width": width, "height": 900})
            assert tab.violations() == [], width


def test_texts_of_users_stay_texts(browser: Browser, gateway: Gateway) -> None:
    gateway.coordinator.quarantines = (Quarantine(table=LONG, tablet="last", reason=HOSTILE),)
    with visit(browser, gateway.url) as tab:
        sign_in(tab, TOKEN)
        expect(tab.page.get_by_text(HOSTILE)).to_be_visible()
        assert tab.page.locator("img[src=x]").count() == 0
        tab.page.get_by_role("link", name=f"{LONG}, tablet last").focus()
        is_live(tab)
        assert tab.page.title() == "Overview · Névé"


def test_figures_are_new_without_a_reload_and_keep_the_focus(
    browser: Browser, gateway: Gateway
) -> None:
    with visit(browser, gateway.url) as tab:
        sign_in(tab, TOKEN)
        tab.page.evaluate("window.stays = true")
        link = tab.page.get_by_role("main").get_by_role("link", name="events", exact=True)
        link.focus()
        with gateway.client() as client:
            client.pause("events")
            expect(tab.page.get_by_text("no new job starts")).to_be_visible(timeout=WAIT_MS)
            client.resume("events")
        expect(tab.page.get_by_text("no new job starts")).to_have_count(0, timeout=WAIT_MS)
        assert tab.page.evaluate("window.stays")
        expect(link).to_be_focused()
        assert tab.problems == []


def test_a_page_says_when_the_connection_is_lost(browser: Browser) -> None:
    port = free_port()
    with running() as redis, visit(browser, f"http://127.0.0.1:{port}") as tab:
        with gateway_process(redis.url, port):
            sign_in(tab, TOKEN)
            is_live(tab)
        lost = tab.page.locator("#age-text")
        expect(lost).to_contain_text("Connection lost", timeout=WAIT_MS)
        expect(tab.page.locator("#age")).to_have_attribute("data-state", "lost")
        with gateway_process(redis.url, port):
            # Sessions live in the memory of a gateway.
            heading = tab.page.get_by_role("heading", level=1)
            expect(heading).to_have_text("Sign in", timeout=WAIT_MS)


@contextmanager
def gateway_process(redis: str, port: int) -> Iterator[None]:
    """Run a gateway in a process of its own, and kill it when the block ends."""
    command = [sys.executable, "-m", "tests.support.gateway_process", redis, str(port)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http")
        yield
        process.kill()


def test_a_person_signs_in_at_an_issuer_of_another_site(browser: Browser) -> None:
    port = free_port()
    with running_issuer("localhost") as issuer:
        access = {
            "oidc_issuer": issuer.url,
            "oidc_audience": AUDIENCE,
            "oidc_grants": ("lake-readers=read",),
            "oidc_client_id": issuer.client,
        }
        url = f"http://127.0.0.1:{port}"
        with (
            serving(access=access, port=port, public_url=url),
            visit(browser, url) as tab,
        ):
            tab.open("/console/tables")
            tab.page.get_by_role("link", name="Sign in with localhost").click()
            expect(tab.page.get_by_role("heading", level=1)).to_have_text("Tables")
            expect(tab.page.get_by_text("oidc:ada")).to_be_visible()
            is_live(tab)


def test_a_revoked_token_leads_to_the_sign_in_page(
    browser: Browser, gateway: Gateway, token: str
) -> None:
    with visit(browser, gateway.url) as tab:
        sign_in(tab, token)
        is_live(tab)
        file = TokenFile(Path(gateway.services.settings.access.tokens_file))
        file.rotate("reader", now_s=0.0, overlap_s=0.0)
        expect(tab.page.get_by_role("heading", level=1)).to_have_text("Sign in", timeout=WAIT_MS)


def test_a_session_that_ends_before_the_page_is_live_leads_to_the_sign_in_page(
    browser: Browser, gateway: Gateway
) -> None:
    with visit(browser, gateway.url) as tab:

        def end_session(call: Route) -> None:
            tab.page.context.clear_cookies()
            call.continue_()

        tab.page.route("**/console/events**", end_session, times=1)
        with tab.page.expect_response("**/console/events**") as refused:
            send_token(tab, TOKEN)
        assert refused.value.status == 401
        expect(tab.page.get_by_role("heading", level=1)).to_have_text("Sign in", timeout=WAIT_MS)


def test_a_page_becomes_live_when_its_first_connection_fails(
    browser: Browser, gateway: Gateway
) -> None:
    with visit(browser, gateway.url) as tab:
        tab.page.route("**/console/events**", lambda call: call.fulfill(status=503), times=1)
        with tab.page.expect_response("**/console/events**") as first:
            sign_in(tab, TOKEN)
        assert first.value.status == 503
        is_live(tab)


def test_a_page_becomes_live_when_a_script_comes_late(browser: Browser, gateway: Gateway) -> None:
    with visit(browser, gateway.url) as tab:

        def delay(call: Route) -> None:
            tab.page.wait_for_timeout(500)
            call.continue_()

        tab.page.route("**/hx-sse.js", delay)
        with tab.page.expect_response("**/console/events**") as stream:
            sign_in(tab, TOKEN)
        assert stream.value.status == 200


def test_the_keyboard_reaches_the_content(browser: Browser, gateway: Gateway) -> None:
    with visit(browser, gateway.url) as tab:
        sign_in(tab, TOKEN)
        tab.page.keyboard.press("Tab")
        skip: Any = tab.page.get_by_role("link", name="Skip to the content")
        expect(skip).to_be_focused()
        tab.page.keyboard.press("Enter")
        expect(tab.page.locator("#main")).to_be_focused()
