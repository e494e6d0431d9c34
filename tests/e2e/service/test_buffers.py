"""Buffered rows as an operator of a running service sees them: status, explain, ops, flushes."""

from __future__ import annotations

import pytest

from tests.support.ledger import LedgerTable, keyed_rows
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]


def test_an_operator_sees_buffers_and_flushes_those_of_a_tablet(service: Service) -> None:
    client = service.client
    # It may drop rows: none are buffered before the coordinator has scanned it.
    table = LedgerTable(client, service.folder, keyed=True, stem="buffered", splits=["500"])
    first, last = [tablet.tablet for tablet in client.tablets(table.name)]
    rows = keyed_rows(range(100), 1)

    answer = service.wait("acknowledgement", lambda: client.buffer_rows(table.name, rows))
    table.note(rows)
    assert answer.durability == client.status().durability
    assert "appendfsync" in answer.durability
    table.check_rows()

    def shown() -> list[str]:
        entries = client.status().buffered
        return [entry.why for entry in entries if entry.table == table.name]

    (why,) = service.wait("row of the status", shown)
    assert "100 rows in " in why
    (operation,) = [row for row in client.maintenance(table.name).operations if row.kind == "flush"]
    assert (operation.state, operation.gain, operation.freed_bytes > 0) == ("runnable", 100, True)
    assert operation.age_s is not None
    (explained,) = client.explain(table.name, last)
    assert any("rows of this tablet among them: 0" in text for text in explained.sentences)

    assert client.flush(table.name, last).rows == 0
    flushed = client.flush(table.name, first)
    assert (flushed.rows, flushed.files, flushed.tablet_rows) == (100, 1, 100)
    service.wait("end of the row", lambda: not shown())
    table.check_rows()
    service.wait_until_at_rest(table)
