"""Read the settings: defaults < file (TOML) < environment < flags.

The file has one table per section of `common.settings`, and `[groups.<name>]`,
`[services.<name>]` and `[catalogs.<name>]` tables; the environment has `NEVE_<SECTION>_<NAME>`,
with groups and services `NEVE_GROUPS_<GROUP>_<NAME>`; a flag is `section.name=value`. Unknown or
malformed settings are refused with their value, their source and what was expected.
`neve.service_settings` checks what parsing cannot, for example whether a plug-in is installed.
"""

import errno
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

from common.access_settings import AccessSettings
from common.control_settings import (
    CatalogSettings,
    ClusterSettings,
    ControlSettings,
    IngestSettings,
    NotifySettings,
    check_catalog,
    check_not_secret,
)
from common.documents import FieldKind, FieldRule, unknown
from common.errors import ConfigError, RequestError, SettingError
from common.model.group import Group, Service
from common.model.table import DNS_LABEL
from common.settings import (
    AUTO,
    AutoscalerSettings,
    CompactorCount,
    CompactorSettings,
    CoordinatorSettings,
    GatewaySettings,
    GroupSettings,
    LogSettings,
    ReaderSettings,
    Settings,
    StoreSettings,
    TraceSettings,
)
from common.units import format_bytes, parse_size_bytes, shown
from neve.api.files import open_regular

SECTIONS: dict[str, type] = {
    "store": StoreSettings,
    "coordinator": CoordinatorSettings,
    "compactor": CompactorSettings,
    "gateway": GatewaySettings,
    "readers": ReaderSettings,
    "log": LogSettings,
    "trace": TraceSettings,
    "autoscaler": AutoscalerSettings,
    "control": ControlSettings,
    "cluster": ClusterSettings,
    "access": AccessSettings,
    "ingest": IngestSettings,
    "catalog": CatalogSettings,
    "notify": NotifySettings,
}
NAMED_SECTIONS = ("groups", "services", "catalogs")
DISPATCHER = "dispatcher"
SERVICE_FIELDS = ("planner", "groups", "options")
CONFIG_VARIABLE = "NEVE_CONFIG"
"""Environment variable that names the settings file."""
OTHER_VARIABLES = frozenset(
    {
        CONFIG_VARIABLE,
        *("NEVE_URL", "NEVE_TOKEN", "NEVE_HOME", "NEVE_STACK", "NEVE_RETRY_S"),
        *("NEVE_TOKEN_FILE", "NEVE_CA_FILE", "NEVE_CLIENT_CERTIFICATE"),
        "NEVE_STACK_MARK",
    }
)
"""Variables of the client and of local stacks; every other `NEVE_…` is a setting."""


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One line of the settings reference."""

    section: str
    name: str
    default: object
    doc: str
    secret: bool
    kind: FieldKind
    live: str = ""
    """The verb that changes the setting in the running service, if there is one."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A setting that was given on a command line."""

    name: str
    """Full name of the setting, such as `compactor.slots`."""
    value: str
    option: str = "--set"
    """How the flag was given, for messages."""


@dataclass(frozen=True, slots=True)
class _Written:
    """A setting's raw value and its source."""

    source: str
    path: tuple[str, ...]
    value: object

    @property
    def name(self) -> str:
        return ".".join(self.path)


def setting_rows() -> Iterator[SettingRow]:
    """Yield every setting with its default and meaning, by section; groups come last."""
    for section, kind in [*SECTIONS.items(), ("groups.<name>", GroupSettings)]:
        for entry in fields(kind):
            rule: FieldRule = entry.metadata["rule"]
            yield SettingRow(
                section=section,
                name=entry.name,
                default=entry.default,
                doc=entry.metadata["doc"],
                secret=rule.secret,
                kind=rule.kind,
                live=entry.metadata["live"],
            )


def load_settings(
    path: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Sequence[str | Flag] = (),
) -> Settings:
    """Return the settings from file, environment and flags, each with its source.

    Args:
        path: The settings file; None: the one that `NEVE_CONFIG` names, if any.
        environ: The environment; None: that of the process.
        flags: Take precedence over file and environment; texts have the form
            `section.name=value`.

    Raises:
        SettingError: A setting is unknown or malformed; the message names it.
    """
    environ = os.environ if environ is None else environ
    chosen = path or environ.get(CONFIG_VARIABLE)
    reading = _Reading()
    for written in chain(_of_file(chosen), _of_environment(environ), _of_flags(flags)):
        reading.take(written)
    return reading.settings()


