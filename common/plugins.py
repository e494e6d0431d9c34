"""Plug-ins, found by the name of an entry point; and those that rewrites use.

Packages bring them as entry points; Névé's own come through the same door. Run from a
source tree that was never installed, Névé has no entry points, so its own are listed
beside each door, too; a test keeps these lists and `pyproject.toml` alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, cast

from common.errors import CompactionError, ConfigError, PluginError, RequestError
from common.spi.output import OutputConfigurer
from common.spi.transform import RowTransform


@dataclass(frozen=True, slots=True)
class ExtensionPoint:
    """One kind of plug-in."""

    group: str
    """The entry point group, such as `neve.planners`."""
    methods: tuple[str, ...]
    """That every plug-in must have."""
    built_in: Mapping[str, str] = field(default_factory=dict)
    """Névé's own: name → `module:class`."""

    def names(self) -> list[str]:
        """Return the names of all plug-ins, sorted."""
        return sorted({point.name for point in self._points()})

    def load(self, name: str) -> object:
        """Return a new plug-in.

        Raises:
            ConfigError: There is no plug-in of this name.
            PluginError: It cannot be imported or made, lacks a method, or two packages
                claim the name.
        """
        found = {point.value for point in self._points() if point.name == name}
        if not found:
            known = ", ".join(self.names()) or "none"
            raise ConfigError(f"{self.group}: {name!r} is not installed; installed: {known}")
        if len(found) > 1:
            claims = " and ".join(sorted(found))
            raise PluginError(
                f"{self.group}: {name!r} is claimed by {claims}; uninstall one of them"
            )
        where, value = f"{self.group}: {name!r}", found.pop()
        try:
            plugin: object = EntryPoint(name, value, self.group).load()()
        except (Exception, SystemExit) as error:
            message = f"{where} ({value}) does not load: {type(error).__name__}: {error}"
            raise PluginError(message) from error
        for method in self.methods:
            if not callable(getattr(plugin, method, None)):
                raise PluginError(f"{where} has no method {method}() ({value})")
        return plugin

    def _points(self) -> list[EntryPoint]:
        own = [EntryPoint(name, at, self.group) for name, at in self.built_in.items()]
        return [*entry_points(group=self.group), *own]


class ChecksOptions(Protocol):
    """A plug-in that takes options as texts."""

    def check(self, options: Mapping[str, str]) -> None:
        """Refuse options that are missing, unknown or wrong."""
        ...


def require_options(
    kind: str, name: str, plugin: ChecksOptions, options: Mapping[str, str]
) -> None:
    """Have a plug-in check options: whatever it raises is its way to refuse them.

    Args:
        kind: Such as `selector`.
        name: The plug-in's.
        plugin: Any that has `check`.
        options: As they were written.

    Raises:
        RequestError: It refuses them; the message names it.
    """
    try:
        plugin.check(options)
    except Exception as error:
        cause = str(error) if isinstance(error, CompactionError) else repr(error)
        said = cause if f"{kind} {name}" in cause else f"{kind} {name} refuses its options: {cause}"
        raise RequestError(said) from error


TRANSFORMS = ExtensionPoint("neve.transforms", ("apply",))
CONFIGURERS = ExtensionPoint(
    "neve.configurers",
    ("check", "configure"),
    {"by-size": "compactor.rewrite.by_size:BySize"},
)


def load_transform(name: str) -> RowTransform:
    """Return a new transform; errors as for `ExtensionPoint.load`."""
    return cast("RowTransform", TRANSFORMS.load(name))


def load_configurer(name: str) -> OutputConfigurer:
    """Return a new configurer; errors as for `ExtensionPoint.load`."""
    return cast("OutputConfigurer", CONFIGURERS.load(name))
