"""One compaction of a real service, as a receiver of OpenTelemetry sees it."""

from __future__ import annotations

import pytest

from tests.support.ledger import LedgerTable, keyed_rows
from tests.support.stack import COMPACTORS, Service
from tests.support.trace_receiver import Receiver, Span

pytestmark = [pytest.mark.slow]

OF_COORDINATOR = {"attempt", "plan", "queue", "reserve"}
OF_COMPACTOR = {"prepare", "rewrite", "verify", "commit"}
IN_ORDER = ("plan", "queue", "reserve", "prepare", "rewrite", "verify", "commit")


def trace_of(receiver: Receiver, attempt: str) -> dict[str, Span]:
    """Return the spans of an attempt by name."""
    roots = [
        span
        for span in receiver.spans
        if span.name == "attempt" and span.attributes["neve.attempt"] == attempt
    ]
    return {e.name: e for root in roots for e in receiver.spans if e.trace == root.trace}


def test_the_spans_of_a_compaction_hang_together(service: Service, receiver: Receiver) -> None:
    table = LedgerTable(service.client, service.folder, keyed=True)
    table.add(*(keyed_rows(range(1000), version) for version in range(4)))
    service.wait("commit", table.commits, table=table)
    table.check_rows()
    (ended, *_) = service.client.history(table.name)
    every = OF_COORDINATOR | OF_COMPACTOR
    service.wait("spans", lambda: trace_of(receiver, ended.attempt).keys() == every)

    spans = trace_of(receiver, ended.attempt)
    root = spans["attempt"]
    assert root.parent == b""
    assert {each.parent for name, each in spans.items() if name != "attempt"} == {root.id}
    assert len({span.id for span in spans.values()}) == len(spans)
    assert {name for name, each in spans.items() if each.part == "coordinator"} == OF_COORDINATOR
    assert {name for name, each in spans.items() if each.part == "compactor"} == OF_COMPACTOR
    begins = [spans[name].begin_ns for name in IN_ORDER]
    assert begins == sorted(begins)
    assert root.begin_ns == spans["plan"].begin_ns
    told = root.attributes
    assert (told["neve.table"], told["neve.end"]) == (table.name, "committed")
    assert told["neve.group"] == "default"
    assert told["neve.compactor"] == ended.compactor
    assert ended.compactor in COMPACTORS
    assert spans["commit"].attributes["neve.input_bytes"] == told["neve.input_bytes"] > 0
    assert spans["commit"].attributes["neve.output_bytes"] > 0
