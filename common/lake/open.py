"""The source of a lake table by the name of its format, and the log of a native table.

Formats are imported when first used.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING
from urllib.parse import unquote

from common.config import regular_text
from common.control_settings import CatalogSettings
from common.errors import ConfigError, RequestError
from common.lake.source import LOCATIONS, LakeFormat, TableSource
from common.model.table import DNS_LABEL, Table
from common.settings import Settings

if TYPE_CHECKING:
    from common.lake.delta.publication import PublishedLog

NOT_INSTALLED = "lake tables need the packages of the extra 'lake': pip install 'neve[lake]'"


def open_source(format_name: str, uri: str, options: Mapping[str, str]) -> TableSource:
    """Return the source of a lake table; nothing is read.

    Args:
        format_name: A value of `LakeFormat`.
        uri: The table: a folder or URI of its files, or `CATALOG:NAMESPACE.TABLE`.
        options: Options of the storage or catalog, such as credentials. They are never logged.

    Raises:
        ConfigError: The packages of the format are missing, or it is unknown.
        RequestError: The URI is malformed.
    """
    if format_name not in set(LakeFormat):
        supported = ", ".join(LakeFormat)
        message = f"lake format {str(format_name)!r} is not supported; supported: {supported}"
        raise ConfigError(message)
    try:
        if format_name == LakeFormat.ICEBERG:
            from common.lake.iceberg.source import open_iceberg

            return open_iceberg(uri, options)
        from common.lake.delta.source import open_delta
    except ImportError as error:
        raise ConfigError(NOT_INSTALLED) from error
    return open_delta(uri, options)


def open_published_log(uri: str, options: Mapping[str, str]) -> "PublishedLog":
    """Return the Delta log of a native table's location; nothing is read.

    Raises:
        ConfigError: The packages of lake tables are missing.
        RequestError: A log cannot be published there.
    """
    try:
        from common.lake.delta.publication import PublishedLog
        from common.lake.storage import LakeStorage
    except ImportError as error:
        raise ConfigError(NOT_INSTALLED) from error
    if "?" in uri:
        message = f"location {uri} has options in its URI, which a published log does not support"
        raise RequestError(message)
    is_local = uri.startswith("file:")  # whose URI is decoded where it is opened
    return PublishedLog(LakeStorage(uri if is_local else unquote(uri), options))


def check_publishable(table: Table) -> None:
    """Refuse a table whose files a Delta log cannot state.

    Raises:
        ConfigError: The packages of lake tables are missing.
        RefusedError: The sentence names the column, or what the table has.
        RequestError: A log cannot be published in its location.
    """
    open_published_log(table.location, {})
    from common.lake.delta.publication import Definition

    Definition.of(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogAccess(CatalogSettings):
    """How lake tables are reached: the settings, the named catalogs, and what is allowed."""

    named: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Catalogs of Iceberg tables: name → properties without secrets."""
    locations: tuple[str, ...] = ()
    """Locations at which files of tables may lie."""

    def __post_init__(self) -> None:
        """Do nothing: the values were checked where they were read."""


def catalog_access(settings: Settings) -> CatalogAccess:
    """Return how lake tables are reached with the settings of a service."""
    own = {entry.name: getattr(settings.catalog, entry.name) for entry in fields(CatalogSettings)}
    return CatalogAccess(**own, named=settings.catalogs, locations=settings.gateway.locations)


def packed_access(access: CatalogAccess) -> str:
    """Return what a process needs to reach lake tables, as text without secrets."""
    return json.dumps(asdict(access))


def unpacked_access(text: str) -> CatalogAccess:
    """Return the access of `packed_access`; an empty text: that of a service without catalogs."""
    if not text:
        return CatalogAccess()
    values = json.loads(text)
    return CatalogAccess(**{**values, "locations": tuple(values["locations"])})


OPTIONS_BYTES_MAX = 1024**2


def catalog_of(uri: str) -> str:
    """Return the catalog in `CATALOG:NAMESPACE.TABLE`, or an empty text for another URI."""
    name, colon, rest = uri.partition(":")
    return name if colon and not rest.startswith("/") and DNS_LABEL.fullmatch(name) else ""


def storage_options(settings: CatalogSettings, uri: str) -> dict[str, str]:
    """Return the options of the storage or catalog of a table, secrets among them.

    The file of the settings is read at each call. It has a table for each prefix of URIs, of which
    the longest counts, and for each catalog. What it does not have, the source takes from the
    environment. The options are never stored or logged.

    Raises:
        ConfigError: The file cannot be read, or is malformed, or there is no such catalog; the
            message has no value of the file.
    """
    options, name = _options_of_file(settings.options_file, uri), catalog_of(uri)
    if not name or not isinstance(settings, CatalogAccess):
        return options
    named = settings.named.get(name)
    if named is None:
        configured = ", ".join(sorted(settings.named)) or "none"
        message = (
            f"catalog {name!r} is not configured (configured: {configured}): add a table "
            f"[catalogs.{name}] with its type to the settings file"
        )
        raise ConfigError(message)
    return {**named, **options, LOCATIONS: "\n".join(settings.locations)}


def _options_of_file(path: str, uri: str) -> dict[str, str]:
    """Return the options of a URI or catalog in the file of secrets; empty: it has none."""
    if not path:
        return {}
    try:
        prefixes = tomllib.loads(regular_text(path, OPTIONS_BYTES_MAX))
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or "it is not TOML"
        raise ConfigError(f"setting catalog.options_file: {path} cannot be read: {cause}") from None
    name = catalog_of(uri)
    fitting = [prefix for prefix in prefixes if prefix == name or _has_prefix(uri, prefix)]
    if not fitting:
        return {}
    prefix = max(fitting, key=len)
    options = prefixes[prefix]
    is_flat = isinstance(options, dict) and all(isinstance(item, str) for item in options.values())
    if not is_flat:
        raise ConfigError(
            f"setting catalog.options_file: {path}: the table {prefix!r} is malformed, expected "
            'options such as aws_region = "eu-central-1"'
        )
    return dict(options)


def _has_prefix(uri: str, prefix: str) -> bool:
    """Return whether a URI is a prefix, or lies below it."""
    short = prefix.rstrip("/")
    return uri == short or uri.startswith(f"{short}/")
