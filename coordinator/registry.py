"""Loads the planning plug-ins named in the settings, and validates their options."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from common.control_settings import ControlSettings
from common.errors import ConfigError, PluginError, SettingError
from common.model.file import ChunkGrid
from common.model.group import Service
from common.model.job import Kind, TabletPlan
from common.model.table import PLANNER_SETTINGS, Table, TableSettings
from common.model.tablet import Tablet
from common.plugins import (
    DEFAULT_PLANNER,
    PLANNERS,
    TRACKERS,
    load_controller_plugin,
    load_dispatcher,
    load_planner,
    load_tracker,
)
from common.primitives import digest
from common.settings import Settings
from common.spi.controller import BacklogTracker, Controller, ShareClass, TrackerPlugin
from common.spi.planner import (
    Dispatcher,
    Planner,
    RequestFacts,
    Surroundings,
    check_options,
    chunk_grid,
    settings_read_by,
)
from common.units import parse_size_bytes
from coordinator.core.backlog import measured
from coordinator.core.control import ControlLoop, ControlRules, GuardRules, with_pressure
from coordinator.core.planning import plan_tablet, planner_of_system
from coordinator.core.scans import PlanScope, scope_of, with_scope
from coordinator.ports import PlanTablet
from neve.api import Correction


def load_planners(services: Mapping[str, Service]) -> dict[str, Planner]:
    """Return the planners of all services by name, with validated options.

    Args:
        services: Services by name.

    Raises:
        SettingError: A planner is not installed, does not load, or rejects an option; `names`
            has the affected settings.
    """
    planners: dict[str, Planner] = {}
    for service in services.values():
        where = f"services.{service.name}"
        try:
            planner = planners.setdefault(service.planner, load_planner(service.planner))
        except (ConfigError, PluginError) as error:
            raise SettingError(str(error), f"{where}.planner") from error
        try:
            check_options(service.planner, planner, service.options)
        except ConfigError as error:
            options = [f"{where}.options.{name}" for name in service.options]
            message = f"service {service.name!r}: {error}"
            raise SettingError(message, f"{where}.planner", *options) from error
    return planners


class InstalledPlanners(Mapping[str, Planner]):
    """Planners by name: the loaded planners of services, and all others that are installed.

    A planner that only tables use is loaded when its first table is planned. If that fails, each of
    its tables gets the error.
    """

    def __init__(self, loaded: Mapping[str, Planner]) -> None:
        """Create a mapping with the loaded planners of services."""
        self._loaded: dict[str, Planner | PluginError] = dict(loaded)

    def __getitem__(self, name: str) -> Planner:
        """Return a planner.

        Raises:
            KeyError: The planner is not installed.
            PluginError: The planner does not load.
        """
        if name not in self._loaded:
            try:
                self._loaded[name] = load_planner(name)
            except ConfigError as error:
                raise KeyError(name) from error
            except PluginError as error:
                self._loaded[name] = error
        plugin = self._loaded[name]
        if isinstance(plugin, PluginError):
            raise plugin
        return plugin

    def __iter__(self) -> Iterator[str]:
        """Return the names of all installed planners."""
        return iter(PLANNERS.names())

    def __len__(self) -> int:
        """Return the number of installed planners."""
        return len(PLANNERS.names())


def unread_settings(planners: Mapping[str, Planner]) -> dict[str, str]:
    """Return the table settings that have no effect with these planners, and the reasons.

    Args:
        planners: All planners that the table may use, by name.
    """
    setting_names = [settings_read_by(planner) for planner in planners.values()]
    declared = [names for names in setting_names if names is not None]
    if len(declared) < len(setting_names):
        return {}  # A planner without a declaration may read any setting.
    names = ", ".join(sorted(planners))
    why = f"has no effect yet: no planner that the table uses reads it ({names})"
    return dict.fromkeys(sorted(PLANNER_SETTINGS.difference(*declared)), why)


def unread_of_table(settings: Settings) -> Callable[[TableSettings], Mapping[str, str]]:
    """Return a function that returns the settings that a table's planner does not read, and why.

    Args:
        settings: Settings of the service.

    Raises:
        SettingError: As for `load_planners`.
    """
    of_services = load_planners(settings.services)
    installed = InstalledPlanners(of_services)

    def unread(table: TableSettings) -> Mapping[str, str]:
        if not table.planner:
            return unread_settings(of_services)
        try:
            return unread_settings({table.planner: installed[table.planner]})
        except (KeyError, PluginError):
            return {}  # Planning reports the error.

    return unread


# ------------------------------------------------------------------------------------ Controllers


def load_controller(settings: ControlSettings) -> Controller:
    """Return the controller named in the settings.

    Raises:
        SettingError: The controller is not installed, does not load, or rejects its options.
    """
    options = settings.option_values()
    try:
        plugin = load_controller_plugin(settings.controller)
        return plugin.controller(options)
    except (ConfigError, PluginError) as error:
        names = ("control.controller", *(["control.options"] if options else []))
        raise SettingError(str(error), *names) from error


def control_loop(settings: Settings) -> ControlLoop:
    """Return the control loop of a service, before its first decision.

    Raises:
        SettingError: As for `load_controller`.
    """
    control = settings.control
    rules = ControlRules(
        period_s=control.period_s,
        base_shares={
            ShareClass.SYSTEM: control.system_shares,
            ShareClass.USER: control.user_shares,
            ShareClass.URGENT: control.urgent_shares,
            ShareClass.STATISTICS: control.statistics_shares,
        },
        guard=GuardRules(
            slew_shares_s=control.slew_shares_s,
            hysteresis=control.hysteresis,
            bytes_s_min=control.bytes_s_min,
        ),
        bytes_s_max=control.bytes_s_max or None,
        foreground_limit_s=control.foreground_limit_s or None,
        memory_bytes=control.memory_bytes or executors_memory_bytes(settings),
        group_slots={
            name: group.compactors.max * settings.compactor_of(name).slots
            for name, group in settings.groups.items()
        },
        foreground_shares=control.foreground_shares,
    )
    return ControlLoop(load_controller(control), rules)


def executors_memory_bytes(settings: Settings) -> int:
    """Return the total heap size of all executors that may run at the same time."""
    return sum(
        compactor.executors * parse_size_bytes(compactor.executor_memory)
        for group in settings.compactors_max()
        for compactor in [settings.compactor_of(group)]
    )


# --------------------------------------------------------------------------------------- Trackers


class _BrokenTrackers:
    """Replaces a plug-in that does not load; every call raises the load error."""

    option_names: frozenset[str] = frozenset()
    setting_names: frozenset[str] = frozenset()

    def __init__(self, problem: PluginError) -> None:
        self._problem = problem

    def tracker(self, settings: TableSettings, options: Mapping[str, object]) -> BacklogTracker:
        """Raise the load error."""
        raise self._problem


def load_trackers() -> dict[str, TrackerPlugin]:
    """Return all backlog trackers by name; one that does not load affects only its own backlogs."""
    trackers: dict[str, TrackerPlugin] = {}
    for name in TRACKERS.names():
        try:
            trackers[name] = load_tracker(name)
        except PluginError as problem:
            trackers[name] = _BrokenTrackers(problem)
    return trackers


def _chunk_policy(
    table: Table,
    services: Mapping[str, Service],
    planners: Mapping[str, Planner],
    dispatcher: Dispatcher | None,
) -> tuple[ChunkGrid, str] | None:
    """Return the chunks of a table's planner, if it has any, and a digest of what it decides by."""
    try:
        name, options = planner_of_system(table, services, dispatcher)
    except PluginError:
        return None  # Planning reports the error.
    grid = chunk_grid(planners.get(name), options, table.settings)
    if grid is None:
        return None
    return grid, digest([name, repr(sorted(options.items())), str(table.settings_version)])


