"""Validation of table settings that a user changes.

`neve.setting_values` parses names, units and types. Each plug-in checks its own options.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from common.errors import ConfigError, RefusedError, RequestError
from common.lake.open import check_publishable
from common.model.group import Service
from common.model.table import (
    BACKLOG_MODES,
    DNS_LABEL,
    FIXED_SETTINGS,
    LAKE_OPERATIONS,
    OPERATIONS_OF_LAKES,
    PUBLISH_FORMATS,
    PUBLISH_OFF,
    TRIGGERS,
    Table,
    TableSettings,
)
from common.parquet.file_inspection import CODECS, LEVELS, has_level
from common.plugins import (
    DEFAULT_PLANNER,
    PLANNERS,
    load_configurer,
    load_planner,
    load_requested,
    load_selector,
    request_errors,
)
from common.rows.schema import READERS, unreadable_columns
from common.spi.planner import (
    OutputConfigurer,
    Selector,
    check_options,
    check_table,
    fixed_settings,
)
from common.units import shown
from common.windows import EXEMPTIONS, check_windows
from neve.setting_values import rule_of, setting_text, settings_by_name

_BOUNDS: dict[str, dict[str, Any]] = {
    "ratio": {"least": 1},
    "lowest_ratio": {"least": 1},
    "max_files": {"least": 2},
    "file_limit": {"least": 2, "zero": True},
    "target_bytes": {"least": 1024},
    "row_group_bytes": {"least": 64 * 1024, "most": 1024**3},
    "split_bytes": {"least": 1024, "zero": True},
    "ttl_s": {"above": 0},
    "codec": {"choices": CODECS},
    "weight": {"above": 0, "most": 1000},
    "manifest_interval_s": {"least": 1},
    "hold_expiry_s": {"least": 1},
    "triggers": {"choices": TRIGGERS},
    "maintenance_priority": {"least": -5, "most": 5},
    "workload_points": {"most": 9999},
    "gain_points": {"most": 9999},
    "analysis_share": {"above": 0, "most": 1},
    "analysis_columns": {"most": 32},
    "readers": {"choices": tuple(READERS)},
    "publish": {"choices": PUBLISH_FORMATS},
    "trigger_interval_s": {"least": 1},
    "backlog_mode": {"choices": BACKLOG_MODES},
    "window_exempt": {"choices": EXEMPTIONS},
    "lake_maintenance": {"choices": LAKE_OPERATIONS},
    "lake_maintenance_interval_s": {"least": 60},
    "lake_maintenance_files": {"least": 1, "most": 1_000_000},
    "lake_orphan_age_s": {"least": 86_400},
    "lake_manifests_min": {"least": 1},
}
"""Bounds of a setting besides its kind."""


def changed_settings(
    present: TableSettings, changes: Mapping[str, Any], *, services: Collection[str]
) -> TableSettings:
    """Return settings with new values for some names.

    Args:
        present: Current settings, which provide all other values.
        changes: Name → value, as the user wrote them.
        services: Names of the configured services.

    Raises:
        RequestError: A name is unknown, or a value is not allowed; the message names it.
    """
    given, _ = settings_by_name(changes)
    values = {name: _allowed_value(name, value) for name, value in given.items()}
    settings = replace(present, **values)
    if settings.service not in services:
        names = ", ".join(sorted(services))
        raise RequestError(
            f"setting service {settings.service!r} is not configured; known: {names}"
        )
    if settings.lowest_ratio > settings.ratio:
        raise RequestError(
            f"setting lowest_ratio {settings.lowest_ratio:g} is above ratio {settings.ratio:g}, "
            "expected at most as much"
        )
    if not has_level(settings.codec, settings.codec_level):
        low, high = LEVELS[settings.codec]
        raise RequestError(
            f"setting codec_level {settings.codec_level} is not a level of {settings.codec}, "
            f"expected {low} to {high}"
        )
    if settings.split_bytes and settings.merge_bytes > settings.split_bytes // 2:
        raise RequestError(
            f"setting merge_bytes {settings.merge_bytes} is above half of split_bytes "
            f"{settings.split_bytes}, expected at most that: "
            "otherwise splits and merges undo each other"
        )
    _check_plugin("configurer", settings, load_configurer)
    _check_plugin("selector", settings, load_selector)
    _check_planner("planner", settings.planner, settings.planner_options)
    _check_planner("shadow_planner", settings.shadow_planner, settings.shadow_planner_options)
    return settings


def settings_with_fixed(
    present: TableSettings, changes: Mapping[str, Any], *, services: Mapping[str, Service]
) -> TableSettings:
    """Return settings as `changed_settings` does, with those that the table's planner fixes.

    Args:
        present: Current settings.
        changes: Name → value, as the user wrote them.
        services: Configured services, by name.

    Raises:
        RequestError: As for `changed_settings`, or a setting is fixed already.
    """
    settings = changed_settings(present, changes, services=services)
    for name in sorted(FIXED_SETTINGS):
        given, fixed_value = getattr(settings, name), getattr(present, name)
        if given != fixed_value:
            raise RequestError(
                f"setting {name} is {given}, expected {fixed_value}, as it is: the planner fixes it"
                " when a table gets that planner, from its options"
            )
    service = services[settings.service]
    name = settings.planner or service.planner
    options: dict[str, object] = dict(settings.planner_options)
    if name == service.planner:
        options = {**service.options, **options}
    try:
        planner = load_planner(name)
    except ConfigError:  # A planner of the service that only the coordinator has.
        return settings
    with request_errors("setting planner_options: "):
        fixed = fixed_settings(name, planner, options, settings)
    given, _ = settings_by_name(changes)
    for setting in sorted(fixed.keys() & given.keys()):
        wanted = setting_text(setting, fixed[setting])
        value = setting_text(setting, getattr(settings, setting))
        if wanted != value:
            raise RequestError(
                f"setting {setting} is {value}, expected {wanted}, which the options of planner "
                f"{name!r} require"
            )
    return replace(settings, **fixed)


def settings_of_new_table(
    table: str, *, keyed: bool, changes: Mapping[str, Any], services: Mapping[str, Service]
) -> tuple[TableSettings, str]:
    """Return the settings of a new table, and a sentence that explains the choice of its planner.

    A table without a key gets a planner with a target size, unless its creator or the operator has
    chosen a planner. A setting that only the default planner reads counts as a choice.

    Args:
        table: Name of the table.
        keyed: Whether the table has a key.
        changes: Name → value, as the user wrote them.
        services: Configured services, by name.

    Raises:
        RequestError: As for `changed_settings`.
    """
    settings = settings_with_fixed(TableSettings(), changes, services=services)
    given, _ = settings_by_name(changes)
    planner, why = settings.planner, "as its settings say"
    if not planner:
        planner, why = _planner_of_new_table(keyed, given, _services_of(settings, services))
    if planner == BAG_PLANNER and not settings.planner:
        settings = replace(settings, planner=planner)
    return settings, f"planner of table {table}: {planner}, {why}"


BAG_PLANNER = "bin-pack"
"""Default planner of tables without a key."""
RATIO_SETTINGS = ("ratio", "lowest_ratio")
"""Settings that imply the default planner, because only that planner reads them."""


def _planner_of_new_table(
    keyed: bool, given: Mapping[str, Any], services: list[Service]
) -> tuple[str, str]:
    changed = next((service for service in services if _is_chosen(service)), None)
    if changed is not None:
        return changed.planner, f"as service {changed.name} says"
    if keyed:
        return DEFAULT_PLANNER, "since it has a key: overlapping files of near sizes are merged"
    if (
        name := next((setting for setting in RATIO_SETTINGS if setting in given), None)
    ) is not None:
        return DEFAULT_PLANNER, f"since it reads the setting {name}"
    return BAG_PLANNER, "since it has no key: small files are merged up to target_bytes"


def _services_of(settings: TableSettings, services: Mapping[str, Service]) -> list[Service]:
    """Return the services that may plan a table: its own service, and the ones named after it."""
    name = settings.service
    parts = [service for service in sorted(services) if service.startswith(f"{name}-")]
    return [services[member] for member in (name, *parts)]


def _is_chosen(service: Service) -> bool:
    """Return whether the operator has chosen the planner of a service, or its options."""
    return service.planner != DEFAULT_PLANNER or bool(service.options)


def _check_planner(setting: str, name: str, options: Mapping[str, str]) -> None:
    """Let a planner of the table check its options.

    Args:
        setting: Setting with the name of the planner.
        name: Its value; empty: the table has no such planner.
        options: The planner's options.

    Raises:
        RequestError: The planner is not installed, or rejects its options.
        PluginError: The planner does not load.
    """
    if not name:
        if options:
            given = ", ".join(sorted(options))
            raise RequestError(f"setting {setting}_options has {given}, but {setting} is not set")
        return
    with request_errors(f"setting {setting}: "):
        planner = load_planner(name)
    with request_errors(f"setting {setting}_options: "):
        check_options(name, planner, options)


def check_table_planner(table: Table) -> None:
    """Check that the planners of a table's settings can plan the table.

    Raises:
        RequestError: A planner cannot; the message names an alternative.
        PluginError: A planner does not load.
    """
    keyed, timed = bool(table.key), table.time_column is not None
    for setting in ("planner", "shadow_planner"):
        if name := getattr(table.settings, setting):
            with request_errors(f"setting {setting}: "):
                check_table(name, load_planner(name), keyed=keyed, timed=timed)


LAKE_SETTINGS: Mapping[str, Any] = {"manifest_interval_s": None, "directory_guard": False}
"""Settings that every lake table has: nothing of the service lies in its folder."""
LAKE_PLANNERS = frozenset({"bin-pack", "ratio"})
"""Planners of the service that need neither keys nor times nor tags of files, which a log does not
keep. Planners of packages decide for themselves."""


def check_lake_maintenance(table: Table) -> None:
    """Reject the setting `lake_maintenance` for native tables, and operations of other formats.

    Raises:
        RequestError: The service does not run these operations on the table.
    """
    if not table.settings.lake_maintenance:
        return
    if table.lake is None:
        raise RequestError(
            f"setting lake_maintenance is for lake tables; table {table.name!r} has its metadata "
            "and its files maintained by the service anyway"
        )
    names = OPERATIONS_OF_LAKES[table.lake.format]
    if others := [name for name in table.settings.lake_maintenance if name not in names]:
        raise RequestError(
            f"setting lake_maintenance: {', '.join(others)}: not for table {table.name!r} of the "
            f"format {table.lake.format}, which has {', '.join(names)}"
        )


def check_lake_settings(table: str, settings: TableSettings) -> None:
    """Reject settings that do not apply to a lake table.

    Raises:
        RequestError: A planner needs what its log does not keep, or a setting would write into its
            folder.
    """
    for setting in ("planner", "shadow_planner"):
        name = getattr(settings, setting)
        if name in PLANNERS.built_in.keys() - LAKE_PLANNERS:
            known = ", ".join(sorted(LAKE_PLANNERS))
            raise RequestError(
                f"setting {setting}: planner {name!r} needs keys, times or tags of files, which the"
                f" log of lake table {table!r} does not keep; choose one of {known}"
            )
    for setting, value in LAKE_SETTINGS.items():
        if getattr(settings, setting) != value:
            raise RequestError(
                f"setting {setting} has no use in lake table {table!r}: the service writes nothing "
                "of its own into its folder"
            )
    if "analysis" in settings.triggers:
        raise RequestError(
            f"setting triggers has analysis, which lake table {table!r} does not need: its log "
            "names the deleted rows of each file"
        )


class UnreadableError(RequestError):
    """An engine of the setting `readers` cannot read a table."""


def check_readers(table: Table) -> None:
    """Check that the engines of the setting `readers` can read a table.

    Raises:
        UnreadableError: One cannot; the message names the columns.
    """
    for reader in table.settings.readers:
        if reasons := unreadable_columns(table.schema, reader):
            raise UnreadableError(
                f"setting readers names {reader}, which cannot read table {table.name!r}: "
                + "; ".join(reasons)
            )


def check_publish(table: Table) -> None:
    """Check that a log of a table can be published, if its settings ask for one.

    Raises:
        ConfigError: The packages of lake tables are missing.
        RequestError: A log cannot state the table, or the table has no manifests.
    """
    settings = table.settings
    if settings.publish == PUBLISH_OFF:
        return
    if table.lake is not None:
        raise RequestError(f"setting publish: lake table {table.name!r} has a log of its own")
    if settings.manifest_interval_s is None:
        raise RequestError(
            "setting publish needs manifest_interval_s, by which versions are published; it is off"
        )
    try:
        check_publishable(table)
    except RefusedError as error:
        raise RequestError(f"setting publish: {error}") from error


def _check_plugin(
    setting: str, settings: TableSettings, load: Callable[[str], OutputConfigurer | Selector]
) -> None:
    """Let the plug-in of a setting check its options."""
    name, options = getattr(settings, setting), getattr(settings, f"{setting}_options")
    if name:
        load_requested(setting, name, options, load, where=f"setting {setting}: ")
    elif options:
        given = ", ".join(sorted(options))
        raise RequestError(f"setting {setting}_options has {given}, but {setting} is not set")


def _allowed_value(name: str, written: Any) -> Any:
    rule = replace(rule_of(name), **_BOUNDS.get(name, {}))
    value = rule.read(written, f"setting {name}")
    if name == "volume" and not DNS_LABEL.fullmatch(value):
        raise RequestError(f"setting volume is {shown(value)}, expected a DNS label such as disk-1")
    if name == "windows":
        check_windows(value, "setting windows")
    return value
