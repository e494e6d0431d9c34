"""A compactor on a second node: its Spark executors stand beside it, and it takes its share."""

from __future__ import annotations

import pytest

from tests.support.ledger import LedgerTable, keyed_rows
from tests.support.second_node import COMPACTOR, second_node
from tests.support.stack import COMPACTORS, SLOW, Service

pytestmark = [pytest.mark.slow]

TABLETS = 6
KEYS = 2_000
"""Of each tablet."""


def test_a_compactor_on_a_second_node_works_with_executors_beside_it(service: Service) -> None:
    client = service.client
    splits = [str(KEYS * number - 1) for number in range(1, TABLETS)]
    with second_node(service) as where:
        assert where.compactor == where.second_node
        assert where.executors == (where.second_node,)
        everybody = {*COMPACTORS, COMPACTOR}
        service.wait(
            "three compactors",
            lambda: {each.compactor for each in client.compactors()} == everybody,
        )
        nodes = {each.compactor: each.node for each in client.compactors()}
        assert nodes[COMPACTOR] == where.second_node
        assert {nodes[name] for name in COMPACTORS}.isdisjoint({where.second_node})

        table = LedgerTable(
            client, service.folder, keyed=True, splits=splits, paused=True, settings=SLOW
        )
        for number in range(TABLETS):
            keys = range(KEYS * number, KEYS * (number + 1))
            table.add(*(keyed_rows(keys, version) for version in range(4)))
        client.resume(table.name)
        service.wait_until_at_rest(table)

        table.check_rows()
        assert len(table.commits()) == TABLETS
        assert {each.compactor for each in client.history(table.name)} == everybody
        client.drain(COMPACTOR)
        service.wait("two compactors", service.everybody_beats)
