"""A coordinator in a simulation: the production parts, wired as its actor wires them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from common.errors import MetadataError, RewriteError, UnavailableError
from common.metadata.store import TabletStore
from common.model.outcome import AttemptEnd
from common.model.table import Table, TableState
from common.parquet.service_files import LocationOwner
from common.settings import Settings
from common.wire import Assignment, AttemptReport, Heartbeat, HeartbeatReply, TakeRequest
from coordinator.context import Generations, ShellContext, TableFaults
from coordinator.core import events as on
from coordinator.core.maintenance import KindRules, OperationName
from coordinator.core.scans import GarbageRules
from coordinator.maintenance import OwnKind
from coordinator.storage.garbage_collector import (
    TABLES_AT_ONCE,
    GarbageCollector,
    UnfinishedTables,
    finish_drops_forever,
)
from coordinator.store_watch import take_lead, until_replaced
from coordinator.wiring import CoordinatorParts, assemble
from neve import api
from tests.support.predictable import CountedIds
from tests.support.sim_loop import World
from tests.support.sim_options import LATE_DELETE_MAX_S
from tests.support.sim_truth import Truth

FAIR_ERRORS = frozenset(
    {"AttemptStalledError", "EngineDiedError", "EngineRestartedError", "InputError"}
)
"""What rewrites fail with here, the last where a compactor was taken for dead and wakes: what the
store says, or what others do meanwhile, never fails one."""

FLUSH = "the flush of buffered rows"
SILENT_FLUSHES = ("UnavailableError", "RefusedError", "ConflictError")
"""What a flush fails with where the store or storage is silent, the table may not be written, or
other changes won every try."""
SILENT_ERRORS = frozenset({"UnavailableError", "RewriteError"})
"""What they fail with where the storage does."""


class DiskStorage:
    """The collector's view of the simulated disk."""

    def __init__(self, world: World, truth: Truth) -> None:
        self._world = world
        self._truth = truth

    async def delete(self, location: str, path: str, until_s: float) -> bool:
        if self._world.now_s() > until_s:
            raise RewriteError("simulated: looked at too long ago")
        disk, world = self._truth.disk, self._world
        if world.chance(disk.late_deletes):
            # It is on its way: whoever sent it may die or stand still, it arrives.
            late_s = world.random() * LATE_DELETE_MAX_S
            world.process("storage").call_later(late_s, disk.delete, path)
            raise RewriteError("simulated: the storage does not answer")
        return disk.delete(path)

    async def owner(self, location: str) -> LocationOwner | None:
        return None

    async def foreign_mark(self, location: str, paths: Sequence[str]) -> None:
        return None

    async def only_copies(
        self, location: str, outputs: Sequence[str], inputs: Sequence[str]
    ) -> Sequence[str]:
        files = self._truth.disk.files
        return [] if all(path in files for path in inputs) else [p for p in outputs if p in files]


