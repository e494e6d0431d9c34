"""Where a simulated recovery happens: one store, one location, processes that die at any write.

Everything is the product's own: gateways, collector, manifests, kernels, recovery. Only time, the
store's memory and the moments of deaths are simulated.
"""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from pyarrow import fs

from common.errors import CompactionError
from common.metadata.changes import Applied, ChangeTable, CommitAttempt, ReserveFiles
from common.metadata.executor import RetryLimits
from common.metadata.keyspace import Command, LinkLostError, Reply, StreamEntry
from common.metadata.store import TabletStore
from common.metadata.store_values import StoreHealth
from common.model.job import Job, Kind, job_id
from common.model.table import Table, TableState
from common.model.tablet import Tablet
from common.settings import CoordinatorSettings, GatewaySettings, Settings
from coordinator.context import Generations, ShellContext
from coordinator.core.assignment import compose_assignment, output_prefix
from coordinator.storage.garbage_collector import finish_drops
from coordinator.wiring import _collecting
from neve.gateway.rows.scan import ScanOptions, open_scan
from neve.gateway.tables import GatewayAdmission
from neve.recovery.backup import BackupOptions, RestoreOptions, backup, restore
from neve.recovery.scope import RecoveryPorts
from neve.recovery.table_creation import CreatedTable
from tests.support.memory_store import MemoryKeyspace, MemorySession
from tests.support.predictable import CountedIds
from tests.support.sim_lake_parts import Clockwork, LakeGateway, rewritten
from tests.support.sim_loop import SimLoop, World
from tests.support.sim_options import SERVICE
from tests.support.sim_store import STORE_ID

HOP_MAX_S = 0.005
GRACE_S, RETIRED_S = 4.0, 600.0
VERB_MAX_S = 900.0
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


class End(Enum):
    """How a verb is broken off."""

    DIES = "its process dies before a write"
    DIES_AFTER = "its process dies after a write"
    LEFT = "its caller leaves"
    AWAY = "the store goes away"


@dataclass
class Doom:
    """What is going to happen to a process, and when."""

    end: End
    writes: int
    """So many writes are left until then."""
    happened: bool = False


class SiteKeyspace:
    """A process's connections to the store; `common.metadata.keyspace.Keyspace`."""

    def __init__(self, site: RecoverySite, process: SimLoop) -> None:
        self.site = site
        self.process = process

    def session(self) -> SiteSession:
        return SiteSession(self)

    async def fetch(self, batches: Sequence[Sequence[Command]]) -> list[list[Reply]]:
        await self.site.hop()
        self.check()
        return [self.site.memory.run(batch) for batch in batches]

    async def wait_entries(
        self, after: Mapping[str, str], count: int, block_s: float
    ) -> Mapping[str, Sequence[StreamEntry]]:
        return await self.site.memory.wait_entries(after, count, 0.0)

    async def health(self) -> StoreHealth:
        return StoreHealth()

    async def keep_reserve(self) -> None:
        return

    async def close(self) -> None:
        return

    def check(self) -> None:
        """Break the connection if the store has gone away."""
        doom = self.site.dooms.get(self.process)
        if doom is not None and doom.happened and doom.end is End.AWAY:
            raise LinkLostError("simulated: the store is away")


class SiteSession:
    """One connection; `common.metadata.keyspace.KeyspaceSession`."""

    def __init__(self, keyspace: SiteKeyspace) -> None:
        self._keyspace = keyspace
        self._inner = MemorySession(keyspace.site.memory)

    async def __aenter__(self) -> SiteSession:
        return self

    async def __aexit__(self, *_error: object) -> None:
        return

    async def look(self, watch: Sequence[str], reads: Sequence[Command]) -> list[Reply]:
        await self._keyspace.site.hop()
        self._keyspace.check()
        return self._inner.look_now(watch, reads)

    async def execute(self, effects: Sequence[Command], *, durable: bool = False) -> bool:
        site, process = self._keyspace.site, self._keyspace.process
        await site.hop()
        self._keyspace.check()
        end = site.end_at_write(process)
        if end is End.DIES:
            await site.die(process)
        done = self._inner.execute_now(effects)
        if end is End.DIES_AFTER:
            await site.die(process)
        if end is End.LEFT:
            site.leave(process)
        if end is End.AWAY:
            raise LinkLostError("simulated: the store goes away", sent=True)
        await site.hop()
        return done


class SiteDisk(fs.LocalFileSystem):  # type: ignore[misc]  # Arrow has no types
    """A disk that knows who deletes: a collector may stand still right before it does."""

    def __init__(self, site: RecoverySite) -> None:
        super().__init__()
        self._site = site

    def delete_file(self, path: str) -> None:
        if not self._site.delays_deletion(path):
            super().delete_file(path)


