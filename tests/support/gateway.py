"""A gateway for tests: the real application and server, over any store, without Ray."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import nan
from typing import Any, cast

import uvloop
from fastapi._compat import v2 as fastapi_models
from pydantic import TypeAdapter

from common.control_settings import CatalogSettings, NotifySettings
from common.errors import UnavailableError
from common.metadata.store import TabletStore
from common.metadata.store_values import StoreHealth
from common.model.job import Job, Kind, TabletPlan, job_id
from common.model.table import Table
from common.model.tablet import Tablet, TabletId
from common.runtime import Clock, RandomIds, SystemClock
from common.settings import Settings
from common.storage_threads import StorageThreads
from common.telemetry import Log
from common.wire import (
    AttemptProgress,
    Condition,
    CoordinatorStatus,
    MetricValue,
    Notices,
    QueuedJob,
    RecordedSeries,
    RequestEnds,
    RunningAttempt,
    SeriesQuery,
    StoryEntry,
    StoryKind,
    TabletStory,
    VolumeUse,
)
from coordinator.actor import CoordinatorActor
from coordinator.core.series import SeriesPart, SeriesSample, SeriesStore
from neve import api
from neve.client import Client
from neve.gateway.server import server_of
from neve.gateway.services import Services, TabletPlanner
from neve.gateway.store_watch import StoreWatch
from neve.gateway.table_files import StoredFiles
from tests.support.memory_store import MemoryStore
from tests.support.predictable import TOKEN

# An application makes a thousand validators of types, 120 ms of processor time. Those of the same
# type and options are alike, so all applications of a test process share them.
_validators: dict[str, TypeAdapter[Any]] = {}


def _validator(kind: Any, *, config: Any = None) -> TypeAdapter[Any]:
    name = repr((kind, config))
    if name not in _validators:
        _validators[name] = TypeAdapter(kind, config=config)
    return _validators[name]


fastapi_models.TypeAdapter = _validator  # type: ignore[assignment,misc]

STARTED_S = 1_000_000.0
TRIGGERED = api.TableTrigger(
    table="events",
    trigger="admin",
    triggered_at_s=STARTED_S,
    accepted=2,
    refused=1,
    refusal="2 files: too few",
)
STORY = (
    StoryEntry(
        at_s=STARTED_S + 2.0,
        kind=StoryKind.FAILED,
        code="InputError",
        reason="file a.parquet has 99 rows, expected 100",
        job="job-1",
        attempt="att-1",
        compactor="local-1",
        until_s=STARTED_S + 4.0,
    ),
)


FIGURES = (
    MetricValue("neve_table_small_files", 7.0, ("events",)),
    MetricValue("neve_compactor_attempts_total", 3.0, ("default", "local-1", "committed")),
    MetricValue("neve_compactor_slots", 2.0, ("default", "local-1")),
    MetricValue("neve_compactor_rewrite_seconds", 1.0, ("default", "local-1", "0.5")),
    MetricValue("neve_compactor_rewrite_seconds", 4.0, ("default", "local-1", "+Inf")),
    MetricValue("neve_compactor_rewrite_seconds", 9.5, ("default", "local-1", "sum")),
    MetricValue("neve_compactor_slots", 9.0, ("label of another release",)),
    MetricValue("neve_compactor_of_another_release", 1.0, ("default", "local-1")),
)
RECORDED_TABLES = {"id-events": "events", "id-secret": "secret"}


def recorded() -> SeriesStore:
    """Return recorded values of three steps; nothing was recorded at the second one."""
    store = SeriesStore()
    for at_s, size_bytes in ((0.0, 90), (10.0, 45)):
        tables = {"id-events": size_bytes, "id-secret": 1000}
        control = {"shares_system": 240.0, "limit_bytes_s": nan, "busy_slots": 8}
        sample = SeriesSample(
            tables={"backlog_bytes": tables},
            groups={"backlog_bytes": {"default": sum(tables.values())}},
            total=control,
        )
        store.note(sample, STARTED_S + at_s)
        store = _restarted(store, STARTED_S + at_s + 1)
    return store


def _restarted(store: SeriesStore, now_s: float) -> SeriesStore:
    """Return what a new coordinator knows after it has read the snapshot of another one."""
    packed = {name: store.part(name).packed() for name in store.parts()}
    again = SeriesStore()
    again.load({name: SeriesPart.unpacked(part) for name, part in packed.items()}, now_s + 5)
    return again


@dataclass
class FakeCoordinator:
    """Answers like a coordinator with one group, one compactor, one job; notes what it is told."""

    up: bool = True
    told: list[tuple[str | None, ...]] = field(default_factory=list)
    analyses: list[str] = field(default_factory=list)
    """Tablets whose live bytes are to be counted."""
    more_groups: tuple[api.Group, ...] = ()
    warnings: tuple[str, ...] = ()
    store_warnings: tuple[str, ...] = ()
    quarantines: tuple[api.Quarantine, ...] = ()
    busy_tablets: tuple[str, ...] = ()
    """Tablets with a backlog that `tablet_loads` adds to those it is asked for."""
    uses: list[tuple[VolumeUse, ...]] = field(default_factory=list)
    """Reports of the bytes that reads and appends have moved."""
    rate: float | None = None
    """What they may move per second on each volume."""
    overlapping: dict[str, int] = field(default_factory=dict)
    backlogs: tuple[api.Backlog, ...] = ()
    buffers_refused: tuple[tuple[str, str], ...] = ()
    buffered: tuple[api.BufferedTable, ...] = ()
    id: str = "coord-1"
    conditions: tuple[Condition, ...] = ()
    request_ends: tuple[RequestEnds, ...] = ()
    windows_listed: tuple[api.Window, ...] = ()
    closed: tuple[str, ...] = ()
    """Sentences about windows that are closed."""
    following: tuple[QueuedJob, ...] = ()
    """Jobs that wait for others, in addition to the queued one."""

    async def status(self) -> CoordinatorStatus:
        self._answers()
        return CoordinatorStatus(
            coordinator="coord-1",
            started_s=STARTED_S,
            now_s=STARTED_S + 61.0,
            groups=(GROUP, *self.more_groups),
            warnings=self.warnings,
            store_warnings=self.store_warnings,
            compactors=(COMPACTOR,),
            tables=1,
            tablets_known=3,
            committed=7,
            failed=2,
            released=1,
            conflicts=4,
            quarantined=len(self.quarantines),
            quarantines=self.quarantines,
            turns=100,
            scopes=(SCOPE,),
            triggers=(TRIGGERED,),
            durability=StoreHealth(append_sync="always").durability,
            overlapping=tuple(self.overlapping.items()),
            backlogs=self.backlogs,
            buffers_refused=self.buffers_refused,
            buffered=self.buffered,
            windows=self.windows_listed,
        )

    async def notices(self) -> Notices:
        self._answers()
        return Notices(
            coordinator=self.id, conditions=self.conditions, request_ends=self.request_ends
        )

    async def edition(self) -> str:
        self._answers()
        return ""

    async def closed_windows(self, table: str, groups: Sequence[str]) -> Sequence[str]:
        self._answers()
        return self.closed if groups else ()

    async def queue(self, group: str | None, count: int) -> Sequence[QueuedJob]:
        self._answers()
        queued = [QUEUED, *self.following]
        return queued[:count] if group in (None, "default") else []

    async def running(self) -> Sequence[RunningAttempt]:
        self._answers()
        return [RUNNING]

    async def activity(self) -> Sequence[api.TableActivity]:
        self._answers()
        return [api.TableActivity(table="events", queued=1, queued_bytes=90, oldest_s=2.0)]

    async def owed_tablets(self, table: str, count: int) -> Sequence[api.OwedTablet]:
        self._answers()
        owed = api.OwedTablet(tablet="last", strategy="ratio", size_bytes=90, group="default")
        return [owed][:count]

    async def tablet_loads(self, table: str, tablets: Sequence[str]) -> api.TabletLoads:
        self._answers()
        busy = [tablet == "last" for tablet in tablets]
        return api.TabletLoads(
            tablets=(*tablets, *self.busy_tablets),
            backlog_bytes=(*(90 * is_busy for is_busy in busy), *(70 for _ in self.busy_tablets)),
            overlapping_files=(*(4 * is_busy for is_busy in busy), *(9 for _ in self.busy_tablets)),
            garbage_shares=(*(0.0 for _ in busy), *(0.25 for _ in self.busy_tablets)),
            scans_s=(*(0.5 for _ in busy), *(0.0 for _ in self.busy_tablets)),
        )

    async def tablet_backlogs(self, table: str, count: int) -> Sequence[api.TabletBacklogHistory]:
        self._answers()
        points = tuple(
            api.BacklogPoint(at_s=STARTED_S + at_s, size_bytes=size)
            for at_s, size in ((0, 90), (10, 45))
        )
        return [api.TabletBacklogHistory(tablet="last", history=points)][:count]

    async def figures(self) -> Sequence[MetricValue]:
        self._answers()
        return FIGURES

    async def series(self, query: SeriesQuery) -> RecordedSeries:
        self._answers()
        return recorded().read(query, RECORDED_TABLES)

    async def recorded_tables(self) -> Sequence[str]:
        self._answers()
        return list(RECORDED_TABLES.values())

    async def compactors(self) -> Sequence[api.Compactor]:
        self._answers()
        return [COMPACTOR]

    async def explain(self, table: str, tablet: str) -> api.Explanation:
        self._answers()
        return api.Explanation(
            tablet=tablet,
            table="events",
            sentences=("nothing to do: 2 files, none of them small enough to merge",),
            left={"a.parquet": "larger than all others together"},
            running=("att-1",),
            inputs=(("b.parquet", "c.parquet"),),
        )

    async def story(self, table: str, tablet: str) -> TabletStory:
        self._answers()
        entries = STORY if tablet == "last" else ()
        return TabletStory(
            tablet=tablet, coordinator="coord-1", started_s=STARTED_S, entries=entries
        )

    async def scale(self, group: str, count: int | None) -> None:
        self._hear("scale", group, str(count))

    async def drain(self, compactor: str) -> None:
        self._hear("drain", compactor)

    async def cancel(self, attempt: str) -> None:
        self._hear("cancel", attempt)

    async def waiting(self, text: str) -> Sequence[Job]:
        self._answers()
        return [QUEUED.job] if QUEUED.job.id.startswith(text) else []

    async def cancel_queued(self, job: str) -> None:
        self._hear("cancel_queued", job)

    async def pause_job(self, job: str) -> None:
        self._hear("pause_job", job)

    async def resume_job(self, job: str) -> None:
        self._hear("resume_job", job)

    async def pause_group(self, group: str) -> None:
        self._hear("pause_group", group)

    async def resume_group(self, group: str) -> None:
        self._hear("resume_group", group)

    async def set_limit(self, scope: str, bytes_s: int | None) -> None:
        self._hear("set_limit", scope, str(bytes_s))

    async def lift_quarantine(self, table: str, tablet: str | None) -> None:
        self._hear("lift_quarantine", table, tablet)

    async def analyze(self, table: str, tablets: Sequence[str]) -> None:
        for tablet in tablets:
            self._hear("analyze", table, tablet)
            self.analyses.append(tablet)

    async def unanalyzed(self, table: str, tablets: Sequence[str]) -> list[str]:
        self._answers()
        return [tablet for tablet in tablets if tablet in self.analyses]

    async def replan(self, table: str) -> None:
        self._hear("replan", table)

    async def maintain(self, table: str, order: api.LakeOrder) -> api.LakeRun:
        self._hear("maintain", table, order.operation, str(order.dry_run), str(order.files))
        state = api.LakeRunState.DRY_RUN if order.dry_run else api.LakeRunState.WAITING
        return api.LakeRun(
            table="sales",
            operation=order.operation,
            state=state.value,
            files=2,
            size_bytes=2048,
            more=1,
            spared={"younger than the retention": 3},
            paths=("a.parquet", "b.parquet"),
        )

    async def maintenance(self, table: str, tablet: str | None) -> api.TableMaintenance:
        self._hear("maintenance", table, tablet)
        merging = api.MaintenanceOperation(
            tablet="last",
            kind="merging",
            state="runnable",
            why="4 files of a size",
            gain=3.0,
            gain_unit="files fewer",
            cost_bytes=8 * 1024**2,
            cpu_s=2.0,
            memory_bytes=1024**3,
            score=3.0,
            adjusted=3.3,
            rank=1,
            step="score",
        )
        idle = api.MaintenanceOperation(tablet="last", kind="split", why="never", due_s=12.0)
        decision = api.MaintenanceDecision(
            kind="garbage", step="wait", why="its longest wait of 30.0 s is over", ago_s=3.0
        )
        rates = (api.TabletRates(tablet="last", scans_s=0.5, rows_s=1200.0),)
        return api.TableMaintenance(
            table="events",
            operations=(merging, idle),
            rates=rates,
            decisions=(decision,),
            more=tablet is None,
        )

    async def note_scans(self, table: str, scans: Mapping[str, int]) -> None:
        self._hear("note_scans", table, *(f"{tablet}={n}" for tablet, n in scans.items()))

    async def note_latencies(self, latencies: Mapping[str, tuple[float, int]]) -> None:
        told = (f"{table}={wait_s:g}x{reads}" for table, (wait_s, reads) in latencies.items())
        self._hear("note_latencies", *told)

    async def foreground(
        self, gateway: str, uses: tuple[VolumeUse, ...]
    ) -> Mapping[str, float | None]:
        self._answers()
        self.uses.append(uses)
        return {use.volume: self.rate for use in uses}

    async def control(self) -> api.Control:
        self._answers()
        return CONTROL

    async def trigger(self, table: str, tablet: str | None = None) -> api.Trigger:
        self._hear("trigger", table, *([] if tablet is None else [tablet]))
        answer = api.TabletTrigger(tablet="last", verdict="refused", reason="2 files: too few")
        return api.Trigger(
            table=table, trigger="admin", triggered_at_s=1.0, tablets=(answer,), left=3
        )

    def _hear(self, *words: str | None) -> None:
        self._answers()
        self.told.append(words)

    def _answers(self) -> None:
        if not self.up:
            raise UnavailableError("the coordinator does not answer")


GROUP = api.Group(
    group="default",
    queued=1,
    queued_bytes=300,
    queued_cost_bytes=4096,
    running=1,
    compactors=1,
    waiting_takes=1,
    accepted=9,
    rejected=0,
    evicted=1,
    oldest_age_s=2.5,
)
CONTROL = api.Control(
    controller="drain-time",
    now_s=STARTED_S + 61.0,
    decided_at_s=STARTED_S + 60.5,
    period_s=1.0,
    classes=(
        api.ClassControl(
            name="system",
            shares=250.0,
            granted=0.2,
            used=0.25,
            used_bytes=1024**3,
            total_bytes=8 * 1024**3,
        ),
        api.ClassControl(
            name="user",
            shares=1000.0,
            granted=0.8,
            used=0.75,
            used_bytes=3 * 1024**3,
            total_bytes=3 * 1024**3,
        ),
    ),
    bytes_s=50.0 * 1024**2,
    slots=5,
    reasons=("the backlog is 30.0 GiB: 250 shares", "readers wait 120 ms"),
    table_weights={"events": 2.0},
    backlog_bytes=30.0 * 1024**3,
    memory_bytes=8 * 1024**3,
    arrival_bytes_s=10.0 * 1024**2,
    rewrite_bytes_s=None,
    slot_bytes_s=None,
    living_slots=8,
    busy_slots=5,
    slots_max=20,
    latencies_s={"events": 0.12},
    latency_limit_s=0.1,
    deepest_files=12,
    garbage_fraction=0.125,
)
COMPACTOR = api.Compactor(
    compactor="local-1",
    group="default",
    node="node-a",
    slots=2,
    busy=1,
    heard_ago_s=0.4,
    draining=False,
)
SCOPE = api.Limit(
    kind="group",
    name="default",
    limit_bytes_s=50 * 1024**2,
    is_default=False,
    rate_bytes_s=40 * 1024**2,
    granted_bytes_s=39.0 * 1024**2,
    attempts=2,
    throttled=1,
    moved_bytes=3 * 1024**3,
    waited_s=61.5,
)
TABLET = TabletId("t-1", b"\x01m")
QUEUED = QueuedJob(
    job=Job(
        id="job-1",
        tablet=TABLET,
        table_name="events",
        kind=Kind.SYSTEM,
        inputs=("a.parquet", "b.parquet"),
        input_bytes=2048,
        group="default",
        priority=12,
        reason="2 files of similar size",
    ),
    place=1,
    age_s=2.5,
    effective_priority=12.0,
)
RUNNING = RunningAttempt(
    job_id="job-0",
    attempt="att-1",
    tablet=TABLET.text,
    table_name="events",
    kind="SYSTEM",
    group="default",
    compactor="local-1",
    inputs=3,
    input_bytes=3 * 1024**2,
    since_s=STARTED_S + 50.0,
    progress=AttemptProgress(attempt="att-1", state="rewriting", fraction=0.5),
    reason="3 files of similar size",
    files=("a.parquet", "b.parquet", "c.parquet"),
)


def plan_all(
    tablet: Tablet, table: Table, now_s: float, *, correction: api.Correction | None = None
) -> TabletPlan:
    """Plan one job over all files of a tablet that has more than one."""
    files = tuple(sorted(tablet.files))
    if len(files) < 2:
        return TabletPlan(left=dict.fromkeys(files, "it is alone"))
    job = Job(
        id=job_id(tablet.id, Kind.SYSTEM, None, files),
        tablet=tablet.id,
        table_name=table.name,
        kind=Kind.SYSTEM,
        inputs=files,
        input_bytes=sum(file.size_bytes for file in tablet.files.values()),
        group="default",
        priority=len(files),
        reason=f"{len(files)} files",
    )
    return TabletPlan(jobs=(job,))


@dataclass
class Gateway:
    """A gateway that serves on a free port of this machine."""

    url: str
    services: Services
    store: TabletStore
    coordinator: FakeCoordinator
    loop: asyncio.AbstractEventLoop
    log: list[tuple[str, dict[str, object]]]

    def client(self, token: str = TOKEN) -> Client:
        return Client(self.url, token=token, timeout_s=20)

    def ask(self, work: object) -> object:
        """Return what a coroutine of the store returns, run in the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)  # type: ignore[arg-type]  # any awaitable


