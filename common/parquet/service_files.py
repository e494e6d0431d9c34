"""The service's own small files in a location, below `_neve/`.

`_neve/store` names the one store, and its one table, that may change the location;
`_neve/generation` shows that Redis has gone back in time; `_neve/table.json` says what a table is,
for a rebuild when Redis is lost. All are read whole within a bound, and never seen half written.
"""

import json
import posixpath
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any

from common.errors import RefusedError, RequestError, UnavailableError
from common.model.fields import as_plain
from common.model.service_paths import (
    COPIED_FOLDER,
    DESCRIPTION_PATH,
    GENERATION_PATH,
    SERVICE_FOLDER,
)
from common.model.table import Column, Table, TableSettings, TableState
from common.parquet.location import Location, fault, is_transient

# ------------------------------------------------------------------------------ Reading and writing


def read_small(location: Location, path: str, bytes_max: int) -> bytes | None:
    """Return what a small file holds, at most so many bytes; None: there is none.

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
    """Write a small file in place of the one that is there.

    Raises:
        UnavailableError: The storage does not answer, or forbids it.
    """
    full = location.full(path)
    # An object appears whole when its stream is closed; a local file when it is renamed.
    target = f"{full}.new" if location.is_local else full
    try:
        if location.is_local:
            location.filesystem.create_dir(posixpath.dirname(full), recursive=True)
        with location.filesystem.open_output_stream(target) as stream:
            stream.write(content)
        if location.is_local:
            location.filesystem.move(target, full)
    except OSError as error:
        raise UnavailableError(fault(location, path, error)) from error


# ---- The owner of a location
#
# A restored or copied store would otherwise delete files of a table that lives on (protocol:
# listing sweep, restore). Who opens a location reads this first. The table stands behind the
# store, in marks of this release: places that look different and are not would else be shared by
# two tables.


OWNER_PATH = f"{SERVICE_FOLDER}/store"
OWNER_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class LocationOwner:
    """What the mark of a location says."""

    store: str
    table: str = ""
    """Empty: it was written by a release that did not say it."""

    def is_another(self, table: str) -> bool:
        """Return whether it says that the location is another table's than this one's, by id."""
        return self.table not in ("", table)


def owner_of(location: Location) -> str | None:
    """Return the id of the store that a location belongs to; None: nobody has claimed it.

    Raises:
        UnavailableError: The storage does not answer.
    """
    found = read_owner(location)
    return None if found is None else found.store


def read_owner(location: Location) -> LocationOwner | None:
    """Return what the mark of a location says; None: nobody has claimed it.

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


def claim_location(
    location: Location, store: str, table: str = "", *, tables: Collection[str] = ()
) -> None:
    """Write into a location whose it is, unless that is written already.

    Args:
        location: Made if it is not there.
        store: Id of this service's store.
        table: Id of the table that is made there.
        tables: Ids of the tables that this store has: their locations are not to be had.

    Raises:
        RefusedError: It belongs to another store, or to another table of this one.
        RequestError: There is no such bucket, or the credentials do not fit it.
        UnavailableError: The storage does not answer, or forbids it.
    """
    found = read_owner(location)
    if found is not None:
        refuse_other_owner(location.uri, found, store, table if found.table in tables else "")
        if found.table == table:
            return
    write_owner(location, LocationOwner(store, table))


