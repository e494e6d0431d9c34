"""A Delta table of other writers, compacted in place beside them: no row is lost, doubled or back.

Each test compares the table as an independent reader sees it with the rows that its writers have
acknowledged: deltalake, Polars and DuckDB read the table's log themselves.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from urllib.parse import unquote

import deltalake
import polars as pl
import pyarrow as pa
import pytest

from tests.support.delta_tables import DeltaTable
from tests.support.independent_reader import independent_reader
from tests.support.lake_writers import WrittenTable, writing
from tests.support.stack import SETTINGS, Service

pytestmark = [pytest.mark.slow]

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("day", pa.string())])
DAYS = ("a", "b")
ROWS = 200
"""Rows of a file."""
CROWD = 100
"""Versions of a crowd, one of which has a file."""


class Sales(WrittenTable):
    """A Delta table, and the ids of the rows that its writers have acknowledged."""

    crowd_pause_s = 0.005

    def __init__(self, service: Service, name: str, seed: int = 1) -> None:
        super().__init__(service, name)
        self.delta = DeltaTable.create(service.folder / name, SCHEMA, ["day"])
        self.chance = Random(seed)
        self.ids: set[int] = set()
        self._next = self._crowded = 0

    def append(self, count: int = ROWS) -> None:
        """Append a file, in turn by this project's writer and by deltalake."""
        ids = range(self._next, self._next + count)
        day = self.chance.choice(DAYS)
        rows = {"id": pa.array(ids), "text": [f"row {row}" for row in ids]}
        if self.chance.random() < 0.5:
            self.delta.append(pa.table(rows), {"day": day})
        else:
            table = pa.table(rows | {"day": [day] * count})
            deltalake.write_deltalake(str(self.delta.folder), table, mode="append")
        self._next += count
        self.ids |= set(ids)

    def delete(self, share: float = 0.05) -> None:
        """Delete some rows by deletion vectors."""
        gone = set(self.chance.sample(sorted(self.ids), int(share * len(self.ids))))
        self.delta.delete(gone)
        self.ids -= gone

    def delete_by_copy(self) -> None:
        """Delete a row by writing its file anew."""
        gone = {self.chance.choice(sorted(self.ids))}
        self.delta.delete_by_copy(gone)
        self.ids -= gone

    def crowd(self) -> None:
        """Create a version without files, unless another writer is faster; now and then with one.

        So there is another attempt where nobody has looked in time at the one before.
        """
        self._crowded += 1
        if not self._crowded % CROWD:
            self.append(1)
            return
        with suppress(FileExistsError):
            entry = {"commitInfo": {"timestamp": 1_700_000_000_000}}
            self.delta.commit(entry)

    def attach(self) -> None:
        """Let the service compact the table."""
        self.service.client.attach(self.name, delta=str(self.delta.folder))

    def paths(self) -> set[str]:
        """Return the live data files, relative to the table."""
        return set(self.delta.live())

    def check(self) -> None:
        """Compare the rows that four readers see with those that were acknowledged."""
        expected = sorted(self.ids)
        assert [row["id"] for row in self.delta.rows()] == expected
        folder = str(self.delta.folder)
        read = deltalake.QueryBuilder().register("sales", deltalake.DeltaTable(folder))
        rows = pa.table(read.execute("select id, text, day from sales order by id"))
        assert rows["id"].to_pylist() == expected
        assert rows["text"].to_pylist() == [f"row {row}" for row in expected]
        seen = pl.scan_delta(folder).select("id", "day").sort("id").collect()
        assert seen["id"].to_list() == expected
        assert seen["day"].to_list() == rows["day"].to_pylist()
        other = independent_reader().delta_rows(folder, "id", "text", "day")
        assert other == Counter(zip(*rows.to_pydict().values(), strict=True))

    def stored(self) -> set[str]:
        """Return the service's own files in the table's folder."""
        files = Path(self.delta.folder).rglob("neve-*.parquet")
        return {str(path.relative_to(self.delta.folder)) for path in files}

    def named(self) -> set[str]:
        """Return every file that some version names."""
        adds = (action["add"]["path"] for action in self.delta.actions() if "add" in action)
        return {unquote(path) for path in adds}


def filled(service: Service, name: str) -> Sales:
    sales = Sales(service, name)
    sales.fill()
    return sales


def test_a_table_is_compacted_beside_its_writers(service: Service) -> None:
    sales = filled(service, "sales")
    version = sales.delta.version
    before = sales.delta.rows(version)
    sales.attach()
    with writing(sales.append, sales.delete, sales.append, sales.delete_by_copy):
        service.wait("three commits", lambda: sales.commits() >= 3)
        service.wait("many versions", lambda: sales.delta.version > version + 12)
    sales.wait_until_at_rest()
    sales.check()
    # The planner `bin-pack` lets four small files of a partition rest.
    assert len(sales.delta.live()) <= 4 * len(DAYS)
    # The version before the first compaction is still there, long after its inputs were replaced.
    time.sleep(3 * SETTINGS.coordinator.garbage_grace_s)
    assert sales.delta.rows(version) == before
    # Outputs that no version has are deleted after a version that follows their grace.
    sales.wait_until_clean()
    service.client.detach(sales.name)
    assert sales.delta.rows(version) == before


def test_a_compactor_is_killed_while_it_publishes(service: Service) -> None:
    filled(service, "killed").outlive_its_compactor()


def test_the_coordinator_is_killed_beside_writers(service: Service) -> None:
    filled(service, "leader").outlive_the_coordinator()
