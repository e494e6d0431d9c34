"""A compactor on a second node: its Spark executors stand beside it, and it takes its share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ledger import LedgerTable, keyed_rows
from tests.support.second_node import COMPACTOR, EXECUTORS, second_node
from tests.support.stack import COMPACTORS, SLOW, Service

pytestmark = [pytest.mark.slow]

TABLETS = 6
KEYS = 2_000
"""Of each tablet."""
SPLITS = [str(KEYS * number - 1) for number in range(1, TABLETS)]


def fill(table: LedgerTable) -> None:
    """Give each tablet files for a job."""
    for number in range(TABLETS):
        keys = range(KEYS * number, KEYS * (number + 1))
        table.add(*(keyed_rows(keys, version) for version in range(4)))


@pytest.mark.long
def test_a_compactor_on_a_second_node_works_with_executors_beside_it(service: Service) -> None:
    client = service.client
    with second_node(service) as where:
        assert where.compactor == where.second_node
        assert where.executors == (where.second_node,)
        everybody = {*COMPACTORS, COMPACTOR}
        service.wait(
            "three compactors",
            lambda: {compactor.compactor for compactor in client.compactors()} == everybody,
        )
        nodes = {compactor.compactor: compactor.node for compactor in client.compactors()}
        assert nodes[COMPACTOR] == where.second_node
        assert {nodes[name] for name in COMPACTORS}.isdisjoint({where.second_node})

        table = LedgerTable(
            client, service.folder, keyed=True, splits=SPLITS, paused=True, settings=SLOW
        )
        fill(table)
        client.resume(table.name)
        service.wait_until_at_rest(table)

        table.check_rows()
        assert len(table.commits()) == TABLETS
        assert {each.compactor for each in client.history(table.name)} == everybody
        client.drain(COMPACTOR)
        service.wait("two compactors", service.everybody_beats)


@pytest.mark.long
def test_a_job_spans_nodes_when_executors_have_a_resource_of_their_own(
    service: Service, tmp_path: Path
) -> None:
    client, others = service.client, service.tasks()
    with second_node(service, spread=tmp_path) as where:
        assert where.compactor != where.second_node
        assert where.executors == (where.second_node,) * EXECUTORS
        service.wait(
            "the compactor with executors elsewhere",
            lambda: COMPACTOR in {compactor.compactor for compactor in client.compactors()},
        )
        table = LedgerTable(client, service.folder, keyed=True, splits=SPLITS, settings=SLOW)

        def has_worked() -> bool:
            return COMPACTOR in {each.compactor for each in client.history(table.name)}

        # The other compactors hold one job each meanwhile.
        with service.halted(*others):
            fill(table)
            service.wait("a job across nodes", has_worked, table=table)
        service.wait_until_at_rest(table)

        table.check_rows()
        assert {each.end for each in client.history(table.name)} == {"committed"}
        assert list((tmp_path / "scratch" / COMPACTOR).iterdir()) == []
        client.drain(COMPACTOR)
        service.wait("two compactors", service.everybody_beats)
