"""What a table is, beside its data: `_neve/table.json`, for a rebuild when Redis is lost.

Footers tell table, tablet, inputs and attempt of each output; key, schema and settings
are the table's own and would have to be guessed.
"""

import json
from collections.abc import Mapping
from typing import Any

from common.errors import RequestError
from common.model.own_paths import DESCRIPTION_PATH
from common.model.table import Column, Table, TableSettings, TableState
from common.model.unknown_fields import as_plain
from common.parquet.location import Location
from common.parquet.small_files import read_small, write_small

FORMAT = "neve-table"
FORMAT_VERSION = 1
_BYTES_MAX = 16 * 1024**2


def table_to_plain(table: Table) -> dict[str, Any]:
    """Return a table as JSON knows it."""
    return as_plain(table) | {"schema": [as_plain(column) for column in table.schema]}


def table_from_plain(plain: dict[str, Any], where: str) -> Table:
    """Return the table that `table_to_plain` wrote.

    Args:
        plain: A JSON object.
        where: It was read from, for the message.

    Raises:
        RequestError: It is no table of this release.
    """
    try:
        given = _with_tuples(plain)
        given["schema"] = tuple(Column(**column) for column in plain["schema"])
        given["settings"] = TableSettings(**_with_tuples(plain["settings"]))
        given["state"] = TableState(plain["state"])
        return Table(**given)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RequestError(f"{where} describes no table of this release: {error}") from error


def _with_tuples(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()
    }


def write_description(location: Location, table: Table) -> None:
    """Write what a table is into its location.

    Raises:
        UnavailableError: The storage does not answer, or forbids it.
    """
    body = {"format": FORMAT, "version": FORMAT_VERSION, "table": table_to_plain(table)}
    write_small(location, DESCRIPTION_PATH, json.dumps(body, indent=1).encode() + b"\n")


def read_description(location: Location) -> Table | None:
    """Return the table that a location was written for; None: it does not say.

    Raises:
        RequestError: What is there is no description of this release.
        UnavailableError: The storage does not answer.
    """
    content = read_small(location, DESCRIPTION_PATH, _BYTES_MAX)
    if content is None:
        return None
    where = f"{DESCRIPTION_PATH} of {location.uri}"
    try:
        body = json.loads(content)
    except ValueError as error:
        raise RequestError(f"{where} is no JSON: {error}") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise RequestError(f"{where} has another format, wanted {FORMAT}")
    if body.get("version") != FORMAT_VERSION or not isinstance(body.get("table"), dict):
        raise RequestError(f"{where} has version {body.get('version')}, wanted {FORMAT_VERSION}")
    return table_from_plain(body["table"], where)