@dataclass
class Storage:
    """How a gateway reaches storage."""

    files: StoredFiles = field(default_factory=StoredFiles)
    threads: StorageThreads = field(default_factory=StorageThreads)


def _services(
    store: TabletStore,
    coordinator: FakeCoordinator,
    settings: Settings,
    log: Log,
    watch_s: float,
    storage: Storage,
) -> Services:
    clock = SystemClock()
    return Services(
        store=store,
        store_watch=StoreWatch(store, clock, log, interval_s=watch_s, patience_s=1.0),
        coordinator=cast("CoordinatorActor", coordinator),
        plan=plan_all,
        unread_settings=lambda _: {"target_bytes": "has no effect yet: nobody reads it"},
        settings=settings,
        clock=clock,
        ids=RandomIds(),
        log=log,
        footers=storage.threads,
        files=storage.files,
    )


def _settings(
    coordinator_s: Mapping[str, float],
    gateway: Mapping[str, object],
    access: Mapping[str, object],
    control: Mapping[str, object],
    ingest: Mapping[str, object],
    notify: Mapping[str, object],
    catalog: Mapping[str, object],
) -> Settings:
    """Return settings with tables anywhere, unless they say otherwise."""
    given = {"token": TOKEN, "port": 0, "locations": ("/", "s3://"), **gateway}
    section = replace(Settings().gateway, **given)  # type: ignore[arg-type]  # by name
    times = replace(Settings().coordinator, **coordinator_s)
    sources = {"gateway.token": "environment variable NEVE_GATEWAY_TOKEN"}
    callers = replace(Settings().access, **access)  # type: ignore[arg-type]  # by name
    shares = replace(Settings().control, **control)  # type: ignore[arg-type]  # by name
    bounds = replace(Settings().ingest, **ingest)  # type: ignore[arg-type]  # by name
    return Settings(
        gateway=section,
        coordinator=times,
        access=callers,
        control=shares,
        sources=sources,
        ingest=bounds,
        notify=NotifySettings(**notify),  # type: ignore[arg-type]  # by name
        catalog=CatalogSettings(**catalog),  # type: ignore[arg-type]  # by name
    )


