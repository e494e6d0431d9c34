"""Plug-ins that rewrites use, found by the name of an entry point.

Packages bring them as entry points; Névé's own come through the same door. Run from a
source tree that was never installed, Névé has no entry points, so its own are listed
here, too; a test keeps this list and `pyproject.toml` alike.
"""

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from common.errors import ConfigError, PluginError
from common.spi.output import OutputConfigurer
from common.spi.transform import RowTransform

TRANSFORMS = "neve.transforms"
CONFIGURERS = "neve.configurers"

BUILT_IN: dict[str, dict[str, str]] = {
    TRANSFORMS: {},
    CONFIGURERS: {"by-size": "compactor.rewrite.by_size:BySize"},
}
"""Entry point group → name → `module:class`."""


def plugin_names(group: str) -> list[str]:
    """Return the names of all plug-ins of an entry point group, sorted."""
    return sorted({point.name for point in _points(group)})


def load_transform(name: str) -> RowTransform:
    """Return a new transform.

    Raises:
        ConfigError: There is no plug-in of this name.
        PluginError: It cannot be imported or made, or two packages claim the name.
    """
    return cast("RowTransform", _loaded(TRANSFORMS, name, ("apply",)))


def load_configurer(name: str) -> OutputConfigurer:
    """Return a new configurer; errors as for `load_transform`."""
    return cast("OutputConfigurer", _loaded(CONFIGURERS, name, ("check", "configure")))


def _loaded(group: str, name: str, methods: Iterable[str]) -> object:
    found = {point.value for point in _points(group) if point.name == name}
    if not found:
        known = ", ".join(plugin_names(group)) or "none"
        raise ConfigError(f"{group}: {name!r} is not installed; installed: {known}")
    if len(found) > 1:
        claims = " and ".join(sorted(found))
        raise PluginError(f"{group}: {name!r} is claimed by {claims}; uninstall one of them")
    value = found.pop()
    try:
        plugin: object = EntryPoint(name, value, group).load()()
    except Exception as error:
        message = f"{group}: {name!r} ({value}) does not load: {type(error).__name__}: {error}"
        raise PluginError(message) from error
    for method in methods:
        if not callable(getattr(plugin, method, None)):
            raise PluginError(f"{group}: {name!r} ({value}) has no method {method}()")
    return plugin


def _points(group: str) -> Iterable[EntryPoint]:
    built_in = [EntryPoint(name, at, group) for name, at in BUILT_IN.get(group, {}).items()]
    return [*entry_points(group=group), *built_in]
