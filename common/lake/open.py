"""The source of a lake table, by the name of its format. Formats are imported when first used."""

from collections.abc import Mapping

from common.errors import ConfigError
from common.lake.source import LakeFormat, TableSource

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
        message = f"lake format {format_name!r} is not supported; supported: {LakeFormat.DELTA}"
        raise ConfigError(message)
    try:
        from common.lake.delta.source import open_delta
    except ImportError as error:
        raise ConfigError(NOT_INSTALLED) from error
    return open_delta(uri, options)
