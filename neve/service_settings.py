"""Reads the settings of a service, checks them as a whole, and displays them.

`neve up` and `neve config check` both use this module, so they accept the same settings.
`common.config` parses the values. This module loads the plug-ins to check their options, and warns
about settings that are valid but unusual.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from common.config import SECTIONS, Flag, load_settings, setting_rows
from common.documents import FieldKind, value_text
from common.errors import ConfigError, SettingError
from common.model.group import Group, Service
from common.settings import CompactorCount, GroupSettings, Settings
from coordinator.registry import load_controller, planner_for

HIDDEN = "(set, not shown)"
DEFAULT_SOURCE = "default"
RESTART = "restart"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSetting:
    """A setting as displayed to people and programs; secrets are hidden."""

    name: str
    """Its full name, such as `compactor.slots`."""
    value: str | int | float
    """The value for programs; a structure is text."""
    text: str
    """The value for people."""
    source: str
    """The source of the value."""
    change: str
    """How to apply a change: by a restart, or also by a verb on the running service."""


def load_service_settings(
    path: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Sequence[str | Flag] = (),
    compactors: int | None = None,
    slots: int | None = None,
    port: int | None = None,
) -> Settings:
    """Read and check the settings of a service before its start.

    Args:
        path: The settings file; None: the file that `NEVE_CONFIG` names, if set.
        environ: The environment; None: the environment of the process.
        flags: `section.name=value`; these override all sources except the arguments below.
        compactors: Number of compactors of the default or only group.
        slots: Concurrent jobs per compactor.
        port: Port of the gateway.

    Raises:
        SettingError: A setting is unknown, malformed, or names a plug-in that is not installed. The
            message names the value, its source and what is expected.
    """
    settings = load_settings(path, environ=environ, flags=flags)
    of_group = {"compactors": compactors, "slots": slots}
    given = [
        Flag(f"groups.{settings.only_group(f'--{name}')}.{name}", str(value), f"--{name}")
        for name, value in of_group.items()
        if value is not None
    ]
    if port is not None:
        given.append(Flag("gateway.port", str(port), "--port"))
    if given:
        settings = load_settings(path, environ=environ, flags=[*flags, *given])
    check_service(settings)
    return settings


def check_service(settings: Settings) -> None:
    """Reject settings with which a service would not start.

    Raises:
        SettingError: A plug-in is not installed, cannot be loaded, or rejects its options.
    """
    try:
        planner_for(settings)
        load_controller(settings.control)
    except ConfigError as error:
        names = error.names if isinstance(error, SettingError) else ()
        given = {name: settings.sources[name] for name in names if name in settings.sources}
        where = ", ".join(f"{name} is from {source}" for name, source in given.items())
        raise SettingError(f"{error} ({where})" if where else str(error)) from error


def setting_remarks(settings: Settings) -> list[str]:
    """Return warnings about valid settings that may be mistakes, one sentence each."""
    named = {group.name for service in settings.services.values() for group in service.groups}
    lines = [
        f"group {group} has compactors, but no service names it: no job is planned for it; name"
        " it in the groups of a service, as services.default.groups"
        for group in settings.groups
        if group not in named
    ]
    for service in settings.services.values():
        for group in service.groups:
            own = settings.groups.get(group.name)
            if own is None or own.compactors.max == 0:
                lines.append(
                    f"group {group.name} of service {service.name} has no compactor: its jobs"
                    f" wait; give it some as groups.{group.name}.compactors"
                )
    return lines


def shown_settings(settings: Settings) -> list[ShownSetting]:
    """Return every setting with its value and source, section by section."""
    return [
        ShownSetting(
            name=name,
            value=value,
            text=text,
            source=settings.sources.get(name, DEFAULT_SOURCE),
            change=change,
        )
        for name, value, text, change in _values(settings)
    ]


def setting_differences(
    running: Sequence[ShownSetting], settings: Sequence[ShownSetting]
) -> list[str]:
    """Return the settings in which two services differ, one phrase each.

    Args:
        running: Settings of the running service.
        settings: Settings of the requested service.
    """
    own = {setting.name: setting for setting in running}
    lines = [
        f"{setting.name} = {setting.text} ({setting.source}), running with {own[setting.name].text}"
        if setting.name in own
        else f"{setting.name} = {setting.text} ({setting.source})"
        for setting in settings
        if setting.name not in own or own[setting.name].value != setting.value
    ]
    names = {setting.name for setting in settings}
    return lines + [f"{name} is not asked for" for name in own if name not in names]


def settings_to_document(settings: Sequence[ShownSetting]) -> list[dict[str, Any]]:
    """Return shown settings in a form for JSON."""
    return [asdict(setting) for setting in settings]


def settings_from_document(document: Sequence[Mapping[str, Any]]) -> list[ShownSetting]:
    """Return shown settings from their JSON form."""
    return [ShownSetting(**setting) for setting in document]


def _values(settings: Settings) -> Iterator[tuple[str, Any, str, str]]:
    """Yield name, value, text and how to apply a change."""
    rows = {(row.section, row.name): row for row in setting_rows()}
    for section in SECTIONS:
        part = getattr(settings, section)
        for entry in fields(part):
            row, value = rows[section, entry.name], getattr(part, entry.name)
            change = f"{RESTART}, or now: {row.live}" if row.live else RESTART
            name = f"{section}.{entry.name}"
            from_file = row.secret and getattr(part, f"{entry.name}_file")
            if from_file or (row.secret and value != row.default):
                yield name, HIDDEN, HIDDEN, change
            else:
                plain = list(value) if isinstance(value, tuple) else value  # The form in JSON.
                yield name, plain, value_text(row.kind, value), change
    yield "dispatcher", settings.dispatcher, settings.dispatcher, RESTART
    for group, own in settings.groups.items():
        yield from _of_group(group, own)
    for service in settings.services.values():
        yield from _of_service(service)
    for catalog, properties in settings.catalogs.items():
        for name, value in properties.items():
            yield f"catalogs.{catalog}.{name}", value, value, RESTART


def _of_group(group: str, own: GroupSettings) -> Iterator[tuple[str, Any, str, str]]:
    for entry in fields(own):
        value, name = getattr(own, entry.name), f"groups.{group}.{entry.name}"
        if isinstance(value, CompactorCount):
            yield name, str(value), str(value), RESTART
        elif isinstance(value, tuple):
            yield name, list(value), ", ".join(value), RESTART
        elif value is not None:
            yield name, value, str(value), RESTART


def _of_service(service: Service) -> Iterator[tuple[str, Any, str, str]]:
    name = f"services.{service.name}"
    groups = ", ".join(map(_group_text, service.groups))
    yield f"{name}.planner", service.planner, service.planner, RESTART
    yield f"{name}.groups", groups, groups, RESTART
    for option, value in service.options.items():
        yield f"{name}.options.{option}", str(value), str(value), RESTART


def _group_text(group: Group) -> str:
    if group.max_bytes is None:
        return group.name
    return f"{group.name} below {value_text(FieldKind.SIZE, group.max_bytes)}"
