"""Locations of tables: their URIs, what lies below them, and whose they are.

Everything a user names is brought into one form here and confined to the table's
location; credentials come from the environment's own chains, never from a URI.
"""

import posixpath
from pathlib import PurePosixPath
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from common.errors import ConfigError, InputError, RefusedError, RequestError, UnavailableError

OWNER_PATH = "_neve/store"
"""Holds the id of the one store that may delete files of the location."""
OWNER_BYTES_MAX = 4096
SCHEMES = ("file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs")


def normal_location(written: str) -> str:
    """Return the one URI of a location: absolute, without trailing slash or `..`.

    Args:
        written: A URI, or an absolute path on this machine.

    Raises:
        RequestError: It is neither, or holds credentials or a query.
    """
    text = written.strip()
    if text.startswith("/"):
        text = "file://" + quote(text)
    parts = urlsplit(text)
    if parts.scheme not in SCHEMES or parts.query or parts.fragment or "@" in parts.netloc:
        raise RequestError(
            f"location {_public(written)!r} is not a location: wanted a URI such as file:///data/t or "
            "s3://bucket/t, or an absolute path, without credentials or a query"
        )
    path = unquote(parts.path)
    if "\x00" in path or ".." in path.split("/"):
        raise RequestError(f"location {written!r} must not contain '..' or a zero byte")
    path = posixpath.normpath("/" + path.lstrip("/")) if path.strip("/") else ""
    host = "" if parts.scheme == "file" else parts.netloc
    if parts.scheme == "file" and (parts.netloc not in ("", "localhost") or not path):
        raise RequestError(f"location {written!r} must be an absolute path: file:///folder/table")
    if parts.scheme != "file" and not host:
        raise RequestError(
            f"location {written!r} names no bucket: wanted {parts.scheme}://bucket/t"
        )
    return f"{parts.scheme}://{host}{quote(path)}"


def relative_path(location: str, written: str) -> str:
    """Return a file's path relative to a location.

    Args:
        location: A normal location.
        written: Relative, or a URI or absolute path below the location.

    Raises:
        RequestError: It is empty or leads out of the location.
    """
    text = written.strip()
    if text.startswith("/") or "://" in text:
        whole = normal_location(text)
        if not whole.startswith(location + "/"):
            raise RequestError(
                f"file {_public(written)!r} does not lie below the table's location {location}"
            )
        text = unquote(whole[len(location) + 1 :])
    parts = PurePosixPath(text).parts
    if not parts or ".." in parts or "\x00" in text or text.startswith("/"):
        raise RequestError(
            f"file {written!r} must be a path below the table's location {location}, without '..'"
        )
    return "/".join(parts)


def opened(location: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a location, and the location's path in it.

    Raises:
        ConfigError: The storage is not supported by this installation.
    """
    try:
        system, path = fs.FileSystem.from_uri(location)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise ConfigError(f"location {location} cannot be opened: {error}") from error
    return system, path


def confined(location: str, path: str) -> tuple[fs.FileSystem, str]:
    """Return file system and full path of a file below a location, links followed.

    Raises:
        RequestError: A symbolic link leads out of the location.
    """
    system, base = opened(location)
    full = posixpath.join(base, path)
    if isinstance(system, fs.LocalFileSystem):
        real, inside = posixpath.realpath(full), posixpath.realpath(base)
        if not real.startswith(inside + "/"):
            raise RequestError(f"file {path!r} leads out of the table's location by a link")
    return system, full


def read_schema(location: str, path: str) -> pa.Schema:
    """Return the schema of a Parquet file below a location.

    Raises:
        InputError: It is missing or no Parquet file.
    """
    system, full = confined(location, path)
    try:
        return pq.read_schema(full, filesystem=system)
    except FileNotFoundError as error:
        raise InputError(
            f"file {path} is not there, wanted a Parquet file in {location}"
        ) from error
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"file {path} cannot be read as Parquet: {error}") from error


def owner(location: str) -> str | None:
    """Return the id of the store that a location belongs to, or None.

    Raises:
        UnavailableError: The storage does not answer.
    """
    system, full = confined(location, OWNER_PATH)
    try:
        with system.open_input_stream(full) as stream:
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
    system, full = confined(location, OWNER_PATH)
    try:
        system.create_dir(posixpath.dirname(full), recursive=True)
        with system.open_output_stream(full) as stream:
            stream.write(store.encode() + b"\n")
    except OSError as error:
        raise UnavailableError(f"{location} cannot be written: {error}") from error


def refuse_other(location: str, found: str, store: str) -> None:
    """Refuse a location that belongs to another store.

    Raises:
        RefusedError: It does.
    """
    if found != store:
        raise RefusedError(
            f"location {location} belongs to the store {found}, this one is {store}: "
            "two services may not share a location (`neve fsck --adopt` takes it over)"
        )


def _public(written: str) -> str:
    """Return what a user wrote without what may be a password."""
    head, at, tail = written.rpartition("@")
    return f"…@{tail}" if at and "://" in head else written
