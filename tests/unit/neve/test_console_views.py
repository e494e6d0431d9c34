"""The console's views over a gateway: each page shows the data of the API, as text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from html import unescape
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from neve import api
from neve.cli.render import queue_place
from neve.client import Client
from tests.support.gateway import QUEUED, TOKEN, Gateway, serving

KEYED = pa.schema([("x", pa.int64()), ("v", pa.int64())])
EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with serving() as served:
        yield served


@pytest.fixture(scope="module", autouse=True)
def table(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> None:
    with gateway.client() as client:
        create_table(client, tmp_path_factory.mktemp("events"))


def create_table(client: Client, folder: Path) -> None:
    client.create_table(
        "events", str(folder), schema=KEYED, key=["x"], version_column="v", splits=["10"]
    )
    for x in (1, 2, 15):
        client.append("events", pa.table({"x": [x], "v": [1]}))


@pytest.fixture(scope="module")
def browser(gateway: Gateway) -> Iterator[httpx.Client]:
    with signed_in(gateway) as client:
        yield client


@contextmanager
def signed_in(gateway: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=20) as client:
        answer = client.post("/console/sign-in", data={"secret": TOKEN})
        assert answer.status_code == 303, answer.text
        yield client


def text_of(answer: httpx.Response) -> str:
    """Return the text of a page, without tags and repeated blanks."""
    assert answer.status_code == 200, answer.text
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", answer.text)))


PAGES = (
    ("/console/tables/events", ("Tablets in the order of their keys", "tablets by files")),
    ("/console/tables/events?colour=backlog", ("tablets by backlog",)),
    ("/console/tables/events/settings", ("planner_options", "Dry run")),
    ("/console/tables/events/tablets/last", ("What the service says", "nothing to do", "Story")),
    (
        "/console/queues",
        ("Group default", "maintenance, 12 points in its class", "Hold"),
    ),
    ("/console/running", ("rewriting", "node-a", "The last hour")),
    ("/console/requests", ("There is no request",)),
    ("/console/tables/events/compact", ("First key", "Dry run")),
    ("/console/compactors", ("local-1", "busy", "Limits of bytes per second")),
    ("/console/control", ("drain-time", "Classes of work", "Average wait")),
    ("/console/history", ("No job has ended so far",)),
    ("/console/audit", ("POST /v1/tables", "gateway.token")),
    ("/console/rights", ("create tables", "events")),
    ("/console/search?q=even", ("events", "table")),
    ("/console/search?q=att-1", ("running job", "job-0")),
)


@pytest.mark.parametrize(("address", "words"), PAGES)
def test_a_page_shows_what_the_api_has(
    browser: httpx.Client, address: str, words: tuple[str, ...]
) -> None:
    text = text_of(browser.get(address))

    assert [word for word in words if word not in text] == []


def test_a_job_that_waits_for_others_is_listed_with_these() -> None:
    job = replace(QUEUED.job, id="job-2", inputs=("c.parquet",), depends_on=("job-1",))
    waits = replace(QUEUED, job=job, place=0, age_s=0.0, after=("job-1",))
    with serving() as served:
        served.coordinator.following = (waits,)
        with served.client() as client:
            listed = client.queue()
        with signed_in(served) as browser:
            text = text_of(browser.get("/console/queues?q=job-2"))

    assert [(job.place, job.predecessors) for job in listed] == [(1, ()), (None, ("job-1",))]
    assert [queue_place(job) for job in listed] == ["1", "waits"]
    assert "after job job-1" in text
    assert "Hold" not in text, "it is not queued so far"


WITHOUT_COORDINATOR = ("settings", "compact", "requests", "audit", "rights")
"""Pages that read the store only, unless a form is sent."""


def test_without_its_coordinator_each_page_says_so(tmp_path: Path) -> None:
    with serving() as served:
        with served.client() as client:
            create_table(client, tmp_path)
        served.coordinator.up = False
        with signed_in(served) as browser:
            for address, _ in PAGES:
                answer = browser.get(address)
                needs_none = any(word in address for word in WITHOUT_COORDINATOR)
                assert answer.status_code in (200, 503), address
                said = "the coordinator does not answer" in answer.text
                assert said or needs_none, address


def csrf_of(page: httpx.Response) -> str:
    match = re.search(r'name="csrf" value="([^"]+)"', page.text)
    assert match is not None
    return match[1]


def test_a_dry_run_of_settings_shows_the_change_and_stores_nothing(browser: httpx.Client) -> None:
    address = "/console/tables/events/settings"
    csrf = csrf_of(browser.get(address))
    fields = {"csrf": csrf, "set.max_files": "5", "set.ratio": "3.0"}
    text = text_of(browser.post(address, data=fields))

    assert "What would change" in text
    assert "max_files = 5" in text
    assert "ratio = 3.0" not in text
    assert "set for the table" not in text_of(browser.get(address))
    refused = text_of(browser.post(address, data={"csrf": csrf, "set.max_files": "1"}))
    assert "max_files is 1, expected at least 2" in refused


def test_edited_settings_are_stored_by_the_form_of_the_dry_run(browser: httpx.Client) -> None:
    address = "/console/tables/events/settings"
    fields = {"csrf": csrf_of(browser.get(address)), "set.selector": "", "set.file_limit": "99"}
    page = browser.post(address, data=fields)
    form = re.search(r'<form class="action" (.+?)</form>', page.text, re.DOTALL)
    assert form is not None
    hidden = re.findall(r"""name="([^"]+)" value=(?:"([^"]*)"|'([^']*)')""", form[1])
    sent = {name: unescape(double or single) for name, double, single in hidden}
    answer = browser.post("/console/call", data=sent)

    assert (answer.status_code, answer.headers["location"]) == (303, address)
    text = text_of(browser.get(address))
    assert "The settings of events are stored." in text
    assert "set for the table" in text


