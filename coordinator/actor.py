"""The coordinator as a Ray actor: options, wiring, loops; no decisions.

The failure of any loop ends the process, so that Ray restarts it: an actor that answers
but no longer turns is worse than none. State comes from the store alone.
"""

import asyncio
import os
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

import ray

from common.actor_class import callable_across_releases
from common.clock import SystemClock
from common.errors import all_causes
from common.garbage_collection import collect_oldest_forever, ignore_what_is_loaded
from common.ids import RandomIds
from common.log_files import LogFiles
from common.metadata.redis import connect
from common.model.table import Table, TableState
from common.model.tablet import TabletId
from common.readers.pool import open_readers
from common.settings import Settings
from common.telemetry import event_log
from common.tracing import spans_of
from common.wire import (
    COORDINATOR_NAME,
    NAMESPACE,
    Assignment,
    AttemptReport,
    BacklogSample,
    CompactorCalls,
    CoordinatorStatus,
    Heartbeat,
    HeartbeatReply,
    QueuedJob,
    RunningAttempt,
    TabletStory,
    TakeRequest,
    compactor_actor_name,
)
from coordinator.context import ShellContext
from coordinator.core import events as on
from coordinator.core.backlog import largest_tablets
from coordinator.ray_compactors import RayCompactorLever
from coordinator.scan.ray_ranges import RayRangeScans
from coordinator.storage.generations import Generations
from coordinator.store_watch import take_lead, until_replaced
from coordinator.wiring import assemble, storage_loops
from neve import api

CALLS_AT_ONCE = 10_000
"""Compactors wait in `take`, so a call may last; none of them blocks a thread."""
UNREACHED_PAUSE_S = 0.2
"""Between two questions to a compactor that Ray does not reach."""
LOG_PARTS = ("coordinator", "redis", "ray", "start", "supervisor")
"""Its own log file, and those of what cannot look after its own."""


class RayCompactors:
    """Death notices from Ray: a call that never returns fails when its actor dies."""

    async def wait_for_death(self, compactor: str, incarnation: str) -> str:
        """Return the cause, when this incarnation of the compactor is dead for sure.

        One that Ray does not reach may live, or be started again, which its next process tells. So
        it is asked until it answers or Ray knows that it is dead.
        """
        name = compactor_actor_name(compactor)
        while True:
            try:  # Ray's head, which may be slow, is asked in a thread: turns must go on.
                actor = await asyncio.to_thread(ray.get_actor, name, namespace=NAMESPACE)
                return str(await actor.stay.remote(incarnation))
            except ValueError:
                return "its actor is gone"
            except ray.exceptions.ActorUnavailableError:
                await asyncio.sleep(UNREACHED_PAUSE_S)
            except ray.exceptions.RayError as error:
                return f"its actor died ({type(error).__name__})"


