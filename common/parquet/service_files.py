"""The service's own small files in a location, below `_neve/`.

`_neve/store` names the store and the table that may change the location. `_neve/generation` reveals
that Redis has lost changes. `_neve/table.json` describes the table, for a rebuild after a loss of
Redis. All are read as a whole within a bound, and replaced atomically.
"""

import json
import posixpath
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any

from common.errors import RefusedError, RequestError, UnavailableError
from common.model.fields import as_plain
from common.model.location_identity import (
    COPIED_FOLDER,
    DESCRIPTION_PATH,
    GENERATION_PATH,
    SERVICE_FOLDER,
)
from common.model.table import Column, Table, TableSettings, TableState
from common.parquet.location import Location, fault, is_transient
from common.units import whole_number

# ------------------------------------------------------------------------------ Reading and writing


def read_small(location: Location, path: str, bytes_max: int) -> bytes | None:
    """Return the content of a small file, of at most `bytes_max` bytes; None: it is missing.

    Raises:
        UnavailableError: The storage does not answer.
    """
    try:
        with location.open_stream(path) as stream:
            return bytes(stream.read(bytes_max))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnavailableError(fault(location, path, error)) from error


def write_small(location: Location, path: str, content: bytes) -> None:
    """Write a small file, replacing an existing one.

    Raises:
        UnavailableError: The storage does not answer, or forbids it.
    """
    full = location.full(path)
    # An object becomes visible when its stream is closed; a local file when it is renamed. Several
    # processes may write it at the same time, so each has a name of its own until then.
    target = f"{full}.{secrets.token_hex(4)}.new" if location.is_local else full
    try:
        if location.is_local:
            location.filesystem.create_dir(posixpath.dirname(full), recursive=True)
        with location.filesystem.open_output_stream(target) as stream:
            stream.write(content)
        if location.is_local:
            location.filesystem.move(target, full)
    except OSError as error:
        if location.is_local:
            with suppress(OSError):
                location.filesystem.delete_file(target)
        raise UnavailableError(fault(location, path, error)) from error


# ---- The owner of a location
#
# Without this mark, a restored or copied store would delete files of a table that is still in use
# (protocol: listing sweep, restore). A process reads it before it uses a location. Marks of this
# release name the table after the store. Otherwise two tables could share a location that has
# different names.


OWNER_PATH = f"{SERVICE_FOLDER}/store"
OWNER_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class LocationOwner:
    """The content of a location's mark."""

    store: str
    table: str = ""
    """Empty: written by a release that did not record it."""

    def is_another(self, table: str) -> bool:
        """Return whether the mark names a different table."""
        return self.table not in ("", table)


def owner_of(location: Location) -> str | None:
    """Return the id of the store that owns a location; None: the location is not claimed.

    Raises:
        UnavailableError: The storage does not answer.
    """
    owner = read_owner(location)
    return None if owner is None else owner.store


def read_owner(location: Location) -> LocationOwner | None:
    """Return the mark of a location; None: the location is not claimed.

    Raises:
        UnavailableError: The storage does not answer.
    """
    try:
        with location.open_stream(OWNER_PATH) as stream:
            words = stream.read(OWNER_BYTES_MAX).decode("utf-8", errors="replace").split()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnavailableError(fault(location, OWNER_PATH, error)) from error
    return LocationOwner(*words[:2]) if words else None


def write_owner(location: Location, owner: LocationOwner) -> None:
    """Write the mark of a location, whatever its present content.

    Raises:
        RequestError: The bucket does not exist, or the credentials do not allow the access.
        UnavailableError: The storage does not answer, or forbids it.
    """
    content = " ".join(filter(None, (owner.store, owner.table))).encode() + b"\n"
    try:
        write_small(location, OWNER_PATH, content)
    except UnavailableError as error:
        if isinstance(error.__cause__, OSError) and not is_transient(error.__cause__):
            raise RequestError(str(error)) from error
        raise


def refuse_other_owner(
    location: str, owner: LocationOwner | None, store: str, table: str = ""
) -> None:
    """Refuse a location that belongs to another store or table, or has lost its mark.

    Args:
        location: Its URI.
        owner: Its owner, from `read_owner`.
        store: Id of this service's store.
        table: Id of the expected owner; empty: any table.

    Raises:
        RefusedError: The location is refused.
    """
    if owner is None:
        raise RefusedError(
            f"location {location} has lost its mark {OWNER_PATH}, which names its owner; "
            f"was the folder emptied? It should contain {store}"
        )
    if owner.store != store:
        raise RefusedError(
            f"location {location} belongs to the store {owner.store}, this one is {store}: "
            "two services may not share a location (`neve fsck --adopt` takes it over)"
        )
    if table and owner.is_another(table):
        raise RefusedError(
            f"location {location} belongs to another table of this service, by its mark "
            f"{OWNER_PATH}: its id is {owner.table}, this one's {table}; two tables may not share "
            "files (`neve fsck --adopt` takes it over)"
        )


# ---- The generation
#
# The coordinator increments a table's generation in the store and then writes it here. A store that
# lost its last minutes (a fail-over, a restored dump) has a lower number than its location. The
# table is then read-only until an operator has checked it (`neve fsck`) and accepted its present
# state.


_GENERATION_BYTES_MAX = 64
UNREADABLE_GENERATION = 1 << 62
"""Stands for a file without a valid number: the extent of the loss is unknown."""


