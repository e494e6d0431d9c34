"""Live bytes through the door: asked for, waited for, shown."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from common.metadata.changes import Applied, Change, CommitAttempt, ReserveFiles
from common.model.job import Kind, analysis_id
from common.model.outcome import FileStatistics, RowCounts, Statistics
from common.model.tablet import PLUS_INFINITY, TabletId
from common.runtime import SystemClock
from neve.client import Client
from neve.client.errors import NotFoundError, UnavailableError
from tests.support.gateway import Gateway, serving
from tests.support.memory_store import MemoryStore

SCHEMA = pa.schema([("x", pa.int64())])


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    return MemoryStore(SystemClock())


@pytest.fixture(scope="module")
def gateway(store: MemoryStore) -> Iterator[Gateway]:
    with serving(store) as served:
        yield served


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> Iterator[Client]:
    with gateway.client() as made:
        yield made


def analysed(client: Client, store: MemoryStore, name: str, live_bytes: int) -> None:
    """Do what a compactor does for an analysis that finds so much live of each file."""
    tablet = TabletId(client.describe(name).id, PLUS_INFINITY)
    files = tuple(
        FileStatistics(path=file.path, size_bytes=file.size_bytes, live_bytes=live_bytes)
        for file in client.files(name)
    )
    reserve = ReserveFiles(
        tablet=tablet,
        attempt="att-1",
        job=analysis_id(tablet),
        kind=Kind.SYSTEM,
        inputs=(),
        output_prefix="_neve/x",
        outputs_max=0,
        group="default",
        compactor="c-1",
    )
    commit = CommitAttempt(
        tablet=tablet,
        attempt="att-1",
        outputs=(),
        counts=RowCounts(),
        statistics=Statistics(files=files, tablet_version=1, rows=2, read_bytes=17, elapsed_s=0.25),
    )
    changes: tuple[Change, ...] = (reserve, commit)
    for change in changes:
        assert isinstance(asyncio.run(store.apply(change)), Applied)


def test_live_bytes_are_asked_for_and_shown_when_they_are_counted(
    gateway: Gateway, client: Client, store: MemoryStore, tmp_path: Path
) -> None:
    client.create_table("events", str(tmp_path), schema=SCHEMA)
    for number in range(2):
        client.append("events", pa.table({"x": [number]}))
    before = client.live_bytes("events")
    (found,) = client.analyze("events")
    assert gateway.coordinator.told[-1] == ("analyze", client.describe("events").id, "last")
    assert not before[0].waiting
    assert found.waiting
    assert (found.files, found.measured_files, found.live_bytes) == (2, 0, 0)
    assert (found.since_s, found.read_bytes) == (None, None)
    with pytest.raises(UnavailableError, match=r"within 0.1 s: waiting tablets: 1 of 1"):
        client.analyze("events", "last", timeout_s=0.1)

    analysed(client, store, "events", 5)
    gateway.coordinator.analyses.clear()
    (found,) = client.live_bytes("events", "last")
    assert (found.measured_files, found.live_bytes, found.waiting) == (2, 10, False)
    assert (found.measured_bytes, found.read_bytes, found.rows) == (found.size_bytes, 17, 2)
    assert found.elapsed_s is not None
    assert found.elapsed_s >= 0
    assert found.since_s is not None
    files = client.files("events")
    assert [(file.live_bytes, file.measured_at_s) for file in files] == [(5, found.since_s)] * 2


def test_a_tablet_that_is_not_there_is_refused(client: Client, tmp_path: Path) -> None:
    client.create_table("others", str(tmp_path), schema=SCHEMA)
    with pytest.raises(NotFoundError, match="has no tablet '0100'"):
        client.analyze("others", "0100")
    with pytest.raises(NotFoundError, match="nothing"):
        client.analyze("nothing")
