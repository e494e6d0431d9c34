"""Parses table settings as users write them: names, units and types.

Users may write `ttl` for `ttl_s` and `target` for `target_bytes`, because a value may have its own
unit (`7d`, `256MB`). `neve.gateway.table_settings` checks which values are allowed when settings
are changed.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from common.documents import INFINITY, UNITS, FieldKind, FieldRule, kind_of, unknown
from common.errors import RequestError
from common.model.fields import known_fields
from common.model.table import TableSettings
from common.units import exact_bytes, exact_duration, shown

NAMES = tuple(known_field.name for known_field in known_fields(TableSettings))
_DEFAULTS = TableSettings()
_ALIASES = {
    name.removesuffix(unit): name for name in NAMES for unit in UNITS if name.endswith(unit)
}
SIGNED = frozenset({"maintenance_priority"})
"""Settings that may be negative."""
OPTIONAL = frozenset({"ttl_s", "manifest_interval_s"})
"""Settings that may be off."""


def rule_of(name: str) -> FieldRule:
    """Return the kind of a setting, by its full name."""
    kind = kind_of(name, getattr(_DEFAULTS, name))
    unsigned = kind in (FieldKind.COUNT, FieldKind.NUMBER) and name not in SIGNED
    return FieldRule(
        kind=kind,
        optional=name in OPTIONAL or kind is FieldKind.TEXTS,
        least=0 if unsigned else -INFINITY,
    )


def known_name(text: str) -> str | None:
    """Return the full name of a setting; None if the setting is unknown."""
    name = text.replace("-", "_")
    name = _ALIASES.get(name, name)
    return name if name in NAMES else None


def settings_by_name(
    written: Mapping[str, Any], option_names: Collection[str] | None = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split table settings, by full name, from options.

    Args:
        written: Name → value, as the user wrote them. Values are not changed.
        option_names: Names of known options; None: all unknown names are options.

    Raises:
        RequestError: A name is unknown, or two names mean the same setting.
    """
    settings: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for given, value in written.items():
        name = known_name(given)
        if name is None:
            if option_names is not None and given not in option_names:
                names = [*NAMES, *_ALIASES, *option_names]
                raise unknown(f"setting {shown(given)}", given.replace("-", "_"), names)
            options[given] = value
        elif name in settings:
            raise RequestError(f"setting {name} is given twice, also as {given!r}; give it once")
        else:
            settings[name] = value
    return settings, options


def setting_value(name: str, value: Any) -> Any:
    """Parse the value of a setting to the type and unit of its default.

    Args:
        name: Full name of the setting.
        value: The user's value: a number, a text, or a mapping for options.

    Raises:
        RequestError: The value has another type, or is negative.
    """
    return rule_of(name).read(value, f"setting {name}")


def setting_text(name: str, value: Any) -> str:
    """Format a setting for `setting_value`: `64MB`, `7d`, `none`."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if name.endswith("_bytes"):
        return exact_bytes(value)
    return exact_duration(value) if name.endswith("_s") else str(value)


# -------------------------------------------------------------------- Settings of a described table


def read_settings(
    written: Mapping[str, object],
    option_names: frozenset[str] | None,
    overrides: Mapping[str, object] | None = None,
) -> tuple[TableSettings, dict[str, object]]:
    """Parse a table's settings and its planner's options.

    Args:
        written: Name → value, as the user wrote them.
        option_names: Names of the planner's options; None: the planner does not declare any, and
            gets every name that is not a table setting.
        overrides: Values that override `written`, even under an alias of a setting.

    Raises:
        RequestError: A name is unknown or repeated, or a value is invalid for its setting.
    """
    values: dict[str, Any] = {}
    options: dict[str, object] = {}
    for given in (written, overrides or {}):
        settings, others = settings_by_name(given, option_names)
        values.update({name: setting_value(name, value) for name, value in settings.items()})
        options.update({name: _option_value(value) for name, value in others.items()})
    return replace(TableSettings(), **values), options


def _option_value(value: object) -> object:
    """Return an option; convert a number in text form."""
    if isinstance(value, str):
        for kind in (FieldKind.COUNT, FieldKind.NUMBER):
            with suppress(RequestError):
                return FieldRule(kind=kind).parse(value, "option")
    return value
