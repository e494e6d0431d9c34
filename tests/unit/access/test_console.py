"""The console through HTTP: sign-in, sessions, rights, changes, events, static files."""

from __future__ import annotations

import asyncio
import gzip
import html
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from neve.api import Quarantine
from neve.console.frame import address_of, asset
from neve.gateway.access.callers import CONSOLE, INCLUDED, OPERATOR, SIGN_IN, Role
from neve.gateway.access.sessions import CODE_LIFE_S, CODE_PREFIX, OF_TOKEN_MAX, Sessions
from neve.gateway.console import CSRF_MARK, body_of
from tests.support.console import (
    HIDDEN,
    PAGE_ROUTES,
    PATH,
    SEEN,
    Browser,
    Callers,
    callers,
    flashes,
    signed_in,
)
from tests.support.gateway import TOKEN
from tests.support.gateway_pages import ROUTE_RIGHTS

HOSTILE = '"><script>alert(1)</script>{{ 7 * 7 }}<img src=x onerror=alert(2)>'


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callers]:
    with callers(tmp_path_factory.mktemp("console")) as door:
        yield door


def link_of(door: Callers, token: str = TOKEN) -> str:
    """Return the code of a new link."""
    answer = httpx.post(
        f"{door.gateway.url}/v1/console/links", headers={"Authorization": f"Bearer {token}"}
    )
    address, _, code = answer.json()["link"].partition("#")
    assert address == SIGN_IN, "the code is in no part of the address that is sent"
    return str(code)


# ------------------------------------------------------------------------------------------ Sign-in


def test_a_browser_is_led_to_the_console_and_a_client_is_not(door: Callers) -> None:
    with httpx.Client(base_url=door.gateway.url) as http:
        accept = {"Accept": "text/html,application/xhtml+xml"}
        assert http.get("/", headers=accept).headers["location"] == CONSOLE
        led = http.get(f"{CONSOLE}/tables?sort=state", headers=accept).headers["location"]
        assert led == f"{SIGN_IN}?next=%2Fconsole%2Ftables%3Fsort%3Dstate"
        answer = http.get("/")
        assert answer.status_code == 401
        assert answer.json()["error"] == "UnauthorizedError"
        assert http.get(CONSOLE).status_code == 401, "a script gets no page to parse"


def test_a_link_signs_in_once(door: Callers) -> None:
    code = link_of(door)
    with signed_in(door.gateway.url, code) as browser:
        assert "gateway.token" in browser.page(CONSOLE)
    again = httpx.post(door.gateway.url + SIGN_IN, data={"secret": code})
    assert again.status_code == 401
    assert "this link was used" in flashes(again.text)[0]
    assert code not in again.text


def test_a_link_has_the_rights_of_its_token(door: Callers) -> None:
    code = link_of(door, door.tokens["other-read"])
    with signed_in(door.gateway.url, code) as browser:
        page = browser.page(f"{CONSOLE}/tables")
    assert SEEN in page
    assert HIDDEN not in page


@pytest.mark.parametrize("secret", ["", "wrong", f"{CODE_PREFIX}wrong", "a.b.c", "é\n"])
def test_a_wrong_secret_opens_nothing(secret: str, door: Callers) -> None:
    answer = httpx.post(door.gateway.url + SIGN_IN, data={"secret": secret})
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert flashes(answer.text)


def test_the_cookie_is_kept_from_scripts_and_other_sites(door: Callers) -> None:
    with signed_in(door.gateway.url, TOKEN) as browser:
        store_id = door.gateway.ask(door.gateway.store.store_id())
        assert [cookie.name for cookie in browser.cookies.jar] == [f"neve-{store_id}"]
    answer = httpx.post(door.gateway.url + SIGN_IN, data={"secret": TOKEN})
    words = answer.headers["set-cookie"].split("; ")[1:]
    assert set(words) == {"HttpOnly", "Path=/console", "SameSite=lax"}