@dataclass
class _Reading:
    """Collects values, weakest source first, and checks each when it is added."""

    sections: dict[str, dict[str, object]] = field(default_factory=dict)
    groups: dict[str, dict[str, object]] = field(default_factory=dict)
    services: dict[str, dict[str, Any]] = field(default_factory=dict)
    catalogs: dict[str, dict[str, str]] = field(default_factory=dict)
    dispatcher: str = field(default_factory=lambda: Settings().dispatcher)
    sources: dict[str, str] = field(default_factory=dict)

    def take(self, written: _Written) -> None:
        """Add one value.

        Raises:
            SettingError: The setting is unknown, or the value is not allowed.
        """
        try:
            self._take(written)
        except (RequestError, SettingError) as error:
            raise SettingError(f"{written.source}: {error}") from error
        self.sources[written.name] = written.source

    def settings(self) -> Settings:
        """Return the settings.

        Raises:
            SettingError: Some values contradict each other.
        """
        try:
            settings = self._sections()
            _check_together(settings)
        except SettingError as error:
            if not error.names:
                raise
            where = (
                f"{name} is from {self.sources.get(name, 'the defaults')}" for name in error.names
            )
            raise SettingError(f"{error} ({', '.join(where)})") from error
        return settings

    def _sections(self) -> Settings:
        sections = {name: kind(**self.sections.get(name, {})) for name, kind in SECTIONS.items()}
        settings = Settings(**sections, dispatcher=self.dispatcher, sources=self.sources)
        if self.groups:
            groups = {
                name: GroupSettings(**values)  # type: ignore[arg-type]  # parsed by each field's type
                for name, values in self.groups.items()
            }
            settings = replace(settings, groups=groups)
        if self.services:
            settings = replace(settings, services=self._services())
        for name, properties in self.catalogs.items():
            check_catalog(name, properties)
        return replace(settings, catalogs=self.catalogs)

    def _take(self, written: _Written) -> None:
        match written.path:
            case (section, name) if section in SECTIONS:
                values = self.sections.setdefault(section, {})
                values[name] = _value(SECTIONS[section], section, name, written.value)
            case ("groups", group, *rest) if len(rest) <= 1:
                values = self.groups.setdefault(_label(group, "group"), {})
                for name in rest:
                    values[name] = _group_value(group, name, written.value)
            case ("services", service, *rest):
                values = self.services.setdefault(_label(service, "service"), {})
                _take_service(values, service, tuple(rest), written.value)
            case ("catalogs", catalog, *rest):
                properties = self.catalogs.setdefault(_label(catalog, "catalog"), {})
                _take_property(properties, catalog, ".".join(rest), written.value)
            case ("dispatcher",):
                self.dispatcher = _TEXT.read(written.value, f"setting {DISPATCHER}")
            case _:
                raise _unknown_path(written.path)

    def _services(self) -> dict[str, Service]:
        services = {name: Service(name=name, **values) for name, values in self.services.items()}
        owners: dict[str, str] = {}
        for service in services.values():
            for group in service.groups:
                other = owners.setdefault(group.name, service.name)
                if other != service.name:
                    raise SettingError(
                        f"group {group.name!r} is used by services {other!r} and {service.name!r};"
                        " a queue has one planner, expected groups of their own"
                        f" ({self._where(other)}; {self._where(service.name)})"
                    )
        return services

    def _where(self, service: str) -> str:
        """Return the source of a service's groups, or of the service if they have none."""
        section = f"services.{service}"
        names = [name for name in self.sources if name == section or name.startswith(f"{section}.")]
        name = f"{section}.groups" if f"{section}.groups" in names else names[0]
        return f"{name} is from {self.sources[name]}"


# ---------------------------------------------------------------- sources


def _of_file(path: str | Path | None) -> Iterator[_Written]:
    """Yield the values of a TOML file."""
    if not path:
        return
    full_path = Path(path).expanduser().absolute()
    yield from _flat(_read_file(full_path), f"file {full_path}", ())


PROPERTY_DEPTH_MAX = 8
"""Depth of a catalog's property: TOML reads `s3.endpoint` without quotes as nested tables."""
FILE_BYTES_MAX = 16 * 1024**2
"""Largest size of a settings file."""


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(regular_text(path, FILE_BYTES_MAX))
    except OSError as error:
        message = f"settings file {path} cannot be read: {error.strerror}"
        raise SettingError(message) from error
    except (ValueError, RecursionError) as error:  # ValueError includes numbers that are too long.
        message = f"settings file {path} is not TOML: {error}"
        raise SettingError(message) from error


