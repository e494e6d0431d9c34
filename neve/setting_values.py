"""Parses table settings as users write them: names, units and types.

Users may write `ttl` for `ttl_s` and `target` for `target_bytes`, because a value may have its own
unit (`7d`, `256MB`). `neve.gateway.table_settings` checks which values are allowed when settings
are changed.
"""

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from common.errors import RequestError
from common.model.fields import known_fields
from common.model.table import TableSettings
from common.units import (
    CHARS_MAX,
    SIZE_MAX_BYTES,
    exact_bytes,
    exact_duration,
    parse_duration_s,
    parse_size_bytes,
    parse_switch,
)

NAMES = tuple(known_field.name for known_field in known_fields(TableSettings))
_DEFAULTS = TableSettings()
_UNITS = ("_bytes", "_s")
_ALIASES = {
    name.removesuffix(unit): name for name in NAMES for unit in _UNITS if name.endswith(unit)
}
SIGNED = frozenset({"maintenance_priority"})
"""Settings that may be negative."""
OPTIONAL = frozenset({"ttl_s", "manifest_interval_s"})
"""Settings that may be off."""
_OFF = (None, "", "none", "off")


def known_name(written: str) -> str | None:
    """Return the full name of a setting; None if the setting is unknown."""
    name = written.replace("-", "_")
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
                raise _unknown_name(given, option_names)
            options[given] = value
        elif name in settings:
            raise RequestError(f"setting {name} is given twice, also as {given!r}; give it once")
        else:
            settings[name] = value
    return settings, options


def _unknown_name(written: str, besides: Collection[str]) -> RequestError:
    """Return the error for an unknown setting, with a suggestion.

    Args:
        written: The name that the user wrote.
        besides: Further known names.
    """
    name = written.replace("-", "_")
    close = difflib.get_close_matches(name, [*NAMES, *_ALIASES, *besides], n=1)
    hint = (
        f"did you mean {_ALIASES.get(close[0], close[0])!r}?"
        if close
        else "known: " + ", ".join([*NAMES, *sorted(besides)])
    )
    return RequestError(f"setting {written!r} is unknown; {hint}")


def setting_value(name: str, written: Any) -> Any:
    """Parse the value of a setting to the type and unit of its default.

    Args:
        name: Full name of the setting.
        written: The user's value: a number, a text, or a mapping for options.

    Raises:
        RequestError: The value has another type; the message names the expected type.
    """
    default = getattr(_DEFAULTS, name)
    if name in OPTIONAL and written in _OFF:
        return None
    if name.endswith("_bytes"):
        return parse_size_bytes(_number(written), f"setting {name}")
    if name.endswith("_s"):
        return parse_duration_s(_number(written), f"setting {name}")
    read = _READERS.get(type(default))
    return _numeric(name, written, type(default)) if read is None else read(name, written)


def setting_text(name: str, value: Any) -> str:
    """Format a setting for `setting_value`: `64MB`, `7d`, `none`."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if name.endswith("_bytes"):
        return exact_bytes(value)
    return exact_duration(value) if name.endswith("_s") else str(value)


def _shown(written: Any) -> str:
    """Return a shortened value for an error message."""
    if isinstance(written, int) and abs(written) > SIZE_MAX_BYTES:
        return "of too many digits"
    return repr(written)[:CHARS_MAX]


def _text(name: str, written: Any) -> str:
    if not isinstance(written, str):
        raise RequestError(f"setting {name} {_shown(written)} is not a text")
    return written


def _options(name: str, written: Any) -> dict[str, str]:
    """Parse options from a mapping, or from text such as `threshold=1GB,codec=zstd`."""
    if isinstance(written, Mapping):
        return {str(key): str(value) for key, value in written.items()}
    wanted = (
        f"setting {name} {_shown(written)} is no list of options, expected name=value,name=value"
    )
    if not isinstance(written, str):
        raise RequestError(wanted)
    options: dict[str, str] = {}
    for part in filter(None, map(str.strip, written.split(","))):
        key, equals, value = part.partition("=")
        if not (equals and key.strip()):
            raise RequestError(wanted)
        options[key.strip()] = value.strip()
    return options


def _names(name: str, written: Any) -> tuple[str, ...]:
    """Parse names from a list or from text such as `user,session`; `none` or `off` is empty."""
    if written in _OFF:
        return ()
    parts = [part.strip() for part in written.split(",")] if isinstance(written, str) else written
    if not isinstance(parts, list | tuple) or not all(isinstance(each, str) for each in parts):
        raise RequestError(
            f"setting {name} {_shown(written)} is no list of names, expected name,name"
        )
    return tuple(dict.fromkeys(filter(None, parts)))


def _number(written: Any) -> Any:
    """Convert a whole number in text form (from a command line); return other values unchanged."""
    if isinstance(written, str) and len(written) <= CHARS_MAX and written.strip().isdecimal():
        return int(written)
    return written


def _numeric(name: str, written: Any, kind: type[int] | type[float]) -> int | float:
    wanted = "a whole number" if kind is int else "a number"
    message = f"setting {name} {_shown(written)} is not {wanted}"
    if isinstance(written, bool) or not isinstance(written, int | float | str):
        raise RequestError(message)
    try:
        value, exact = kind(written), float(written)
    except (ValueError, OverflowError) as error:
        raise RequestError(message) from error
    if value != exact or not abs(value) < float("inf"):
        raise RequestError(message)
    if value < 0 and name not in SIGNED:
        raise RequestError(f"{message} of at least 0")
    return value


def _switch(name: str, written: Any) -> bool:
    value = parse_switch(written)
    if value is None:
        raise RequestError(
            f"setting {name} {_shown(written)} is not a switch, expected true or false"
        )
    return value


_READERS: dict[type, Callable[[str, Any], Any]] = {
    dict: _options,
    tuple: _names,
    bool: _switch,
    str: _text,
}
"""Parser by type of the setting's default; all other settings are numbers."""


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
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
