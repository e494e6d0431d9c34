"""The coordinator as a Ray actor: options, wiring, loops; no decisions.

If a loop fails, the process ends and Ray restarts it: an actor that answers calls but takes no
turns does more harm than a missing one. All state is read from the store.
"""

import asyncio
import os
from collections.abc import Awaitable, Mapping, Sequence

import ray

from common.errors import all_causes
from common.log_files import LogFiles
from common.metadata.redis import connect
from common.model.job import Job
from common.model.table import Table, TableState
from common.model.tablet import TabletId
from common.readers.pool import open_readers
from common.runtime import (
    RandomIds,
    SystemClock,
    collect_oldest_forever,
    ignore_what_is_loaded,
    share_freed_memory,
    shorten_thread_switches,
)
from common.settings import Settings
from common.telemetry import event_log
from common.tracing import spans_of
from common.wire import (
    NAMESPACE,
    Assignment,
    AttemptReport,
    CompactorCalls,
    CoordinatorStatus,
    Heartbeat,
    HeartbeatReply,
    MetricValue,
    Notices,
    QueuedJob,
    RecordedSeries,
    RunningAttempt,
    SeriesQuery,
    TabletStory,
    TakeRequest,
    VolumeUse,
    compactor_actor_name,
)
from coordinator.context import Generations, ShellContext
from coordinator.core import events as on
from coordinator.core.backlog import HISTORY_EVERY_S, TabletHistories, largest_tablets
from coordinator.core.views import (
    closed_windows,
    compactor_figures,
    following_jobs,
    recorded_series,
    recorded_tables,
    table_activity,
    table_figures,
    tablet_loads,
    waiting_jobs,
)
from coordinator.ray_compactors import RayCompactorLever, RayRangeScans
from coordinator.store_watch import take_lead, until_replaced
from coordinator.wiring import assemble, storage_loops
from neve import api

UNREACHED_PAUSE_S = 0.2
"""Interval between calls to a compactor that Ray cannot reach."""
LOG_PARTS = ("coordinator", "redis", "ray", "start", "supervisor")
"""Log files: the coordinator's own, and those of parts that cannot write their own."""


class RayCompactors:
    """Death notices from Ray: a call that never returns fails when its actor dies."""

    async def wait_for_death(self, compactor: str, incarnation: str) -> str:
        """Return the cause of death once this incarnation of the compactor is certainly dead.

        A compactor that Ray cannot reach may be alive or restarted; its next process reports which.
        So this keeps asking until the compactor answers or Ray knows that it is dead.
        """
        name = compactor_actor_name(compactor)
        while True:
            try:  # Ray's head may be slow, so a thread asks it while turns continue.
                actor = await asyncio.to_thread(ray.get_actor, name, namespace=NAMESPACE)
                return str(await actor.stay.remote(incarnation))
            except ValueError:
                return "its actor is gone"
            except ray.exceptions.ActorUnavailableError:
                await asyncio.sleep(UNREACHED_PAUSE_S)
            except ray.exceptions.RayError as error:
                return f"its actor died ({type(error).__name__})"


