"""The coordinator's kinds of plug-in: planners, dispatchers and selectors, by name."""

from collections.abc import Mapping
from typing import cast

from common.model.job import Kind
from common.model.plan import TabletPlan
from common.model.table import Table
from common.model.tablet import Tablet
from common.plugins import Door
from common.settings import Settings
from common.spi.dispatcher import Dispatcher
from common.spi.planner import Planner, RequestFacts
from common.spi.selector import Selector
from coordinator.core.planning import plan_tablet
from coordinator.ports import PlanTablet

PLANNERS = Door(
    "neve.planners", ("plan",), {"ratio": "coordinator.plugins.planners.ratio:RatioPlanner"}
)
DISPATCHERS = Door(
    "neve.dispatchers",
    ("dispatch",),
    {"simple": "coordinator.plugins.dispatchers.simple:SimpleDispatcher"},
)
SELECTORS = Door(
    "neve.selectors",
    ("check", "select"),
    {
        "age": "coordinator.plugins.selectors.by_age:ByAge",
        "all": "coordinator.plugins.selectors.everything:AllFiles",
        "deletes": "coordinator.plugins.selectors.deletes:TooManyDeletes",
        "expired": "coordinator.plugins.selectors.expired:ExpiredRatio",
        "name": "coordinator.plugins.selectors.by_name:ByName",
        "schema": "coordinator.plugins.selectors.schema:SchemaDrift",
        "size": "coordinator.plugins.selectors.by_size:BySize",
    },
)
DOORS = (PLANNERS, DISPATCHERS, SELECTORS)


def load_planner(name: str) -> Planner:
    """Return a planner; errors as for `Door.load`."""
    return cast("Planner", PLANNERS.load(name))


def load_dispatcher(name: str) -> Dispatcher:
    """Return a dispatcher; errors as for `Door.load`."""
    return cast("Dispatcher", DISPATCHERS.load(name))


def load_selector(name: str) -> Selector:
    """Return a selector; errors as for `Door.load`."""
    return cast("Selector", SELECTORS.load(name))


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