def _flat(table: Mapping[str, Any], source: str, above: tuple[str, ...]) -> Iterator[_Written]:
    """Yield the values below a table; an empty table is yielded itself."""
    for name, value in table.items():
        path = (*above, name)
        if isinstance(value, Mapping) and len(path) < _depth(path) and value:
            yield from _flat(value, source, path)
        elif isinstance(value, Mapping) and len(path) < _depth(path):
            yield from _empty(path, source)
        else:
            yield _Written(source, path, value)


def _depth(path: tuple[str, ...]) -> int:
    """Return the depth at which values are found below this path; deeper tables are values."""
    if path[0] == "catalogs":
        return PROPERTY_DEPTH_MAX
    if path[0] == "services":
        return 4 if path[2:3] == ("options",) else 3
    return 3 if path[0] == "groups" else 2


def _empty(path: tuple[str, ...], source: str) -> Iterator[_Written]:
    """Yield a group or service that has no settings of its own."""
    if len(path) == 2 or path[0] not in (*SECTIONS, *NAMED_SECTIONS):
        yield _Written(source, path, {})


def _of_environment(environ: Mapping[str, str]) -> Iterator[_Written]:
    for variable in sorted(environ):
        if variable.startswith("NEVE_") and variable not in OTHER_VARIABLES:
            source = f"environment variable {variable}"
            words = variable.removeprefix("NEVE_").lower()
            yield _Written(source, _path_of(words, variable), environ[variable])


def _path_of(words: str, variable: str) -> tuple[str, ...]:
    """Return the path of a setting from `section_name`; `_` in a group name stands for `-`.

    Raises:
        SettingError: There is no such section.
    """
    section, _, rest = words.partition("_")
    if section in SECTIONS:
        return section, rest
    if words == DISPATCHER:
        return (DISPATCHER,)
    if section == "services" and "_options_" in rest:
        service, _, option = rest.partition("_options_")
        return section, service.replace("_", "-"), "options", option
    if section == "catalogs":
        raise SettingError(
            f"environment variable {variable} names no setting: PyIceberg reads the properties of"
            " catalogs from its own variables, such as PYICEBERG_CATALOG__PROD__CREDENTIAL"
        )
    endings = {
        "groups": [entry.name for entry in fields(GroupSettings)],
        "services": [*SERVICE_FIELDS],
    }
    for ending in sorted(endings.get(section, ()), key=len, reverse=True):
        if rest.endswith(f"_{ending}"):
            return section, rest.removesuffix(f"_{ending}").replace("_", "-"), ending
    if section in endings:
        expected = ", ".join(endings[section])
        raise SettingError(
            f"environment variable {variable} names no setting, expected"
            f" NEVE_{section.upper()}_<NAME>_<SETTING> with one of {expected}"
        )
    raise SettingError(f"environment variable {variable}: {_unknown_path((section, rest))}")


def _of_flags(flags: Iterable[str | Flag]) -> Iterator[_Written]:
    for flag in flags:
        given = flag if isinstance(flag, Flag) else _flag(flag)
        path = tuple(given.name.split("."))
        # The value is not part of the source: it may be a secret.
        shown = f"{given.option} {given.name}" if given.option == "--set" else given.option
        yield _Written(f"flag {shown}", path, given.value)


def _flag(text: str) -> Flag:
    name, equals, value = text.partition("=")
    if not equals or not name or ("." not in name and name != DISPATCHER):
        raise SettingError(f"flag --set {text!r} is not of the form section.name=value")
    return Flag(name.strip(), value.strip())


# ----------------------------------------------------------------- values


def _value(kind: type, section: str, name: str, value: object) -> object:
    """Return the value of a setting in its type, checked."""
    entries = {entry.name: entry for entry in fields(kind)}
    if name not in entries:
        raise unknown(f"setting {section}.{name}", name, entries)
    rule: FieldRule = entries[name].metadata["rule"]
    return rule.read(value, f"setting {section}.{name}")


def _group_value(group: str, name: str, value: object) -> object:
    if name == "compactors":
        return _compactors(value, f"setting groups.{group}.compactors")
    return _value(GroupSettings, f"groups.{group}", name, value)


_TEXT = FieldRule(kind=FieldKind.TEXT)
_COUNT = FieldRule(kind=FieldKind.COUNT, least=0)


