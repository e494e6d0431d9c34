"""Tables that are compacted when a trigger asks, and what could be done in tablets."""

from __future__ import annotations

import time
from functools import partial

import pytest

from neve.api import MaintenanceOperation, TabletRates
from neve.client.errors import RefusedError
from tests.support.ledger import LedgerTable, keyed_rows
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]

PAUSED = "group default is paused"
REFRESH_S = 3.0
"""A coordinator knows a new table by then."""
COLLECT_S = 0.5
"""`collect_interval_s` of the stack."""


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
    assert "no set of at most" in answer.reason
    (explained,) = client.explain(table.name)
    assert any(
        f"its planner found nothing to do: {answer.reason}" in sentence
        for sentence in explained.sentences
    )
    (tally,) = [trigger for trigger in client.status().triggers if trigger.table == table.name]
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


def rates_of(service: Service, table: LedgerTable) -> TabletRates:
    (rates,) = service.client.maintenance(table.name, "last").rates
    return rates


def operation_of(service: Service, table: LedgerTable, kind: str) -> MaintenanceOperation:
    rows = service.client.maintenance(table.name).operations
    return next(row for row in rows if row.kind == kind)


def see_decisions(service: Service, table: LedgerTable) -> None:
    """Wait until the one scheduler has started each kind of work of the coordinator."""
    client = service.client
    client.replan(table.name)
    wanted = {("analysis", "score"), ("garbage", "wait"), ("manifest", "wait")}

    def started() -> bool:
        decisions = client.maintenance(table.name).decisions
        assert all(decision.why for decision in decisions)
        return wanted <= {(decision.kind, decision.step) for decision in decisions}

    service.wait("decisions of the scheduler", started)
    assert 0 <= (operation_of(service, table, "garbage").due_s or 0) <= COLLECT_S
    assert operation_of(service, table, "manifest").tablet == ""


def append_until_rows_count(service: Service, table: LedgerTable) -> None:
    """Append; what was added before the coordinator knew the table counts with the next add."""
    version, added_s = 4, 0.0

    def rows_count() -> bool:
        nonlocal version, added_s
        if rates_of(service, table).rows_s > 1:
            return True
        if time.monotonic() - added_s > REFRESH_S:
            table.append(keyed_rows(range(300), version))
            version, added_s = version + 1, time.monotonic()
        return False

    service.wait("a rate of written rows", rows_count)


def test_what_could_be_done_is_what_is_done(service: Service) -> None:
    client = service.client
    settings = {"triggers": "admin", "maintenance_priority": 2, "workload_points": 10}
    table = LedgerTable(client, service.folder, keyed=True, stem="listed", settings=settings)
    for version in range(4):
        table.append(keyed_rows(range(300), version))
    assert [client.scan(table.name).num_rows for _ in range(3)] == [300] * 3
    client.report_reads(table.name, {"last": 3000})

    row = partial(operation_of, service, table)
    service.wait("a rate of scans", lambda: rates_of(service, table).scans_s > 0.5)
    append_until_rows_count(service, table)
    files = len(client.files(table.name))
    assert "waits for a trigger" in row("merging").why
    assert row("flush").why == "no rows are buffered"
    client.pause_group("default")
    try:
        client.trigger(table.name)
        listed = row("merging")
        queued = [each for each in client.queue() if each.table == table.name]
    finally:
        client.resume_group("default")
    assert (listed.state, listed.why, listed.files) == ("waiting", PAUSED, files)
    assert listed.adjusted > listed.score > 0 < listed.cost_bytes * (listed.memory_bytes or 0)
    assert [each.priority for each in queued] == [listed.priority]
    assert (listed.priority or 0) > 2 * files, "more than the files of tablet and job"
    service.wait("compaction", table.commits, table=table)
    service.wait_until_at_rest(table)
    assert (row("garbage").files, row("merging").state) == (files, "idle")
    see_decisions(service, table)
    table.check_rows()
    client.drop(table.name, delete_files=True)
