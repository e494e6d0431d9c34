"""Assembles the parts of a coordinator, and reads their counters as metric values."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from common.lake.open import catalog_access, storage_options
from common.metadata.store import TabletStore
from common.metadata.store_values import StoreHealth
from common.model.job import Kind
from common.model.location_identity import LocationIdentity
from common.model.request import RequestState
from common.model.table import Table
from common.model.tablet import Tablet, TabletId
from common.parquet.append import write_guarded
from common.parquet.buffered import FlushPorts, FlushRules
from common.parquet.resolved_location import identities_of
from common.settings import CoordinatorSettings, Settings
from common.spi.planner import Surroundings
from common.wire import (
    OTHERS,
    Condition,
    CoordinatorStatus,
    MetricValue,
    Notices,
    bounded_conditions,
)
from coordinator.autoscaler import Autoscaler
from coordinator.context import ArrowStorage, FreeSpace, ShellContext, TableFaults
from coordinator.core import events as on
from coordinator.core.attempts import work_done
from coordinator.core.backlog import PLANNED_JOBS
from coordinator.core.cluster_state import ClusterState
from coordinator.core.limits import Limits
from coordinator.core.maintenance import KindRules, OperationName
from coordinator.core.scans import GarbageRules
from coordinator.core.series import SeriesStore
from coordinator.core.shadow import COMPARED_TABLETS_MAX, ShadowPlans
from coordinator.core.state import CoordinatorState
from coordinator.core.views import BACKLOGS_MAX
from coordinator.lake import LakeFollower, LakeRules
from coordinator.maintenance import LakeMaintenance, Maintenance, OwnKind, OwnMaintenance
from coordinator.ports import CompactorLever, PlanTablet, Submit
from coordinator.registry import control_loop, planner_for
from coordinator.requests import (
    AutomaticRequests,
    Policies,
    RequestDriver,
    RequestSteps,
    SelectorCalls,
)
from coordinator.scan.full_scan import FullScan, LocalRangeScans, RangeScans
from coordinator.scan.scanner import Scanner
from coordinator.service import CoordinatorService
from coordinator.split_merge import OperationDriver, OperationRules, OperationSteps
from coordinator.storage.flushes import BufferFlusher
from coordinator.storage.garbage_collector import (
    TABLES_AT_ONCE,
    GarbageCollector,
    UnfinishedTables,
    finish_drops_forever,
)
from coordinator.storage.manifests import ManifestPublisher, PublishedLogs
from coordinator.store_watch import (
    DailySumsKeeper,
    RateLimits,
    SeriesKeeper,
    StoreHealthWatch,
    TableCorrections,
    WindowUsageKeeper,
)
from coordinator.triggers import TriggerDriver
from neve import api

# -------------------------------- Counters as metric values, described in docs/reference/metrics.md


def request_figures(
    driver: RequestDriver, now_s: float, rows_transformed: int
) -> list[MetricValue]:
    """Return the number, age and final states of requests."""
    requests = driver.open_requests()
    states = Counter({RequestState.ACTIVE: 0, RequestState.CANCELLING: 0})
    states.update(request.state for request in requests)
    ended = {state: driver.ended[state] for state in RequestState if state.ended}
    oldest_s = max((now_s - request.submitted_at_s for request in requests), default=0.0)
    return [
        *(MetricValue("neve_requests", count, (state,)) for state, count in states.items()),
        *(MetricValue("neve_requests_ended_total", count, (how,)) for how, count in ended.items()),
        MetricValue("neve_requests_oldest_seconds", max(0.0, oldest_s)),
        MetricValue("neve_requests_waiting_tablets", driver.waiting_tablets),
        MetricValue("neve_requests_rows_transformed_total", rows_transformed),
    ]


def selector_figures(selectors: SelectorCalls) -> list[MetricValue]:
    """Return the numbers of selector calls and failures."""
    return [
        MetricValue("neve_selector_calls_total", selectors.calls),
        MetricValue("neve_selector_failures_total", selectors.failures),
    ]


def trigger_figures(counts: Mapping[tuple[str, str], int]) -> list[MetricValue]:
    """Return the number of planner decisions by trigger and verdict."""
    return [
        MetricValue("neve_trigger_decisions_total", count, labels)
        for labels, count in sorted(counts.items())
    ]


def scan_figures(scanner: Scanner, full_scan: FullScan) -> list[MetricValue]:
    """Return the counters of the change feed and the full scan."""
    counts = full_scan.counts
    return [
        MetricValue("neve_feed_resets_total", scanner.feed.resets),
        MetricValue("neve_tablets_planned_total", scanner.planned),
        MetricValue("neve_tablets_waiting", scanner.waiting),
        MetricValue("neve_full_scan_seconds", counts.last_s),
        MetricValue("neve_full_scan_tablets_total", counts.tablets),
        MetricValue("neve_full_scan_planned_total", counts.planned),
        MetricValue("neve_full_scan_found_total", counts.found),
        MetricValue("neve_full_scan_pieces_total", counts.ranges),
        MetricValue("neve_full_scan_pieces_failed_total", counts.ranges_failed),
    ]


def scaling_figures(groups: Collection[api.Group]) -> list[MetricValue]:
    """Return the desired, starting, draining and failed compactors of each group."""
    return [
        MetricValue(metric, value, (group.group,))
        for group in groups
        if (scaling := group.scaling) is not None
        for metric, value in (
            ("neve_compactors_desired", scaling.desired),
            ("neve_compactors_starting", scaling.starting),
            ("neve_compactors_draining", scaling.draining),
            ("neve_compactor_starts_failed_total", scaling.starts_failed),
            ("neve_compactors_blocked", float(bool(scaling.blocked))),
        )
    ]


def fault_figures(faults: TableFaults) -> list[MetricValue]:
    """Return the failures by kind of work, and the number of paused tables and tablets."""
    return [
        *(
            MetricValue("neve_table_faults_total", count, (part,))
            for part, count in faults.counts.items()
        ),
        MetricValue("neve_tables_left_alone", faults.standing),
    ]


def store_figures(health: StoreHealth) -> list[MetricValue]:
    """Return the memory use of the store."""
    return [
        MetricValue("neve_store_memory_bytes", health.memory_bytes),
        MetricValue("neve_store_memory_max_bytes", health.memory_max_bytes),
        MetricValue("neve_store_full", float(health.full)),
    ]


def series_figures(series: SeriesStore, keeper: SeriesKeeper) -> list[MetricValue]:
    """Return the size of the recorded values and of their snapshot."""
    return [
        MetricValue("neve_series_bytes", series.size_bytes),
        MetricValue("neve_series_stored_bytes", keeper.size_bytes),
        MetricValue("neve_series_tables", len(series.tables.rows)),
    ]


def scope_figures(scopes: Collection[api.Limit]) -> Iterator[MetricValue]:
    """Yield the metrics of groups and volumes; those without a limit have fewer metrics."""
    for scope in scopes:
        labels = (scope.kind, scope.name)
        if scope.rate_bytes_s is not None:
            yield MetricValue("neve_throttle_limit_bytes_per_second", scope.rate_bytes_s, labels)
            granted = scope.granted_bytes_s
            if granted is not None:
                yield MetricValue("neve_throttle_granted_bytes_per_second", granted, labels)
        yield MetricValue("neve_throttle_jobs", scope.throttled, labels)
        yield MetricValue("neve_throttle_moved_bytes_total", scope.moved_bytes, labels)
        yield MetricValue("neve_throttle_waited_seconds_total", scope.waited_s, labels)


def control_figures(control: api.Control) -> Iterator[MetricValue]:
    """Yield the decision of the controller and its effects; an absent limit yields no value."""
    for class_ in control.classes:
        yield MetricValue("neve_control_shares", class_.shares, (class_.name,))
        yield MetricValue("neve_control_granted_ratio", class_.granted, (class_.name,))
        yield MetricValue("neve_control_used_ratio", class_.used, (class_.name,))
        yield MetricValue("neve_control_bytes_total", class_.total_bytes, (class_.name,))
    for name, value in (
        ("neve_control_bytes_per_second", control.bytes_s),
        ("neve_control_slots", control.slots),
        ("neve_control_arrival_bytes_per_second", control.arrival_bytes_s),
        ("neve_control_rewrite_bytes_per_second", control.rewrite_bytes_s),
        ("neve_control_reader_wait_seconds", max(control.latencies_s.values(), default=None)),
        ("neve_control_failures_total", control.failures),
    ):
        if value is not None:
            yield MetricValue(name, value)


def backlog_figures(backlogs: Collection[api.Backlog]) -> Iterator[MetricValue]:
    """Yield the backlog of each table and group, and the number of tables without a tracker."""
    for backlog in backlogs:
        yield MetricValue("neve_backlog_bytes", backlog.size_bytes, (backlog.table or "(others)",))
    groups: Counter[str] = Counter()
    for backlog in backlogs:
        groups.update(backlog.groups)
    for group, size_bytes in sorted(groups.items()):
        yield MetricValue("neve_backlog_group_bytes", size_bytes, (group,))
    failed = sum(1 for backlog in backlogs if backlog.problem)
    untracked = sum(
        1 for backlog in backlogs if backlog.strategy == PLANNED_JOBS and not backlog.problem
    )
    for cause, count in (("none", untracked), ("failed", failed)):
        yield MetricValue("neve_backlog_untracked_tables", count, (cause,))


# ------------------------------------------------------------------------------------- Conditions


def conditions(cluster: ClusterState, backlog_bytes: int) -> list[Condition]:
    """Return what operators are notified of: quarantines, full queues and large backlogs.

    Args:
        cluster: The coordinator's memory; only read.
        backlog_bytes: Backlog above which a table is listed; 0: none is.
    """
    quarantined, reasons = Counter[str](), dict[str, str]()
    for tablet, reason in cluster.retry.quarantined().items():
        name = cluster.table_name(tablet.table)
        quarantined[name] += 1
        reasons.setdefault(name, reason)
    found = [
        Condition(kind="quarantined", subject=name, count=count, text=reasons[name])
        for name, count in quarantined.items()
    ]
    for group in cluster.deferrals.full_since_s:
        count = cluster.deferrals.count(group)
        found.append(Condition(kind="shed", subject=group, count=count))
    if backlog_bytes:
        lines = cluster.backlogs.top(cluster.table_name, work_done(cluster.attempts), BACKLOGS_MAX)
        found += [
            Condition(kind="backlog", subject=line.table or OTHERS, count=line.size_bytes)
            for line in lines
            if line.size_bytes > backlog_bytes
        ]
    return found


# ------------------------------------------------------------------------------------------- Wiring


CONDITIONS_MAX = 100
"""Tables or groups in one condition that operators are notified of by name."""
SHADOW_PAUSE_S = 1.0
"""Pause while no tablet has to be planned by a shadow planner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorParts:
    """The assembled parts of one coordinator. Their loops are started by the actor."""

    store: TabletStore
    context: ShellContext
    state: CoordinatorState
    scanner: Scanner
    full_scan: FullScan
    service: CoordinatorService
    requests: RequestDriver
    selectors: SelectorCalls
    automatic: AutomaticRequests
    triggers: TriggerDriver
    operations: OperationDriver
    limiting: RateLimits
    store_care: StoreHealthWatch
    series_keeper: SeriesKeeper
    windows_keeper: WindowUsageKeeper
    days_keeper: DailySumsKeeper
    corrections: TableCorrections
    shadows: ShadowPlans
    autoscaler: Autoscaler
    stored: tuple[GarbageCollector, ManifestPublisher]
    lake: LakeFollower
    lake_maintenance: LakeMaintenance
    flusher: BufferFlusher
    upkeep: OwnMaintenance
    maintenance: Maintenance

    def explain(self, tablet: TabletId, now_s: float) -> api.Explanation:
        """Explain the state of a tablet, the most important reason first.

        The state holds no plan of a tablet that a full scan has found at rest. Such a tablet is
        replanned, so that the next call shows its planners' decision on each file.
        """
        if not self.state.was_planned(tablet):
            self.scanner.ask(tablet)
        explanation = self.state.explain(tablet, now_s)
        faults = self.context.faults.sentences(tablet.table, str(tablet))
        correction = self.corrections.of(tablet.table)
        sentences = (
            *faults,
            *self.lake.sentences(tablet.table),
            *self.lake_maintenance.sentences(tablet.table),
            *self.operations.sentences(tablet),
            *explanation.sentences,
            *([correction.sentence] if correction.jobs else []),
        )
        return replace(explanation, sentences=sentences)

    def shadow_plan(self, table_id: str) -> api.ShadowPlan:
        """Return the comparison of a table's planner with its shadow planner."""
        table = self.scanner.tables.get(table_id)
        return api.ShadowPlan(table="") if table is None else self.shadows.comparison(table)

    def loops(self, settings: Settings) -> list[Coroutine[Any, Any, None]]:
        """Return the loops that run forever, without storage loops and the check of the lead."""
        own = settings.coordinator
        return [
            self.scanner.plan_forever(),
            self.scanner.plan_lakes_forever(),
            self.scanner.follow_forever(),
            self.scanner.refresh_tables_forever(),
            self.upkeep.run_forever(),
            self.requests.run_forever(),
            self.automatic.run_forever(),
            self.triggers.run_forever(own.tick_s),
            self.operations.run_forever(),
            self.limiting.run_forever(),
            self.store_care.run_forever(),
            self.series_keeper.run_forever(),
            self.windows_keeper.run_forever(),
            self.days_keeper.run_forever(),
            self.corrections.run_forever(),
            self.autoscaler.run_forever(),
            self.lake.run_forever(),
            self._tick_forever(own.tick_s),
            self._plan_shadows_forever(),
        ]

    def status(self) -> CoordinatorStatus:
        """Return the counters of the core and of the shell."""
        now_s, service = self.context.clock.now_s(), self.service
        status = self.state.status(now_s, service.turns, service.conflicts)
        faults = self.context.faults
        groups = tuple(
            replace(group, scaling=self._scaling(group.group, status)) for group in status.groups
        )
        figures = (
            *scaling_figures(groups),
            *request_figures(self.requests, now_s, self.state.rows_transformed),
            *selector_figures(self.selectors),
            *trigger_figures(self.state.trigger_counts),
            *scan_figures(self.scanner, self.full_scan),
            *fault_figures(faults),
            *store_figures(self.store_care.health),
            *scope_figures(status.scopes),
            *backlog_figures(status.backlogs),
            *control_figures(self.state.control(now_s)),
            *self.flusher.figures(),
            *self.lake.figures(),
            *self.stored[1].log_figures(self.scanner.tables.values()),
            *self.lake_maintenance.figures(),
            *series_figures(self.state.series, self.series_keeper),
        )
        return replace(
            status,
            groups=groups,
            quarantined=status.quarantined + faults.unreadable_tablets,
            tables_unscanned=self.full_scan.unscanned_tables,
            figures=figures,
            durability=self.store_care.health.durability,
            buffered=self.flusher.buffered(self.scanner.tables),
            buffers_refused=(*status.buffers_refused, *self.full_scan.why_no_buffers()),
            store_warnings=(
                *self.store_care.health.warnings,
                *self.flusher.warnings(self.store_care.health),
                *faults.notices,
                *faults.all_unreadable(),
            ),
        )

    def notices(self, backlog_bytes: int) -> Notices:
        """Return what operators may be notified of.

        Args:
            backlog_bytes: Backlog above which a table is listed; 0: none is.
        """
        names = {table.id: table.name for table in self.scanner.tables.values()}
        found = self.state.look(conditions, backlog_bytes)
        for table, (count, cause) in self.context.faults.unreadable_records.items():
            name = names.get(table, table)
            same = [one for one in found if (one.kind, one.subject) == ("quarantined", name)]
            found = [one for one in found if one not in same]
            whole = count + sum(one.count for one in same)
            found.append(Condition(kind="quarantined", subject=name, count=whole, text=cause))
        generations = self.context.generations
        for table, reason in ({} if generations is None else generations.read_only).items():
            subject = names.get(table, table)
            found.append(Condition(kind="read-only", subject=subject, text=reason))
        for table, problem in self.stored[1].log_problems.items():
            found.append(
                Condition(kind="unpublished", subject=names.get(table, table), text=problem)
            )
        for table, reason in self.lake.silent().items():
            subject = names.get(table, table)
            found.append(Condition(kind="catalog-silent", subject=subject, text=reason))
        return Notices(
            coordinator=self.context.coordinator,
            conditions=tuple(bounded_conditions(found, CONDITIONS_MAX)),
            request_ends=tuple(ends for _, ends in self.requests.request_ends),
        )

    def _scaling(self, group: str, status: CoordinatorStatus) -> api.GroupScaling | None:
        members = [compactor for compactor in status.compactors if compactor.group == group]
        return self.autoscaler.scaling(group, members)

    async def _plan_shadows_forever(self) -> None:
        """Plan tablets of tables with a shadow planner, one at a time, after all other work."""
        while True:
            for table in self.shadows.take_new():
                await self.context.faults.run(
                    "shadow planning", table, partial(self._read_tablets, table)
                )
            now_s = self.context.clock.now_s()
            tablet = self.shadows.take(now_s)
            await asyncio.sleep(SHADOW_PAUSE_S if tablet is None else 0)
            if tablet is not None:
                work = partial(self._plan_shadow, tablet, now_s)
                await self.context.faults.run("shadow planning", str(tablet), work)

    async def _read_tablets(self, table: str) -> None:
        """Schedule tablets of a table, so that those at rest take part in its comparison."""
        for tablet in await self.store.tablet_ids(table, None, COMPARED_TABLETS_MAX):
            self.scanner.found(tablet)

    async def _plan_shadow(self, tablet: TabletId, now_s: float) -> None:
        self.shadows.plan(tablet, now_s)

    async def _tick_forever(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            self.service.submit(on.Ticked(scaling=self.autoscaler.counts()))
            self.requests.look_at_deadlines()


def storage_loops(
    settings: Settings, parts: CoordinatorParts, writable: Callable[[], Collection[Table]]
) -> list[Coroutine[Any, Any, None]]:
    """Let the scheduler of maintenance publish manifests, delete replaced files, flush rows.

    Args:
        settings: Settings of the operator.
        parts: The parts of the coordinator.
        writable: Returns the tables whose location may be written.

    Returns:
        The loops that repair tables and names, and the one that finds buffered rows.
    """
    own, context = settings.coordinator, parts.context

    def native() -> list[Table]:
        """Return the tables whose folder belongs to the service; those of lake tables do not."""
        return [table for table in writable() if table.lake is None]

    collector, manifests = parts.stored
    rules = KindRules(tables_max=TABLES_AT_ONCE, wait_max_s=own.collect_interval_s)
    collecting = OwnKind(part="the collector", rules=rules, tables=native, run=collector.run)
    publishing = OwnKind(part="publishing", rules=rules, tables=native, run=manifests.run)
    parts.upkeep.add(OperationName.GARBAGE, collecting)
    parts.upkeep.add(OperationName.MANIFEST, publishing)
    flushing = OwnKind(
        part="the flush of buffered rows",
        rules=KindRules(tables_max=TABLES_AT_ONCE, wait_max_s=settings.ingest.flush_age_max_s),
        tables=native,
        run=parts.flusher.run,
    )
    parts.upkeep.add(OperationName.FLUSH, flushing)
    unfinished = UnfinishedTables(
        context.store, own.garbage_grace_s, context.log, context.faults, _identities
    )
    return [
        parts.flusher.watch_forever(partial(parts.upkeep.ask, OperationName.FLUSH)),
        finish_drops_forever(
            context.store, writable, own.collect_interval_s, context.log, context.faults
        ),
        unfinished.run_forever(own.unfinished_interval_s),
    ]


def _collecting(
    settings: Settings, context: ShellContext
) -> tuple[GarbageCollector, ManifestPublisher]:
    """Return the collector, and the manifest publisher whose manifests it respects."""
    own, store = settings.coordinator, context.store
    known_generation = context.generations.known if context.generations else lambda _table: 0
    logs = PublishedLogs(
        partial(storage_options, settings.catalog),
        context.ids,
        own.garbage_grace_s,
        context.faults,
        context.threads,
    )
    manifests = ManifestPublisher(
        store,
        context.ids,
        own.garbage_grace_s,
        context.log,
        known_generation=known_generation,
        threads=context.threads,
        logs=logs,
    )
    rules = GarbageRules(
        grace_s=own.garbage_grace_s,
        clock_skew_max_s=own.clock_skew_max_s,
        retired_s=own.retired_names_s,
    )
    collector = GarbageCollector(
        store,
        ArrowStorage(context.clock, context.threads),
        rules,
        context.log,
        manifests,
        clock=context.clock,
        faults=context.faults,
        known_generation=known_generation,
    )
    return collector, manifests


def _flusher(settings: Settings, context: ShellContext) -> BufferFlusher:
    own = settings.coordinator
    ports = FlushPorts(
        store=context.store,
        ids=context.ids,
        threads=context.threads,
        write=write_guarded,
        look_max_s=own.garbage_grace_s,
    )
    rules = FlushRules.of(settings.ingest)
    known = context.generations.known if context.generations else lambda _table: 0
    return BufferFlusher(ports, rules, context.log, known_generation=known)


def _lake(
    settings: Settings, context: ShellContext, scanner: Scanner, service: CoordinatorService
) -> LakeFollower:
    """Return the follower of lake tables; it polls at once after own commits."""
    own = settings.coordinator
    rules = LakeRules(
        catalog=catalog_access(settings),
        grace_s=own.garbage_grace_s,
        sweep_s=own.collect_interval_s,
    )
    lake = LakeFollower(context, rules, scanner.tables.values, service.submit)
    lake.planning_held = scanner.held
    service.finish_published_by(lake.finish)
    scanner.on_committed.append(lake.poke)
    return lake


def _lake_maintenance(
    own: CoordinatorSettings,
    context: ShellContext,
    lake: LakeFollower,
    scanner: Scanner,
    upkeep: OwnMaintenance,
) -> LakeMaintenance:
    """Return the maintenance of lake tables, which the scheduler runs."""
    maintenance = LakeMaintenance(
        context, lake, own.garbage_grace_s, scanner.tables.values, scanner.refresh_tables
    )
    maintenance.add_to(upkeep)
    return maintenance


async def _identities(locations: Mapping[str, str]) -> Mapping[str, LocationIdentity]:
    return await asyncio.to_thread(identities_of, locations)


def _state_of(settings: Settings, context: ShellContext, *, is_scaled: bool) -> CoordinatorState:
    """Return the empty state of a core."""
    own, beat_s = settings.coordinator, settings.compactor.beat_interval_s
    served = settings.served_groups()
    return CoordinatorState(
        own,
        coordinator=context.coordinator,
        limits=Limits.of(own, beat_interval_s=beat_s, groups=settings.groups),
        groups=served,
        scaled=[name for name, most in served.items() if most and is_scaled],
        control=control_loop(settings),
    )


def assemble(
    settings: Settings,
    context: ShellContext,
    remote: RangeScans | None = None,
    lever: CompactorLever | None = None,
) -> CoordinatorParts:
    """Return the connected parts of a coordinator.

    Must be called in the event loop that will run them.

    Args:
        settings: Settings of the operator.
        context: Shared dependencies of the shell.
        remote: Executor for the ranges of large tables; None means this process.
        lever: Starts and ends compactors; None disables this.

    Raises:
        ConfigError: A plug-in of the settings is not installed.
        PluginError: One of them does not load.
    """
    own = settings.coordinator
    state = _state_of(settings, context, is_scaled=lever is not None)
    space = FreeSpace(context.clock, context.threads, lambda tablet: scanner.ask(tablet))
    corrections = TableCorrections(context)
    plan = planner_for(settings, around := _surroundings(context, state, space, corrections))
    scanner = Scanner(context.store, plan, context.log, context.faults, around)
    service = CoordinatorService(state, context, scanner)
    submit = service.submit
    scanner.attach(submit)
    selectors = SelectorCalls()
    policies = Policies(plan=plan, selectors=selectors, why_given_up=state.why_given_up)
    requests = RequestDriver(context, RequestSteps(context, policies, submit))
    automatic = AutomaticRequests(context, selectors)
    operations = _operations(own, context, plan, state, submit)
    autoscaler = Autoscaler(settings, context, lever, state=state, scanner=scanner, submit=submit)
    local = LocalRangeScans(context.store, plan)
    full_scan = FullScan(context.store, scanner, state, local, context.log)
    full_scan.use(remote, own.full_scan_tasks)
    store_care = StoreHealthWatch(context.store, context.log)
    upkeep = _upkeep(own, context, scanner, full_scan, store_care)
    stored, rate = _collecting(settings, context), autoscaler.slot_rate
    flusher = _flusher(settings, context)
    lake = _lake(settings, context, scanner, service)
    lake_maintenance = _lake_maintenance(own, context, lake, scanner, upkeep)
    scanner.on_table_changed.append(flusher.table_changed)
    scanner.before_planning.append(corrections.read_first)
    days_keeper = DailySumsKeeper(context)
    scanner.on_committed += [corrections.read_soon, days_keeper.count_soon]
    _listen(
        scanner, requests, operations, [automatic.tablet_read, space.tablet_read, lake.tablet_read]
    )
    return CoordinatorParts(
        store=context.store,
        context=context,
        state=state,
        scanner=scanner,
        full_scan=full_scan,
        service=service,
        requests=requests,
        selectors=selectors,
        automatic=automatic,
        triggers=TriggerDriver(context, scanner, state),
        operations=operations,
        limiting=RateLimits(context, service.submit),
        store_care=store_care,
        series_keeper=SeriesKeeper(context, state.series),
        windows_keeper=WindowUsageKeeper(context, state, service.submit),
        days_keeper=days_keeper,
        corrections=corrections,
        shadows=_shadows(settings, context, plan, scanner),
        autoscaler=autoscaler,
        stored=stored,
        lake=lake,
        lake_maintenance=lake_maintenance,
        flusher=flusher,
        upkeep=upkeep,
        maintenance=Maintenance(
            settings,
            context,
            plan,
            state,
            own=upkeep,
            lake=lake_maintenance,
            stored=(*stored, flusher),
            slot_rate=rate,
        ),
    )


def _operations(
    own: CoordinatorSettings,
    context: ShellContext,
    plan: PlanTablet,
    state: CoordinatorState,
    submit: Submit,
) -> OperationDriver:
    """Return the driver of splits and merges."""
    rules = OperationRules(lasts_max_s=own.operation_max_s, at_once_max=own.operations_max)
    steps = OperationSteps(
        context, plan, state.why_given_up, rules, state.fatal_file, submit=submit
    )
    return OperationDriver(context, steps)


def _listen(
    scanner: Scanner,
    requests: RequestDriver,
    operations: OperationDriver,
    readers: Collection[Callable[[Tablet, Table], None]],
) -> None:
    """Report changes and reads of the scanner to the parts that wait for them."""
    scanner.on_table_changed += [requests.table_changed, operations.table_changed]
    scanner.on_tablet_changed.append(requests.tablet_changed)
    scanner.on_tablet_read += [operations.tablet_read, *readers]


def _upkeep(
    own: CoordinatorSettings,
    context: ShellContext,
    scanner: Scanner,
    full_scan: FullScan,
    store_care: StoreHealthWatch,
) -> OwnMaintenance:
    """Return the scheduler of maintenance, which chooses the tables that are scanned."""
    upkeep = OwnMaintenance(context, own.maintenance_slots, lambda: store_care.health.used_pct)
    scanning = OwnKind(
        part="the full scan",
        rules=KindRules(tables_max=TABLES_AT_ONCE, wait_max_s=own.full_scan_interval_s),
        tables=scanner.tables.values,
        run=full_scan.run,
    )
    upkeep.add(OperationName.ANALYSIS, scanning)
    full_scan.ask_by(partial(upkeep.ask, OperationName.ANALYSIS))
    return upkeep


def _shadows(
    settings: Settings,
    context: ShellContext,
    plan: PlanTablet,
    scanner: Scanner,
) -> ShadowPlans:
    """Return the comparisons with shadow planners; they follow what the scanner reads."""
    shadows = ShadowPlans(partial(plan, only=Kind.SYSTEM), settings.services)

    def table_changed(table_id: str) -> None:
        table = scanner.tables.get(table_id)
        if table is None or not table.settings.shadow_planner:
            shadows.forget(table_id)
        else:
            shadows.table_seen(table)

    def tablet_read(tablet: Tablet, table: Table) -> None:
        shadows.tablet_read(tablet, table, context.clock.now_s())

    scanner.on_table_changed.append(table_changed)
    scanner.on_tablet_read.append(tablet_read)
    return shadows


def _surroundings(
    context: ShellContext,
    state: CoordinatorState,
    space: FreeSpace,
    corrections: TableCorrections,
) -> Callable[[Tablet, Table], Surroundings]:
    """Return the function that collects the facts for planners that are not metadata."""

    def around(tablet: Tablet, table: Table) -> Surroundings:
        return Surroundings(
            heat=state.heat(tablet.id, context.clock.now_s()),
            progress=state.progress(tablet.id) if tablet.running else {},
            free_bytes=space.of(table),
            correction=corrections.of(table.id),
        )

    return around
