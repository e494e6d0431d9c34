"""The seven kinds of plug-in, found by the names of entry points.

Packages provide plug-ins as entry points, and Névé provides its own the same way. A source tree
that was never installed has no entry points, so Névé's own plug-ins are listed here as well. A
test keeps these lists equal to those in `pyproject.toml`.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Protocol, TypeVar, cast

from common.errors import CompactionError, ConfigError, PluginError, RequestError
from common.spi.controller import ControllerPlugin, TrackerPlugin
from common.spi.planner import Dispatcher, OutputConfigurer, Planner, RowTransform, Selector


@dataclass(frozen=True, slots=True)
class ExtensionPoint:
    """One kind of plug-in."""

    group: str
    """The entry point group, such as `neve.planners`."""
    methods: tuple[str, ...]
    """Methods that every plug-in must have."""
    built_in: Mapping[str, str] = field(default_factory=dict)
    """Névé's own plug-ins: name → `module:class`."""

    def names(self) -> list[str]:
        """Return the names of all plug-ins, sorted."""
        return _names(self._points())

    def require_installed(self, name: str) -> None:
        """Refuse the name of a missing plug-in, without importing anything.

        Raises:
            ConfigError: There is no plug-in of this name.
        """
        self._require(name, self._points())

    def load(self, name: str) -> object:
        """Return a new instance of a plug-in.

        Raises:
            ConfigError: There is no plug-in of this name.
            PluginError: It cannot be imported or created, lacks a method, or several packages
                claim the name.
        """
        points = self._points()
        self._require(name, points)
        values = {point.value for point in points if point.name == name}
        if len(values) > 1:
            claims = " and ".join(sorted(values))
            raise PluginError(
                f"{self.group}: {name!r} is claimed by {claims}; uninstall one of them"
            )
        where, value = f"{self.group}: {name!r}", values.pop()
        try:
            plugin: object = EntryPoint(name, value, self.group).load()()
        except (Exception, SystemExit) as error:
            message = f"{where} ({value}) does not load: {type(error).__name__}: {error}"
            raise PluginError(message) from error
        for method in self.methods:
            if not callable(getattr(plugin, method, None)):
                raise PluginError(f"{where} has no method {method}() ({value})")
        return plugin

    def _require(self, name: str, points: list[EntryPoint]) -> None:
        if name not in (names := _names(points)):
            installed = ", ".join(names) or "none"
            raise ConfigError(f"{self.group}: {name!r} is not installed; installed: {installed}")

    def _points(self) -> list[EntryPoint]:
        built_ins = [EntryPoint(name, at, self.group) for name, at in self.built_in.items()]
        return [*installed_points(self.group), *built_ins]


def installed_points(group: str) -> Sequence[EntryPoint]:
    """Return the entry points of a group in all installed packages.

    A package that is installed or removed while the process runs changes its folder of packages:
    then they are read again.
    """
    folders = tuple((folder, _changed_ns(folder)) for folder in sys.path)
    return _read_points(folders).get(group, ())


@lru_cache(maxsize=1)
def _read_points(_folders: tuple[tuple[str, int], ...]) -> Mapping[str, Sequence[EntryPoint]]:
    # Reads a file of each package, and a coordinator asks for a dozen plug-ins when it starts.
    points = entry_points()
    return {group: tuple(points.select(group=group)) for group in points.groups}


def _changed_ns(folder: str) -> int:
    try:
        return Path(folder).stat().st_mtime_ns
    except OSError:
        return 0


def _names(points: list[EntryPoint]) -> list[str]:
    return sorted({point.name for point in points})


# ----------------------------------------------------------------------------- The kinds of plug-in


PLANNERS = ExtensionPoint(
    "neve.planners",
    ("plan",),
    {
        "bin-pack": "coordinator.plugins.planners.bin_pack:BinPackPlanner",
        "budgeted": "coordinator.plugins.planners.budgeted:BudgetedPlanner",
        "delta": "coordinator.plugins.planners.delta:DeltaPlanner",
        "log-segment": "coordinator.plugins.planners.log_segment:LogSegmentPlanner",
        "leveled": "coordinator.plugins.planners.leveled:LeveledPlanner",
        "ratio": "coordinator.plugins.planners.ratio:RatioPlanner",
        "size-tiered": "coordinator.plugins.planners.size_tiered:SizeTieredPlanner",
        "time-window": "coordinator.plugins.planners.time_window:TimeWindowPlanner",
        "time-chunk": "coordinator.plugins.planners.time_chunk:TimeChunkPlanner",
        "unified": "coordinator.plugins.planners.unified:UnifiedPlanner",
    },
)
DEFAULT_PLANNER = "ratio"
"""Default planner, also used for files that the planner of a request leaves out."""
DISPATCHERS = ExtensionPoint(
    "neve.dispatchers",
    ("dispatch",),
    {"simple": "coordinator.plugins.dispatchers:SimpleDispatcher"},
)
SELECTORS = ExtensionPoint(
    "neve.selectors",
    ("check", "select"),
    {
        "age": "coordinator.plugins.selectors:ByAge",
        "all": "coordinator.plugins.selectors:AllFiles",
        "deletes": "coordinator.plugins.selectors:TooManyDeletes",
        "expired": "coordinator.plugins.selectors:ExpiredRatio",
        "layout": "coordinator.plugins.selectors:FaultyLayout",
        "name": "coordinator.plugins.selectors:ByName",
        "schema": "coordinator.plugins.selectors:SchemaDrift",
        "size": "coordinator.plugins.selectors:BySize",
    },
)
TRANSFORMS = ExtensionPoint("neve.transforms", ("apply",))
CONFIGURERS = ExtensionPoint(
    "neve.configurers",
    ("check", "configure"),
    {"by-size": "compactor.rewrite.by_size:BySize"},
)
TRACKERS = ExtensionPoint(
    "neve.trackers",
    ("tracker",),
    {
        "date-tiered": "coordinator.plugins.trackers:DateTieredTrackers",
        "fixed": "coordinator.plugins.trackers:FixedTrackers",
        "leveled": "coordinator.plugins.trackers:LeveledTrackers",
        "none": "coordinator.plugins.trackers:NullTrackers",
        "ratio": "coordinator.plugins.trackers:RatioTrackers",
        "size-tiered": "coordinator.plugins.trackers:SizeTieredTrackers",
        "time-window": "coordinator.plugins.trackers:TimeWindowTrackers",
        "unified": "coordinator.plugins.planners.unified:UnifiedTrackers",
    },
)
CONTROLLERS = ExtensionPoint(
    "neve.controllers",
    ("controller",),
    {
        "control-points": "coordinator.plugins.controllers:ControlPointsControllers",
        "debt": "coordinator.plugins.controllers:DebtControllers",
        "drain-time": "coordinator.plugins.controllers:DrainTimeControllers",
        "shares": "coordinator.plugins.controllers:SharesControllers",
        "static": "coordinator.plugins.controllers:StaticControllers",
    },
)
EXTENSION_POINTS = (
    PLANNERS,
    DISPATCHERS,
    SELECTORS,
    TRANSFORMS,
    CONFIGURERS,
    TRACKERS,
    CONTROLLERS,
)


