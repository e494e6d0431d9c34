"""What may happen between looking and writing: splits, collectors, dropped names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.metadata.changes import (
    AddFiles,
    Change,
    CommitAttempt,
    Outcome,
    Refused,
    ReserveFiles,
)
from common.model.file import DataFile
from common.model.job import Kind
from common.model.outcome import RowCounts
from common.model.tablet import PLUS_INFINITY, TabletId
from common.runtime import SystemClock
from neve.client import Client
from neve.client.errors import RefusedError
from neve.client.http import new_call
from tests.support.gateway import Gateway, serving
from tests.support.memory_store import MemoryStore

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


class Refuses(MemoryStore):
    """Refuses the first adds, as after a split between routing and writing."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.refusals: list[str] = []

    async def apply(self, change: Change) -> Outcome:
        if isinstance(change, AddFiles) and change.files and self.refusals:
            return Refused(code=self.refusals.pop(), reason="keys outside the tablet")
        return await super().apply(change)


@pytest.fixture(scope="module")
def store() -> Refuses:
    return Refuses()


@pytest.fixture(scope="module")
def gateway(store: Refuses) -> Iterator[Gateway]:
    with serving(store) as served:
        yield served


@pytest.fixture
def client(gateway: Gateway, store: Refuses, tmp_path: Path) -> Iterator[Client]:
    with gateway.client() as made:
        made.create_table("events", str(tmp_path), schema=SCHEMA, key=["id"], version_column="v")
        yield made
        store.refusals.clear()
        made.drop("events")


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "v": [1] * len(ids)}, schema=SCHEMA)


@pytest.mark.parametrize("code", ["bounds", "tablet", "operation"])
def test_a_tablet_that_moved_is_routed_again(
    client: Client, store: Refuses, tmp_path: Path, code: str
) -> None:
    pq.write_table(rows(1), tmp_path / "a.parquet")

    store.refusals = [code, code]
    client.add_files("events", ["a.parquet"])
    store.refusals = [code, code]
    client.append("events", rows(2))

    assert store.refusals == []
    assert client.count("events") == 2


def test_tablets_that_never_rest_are_told(client: Client, store: Refuses, tmp_path: Path) -> None:
    pq.write_table(rows(1), tmp_path / "a.parquet")

    store.refusals = ["bounds"] * 100
    with pytest.raises(RefusedError, match=r"its tablets keep changing; try again"):
        client.add_files("events", ["a.parquet"])
    with pytest.raises(RefusedError, match=r"its tablets keep changing; try again"):
        client.append("events", rows(2))
    assert len(store.refusals) == 100 - 8


def test_other_refusals_are_final(client: Client, store: Refuses, tmp_path: Path) -> None:
    store.refusals = ["purged", "purged"]
    with pytest.raises(RefusedError) as caught:
        client.append("events", rows(2))
    assert caught.value.code == "purged"
    assert len(store.refusals) == 1


def compact(gateway: Gateway, table: str, inputs: tuple[str, ...], output: DataFile) -> None:
    """Replace files by one, as a compactor would."""
    tablet = TabletId(table, PLUS_INFINITY)
    reserve = ReserveFiles(
        tablet=tablet,
        attempt="att-1",
        job="job-1",
        kind=Kind.SYSTEM,
        inputs=inputs,
        output_prefix="_neve/last/out",
        outputs_max=1,
        group="default",
        compactor="c-1",
    )
    counts = RowCounts(rows_in=1, rows_out=1)
    commit = CommitAttempt(tablet=tablet, attempt="att-1", outputs=(output,), counts=counts)
    for change in (reserve, commit):
        outcome = gateway.ask(gateway.store.apply(change))
        assert not isinstance(outcome, Refused), outcome


def test_a_replaced_file_does_not_come_back(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    pq.write_table(rows(1), tmp_path / "a.parquet")
    call = new_call()
    client.add_files("events", ["a.parquet"], call=call)
    (file,) = client.files("events")
    output = DataFile(
        path="_neve/last/out-0.parquet",
        size_bytes=file.size_bytes,
        rows=1,
        key_min=b"\x01\x80\0\0\0\0\0\0\x01",
        key_max=b"\x01\x80\0\0\0\0\0\0\x01",
    )
    compact(gateway, client.describe("events").id, ("a.parquet",), output)

    with pytest.raises(RefusedError, match=r"a.parquet was replaced by a compaction"):
        client.add_files("events", ["a.parquet"])
    assert client.add_files("events", ["a.parquet"], call=call).repeated
    assert [each.path for each in client.files("events")] == [output.path]
    (finished,) = client.history("events")
    assert (finished.attempt, finished.inputs, finished.outputs) == (
        "att-1",
        ("a.parquet",),
        (output.path,),
    )


def test_the_first_request_builds_no_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    # Pydantic's schemas must not be built in two threads at once; two gateways may serve in two.
    def build(*_: object, **__: object) -> None:
        raise AssertionError("a route was built while serving")

    with serving() as gateway, gateway.client() as client:
        monkeypatch.setattr("fastapi.routing.get_dependant", build)
        assert client.tables() == []
