"""Reads and appends through the gateway are counted, and paced by the rate of their volume."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.wire import VolumeUse
from neve.client import Client
from tests.support.gateway import Gateway, serving
from tests.support.patience import PATIENCE_S

SCHEMA = pa.schema([("x", pa.int64()), ("text", pa.string())])
ROWS = pa.table({"x": range(5_000), "text": [f"{n * 7919:x}" * 4 for n in range(5_000)]}, SCHEMA)


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with serving(control={"foreground_shares": 300.0}) as served:
        yield served


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> Iterator[Client]:
    with gateway.client() as made:
        yield made


def table_of(client: Client, folder: Path, volume: str) -> str:
    client.create_table(volume, str(folder), schema=SCHEMA, settings={"volume": volume})
    return volume


def heard(gateway: Gateway, volume: str, wanted: Callable[[VolumeUse], bool]) -> VolumeUse:
    """Return the first report about a volume that has what is wanted."""
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        for uses in list(gateway.coordinator.uses):
            for use in uses:
                if use.volume == volume and wanted(use):
                    return use
        time.sleep(0.05)
    raise AssertionError(gateway.coordinator.uses[-3:])


def stored_bytes(path: Path, *columns: str) -> int:
    group = pq.read_metadata(path).row_group(0)
    chunks = [group.column(leaf) for leaf in range(group.num_columns)]
    return sum(c.total_compressed_size for c in chunks if c.path_in_schema in columns)


def test_reads_and_appends_are_counted_as_stored(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    gateway.coordinator.rate = None
    name = table_of(client, tmp_path, "counted")
    client.append(name, ROWS)
    (path,) = tmp_path.glob("_neve/append/**/*.parquet")
    appended = path.stat().st_size
    heard(gateway, "counted", lambda use: use.moved_bytes == appended)
    assert client.scan(name).num_rows == ROWS.num_rows
    whole = appended + stored_bytes(path, "x", "text")
    heard(gateway, "counted", lambda use: abs(use.moved_bytes - whole) <= 10)
    use = gateway.coordinator.uses[-1]
    assert {volume.waited_s for volume in use} <= {0.0}, "nothing waits without a rate"


def test_callers_wait_for_the_rate_of_their_volume(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    gateway.coordinator.rate = 64 * 1024.0
    name = table_of(client, tmp_path, "paced")
    client.append(name, ROWS)
    heard(gateway, "paced", lambda use: use.granted_bytes_s == 64 * 1024)
    client.append(name, ROWS)
    (path, *_) = tmp_path.glob("_neve/append/**/*.parquet")
    use = heard(gateway, "paced", lambda use: use.moved_bytes >= 2 * path.stat().st_size)
    # All but what was saved up in a second has taken its time.
    assert use.waited_s >= path.stat().st_size / (64 * 1024) - 1.5
    gateway.coordinator.rate = None


def test_a_volume_that_is_not_used_is_reported_no_more(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    name = table_of(client, tmp_path, "left")
    client.append(name, ROWS)
    heard(gateway, "left", lambda use: use.moved_bytes > 0)
    end_s = time.monotonic() + PATIENCE_S
    while gateway.coordinator.uses[-1] != () and time.monotonic() < end_s:
        time.sleep(0.1)
    assert gateway.coordinator.uses[-1] == ()


def test_without_shares_nothing_is_counted(tmp_path: Path) -> None:
    with serving() as plain, plain.client() as client:
        plain.coordinator.rate = 1.0
        name = table_of(client, tmp_path, "free")
        client.append(name, ROWS)
        assert client.count(name) == ROWS.num_rows
        assert plain.coordinator.uses == []