class SiteGateway(LakeGateway):
    """A gateway, with what is asked of it here."""

    async def scan(self, name: str) -> list[int]:  # type: ignore[override]  # plain rows, at once
        """Return the ids of all rows."""
        table = await self._services.table(name)
        found: list[int] = []
        async with open_scan(self._services, table, ScanOptions(columns=("id",))) as pieces:
            async for piece in pieces:
                found += piece.column("id").to_pylist()
        return found

    async def backup(self, name: str) -> bytes:
        """Return an archive of a table."""
        services, lines = self._services, list[bytes]()
        scopes = [await self._scope(name)]
        admission = GatewayAdmission.of(services)
        async for line in backup(scopes, services.ids, admission, BackupOptions()):
            lines.append(line)
        return b"".join(lines)

    async def restore(self, archive: bytes) -> CreatedTable:
        """Make the table of an archive again."""
        services = self._services
        restorer = RecoveryPorts(
            store=services.store,
            threads=services.footers,
            ids=services.ids,
            admission=GatewayAdmission.of(services),
            on_progress=partial(self._world.tell, self.name),
        )
        (made,) = await restore(restorer, io.BytesIO(archive), RestoreOptions(adopt=True))
        return made

    async def resume(self, name: str) -> None:
        """Do what the route does."""
        table = await self._services.table(name)
        change = ChangeTable(
            table=table.id, settings_version=table.settings_version, state=TableState.LIVE
        )
        await self._services.store.apply(change)


class Upkeep:
    """A coordinator, as far as it looks after files: its rounds are run one by one."""

    def __init__(self, site: RecoverySite, name: str) -> None:
        self.process = site.world.process(name)
        self._store = site.store(self.process)
        self._log = partial(site.world.tell, name)
        self._generations = Generations(self._store, self._log)
        context = ShellContext(
            store=self._store,
            clock=site.world,
            ids=CountedIds(f"{name}-"),
            log=self._log,
            coordinator=name,
            generations=self._generations,
        )
        self._collector, self._manifests = _collecting(site.settings, context)

    async def round(self) -> None:
        """Count up, publish, collect."""
        tables = (await self._store.listed_tables()).tables
        for table in tables:
            if table.state is TableState.FILLING:
                continue  # The scanner passes it by.
            if table.state is not TableState.GOING:
                await self._generations.count_up(table)
                if not self._generations.may_change(table.id):
                    continue
                await self._manifests.look(table)
            await self._collector.collect(table)
        await finish_drops(self._store, tables, self._log)


