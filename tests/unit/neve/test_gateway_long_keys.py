"""Keys of megabytes: metadata keeps short bounds, and every row is found again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from common.metadata.keys import TabletKeys
from common.metadata.keyspace import hgetall
from common.model.tablet import TabletId
from common.runtime import SystemClock
from neve.client.errors import CallerError
from tests.support.gateway import serving
from tests.support.memory_store import MemoryStore

SCHEMA = pa.schema([("id", pa.string()), ("v", pa.int64())])
LONG = ["k" * 1_500_000 + end for end in ("a", "z")]


def test_long_keys_are_added_listed_and_found(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    with serving(store=store) as gateway, gateway.client() as client:
        table = client.create_table(
            "events",
            str(tmp_path / "events"),
            schema=SCHEMA,
            key=["id"],
            version_column="v",
            splits=["k" * 400, "l"],
        )
        client.append("events", pa.table({"id": LONG, "v": [1, 1]}, schema=SCHEMA))
        tablet = TabletId.parse(table.id, client.tablets("events")[1].tablet)
        [(_, entry)] = store.keyspace.run([hgetall(TabletKeys.of(tablet).files)])[0].items()
        assert len(entry) < 3000
        [file] = client.files("events")
        assert file.key_min is not None
        assert file.key_max is not None
        assert len(file.key_min) + len(file.key_max) < 3000
        assert client.scan("events")["id"].to_pylist() == LONG
        assert client.scan("events", start="k" * 1000, end="l").num_rows == 2
        with pytest.raises(CallerError, match="bytes, more than the limit of 512"):
            client.create_table(
                "other",
                str(tmp_path / "other"),
                schema=SCHEMA,
                key=["id"],
                version_column="v",
                splits=["k" * 600],
            )
