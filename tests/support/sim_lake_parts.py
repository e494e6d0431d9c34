"""What runs in a simulated lake: the production's parts over files that are really there."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from common.errors import RefusedError
from common.metadata.changes import Refused
from common.metadata.store import TabletStore
from common.model.outcome import RefusalCode
from common.model.request import RequestState
from common.model.table import Table
from common.parquet.file_inspection import FileFacts
from common.wire import Assignment
from compactor.core import RewriteResult
from compactor.rewrite.attempt import _delete, _outputs
from compactor.rewrite.general_merge import rewrite_bag, rewrite_in_memory
from compactor.rewrite.plan.rewrite_plan import make_plan
from compactor.rewrite.verify import verify
from compactor.service import TableStorage
from coordinator.wiring import storage_loops
from neve import api
from neve.gateway.problems import require_applied
from neve.gateway.requests import stored_request, submit_request
from neve.gateway.services import check_writable
from neve.gateway.table_files import StoredFiles
from neve.gateway.tables import GatewayAdmission, create_table, drop_named
from neve.recovery.gc import GcResult, collect_orphans
from neve.recovery.rebuild.table_rebuild import (
    RebuildOptions,
    RebuildResult,
    rebuild,
)
from neve.recovery.repair import (
    RepairOptions,
    RepairReport,
    check_and_repair,
)
from neve.recovery.scope import RecoveryPorts, TableScope
from tests.support.buffers import buffer_rows
from tests.support.sim_compactor import SimEngine, Traits
from tests.support.sim_coordinator import SimCoordinator
from tests.support.sim_gateway import SimGateway
from tests.support.sim_lake_rows import SCHEMA, Row
from tests.support.sim_loop import World
from tests.support.sim_truth import Truth

Loops = list[Coroutine[Any, Any, None]]
BUFFER_TRIES_MAX = 4
MOVED = frozenset({RefusalCode.BOUNDS, RefusalCode.TABLET, RefusalCode.SCHEMA})
"""Tablets of rows have changed since the rows were routed."""


class Clockwork:
    """Gives files and folders the time of the world, whenever somebody has written."""

    def __init__(self, world: World, folder: Path) -> None:
        self._world = world
        self._folders: dict[str, int] = {str(folder): 0}
        self._files: dict[str, int] = {}

    def look(self) -> None:
        """Look at folders that have changed; files that have been written over are in those."""
        todo = [*self._folders]
        while todo:
            self._look_at(todo.pop(), todo)

    def _look_at(self, path: str, todo: list[str]) -> None:
        try:
            if os.stat(path).st_mtime_ns == self._folders.get(path):
                return
            entries = [*os.scandir(path)]
        except FileNotFoundError:
            self._folders.pop(path, None)
            return
        now_ns = int(self._world.now_s() * 1e9)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.path not in self._folders:
                    self._folders[entry.path] = 0
                    todo.append(entry.path)
            elif entry.stat().st_mtime_ns != self._files.get(entry.path):
                os.utime(entry.path, ns=(now_ns, now_ns))
                self._files[entry.path] = now_ns
        os.utime(path, ns=(now_ns, now_ns))
        self._folders[path] = now_ns


class LakeTruth(Truth):
    """Holds keys against each other; rows are held against a ledger, by whoever reads them."""

    ranged = True

    def _check_rows(self, before: Any, after: Any) -> None:
        """Nothing here knows rows."""

    def _check_done(self, tablet: Any, before: Any, view: Any) -> None:
        """Nor this."""

    def _note_selection(self, tablet: Any, before: Any, view: Any) -> None:
        """Nor this."""

    def _check_tablet(self, tablet: Any, before: Any, view: Any) -> None:
        if self.ranged:
            super()._check_tablet(tablet, before, view)

    def _check_bounds(self, before: Any, after: Any) -> None:
        if self.ranged:
            super()._check_bounds(before, after)

    def _check_tiles(self, table: str) -> None:
        if self.ranged:
            super()._check_tiles(table)


class LakeCoordinator(SimCoordinator):
    """Looks after files and manifests as the real one does."""

    def _upkeep(self) -> Loops:
        assert self.parts is not None
        return storage_loops(self._settings, self.parts, self._writable)


class LakeEngine(SimEngine):
    """Rewrites files by the kernels of the product, in its own process."""

    def __init__(
        self, holder: str, world: World, truth: Truth, traits: Traits, store: TabletStore
    ) -> None:
        super().__init__(holder, world, truth, traits)
        self._own_files = TableStorage(store.store_id, world)

    async def check_location(self, table: Table, *, again: bool = False) -> None:
        await self._own_files.check_location(table, again=again)

    async def missing(self, table: Table, paths: tuple[str, ...]) -> tuple[str, ...]:
        return await self._own_files.missing(table, paths)

    async def delete(self, table: Table, paths: tuple[str, ...]) -> None:
        await self._own_files.delete(table, paths)

    async def _rewritten(self, assignment: Assignment) -> RewriteResult:
        loop = asyncio.get_running_loop()
        result: RewriteResult = await loop.run_in_executor(None, rewritten, assignment)
        await asyncio.sleep(self._world.random() * 0.5)
        return result


def rewritten(assignment: Assignment) -> RewriteResult:
    """Rewrite and verify as a compactor does without Spark."""
    plan = make_plan(assignment)
    try:
        result = (rewrite_in_memory if assignment.table.key else rewrite_bag)(plan)
        facts = verify(plan, result, lambda: False)
    except BaseException:
        _delete(plan.location, plan.output.paths)
        raise
    return RewriteResult(
        outputs=_outputs(assignment, result, facts), counts=result.counts, dropped=result.dropped
    )


class LakeFiles(StoredFiles):
    """Files in storage; tells when it has written one."""

    def __init__(self, wrote: Callable[[], None]) -> None:
        super().__init__()
        self._wrote = wrote

    def write(self, table: Table, path: str, rows: pa.Table) -> FileFacts:
        facts = super().write(table, path, rows)
        self._wrote()
        return facts


class LakeGateway(SimGateway):
    """A gateway over files that are there, with what operators ask of it."""

    columns = tuple(SCHEMA.names)

    def _files(self) -> StoredFiles:
        return LakeFiles(self._freeze_if_meant)

    def _told(self, piece: pa.Table) -> list[Any]:
        return rows_of(piece)

    async def buffer(self, name: str, rows: Sequence[Row], call: str) -> api.Buffered:
        """Buffer rows as the route does."""
        services, sent = self._services, [row._asdict() for row in rows]
        with self._answering():
            for _ in range(BUFFER_TRIES_MAX):
                table = await services.table(name)
                generation = await check_writable(services, table)
                outcome = await buffer_rows(
                    services.store, self._world, table, sent, call=call, generation=generation
                )
                if isinstance(outcome, Refused) and outcome.code in MOVED:
                    continue
                repeated = require_applied(outcome).repeated
                return api.Buffered(
                    call=call, rows=len(rows), size_bytes=0, durability="", repeated=repeated
                )
            raise RefusedError(f"table {name}: its tablets keep changing")

    async def compact(self, name: str, body: api.NewRequest, call: str) -> str:
        """Store a request as the route does, and return its id."""
        services = self._services
        with self._answering():
            request = await submit_request(services, await services.table(name), body, call)
            return request.id

    async def request(self, name: str, request: str) -> RequestState:
        """Return the state of a request."""
        services = self._services
        with self._answering():
            table = await services.table(name)
            return (await stored_request(services, table, request)).state

    async def create(self, body: api.NewTable) -> Table:
        """Do what the route does."""
        with self._answering():
            made, _ = await create_table(self._services, body)
            return made

    async def drop(self, name: str, delete_files: bool) -> api.Dropped:
        """Do what the route does."""
        with self._answering():
            return await drop_named(self._services, name, delete_files=delete_files)

    async def gc(self, name: str) -> GcResult:
        """Do what the route does: hand what no key knows to the collector."""
        with self._answering():
            return await collect_orphans(await self._scope(name), delete=True)

    async def fsck(self, name: str, options: RepairOptions) -> RepairReport:
        """Do what the route does."""
        with self._answering():
            return await check_and_repair(await self._scope(name), options)

    async def rebuild(self, location: str, options: RebuildOptions) -> RebuildResult:
        """Do what the route does."""
        services = self._services
        with self._answering():
            rebuilder = RecoveryPorts(
                store=services.store,
                threads=services.footers,
                ids=services.ids,
                admission=GatewayAdmission.of(services),
                on_progress=partial(self._world.tell, self.name),
                listing_delay_s=services.settings.gateway.listing_delay_s,
            )
            return await rebuild(rebuilder, location, options)

    async def _scope(self, name: str) -> TableScope:
        services, rules = self._services, self._services.settings.coordinator
        return TableScope(
            store=services.store,
            table=await services.table(name),
            threads=services.footers,
            grace_s=rules.garbage_grace_s + rules.clock_skew_max_s,
        )


def rows_of(table: pa.Table) -> list[Row]:
    """Return the rows of an Arrow table."""
    columns: Sequence[Any] = [table.column(name).to_pylist() for name in SCHEMA.names]
    return [Row(*values) for values in zip(*columns, strict=True)]
