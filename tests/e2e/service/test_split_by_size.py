"""A table whose settings say how large tablets may be: it splits, and merges, by itself."""

from __future__ import annotations

import random

import pytest

from neve.api import Operation
from tests.support.ledger import LedgerTable, keyed_rows
from tests.support.shell import Shell
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]

KEYS = range(4000)
ROWS_PER_APPEND = 600
SPLIT_BYTES = 128 * 1024
APPENDS_MAX = 20


def grown(service: Service, table: LedgerTable, dice: random.Random) -> int:
    """Append rows all over the keys until a tablet is too large; return how many came."""
    for version in range(1, APPENDS_MAX):
        table.append(keyed_rows(sorted(dice.sample(KEYS, ROWS_PER_APPEND)), version))
        (tablet,) = service.client.tablets(table.name)
        if tablet.size_bytes > SPLIT_BYTES:
            return version
    raise AssertionError(f"{APPENDS_MAX} appends are no {SPLIT_BYTES} bytes: {tablet}")


def under_way(service: Service, table: LedgerTable) -> Operation:
    """Return the split that the service has begun; its job is held up."""
    found = service.wait("a split", lambda: service.client.operations(table.name), table=table)
    return found[0]


def test_a_table_splits_as_it_grows_and_merges_when_it_may(service: Service) -> None:
    client = service.client
    settings = {"ratio": 50, "split_bytes": SPLIT_BYTES, "merge_bytes": SPLIT_BYTES // 4}
    table = LedgerTable(client, service.folder, keyed=True, settings=settings)
    # The split cannot end while no task works, so that it can be looked at.
    with service.halted(*service.tasks()):
        dice = random.Random(1)
        version = grown(service, table, dice)
        split = under_way(service, table)
        assert (split.kind, split.step, split.at is not None) == ("split", "cut", True)
        assert "more than split_bytes 128.0 KiB" in split.reason
        service.wait(
            "a word on the split",
            lambda: any(
                "a split at" in sentence and "more than split_bytes" in sentence
                for tablet in client.explain(table.name)
                for sentence in tablet.sentences
            ),
            table=table,
        )
        shell = Shell(
            service.folder, NEVE_URL=service.stack.gateway_url, NEVE_TOKEN=service.stack.token
        )
        (told,) = shell.json("table", "operations", table.name)
        assert (told["id"], told["kind"], told["at"]) == (split.id, "split", split.at)
        table.append(keyed_rows(sorted(dice.sample(KEYS, ROWS_PER_APPEND)), version + 1))
        table.check_rows()

    service.wait("end of the split", lambda: len(client.tablets(table.name)) > 1, table=table)
    service.wait("no operation", lambda: not client.operations(table.name), table=table)
    service.wait_until_at_rest(table)
    tablets = client.tablets(table.name)
    assert split.at in {tablet.end for tablet in tablets}
    assert all(tablet.size_bytes <= SPLIT_BYTES for tablet in tablets), tablets
    table.check_rows()

    client.set(table.name, {"split_bytes": "64MB", "merge_bytes": "32MB"})
    service.wait("one tablet", lambda: len(client.tablets(table.name)) == 1, table=table)
    service.wait_until_at_rest(table)
    table.check_rows()
    table.commits()
    begun = [event["cause"] for event in service.events("merge begins")]
    assert any("less than merge_bytes 32.0 MiB" in str(cause) for cause in begun), begun