class SimCoordinator:
    """One incarnation of the coordinator; it dies with its process.

    Its methods are those of the actor, and run in its process.
    """

    def __init__(
        self,
        name: str,
        world: World,
        store: TabletStore,
        settings: Settings,
        truth: Truth,
        *,
        counts_up: bool = False,
    ) -> None:
        """Count generations up, as the real one does, if `counts_up`."""
        interval_s = settings.coordinator.generation_interval_s
        counted = Generations(store, self._log, interval_s=interval_s)
        self._generations = counted if counts_up else None
        self.name = name
        self.world = world
        self.process = world.process(name)
        self.parts: CoordinatorParts | None = None
        self.waiting: dict[asyncio.Future[Any], None] = {}
        """Callers that wait for an answer; they hear of its death."""
        self._store = store
        self._settings = settings
        self._truth = truth
        self._ready: asyncio.Event | None = None
        self.process.start(self._run())

    @property
    def led(self) -> bool:
        """Whether it has got as far as to lead."""
        return self._ready is not None and self._ready.is_set()

    @property
    def cluster_state(self) -> Any:
        """What its state knows."""
        assert self.parts is not None
        return self.parts.state._cluster

    def knows_more(self, stored: Mapping[str, int]) -> bool:
        """Return whether it has seen higher generations of tables, by id, than these."""
        known = self._generations
        return known is not None and all(known.known(each) > stored[each] for each in stored)

    def at_rest(self) -> bool:
        """Return whether nothing is queued, in flight, running or to be looked at."""
        if self.parts is None or not self.led:
            return False
        state, scanner = self.cluster_state, self.parts.scanner
        busy = len(state.queues) or len(state.attempts) or state.takes.reserving()
        return not (busy or scanner.waiting)

    def backlogs(self) -> tuple[api.Backlog, ...]:
        """Return what is still to be rewritten, as far as it knows."""
        return self.parts.state.status(self.world.now_s()).backlogs if self.parts else ()

    async def _run(self) -> None:
        self._ready = asyncio.Event()
        context = ShellContext(
            store=self._store,
            clock=self.world,
            ids=CountedIds(self.name + "-"),
            log=self._log,
            coordinator=self.name,
            generations=self._generations,
        )
        self.parts = assemble(self._settings, context)
        claimed_s = await take_lead(self._store, self.parts.scanner, self.name, self._log)
        self._ready.set()
        async with asyncio.TaskGroup() as loops:
            for loop in self.parts.loops(self._settings):
                loops.create_task(loop)
            for loop in self._upkeep():
                loops.create_task(loop)
            if self._generations is not None:
                tables = self.parts.scanner.tables
                loops.create_task(self._generations.run_forever(tables.values))
            loops.create_task(self._leave_when_replaced(claimed_s))
            loops.create_task(self._until_failed())
            loops.create_task(self._check_forever())

    async def _until_failed(self) -> None:
        assert self.parts is not None
        await self.parts.service.failed

    def _writable(self) -> list[Table]:
        assert self.parts is not None
        every, tables = self._generations, self.parts.scanner.tables.values()
        if every is None:
            return [*tables]
        may = every.may_change
        return [table for table in tables if table.state is TableState.GOING or may(table.id)]

    def _upkeep(self) -> list[Coroutine[Any, Any, None]]:
        """Return what looks after names, and let the scheduler delete files."""
        assert self.parts is not None
        own = self._settings.coordinator
        rules = KindRules(tables_max=TABLES_AT_ONCE, wait_max_s=own.collect_interval_s)
        kind = OwnKind(
            part="the collector", rules=rules, tables=self._writable, run=self._collector().run
        )
        self.parts.upkeep.add(OperationName.GARBAGE, kind)
        finishing = finish_drops_forever(
            self._store, self._writable, own.collect_interval_s, self._log
        )
        return [finishing, self._remove_unfinished()]

    async def _remove_unfinished(self) -> None:
        own = self._settings.coordinator
        # A store that is away is no fault here: it comes back.
        faults = TableFaults(partial(self.world.tell, self.name))
        unfinished = UnfinishedTables(self._store, own.garbage_grace_s, self._log, faults)
        await unfinished.run_forever(own.unfinished_interval_s)

    def _collector(self) -> GarbageCollector:
        own = self._settings.coordinator
        rules = GarbageRules(
            grace_s=own.garbage_grace_s,
            clock_skew_max_s=own.clock_skew_max_s,
            retired_s=own.retired_names_s,
        )
        storage = DiskStorage(self.world, self._truth)
        known = self._generations.known if self._generations else lambda _table: 0
        return GarbageCollector(
            self._store, storage, rules, self._log, clock=self.world, known_generation=known
        )

    async def _leave_when_replaced(self, claimed_s: float) -> None:
        leader = await until_replaced(self._store, self.name, self._log, claimed_s)
        self._log("coordinator leaves", leader=leader)
        self.die()

    async def _check_forever(self) -> None:
        assert self.parts is not None
        while True:
            await asyncio.sleep(2.0)
            self.parts.state.check()

    def die(self) -> None:
        """Stop at once; callers hear of it as Ray tells them: by an error."""
        self.process.alive = False
        for answer in self.waiting:
            answer.get_loop().call_later(self.world.random(), partial(_break, answer))

    def _log(self, event: str, **fields: Any) -> None:
        if event == "work on a table failed":
            # A flush is tried again, and users hear why it is late.
            assert fields["work"] == FLUSH, fields
            assert fields["cause"].startswith(SILENT_FLUSHES), fields
            self._truth.seen["flushes failed"] += 1
        self._truth.seen["tables found behind"] += event == "table is read-only"
        self.world.tell(self.name, event, **fields)

    async def _service(self) -> Any:
        assert self._ready is not None
        await self._ready.wait()
        assert self.parts is not None
        return self.parts.service

    # What compactors and operators call.

    async def take(self, request: TakeRequest) -> Assignment | None:
        assignment: Assignment | None = await (await self._service()).take(request)
        return assignment

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        reply: HeartbeatReply = await (await self._service()).beat(beat)
        return reply

    async def report(self, report: AttemptReport) -> None:
        thrown_away = report.end is AttemptEnd.FAILED and report.error_class not in FAIR_ERRORS
        going = any(map(self._truth.drops, [*self._truth.states]))
        silent = self._truth.storage_fails and report.error_class in SILENT_ERRORS
        fair = going or self._truth.sleeps or silent or not thrown_away
        assert fair, f"work was thrown away, though it was well done: {report}"
        (await self._service()).report(report)

    async def withdraw(self, take: str) -> None:
        (await self._service()).withdraw(take)

    async def leave(self, compactor: str, incarnation: str, cause: str) -> None:
        gone = on.CompactorGone(compactor=compactor, cause=cause, incarnation=incarnation)
        (await self._service()).submit(gone)

    async def tell(self, event: on.Event) -> None:
        """Hear what an operator wants, or Ray has noticed."""
        (await self._service()).submit(event)

    async def cancel(self, attempt: str) -> None:
        """Cancel an attempt; for a job of a request, also the request's part on this tablet."""
        service = await self._service()
        assert self.parts is not None
        if (tablet := self.parts.state.tablet_of(attempt)) is not None:
            await self.parts.requests.cancel_here(tablet, attempt)
        service.submit(on.AttemptCancelAsked(attempt=attempt, cause="an operator wants it"))

    async def cancel_safely(self, attempt: str) -> None:
        """The same, for somebody who does not wait for the answer."""
        with suppress(MetadataError, UnavailableError):
            await self.cancel(attempt)


def _break(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(ConnectionError("simulated: the coordinator has died"))