def load_planner(name: str) -> Planner:
    """Return a new planner; errors as for `ExtensionPoint.load`."""
    return cast("Planner", PLANNERS.load(name))


def load_tracker(name: str) -> TrackerPlugin:
    """Return a new factory of backlog trackers; errors as for `ExtensionPoint.load`."""
    return cast("TrackerPlugin", TRACKERS.load(name))


def load_controller_plugin(name: str) -> ControllerPlugin:
    """Return a new factory of controllers; errors as for `ExtensionPoint.load`."""
    return cast("ControllerPlugin", CONTROLLERS.load(name))


def load_dispatcher(name: str) -> Dispatcher:
    """Return a new dispatcher; errors as for `ExtensionPoint.load`."""
    return cast("Dispatcher", DISPATCHERS.load(name))


def load_selector(name: str) -> Selector:
    """Return a new selector; errors as for `ExtensionPoint.load`."""
    return cast("Selector", SELECTORS.load(name))


def load_transform(name: str) -> RowTransform:
    """Return a new transform; errors as for `ExtensionPoint.load`."""
    return cast("RowTransform", TRANSFORMS.load(name))


def load_configurer(name: str) -> OutputConfigurer:
    """Return a new configurer; errors as for `ExtensionPoint.load`."""
    return cast("OutputConfigurer", CONFIGURERS.load(name))


# --------------------------------------------------------------------- Plug-ins that a caller names


class ChecksOptions(Protocol):
    """A plug-in that takes options as texts."""

    def check(self, options: Mapping[str, str]) -> None:
        """Refuse missing, unknown or wrong options."""
        ...


RequestedPlugin = TypeVar("RequestedPlugin", bound=ChecksOptions)


def require_options(
    kind: str, name: str, plugin: ChecksOptions, options: Mapping[str, str]
) -> None:
    """Let a plug-in check its options. Any error that it raises is a refusal.

    Args:
        kind: Kind of plug-in, such as `selector`.
        name: Name of the plug-in.
        plugin: Any plug-in that has `check`.
        options: Options as the caller wrote them.

    Raises:
        RequestError: The plug-in refuses the options; the message names it.
    """
    try:
        plugin.check(options)
    except Exception as error:
        cause = str(error) if isinstance(error, CompactionError) else repr(error)
        message = (
            cause if f"{kind} {name}" in cause else f"{kind} {name} refuses its options: {cause}"
        )
        raise RequestError(message) from error


def summary_names(selector: object, options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the footer entries that a selector reads; most selectors read none.

    Args:
        selector: Any selector.
        options: Checked options.
    """
    wanted = getattr(selector, "summary_names", None)
    return () if wanted is None else tuple(wanted(options))


def load_requested(
    kind: str,
    name: str,
    options: Mapping[str, str],
    load: Callable[[str], RequestedPlugin],
    where: str = "",
) -> RequestedPlugin:
    """Return a new plug-in that a caller named, after it has accepted its options.

    Args:
        kind: Kind of plug-in, such as `selector`.
        name: Name of the plug-in.
        options: Options as the caller wrote them.
        load: The loader of this kind.
        where: Prefix of the message for a missing plug-in.

    Raises:
        RequestError: There is no plug-in of this name, or it refuses the options.
        PluginError: The plug-in does not load.
    """
    with request_errors(where):
        plugin = load(name)
    require_options(kind, name, plugin, options)
    return plugin


@contextmanager
def request_errors(where: str = "") -> Iterator[None]:
    """Turn the error for a missing plug-in into an error of the caller who named it.

    Args:
        where: Prefix of the message.

    Raises:
        RequestError: The body raised a `ConfigError`.
    """
    try:
        yield
    except ConfigError as error:
        raise RequestError(f"{where}{error}") from error
