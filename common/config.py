"""Read the settings: defaults < file (TOML) < environment < flags.

The file has one table per section of `common.settings` and `[services.<name>]`
tables; the environment has `NEVE_<SECTION>_<NAME>`; a flag is `section.name=value`.
Everything unknown or malformed is refused with the value named; nothing is guessed.
"""

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, fields, replace
from pathlib import Path
from typing import Any

from common.errors import ConfigError, RequestError
from common.model.group import Group, Service
from common.model.table import DNS_LABEL
from common.settings import (
    CompactorSettings,
    CoordinatorSettings,
    GatewaySettings,
    Settings,
    StoreSettings,
    checked_groups,
)
from common.units import parse_duration_s, parse_size_bytes

SECTIONS: dict[str, type] = {
    "store": StoreSettings,
    "coordinator": CoordinatorSettings,
    "compactor": CompactorSettings,
    "gateway": GatewaySettings,
}
CONFIG_VARIABLE = "NEVE_CONFIG"
"""Environment variable that names the settings file."""
_CLIENT_VARIABLES = frozenset(
    {CONFIG_VARIABLE, "NEVE_URL", "NEVE_TOKEN", "NEVE_HOME", "NEVE_STACK"}
)


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One line of the settings reference."""

    section: str
    name: str
    default: object
    doc: str
    secret: bool


def setting_rows() -> Iterator[SettingRow]:
    """Yield every setting with its default and meaning, section by section."""
    for section, kind in SECTIONS.items():
        for entry in fields(kind):
            yield SettingRow(
                section, entry.name, entry.default, entry.metadata["doc"], entry.metadata["secret"]
            )


def load_settings(
    path: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
) -> Settings:
    """Return the settings from file, environment and flags.

    Args:
        path: The settings file; None: the one that `NEVE_CONFIG` names, if any.
        environ: The environment; None: that of the process.
        flags: `section.name=value` texts, the strongest.

    Raises:
        ConfigError: Something is unknown or malformed; the message names it.
    """
    environ = os.environ if environ is None else environ
    chosen = path or environ.get(CONFIG_VARIABLE)
    document = _read_file(Path(chosen)) if chosen else {}
    settings = _from_document(document, str(chosen))
    for source, section, name, value in _overrides(environ, flags):
        settings = _with_value(settings, section, name, value, source)
    return settings


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        message = f"settings file {path} cannot be read: {error.strerror}"
        raise ConfigError(message) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        message = f"settings file {path} is not TOML: {error}"
        raise ConfigError(message) from error


def _from_document(document: Mapping[str, Any], source: str) -> Settings:
    settings = Settings()
    for section, values in document.items():
        if section == "services":
            settings = replace(settings, services=_services(values, source))
        elif section == "dispatcher" and isinstance(values, str):
            settings = replace(settings, dispatcher=values)
        elif section in SECTIONS and isinstance(values, Mapping):
            for name, value in values.items():
                settings = _with_value(settings, section, name, value, source)
        else:
            raise _unknown(f"section {section!r}", section, [*SECTIONS, "services"], source)
    return settings


def _overrides(
    environ: Mapping[str, str], flags: Sequence[str]
) -> Iterator[tuple[str, str, str, str]]:
    for variable in sorted(environ):
        parts = variable.split("_", 2)
        if parts[0] == "NEVE" and len(parts) == 3 and variable not in _CLIENT_VARIABLES:
            section, name = parts[1].lower(), parts[2].lower()
            if section in SECTIONS:
                yield f"environment variable {variable}", section, name, environ[variable]
    for flag in flags:
        where, equals, value = flag.partition("=")
        section, dot, name = where.partition(".")
        if not equals or not dot:
            message = f"flag {flag!r} is not of the form section.name=value"
            raise ConfigError(message)
        yield f"flag {flag!r}", section, name, value


def _with_value(
    settings: Settings, section: str, name: str, value: object, source: str
) -> Settings:
    if section not in SECTIONS:
        raise _unknown(f"section {section!r}", section, list(SECTIONS), source)
    known = {entry.name: entry for entry in fields(SECTIONS[section])}
    if name not in known:
        raise _unknown(f"setting {section}.{name}", name, list(known), source)
    parsed = _parse(known[name], section, value, source)
    part = replace(getattr(settings, section), **{name: parsed})
    return replace(settings, **{section: part})


def _parse(entry: "Field[Any]", section: str, value: object, source: str) -> object:
    """Return the value in the type of the setting's default."""
    where = f"{source}: setting {section}.{entry.name}"
    try:
        if isinstance(entry.default, str):
            return _text(value, where)
        if isinstance(entry.default, float):
            return parse_duration_s(_number(value), where)
        if "bytes" in entry.name.split("_"):
            return parse_size_bytes(_number(value), where)
        return _count(value, where)
    except RequestError as error:
        raise ConfigError(str(error)) from error