def unknown_surroundings(_tablet: Tablet, _table: Table) -> Surroundings:
    """Return empty surroundings, for a process without data on reads, attempts and free space."""
    return Surroundings()


def with_backlog(
    plan: TabletPlan,
    tablet: Tablet,
    table: Table,
    trackers: Mapping[str, TrackerPlugin],
    now_s: float,
    *,
    services: Mapping[str, Service],
    dispatcher: Dispatcher | None = None,
    untracked_bytes: int = 0,
) -> TabletPlan:
    """Return a plan with the backlog of its tablet; without work, return it unchanged.

    Args:
        plan: Plan of the tablet.
        tablet: The version that was planned.
        table: Its table.
        trackers: Name of a planner → tracker that measures its backlog.
        now_s: The store's time.
        services: Services by name.
        dispatcher: Chooses the service; None means the service in the table's settings.
        untracked_bytes: Backlog to report without a tracker; 0 means the inputs of the jobs.
    """
    wanted = [job for job in plan.jobs if job.kind is Kind.SYSTEM]
    if not wanted and not tablet.reserved_files:
        return plan
    try:
        name, options = planner_of_system(table, services, dispatcher)
    except PluginError:
        return plan  # Planning reports the error.
    tracker = (name, trackers[name]) if name in trackers else None
    backlog = measured(
        tablet,
        table.settings,
        tracker,
        options,
        jobs=wanted,
        now_s=now_s,
        untracked_bytes=untracked_bytes,
    )
    return replace(plan, backlog=backlog)


