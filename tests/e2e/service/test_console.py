"""The console of a real service in a real Chromium, while a compaction waits, runs and ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.chromium import WAIT_MS, Visit, chromium, is_live, simulate, visit
from tests.support.ledger import LedgerTable, bag_rows
from tests.support.shell import Shell
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]

VOLUME, RATE = "narrow", 64 * 1024
VIEWS = {
    "/console": "Overview",
    "/console/tables": "Tables",
    "/console/tables/{table}": "{table}",
    "/console/tables/{table}/settings": "Settings of {table}",
    "/console/tables/{table}/compact": "Compact {table}",
    "/console/tables/{table}/tablets/last": "Tablet last",
    "/console/queues": "Queues",
    "/console/running": "Running jobs",
    "/console/requests": "Requests",
    "/console/compactors": "Compactors and scaling",
    "/console/control": "Control",
    "/console/what-if?table={table}": "What if",
    "/console/history?table={table}": "History",
    "/console/audit": "Audit",
    "/console/rights": "Your rights",
    "/console/search?q={table}": "Search",
}
"""Address of a view → its heading. Other widths: `tests/integration/test_console_browser.py`."""


def test_people_watch_a_compaction_in_each_view(service: Service, tmp_path: Path) -> None:
    client = service.client
    table = LedgerTable(
        client,
        service.folder,
        keyed=False,
        stem="watched-in-a-console",
        settings={"volume": VOLUME},
    )
    neve = Shell(tmp_path, NEVE_URL=service.stack.gateway_url, NEVE_TOKEN=service.stack.token)
    client.pause_group("default")
    client.limit_volume(VOLUME, RATE)
    try:
        with chromium() as browser, visit(browser, service.stack.gateway_url) as tab:
            tab.page.goto(neve.run("console", "--print").stdout.strip())
            expect(tab.page).to_have_url(f"{tab.url}/console")
            is_live(tab)
            watch(service, table, tab)
            for address, heading in VIEWS.items():
                tab.open(address.format(table=table.name))
                expect(tab.page.get_by_role("heading", level=1)).to_have_text(
                    heading.format(table=table.name)
                )
                assert tab.overflow_px() == 0, address
            simulate(tab, table.name, "size-tiered", "0.1")
            assert tab.problems == []
            assert tab.foreign == []
    finally:
        client.limit_volume(VOLUME, None)
        client.resume_group("default")
    table.check_rows()


def watch(service: Service, table: LedgerTable, tab: Visit) -> None:
    """See a job wait, run and end, each on a page that is not loaded again."""
    page, client, name = tab.page, service.client, table.name
    main = page.get_by_role("main")
    expect(main.get_by_text("no job of the group starts")).to_be_visible(timeout=WAIT_MS)
    table.add(*(bag_rows(20_000, seed=number) for number in range(4)))
    # It appears on the overview by itself.
    expect(main.get_by_role("link", name=name, exact=True).first).to_be_visible(timeout=WAIT_MS)

    tab.open(f"/console/queues?q={name}")
    queued = page.locator("tbody tr").filter(has_text=name)
    expect(queued).to_have_count(1, timeout=WAIT_MS)
    page.evaluate("window.stays = true")
    client.resume_group("default")
    expect(queued).to_have_count(0, timeout=WAIT_MS)
    assert page.evaluate("window.stays")

    tab.open("/console/running")
    jobs = page.get_by_role("region", name="Running jobs")
    running = jobs.locator("tbody tr").filter(has_text=name)
    expect(running).to_have_count(1, timeout=WAIT_MS)
    expect(running).to_contain_text("granted", timeout=WAIT_MS)
    client.limit_volume(VOLUME, 0)
    expect(running).to_have_count(0, timeout=WAIT_MS)
    service.wait_until_at_rest(table)

    tab.open(f"/console/history?table={name}")
    expect(page.locator("tbody tr").filter(has_text="committed")).to_have_count(1)
    tab.open(f"/console/tables?filter={name}")
    is_live(tab)
    expect(page.locator("tbody tr")).to_contain_text("ratio")
