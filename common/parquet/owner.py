"""Whose a location is: `_neve/store` names the one store that may change its files.

A restored or copied store would otherwise delete files of a table that lives on
(protocol: listing sweep, restore). Who opens a location reads this first.
"""

import posixpath

from common.errors import RefusedError, RequestError, UnavailableError
from common.parquet.location import Location, fault
from common.parquet.object_store import may_pass

OWNER_PATH = "_neve/store"
OWNER_BYTES_MAX = 4096


def owner_of(location: Location) -> str | None:
    """Return the id of the store that a location belongs to; None: nobody has claimed it.

    Raises:
        UnavailableError: The storage does not answer.
    """
    try:
        with location.filesystem.open_input_stream(location.full(OWNER_PATH)) as stream:
            words = stream.read(OWNER_BYTES_MAX).decode("utf-8", errors="replace").split()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnavailableError(fault(location, OWNER_PATH, error)) from error
    return words[0] if words else None


def claim(location: Location, store: str) -> None:
    """Write into a location whose it is, unless that is written already.

    Args:
        location: Made if it is not there.
        store: Id of this service's store.

    Raises:
        RefusedError: It belongs to another store.
        RequestError: There is no such bucket, or the credentials do not fit it.
        UnavailableError: The storage does not answer, or forbids it.
    """
    if (found := owner_of(location)) is not None:
        refuse_other(location.uri, found, store)
        return
    full = location.full(OWNER_PATH)
    try:
        if location.is_local:  # Object stores have no folders, and may forbid to make buckets.
            location.filesystem.create_dir(posixpath.dirname(full), recursive=True)
        with location.filesystem.open_output_stream(full) as stream:
            stream.write(store.encode() + b"\n")
    except OSError as error:
        kind = UnavailableError if may_pass(error) else RequestError
        raise kind(fault(location, OWNER_PATH, error)) from error


def refuse_other(location: str, found: str | None, store: str) -> None:
    """Refuse a location that belongs to another store, or to none any more.

    Args:
        location: Its URI.
        found: Who owns it, by `owner_of`.
        store: Id of this service's store.

    Raises:
        RefusedError: It does.
    """
    if found is None:
        raise RefusedError(
            f"location {location} has lost its mark {OWNER_PATH}, which says whose it is; "
            f"was the folder emptied? It should hold {store}"
        )
    if found != store:
        raise RefusedError(
            f"location {location} belongs to the store {found}, this one is {store}: "
            "two services may not share a location (`neve fsck --adopt` takes it over)"
        )
