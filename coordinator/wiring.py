"""Assembles the parts of a coordinator."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

from common.metadata.store import TabletStore
from common.model.location_identity import LocationIdentity
from common.model.table import Table
from common.model.tablet import Tablet, TabletId
from common.parquet.location import identities_of
from common.settings import Settings
from common.spi.planner import Surroundings
from common.wire import CoordinatorStatus
from coordinator.autoscaler import Autoscaler
from coordinator.context import ShellContext
from coordinator.core import events as on
from coordinator.core.limits import Limits
from coordinator.core.scans import GarbageRules
from coordinator.core.state import CoordinatorState
from coordinator.figures import (
    backlog_figures,
    control_figures,
    fault_figures,
    request_figures,
    scaling_figures,
    scan_figures,
    scope_figures,
    selector_figures,
    store_figures,
    trigger_figures,
)
from coordinator.maintenance import Maintenance
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
from coordinator.storage.garbage_collector import (
    GarbageCollector,
    UnfinishedTables,
    collect_forever,
)
from coordinator.storage.manifests import ManifestPublisher
from coordinator.storage.storage_access import ArrowStorage, FreeSpace
from coordinator.store_watch import RateLimits, StoreHealthWatch
from coordinator.triggers import TriggerDriver
from neve import api


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
    autoscaler: Autoscaler
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
        sentences = (*faults, *self.operations.sentences(tablet), *explanation.sentences)
        return replace(explanation, sentences=sentences)

    def loops(self, settings: Settings) -> list[Coroutine[Any, Any, None]]:
        """Return the loops that run forever, without storage loops and the check of the lead."""
        own = settings.coordinator
        return [
            self.scanner.plan_forever(),
            self.scanner.follow_forever(),
            self.scanner.refresh_tables_forever(),
            self.full_scan.run_forever(own),
            self.requests.run_forever(),
            self.automatic.run_forever(),
            self.triggers.run_forever(own.tick_s),
            self.operations.run_forever(),
            self.limiting.run_forever(),
            self.store_care.run_forever(),
            self.autoscaler.run_forever(),
            self._tick_forever(own.tick_s),
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
        )
        return replace(
            status,
            groups=groups,
            quarantined=status.quarantined + faults.unreadable_tablets,
            tables_unscanned=self.full_scan.unscanned_tables,
            figures=figures,
            store_warnings=(
                *self.store_care.health.warnings,
                *faults.notices,
                *faults.all_unreadable(),
            ),
        )

    def _scaling(self, group: str, status: CoordinatorStatus) -> api.GroupScaling | None:
        own = [compactor for compactor in status.compactors if compactor.group == group]
        return self.autoscaler.scaling(group, own)

    async def _tick_forever(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            self.service.submit(on.Ticked())
            self.requests.look_at_deadlines()


@dataclass(frozen=True, slots=True)
class FatalFilesInCore:
    """The core's quarantine of files that crash every process that reads them."""

    state: CoordinatorState
    submit: Submit

    def of(self, tablet: TabletId) -> str | None:
        """Return why the files of a tablet must not be read, or None."""
        return self.state.fatal_file(tablet)

    def note(self, tablet: TabletId, path: str, cause: str) -> None:
        """Quarantine a file."""
        self.submit(on.FileFatal(tablet=tablet, path=path, cause=cause))


def storage_loops(
    settings: Settings, context: ShellContext, writable: Callable[[], Collection[Table]]
) -> list[Coroutine[Any, Any, None]]:
    """Return the loops that publish manifests, delete replaced files and repair tables.

    Args:
        settings: Settings of the operator.
        context: Shared dependencies of the shell.
        writable: Returns the tables whose location may be written.
    """
    own, store = settings.coordinator, context.store
    manifests, collector = _collecting(settings, context)
    return [
        collect_forever(
            store,
            collector,
            writable,
            own.collect_interval_s,
            context.log,
            faults=context.faults,
        ),
        manifests.run_forever(writable, own.collect_interval_s),
        UnfinishedTables(
            store,
            own.garbage_grace_s,
            context.log,
            context.faults,
            _identities,
        ).run_forever(own.unfinished_interval_s),
    ]


def _collecting(
    settings: Settings, context: ShellContext
) -> tuple[ManifestPublisher, GarbageCollector]:
    """Return the manifest publisher, and the collector that respects its manifests."""
    own, store = settings.coordinator, context.store
    known = context.generations.known if context.generations else lambda _table: 0
    manifests = ManifestPublisher(
        store,
        context.ids,
        own.garbage_grace_s,
        context.log,
        known_generation=known,
        faults=context.faults,
        threads=context.threads,
    )
    rules = GarbageRules(
        grace_s=own.garbage_grace_s,
        clock_skew_max_s=own.clock_skew_max_s,
        retired_s=own.retired_names_s,
    )
    storage = ArrowStorage(context.clock, context.threads)
    collector = GarbageCollector(
        store,
        storage,
        rules,
        context.log,
        manifests,
        clock=context.clock,
        faults=context.faults,
        known_generation=known,
    )
    return manifests, collector


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
    plan = planner_for(settings, _surroundings(context, state, space))
    scanner = Scanner(context.store, plan, context.log, context.faults)
    service = CoordinatorService(state, context, scanner)
    submit = service.submit
    scanner.attach(submit)
    selectors = SelectorCalls()
    policies = Policies(plan=plan, selectors=selectors, why_given_up=state.why_given_up)
    requests = RequestDriver(context, RequestSteps(context, policies, service.submit))
    automatic = AutomaticRequests(context, selectors)
    rules = OperationRules(lasts_max_s=own.operation_max_s, at_once_max=own.operations_max)
    fatal = FatalFilesInCore(state, service.submit)
    steps = OperationSteps(context, plan, state.why_given_up, rules, fatal, submit=service.submit)
    operations = OperationDriver(context, steps)
    autoscaler = Autoscaler(settings, context, lever, state=state, scanner=scanner, submit=submit)
    local = LocalRangeScans(context.store, plan)
    full_scan = FullScan(context.store, scanner, state, local, context.log)
    full_scan.use(remote, own.full_scan_tasks)
    scanner.on_table_changed += [requests.table_changed, operations.table_changed]
    scanner.on_tablet_changed.append(requests.tablet_changed)
    scanner.on_tablet_read += [automatic.tablet_read, operations.tablet_read, space.tablet_read]
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
        store_care=StoreHealthWatch(context.store, context.log),
        maintenance=_maintenance(settings, context, plan, state, autoscaler),
        autoscaler=autoscaler,
    )


def _surroundings(
    context: ShellContext, state: CoordinatorState, space: FreeSpace
) -> Callable[[Tablet, Table], Surroundings]:
    """Return the function that collects the facts for planners that are not metadata."""

    def around(tablet: Tablet, table: Table) -> Surroundings:
        return Surroundings(
            heat=state.heat(tablet.id, context.clock.now_s()),
            progress=state.progress(tablet.id) if tablet.running else {},
            free_bytes=space.of(table),
        )

    return around


def _maintenance(
    settings: Settings,
    context: ShellContext,
    plan: PlanTablet,
    state: CoordinatorState,
    autoscaler: Autoscaler,
) -> Maintenance:
    _, collector = _collecting(settings, context)
    return Maintenance(settings, context, plan, state, collector, slot_rate=autoscaler.slot_rate)