@pytest.mark.parametrize(
    "next_", ["https://evil.example/", "//evil.example/console", "/v1/tables", "/console\\..", ""]
)
def test_a_sign_in_leads_nowhere_else(next_: str, door: Callers) -> None:
    form = {"secret": TOKEN, "next": next_}
    answer = httpx.post(door.gateway.url + SIGN_IN, data=form)
    assert answer.status_code == 303
    assert answer.headers["location"] == CONSOLE


def test_a_sign_in_leads_back(door: Callers) -> None:
    form = {"secret": TOKEN, "next": "/console/tables?sort=state"}
    answer = httpx.post(door.gateway.url + SIGN_IN, data=form)
    assert answer.headers["location"] == "/console/tables?sort=state"


def test_another_site_cannot_sign_a_browser_in(door: Callers) -> None:
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = httpx.post(door.gateway.url + SIGN_IN, data={"secret": TOKEN}, headers=headers)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers


def test_a_session_does_not_open_the_api_and_a_token_not_the_console(door: Callers) -> None:
    with signed_in(door.gateway.url, TOKEN) as browser:
        cookies = dict(browser.cookies)
    with httpx.Client(base_url=door.gateway.url, cookies=cookies) as http:
        assert http.get("/v1/tables").status_code == 401
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert httpx.get(door.gateway.url + CONSOLE, headers=headers).status_code == 401


def test_signing_out_ends_the_session(door: Callers) -> None:
    with signed_in(door.gateway.url, TOKEN) as browser:
        cookies = dict(browser.cookies)
        answer = browser.post(f"{CONSOLE}/sign-out", data={"csrf": browser.csrf()})
        assert answer.headers["location"] == SIGN_IN
        assert not browser.cookies
    with httpx.Client(base_url=door.gateway.url, cookies=cookies) as http:
        assert http.get(CONSOLE).status_code == 401


def test_a_session_ends_with_its_token(door: Callers) -> None:
    _, token = door.file.create("leaver", ["read"], now_s=0.0, life_s=None)
    with signed_in(door.gateway.url, token) as browser:
        browser.page(CONSOLE)
        door.file.revoke("leaver")
        door.file.create("leaver", ["read"], now_s=0.0, life_s=None)
        for _ in range(100):
            # The gateway looks once per second whether the file has changed.
            if (answer := browser.get(CONSOLE)).status_code == 303:
                break
            threading.Event().wait(0.1)
        assert answer.headers["location"].startswith(SIGN_IN)