def test_a_request_is_tried_and_then_submitted(gateway: Gateway, browser: httpx.Client) -> None:
    address = "/console/tables/events/compact"
    fields = {"csrf": csrf_of(browser.get(address)), "start": "1", "end": "5"}
    text = text_of(browser.post(address, data=fields))
    assert "What the request would take" in text
    assert "Submit" in text

    body = {"route": "POST /v1/tables/{table}/compactions", "path.table": "events"}
    sent = {"csrf": fields["csrf"], **body, "json.start": '"1"', "json.end": '"5"'}
    assert browser.post("/console/call", data=sent).status_code == 303
    listed = text_of(browser.get("/console/requests?table=events"))
    assert "[1] to [5]" in listed
    with gateway.client() as client:
        (request,) = client.requests("events")
    shown = text_of(browser.get(f"/console/tables/events/requests/{request.id}"))
    assert "active" in shown
    assert "Cancel request" in shown
    assert request.id in text_of(browser.get(f"/console/search?q={request.id[:8]}"))


def test_text_of_users_is_text(
    gateway: Gateway, browser: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def explain(table: str, tablet: str) -> api.Explanation:
        return api.Explanation(tablet=tablet, table=table, sentences=(EVIL,), left={EVIL: EVIL})

    monkeypatch.setattr(gateway.coordinator, "explain", explain)
    pages = [
        browser.get("/console/tables/events/tablets/last"),
        browser.get("/console/search", params={"q": EVIL}),
        browser.get("/console/queues", params={"q": EVIL}),
        browser.get("/console/history", params={"q": EVIL, "end": EVIL}),
    ]

    assert [page.status_code for page in pages] == [200] * 4
    assert not [page.url for page in pages if "<script>alert" in page.text]
    assert "&lt;script&gt;" in pages[0].text


def test_a_tablet_that_does_not_exist_is_an_error_in_words(browser: httpx.Client) -> None:
    answer = browser.get("/console/tables/events/tablets/zz")
    assert answer.status_code == 404
    assert "has no tablet 'zz'" in unescape(answer.text)
