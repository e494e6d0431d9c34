"""Sign-in at an OpenID issuer: the real flow through HTTP, without a browser's screen."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from common.access_settings import AccessSettings
from common.errors import ConfigError
from common.runtime import SystemClock
from common.settings import GatewaySettings, Settings
from neve.gateway.access.callers import CONSOLE, SIGN_IN
from neve.gateway.access.sessions import IssuerSignIn
from tests.support.console import Browser, flashes
from tests.support.gateway import Gateway, serving
from tests.support.issuer import AUDIENCE, Issuer, running_issuer
from tests.support.redis_server import free_port


@contextmanager
def gateway_with(issuer: Issuer, folder: Path) -> Iterator[Gateway]:
    """Serve a gateway whose people sign in at an issuer."""
    port, access = (
        free_port(),
        {
            "oidc_issuer": issuer.url,
            "oidc_audience": AUDIENCE,
            "oidc_grants": ("lake-readers=read:other-*",),
            "oidc_client_id": issuer.client,
        },
    )
    if issuer.secret:
        (folder / "secret").write_text(issuer.secret)
        access["oidc_client_secret_file"] = str(folder / "secret")
    with serving(access=access, port=port, public_url=f"http://127.0.0.1:{port}") as gateway:
        yield gateway


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with running_issuer() as issuer:
        yield issuer


def sign_in(browser: Browser, following: str = CONSOLE) -> httpx.Response:
    """Go to the issuer and back, and return the answer that ends the sign-in."""
    page = browser.get(SIGN_IN, params={"next": following})
    assert "Sign in with 127.0.0.1" in page.text
    away = browser.get(f"{SIGN_IN}/issuer", params={"next": following})
    back = httpx.get(away.headers["location"]).headers["location"]
    return browser.get(back)


def browser_of(gateway: Gateway) -> Browser:
    return Browser(base_url=gateway.url, headers={"Accept": "text/html"}, timeout=20)


@pytest.mark.parametrize("secret", ["", "s3cret/+:"])
def test_a_person_signs_in_at_the_issuer(secret: str, issuer: Issuer, tmp_path: Path) -> None:
    issuer.secret = secret
    with gateway_with(issuer, tmp_path) as gateway, browser_of(gateway) as browser:
        ended = sign_in(browser, "/console/tables?sort=state")
        assert ended.status_code == 303, flashes(ended.text)
        assert ended.headers["location"] == "/console/tables?sort=state"
        page = browser.page("/console/tables")
        assert "oidc:ada" in page
        assert browser.get("/console/nothing").status_code == 404


def test_the_session_outlives_its_access_token(issuer: Issuer, tmp_path: Path) -> None:
    issuer.life_s = -20  # Within the leeway of thirty seconds, and soon beyond.
    with gateway_with(issuer, tmp_path) as gateway, browser_of(gateway) as browser:
        assert sign_in(browser).status_code == 303
        first = set(issuer.refreshes)
        while issuer.refreshes == first:
            browser.page(CONSOLE)
            threading.Event().wait(0.5)
        assert len(issuer.refreshes) == 1, "a refresh token is used once"
        issuer.refreshes.clear()
        issuer.life_s = 600
        for _ in range(120):
            if (answer := browser.get(CONSOLE)).status_code == 303:
                break
            threading.Event().wait(0.5)
        assert answer.headers["location"].startswith(SIGN_IN), "the issuer has ended the session"


def test_a_sign_in_is_of_one_browser_and_ends_once(issuer: Issuer, tmp_path: Path) -> None:
    with gateway_with(issuer, tmp_path) as gateway:
        with browser_of(gateway) as browser, browser_of(gateway) as other:
            away = browser.get(f"{SIGN_IN}/issuer")
            back = httpx.get(away.headers["location"]).headers["location"]
            answer = other.get(back)
            assert answer.status_code == 401
            assert "another browser" in flashes(answer.text)[0]
            again = browser.get(back)
            assert again.status_code == 401
            assert "begin again" in flashes(again.text)[0]
        with gateway.client() as client:
            while not (entries := client.audit()):
                pass  # Entries are written a moment after the answer.
    assert entries[0].action == "GET /console/sign-in/issued"
    assert entries[0].outcome == "refused"
    assert "code-" not in repr(entries)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"nonce": "of another sign-in"}, "another sign-in"),
        ({"nonce": None}, "another sign-in"),
        ({"aud": "another"}, "Audience"),
        ({"aud": ["neve-console", "another"], "azp": "another"}, "another client"),
        ({"iss": "https://evil.example"}, "issuer"),
        ({"exp": 1}, "expired"),
    ],
)
def test_an_id_token_of_something_else_is_refused(
    wrong: dict[str, object], why: str, issuer: Issuer, tmp_path: Path
) -> None:
    issuer.wrong = dict(wrong)
    with gateway_with(issuer, tmp_path) as gateway, browser_of(gateway) as browser:
        answer = sign_in(browser)
        assert answer.status_code == 401
        assert why in flashes(answer.text)[0]
        assert browser.get(CONSOLE).status_code == 303


def test_a_refusal_and_a_silent_issuer_are_shown(issuer: Issuer, tmp_path: Path) -> None:
    with gateway_with(issuer, tmp_path) as gateway, browser_of(gateway) as browser:
        away = browser.get(f"{SIGN_IN}/issuer")
        state = httpx.URL(away.headers["location"]).params["state"]
        query = {"state": state, "error": "access_denied", "error_description": "<b>no</b>"}
        answer = browser.get(f"{SIGN_IN}/issued", params=query)
        assert flashes(answer.text) == ["the issuer has refused: <b>no</b>"]
        away = browser.get(f"{SIGN_IN}/issuer")
        back = httpx.get(away.headers["location"]).headers["location"]
        issuer.up = False
        answer = browser.get(back)
        assert answer.status_code == 503
        assert "answered with status 503" in flashes(answer.text)[0]


@pytest.mark.parametrize(
    ("access", "url", "missing"),
    [
        ({}, "https://neve.example", "access.oidc_issuer"),
        ({"oidc_issuer": "https://issuer.example"}, "", "gateway.public_url"),
    ],
)
def test_a_client_needs_an_issuer_and_an_address(
    access: dict[str, str], url: str, missing: str
) -> None:
    settings = Settings(
        access=AccessSettings(oidc_client_id="neve", **access),
        gateway=GatewaySettings(public_url=url),
    )
    tokens = None if not access else object()
    with pytest.raises(ConfigError, match=missing):
        IssuerSignIn.of(settings, tokens, SystemClock())  # type: ignore[arg-type]  # is not used
