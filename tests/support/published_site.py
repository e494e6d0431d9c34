"""A partitioned table without a key that publishes its log, on a disk or in an object store."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.table import StaticTable

from common.metadata.changes import (
    AddFiles,
    Applied,
    ChangeTable,
    CommitAttempt,
    CreateTable,
    ReserveFiles,
)
from common.model.file import DataFile
from common.model.job import Kind
from common.model.outcome import RowCounts
from common.model.table import Column, Table, TableSettings
from common.model.tablet import TabletId
from common.parquet.file_inspection import inspect_file
from common.parquet.foreign_formats import OwnLog, own_log
from common.parquet.location import Location, open_location
from common.parquet.service_files import LocationOwner, write_owner
from common.rows.key_encoding import partition_of_path
from common.rows.rules import RowRules
from common.runtime import call_id
from coordinator.context import ArrowStorage, TableFaults
from coordinator.core.scans import GarbageRules
from coordinator.storage.garbage_collector import GarbageCollector
from coordinator.storage.manifests import ManifestPublisher, PublishedLogs
from tests.support.independent_reader import independent_reader
from tests.support.manifest_site import GRACE_S, silent
from tests.support.memory_store import MemoryStore
from tests.support.predictable import CountedIds, ManualClock

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = (
    Column("id", "int64"),
    Column("at", "timestamp[us, UTC]"),
    Column("day", "int32"),
)
Row = tuple[int, int]


def row_file(ids: list[int]) -> pa.Table:
    """Return rows as a file has them: without the column of its partition."""
    moments = [BEGIN + timedelta(microseconds=number) for number in ids]
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "at": pa.array(moments, pa.timestamp("us", "UTC"))}
    )


@dataclass
class Publisher:
    """The parts of a coordinator that publish a table and delete its replaced files."""

    manifests: ManifestPublisher
    logs: PublishedLogs
    faults: TableFaults
    collector: GarbageCollector


@dataclass
class PublishedSite:
    """A table, a store whose time stands still, and one coordinator; others can be added."""

    clock: ManualClock
    store: MemoryStore
    table: Table
    rows: dict[str, list[Row]]
    """Rows of each file of the table: the model."""
    here: Publisher
    attempts: int = 0

    @property
    def location(self) -> Location:
        """The location of the table."""
        return open_location(self.table.location)

    @property
    def model(self) -> list[Row]:
        """The rows of the table, in order."""
        return sorted(row for rows in self.rows.values() for row in rows)

    @property
    def log(self) -> OwnLog:
        """The newest version of the log."""
        found = own_log(self.location)
        assert found is not None
        return found

    def coordinator(self, scope: str = "") -> Publisher:
        """Return the parts of a further coordinator, which remember nothing."""
        faults = TableFaults(silent)
        logs = PublishedLogs(lambda _uri: {}, CountedIds(scope), GRACE_S, faults)
        manifests = ManifestPublisher(self.store, CountedIds(scope), GRACE_S, silent, logs=logs)
        rules = GarbageRules(grace_s=GRACE_S, clock_skew_max_s=1.0)
        collector = GarbageCollector(
            self.store,
            ArrowStorage(self.clock),
            rules,
            silent,
            manifests,
            clock=self.clock,
            faults=faults,
        )
        return Publisher(manifests, logs, faults, collector)

    def write(self, path: str, *ids: int) -> DataFile:
        """Write a file; return its entry."""
        location, partition = self.location, partition_of_path(self.table, path)
        if location.is_local:
            folder = location.full(path).rpartition("/")[0]
            location.filesystem.create_dir(folder, recursive=True)
        with location.filesystem.open_output_stream(location.full(path)) as sink:
            pq.write_table(row_file([*ids]), sink)
        day = int(partition.text.partition("=")[2])
        self.rows[path] = [(number, day) for number in ids]
        facts = inspect_file(location, path, RowRules.of(self.table))
        return facts.data_file(added_at_s=self.clock.now_s())

    async def add(self, path: str, *ids: int) -> None:
        """Append rows in a file."""
        partition = partition_of_path(self.table, path)
        change = AddFiles(
            table=self.table.id,
            call=call_id(self.clock),
            files={partition.end: (self.write(path, *ids),)},
            partitions={partition.end: partition.text},
        )
        assert isinstance(await self.store.apply(change), Applied)

    async def compact(self, day: int, *inputs: str) -> str:
        """Replace files of a partition by one; return its path."""
        self.attempts += 1
        attempt = f"att-{self.attempts}"
        path = f"_neve/last/day={day}/job-1-{attempt}-0.parquet"
        tablet = TabletId(self.table.id, partition_of_path(self.table, path).end)
        reserve = ReserveFiles(
            tablet=tablet, attempt=attempt, job="job-1", kind=Kind.SYSTEM, inputs=inputs,
            output_prefix=path.removesuffix("-0.parquet"), outputs_max=1, group="default",
            compactor="c1",
        )  # fmt: skip
        assert isinstance(await self.store.apply(reserve), Applied)
        ids = [number for name in inputs for number, _ in self.rows.pop(name)]
        ids = sorted({*ids} if self.table.key else ids)
        output = replace(self.write(path, *ids), clean=bool(self.table.key))
        counts = RowCounts(rows_in=len(ids), rows_out=len(ids))
        commit = CommitAttempt(tablet=tablet, attempt=attempt, outputs=(output,), counts=counts)
        assert isinstance(await self.store.apply(commit), Applied)
        return path

    async def change(self, **settings: Any) -> None:
        """Change settings of the table."""
        wanted = replace(self.table.settings, **settings)
        await self._changed(
            ChangeTable(
                table=self.table.id, settings_version=self.table.settings_version, settings=wanted
            )
        )

    async def widen(self, *columns: Column) -> None:
        """Give the table other columns."""
        await self._changed(
            ChangeTable(
                table=self.table.id,
                settings_version=self.table.settings_version,
                settings=self.table.settings,
                schema=columns,
            )
        )

    async def _changed(self, change: ChangeTable) -> None:
        assert isinstance(await self.store.apply(change), Applied)
        found = await self.store.table(self.table.id)
        assert found is not None
        self.table = found

    async def publish(self, by: Publisher | None = None) -> bool:
        """Let a coordinator look at the table when its next manifest may be due."""
        self.clock.advance(60)
        return await (by or self.here).manifests.look(self.table)


async def published_site(
    uri: str,
    table_id: str = "t1",
    former_ids: tuple[str, ...] = (),
    *,
    key: tuple[str, ...] = (),
    publish: str = "delta",
) -> PublishedSite:
    """Return an empty table in a location, which publishes its log."""
    clock = ManualClock(1_000_000.0)
    store = MemoryStore(clock)
    table = Table(
        id=table_id,
        former_ids=former_ids,
        name="events",
        location=uri,
        schema=COLUMNS,
        key=key,
        version_column="at" if key else None,
        partition_by=("day",),
        time_column="at",
        settings=TableSettings(manifest_interval_s=60.0, publish=publish),
    )
    write_owner(open_location(uri), LocationOwner(await store.store_id(), table.id))
    assert isinstance(await store.apply(CreateTable(table=table)), Applied)
    site = PublishedSite(clock, store, table, {}, None)  # type: ignore[arg-type]
    site.here = site.coordinator()
    return site


def read_by_deltalake(uri: str, options: Mapping[str, str] | None = None) -> list[Row]:
    """Return the rows that deltalake reads."""
    table = DeltaTable(uri, storage_options=dict(options or {}))
    query = QueryBuilder().register("t", table).execute("select id, day from t")
    columns = pa.table(query.read_all()).to_pydict()
    return sorted(zip(columns["id"], columns["day"], strict=True))


def read_as_iceberg(uri: str, options: Mapping[str, str] | None = None) -> list[Row]:
    """Return the rows that PyIceberg, DuckDB and Polars read alike from Iceberg metadata.

    Args:
        uri: The location, whose hint names the metadata, or a metadata file.
        options: Options of the storage, as deltalake names them.
    """
    table = StaticTable.from_metadata(uri, _pyiceberg_options(options or {}))
    columns = table.scan(selected_fields=("id", "day")).to_arrow().to_pydict()
    rows = sorted(zip(columns["id"], columns["day"], strict=True))
    by_duckdb = independent_reader().iceberg_rows(uri, "id", "day", options=options)
    assert sorted(by_duckdb.elements()) == rows
    with warnings.catch_warnings():  # Polars asks for a package for faster plans.
        warnings.simplefilter("ignore", pl.exceptions.PerformanceWarning)
        frame = pl.scan_iceberg(table).select("id", "day").collect()
    assert sorted(frame.rows()) == rows
    return rows


def _pyiceberg_options(options: Mapping[str, str]) -> dict[str, str]:
    names = {
        "aws_endpoint": "s3.endpoint",
        "aws_access_key_id": "s3.access-key-id",
        "aws_secret_access_key": "s3.secret-access-key",
        "aws_region": "s3.region",
    }
    return {names[name]: value for name, value in options.items() if name in names}


def read_by_polars(uri: str, options: Mapping[str, str] | None = None) -> list[Row]:
    """Return the rows that Polars reads."""
    frame = pl.scan_delta(uri, storage_options=dict(options or {})).select("id", "day").collect()
    return sorted(frame.rows())
