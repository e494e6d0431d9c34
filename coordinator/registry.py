"""Finds plug-ins by name: entry points first come from packages, then from Névé itself.

Built-in plug-ins use the same door as others: an entry point of the group's name. When
Névé runs from a source tree that was never installed there are no entry points, so the
built-ins are also listed here; a test keeps this list and `pyproject.toml` alike.
"""

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from common.errors import ConfigError, PluginError
from common.model.job import Kind
from common.model.plan import TabletPlan
from common.model.table import Table
from common.model.tablet import Tablet
from common.settings import Settings
from common.spi.dispatcher import Dispatcher
from common.spi.planner import Planner, RequestFacts
from common.spi.selector import Selector
from coordinator.core.planning import plan_tablet
from coordinator.ports import PlanTablet

PLANNERS = "neve.planners"
DISPATCHERS = "neve.dispatchers"
SELECTORS = "neve.selectors"

BUILT_IN: dict[str, dict[str, str]] = {
    PLANNERS: {"ratio": "coordinator.plugins.planners.ratio:RatioPlanner"},
    DISPATCHERS: {"simple": "coordinator.plugins.dispatchers.simple:SimpleDispatcher"},
    SELECTORS: {
        "age": "coordinator.plugins.selectors.by_age:ByAge",
        "all": "coordinator.plugins.selectors.everything:AllFiles",
        "deletes": "coordinator.plugins.selectors.deletes:TooManyDeletes",
        "expired": "coordinator.plugins.selectors.expired:ExpiredRatio",
        "name": "coordinator.plugins.selectors.by_name:ByName",
        "schema": "coordinator.plugins.selectors.schema:SchemaDrift",
        "size": "coordinator.plugins.selectors.by_size:BySize",
    },
}
"""Entry point group → name → `module:class`."""


def plugin_names(group: str) -> list[str]:
    """Return the names of all plug-ins of an entry point group, sorted."""
    return sorted({point.name for point in _points(group)})


def load_plugin(group: str, name: str) -> object:
    """Return a new plug-in.

    Args:
        group: The entry point group, such as `neve.planners`.
        name: The name of the entry point.

    Raises:
        ConfigError: There is no plug-in of this name.
        PluginError: It cannot be imported or made, or two packages claim the name.
    """
    found = {point.value for point in _points(group) if point.name == name}
    if not found:
        known = ", ".join(plugin_names(group)) or "none"
        raise ConfigError(f"{group}: {name!r} is not installed; installed: {known}")
    if len(found) > 1:
        claims = " and ".join(sorted(found))
        raise PluginError(f"{group}: {name!r} is claimed by {claims}; uninstall one of them")
    value = found.pop()
    try:
        factory = EntryPoint(name, value, group).load()
        return factory()
    except Exception as error:
        message = f"{group}: {name!r} ({value}) does not load: {type(error).__name__}: {error}"
        raise PluginError(message) from error


def load_planner(name: str) -> Planner:
    """Return a planner; errors as for `load_plugin`."""
    return cast("Planner", _with_method(PLANNERS, name, "plan"))


def load_dispatcher(name: str) -> Dispatcher:
    """Return a dispatcher; errors as for `load_plugin`."""
    return cast("Dispatcher", _with_method(DISPATCHERS, name, "dispatch"))


def load_selector(name: str) -> Selector:
    """Return a selector; errors as for `load_plugin`."""
    _with_method(SELECTORS, name, "check")
    return cast("Selector", _with_method(SELECTORS, name, "select"))


def planner_for(settings: Settings) -> PlanTablet:
    """Return the function that plans a tablet by what is configured.

    Everything is loaded now, so that a mistake stops the start and not the planning.

    Raises:
        ConfigError: A planner or the dispatcher is not installed.
        PluginError: One of them does not load.
    """
    names = sorted({service.planner for service in settings.services.values()})
    planners = {name: load_planner(name) for name in names}
    dispatcher = load_dispatcher(settings.dispatcher)

    def plan(
        tablet: Tablet,
        table: Table,
        now_s: float,
        requests: Mapping[str, RequestFacts] | None = None,
        *,
        only: Kind | None = None,
    ) -> TabletPlan:
        return plan_tablet(
            tablet,
            table,
            settings.services,
            planners,
            now_s,
            dispatcher=dispatcher,
            requests=requests,
            only=only,
        )

    return plan


def _points(group: str) -> Iterable[EntryPoint]:
    """Return the installed entry points of a group and the built-in ones."""
    built_in = [EntryPoint(name, at, group) for name, at in BUILT_IN.get(group, {}).items()]
    return [*entry_points(group=group), *built_in]


def _with_method(group: str, name: str, method: str) -> object:
    plugin = load_plugin(group, name)
    if not callable(getattr(plugin, method, None)):
        raise PluginError(f"{group}: {name!r} has no method {method}()")
    return plugin
