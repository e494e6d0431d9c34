"""The source of a lake table by the name of its format, and the log of a native table.

Formats are imported when first used.
"""

import tomllib
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote

from common.config import regular_text
from common.control_settings import CatalogSettings
from common.errors import ConfigError, RequestError
from common.lake.source import LakeFormat, TableSource
from common.model.table import Table

if TYPE_CHECKING:
    from common.lake.delta.publication import PublishedLog

NOT_INSTALLED = "lake tables need the packages of the extra 'lake': pip install 'neve[lake]'"


def open_source(format_name: str, uri: str, options: Mapping[str, str]) -> TableSource:
    """Return the source of a lake table; nothing is read.

    Args:
        format_name: A value of `LakeFormat`.
        uri: The table: a folder or URI of its files.
        options: Options of the storage, such as credentials. They are never logged.

    Raises:
        ConfigError: The packages of the format are missing, or it is unknown.
        RequestError: The URI is malformed.
    """
    if format_name != LakeFormat.DELTA:
        message = (
            f"lake format {str(format_name)!r} is not supported; supported: {LakeFormat.DELTA}"
        )
        raise ConfigError(message)
    try:
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
        from common.lake.delta.storage import LakeStorage
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


OPTIONS_BYTES_MAX = 1024**2


def storage_options(settings: CatalogSettings, uri: str) -> dict[str, str]:
    """Return the options of the storage of a table, secrets among them. Read at each call.

    The file of the settings has a table for each prefix of URIs; the longest prefix counts. What it
    does not have, the source takes from the environment. The options are never stored or logged.

    Raises:
        ConfigError: The file cannot be read, or is malformed; the message has no value of it.
    """
    path = settings.options_file
    if not path:
        return {}
    try:
        prefixes = tomllib.loads(regular_text(path, OPTIONS_BYTES_MAX))
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or "it is not TOML"
        raise ConfigError(f"setting catalog.options_file: {path} cannot be read: {cause}") from None
    fitting = [prefix for prefix in prefixes if _has_prefix(uri, prefix)]
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