class CoordinatorActor:
    """Finds, orders and assigns compaction jobs. One per cluster leads."""

    def __init__(
        self, settings: Settings, log_folder: str = "", node_resource: str = "", edition: str = ""
    ) -> None:
        """Connect the parts and start the loops."""
        share_freed_memory()
        shorten_thread_switches()
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
        self._recorded = TabletHistories()
        self._ready = asyncio.Event()
        ignore_what_is_loaded()
        self._loops = [asyncio.get_running_loop().create_task(self._guarded(self._run()))]

    async def _guarded(self, loop: Awaitable[None]) -> None:
        """Run a loop that must never end; end the process if it does."""
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
        await self._parts.series_keeper.load()
        await self._parts.windows_keeper.load()
        self._ready.set()
        async with asyncio.TaskGroup() as loops:
            for loop in self._parts.loops(self._settings):
                loops.create_task(loop)
            for loop in storage_loops(self._settings, self._parts, self._writable):
                loops.create_task(loop)
            loops.create_task(self._record_tablets_forever())
            loops.create_task(self._generations.run_forever(self._scanner.tables.values))
            loops.create_task(self._leave_when_replaced(claimed_s))
            loops.create_task(self._log_files.rotate_forever(LOG_PARTS))
            loops.create_task(collect_oldest_forever())
            loops.create_task(asyncio.wait_for(self._service.failed, None))

    def _writable(self) -> list[Table]:
        """Return the tables whose files may be deleted and whose manifests may be published.

        Tables being dropped are included: files that wait for deletion there are already replaced.
        """
        tables = self._scanner.tables.values()
        may = self._generations.may_change
        return [table for table in tables if table.state is TableState.GOING or may(table.id)]

    async def _record_tablets_forever(self) -> None:
        while True:
            await asyncio.sleep(HISTORY_EVERY_S)
            now_s = self._now_s()
            self._recorded.note(self._state.backlog_sizes(self._recorded.tablets(now_s)), now_s)

    async def _leave_when_replaced(self, claimed_s: float) -> None:
        """Exit for good, without a restart, when another coordinator has started."""
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
        """Return this coordinator's id once it is ready."""
        await self._ready.wait()
        return self._id

    async def edition(self) -> str:
        """Return the edition that the starter of this coordinator has set."""
        return self._edition

    async def stop_scaling(self) -> None:
        """Stop starting and draining compactors, because the service is shutting down."""
        self._parts.autoscaler.stop()

    async def take(self, request: TakeRequest) -> Assignment | None:
        """Wait for a job."""
        await self._ready.wait()
        return await self._service.take(request)

    async def withdraw(self, take: str) -> None:
        """Cancel a waiting take; it is answered soon."""
        self._service.withdraw(take)

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        """Receive a heartbeat. The first one also starts the wait for the actor's death notice."""
        await self._ready.wait()
        process = (beat.compactor, beat.incarnation)
        if process not in self._watched:
            self._watched.add(process)
            watch = self._guarded_watch(beat.compactor, beat.incarnation)
            self._loops.append(asyncio.get_running_loop().create_task(watch))
        return await self._service.beat(beat)

    async def _guarded_watch(self, compactor: str, incarnation: str) -> None:
        try:
            await self._watch(compactor, incarnation)
        finally:
            self._loops = [task for task in self._loops if not task.done()]

    async def report(self, report: AttemptReport) -> None:
        """Receive the result of an attempt."""
        await self._ready.wait()
        self._service.report(report)

    async def leave(self, compactor: str, incarnation: str, cause: str) -> None:
        """Receive the sign-off of a compactor."""
        await self._ready.wait()
        self._service.submit(
            on.CompactorGone(compactor=compactor, cause=cause, incarnation=incarnation)
        )

    async def status(self) -> CoordinatorStatus:
        """Return counters of groups and compactors."""
        return self._parts.status()

    async def queue(self, group: str | None = None, count: int = 100) -> list[QueuedJob]:
        """Return the queued jobs of a group, or of all groups, in the order in which they start."""
        queued = self._state.queued(group, count, self._now_s())
        return queued + self._state.look(following_jobs, group, count)

    async def running(self) -> list[RunningAttempt]:
        """Return the running attempts."""
        return self._state.running(self._now_s())

    async def activity(self) -> list[api.TableActivity]:
        """Return the queued and running jobs of each table."""
        return self._state.look(table_activity, self._now_s())

    async def owed_tablets(self, table: str, count: int) -> list[api.OwedTablet]:
        """Return the tablets of a table with the largest backlogs.

        A thread selects the largest of up to a million tablets while turns continue.
        """
        tablets, done = self._state.owed_tablets(table)
        return await asyncio.to_thread(largest_tablets, tablets, done, count)

    async def tablet_backlogs(self, table: str, count: int) -> list[api.TabletBacklogHistory]:
        """Record the tablets of a table with the largest backlogs; return all recorded ones."""
        owed = await self.owed_tablets(table, count)
        asked = [TabletId.parse(table, tablet.tablet) for tablet in owed]
        self._recorded.ask(self._state.backlog_sizes(asked), self._now_s())
        return self._recorded.of_table(table)

    async def tablet_loads(self, table: str, tablets: Sequence[str]) -> api.TabletLoads:
        """Return what is remembered of tablets, and of those with the largest backlogs."""
        return self._state.look(tablet_loads, table, tablets, self._now_s())

    async def notices(self) -> Notices:
        """Return what operators may be notified of."""
        return self._parts.notices(self._settings.notify.backlog_bytes)

    async def closed_windows(self, table: str, groups: Sequence[str]) -> list[str]:
        """Return why system jobs of a table do not start in groups because of windows."""
        return self._state.look(closed_windows, table, groups, self._now_s())

    async def shadow_plan(self, table: str) -> api.ShadowPlan:
        """Return the comparison of a table's planner with its shadow planner."""
        return self._parts.shadow_plan(table)

    async def figures(self) -> list[MetricValue]:
        """Return the metrics that only a scrape needs: those of compactors and of tables."""
        look = self._state.look
        return [*look(compactor_figures), *look(table_figures, self._now_s())]

    async def series(self, query: SeriesQuery) -> RecordedSeries:
        """Return recorded values of the last hour or day."""
        return self._state.look(recorded_series, query)

    async def recorded_tables(self) -> list[str]:
        """Return the names of the tables that have recorded values of their own."""
        return self._state.look(recorded_tables)

    async def compactors(self) -> list[api.Compactor]:
        """Return the compactors."""
        return list((await self.status()).compactors)

    async def explain(self, table: str, tablet: str) -> api.Explanation:
        """Explain the state of a tablet."""
        return self._parts.explain(TabletId.parse(table, tablet), self._now_s())

    async def story(self, table: str, tablet: str) -> TabletStory:
        """Return the remembered history of a tablet."""
        return self._state.story(TabletId.parse(table, tablet), self._now_s())

    async def drain(self, compactor: str) -> None:
        """Drain a compactor: it finishes its jobs and takes no new ones."""
        self._service.submit(on.DrainAsked(compactor=compactor))

    async def stop_compactor(self, compactor: str, wait_max_s: float | None) -> None:
        """Stop a compactor: it ends its jobs within a time, hands back the others, and exits."""
        await self._parts.autoscaler.shut_down(compactor, wait_max_s)

    async def scale(self, group: str, count: int | None) -> None:
        """Set the number of compactors of a group; None follows settings and work."""
        await self._parts.autoscaler.scale(group, count)

    async def cancel(self, attempt: str, cause: str = "cancelled by the operator") -> None:
        """Cancel an attempt; for a job of a request, also the request's part on this tablet."""
        if (tablet := self._state.tablet_of(attempt)) is not None:
            await self._requests.cancel_here(tablet, attempt)
        self._service.submit(on.AttemptCancelAsked(attempt=attempt, cause=cause))

    async def waiting(self, text: str) -> list[Job]:
        """Return the queued and paused jobs whose id begins with a text."""
        return self._state.look(waiting_jobs, text)

    async def cancel_queued(self, job: str, cause: str = "cancelled by the operator") -> None:
        """Remove a job from its queue; its files are not planned again for a while."""
        self._service.submit(on.QueuedJobCancelled(job=job, cause=cause))

    async def pause_job(self, job: str) -> None:
        """Pause a queued job."""
        self._service.submit(on.QueuedJobPaused(job=job))

    async def resume_job(self, job: str) -> None:
        """Resume a paused job."""
        self._service.submit(on.QueuedJobResumed(job=job))

    async def pause_group(self, group: str) -> None:
        """Stop assigning jobs of a group."""
        self._service.submit(on.GroupPaused(group=group))

    async def resume_group(self, group: str) -> None:
        """Resume assigning jobs of a group."""
        self._service.submit(on.GroupResumed(group=group))

    async def set_limit(self, scope: str, bytes_s: int | None) -> None:
        """Limit the bytes/s of a group or volume; 0 means no limit, None the configured limit."""
        await self._parts.limiting.set(scope, bytes_s)

    async def lift_quarantine(self, table: str, tablet: str | None) -> None:
        """Lift the quarantine of a tablet, or of all tablets of the table if None."""
        only = None if tablet is None else TabletId.parse(table, tablet)
        self._service.submit(on.QuarantineLifted(table=table, tablet=only))

    async def analyze(self, table: str, tablets: Sequence[str]) -> None:
        """Request a count of live bytes in tablets, in the last group of the table's service."""
        listed = self._scanner.tables.get(table)
        services = self._settings.services
        name = None if listed is None else listed.settings.service
        service = services.get(name or "") or next(iter(services.values()))
        asked = [TabletId.parse(table, tablet) for tablet in tablets]
        await self._parts.triggers.ask_analyses(table, asked, service.groups[-1].name)

    async def unanalyzed(self, table: str, tablets: Sequence[str]) -> list[str]:
        """Return the tablets whose live bytes are not counted so far."""
        wants = self._state.wants_analysis
        return [tablet for tablet in tablets if wants(TabletId.parse(table, tablet))]

    async def replan(self, table: str) -> None:
        """Plan every tablet of a table now."""
        await self._scanner.refresh_tables()
        self._parts.full_scan.look(table, every=True)

    async def maintain(self, table: str, order: api.LakeOrder) -> api.LakeRun:
        """Run a maintenance operation of a lake table, or show what it would do."""
        return await self._parts.lake_maintenance.ask(table, order)

    async def maintenance(self, table: str, tablet: str | None) -> api.TableMaintenance:
        """Return the maintenance operations of the tablets of a table."""
        only = None if tablet is None else TabletId.parse(table, tablet)
        return await self._parts.maintenance.operations(table, only)

    async def note_scans(self, table: str, scans: Mapping[str, int]) -> None:
        """Count scans of tablets."""
        counts = {TabletId.parse(table, tablet): count for tablet, count in scans.items()}
        self._service.submit(on.ReadsReported(scans=counts))

    async def note_latencies(self, latencies: Mapping[str, tuple[float, int]]) -> None:
        """Record how long readers of tables have waited."""
        for table, (latency_s, reads) in latencies.items():
            self._service.submit(on.LatencyReported(table=table, latency_s=latency_s, reads=reads))

    async def foreground(
        self, gateway: str, uses: tuple[VolumeUse, ...]
    ) -> Mapping[str, float | None]:
        """Record what reads and appends move; return their rates as of the last report."""
        self._service.submit(on.ForegroundReported(gateway=gateway, uses=uses))
        return self._state.foreground_rates(gateway)

    async def control(self) -> api.Control:
        """Return the readings and the decision of the controller."""
        return self._state.control(self._now_s())

    async def trigger(self, table: str, tablet: str | None = None) -> api.Trigger:
        """Fire the trigger `admin` of a table, or of one tablet; return the planner's decisions."""
        only = None if tablet is None else TabletId.parse(table, tablet)
        return await self._parts.triggers.ask(table, only)

    def _now_s(self) -> float:
        return self._context.clock.now_s()


_ANSWERS: type[CompactorCalls] = CoordinatorActor
"""Checked by types alone: the actor has every call that compactors make."""
