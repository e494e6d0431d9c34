"""Who may do what on a running service, and what it keeps of those who tried."""

from __future__ import annotations

import json

import pytest

from neve.client import Client
from neve.client.errors import ForbiddenError, UnauthorizedError
from tests.support.command_line import invoke
from tests.support.ledger import LedgerTable, keyed_rows
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]


def test_a_token_that_may_read_cannot_compact_and_the_audit_shows_it(service: Service) -> None:
    table = LedgerTable(service.client, service.folder, keyed=True, stem="rights")
    table.append(keyed_rows(range(10), 1))
    environ = {"NEVE_HOME": str(service.folder), "NEVE_STACK": "e2e"}
    made = invoke(["token", "create", "reader", "--grant", f"read:{table.name}"], environ)
    token = made.stdout.strip()
    assert made.exit_code == 0, made.stderr

    with Client(service.stack.gateway_url, token=token) as reader:
        # The gateway, which runs all the time, looks for new tokens once a second.
        service.wait("the token", lambda: _is_known(reader.tables))
        assert [each.name for each in reader.tables()] == [table.name]
        assert reader.count(table.name) == 10
        with pytest.raises(ForbiddenError, match="no right to compact"):
            reader.compact(table.name)
        with pytest.raises(ForbiddenError, match="no right to write"):
            reader.append(table.name, keyed_rows(range(10), 2))
        with pytest.raises(ForbiddenError):
            reader.status()
    assert service.client.requests(table.name) == []

    def refused() -> bool:
        return len(service.client.audit(caller="reader")) == 2

    service.wait("the audit", refused)
    shown = invoke(["audit", "--table", table.name, "--json"], environ)
    told = [
        (load["caller"], load["action"].rpartition("/")[2], load["outcome"])
        for load in json.loads(shown.stdout)["entries"]
    ]
    assert told == [
        ("reader", "append", "refused"),
        ("reader", "compactions", "refused"),
        ("gateway.token", "append", "done"),
        ("gateway.token", "tables", "done"),
    ]
    changes = service.stack.folder.audit_file
    refusals = changes.with_name("audit-refused.jsonl").read_text()
    assert '"caller":"reader"' in refusals
    assert token not in changes.read_text() + refusals

    assert invoke(["token", "revoke", "reader"], environ).exit_code == 0
    with Client(service.stack.gateway_url, token=token) as late:
        service.wait("the end of the token", lambda: not _is_known(late.tables))


def _is_known(ask: object) -> bool:
    assert callable(ask)
    try:
        ask()
    except UnauthorizedError:
        return False
    return True