def written_generation(location: Location) -> int:
    """Return the generation in a location; 0: none was written.

    Raises:
        UnavailableError: The storage does not answer.
    """
    content = read_small(location, GENERATION_PATH, _GENERATION_BYTES_MAX)
    if content is None:
        return 0
    number = whole_number(content.decode("ascii", errors="replace"))
    return UNREADABLE_GENERATION if number is None else number


def write_generation(location: Location, generation: int) -> None:
    """Write the generation of a table into its location.

    Raises:
        UnavailableError: The storage does not answer, or forbids it.
    """
    write_small(location, GENERATION_PATH, b"%d\n" % generation)


def generation_fault(name: str, stored: int, written: int) -> str | None:
    """Return why a table is read-only: its store is older than its location; None: it is not.

    Args:
        name: Name of the table.
        stored: The generation in the store, read after the location's.
        written: The generation in the location.
    """
    if stored >= written:
        return None
    shown = "no number" if written == UNREADABLE_GENERATION else str(written)
    return (
        f"table {name} is read-only: its store is at generation {stored}, but {GENERATION_PATH} "
        f"of its location has {shown}, so the store has lost changes; check it with "
        f"`neve fsck {name}`, then accept with `neve fsck {name} --accept`"
    )


# ---- The description of a table
#
# Footers name table, tablet, inputs and attempt of each output. Key, schema and settings belong to
# the table, and a rebuild would have to guess them.


FORMAT = "neve-table"
FORMAT_VERSION = 1
_DESCRIPTION_BYTES_MAX = 16 * 1024**2


def table_to_plain(table: Table) -> dict[str, Any]:
    """Return a table as plain JSON values; recovery progress is left out."""
    plain = as_plain(replace(table, filling=None, incomplete=False))
    del plain["filling"], plain["incomplete"]  # Earlier releases refuse these fields.
    return plain | {"schema": [as_plain(column) for column in table.schema]}


def table_from_plain(plain: dict[str, Any], where: str) -> Table:
    """Return the table from the values of `table_to_plain`.

    Args:
        plain: A JSON object.
        where: Its source, for the message.

    Raises:
        RequestError: It is not a table of this release.
    """
    try:
        values = _with_tuples(plain)
        values["schema"] = tuple(Column(**column) for column in plain["schema"])
        values["settings"] = TableSettings(**_with_tuples(plain["settings"]))
        values["state"] = TableState(plain["state"])
        return Table(**values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RequestError(f"{where} is not a table of this release: {error}") from error


def _with_tuples(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()
    }


def write_description(location: Location, table: Table) -> None:
    """Write the description of a table into its location.

    Raises:
        UnavailableError: The storage does not answer, or forbids it.
    """
    body = {"format": FORMAT, "version": FORMAT_VERSION, "table": table_to_plain(table)}
    write_small(location, DESCRIPTION_PATH, json.dumps(body, indent=1).encode() + b"\n")


def read_description(location: Location) -> Table | None:
    """Return the table described in a location; None: there is no description.

    Raises:
        RequestError: The description is not of this release.
        UnavailableError: The storage does not answer.
    """
    content = read_small(location, DESCRIPTION_PATH, _DESCRIPTION_BYTES_MAX)
    if content is None:
        return None
    where = f"{DESCRIPTION_PATH} of {location.uri}"
    try:
        body = json.loads(content)
    except ValueError as error:
        raise RequestError(f"{where} is not JSON: {error}") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise RequestError(f"{where} has another format, expected {FORMAT}")
    if body.get("version") != FORMAT_VERSION or not isinstance(body.get("table"), dict):
        raise RequestError(f"{where} has version {body.get('version')}, expected {FORMAT_VERSION}")
    return table_from_plain(body["table"], where)


# ---- Which files of users an import has copied
#
# The copies are files of the table, and go with its compactions; the files of users stay. Without
# these lists, an import that is repeated later would take them for new ones.


_COPIED_AT_ONCE = 10_000
"""Files of one list; a name has at most some kilobytes."""
_COPIED_BYTES_MAX = 256 * 1024**2


def write_copied(location: Location, table: str, files: Mapping[str, int]) -> None:
    """Write which files of users have copies in a table.

    Args:
        location: Of the table.
        table: Its id.
        files: Path → size in bytes.

    Raises:
        UnavailableError: The storage does not answer, or forbids it.
    """
    remaining = iter(sorted(files.items()))
    for number in count():
        batch = dict(islice(remaining, _COPIED_AT_ONCE))
        if not batch:
            return
        write_small(location, _copied_path(table, number), json.dumps(batch).encode())


def read_copied(location: Location, tables: Iterable[str]) -> dict[str, int]:
    """Return which files of users have copies in a table: path → size in bytes.

    Args:
        location: Of the table.
        tables: All ids that it has had.

    Raises:
        RequestError: A list makes no sense.
        UnavailableError: The storage does not answer.
    """
    sizes_bytes: dict[str, int] = {}
    for table in tables:
        for number in count():
            path = _copied_path(table, number)
            content = read_small(location, path, _COPIED_BYTES_MAX)
            if content is None:
                break
            try:
                sizes_bytes.update(json.loads(content))
            except ValueError as error:
                raise RequestError(f"{path} of {location.uri} is no JSON: {error}") from error
    return sizes_bytes


def _copied_path(table: str, number: int) -> str:
    return f"{COPIED_FOLDER}/{table}/{number}.json"
