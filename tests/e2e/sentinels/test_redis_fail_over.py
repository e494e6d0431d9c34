"""A service whose Redis fails over by Sentinels: appends and compactions go on by themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pyarrow as pa
import pytest

from common.runtime import call_id
from neve.client.errors import UnavailableError
from tests.support.ledger import LedgerTable, bag_rows
from tests.support.patience import SERVICE_S
from tests.support.redis_sentinels import RedisGroup, until
from tests.support.redis_server import RedisServer
from tests.support.stack import Service

pytestmark = [pytest.mark.slow, pytest.mark.last]

Loss = Callable[[RedisServer], AbstractContextManager[None]]
BEFORE, AFTER = 8, 16
"""Appends that are acknowledged before the primary dies, and afterwards."""
ROWS = 500


def append(table: LedgerTable, rows: pa.Table) -> None:
    """Append rows as an application does: the same call again until it is acknowledged."""
    call, until_s = call_id(), time.monotonic() + SERVICE_S
    while not acknowledged(table, rows, call):
        assert time.monotonic() < until_s, "no append is acknowledged"
        time.sleep(0.1)
    table.note(rows)


def acknowledged(table: LedgerTable, rows: pa.Table, call: str) -> bool:
    try:
        table.client.append(table.name, rows, call=call)
    except UnavailableError:
        return False
    return True


@contextmanager
def killed(server: RedisServer) -> Iterator[None]:
    """Kill it; it comes back after the block."""
    server.kill()
    yield
    server.start()


@pytest.mark.parametrize(
    "lose",
    [killed, pytest.param(RedisServer.frozen, marks=pytest.mark.long)],
    ids=["killed", "frozen"],
)
def test_appends_and_compactions_go_on_without_their_primary(
    group: RedisGroup, service: Service, lose: Loss
) -> None:
    table = LedgerTable(service.client, service.folder, keyed=False, stem="over")
    actors = {kind: service.actor(kind) for kind in ("CoordinatorActor", "GatewayActor")}
    for seed in range(BEFORE):
        append(table, bag_rows(ROWS, seed))
    service.wait("a commit before", table.commits, table=table)
    lost = group.primary()

    with lose(lost):
        lost_s = time.monotonic()
        append(table, bag_rows(ROWS, BEFORE))
        print(f"an append is acknowledged {time.monotonic() - lost_s:.1f} s after the loss")
        before = len(table.commits())
        for seed in range(BEFORE + 1, BEFORE + AFTER):
            append(table, bag_rows(ROWS, seed))
        service.wait("a commit after", lambda: len(table.commits()) > before, table=table)
        print(f"a commit is there {time.monotonic() - lost_s:.1f} s after the loss")

    # A frozen one wakes up, takes itself for the primary, and is demoted.
    service.wait_until_at_rest(table)
    service.wait_until_clean(table, sweep=True)
    table.check_rows()
    assert group.primary() is not lost
    # Whoever was lost is a replica of the new primary, which the next loss leaves all servers.
    group.until_demoted(lost)
    replicas = len(group.servers) - 1
    until("all follow", lambda: group.following(group.primary()) == replicas)
    # Nobody had to be started anew.
    assert {kind: service.actor(kind).pid for kind in actors} == {
        kind: process.pid for kind, process in actors.items()
    }
