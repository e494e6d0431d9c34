"""Rows for a table that is dropped between the look-up of its name and that of its tablets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.model.tablet import TabletId
from common.runtime import SystemClock
from neve.client import Client
from neve.client.errors import NotFoundError
from tests.support.gateway import Gateway, serving
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.unit
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
NOBODY = pa.table({"id": pa.array([], pa.int64()), "v": pa.array([], pa.int64())})


class LosesTablets(MemoryStore):
    """Has no tablets any more, though the table can still be looked up."""

    gone = False

    async def tablet_ids(
        self, table: str, after: bytes | None = None, count: int = 1000
    ) -> Sequence[TabletId]:
        return () if self.gone else await super().tablet_ids(table, after, count)


@pytest.fixture
def store() -> LosesTablets:
    return LosesTablets(SystemClock())


@pytest.fixture
def gateway(store: LosesTablets) -> Iterator[Gateway]:
    with serving(store) as served:
        yield served


@pytest.fixture
def client(gateway: Gateway, store: LosesTablets, tmp_path: Path) -> Iterator[Client]:
    with gateway.client() as client:
        client.create_table(
            "events", str(tmp_path / "t"), schema=SCHEMA, key=["id"], version_column="v"
        )
        store.gone = True
        yield client


def test_an_append_is_told_that_the_table_has_gone(client: Client) -> None:
    rows = pa.table({"id": [1, 2], "v": [1, 1]}, schema=SCHEMA)

    with pytest.raises(NotFoundError, match="was dropped a moment ago"):
        client.append("events", rows)


def test_an_add_of_a_file_without_rows_is_told_so_too(client: Client, tmp_path: Path) -> None:
    pq.write_table(NOBODY, tmp_path / "t" / "empty.parquet")

    with pytest.raises(NotFoundError, match="was dropped a moment ago"):
        client.add_files("events", ["empty.parquet"])