def test_sign_ins_are_in_the_audit_and_secrets_are_not(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    with callers(tmp_path, audit_file=str(file)) as door:
        code = link_of(door, door.tokens["read"])
        with signed_in(door.gateway.url, code) as browser:
            cookie, csrf = next(iter(browser.cookies.values())), browser.csrf()
            browser.post(f"{CONSOLE}/sign-out", data={"csrf": csrf})
        httpx.post(door.gateway.url + SIGN_IN, data={"secret": "neve_wrong"})
        log = repr(door.gateway.log)
    lines = [*file.read_text().splitlines()]
    lines += (tmp_path / "audit-refused.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    ended = [(e["caller"], e["action"], e["outcome"]) for e in entries if e["outcome"] != "begun"]
    for expected in (
        ("read", "POST /v1/console/links", "done"),
        ("read", "POST /console/sign-in", "done"),
        ("read", "POST /console/sign-out", "done"),
        ("-", "POST /console/sign-in", "refused"),
    ):
        assert expected in ended
    for secret in (code, cookie, csrf, "neve_wrong", door.tokens["read"]):
        assert secret not in "".join(lines) + log


class Hand:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.at_s = 1000.0

    def now_s(self) -> float:
        return self.at_s


async def nobody(_: bytes) -> object:
    return OPERATOR


def sessions(clock: Hand, life_s: float = 600.0) -> Sessions:
    return Sessions(nobody, life_s, clock)  # type: ignore[arg-type]  # any caller, any clock


def test_codes_and_sessions_end_and_are_bounded() -> None:
    asyncio.run(ends_and_bounds())


async def ends_and_bounds() -> None:
    clock = Hand()
    kept = sessions(clock)
    code, ends_s = kept.code_for(b"token")
    assert ends_s == clock.at_s + CODE_LIFE_S
    clock.at_s = ends_s
    with pytest.raises(Exception, match="older than five minutes"):
        await kept.begin(code)
    first, _ = await kept.begin("token")
    assert await kept.visit([first]) is not None
    clock.at_s += 600.0
    assert await kept.visit([first]) is None
    cookies = [(await kept.begin("token"))[0] for _ in range(OF_TOKEN_MAX + 1)]
    assert await kept.visit(cookies[:1]) is None, "a further session ends the oldest"
    assert await kept.visit(cookies[1:2]) is not None
    other, _ = await kept.begin("another")
    assert await kept.visit([other]) is not None


# ------------------------------------------------------------------------------------------- Rights


@pytest.mark.parametrize("name", sorted(PAGE_ROUTES))
def test_a_page_answers_each_role_as_its_api_route_does(name: str, door: Callers) -> None:
    page = PAGE_ROUTES[name]
    right = ROUTE_RIGHTS[page.of]
    assert right.role is not None
    method, pattern = name.split(" ")
    wanted = {key: value for key, value in PATH.items() if "{" + key + "}" in pattern}
    for role in Role:
        for narrow in (False, True):
            with door.browser(f"other-{role.value}" if narrow else role.value) as browser:
                form = {"csrf": browser.csrf()} if method == "POST" else None
                answer = browser.request(method, address_of(pattern, wanted), data=form)
            if right.role not in INCLUDED[role] or (narrow and right.reach.name == "SERVICE"):
                assert answer.status_code == 403, (role, narrow)
            elif narrow and right.reach.name == "TABLE":
                assert answer.status_code == 404, (role, narrow)
                assert HIDDEN not in html.unescape(answer.text).replace(repr(HIDDEN), "")
            else:
                assert answer.status_code not in (401, 403), (role, narrow)


def test_a_button_is_shown_to_those_that_may_and_refused_to_others(door: Callers) -> None:
    pause = "POST /v1/tables/{table}/pause"
    for name, may in (("read", False), ("write", False), ("compact", True), ("admin", True)):
        with door.browser(name) as browser:
            note = flashes(browser.press(pause, {"table": HIDDEN}, label="Pause").text)[0]
            assert note == "Pause: done." if may else "no right to compact" in note
    with door.browser("other-compact") as browser:
        note = flashes(browser.press(pause, {"table": HIDDEN}, label="Pause").text)[0]
    assert "no table is named 'users'" in note
    with door.gateway.client() as client:
        assert client.resume(HIDDEN).state == "live"


def test_a_change_is_audited_as_a_call_of_its_caller(door: Callers) -> None:
    with door.browser("compact") as browser:
        browser.press("POST /v1/tables/{table}/replan", {"table": SEEN})
    with door.gateway.client() as client:
        while True:  # The outcome is written a moment after the answer.
            entry = next(e for e in client.audit(table=SEEN) if e.action.endswith("/replan"))
            if entry.outcome != "begun":
                break
    assert (entry.caller, entry.outcome) == ("compact", "done")
    assert entry.address == "127.0.0.1"


def test_a_form_needs_the_value_of_its_session(door: Callers) -> None:
    form = {"route": "POST /v1/tables/{table}/pause", "path.table": HIDDEN}
    with door.browser("admin") as browser, door.browser("admin") as other:
        for csrf in ({}, {"csrf": ""}, {"csrf": other.csrf()}, {"csrf": CSRF_MARK}):
            answer = browser.post(f"{CONSOLE}/call", data={**form, **csrf})
            assert answer.status_code == 403
        good = {**form, "csrf": browser.csrf()}
        answer = browser.post(f"{CONSOLE}/call", data=good, headers={"Origin": "http://evil"})
        assert answer.status_code == 403
    with door.gateway.client() as client:
        assert client.describe(HIDDEN).state == "live"


def test_a_question_is_asked_before_the_call(door: Callers) -> None:
    with door.browser("admin") as browser:
        form = {
            "csrf": browser.csrf(),
            "route": "POST /v1/tables/{table}/pause",
            "path.table": HIDDEN,
            "ask": f"Pause {HIDDEN}?",
            "label": "Pause",
        }
        answer = browser.post(f"{CONSOLE}/call", data=form)
        assert answer.status_code == 200
        assert f"<p>Pause {HIDDEN}?</p>" in answer.text
        assert 'name="ask"' not in answer.text
    with door.gateway.client() as client:
        assert client.describe(HIDDEN).state == "live"


@pytest.mark.parametrize("route", ["GET /v1/tables", "POST /v1/nothing", "", "POST"])
def test_a_form_can_only_name_changes(route: str, door: Callers) -> None:
    with door.browser("admin") as browser:
        assert "names no change" in flashes(browser.press(route, {}).text)[0]


def test_fields_become_a_body() -> None:
    texts = {"name": "a", "settings.target_bytes": "64MB", "empty": ""}
    assert body_of(texts, {"paused": "true", "settings.file_limit": "4", "none": ""}) == {
        "name": "a",
        "paused": True,
        "settings": {"target_bytes": "64MB", "file_limit": 4},
    }
    with pytest.raises(Exception, match="paused 'yes' is no number or switch"):
        body_of({}, {"paused": "yes"})
    with pytest.raises(Exception, match=r"a as a value, and a\.b within it"):
        body_of({"a": "1", "a.b": "2"}, {})


# ------------------------------------------------------------------------------------ Pages, events


def test_texts_of_users_are_shown_as_text(door: Callers) -> None:
    door.gateway.coordinator.quarantines = (Quarantine(table=SEEN, tablet="last", reason=HOSTILE),)
    try:
        with door.browser("admin") as browser:
            pages = [browser.page_with(CONSOLE, "&lt;script&gt;alert(1)")]
            pages.append(browser.page(f"{CONSOLE}/tables?filter={HOSTILE}"))
            pages.append(browser.get(f"{CONSOLE}/tables?sort={HOSTILE}&order={HOSTILE}").text)
    finally:
        door.gateway.coordinator.quarantines = ()
    assert all("<script>alert" not in page and "onerror=alert(2)>" not in page for page in pages)
    assert all("49" not in page.partition("alert(1)")[2][:30] for page in pages)
    assert all(" style=" not in page for page in pages), "the policy allows no such attribute"


def test_a_page_names_the_part_that_is_silent(door: Callers) -> None:
    door.gateway.coordinator.up = False
    try:
        with door.browser("admin") as browser:
            page = browser.page_with(CONSOLE, "the coordinator does not answer")
            assert "The jobs are not known now." in page, "unknown is not none"
            assert "No job is queued" not in page
            tables = browser.page(f"{CONSOLE}/tables")
    finally:
        door.gateway.coordinator.up = True
    assert "1 thing needs you" in page
    assert "the coordinator does not answer" in tables
    assert SEEN in tables, "the store answers"


def test_tables_are_filtered_sorted_and_paged_by_the_address(door: Callers) -> None:
    with door.browser("read") as browser:
        both = browser.page(f"{CONSOLE}/tables?sort=name&order=down")
        assert both.index(f">{HIDDEN}</a>") < both.index(f">{SEEN}</a>")
        one = browser.page(f"{CONSOLE}/tables?filter=other&page=99")
        assert f">{HIDDEN}</a>" not in one
        assert "1 table" in one
        assert "None of 2 tables matches" in browser.page(f"{CONSOLE}/tables?state=going")


def events_of(browser: Browser, page: str, count: int) -> list[tuple[str, str]]:
    """Return the first events of a page's stream: name and data."""
    events: list[tuple[str, str]] = []
    with browser.stream("GET", f"{CONSOLE}/events", params={"of": page}) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        name, data = "", []
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data.append(line[6:])
            elif not line:
                events.append((name, "\n".join(data)))
                name, data = "", []
            if len(events) == count:
                break
    return events


@pytest.mark.parametrize("page", [CONSOLE, f"{CONSOLE}/tables"])
def test_a_stream_has_only_what_its_caller_may_see(page: str, door: Callers) -> None:
    with door.browser("admin") as whole, door.browser("other-read") as narrow:
        everything = events_of(whole, page, 3)
        seen = events_of(narrow, page, 3)
    assert everything[0][0] == seen[0][0] == ""
    assert {name for name, _ in seen[1:]} <= {"", "beat"}
    text = "".join(data for _, data in seen)
    assert HIDDEN not in text
    assert "events" not in text, "the coordinator's jobs are about this table"
    if page != CONSOLE:
        assert SEEN in text
        assert HIDDEN in everything[0][1]


def test_viewers_share_what_a_sample_reads(door: Callers) -> None:
    asked = []
    status = type(door.gateway.coordinator).status

    async def counted() -> object:
        asked.append(1)
        return await status(door.gateway.coordinator)

    door.gateway.coordinator.status = counted  # type: ignore[method-assign]  # counts the calls
    try:
        with ExitStack() as opened, ThreadPoolExecutor(8) as pool:
            names = ["read" if number % 2 else "admin" for number in range(8)]
            browsers = [opened.enter_context(door.browser(name)) for name in names]
            seen = list(pool.map(lambda browser: events_of(browser, CONSOLE, 5), browsers))
        assert all(len(events) == 5 for events in seen)
    finally:
        del door.gateway.coordinator.status
    # Eight viewers saw at least three samples each; each sample asked once, whoever looked.
    assert 0 < len(asked) <= 8


def test_a_stream_is_of_a_live_page_of_the_console(door: Callers) -> None:
    with door.browser("admin") as browser:
        for page in ("", "/v1/tables", f"{CONSOLE}/call", "/console/nothing", "https://evil/"):
            answer = browser.get(f"{CONSOLE}/events", params={"of": page})
            assert answer.status_code == 400, page


def test_a_stream_ends_with_its_session(door: Callers) -> None:
    with door.browser("admin") as browser:
        csrf = browser.csrf()
        with browser.stream("GET", f"{CONSOLE}/events", params={"of": CONSOLE}) as answer:
            lines = answer.iter_lines()
            next(lines)
            cookies = dict(browser.cookies)
            headers = {"Accept": "text/html"}
            with httpx.Client(base_url=door.gateway.url, cookies=cookies, headers=headers) as http:
                http.post(f"{CONSOLE}/sign-out", data={"csrf": csrf})
            assert "event: signed-out" in list(lines)


def test_static_files_are_kept_for_ever_and_compressed(door: Callers) -> None:
    address = asset("console.js")
    with httpx.Client(base_url=door.gateway.url) as http:
        answer = http.get(address)
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["content-encoding"] == "gzip"
        assert answer.headers["content-type"].startswith("text/javascript")
        plain = http.get(address, headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.content == answer.content
        for wrong in (address.replace("console.js", "htmx.js"), "/console/static/x/../frame.py"):
            assert http.get(wrong).status_code in (401, 404)


def test_a_first_visit_transfers_little(door: Callers) -> None:
    names = ("console.css", "console.js", "htmx.js", "hx-sse.js", "uplot.js", "uplot.css")
    with door.browser("admin") as browser:
        sizes = [len(gzip.compress(browser.get(asset(name)).content, 9)) for name in names]
        pages = [browser.page(CONSOLE), browser.page(f"{CONSOLE}/tables")]
    assert sum(sizes) + max(len(page.encode()) for page in pages) < 150_000


def test_pages_forbid_foreign_scripts_and_storing(door: Callers) -> None:
    with door.browser("admin") as browser:
        answers = [browser.get(CONSOLE), browser.get(SIGN_IN), browser.get(f"{CONSOLE}/tables")]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "http://" not in answer.text
        assert "https://" not in answer.text
