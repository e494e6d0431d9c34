"""Tablets split and merged on real parts, while rows keep arriving: each row once."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.support.ledger import LedgerTable, keyed_rows
from tests.support.patience import SERVICE_S
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]

APPEND_EVERY_S = 0.1


def while_appending(table: LedgerTable, work: Callable[[], None]) -> int:
    """Do something while another thread appends rows all over the keys; return how often."""
    over, appended = threading.Event(), [0]

    def append() -> None:
        while not over.wait(APPEND_EVERY_S):
            appended[0] += 1
            table.append(keyed_rows(range(0, 400, 7), 100 + appended[0]))

    writer = threading.Thread(target=append)
    writer.start()
    try:
        while not appended[0]:
            over.wait(APPEND_EVERY_S)
        work()
    finally:
        over.set()
        writer.join()
    return appended[0]


def test_a_tablet_is_split_and_merged_back_while_rows_arrive(service: Service) -> None:
    client = service.client
    table = LedgerTable(client, service.folder, keyed=True, settings={"ratio": 50})
    for version in range(1, 4):
        table.add(keyed_rows(range(0, 400, version), version))

    def split() -> None:
        client.split(table.name, at="199", wait=True, timeout_s=SERVICE_S)

    assert while_appending(table, split), "nothing was appended meanwhile"
    assert [tablet.end for tablet in client.tablets(table.name)] == ["[199]", "+inf"]
    cut = [each for each in client.history(table.name) if "cut at the split key" in each.reason]
    assert any(len(each.outputs) == 2 for each in cut), cut
    table.check_rows()

    def merge() -> None:
        client.merge(table.name, start="0", end="399", wait=True, timeout_s=SERVICE_S)

    assert while_appending(table, merge), "nothing was appended meanwhile"
    assert [tablet.end for tablet in client.tablets(table.name)] == ["+inf"]
    service.wait_until_at_rest(table)
    table.check_rows()