def _text(value: object, where: str) -> str:
    if isinstance(value, str):
        return value
    message = f"{where}: {value!r} is not a text"
    raise ConfigError(message)


def _number(value: object) -> Any:
    """Return a number that came as text (environment, flag) as a number, else as it is."""
    if isinstance(value, str) and value.strip().isdigit():
        return int(value)
    return value


def _count(value: object, where: str) -> int:
    number = _number(value)
    if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
        return number
    message = f"{where}: {value!r} is not a whole number of at least 0"
    raise ConfigError(message)


def _services(values: object, source: str) -> dict[str, Service]:
    if not isinstance(values, Mapping) or not values:
        message = f"{source}: services must be tables such as [services.default]"
        raise ConfigError(message)
    services = {name: _service(name, value, source) for name, value in values.items()}
    owners: dict[str, str] = {}
    for service in services.values():
        for group in service.groups:
            other = owners.setdefault(group.name, service.name)
            if other != service.name:
                message = (
                    f"{source}: group {group.name!r} is used by services {other!r} and "
                    f"{service.name!r}; a queue has one planner"
                )
                raise ConfigError(message)
    return services


def _service(name: str, value: object, source: str) -> Service:
    if not isinstance(value, Mapping):
        message = f"{source}: services.{name} must be a table"
        raise ConfigError(message)
    for field_name in value:
        if field_name not in {"planner", "groups", "options"}:
            known = ["planner", "groups", "options"]
            raise _unknown(f"setting services.{name}.{field_name}", field_name, known, source)
    listed = value.get("groups", [{"group": "default"}])
    groups = tuple(parse_group(entry, f"{source}: service {name!r}") for entry in listed)
    return Service(
        name=name,
        planner=_text(value.get("planner", "ratio"), f"{source}: services.{name}.planner"),
        groups=checked_groups(name, groups),
        options=dict(value.get("options", {})),
    )


def parse_group(entry: object, where: str) -> Group:
    """Return a group from `{"group": name, "max_size": size?}`.

    Args:
        entry: What was written.
        where: Subject of the message.

    Raises:
        ConfigError: A field is unknown, missing or malformed.
    """
    if not isinstance(entry, Mapping) or "group" not in entry or set(entry) - {"group", "max_size"}:
        message = (
            f"{where}: group {entry!r} must have a field group and may have max_size, no other"
        )
        raise ConfigError(message)
    name, size = entry["group"], entry.get("max_size")
    if not isinstance(name, str) or not DNS_LABEL.fullmatch(name):
        message = f"{where}: group name {name!r} must be a DNS label such as large-files"
        raise ConfigError(message)
    try:
        limit = None if size is None else parse_size_bytes(size, "max_size")
    except RequestError as error:
        message = f"{where}: {error}"
        raise ConfigError(message) from error
    return Group(name=name, max_bytes=limit)


def _unknown(what: str, name: str, known: Sequence[str], source: str) -> ConfigError:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
    return ConfigError(f"{source}: {what} is unknown; {hint}")
