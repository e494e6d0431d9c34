"""A compactor in a simulation: the production service, an engine that merges sets of rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from common.errors import (
    AttemptCancelledError,
    EngineDiedError,
    EngineRestartedError,
    MetadataError,
    UnavailableError,
)
from common.metadata.store import TabletStore
from common.model.file import DataFile
from common.model.outcome import DroppedRows, RowCounts
from common.model.request import Request, TransformKind
from common.model.table import Table
from common.settings import CompactorSettings
from common.wire import (
    Assignment,
    AttemptReport,
    Heartbeat,
    HeartbeatReply,
    TakeRequest,
)
from compactor.core import (
    EngineHealth,
    RewriteProgress,
    RewriteResult,
)
from compactor.service import CompactorService
from tests.support.compactor_fakes import FakeMetrics
from tests.support.predictable import CountedIds
from tests.support.sim_coordinator import SimCoordinator
from tests.support.sim_disk import Rows, key_bytes
from tests.support.sim_loop import SimLoop, World
from tests.support.sim_truth import Truth

CALL_MAX_S = 3.0
TAKE_WAIT_MAX_S = 8.0
DEATH_AFTER_S = 10.0
"""How long an engine that may fail waits for a job before it dies, on average."""


DROPPED_KEYS_MAX = 3
"""Keys of dead rows that one job drops."""


@dataclass
class Traits:
    """How compactors behave. Probabilities per job."""

    rewrite_max_s: float = 2.0
    fails: float = 0.0
    hangs: float = 0.0
    """A job of which nothing is heard any more, until its engine is restarted."""
    drops: bool = False
    """Jobs drop dead rows."""


@dataclass
class Network:
    """How messages to the coordinator fare. Probabilities per message."""

    latency_max_s: float = 0.02
    lost: float = 0.0
    doubled: float = 0.0


class Following(Protocol):
    """Says which coordinator a compactor talks to now."""

    def __call__(self, compactor: str) -> SimCoordinator: ...


class Link:
    """The coordinator as one compactor sees it; satisfies `compactor.core.WorkSource`."""

    def __init__(
        self, compactor: str, process: SimLoop, network: Network, following: Following
    ) -> None:
        self._compactor = compactor
        self._process = process
        self._world = process.world
        self._network = network
        self._following = following

    async def take(self, request: TakeRequest) -> Assignment | None:
        assignment: Assignment | None = await self._call(
            "take", request, within_s=request.wait_max_s + CALL_MAX_S
        )
        return assignment

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        reply: HeartbeatReply = await self._call("beat", beat)
        return reply

    async def report(self, report: AttemptReport) -> None:
        await self._call("report", report)

    async def withdraw(self, take: str) -> None:
        await self._call("withdraw", take)

    async def leave(self, compactor: str, incarnation: str, cause: str) -> None:
        await self._call("leave", compactor, incarnation, cause)

    async def _call(self, method: str, *values: object, within_s: float = CALL_MAX_S) -> Any:
        world, network = self._world, self._network
        await asyncio.sleep(world.random() * network.latency_max_s)
        target = self._following(self._compactor)
        if not target.process.alive or world.chance(network.lost):
            await asyncio.sleep(0.5)
            raise UnavailableError("simulated: nobody hears")
        answer = self._process.create_future()
        target.process.call_soon(self._arrive, target, method, values, answer)
        if world.chance(network.doubled):
            late_s = 3.0 * world.random()
            target.process.call_later(late_s, self._arrive, target, method, values, None)
        target.waiting[answer] = None
        try:
            async with asyncio.timeout(within_s):
                reply = await answer
        except (TimeoutError, ConnectionError, MetadataError) as error:
            raise UnavailableError(f"simulated: no answer: {error}") from error
        finally:
            target.waiting.pop(answer, None)
        if world.chance(network.lost):
            raise UnavailableError("simulated: the answer is lost")
        return reply

    def _arrive(
        self,
        target: SimCoordinator,
        method: str,
        values: tuple[object, ...],
        answer: asyncio.Future[Any] | None,
    ) -> None:
        task = target.process.create_task(getattr(target, method)(*values))
        task.add_done_callback(partial(self._answered, answer))

    def _answered(self, answer: asyncio.Future[Any] | None, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, AssertionError):
            self._world.fail(error)
        if answer is None:
            return
        way_s = self._world.random() * self._network.latency_max_s
        self._process.call_later(way_s, _give, answer, error, None if error else task.result())


def _give(answer: asyncio.Future[Any], error: BaseException | None, value: Any) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(value)


class SimEngine:
    """Merges files; satisfies `compactor.core.Engine` and `OwnFiles`."""

    pid = None

    def __init__(self, holder: str, world: World, truth: Truth, traits: Traits) -> None:
        self.holder = holder
        self._world = world
        self._truth = truth
        self._traits = traits
        self._cancelled: dict[str, None] = {}
        self._running: dict[str, asyncio.Event] = {}
        self._signs = 0

    async def start(self) -> None:
        return

    async def stop(self) -> None:
        return

    async def wait_down(self) -> None:
        """Die now and then, if anything ever fails; it is started again at once."""
        if not self._traits.fails:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(2 * DEATH_AFTER_S * self._world.random())

    def health(self) -> EngineHealth:
        self._signs += 1
        return EngineHealth(up=True, signs=self._signs, busy=frozenset(self._running))

    async def restart(self, cause: str) -> None:
        for ended in self._running.values():
            ended.set()

    async def grant(self, attempt: str, bytes_s: float | None) -> None:
        """Nothing here takes time by its bytes."""

    async def cancel(self, attempt: str) -> None:
        self._cancelled[attempt] = None

    async def check_location(self, table: Table, *, again: bool = False) -> None:
        return

    async def missing(self, table: Table, paths: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(path for path in paths if path not in self._truth.disk.files)

    async def delete(self, table: Table, paths: tuple[str, ...]) -> None:
        for path in paths:
            self._truth.disk.delete(path)

    async def run(
        self, assignment: Assignment, on_progress: Callable[[RewriteProgress], None]
    ) -> RewriteResult:
        world, traits, attempt = self._world, self._traits, assignment.reservation.attempt
        self._truth.assigned(attempt, self.holder)
        await self._work(attempt, world.random() * traits.rewrite_max_s)
        if attempt in self._cancelled:
            raise AttemptCancelledError("simulated: cancelled")
        if world.chance(traits.fails):
            raise EngineDiedError("simulated: the engine died")
        return await self._rewritten(assignment)

    async def _rewritten(self, assignment: Assignment) -> RewriteResult:
        world = self._world
        parts = self._merged(assignment)
        outputs: list[DataFile] = []
        for number, rows in enumerate(parts):
            path = assignment.reservation.output_path(number)
            written = self._truth.disk.write(path, rows, world.now_s())
            outputs.append(replace(written, tags=assignment.job.output_tags))
            await asyncio.sleep(world.random() * 0.1)
        count = sum(file.rows for file in assignment.inputs)
        return RewriteResult(
            outputs=tuple(outputs),
            counts=RowCounts(rows_in=count, rows_out=count),
            dropped=self._dropped(assignment),
        )

    def _dropped(self, assignment: Assignment) -> DroppedRows | None:
        """Return where dead rows were dropped, of keys and versions that no row here has.

        They were as old as the oldest row of the inputs. As in a rewrite, no file that is known
        may hold an older row of their keys.
        """
        if not self._traits.drops:
            return None
        oldest = min(file.version_min or b"" for file in assignment.inputs)
        rows = [row for file in assignment.inputs for row in self._truth.disk.ever(file.path)]
        keys = {self._truth.disk.key_of[row] for row in rows}
        chosen = self._world.dice.sample(sorted(keys), min(len(keys), DROPPED_KEYS_MAX))
        older = [file for file in assignment.outside if (file.version_min or b"") <= oldest]
        spans = [
            (key, key)
            for key in map(key_bytes, sorted(chosen))
            if not any((file.key_min or b"") <= key <= (file.key_max or b"") for file in older)
        ]
        self._truth.seen["attempts that dropped dead rows"] += bool(spans)
        return DroppedRows(spans=tuple(spans), version_max=oldest) if spans else None

    async def _work(self, attempt: str, length_s: float) -> None:
        """Take so long, or hang; ends early with the engine."""
        hangs = self._world.chance(self._traits.hangs)
        ended = self._running[attempt] = asyncio.Event()
        try:
            async with asyncio.timeout(None if hangs else length_s):
                await ended.wait()
        except TimeoutError:
            return
        finally:
            del self._running[attempt]
        raise EngineRestartedError("simulated: the engine was restarted")

    def _merged(self, assignment: Assignment) -> list[Rows]:
        """Return the rows of each output: transformed where they are not yet, cut by key."""
        disk, cuts = self._truth.disk, assignment.job.cuts
        parts: list[dict[int, tuple[str, ...]]] = [{} for _ in range(len(cuts) + 1)]
        for file in assignment.inputs:
            wanted = _transforms(assignment.request, file)
            for row, touches in disk.read(file.path).items():
                key = key_bytes(disk.key_of[row])
                if wanted is not None and wanted.means(key):
                    touches = (*touches, wanted.id)
                parts[sum(key > cut for cut in cuts)][row] = touches
        return [part for part in parts if part]


def _transforms(request: Request | None, file: DataFile) -> Request | None:
    """Return the request whose transform is applied to an input (protocol: requests)."""
    if request is None or request.transform.kind is TransformKind.NONE:
        return None
    return None if file.request == request.id else request


class SimCompactor:
    """One process of a compactor; a restart is another object with the same name."""

    def __init__(
        self,
        name: str,
        number: int,
        process: SimLoop,
        link: Link,
        store: TabletStore,
        engine: SimEngine,
        settings: CompactorSettings,
        group: str,
    ) -> None:
        self.name = name
        self.process = process
        self.said_goodbye = False
        self.left: Callable[[], None] = lambda: None
        """Called when it has drained and said goodbye."""
        self._link = link
        self._store = store
        self._engine = engine
        self._settings = settings
        self._group = group
        self._number = number
        self.incarnation = ""
        process.start(self._run())

    async def _run(self) -> None:
        world = self.process.world
        service = CompactorService(
            self.name,
            self._settings,
            node="node",
            group=self._group,
            coordinator=self._link,
            engine=self._engine,
            store=self._store,
            files=self._engine,
            metrics=FakeMetrics(),
            ids=CountedIds(f"{self.name}.{self._number}-"),
            clock=world,
            log=partial(world.tell, self.name),
        )
        self.incarnation = self._engine.holder = service.incarnation
        await service.run()
        self.said_goodbye = True
        self.process.alive = False
        self.left()
