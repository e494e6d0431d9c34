"""Locations of tables: the one form of their URIs, and whose they are.

What lies below a location is confined by `common.parquet.location`. Credentials come
from the environment's own chains, never from a URI.
"""

import posixpath
from urllib.parse import quote, unquote, urlsplit

from pyarrow import fs

from common.errors import RefusedError, RequestError, UnavailableError
from common.model.table import Column
from common.parquet.inspect import opened
from common.parquet.location import SCHEMES, open_location
from common.rows.schema import columns_of

OWNER_PATH = "_neve/store"
"""Holds the id of the one store that may delete files of the location."""
OWNER_BYTES_MAX = 4096
CHECK_INTERVAL_S = 60.0


def normal_location(written: str) -> str:
    """Return the one URI of a location: absolute, without trailing slash or `..`.

    Args:
        written: A URI, or an absolute path on the machine of the service.

    Raises:
        RequestError: It is neither, or holds credentials or a query.
    """
    text = written.strip()
    if text.startswith("/"):
        text = "file://" + quote(text)
    parts = urlsplit(text)
    if parts.scheme not in SCHEMES or parts.query or parts.fragment or "@" in parts.netloc:
        raise RequestError(
            f"location {_public(written)!r} is not one: wanted a URI such as file:///data/t or "
            f"s3://bucket/t ({', '.join(SCHEMES)}), or an absolute path; no credentials, no query"
        )
    path = unquote(parts.path)
    if "\x00" in path or ".." in path.split("/"):
        raise RequestError(f"location {written!r} must not contain '..' or a zero byte")
    path = posixpath.normpath("/" + path.lstrip("/")) if path.strip("/") else ""
    host = "" if parts.scheme == "file" else parts.netloc
    if parts.scheme == "file" and (parts.netloc not in ("", "localhost") or not path):
        raise RequestError(f"location {written!r} must name a folder: file:///folder/table")
    if parts.scheme != "file" and not host:
        raise RequestError(f"location {written!r} names no bucket: {parts.scheme}://bucket/table")
    return f"{parts.scheme}://{host}{quote(path)}"


def read_columns(location: str, path: str) -> tuple[Column, ...]:
    """Return the columns of a Parquet file below a location.

    Raises:
        RequestError: It is not below it, missing or no Parquet file.
    """
    place = open_location(location)
    with opened(place, place.relative(path)) as file:
        return columns_of(file.schema_arrow)


def owner(location: str) -> str | None:
    """Return the id of the store that a location belongs to, or None.

    Raises:
        UnavailableError: The storage does not answer.
    """
    place = open_location(location)
    try:
        with place.filesystem.open_input_stream(place.full(OWNER_PATH)) as stream:
            text = stream.read(OWNER_BYTES_MAX).decode("utf-8", errors="replace").split()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnavailableError(f"{location} cannot be read: {error}") from error
    return text[0] if text else None


def claim(location: str, store: str) -> None:
    """Write into a location whose it is, unless that is written already.

    Args:
        location: A normal location; made if it is not there.
        store: Id of this service's store.

    Raises:
        RefusedError: It belongs to another store.
        UnavailableError: The storage does not answer, or forbids it.
    """
    found = owner(location)
    if found is not None:
        refuse_other(location, found, store)
        return
    place = open_location(location)
    full = place.full(OWNER_PATH)
    try:
        if isinstance(place.filesystem, fs.LocalFileSystem):
            place.filesystem.create_dir(posixpath.dirname(full), recursive=True)
        with place.filesystem.open_output_stream(full) as stream:
            stream.write(store.encode() + b"\n")
    except OSError as error:
        raise UnavailableError(f"{location} cannot be written: {error}") from error


def refuse_other(location: str, found: str | None, store: str) -> None:
    """Refuse a location that belongs to another store, or to none any more.

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


class Owners:
    """Remembers which locations were found to be ours, and looks again every minute."""

    def __init__(self) -> None:
        self._seen_s: dict[str, float] = {}

    def check(self, location: str, store: str, now_s: float) -> None:
        """Refuse a location that is not this store's.

        Raises:
            RefusedError: It belongs to another.
            UnavailableError: The storage does not answer.
        """
        seen_s = self._seen_s.get(location)
        if seen_s is not None and 0 <= now_s - seen_s < CHECK_INTERVAL_S:
            return
        refuse_other(location, owner(location), store)
        self._seen_s[location] = now_s


def _public(written: str) -> str:
    """Return what a user wrote without what may be a password."""
    head, at, tail = written.rpartition("@")
    return f"…@{tail}" if at and "://" in head else written
