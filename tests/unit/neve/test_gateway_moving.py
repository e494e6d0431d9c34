"""Rows that come in while tablets are split and merged: every one of them, once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.metadata.changes import (
    AbandonOperation,
    AddFiles,
    Applied,
    BeginOperation,
    Change,
    EndOperation,
    Outcome,
    StepOperation,
)
from common.model.key_values import KeyType
from common.model.keys import encode_key
from common.model.tablet import PLUS_INFINITY, OperationKind, OperationStep, TabletId
from common.runtime import SystemClock
from neve.client import Client
from neve.client.errors import RefusedError
from neve.client.http import new_call
from neve.gateway.services import TABLETS_MAX, SplitHints
from tests.support.gateway import Gateway, serving
from tests.support.memory_store import MemoryStore

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
DRAIN, CLOSE = OperationStep.DRAIN, OperationStep.CLOSE


class Loses(MemoryStore):
    """Makes changes after the rows of an append were written and before they are added."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.between: list[Change] = []

    async def apply(self, change: Change) -> Outcome:
        if isinstance(change, AddFiles) and change.files and self.between:
            others, self.between = self.between, []
            for other in others:
                outcome = await super().apply(other)
                assert isinstance(outcome, Applied), outcome
        return await super().apply(change)


@pytest.fixture(scope="module")
def store() -> Loses:
    return Loses()


@pytest.fixture(scope="module")
def gateway(store: Loses) -> Iterator[Gateway]:
    with serving(store) as served:
        yield served


@pytest.fixture
def client(gateway: Gateway, tmp_path: Path) -> Iterator[Client]:
    with gateway.client() as made:
        made.create_table("events", str(tmp_path), schema=SCHEMA, key=["id"], version_column="v")
        yield made
        made.drop("events")


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "v": [1] * len(ids)}, schema=SCHEMA)


def key(number: int) -> bytes:
    return encode_key([number], [KeyType.INT])


def tablet(client: Client, end: bytes = PLUS_INFINITY) -> TabletId:
    return TabletId(client.describe("events").id, end)


def split(client: Client, at: int, steps: int = 0) -> list[Change]:
    """Return the changes that begin a split, and so many that follow."""
    own = (tablet(client),)
    every: list[Change] = [
        BeginOperation(kind=OperationKind.SPLIT, tablets=own, operation=f"s{at}", at=key(at)),
        StepOperation(tablets=own, operation=f"s{at}", step=DRAIN),
        StepOperation(tablets=own, operation=f"s{at}", step=CLOSE),
        EndOperation(tablets=own, operation=f"s{at}"),
    ]
    return every[: steps + 1]


def merge(client: Client, at: int) -> list[Change]:
    both = (tablet(client, key(at)), tablet(client))
    return [
        BeginOperation(kind=OperationKind.MERGE, tablets=both, operation=f"m{at}"),
        StepOperation(tablets=both, operation=f"m{at}", step=CLOSE),
        EndOperation(tablets=both, operation=f"m{at}"),
    ]


def ids(client: Client) -> list[int]:
    return sorted(client.scan("events").column("id").to_pylist())


def make(gateway: Gateway, changes: list[Change]) -> None:
    for change in changes:
        outcome = gateway.ask(gateway.store.apply(change))
        assert isinstance(outcome, Applied), outcome


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_rows_are_cut_where_a_split_begins_or_has_ended_meanwhile(
    client: Client, store: Loses, steps: int
) -> None:
    store.between = split(client, 5, steps)
    added = client.append("events", rows(1, 5, 6, 9))
    assert [(file.key_min, file.key_max) for file in added.files] == [
        ("[1]", "[5]"),
        ("[6]", "[9]"),
    ]
    assert {file.tablet == "last" for file in added.files} == (
        {True} if steps < 3 else {True, False}
    )
    assert ids(client) == [1, 5, 6, 9]


def test_only_the_first_append_during_a_split_is_cut_in_vain(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    begin, *rest = split(client, 5, 3)
    make(gateway, [begin])
    for _ in range(3):
        client.append("events", rows(1, 9))
    stored = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("_neve/append/*")}
    assert len(stored - {file.path for file in client.files("events")}) == 1
    assert gateway.services.split_hints.of(client.describe("events").id)
    make(gateway, rest)
    client.append("events", rows(1, 9))
    assert gateway.services.split_hints.of(client.describe("events").id) == ()
    assert client.count("events") == 2


def test_hints_are_forgotten_when_there_are_too_many() -> None:
    hints = SplitHints()
    for number in range(TABLETS_MAX):
        hints.seen("t", (), [b"%d" % number])
    assert len(hints.of("t")) == TABLETS_MAX
    hints.seen("u", (), [b"a"])
    assert hints.of("t") == hints.of("u") == ()


def test_rows_of_tablets_that_are_merged_meanwhile_are_all_there(
    gateway: Gateway, client: Client, store: Loses
) -> None:
    make(gateway, split(client, 5, 3))
    call = new_call()
    store.between = merge(client, 5)
    assert client.append("events", rows(1, 9), call=call).rows == 2
    assert ids(client) == [1, 9]
    client.append("events", rows(1, 9), call=call)
    assert ids(client) == [1, 9]


def test_a_call_repeated_after_its_tablets_were_merged_adds_nothing(
    gateway: Gateway, client: Client
) -> None:
    make(gateway, split(client, 5, 3))
    call = new_call()
    assert len(client.append("events", rows(1, 9), call=call).files) == 2
    make(gateway, merge(client, 5))
    again = client.append("events", rows(1, 9), call=call)
    assert (again.rows, len(again.files)) == (2, 0)
    assert ids(client) == [1, 9]


def test_a_call_repeated_over_other_tablets_brings_the_same_rows(
    gateway: Gateway, client: Client, store: Loses
) -> None:
    """What a try has written for other tablets is never taken for what this one needs."""
    make(gateway, split(client, 5, 3))
    call = new_call()
    store.between = [
        BeginOperation(
            kind=OperationKind.SPLIT, tablets=(tablet(client),), operation="x", at=key(9)
        ),
        *[
            StepOperation(tablets=(tablet(client),), operation="x", step=step)
            for step in (DRAIN, CLOSE)
        ],
    ]
    with pytest.raises(RefusedError, match="a split is ending, try again"):
        client.append("events", rows(1, 7), call=call)
    make(gateway, [AbandonOperation(tablets=(tablet(client),), operation="x"), *merge(client, 5)])
    client.append("events", rows(1, 7), call=call)
    assert ids(client) == [1, 7]


def test_an_add_waits_for_a_split_that_is_ending(gateway: Gateway, client: Client) -> None:
    *steps, end = split(client, 5, 3)
    make(gateway, steps)
    later = threading.Timer(0.2, lambda: make(gateway, [end]))
    later.start()
    client.append("events", rows(1, 9))
    later.join()
    assert ids(client) == [1, 9]
    assert len(client.tablets("events")) == 2


def test_a_file_that_crosses_a_split_is_refused(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    make(gateway, split(client, 5))
    for name, held in {"left": (1, 5), "over": (5, 6)}.items():
        pq.write_table(rows(*held), tmp_path / f"{name}.parquet")
    client.add_files("events", ["left.parquet"])
    with pytest.raises(RefusedError, match=r"over.parquet may not cross the key where") as caught:
        client.add_files("events", ["over.parquet"])
    assert caught.value.code == "crosses"
    assert ids(client) == [1, 5]
