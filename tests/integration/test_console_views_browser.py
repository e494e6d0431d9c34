"""The views of tables, tablets, jobs and requests in a real Chromium, over a real Redis."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, StorageState, expect

from common.metadata.redis import connect
from common.settings import StoreSettings
from neve.gateway.access.tokens import TokenFile
from tests.support.chromium import (
    WAIT_MS,
    Visit,
    chromium,
    is_live,
    session_of,
    sign_in,
    simulate,
    visit,
)
from tests.support.gateway import TOKEN, Gateway, serving
from tests.support.redis_server import executable, running

pytestmark = pytest.mark.skipif(executable() is None, reason="no redis-server on this machine")

KEYED = pa.schema([("x", pa.int64()), ("v", pa.int64())])
LONG = "a-table-with-a-name-that-is-as-long-as-a-name-of-a-table-can-be"
WIDTHS = (390, 1280)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running_browser:
        yield running_browser


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> TokenFile:
    return TokenFile(tmp_path_factory.mktemp("tokens") / "tokens.json")


@pytest.fixture(scope="module")
def reader(tokens: TokenFile) -> str:
    """A token that may read everything, and change nothing."""
    return tokens.create("reader", ["read"], now_s=0.0, life_s=None)[1]


@pytest.fixture(scope="module")
def gateway(
    tmp_path_factory: pytest.TempPathFactory, tokens: TokenFile, reader: str
) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("tables")
    access = {"tokens_file": str(tokens.path)}
    with (
        running() as redis,
        serving(connect(StoreSettings(url=redis.url, timeout_s=5.0)), access=access) as gateway,
    ):
        with gateway.client() as client:
            for name, splits in (("events", [str(key) for key in range(10, 200, 10)]), (LONG, [])):
                (folder / name).mkdir()
                client.create_table(
                    name,
                    str(folder / name),
                    schema=KEYED,
                    key=["x"],
                    version_column="v",
                    splits=splits,
                )
            for version in range(3):
                keys = list(range(0, 200, 5 + version))
                client.append("events", pa.table({"x": keys, "v": [version] * len(keys)}))
        yield gateway


@pytest.fixture(scope="module")
def session(browser: Browser, gateway: Gateway) -> StorageState:
    """A session of the operator."""
    return session_of(browser, gateway.url, TOKEN)


@pytest.fixture(scope="module")
def light(browser: Browser, gateway: Gateway, session: StorageState) -> Iterator[Visit]:
    """A tab of the operator that goes from view to view: a new one costs a process."""
    with visit(browser, gateway.url, scheme="light", session=session) as tab:
        yield tab


@pytest.fixture
def tab(browser: Browser, gateway: Gateway, session: StorageState) -> Iterator[Visit]:
    """A tab of the operator; it must not log an error or load anything from elsewhere."""
    with visit(browser, gateway.url, session=session) as tab:
        yield tab
        assert tab.problems == []
        assert tab.foreign == []


ADDRESSES = (
    "/console/tables/events",
    f"/console/tables/{LONG}",
    "/console/tables/events/settings",
    "/console/tables/events/tablets/last",
    "/console/tables/events/compact",
    "/console/queues",
    "/console/running",
    "/console/requests",
    "/console/compactors",
    "/console/control",
    "/console/what-if",
    "/console/history?table=events&end=failed",
    "/console/audit",
    "/console/rights",
    "/console/search?q=e",
)
ALIKE = (
    "/console/tables/events?colour=overlap",
    f"/console/tables/{LONG}/tablets/last",
)
"""Addresses whose page is one of the above with other figures."""
AS_OTHERS = pytest.mark.long
VIEWS = [
    *((address, "light", () if LONG in address else (1280,)) for address in ADDRESSES),
    ("/console/tables/events", "dark", WIDTHS),
    *(pytest.param(address, "light", WIDTHS, marks=AS_OTHERS) for address in ADDRESSES + ALIKE),
    *(pytest.param(address, "dark", WIDTHS, marks=AS_OTHERS) for address in ADDRESSES + ALIKE),
]
"""Address, colour scheme, and the widths at which axe looks: axe takes seconds.