def planner_for(
    settings: Settings, around: Callable[[Tablet, Table], Surroundings] = unknown_surroundings
) -> PlanTablet:
    """Return the function that plans a tablet with the configured plug-ins.

    All plug-ins are loaded now, so that an error prevents the start instead of planning.

    Args:
        settings: Settings of the operator.
        around: Returns the facts about a tablet that are not part of its metadata.

    Raises:
        SettingError: A planner or the dispatcher is not installed, does not load, or rejects the
            options of a service.
    """
    planners = InstalledPlanners(load_planners(settings.services))
    try:
        dispatcher = load_dispatcher(settings.dispatcher)
    except (ConfigError, PluginError) as error:
        raise SettingError(str(error), "dispatcher") from error
    fallback = load_planner(DEFAULT_PLANNER)
    trackers = load_trackers()

    def plan(
        tablet: Tablet,
        table: Table,
        now_s: float,
        requests: Mapping[str, RequestFacts] | None = None,
        *,
        only: Kind | None = None,
        correction: Correction | None = None,
    ) -> TabletPlan:
        policy = None
        if tablet.chunks is not None and only is None:
            policy = _chunk_policy(table, settings.services, planners, dispatcher)
        scope = PlanScope(tablet)
        if policy is not None:
            scope = scope_of(tablet, table, *policy, now_s)
        known = around(tablet, table)
        if scope.latest_s is not None:
            known = replace(known, latest_s=scope.latest_s)
        if correction is not None:
            known = replace(known, correction=correction)
        tablet_plan = plan_tablet(
            scope.tablet,
            table,
            settings.services,
            planners,
            now_s,
            dispatcher=dispatcher,
            fallback=fallback,
            requests=requests,
            only=only,
            around=known,
        )
        tablet_plan = with_pressure(tablet_plan, scope.tablet, table.settings.target_bytes)
        if policy is not None:
            tablet_plan = with_scope(tablet_plan, tablet, scope, *policy)
        return with_backlog(
            tablet_plan,
            scope.tablet,
            table,
            trackers,
            now_s,
            services=settings.services,
            dispatcher=dispatcher,
            untracked_bytes=settings.coordinator.untracked_backlog_bytes,
        )

    return plan