@dataclass
class RecoverySite:
    """The store, the location, and who works there."""

    seed: int
    folder: Path
    world: World = field(init=False)
    memory: MemoryKeyspace = field(init=False)
    settings: Settings = field(init=False)
    dooms: dict[SimLoop, Doom] = field(default_factory=dict)
    tasks: dict[SimLoop, Any] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    losses: int = 0
    """How often the store was lost."""
    ghost_share: float = 0.0
    """Of deletions, before which their process stands still."""
    undescribed: bool = False
    """Whether such a deletion took a description that was written since."""

    def __post_init__(self) -> None:
        self.world = World(self.seed)
        self.memory = MemoryKeyspace(self.world)
        own = CoordinatorSettings(
            garbage_grace_s=GRACE_S,
            collect_interval_s=1.0,
            generation_interval_s=1.0,
            clock_skew_max_s=0.5,
            retired_names_s=RETIRED_S,
        )
        gateway = GatewaySettings(locations=(str(self.folder),))
        self.settings = Settings(coordinator=own, gateway=gateway, services={"default": SERVICE})
        clockwork = Clockwork(self.world, self.folder)
        self.world.after_work = clockwork.look
        self._storage = self.world.process("storage")
        self._births = 0
        self._gateway: SiteGateway | None = None
        self._upkeep: Upkeep | None = None

    # ---- Parts.

    def store(self, process: SimLoop) -> TabletStore:
        """Return a client of the store for a process."""
        return TabletStore(
            SiteKeyspace(self, process),
            patience=RetryLimits(tries_max=4),
            sleep=asyncio.sleep,
            chance=self.world.random,
            new_store_id=lambda: STORE_ID,
        )

    @property
    def gateway(self) -> SiteGateway:
        """One that lives."""
        if self._gateway is None or not self._gateway.process.alive:
            made: list[SiteGateway] = []

            def store_of(_fetched: Callable[[], None]) -> TabletStore:
                return self.store(self.world._processes[-1])

            truth: Any = SimpleNamespace(seen=self.seen)
            name = self._name("gate")
            made.append(SiteGateway(name, self.world, store_of, self.settings, truth))
            self._gateway = made[0]
        return self._gateway

    @property
    def upkeep(self) -> Upkeep:
        """A coordinator that lives and moves."""
        found = self._upkeep
        still = found is not None and found.process.frozen_until_s > self.world.now_s()
        if found is None or not found.process.alive or still or self.world.chance(0.1):
            self._upkeep = found = Upkeep(self, self._name("coord"))
        return found

    def _name(self, what: str) -> str:
        self._births += 1
        return f"{what}{self._births}"

    # ---- Deaths.

    async def hop(self) -> None:
        """Wait for the network."""
        await asyncio.sleep(self.world.random() * HOP_MAX_S)

    def end_at_write(self, process: SimLoop) -> End | None:
        """Return what happens to a process at a write."""
        doom = self.dooms.get(process)
        if doom is None or doom.happened:
            return None
        doom.writes -= 1
        if doom.writes >= 0:
            return None
        doom.happened = True
        self.seen[f"verbs broken off: {doom.end.value}"] += 1
        self.world.tell(process.name, doom.end.value)
        return doom.end

    async def die(self, process: SimLoop) -> None:
        """Let a process run no further."""
        process.alive = False
        await process.create_future()

    def leave(self, process: SimLoop) -> None:
        """Cancel what a process is asked to do."""
        if (task := self.tasks.get(process)) is not None:
            task.cancel()

    def delays_deletion(self, path: str) -> bool:
        """Return whether a deletion happens later: its process stands still right before it."""
        process = self.world._running
        if process is None or not process.name.startswith("coord"):
            return False
        if not self.world.chance(self.ghost_share):
            return False
        later_s = self.world.dice.choice((5.0, 30.0, 120.0, 0.9 * RETIRED_S))
        self.seen["collectors that stood still before a deletion"] += 1
        self.world.tell(process.name, "stands still", path=path, seconds=later_s)
        process.frozen_until_s = self.world.now_s() + later_s
        self._storage.call_later(later_s, partial(self._really_delete, path, self.losses))
        return True

    def _really_delete(self, path: str, losses: int) -> None:
        if losses < self.losses:
            return  # Marks of names are gone with the store, and so are all who worked with it.
        self.undescribed |= path.endswith("/_neve/table.json") and Path(path).exists()
        Path(path).unlink(missing_ok=True)
        self.world.tell("storage", "deletes late", path=path)

    # ---- Work.

    def do(self, *works: tuple[SimLoop, Callable[[], Awaitable[Any]], Doom | None]) -> list[Any]:
        """Do things at the same time; return what each came to: an error as a value; None: it died.

        Args:
            works: By which process, what, and how it is broken off.
        """
        tasks = []
        for process, work, doom in works:
            self.dooms.pop(process, None)
            if doom is not None:
                self.dooms[process] = doom
            task = process.start(_answered(work))
            self.tasks[process] = task
            tasks.append((process, task))
        until_s = self.world.now_s() + VERB_MAX_S
        while any(self._goes_on(process) and not task.done() for process, task in tasks):
            assert self.world.now_s() < until_s, "a verb has no end"
            self.world.run_until(self.world.now_s() + 0.25)
        for process, _ in tasks:
            self.dooms.pop(process, None)
        return [t.result() if t.done() and not t.cancelled() else None for _, t in tasks]

    def _goes_on(self, process: SimLoop) -> bool:
        return process.alive and process.frozen_until_s <= self.world.now_s()

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self.world.run_until(self.world.now_s() + seconds)

    async def compact(self, store: TabletStore, table: Table) -> None:
        """Have one job done in each tablet that has two files."""
        for tablet in await store.read_range(table.id):
            if len(tablet.files) > 1:
                await self._compact_tablet(store, table, tablet)

    async def _compact_tablet(self, store: TabletStore, table: Table, tablet: Tablet) -> None:
        paths = tuple(sorted(tablet.files))
        job = Job(
            id=job_id(tablet.id, Kind.SYSTEM, None, paths),
            tablet=tablet.id,
            table_name=table.name,
            kind=Kind.SYSTEM,
            inputs=paths,
            input_bytes=1,
            group="default",
            priority=1,
            reason="it is time",
        )
        attempt = self._name(f"att{self.seed}-")
        change = ReserveFiles(
            tablet=tablet.id,
            attempt=attempt,
            job=job.id,
            kind=job.kind,
            inputs=paths,
            output_prefix=output_prefix(job, attempt, None),
            outputs_max=1,
            group="default",
            compactor="comp",
        )
        done = await store.apply(change)
        if not isinstance(done, Applied) or done.reservation is None or done.tablet is None:
            return
        assignment = compose_assignment(job, done.reservation, table, done.tablet, done.now_s)
        result = rewritten(assignment)
        self.world.after_work()
        await asyncio.sleep(self.world.random())
        commit = CommitAttempt(
            tablet=tablet.id,
            attempt=attempt,
            outputs=result.outputs,
            counts=result.counts,
            dropped=result.dropped,
        )
        if isinstance(await store.apply(commit), Applied):
            self.seen["jobs committed"] += 1


async def _answered(work: Callable[[], Awaitable[Any]]) -> Any:
    """Return what a piece of work came to; an error of the product is a value."""
    try:
        return await work()
    except CompactionError as error:
        return error
