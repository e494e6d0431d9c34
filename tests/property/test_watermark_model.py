"""May one row of a broken clock close a tablet? A small model over the real rules, exhausted.

One tablet; a writer whose versions are the time, a row of a far version that is a tombstone,
the coordinator's marks and compactions that drop what they may. Any amount of time passes in
between, but the writer writes at least once per retention, unless versions are points in
time. Bad is a state in which the writer's next row is refused. Without either rule there is
a shortest story that leads there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from common.metadata.changes.files import with_recent_add
from common.model.key_values import KeyType
from common.model.keys import encode_value
from common.model.table import Column, Table, TableSettings
from common.model.tablet import Record
from coordinator.core.scans import droppable_version, next_watermarks, settled_version

RETENTION, FAR, TIME_MAX = 3, 1000, 11

Rule = Callable[[Table, Record, float], bytes | None]


def table_of(kind: str) -> Table:
    return Table(
        id="t",
        name="t",
        location="file:///t",
        schema=(Column("k", "int64"), Column("v", kind), Column("gone", "bool")),
        key=("k",),
        version_column="v",
        tombstone_column="gone",
        settings=TableSettings(tombstone_retention_s=RETENTION),
    )


INTS, INSTANTS = table_of("int64"), table_of("timestamp[us, tz=UTC]")


def version(table: Table, number: int) -> bytes:
    if table is INTS:
        return encode_value(number, KeyType.INT)
    return encode_value(datetime.fromtimestamp(number, UTC), KeyType.TIMESTAMP)


@dataclass(frozen=True)
class State:
    now: int = 1
    written: int = 0
    """When the writer wrote last."""
    far: bool = False
    """Whether the row of the far version has come."""
    tombstone: bool = False
    """Whether the files still hold it."""
    record: Record = field(default_factory=Record)
    purge: int = 0


def steps(table: Table, state: State, rule: Rule) -> Iterator[tuple[str, State]]:
    """Yield what may happen next."""
    must_write = table is INTS and state.now - state.written >= RETENTION - 1
    if state.now < TIME_MAX and not must_write:
        yield "time passes, and a mark is made", marked(table, replace(state, now=state.now + 1))
    if state.written < state.now:
        yield "the writer adds", added(table, state, state.now, written=state.now)
    if not state.far:
        yield "a broken clock deletes", added(table, state, FAR, far=True, tombstone=True)
    up_to = rule(table, state.record, state.now)
    if state.tombstone and up_to is not None and version(table, FAR) <= up_to:
        yield "the tombstone is dropped", replace(state, tombstone=False, purge=FAR)


def marked(table: Table, state: State) -> State:
    highest = version(table, FAR if state.tombstone else state.written)
    marks = next_watermarks(state.record.settled, state.now, highest, RETENTION)
    return replace(state, record=replace(state.record, settled=marks))


def added(table: Table, state: State, number: int, **more: Any) -> State:
    notes = with_recent_add(
        state.record.recent_adds, state.now, [version(table, number)], RETENTION
    )
    return replace(state, record=replace(state.record, recent_adds=notes), **more)


def closed(table: Table, rule: Rule) -> list[str] | None:
    """Return the shortest story after which the writer is refused; None: there is none."""
    first = State()
    paths: dict[State, list[str]] = {first: []}
    queue = deque([first])
    while queue:
        state = queue.popleft()
        if state.purge >= state.now:
            return paths[state]
        for what, after in steps(table, state, rule):
            if after not in paths:
                paths[after] = [*paths[state], what]
                queue.append(after)
    assert len(paths) > 1000
    return None


def settled_alone(_table: Table, record: Record, now_s: float) -> bytes | None:
    return settled_version(record.settled, now_s, RETENTION)


@pytest.mark.parametrize("table", [INTS, INSTANTS], ids=["numbers", "instants"])
def test_no_row_of_a_broken_clock_closes_a_tablet(table: Table) -> None:
    assert closed(table, droppable_version) is None


@pytest.mark.parametrize("table", [INTS, INSTANTS], ids=["numbers", "instants"])
def test_by_settled_versions_alone_one_does(table: Table) -> None:
    story = closed(table, settled_alone)
    assert story is not None
    assert story[-1] == "the tombstone is dropped"


def test_tombstones_are_dropped_one_retention_after_all_adds_passed_them() -> None:
    """The rule keeps nothing of a writer whose clock is right any longer than before."""
    state = State()
    for now in range(1, 12):
        state = marked(INTS, added(INTS, replace(state, now=now), now, written=now))
        assert droppable_version(INTS, state.record, now) == settled_alone(INTS, state.record, now)
