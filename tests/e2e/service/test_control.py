"""What presses on a whole service, told by `neve control`: files that overlap, and garbage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.ledger import LedgerTable, keyed_rows
from tests.support.shell import Shell
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]

FILES, ROWS = 14, 2_000


@pytest.fixture(autouse=True)
def handing_out_afterwards(service: Service) -> Iterator[None]:
    yield
    service.client.resume_group("default")


def test_overlapping_files_and_garbage_are_told_until_they_are_merged(service: Service) -> None:
    """More files of one key range than any other test leaves waiting; every other row is gone."""
    client = service.client
    address = {"NEVE_URL": service.stack.gateway_url, "NEVE_TOKEN": service.stack.token}
    neve = Shell(service.folder / "home", **address)
    before = neve.json("control")
    table = LedgerTable(client, service.folder, keyed=True, paused=True)
    table.add(*(keyed_rows(range(ROWS), number, gone=bool(number % 2)) for number in range(FILES)))
    client.pause_group("default")  # The job must not end before somebody has looked.
    client.resume(table.name)

    def pressed() -> dict[str, Any]:
        found: dict[str, Any] = neve.json("control")
        return found if found["deepest_files"] >= FILES else {}

    found = service.wait("deep tablet", pressed, table=table)
    assert found["deepest_files"] == FILES
    assert found["garbage_fraction"] > before["garbage_fraction"]
    shown = " ".join(neve.run("control").stdout.split())
    assert f"overlap {FILES} files in the deepest tablet" in shown
    client.resume_group("default")
    service.wait_until_at_rest(table)
    service.wait("rest", lambda: neve.json("control")["deepest_files"] == 0)
    table.check_rows()
