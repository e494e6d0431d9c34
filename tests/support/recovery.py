"""A table with real files over a real Redis, for tests of recovery: made, compacted, damaged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from common.metadata.changes import (
    AddFiles,
    CommitAttempt,
    CreateTable,
    ReserveFiles,
)
from common.metadata.keyspace import Command, Reply
from common.metadata.redis.keyspace import RedisKeyspace
from common.model.file import DataFile
from common.model.job import Job, Kind, job_id
from common.model.table import Table, TableSettings
from common.model.tablet import PLUS_INFINITY, TabletId
from common.parquet.file_inspection import inspect_file
from common.parquet.location import Location, open_location
from common.parquet.service_files import LocationOwner, write_description, write_owner
from common.rows.rules import RowRules
from common.rows.schema import columns_of
from common.runtime import RandomIds, SystemClock, call_id
from common.settings import StoreSettings
from common.storage_threads import StorageThreads
from common.wire import Assignment
from compactor.rewrite.attempt import _outputs
from compactor.rewrite.general_merge import rewrite_bag, rewrite_in_memory
from compactor.rewrite.plan.rewrite_plan import make_plan
from compactor.rewrite.verify import verify
from coordinator.core.assignment import compose_assignment, output_prefix
from neve.gateway.table_locations import Locations
from neve.gateway.tables import GatewayAdmission
from neve.recovery.scope import TableScope
from tests.support.living_folder import files_below
from tests.support.redis_server import RedisServer
from tests.support.store_harness import Harness, applied

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("name", pa.string())])


def rows(*ids: int, v: int = 1) -> pa.Table:
    return pa.table({"id": ids, "v": [v] * len(ids), "name": [f"n{i}" for i in ids]}, SCHEMA)


def key(number: int) -> bytes:
    """Return the encoded key of an id."""
    return b"\x01" + (number + (1 << 63)).to_bytes(8, "big")


@dataclass
class Ground:
    """A store and folders below one folder; everything that recovery works on."""

    harness: Harness
    folder: Path
    threads: StorageThreads = field(default_factory=lambda: StorageThreads(4))
    ids: RandomIds = field(default_factory=RandomIds)

    @property
    def store(self) -> Any:
        return self.harness.store

    @property
    def door(self) -> GatewayAdmission:
        """Lets tables in anywhere on this machine."""
        return GatewayAdmission(Locations(("/",)), self.threads, ("default",))

    async def table(
        self, name: str = "events", *, splits: tuple[int, ...] = (100,), **fields: Any
    ) -> Table:
        """Create a table whose location is claimed and described."""
        plain: dict[str, Any] = {
            "id": self.ids.next("t"),
            "name": name,
            "location": (self.folder / name).as_uri(),
            "schema": columns_of(SCHEMA),
            "key": ("id",),
            "version_column": "v",
            "settings": TableSettings(ratio=5.0),
        }
        table = Table(**plain | fields)
        location = open_location(table.location)
        write_owner(location, LocationOwner(await self.store.store_id()))
        ends = tuple(key(number) for number in splits)
        applied(await self.store.apply(CreateTable(table=table, splits=ends)))
        write_description(location, table)
        return table

    def write(self, table: Table, path: str, content: pa.Table) -> DataFile:
        """Write a file into a table's location and return what an add says of it."""
        full = self.place(table, path)
        full.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(content, full)
        facts = inspect_file(self.location(table), path, RowRules.of(table))
        return facts.data_file(added_at_s=1000.0)

    async def add(self, table: Table, path: str, *ids: int, v: int = 1) -> TabletId:
        """Write a file and add it to the tablet of its first key."""
        file = self.write(table, path, rows(*ids, v=v))
        end = PLUS_INFINITY
        if table.key:
            found = await self.store.locate(table.id, file.key_min)
            assert found is not None
            end = found.end
        change = AddFiles(table=table.id, call=call_id(), files={end: (file,)})
        applied(await self.store.apply(change))
        return TabletId(table.id, end)

    async def reserve(self, table: Table, tablet: TabletId, *inputs: str) -> Assignment:
        """Reserve files as a coordinator would."""
        paths = tuple(sorted(inputs))
        job = Job(
            id=job_id(tablet, Kind.SYSTEM, None, paths),
            tablet=tablet,
            table_name=table.name,
            kind=Kind.SYSTEM,
            inputs=paths,
            input_bytes=1,
            group="default",
            priority=1,
            reason="a test wants it",
        )
        attempt = self.ids.next("att")
        change = ReserveFiles(
            tablet=tablet,
            attempt=attempt,
            job=job.id,
            kind=job.kind,
            inputs=paths,
            output_prefix=output_prefix(job, attempt, None),
            outputs_max=1,
            group="default",
            compactor="c",
        )
        done = applied(await self.store.apply(change))
        assert done.reservation is not None
        assert done.tablet is not None
        return compose_assignment(job, done.reservation, table, done.tablet, done.now_s)

    def rewrite(self, assignment: Assignment) -> CommitAttempt:
        """Write the outputs of an attempt as a compactor would; return its commit."""
        plan = make_plan(assignment)
        table = assignment.table
        result = rewrite_in_memory(plan) if table.key else rewrite_bag(plan)
        facts = verify(plan, result, lambda: False)
        return CommitAttempt(
            tablet=assignment.job.tablet,
            attempt=assignment.reservation.attempt,
            outputs=_outputs(assignment, result, facts),
            counts=result.counts,
            dropped=result.dropped,
        )

    async def compact(self, table: Table, tablet: TabletId, *inputs: str) -> list[str]:
        """Replace files by one; return the paths of what came out."""
        change = self.rewrite(await self.reserve(table, tablet, *inputs))
        applied(await self.store.apply(change))
        return [file.path for file in change.outputs]

    def scope(self, table: Table, *, grace_s: float = -60.0) -> TableScope:
        """Return the table as tools see it; nothing is too young unless told so."""
        return TableScope(store=self.store, table=table, threads=self.threads, grace_s=grace_s)

    def location(self, table: Table) -> Location:
        return open_location(table.location)

    def place(self, table: Table, path: str) -> Path:
        """Return where a file of a table lies."""
        return self.folder / table.location.rpartition("/")[2] / path

    def rows_of(self, table: Table, paths: list[str]) -> list[tuple[int, int]]:
        """Return (id, v) of all rows of files, sorted."""
        found = [pq.read_table(self.place(table, path), columns=["id", "v"]) for path in paths]
        pairs = pa.concat_tables(found).to_pylist() if found else []
        return sorted((row["id"], row["v"]) for row in pairs)

    async def paths(self, table: Table) -> list[str]:
        """Return every path that the tablets of a table hold."""
        tablets = await self.store.read_range(table.id)
        return sorted(path for tablet in tablets for path in tablet.files)

    async def dump(self) -> dict[str, Reply]:
        """Return the whole keyspace, to see whether anything was written."""
        found: dict[str, Reply] = {}
        for raw in await self.harness.read(("KEYS", "*")):
            name = raw.decode()
            kind = (await self.harness.read(("TYPE", name))).decode()
            found[name] = await self.harness.read(READS[kind](name))
        return found

    def files(self) -> dict[str, bytes]:
        """Return every file below the folder."""
        return {str(path): path.read_bytes() for path in files_below(self.folder)}


