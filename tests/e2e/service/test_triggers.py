"""Tables that are compacted when a trigger asks: an operator, then an interval."""

from __future__ import annotations

import pytest

from neve.client.errors import RefusedError
from tests.support.ledger import LedgerTable, keyed_rows
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]


def test_a_table_is_compacted_when_a_trigger_asks(service: Service) -> None:
    client = service.client
    table = LedgerTable(
        client, service.folder, keyed=True, stem="asked", settings={"triggers": "admin"}
    )
    for version in range(4):
        table.append(keyed_rows(range(200), version))

    def all_left() -> bool:
        left = client.explain(table.name)[0].left
        return len(left) == 4 and set(left.values()) == {"waits for a trigger of its table (admin)"}

    service.wait("plan without candidates", all_left)
    assert not client.plan(table.name).jobs
    asked = client.trigger(table.name)
    (answer,) = asked.tablets
    assert (asked.table, answer.verdict, answer.jobs, answer.files) == (
        *(table.name, "accepted"), *(1, 4),
    )  # fmt: skip
    service.wait("compaction", table.commits, table=table)
    service.wait_until_at_rest(table)
    assert [len(inputs) for inputs in table.commits()] == [4]

    table.append(keyed_rows(range(10), 9))
    (answer,) = client.trigger(table.name).tablets
    assert answer.verdict == "refused"
    assert "is in no set of" in answer.reason
    (explained,) = client.explain(table.name)
    assert any(f"its planner refused: {answer.reason}" in each for each in explained.sentences)
    (tally,) = [each for each in client.status().triggers if each.table == table.name]
    assert (tally.trigger, tally.refused, tally.refusal) == ("admin", 1, answer.reason)

    every = {"triggers": "periodic", "trigger_interval": "2s", "trigger_spread": 0}
    client.set(table.name, every)
    with pytest.raises(RefusedError, match="does not have the trigger admin"):
        client.trigger(table.name)
    for version in range(10, 13):
        table.append(keyed_rows(range(10), version))
    service.wait("periodic compaction", lambda: len(table.commits()) > 1, table=table)
    table.check_rows()
    client.drop(table.name, delete_files=True)