def _compactors(value: object, where: str) -> CompactorCount:
    number = _toml_value(value)
    if isinstance(number, int):
        number = dict.fromkeys(("min", "max"), _COUNT.read(number, where))
    if not (isinstance(number, Mapping) and set(number) == {"min", "max"}):
        raise RequestError(
            f"{where} is {shown(value)}, expected a number or {{ min = …, max = … }}"
        )
    count = {name: _COUNT.read(bound, f"{where}.{name}") for name, bound in number.items()}
    try:
        return CompactorCount(**count)
    except ConfigError as error:
        raise RequestError(f"{where}: {error}") from error


def _toml_value(value: object) -> Any:
    """Return the text of a variable or flag parsed as TOML, or unchanged if it is not TOML."""
    if not isinstance(value, str):
        return value
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):  # ValueError includes numbers that are too long.
        return value


def _label(name: str, what: str) -> str:
    if DNS_LABEL.fullmatch(name):
        return name
    raise RequestError(f"{what} name {shown(name)} must be a DNS label such as large-files")


# --------------------------------------------------------------- services


def _take_service(
    values: dict[str, Any], service: str, path: tuple[str, ...], value: object
) -> None:
    """Add one setting of a service."""
    where = f"services.{service}"
    match path:
        case () if isinstance(value, Mapping):
            return
        case ("planner",):
            values["planner"] = _TEXT.read(value, f"setting {where}.planner")
        case ("groups",):
            values["groups"] = _service_groups(service, _toml_value(value))
        case ("options",) if isinstance(value, Mapping):
            values.setdefault("options", {}).update(value)
        case ("options", option):
            values.setdefault("options", {})[option] = _toml_value(value)
        case ("options",) | ():
            name = ".".join((where, *path))
            raise RequestError(f"setting {name} is {shown(value)}, expected a table")
        case _:
            name = ".".join(path)
            raise unknown(f"setting {where}.{name}", name, SERVICE_FIELDS)


def _take_property(properties: dict[str, str], catalog: str, name: str, value: object) -> None:
    """Add one property of a catalog; TOML may have it as a number or switch."""
    if not name and isinstance(value, Mapping):
        return
    if isinstance(value, bool):
        value = str(value).lower()
    if not name or not isinstance(value, str | int | float):
        where = ".".join(filter(None, ("catalogs", catalog, name)))
        raise RequestError(f"setting {where} is {shown(value)}, expected a text")
    check_not_secret(catalog, {name: str(value)})
    properties[name] = str(value)


def _service_groups(service: str, listed: object) -> tuple[Group, ...]:
    if not isinstance(listed, list):
        raise RequestError(
            f"setting services.{service}.groups is {shown(listed)}, expected a list such as"
            ' [{ group = "small", max_size = "64MB" }, { group = "large" }]'
        )
    groups = tuple(parse_group(entry, f"service {service!r}") for entry in listed)
    return checked_groups(service, groups)


def parse_group(entry: object, where: str) -> Group:
    """Return a group from `{"group": name, "max_size": size?}`.

    Args:
        entry: The value from the configuration.
        where: Subject of the message.

    Raises:
        SettingError: A field is unknown, missing or malformed.
    """
    if not isinstance(entry, Mapping) or "group" not in entry or set(entry) - {"group", "max_size"}:
        message = (
            f"{where}: group {shown(entry)} must have a field group and may have max_size, no other"
        )
        raise SettingError(message)
    name, size = entry["group"], entry.get("max_size")
    if not isinstance(name, str) or not DNS_LABEL.fullmatch(name):
        message = f"{where}: group name {shown(name)} must be a DNS label such as large-files"
        raise SettingError(message)
    try:
        limit = None if size is None else parse_size_bytes(size, "max_size")
    except RequestError as error:
        message = f"{where}: {error}"
        raise SettingError(message) from error
    return Group(name=name, max_bytes=limit)


