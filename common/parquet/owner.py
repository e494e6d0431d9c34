"""Whose a location is: `_neve/store` names the one store, and its one table, that may change it.

A restored or copied store would otherwise delete files of a table that lives on
(protocol: listing sweep, restore). Who opens a location reads this first. The table stands
behind the store, in marks of this release: places that look different and are not would
else be shared by two tables.
"""

from collections.abc import Collection
from dataclasses import dataclass

from common.errors import RefusedError, RequestError, UnavailableError
from common.parquet.location import Location, fault
from common.parquet.object_store import may_pass
from common.parquet.small_files import write_small

OWNER_PATH = "_neve/store"
OWNER_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Owner:
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


def read_owner(location: Location) -> Owner | None:
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
    return Owner(*words[:2]) if words else None


def claim(location: Location, store: str, table: str = "", *, tables: Collection[str] = ()) -> None:
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
        refuse_other(location.uri, found, store, table if found.table in tables else "")
        if found.table == table:
            return
    write_owner(location, Owner(store, table))


def write_owner(location: Location, owner: Owner) -> None:
    """Write the mark of a location, whatever it says now.

    Raises:
        RequestError: There is no such bucket, or the credentials do not fit it.
        UnavailableError: The storage does not answer, or forbids it.
    """
    content = " ".join(filter(None, (owner.store, owner.table))).encode() + b"\n"
    try:
        write_small(location, OWNER_PATH, content)
    except UnavailableError as error:
        if isinstance(error.__cause__, OSError) and not may_pass(error.__cause__):
            raise RequestError(str(error)) from error
        raise


def refuse_other(location: str, found: Owner | None, store: str, table: str = "") -> None:
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
    if table and found.table and found.table != table:
        raise RefusedError(
            f"location {location} belongs to another table of this service, by its mark "
            f"{OWNER_PATH}: its id is {found.table}, this one's {table}; two tables may not share "
            "files (`neve fsck --adopt` takes it over)"
        )
