"""Versions of a broken clock are refused; a tablet that was closed by one is opened again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.metadata.codec.tablet import PURGED
from common.metadata.keys import TabletKeys
from common.model.key_values import KeyType
from common.model.keys import encode_value
from common.model.tablet import PLUS_INFINITY, TabletId
from neve.client import Client
from neve.client.errors import CallerError, RefusedError
from tests.support.gateway import Gateway, serving
from tests.support.memory_store import MemoryStore

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("gone", pa.bool_())])
NOW = datetime.now(UTC)
PAST, TOMORROW, FAR = (NOW + timedelta(hours=hours) for hours in (-1, 23, 25))


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with serving() as served:
        yield served


@pytest.fixture
def client(gateway: Gateway, tmp_path: Path) -> Iterator[Client]:
    with gateway.client() as made:
        made.create_table(
            "t",
            str(tmp_path),
            schema=SCHEMA,
            key=["id"],
            version_column="at",
            tombstone_column="gone",
        )
        yield made
        made.drop("t")


def rows(*times: datetime) -> pa.Table:
    return pa.Table.from_pylist(
        [{"id": number, "at": at, "gone": False} for number, at in enumerate(times)], SCHEMA
    )


def test_rows_of_a_day_ahead_are_taken_and_later_ones_are_not(client: Client) -> None:
    client.append("t", rows(PAST, TOMORROW))
    with pytest.raises(CallerError, match=r"a row has version .* in column at, later than"):
        client.append("t", rows(PAST, FAR))
    assert client.scan("t").num_rows == 2


def test_files_with_later_ones_are_named(client: Client, tmp_path: Path) -> None:
    pq.write_table(rows(PAST), tmp_path / "good.parquet")
    pq.write_table(rows(FAR), tmp_path / "bad.parquet")
    with pytest.raises(CallerError, match=r"file bad.parquet has version .*is a clock wrong"):
        client.add_files("t", ["good.parquet", "bad.parquet"])
    client.add_files("t", ["good.parquet"])


def test_a_tablet_that_was_closed_is_opened_again(gateway: Gateway, client: Client) -> None:
    client.append("t", rows(PAST))
    tablet = TabletId(next(table.id for table in client.tables()), PLUS_INFINITY)
    store = gateway.store
    assert isinstance(store, MemoryStore)
    high = encode_value(datetime(2124, 1, 1, tzinfo=UTC), KeyType.TIMESTAMP)
    keys = TabletKeys.of(tablet)
    store.keyspace.run([("SET", keys.purge, high), ("HSET", keys.record, PURGED, 1)])

    (told,) = client.explain("t", "last")
    assert any(
        "its watermark is" in sentence and "2124-01-01" in sentence for sentence in told.sentences
    )
    with pytest.raises(RefusedError, match="already purged"):
        client.append("t", rows(NOW))
    with pytest.raises(RefusedError, match="is not above that"):
        client.lower_watermark("t", "last", "2125-01-01T00:00:00Z")
    lowered = client.lower_watermark("t", "last", "2020-01-01T00:00:00Z")
    assert "2124-01-01" in str(lowered.before)
    assert "2020-01-01" in str(lowered.after)
    assert "can be seen again" in lowered.may_rise
    client.append("t", rows(NOW))
    assert client.lower_watermark("t", "last").after is None
