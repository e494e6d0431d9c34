"""Lists over HTTP go on without what cannot be read, and say what that is."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

from common.metadata.keys import TABLES, TableKeys, TabletKeys
from common.metadata.keyspace import hset
from common.model.key_values import KeyType
from common.model.keys import encode_key
from common.model.tablet import TabletId
from common.runtime import SystemClock
from neve.api import TabletPage
from neve.cli.render import render_table as rendered
from neve.client import Client
from neve.client.errors import NeveError
from neve.client.http import decode
from tests.support.gateway import serving
from tests.support.memory_store import MemoryStore

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


def create(client: Client, folder: Path, name: str) -> str:
    """Create a table with three tablets of a row each, and return its id."""
    table = client.create_table(
        name, str(folder / name), schema=SCHEMA, key=["id"], version_column="v", splits=["10", "20"]
    )
    client.append(name, pa.table({"id": [5, 15, 25], "v": [1, 1, 1]}, schema=SCHEMA))
    return table.id


@pytest.mark.parametrize("what", ["files", "record"])
def test_a_tablet_that_cannot_be_read_is_told_beside_the_others(tmp_path: Path, what: str) -> None:
    store = MemoryStore(SystemClock())
    with serving(store=store) as gateway, gateway.client() as client:
        bad = TabletId(create(client, tmp_path, "events"), encode_key([20], [KeyType.INT]))
        key = getattr(TabletKeys.of(bad), what)
        store.keyspace.run([hset(key, {"f" if what == "record" else "x": b"\x02newer"})])
        page = decode(TabletPage, client._connection.call("GET", "/v1/tables/events/tablets"))
        assert [tablet.end for tablet in page.tablets] == ["[10]", "+inf"]
        assert page.unreadable.keys() == {bad.text}
        assert key in page.unreadable[bad.text]
        told = client.describe("events")
        assert (told.tablets, told.files, told.rows) == (2, 2, 2)
        assert told.unreadable == page.unreadable
        console = Console(width=500, color_system=None, force_terminal=False)
        with console.capture() as printed:
            console.print(rendered(told))
        assert f"tablet to [20] (id {bad.text}): {key}" in printed.get()
        assert client.explain("events", bad.text)
        assert client.scan("events", start="21").num_rows == 1
        with pytest.raises(NeveError, match=key):
            client.scan("events", start="15")


def test_a_table_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    with serving(store=store) as gateway, gateway.client() as client:
        bad = create(client, tmp_path, "bad")
        create(client, tmp_path, "entry")
        create(client, tmp_path, "good")
        store.keyspace.run([hset(TableKeys(bad).table, {"settings": b"\xc1"})])
        assert [table.name for table in client.tables()] == ["entry", "good"]
        store.keyspace.run([hset(TABLES, {"entry": b"\xc1"})])
        assert [table.name for table in client.tables()] == ["good"]
        assert client.describe("good").rows == 3
        with pytest.raises(NeveError, match=rf"neve:.{bad}"):
            client.describe("bad")