READS: dict[str, Any] = {
    "string": lambda name: ("GET", name),
    "hash": lambda name: ("HGETALL", name),
    "set": lambda name: ("SMEMBERS", name),
    "zset": lambda name: ("ZRANGE", name, 0, -1),
    "stream": lambda name: ("XRANGE", name, "-", "+"),
}


@asynccontextmanager
async def ground_on(redis: RedisServer, folder: Path) -> AsyncIterator[Ground]:
    """Yield an empty store at a Redis, for a user of Névé's rights."""
    keyspace = RedisKeyspace(StoreSettings(url=redis.user_url, timeout_s=5.0))
    admin = RedisKeyspace(StoreSettings(url=redis.url, timeout_s=5.0))
    await admin.fetch([[("FLUSHALL",)]])
    made = Ground(Harness("redis", keyspace, SystemClock(), admin=admin), folder)
    try:
        yield made
    finally:
        made.threads.close()
        await keyspace.close()
        await admin.close()


async def plant(ground: Ground, *effects: Command) -> None:
    """Write keys past every rule."""
    await ground.harness.write(*effects)


Moment = dict[str, tuple[bytes, int]]


async def moment(ground: Ground) -> Moment:
    """Return all of the store as it is, as a dump of Redis would have it."""
    found: Moment = {}
    for raw in await ground.harness.read(("KEYS", "*")):
        name = raw.decode()
        life = await ground.harness.read(("PTTL", name))
        found[name] = (await ground.harness.read(("DUMP", name)), max(0, life))
    return found


async def go_back(ground: Ground, to: Moment) -> None:
    """Let the store be what it was: a fail-over or a restored dump has lost the rest."""
    await ground.harness.read(("FLUSHALL",))
    for name, (payload, life) in to.items():
        await ground.harness.read(("RESTORE", name, life, payload))
