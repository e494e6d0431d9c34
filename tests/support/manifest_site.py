"""A partitioned table in a folder, and who publishes its manifest: at a time that stands still."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from common.metadata.changes import (
    AddFiles,
    Applied,
    ChangeTable,
    CommitAttempt,
    CreateTable,
    ReserveFiles,
)
from common.model.job import Kind
from common.model.outcome import RowCounts
from common.model.table import Column, Table, TableSettings
from common.model.tablet import TabletId
from common.parquet.file_inspection import inspect_file
from common.parquet.location import open_location
from common.parquet.service_files import LocationOwner, write_owner
from common.rows.key_encoding import partition_of_path
from common.rows.rules import RowRules
from common.runtime import call_id
from coordinator.storage.manifests import ManifestPublisher
from tests.support.memory_store import MemoryStore
from tests.support.predictable import CountedIds, ManualClock

GRACE_S = 100.0
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.int32())])


def silent(_event: str, **_fields: object) -> None:
    """Say nothing."""


@dataclass
class Site:
    """A partitioned table in a folder, a store whose time stands still, and a publisher."""

    folder: Path
    clock: ManualClock
    store: MemoryStore
    table: Table
    manifests: ManifestPublisher
    said: list[tuple[str, dict[str, Any]]]

    @property
    def pointer(self) -> dict[str, Any]:
        found = json.loads((self.folder / "_neve/manifest/latest.json").read_text("utf-8"))
        assert isinstance(found, dict)
        return found

    @property
    def folders(self) -> list[str]:
        return sorted(p.name for p in (self.folder / "_neve/manifest").iterdir() if p.is_dir())

    def part_files(self) -> list[str]:
        return [part["file"] for part in self.pointer["parts"]]

    async def add(self, path: str, *ids: int, whole: bool = False) -> None:
        rows = pa.table({"id": ids}, schema=SCHEMA.remove(1))
        partition = partition_of_path(self.table, path)
        if whole:
            rows = rows.append_column("day", pa.array([int(path[4:6])] * len(ids), pa.int32()))
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, self.folder / path)
        facts = inspect_file(open_location(self.table.location), path, RowRules.of(self.table))
        change = AddFiles(
            table=self.table.id,
            call=call_id(self.clock),
            files={partition.end: (facts.data_file(added_at_s=self.clock.now_s()),)},
            partitions={partition.end: partition.text},
        )
        assert isinstance(await self.store.apply(change), Applied)

    async def changed(self, **settings: Any) -> Table:
        change = ChangeTable(
            table=self.table.id,
            settings_version=self.table.settings_version,
            settings=replace(self.table.settings, **settings),
        )
        assert isinstance(await self.store.apply(change), Applied)
        found = await self.store.table(self.table.id)
        assert found is not None
        self.table = found
        return found


async def a_site(folder: Path) -> Site:
    folder.mkdir()
    clock, said = ManualClock(1_000_000.0), list[tuple[str, dict[str, Any]]]()
    store = MemoryStore(clock)
    table = Table(
        id="t1",
        name="events",
        location=folder.as_uri(),
        schema=(Column("id", "int64"), Column("day", "int32")),
        partition_by=("day",),
        settings=TableSettings(manifest_interval_s=60.0),
    )
    write_owner(open_location(table.location), LocationOwner(await store.store_id()))
    assert isinstance(await store.apply(CreateTable(table=table)), Applied)
    manifests = ManifestPublisher(
        store, CountedIds(), GRACE_S, lambda event, **fields: said.append((event, fields))
    )
    return Site(folder, clock, store, table, manifests, said)


def story(folder: Path, tell: Callable[[Site], Any]) -> None:
    async def run() -> None:
        await tell(await a_site(folder / "my events"))

    asyncio.run(run())


async def replaced(site: Site, path: str) -> None:
    """Put a file into the garbage, as a commit without output would."""
    tablet = TabletId(site.table.id, partition_of_path(site.table, path).end)
    reserve = ReserveFiles(
        tablet=tablet, attempt="att-1", job="job-1", kind=Kind.SYSTEM, inputs=(path,),
        output_prefix="_neve/x/job-1-att-1", outputs_max=1, group="default", compactor="c1",
    )  # fmt: skip
    assert isinstance(await site.store.apply(reserve), Applied)
    counts = RowCounts(rows_in=1, rows_out=0)
    commit = CommitAttempt(tablet=tablet, attempt="att-1", outputs=(), counts=counts)
    assert isinstance(await site.store.apply(commit), Applied)
