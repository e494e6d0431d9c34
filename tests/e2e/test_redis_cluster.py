"""A service on a Redis Cluster: three tables on three nodes, one of which dies."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.e2e.sentinels.test_redis_fail_over import append
from tests.support.ledger import LedgerTable, bag_rows
from tests.support.redis_cluster import PRIMARIES, RedisCluster, cluster_running
from tests.support.stack import Service, service_on

# The store alone, on such a cluster, is in tests/integration/test_redis_cluster.py; a service whose
# store moves to another server is in tests/e2e/sentinels.
pytestmark = [pytest.mark.slow, pytest.mark.long]

BEFORE, AFTER = 8, 16
"""Appends to each table that are acknowledged before a node dies, and afterwards."""
ROWS = 500


@pytest.fixture
def cluster() -> Iterator[RedisCluster]:
    with cluster_running() as servers:
        yield servers


@pytest.fixture
def service(cluster: RedisCluster, tmp_path: Path) -> Iterator[Service]:
    """A service of one compactor on the cluster."""
    with service_on(cluster.url, tmp_path) as running:
        yield running


def one_on_each(cluster: RedisCluster, service: Service) -> Sequence[LedgerTable]:
    """Return three tables on three nodes; ids are random, so others are made and dropped."""
    found: dict[int, LedgerTable] = {}
    while len(found) < PRIMARIES:
        table = LedgerTable(service.client, service.folder, keyed=False, stem="spread")
        if found.setdefault(cluster.place_of(table.id), table) is not table:
            service.client.drop(table.name)
    return [found[place] for place in range(PRIMARIES)]


def more_commits(service: Service, table: LedgerTable, before: int) -> None:
    service.wait("one more commit", lambda: len(table.commits()) > before, table=table)


def fill(tables: Sequence[LedgerTable], seeds: range) -> None:
    for seed in seeds:
        for table in tables:
            append(table, bag_rows(ROWS, seed))


def test_appends_and_compactions_go_on_when_a_node_dies(
    cluster: RedisCluster, service: Service
) -> None:
    tables = one_on_each(cluster, service)
    actors = {kind: service.actor(kind) for kind in ("CoordinatorActor", "GatewayActor")}
    fill(tables, range(BEFORE))
    for table in tables:
        more_commits(service, table, 0)

    # With it go the names, and one of the tables.
    cluster.primaries[cluster.place_of_names].kill()
    lost_s = time.monotonic()
    for place, table in enumerate(tables):
        append(table, bag_rows(ROWS, BEFORE))
        print(f"table {place} takes an append {time.monotonic() - lost_s:.1f} s after the loss")
    before = [len(table.commits()) for table in tables]
    fill(tables, range(BEFORE + 1, BEFORE + AFTER))
    for place, table in enumerate(tables):
        more_commits(service, table, before[place])
        print(f"table {place} has a commit {time.monotonic() - lost_s:.1f} s after the loss")

    for table in tables:
        service.wait_until_at_rest(table)
        service.wait_until_clean(table, sweep=True)
        table.check_rows()
    # Nobody had to be started anew.
    assert {kind: service.actor(kind).pid for kind in actors} == {
        kind: process.pid for kind, process in actors.items()
    }