A long name changes what fits, not what axe finds: `make long` looks for both.
"""


@pytest.mark.parametrize(("address", "scheme", "looked_at"), VIEWS)
def test_a_view_is_accessible_and_fits(
    address: str,
    scheme: str,
    looked_at: tuple[int, ...],
    browser: Browser,
    gateway: Gateway,
    session: StorageState,
    light: Visit,
) -> None:
    light.problems.clear()
    dark = visit(browser, gateway.url, scheme=scheme, session=session)
    with nullcontext(light) if scheme == "light" else dark as tab:
        tab.open(address)
        for width in WIDTHS:
            tab.page.set_viewport_size({"width": width, "height": 900})
            assert tab.overflow_px() == 0, width
            if width in looked_at:
                assert tab.violations() == [], width
        assert tab.problems == []
        assert tab.foreign == []


def test_a_cell_of_the_heat_map_leads_to_its_tablet(tab: Visit) -> None:
    tab.open("/console/tables/events")
    tab.page.get_by_role("link", name="backlog", exact=True).click()
    expect(tab.page).to_have_url(re.compile("colour=backlog"))
    expect(tab.page.get_by_text("tablets by backlog").first).to_be_visible()
    tab.page.locator(".heat a").last.click()
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("Tablet last")
    is_live(tab)
    expect(tab.page.get_by_text("nothing to do: 2 files")).to_be_visible()
    tab.page.get_by_role("button", name="Plan now").click()
    expect(tab.page.get_by_text("The planner was asked about tablet last.")).to_be_visible()


def test_settings_are_tried_before_they_are_stored(tab: Visit) -> None:
    tab.open("/console/tables/events/settings")
    tab.page.get_by_label("max_files").fill("5")
    tab.page.get_by_role("button", name="Dry run").click()
    expect(tab.page.get_by_role("heading", name="What would change")).to_be_visible()
    expect(tab.page.get_by_text("max_files = 5")).to_be_visible()
    tab.page.get_by_role("button", name="Store").click()
    expect(tab.page.get_by_text("The settings of events are stored.")).to_be_visible()
    expect(tab.page.get_by_label("max_files")).to_have_value("5")

    tab.page.get_by_label("max_files").fill("1")
    tab.page.get_by_role("button", name="Dry run").click()
    expect(tab.page.get_by_role("alert")).to_contain_text("max_files is 1, expected at least 2")


def test_variants_of_a_table_are_simulated_and_drawn(tab: Visit) -> None:
    tab.open("/console/tables/events")
    tab.page.get_by_role("link", name="What if…").click()
    expect(tab.page.locator("input[name=table]")).to_have_value("events")
    simulate(tab, "events", "size-tiered", "0.1")
    expect(tab.page.get_by_role("heading", level=2).first).to_contain_text("2 variants, 0.1 days")
    results = tab.page.get_by_role("region", name="Results, scrollable")
    expect(results.get_by_role("rowheader", name="size-tiered")).to_be_visible()
    assert tab.overflow_px() == 0
    assert tab.violations() == []


def test_a_specification_that_is_wrong_stays_in_its_form(tab: Visit) -> None:
    tab.open("/console/what-if")
    area = tab.page.get_by_label("Specification, TOML")
    expect(area).to_have_value(re.compile(r"\[\[variant\]\]"))
    area.fill("[[table]]\nname = 7")
    button = tab.page.get_by_role("region", name="A specification").get_by_role("button")
    button.click(no_wait_after=True)
    alert = tab.page.get_by_role("alert")
    expect(alert).to_contain_text("table[0].name is 7", timeout=3 * WAIT_MS)
    expect(area).to_have_value("[[table]]\nname = 7")


def test_a_request_is_tried_submitted_and_cancelled_after_a_question(tab: Visit) -> None:
    tab.open("/console/requests?table=events")
    tab.page.get_by_role("link", name="New request").click()
    tab.page.get_by_label("First key").fill("20")
    tab.page.get_by_label("Last key").fill("60")
    tab.page.get_by_role("button", name="Dry run").click()
    expect(tab.page.get_by_role("heading", name="What the request would take")).to_be_visible()
    tab.page.get_by_role("button", name="Submit").click()
    expect(tab.page.get_by_text("The request is submitted.")).to_be_visible()
    tab.page.get_by_role("main").locator("tbody a").first.click()
    expect(tab.page.get_by_role("heading", name="Progress")).to_be_visible()

    tab.page.get_by_role("button", name="Cancel request").click()
    expect(tab.page.get_by_role("heading", level=1)).to_have_text("Are you sure?")
    expect(
        tab.page.get_by_text(re.compile("Cancel request req-.* of table events"))
    ).to_be_visible()
    tab.page.get_by_role("button", name="Cancel request").click()
    expect(tab.page.get_by_text(re.compile("cancelled|cancelling")).first).to_be_visible()


def test_a_queued_job_is_held_and_a_running_one_cancelled(gateway: Gateway, tab: Visit) -> None:
    gateway.coordinator.told.clear()
    tab.open("/console/queues")
    expect(tab.page.get_by_text("maintenance, 12 points in its class")).to_be_visible()
    tab.page.get_by_role("button", name="Hold").click()
    expect(tab.page.get_by_role("status").filter(has_text="Hold: done.")).to_be_visible()
    tab.open("/console/running")
    tab.page.get_by_role("button", name="Cancel").click()
    expect(tab.page.get_by_text("Cancel the job on 3 files of table events?")).to_be_visible()
    assert gateway.coordinator.told == [("pause_job", "job-1")], "only asked so far"
    tab.page.get_by_role("button", name="Cancel").click()
    expect(tab.page.get_by_role("status").filter(has_text="Cancel: done.")).to_be_visible()
    assert gateway.coordinator.told == [("pause_job", "job-1"), ("cancel", "att-1")]


def test_the_filter_of_a_view_stands_in_its_address(tab: Visit) -> None:
    tab.open("/console/queues")
    tab.page.get_by_label("Table, tablet or job").fill("no-such-table")
    tab.page.get_by_role("button", name="Filter").click()
    expect(tab.page).to_have_url(re.compile("q=no-such-table"))
    expect(tab.page.get_by_text("No job of this group matches.")).to_be_visible()
    tab.page.reload()
    expect(tab.page.get_by_label("Table, tablet or job")).to_have_value("no-such-table")


def test_one_search_finds_tables_and_jobs(tab: Visit) -> None:
    tab.open("/console")
    search = tab.page.get_by_label("Search tables, tablets, jobs and requests")
    search.fill("att-1")
    search.press("Enter")
    expect(tab.page.get_by_text("running job")).to_be_visible()
    search.fill(LONG[:20])
    search.press("Enter")
    tab.page.get_by_role("main").get_by_role("link", name=LONG).click()
    expect(tab.page.get_by_role("heading", level=1)).to_have_text(LONG)


FORBIDDEN = {
    "/console/tables/events": ("Plan now", "Pause", "Drop", "Lift quarantines"),
    "/console/tables/events/settings": ("Dry run",),
    "/console/tables/events/tablets/last": ("Plan now", "Lift quarantine"),
    "/console/tables/events/compact": ("Dry run",),
    "/console/queues": ("Hold", "Cancel"),
    "/console/running": ("Cancel",),
    "/console/compactors": ("Drain", "Stop", "Set", "Pause group"),
}
"""Address → buttons that need more than the right to read."""


def test_a_reader_sees_no_button_that_it_may_not_press(
    browser: Browser, gateway: Gateway, tab: Visit, reader: str
) -> None:
    with visit(browser, gateway.url) as other:
        sign_in(other, reader)
        for address, names in FORBIDDEN.items():
            tab.open(address)
            other.open(address)
            for name in names:
                assert other.page.get_by_role("button", name=name, exact=True).count() == 0, name
            shown = [tab.page.get_by_role("button", name=name, exact=True) for name in names]
            assert any(button.count() for button in shown), (
                f"{address}: an operator sees none of these buttons"
            )
        assert other.problems == []