class CoordinatorActor:
    """Finds, orders and hands out compaction jobs. One per cluster leads."""

    def __init__(
        self, settings: Settings, log_folder: str = "", node_resource: str = "", edition: str = ""
    ) -> None:
        """Wire the parts and start the loops."""
        self._settings = settings
        self._edition = edition
        self._log_files = LogFiles.of(log_folder, settings.log)
        self._log_files.take_output(LOG_PARTS[0])
        self._id = RandomIds().next("coord")
        self._log = event_log("coordinator", settings.log.level)
        open_readers(settings.readers, self._log)
        self._store = connect(settings.store)
        self._watched: set[tuple[str, str]] = set()
        interval_s = settings.coordinator.generation_interval_s
        self._generations = Generations(self._store, self._log, interval_s=interval_s)
        self._context = ShellContext(
            store=self._store,
            clock=SystemClock(),
            ids=RandomIds(),
            log=self._log,
            coordinator=self._id,
            generations=self._generations,
            spans=spans_of(settings.trace, "coordinator"),
        )
        lever = RayCompactorLever(
            settings, node_resource=node_resource, log_folder=log_folder, edition=edition
        )
        self._parts = assemble(settings, self._context, RayRangeScans(settings), lever)
        self._state, self._service = self._parts.state, self._parts.service
        self._scanner, self._requests = self._parts.scanner, self._parts.requests
        self._ready = asyncio.Event()
        ignore_what_is_loaded()
        self._loops = [asyncio.get_running_loop().create_task(self._guarded(self._run()))]

    async def _guarded(self, loop: Awaitable[None]) -> None:
        """Run a loop that must never end; if it does, end the process."""
        try:
            await loop
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._log("coordinator fails", cause=all_causes(error))
        os._exit(1)

    async def _run(self) -> None:
        claimed_s = await take_lead(self._store, self._scanner, self._id, self._log)
        await self._parts.limiting.load()
        self._ready.set()
        async with asyncio.TaskGroup() as loops:
            for loop in self._parts.loops(self._settings):
                loops.create_task(loop)
            for loop in storage_loops(self._settings, self._context, self._writable):
                loops.create_task(loop)
            loops.create_task(self._generations.run_forever(self._scanner.tables.values))
            loops.create_task(self._leave_when_replaced(claimed_s))
            loops.create_task(self._log_files.rotate_forever(LOG_PARTS))
            loops.create_task(collect_oldest_forever())
            loops.create_task(asyncio.wait_for(self._service.failed, None))

    def _writable(self) -> list[Table]:
        """Return the tables whose files may be deleted, and whose manifests may be published.

        Those that go: what waits for deletion there was replaced, or its table was dropped.
        """
        every = self._scanner.tables.values()
        may = self._generations.may_change
        return [table for table in every if table.state is TableState.GOING or may(table.id)]

    async def _leave_when_replaced(self, claimed_s: float) -> None:
        """Leave for good when another coordinator has been started: no restart."""
        leader = await until_replaced(self._store, self._id, self._log, claimed_s)
        self._log("coordinator leaves", leader=leader)
        await self._service.stop()
        ray.actor.exit_actor()

    async def _watch(self, compactor: str, incarnation: str) -> None:
        cause = await RayCompactors().wait_for_death(compactor, incarnation)
        self._watched.discard((compactor, incarnation))
        self._service.submit(
            on.CompactorGone(compactor=compactor, cause=cause, incarnation=incarnation)
        )

    async def ping(self) -> str:
        """Answer with this coordinator's id when it is ready."""
        await self._ready.wait()
        return self._id

    async def edition(self) -> str:
        """Return what it was started with, as whoever started it has named that."""
        return self._edition

    async def stop_scaling(self) -> None:
        """Start and drain no compactors any more: the service is being taken down."""
        self._parts.autoscaler.stop()

    async def take(self, request: TakeRequest) -> Assignment | None:
        """Wait for a job."""
        await self._ready.wait()
        return await self._service.take(request)

    async def withdraw(self, take: str) -> None:
        """Let a take wait no longer; it is answered soon."""
        self._service.withdraw(take)

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        """Hear a heartbeat; from the first one on, wait for the actor's death notice."""
        await self._ready.wait()
        known = (beat.compactor, beat.incarnation)
        if known not in self._watched:
            self._watched.add(known)
            watch = self._guarded_watch(beat.compactor, beat.incarnation)
            self._loops.append(asyncio.get_running_loop().create_task(watch))
        return await self._service.beat(beat)

    async def _guarded_watch(self, compactor: str, incarnation: str) -> None:
        try:
            await self._watch(compactor, incarnation)
        finally:
            self._loops = [task for task in self._loops if not task.done()]

    async def report(self, report: AttemptReport) -> None:
        """Hear how an attempt ended."""
        await self._ready.wait()
        self._service.report(report)

    async def leave(self, compactor: str, incarnation: str, cause: str) -> None:
        """Hear a compactor's goodbye."""
        await self._ready.wait()
        self._service.submit(
            on.CompactorGone(compactor=compactor, cause=cause, incarnation=incarnation)
        )

    async def status(self) -> CoordinatorStatus:
        """Return counters of groups and compactors."""
        return self._parts.status()

    async def queue(self, group: str | None = None, count: int = 100) -> list[QueuedJob]:
        """Return the best queued jobs of a group, or of all groups."""
        return self._state.queued(group, count, self._now_s())

    async def running(self) -> list[RunningAttempt]:
        """Return the attempts under way."""
        return self._state.running(self._now_s())

    async def owed_tablets(self, table: str, count: int) -> list[api.OwedTablet]:
        """Return the tablets of a table in which most is still to be rewritten.

        Of a million tablets the largest are found in a thread: turns must go on.
        """
        tablets, done = self._state.owed_tablets(table)
        return await asyncio.to_thread(largest_tablets, tablets, done, count)

    async def backlog_history(self) -> list[BacklogSample]:
        """Return what was still to be rewritten in the last hour, oldest first."""
        return self._state.backlog_history()

    async def compactors(self) -> list[api.Compactor]:
        """Return the compactors."""
        return list((await self.status()).compactors)

    async def explain(self, table: str, tablet: str) -> api.Explanation:
        """Return why a tablet is as it is."""
        return self._parts.explain(TabletId.parse(table, tablet), self._now_s())

    async def story(self, table: str, tablet: str) -> TabletStory:
        """Return what has happened to a tablet, as far as it is remembered."""
        return self._state.story(TabletId.parse(table, tablet), self._now_s())

    async def drain(self, compactor: str) -> None:
        """Have a compactor finish what it holds and take nothing more."""
        self._service.submit(on.DrainAsked(compactor=compactor))

    async def stop_compactor(self, compactor: str, wait_max_s: float | None) -> None:
        """Have a compactor end its jobs within a time, hand back what is left, and end for good."""
        await self._parts.autoscaler.shut_down(compactor, wait_max_s)

    async def scale(self, group: str, count: int | None) -> None:
        """Set how many compactors a group has; None: as many as settings and work want."""
        await self._parts.autoscaler.scale(group, count)

    async def cancel(self, attempt: str, cause: str = "cancelled by the operator") -> None:
        """End an attempt; a request's is cancelled with its request on this tablet."""
        if (tablet := self._state.tablet_of(attempt)) is not None:
            await self._requests.cancel_here(tablet, attempt)
        self._service.submit(on.AttemptCancelAsked(attempt=attempt, cause=cause))

    async def pause_group(self, group: str) -> None:
        """Hand out no job of a group."""
        self._service.submit(on.GroupPaused(group=group))

    async def resume_group(self, group: str) -> None:
        """Hand out jobs of a group again."""
        self._service.submit(on.GroupResumed(group=group))

    async def set_limit(self, scope: str, bytes_s: int | None) -> None:
        """Limit the bytes/s of a group or volume; 0: no limit; None: what the settings say."""
        await self._parts.limiting.set(scope, bytes_s)

    async def lift_quarantine(self, table: str, tablet: str | None) -> None:
        """Try a quarantined tablet again; None: every one of the table."""
        only = None if tablet is None else TabletId.parse(table, tablet)
        self._service.submit(on.QuarantineLifted(table=table, tablet=only))

    async def analyze(self, table: str, tablets: Sequence[str]) -> None:
        """Have the live bytes of tablets counted, by the last group of the table's service."""
        known = self._scanner.tables.get(table)
        services = self._settings.services
        name = None if known is None else known.settings.service
        service = services.get(name or "") or next(iter(services.values()))
        asked = [TabletId.parse(table, tablet) for tablet in tablets]
        await self._parts.triggers.ask_analyses(table, asked, service.groups[-1].name)

    async def unanalyzed(self, table: str, tablets: Sequence[str]) -> list[str]:
        """Return which tablets still wait for their live bytes to be counted."""
        wants = self._state.wants_analysis
        return [tablet for tablet in tablets if wants(TabletId.parse(table, tablet))]

    async def replan(self, table: str) -> None:
        """Look at every tablet of a table now."""
        await self._scanner.refresh_tables()
        self._parts.full_scan.look(table, every=True)

    async def maintenance(self, table: str, tablet: str | None) -> api.TableMaintenance:
        """Return the maintenance operations of the tablets of a table."""
        only = None if tablet is None else TabletId.parse(table, tablet)
        return await self._parts.maintenance.operations(table, only)

    async def note_scans(self, table: str, scans: Mapping[str, int]) -> None:
        """Count scans of tablets."""
        counts = {TabletId.parse(table, tablet): count for tablet, count in scans.items()}
        self._service.submit(on.ReadsReported(scans=counts))

    async def note_latencies(self, latencies: Mapping[str, tuple[float, int]]) -> None:
        """Hear how long readers of tables have waited."""
        for table, (latency_s, reads) in latencies.items():
            self._service.submit(on.LatencyReported(table=table, latency_s=latency_s, reads=reads))

    async def control(self) -> api.Control:
        """Return what the controller reads and has decided."""
        return self._state.control(self._now_s())

    async def trigger(self, table: str) -> api.Trigger:
        """Have the planner of a table asked now; return what it decides for each tablet."""
        return await self._parts.triggers.ask(table)

    def _now_s(self) -> float:
        return self._context.clock.now_s()


def start(
    settings: Settings,
    *,
    log_folder: str = "",
    node_resource: str = "",
    edition: str = "",
    **options: Any,
) -> Any:
    """Start the coordinator as a detached actor, or return the one that runs.

    Args:
        settings: All settings of the service.
        log_folder: Where it keeps its log file; empty: where Ray keeps its output.
        node_resource: A Ray resource of the node on which it starts compactors; empty: on any
            node, or on those that have their group's resource.
        edition: Names settings and release, to tell this coordinator from others.
        options: Further Ray actor options, such as `resources`.
    """
    answers: type[CompactorCalls] = CoordinatorActor
    return (
        ray.remote(callable_across_releases(answers))
        .options(
            name=COORDINATOR_NAME,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_concurrency=CALLS_AT_ONCE,
            num_cpus=0,
            **options,
        )
        .remote(settings, log_folder, node_resource, edition)
    )