def checked_groups(service: str, groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """Return a service's groups by ascending size, the unlimited one last.

    Args:
        service: Name of the service, for messages.
        groups: As configured.

    Raises:
        ConfigError: There is no group, a duplicate name, a duplicate or non-positive size,
            or more than one unlimited group.
    """
    problem = _group_problem(groups)
    if problem is not None:
        raise SettingError(f"service {service!r}: {problem}", f"services.{service}.groups")
    return tuple(sorted(groups, key=lambda group: (group.max_bytes is None, group.max_bytes or 0)))


def _group_problem(groups: tuple[Group, ...]) -> str | None:
    names = [group.name for group in groups]
    sizes = [group.max_bytes for group in groups]
    if not groups:
        return "no groups; name at least one"
    for name in names:
        if names.count(name) > 1:
            return f"group {name!r} is named {names.count(name)} times; name each group once"
    for size in sizes:
        if size is not None and size <= 0:
            return f"max_size {size} is not positive; leave it out for a group without limit"
        if sizes.count(size) > 1:
            what = "no max_size" if size is None else f"max_size {size}"
            return f"{sizes.count(size)} groups have {what}; sizes must differ"
    return None


# --------------------------------------------------------------- together


def _check_together(settings: Settings) -> None:
    """Refuse values that are valid separately but not together.

    Raises:
        SettingError: Names all of them.
    """
    coordinator, beat_s = settings.coordinator, settings.compactor.beat_interval_s
    if coordinator.silence_max_s < 2 * beat_s:
        raise SettingError(
            f"setting coordinator.silence_max_s is {coordinator.silence_max_s:g} s, expected at"
            f" least two heartbeats of compactor.beat_interval_s, {beat_s:g} s",
            "coordinator.silence_max_s",
            "compactor.beat_interval_s",
        )
    if coordinator.backoff_max_s < coordinator.backoff_base_s:
        raise SettingError(
            f"setting coordinator.backoff_max_s is {coordinator.backoff_max_s:g} s, expected at"
            f" least coordinator.backoff_base_s, {coordinator.backoff_base_s:g} s",
            "coordinator.backoff_max_s",
            "coordinator.backoff_base_s",
        )
    for secret in ("store.url", "gateway.token", "notify.webhook_url"):
        if settings.is_given(secret) and settings.is_given(f"{secret}_file"):
            raise SettingError(
                f"settings {secret} and {secret}_file are both given, expected one of them",
                secret,
                f"{secret}_file",
            )
    for group, group_settings in settings.groups.items():
        _check_task_memory(settings.compactor_of(group), group, group_settings)
        _check_spread(settings.compactor_of(group), group, group_settings)


def _check_spread(compactor: CompactorSettings, group: str, group_settings: GroupSettings) -> None:
    """Refuse executors on other nodes unless they share a folder and a secret."""
    if not compactor.executor_resource:
        return
    for name in ("scratch", "spark_secret_file"):
        if not getattr(compactor, name):
            where = f"groups.{group}" if group_settings.executor_resource else "compactor"
            raise SettingError(
                f"setting {where}.executor_resource lets executors run on other nodes, expected"
                f" setting compactor.{name}, which they share",
                f"{where}.executor_resource",
                f"compactor.{name}",
            )


def _check_task_memory(
    compactor: CompactorSettings, group: str, group_settings: GroupSettings
) -> None:
    most, usual = compactor.task_memory_max, compactor.task_memory
    if AUTO in (most, usual):
        return  # The automatic one follows the other.
    if 0 < parse_size_bytes(most) < parse_size_bytes(usual):
        names = [
            f"groups.{group}.{name}"
            if getattr(group_settings, name) is not None
            else f"compactor.{name}"
            for name in ("task_memory_max", "task_memory")
        ]
        raise SettingError(
            f"setting {names[0]} is {most}, expected 0 (none) or at least {names[1]}, {usual}",
            *names,
        )


def _unknown_path(path: tuple[str, ...]) -> RequestError:
    sections = [*SECTIONS, *NAMED_SECTIONS, DISPATCHER]
    if path[0] in sections:
        return RequestError(f"{'.'.join(path)} is not what a setting or section can be")
    return unknown(f"section {path[0]!r}", path[0], sections)


# --------------------------------------------------------------- secrets
# Read files that an operator names: regular files of bounded size, with or without secrets.
#
# Ray's head keeps the arguments of actors, so secrets are better passed in files.


SECRET_BYTES_MAX = 1024**2


def regular_text(path: str | Path, bytes_max: int) -> str:
    """Return the text of a regular file.

    Raises:
        OSError: It cannot be read, is not a regular file, or is larger than `bytes_max`.
        UnicodeDecodeError: It is not text.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > bytes_max:
            most = format_bytes(bytes_max)
            raise OSError(errno.EFBIG, f"it is larger than {most}", str(path))
        return file.read(bytes_max).decode()


def secret_of(setting: str, value: str, path: str) -> str:
    """Return the secret of a setting, from its file if one is given.

    Args:
        setting: Its full name; `<setting>_file` names the file.
        value: Value of the setting.
        path: Path of the file; empty: `value` is used.

    Raises:
        SettingError: The file cannot be read, or is empty.
    """
    if not path:
        return value
    try:
        text = regular_text(path, SECRET_BYTES_MAX).strip()
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or "it is not text"
        raise SettingError(f"setting {setting}_file: {path} cannot be read: {cause}") from error
    if not text:
        raise SettingError(f"setting {setting}_file: {path} is empty, expected one line")
    return text
