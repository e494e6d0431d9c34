"""Settings of a table from what a user wrote: by name, with units, or refused.

`ttl_s` may be written `ttl`, `target_bytes` `target`: the unit in the name is ours, a
value may bring its own (`7d`, `256MB`). Options of a plug-in are checked by the plug-in.
"""

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from typing import Any

from common.errors import ConfigError, RequestError
from common.model.table import DNS_LABEL, TableSettings
from common.parquet.codecs import CODECS, LEVELS, has_level
from common.plugins import load_configurer
from common.spi.output import OutputConfigurer
from common.spi.selector import Selector
from common.units import parse_duration_s, parse_size_bytes
from coordinator.registry import load_selector

NAMES = tuple(each.name for each in fields(TableSettings))
_UNITS = ("_bytes", "_s")
_ALIASES = {
    name.removesuffix(unit): name for name in NAMES for unit in _UNITS if name.endswith(unit)
}
_OPTIONAL = frozenset({"ttl_s"})
_NONE = (None, "", "none", "off")

Check = tuple[Callable[[Any], bool], str]
_CHECKS: dict[str, Check] = {
    "ratio": (lambda value: value >= 1, "at least 1"),
    "lowest_ratio": (lambda value: value >= 1, "at least 1"),
    "max_files": (lambda value: value >= 2, "at least 2"),
    "file_limit": (lambda value: value == 0 or value >= 2, "0 (no limit known) or at least 2"),
    "target_bytes": (lambda value: value >= 1024, "at least 1 KiB"),
    "row_group_bytes": (lambda value: 64 * 1024 <= value <= 1024**3, "64 KiB to 1 GiB"),
    "ttl_s": (lambda value: value is None or value > 0, "more than 0, or none"),
    "codec": (lambda value: value in CODECS, "one of " + ", ".join(CODECS)),
    "weight": (lambda value: 0 < value <= 1000, "more than 0, at most 1000"),
    "hold_expiry_s": (lambda value: value >= 1, "at least 1 s"),
    "volume": (lambda value: bool(DNS_LABEL.fullmatch(value)), "a DNS label such as disk-1"),
}


def changed_settings(
    present: TableSettings, wanted: Mapping[str, Any], *, services: Collection[str]
) -> TableSettings:
    """Return settings with new values for some names.

    Args:
        present: What the others keep.
        wanted: Name → value, as the user wrote them.
        services: Names of the services that are configured.

    Raises:
        RequestError: A name is unknown or a value not allowed; the message names it.
    """
    values: dict[str, Any] = {}
    for written, value in wanted.items():
        name = _name(written)
        if name in values:
            raise RequestError(f"setting {name} is given twice, also as {written!r}; give it once")
        values[name] = _value(name, value)
    settings = replace(present, **values)
    if settings.service not in services:
        known = ", ".join(sorted(services))
        raise RequestError(
            f"setting service {settings.service!r} is not configured; known: {known}"
        )
    if settings.lowest_ratio > settings.ratio:
        raise RequestError(
            f"setting lowest_ratio {settings.lowest_ratio:g} is above ratio {settings.ratio:g}, "
            "wanted at most as much"
        )
    if not has_level(settings.codec, settings.codec_level):
        low, high = LEVELS[settings.codec]
        raise RequestError(
            f"setting codec_level {settings.codec_level} is not one of {settings.codec}, "
            f"wanted {low} to {high}"
        )
    _check_plugin("configurer", settings, load_configurer)
    _check_plugin("selector", settings, load_selector)
    return settings


def _check_plugin(
    setting: str, settings: TableSettings, load: Callable[[str], OutputConfigurer | Selector]
) -> None:
    """Have the plug-in that a setting names check the options beside it."""
    name, options = getattr(settings, setting), getattr(settings, f"{setting}_options")
    if name:
        try:
            load(name).check(options)
        except ConfigError as error:
            raise RequestError(f"setting {setting}: {error}") from error
    elif options:
        given = ", ".join(sorted(options))
        raise RequestError(f"setting {setting}_options has {given}, but {setting} is not set")


def _name(written: str) -> str:
    name = written.replace("-", "_")
    name = _ALIASES.get(name, name)
    if name in NAMES:
        return name
    close = difflib.get_close_matches(name, [*NAMES, *_ALIASES], n=1)
    hint = (
        f"did you mean {_ALIASES.get(close[0], close[0])!r}?"
        if close
        else "known: " + ", ".join(NAMES)
    )
    raise RequestError(f"setting {written!r} is unknown; {hint}")


def _value(name: str, written: Any) -> Any:
    value = None if name in _OPTIONAL and written in _NONE else _parsed(name, written)
    allowed, wanted = _CHECKS.get(name, (lambda _: True, ""))
    if not allowed(value):
        raise RequestError(f"setting {name} {written!r} is not allowed, wanted {wanted}")
    return value


def _parsed(name: str, written: Any) -> Any:
    default = getattr(TableSettings(), name)
    if name.endswith("_bytes"):
        return parse_size_bytes(_number(written), f"setting {name}")
    if name.endswith("_s"):
        return parse_duration_s(_number(written), f"setting {name}")
    if isinstance(default, Mapping):
        return _options(name, written)
    if isinstance(default, bool):
        return _switch(name, written)
    if isinstance(default, str):
        if not isinstance(written, str):
            raise RequestError(f"setting {name} {written!r} is not a text")
        return written
    return _numeric(name, written, type(default))


def _options(name: str, written: Any) -> dict[str, str]:
    """Return options from a mapping, or from text such as `threshold=1GB,codec=zstd`."""
    if isinstance(written, Mapping):
        return {str(key): str(value) for key, value in written.items()}
    wanted = f"setting {name} {written!r} is no list of options, wanted name=value,name=value"
    if not isinstance(written, str):
        raise RequestError(wanted)
    options: dict[str, str] = {}
    for part in filter(None, map(str.strip, written.split(","))):
        key, equals, value = part.partition("=")
        if not (equals and key.strip()):
            raise RequestError(wanted)
        options[key.strip()] = value.strip()
    return options


def _number(written: Any) -> Any:
    """Return a number that came as text (from a command line) as a number, else as it is."""
    if isinstance(written, str) and written.strip().isdigit():
        return int(written)
    return written


def _numeric(name: str, written: Any, kind: type[int] | type[float]) -> int | float:
    wanted = "a whole number" if kind is int else "a number"
    message = f"setting {name} {written!r} is not {wanted}"
    if isinstance(written, bool) or not isinstance(written, int | float | str):
        raise RequestError(message)
    try:
        value = kind(written)
    except ValueError as error:
        raise RequestError(message) from error
    if value != float(written) or not abs(value) < float("inf") or value < 0:
        raise RequestError(f"{message} of at least 0")
    return value


def _switch(name: str, written: Any) -> bool:
    known = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    value = known.get(str(written).lower())
    if value is None:
        raise RequestError(f"setting {name} {written!r} is not a switch, wanted true or false")
    return value