def _run(work: Coroutine[None, None, None]) -> None:
    """Run a coroutine in a loop of the kind that Ray's actors have."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


@contextmanager
def serving(
    store: TabletStore | None = None,
    coordinator_s: Mapping[str, float] = {},
    watch_s: float = 0.1,
    storage: Storage | None = None,
    access: Mapping[str, object] = {},
    plan: TabletPlanner | None = None,
    control: Mapping[str, object] = {},
    clock: Clock | None = None,
    ingest: Mapping[str, object] = {},
    notify: Mapping[str, object] = {},
    catalog: Mapping[str, object] = {},
    catalogs: Mapping[str, Mapping[str, str]] = {},
    **gateway: object,
) -> Iterator[Gateway]:
    """Serve the application until the block ends.

    Args:
        store: The memory store if left out.
        coordinator_s: Times among the coordinator's settings.
        watch_s: How often it looks whether the store answers, beside all calls.
        storage: That of this machine if left out.
        access: Settings of the section of that name.
        plan: Plans a tablet; `plan_all` if left out.
        control: Settings of the section of that name.
        clock: Clock of the calls; that of this machine if left out.
        ingest: Settings of the section of that name.
        notify: Settings of the section of that name.
        catalog: Settings of the section of that name.
        catalogs: Catalogs of Iceberg tables by name.
        gateway: Settings of the section of that name.
    """
    store = store or MemoryStore(SystemClock())
    log: list[tuple[str, dict[str, object]]] = []
    coordinator = FakeCoordinator()
    settings = _settings(coordinator_s, gateway, access, control, ingest, notify, catalog)
    services = _services(
        store,
        coordinator,
        replace(settings, catalogs=catalogs),
        lambda event, **fields: log.append((event, fields)),
        watch_s,
        storage or Storage(),
    )
    services = replace(services, plan=plan or services.plan, clock=clock or services.clock)
    server = server_of(services)
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve()
        for connection in list(server.server_state.connections):
            # A caller that does not read would keep it open beyond the loop.
            connection.transport.abort()  # type: ignore[union-attr]  # both protocols have one
        await store.close()

    thread = threading.Thread(target=lambda: _run(serve()), daemon=True)
    thread.start()
    waiting = threading.Event()
    for _ in range(1000):
        if server.started:
            break
        waiting.wait(0.01)
    assert server.started, "the server did not start"
    host, port = server.servers[0].sockets[0].getsockname()
    try:
        yield Gateway(f"http://{host}:{port}", services, store, coordinator, loops[0], log)
    finally:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()