def write_owner(location: Location, owner: LocationOwner) -> None:
    """Write the mark of a location, whatever it says now.

    Raises:
        RequestError: There is no such bucket, or the credentials do not fit it.
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
    location: str, found: LocationOwner | None, store: str, table: str = ""
) -> None:
    """Refuse a location that belongs to another store or table, or to none any more.

    Args:
        location: Its URI.
        found: Who owns it, by `read_owner`.
        store: Id of this service's store.
        table: Id of the table that shall own it; empty: any.

    Raises:
        RefusedError: It does.
    """
    if found is None:
        raise RefusedError(
            f"location {location} has lost its mark {OWNER_PATH}, which says whose it is; "
            f"was the folder emptied? It should hold {store}"
        )
    if found.store != store:
        raise RefusedError(
            f"location {location} belongs to the store {found.store}, this one is {store}: "
            "two services may not share a location (`neve fsck --adopt` takes it over)"
        )
    if table and found.is_another(table):
        raise RefusedError(
            f"location {location} belongs to another table of this service, by its mark "
            f"{OWNER_PATH}: its id is {found.table}, this one's {table}; two tables may not share "
            "files (`neve fsck --adopt` takes it over)"
        )


# ---- The generation
#
# The coordinator counts a table's generation up in the store and then writes it here. A store
# that lost its last minutes (a fail-over, a restored dump) knows a lower number than its location
# does: it is *behind*, and its table is read-only until an operator has looked (`neve fsck`) and
# accepted what is there.


_GENERATION_BYTES_MAX = 64
UNREADABLE_GENERATION = 1 << 62
"""What a file that holds no number counts as: nobody can say how far the store is behind."""


def written_generation(location: Location) -> int:
    """Return the generation that a location was left with; 0: none was ever written.

    Raises:
        UnavailableError: The storage does not answer.
    """
    content = read_small(location, GENERATION_PATH, _GENERATION_BYTES_MAX)
    if content is None:
        return 0
    text = content.decode("ascii", errors="replace").strip()
    return int(text) if text.isdigit() else UNREADABLE_GENERATION


def write_generation(location: Location, generation: int) -> None:
    """Write the generation of a table into its location.

    Raises:
        UnavailableError: The storage does not answer, or forbids it.
    """
    write_small(location, GENERATION_PATH, b"%d\n" % generation)


def generation_fault(name: str, stored: int, written: int) -> str | None:
    """Return why a table is read-only: its store is older than its location; None: it is not.

    Args:
        name: Of the table.
        stored: The generation in the store, read after the location's.
        written: The generation in the location.
    """
    if stored >= written:
        return None
    known = "no number" if written == UNREADABLE_GENERATION else str(written)
    return (
        f"table {name} is read-only: its store is at generation {stored}, but {GENERATION_PATH} "
        f"of its location says {known}, so the store has gone back in time; look with "
        f"`neve fsck {name}`, then accept with `neve fsck {name} --accept`"
    )


# ---- The description of a table
#
# Footers tell table, tablet, inputs and attempt of each output; key, schema and settings are the
# table's own and would have to be guessed.


FORMAT = "neve-table"
FORMAT_VERSION = 1
_DESCRIPTION_BYTES_MAX = 16 * 1024**2


def table_to_plain(table: Table) -> dict[str, Any]:
    """Return a table as JSON knows it; how far its recovery is belongs to the store alone."""
    plain = as_plain(replace(table, filling=None, incomplete=False))
    del plain["filling"], plain["incomplete"]  # A release before these fields refuses them.
    return plain | {"schema": [as_plain(column) for column in table.schema]}


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
    content = read_small(location, DESCRIPTION_PATH, _DESCRIPTION_BYTES_MAX)
    if content is None:
        return None
    where = f"{DESCRIPTION_PATH} of {location.uri}"
    try:
        body = json.loads(content)
    except ValueError as error:
        raise RequestError(f"{where} is no JSON: {error}") from error
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
    left = iter(sorted(files.items()))
    for number in count():
        some = dict(islice(left, _COPIED_AT_ONCE))
        if not some:
            return
        write_small(location, _copied_path(table, number), json.dumps(some).encode())


def read_copied(location: Location, tables: Iterable[str]) -> dict[str, int]:
    """Return which files of users have copies in a table: path → size in bytes.

    Args:
        location: Of the table.
        tables: All ids that it has had.

    Raises:
        RequestError: A list makes no sense.
        UnavailableError: The storage does not answer.
    """
    found: dict[str, int] = {}
    for table in tables:
        for number in count():
            path = _copied_path(table, number)
            content = read_small(location, path, _COPIED_BYTES_MAX)
            if content is None:
                break
            try:
                found.update(json.loads(content))
            except ValueError as error:
                raise RequestError(f"{path} of {location.uri} is no JSON: {error}") from error
    return found


def _copied_path(table: str, number: int) -> str:
    return f"{COPIED_FOLDER}/{table}/{number}.json"
