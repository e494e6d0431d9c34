"""Locations of tables: the one form of their URIs, and whose they are.

What lies below a location is confined by `common.parquet.location`, its mark is read and
written by `common.parquet.owner`. Credentials come from the environment's own chains,
never from a URI.
"""

import posixpath
from urllib.parse import quote, unquote, urlsplit

from common.errors import RequestError
from common.model.table import Column
from common.parquet.inspect import opened
from common.parquet.location import SCHEMES, open_location
from common.parquet.owner import owner_of, refuse_other
from common.rows.schema import columns_of

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
        refuse_other(location, owner_of(open_location(location)), store)
        self._seen_s[location] = now_s


def _public(written: str) -> str:
    """Return what a user wrote without what may be a password."""
    head, at, tail = written.rpartition("@")
    return f"…@{tail}" if at and "://" in head else written
