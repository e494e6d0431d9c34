"""A table compacts by itself in its window only; users may ask at any time."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.support.ledger import LedgerTable, keyed_rows
from tests.support.shell import Shell
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]

ALWAYS = "0 * * * * for 1h"


def waits_for_window(service: Service, name: str) -> str:
    """Return the sentence of `explain` about a closed window, or an empty text."""
    explained = service.client.explain(name)
    sentences = [text for explanation in explained for text in explanation.sentences]
    return next((text for text in sentences if "wait for the window" in text), "")


def see_closed(service: Service, neve: Shell, name: str, window: str, opens: str) -> None:
    """Each view of the table names the window and its next opening; no job is queued."""
    client = service.client
    sentence = service.wait("a closed window", lambda: waits_for_window(service, name))
    assert sentence.startswith(f"system jobs wait for the window of table {name} ({window})")
    assert sentence.endswith(opens)
    operations = client.maintenance(name).operations
    (row,) = [operation for operation in operations if operation.kind == "merging"]
    assert (row.state, row.why) == ("waiting", sentence)
    assert client.plan(name).waits == (sentence,)
    assert opens in " ".join(neve.run("plan", name).stdout.split())
    assert opens in " ".join(neve.run("explain", name).stdout.split())
    assert f"table {name}: closed, opens at" in " ".join(neve.run("status").stdout.split())
    assert [job for job in client.queue() if job.table == name] == []


def test_a_table_waits_for_its_window_and_a_request_does_not(service: Service) -> None:
    client = service.client
    address = {"NEVE_URL": service.stack.gateway_url, "NEVE_TOKEN": service.stack.token}
    neve = Shell(service.folder / "home", **address)
    hour = (datetime.now(tz=UTC).hour + 12) % 24
    window = f"0 {hour} * * * for 1h in UTC"
    settings = {"windows": window}
    table = LedgerTable(client, service.folder, keyed=True, stem="windows", settings=settings)
    for version in range(4):
        table.append(keyed_rows(range(200), version))
    see_closed(service, neve, table.name, window, f"{hour:02}:00 (UTC)")
    assert table.commits() == []

    client.compact(table.name).wait()
    assert [len(inputs) for inputs in table.commits()] == [4]

    for version in range(4, 8):
        table.append(keyed_rows(range(200), version))
    service.wait("a closed window", lambda: waits_for_window(service, table.name))
    assert len(table.commits()) == 1
    neve.run("table", "set", table.name, f"windows={ALWAYS}", "window_input_bytes=1GB")
    service.wait("compaction", lambda: len(table.commits()) > 1, table=table)
    (line,) = [line for line in neve.json("status")["windows"] if line["name"] == table.name]
    assert (line["is_open"], line["windows"]) == (True, ALWAYS)
    assert line["used_bytes"] > 0
    service.wait_until_at_rest(table)
    table.check_rows()
    client.drop(table.name, delete_files=True)
