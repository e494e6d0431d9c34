"""A rebuild on the running service: it is broken off, or the table is published for other engines.

The caller leaves, the gateway is killed; Redis has lost what it knew of tables.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
import redis
from pyiceberg.table import StaticTable

from common.metadata.keys import TABLES
from neve.api import Table
from neve.client.errors import NeveError, RefusedError
from tests.support.independent_reader import independent_reader
from tests.support.stack import Service

pytestmark = [pytest.mark.slow]

NAME = "broken"
FILES = 30
ROWS = 10
"""Per file, and per tablet."""


class LeftError(Exception):
    """The caller has gone."""


def published_table(service: Service) -> str:
    """Make a table of many tablets with a file each, whose manifest names all; return its place."""
    client, folder = service.client, service.folder / NAME
    client.create_table(
        NAME,
        str(folder),
        schema=pa.schema([("id", pa.int64()), ("v", pa.int64())]),
        key=["id"],
        version_column="v",
        splits=[str(number * ROWS - 1) for number in range(1, FILES)],
        settings={"manifest_interval_s": "1s"},
    )
    ids = list(range(FILES * ROWS))
    client.append(NAME, pa.table({"id": ids, "v": [1] * len(ids)}))
    pointer = folder / "_neve/manifest/latest.json"

    def names_all() -> bool:
        return json.loads(pointer.read_text("utf-8"))["totals"]["rows"] == len(ids)

    service.wait("a manifest of all rows", lambda: pointer.exists() and names_all())
    return str(folder)


def found(service: Service) -> Table | None:
    with suppress(NeveError):
        return next((table for table in service.client.tables() if table.name == NAME), None)
    return None


def drop(service: Service) -> None:
    if found(service) is not None:
        service.client.drop(NAME)
    service.wait("the table to be gone", lambda: found(service) is None)


def kill_while_filling(service: Service, location: str) -> None:
    """Kill the gateway while it puts files in, or soon after."""

    def call() -> None:
        with suppress(NeveError):
            service.client.rebuild(location, NAME)

    caller, gateway = threading.Thread(target=call), service.actor("GatewayActor")
    caller.start()
    while found(service) is None and caller.is_alive():
        time.sleep(0.002)
    service.kill(gateway)
    caller.join()


def test_no_row_is_lost_by_rebuilds_that_were_broken_off(service: Service) -> None:
    location = published_table(service)

    def leave(text: str) -> None:
        if text.startswith(f"{NAME}: "):  # Files are put in.
            raise LeftError

    for _ in range(2):
        drop(service)
        with pytest.raises(LeftError):
            service.client.rebuild(location, NAME, progress=leave)
    if found(service) is None:
        service.client.rebuild(location, NAME)
    drop(service)
    kill_while_filling(service, location)
    service.wait("the gateway to be back", lambda: found(service) is not None)
    table = found(service)
    assert table is not None
    if table.filling is not None:
        with pytest.raises(RefusedError, match="is being filled"):
            service.client.append(NAME, pa.table({"id": [0], "v": [2]}))
        assert any("is being filled" in warning for warning in service.client.status().warnings)
    drop(service)
    done = service.client.rebuild(location, NAME)
    assert (done.rows, done.files, done.lost, done.state) == (FILES * ROWS, FILES, {}, "live")
    assert service.client.count(NAME) == FILES * ROWS
    service.client.drop(NAME, delete_files=True)


# ---------------------------------------------------------------------- Published for other engines


class Published:
    """A native table that is published in a format, and the rows that it has to have."""

    def __init__(self, service: Service, form: str) -> None:
        self.service, self.form, self.name = service, form, f"to-{form}"
        self.location = str(service.folder / self.name)
        self.rows = Counter[tuple[int, str]]()
        service.client.create_table(
            self.name,
            self.location,
            schema=pa.schema([("id", pa.int64()), ("text", pa.string())]),
            settings={"manifest_interval_s": "1s", "publish": form},
        )

    def append(self) -> None:
        """Append a file."""
        rows = [(len(self.rows) + number, f"row {number}") for number in range(ROWS)]
        ids, texts = zip(*rows, strict=True)
        self.service.client.append(self.name, pa.table({"id": ids, "text": texts}))
        self.rows.update(rows)

    def version(self) -> int:
        """Wait until all rows are published; return the version."""

        def shown() -> Iterable[int]:
            published = self.service.client.describe(self.name).published
            assert published is not None
            assert not published.problem
            if published.rows == self.rows.total() and published.version is not None:
                yield published.version

        return self.service.wait(f"{self.name} with all rows", lambda: [*shown()])[0]

    def check(self) -> None:
        """Compare the rows that two readers see with those that the table has to have."""
        if self.form == "delta":
            read = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(self.location))
            rows = pa.table(read.execute("select id, text from t"))
            other = independent_reader().delta_rows(self.location, "id", "text")
        else:
            rows = StaticTable.from_metadata(self.location).scan().to_arrow()
            other = independent_reader().iceberg_rows(self.location, "id", "text")
        assert Counter(zip(*rows.to_pydict().values(), strict=True)) == other == self.rows


def lose(service: Service, tables: Iterable[Published]) -> None:
    """Let Redis forget tables, and the coordinator what it knew of them."""
    coordinator = service.actor("CoordinatorActor")
    with service.halted(coordinator), redis.Redis.from_url(service.stack.redis_url) as store:
        for table in tables:
            described = json.loads(Path(table.location, "_neve/table.json").read_text("utf-8"))
            keys = [*store.scan_iter(f"neve:{{{described['table']['id']}}}:*", 1000)]
            assert store.delete(*keys) == len(keys) > 5
            assert store.hdel(TABLES, table.name) == 1
        service.kill(coordinator)
    service.wait("another coordinator", service.everybody_beats)


def test_published_tables_go_on_after_redis_has_lost_them(service: Service) -> None:
    tables = [Published(service, form) for form in ("delta", "iceberg")]
    for table in tables:
        table.append()
    before = [table.version() for table in tables]
    for table in tables:
        table.check()
        table.append()  # It may be lost before a version has it.
    lose(service, tables)
    for table, version in zip(tables, before, strict=True):
        done = service.client.rebuild(table.location, table.name)
        assert (done.rows, done.lost, done.state) == (table.rows.total(), {}, "live")
        assert table.version() > version
        table.check()
        table.append()
        table.version()
        table.check()
        service.client.drop(table.name, delete_files=True)
