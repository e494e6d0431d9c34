r"""The format of a backup: lines of JSON, with a digest at the end. Version 1.

    {"kind": "archive", "format": "neve-archive", "version": 1, "store": …, "made_at_s": …}
    {"kind": "table", "table": {name, location, schema, key, settings, …}, "pin", …}
    {"kind": "tablet", "end": hex, "start": hex | null, "partition", "purge", "files": n}
    {"kind": "file", "path", "size_bytes", "rows", "key_min": hex, …}      n times
    …
    {"kind": "table-end", "tablets": n, "files": n, "size_bytes": n}
    {"kind": "end", "lines": n, "sha256": of all lines before, each with its \n}

Lines of kind `progress` are for whoever waits; they do not count. Keys, versions and
watermarks are the order-preserving bytes of the store as hex; what has its default is
left out. A line has at most 16 MiB, so nothing must fit in memory but one tablet's files.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import IO, Any

from common.errors import RequestError
from common.model.file import DataFile
from common.model.table import Table
from common.model.tablet import Bounds
from common.parquet.description import table_from_plain

FORMAT = "neve-archive"
FORMAT_VERSION = 1
LINE_BYTES_MAX = 16 * 1024**2
FILES_PER_TABLET_MAX = 1_000_000
_DEFAULTS = {each.name: each.default for each in fields(DataFile)}
_BYTES = ("key_min", "key_max", "version_min", "version_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletDump:
    """One tablet of an archive."""

    bounds: Bounds
    purge: bytes | None
    files: tuple[DataFile, ...]


class Digest:
    """Counts and digests the lines of an archive."""

    def __init__(self) -> None:
        self.lines = 0
        self._hash = hashlib.sha256()

    def see(self, line: bytes) -> bytes:
        """Take in a line, and return it."""
        self.lines += 1
        self._hash.update(line)
        return line

    @property
    def hex(self) -> str:
        """The digest so far."""
        return self._hash.hexdigest()


def line_of(kind: str, **values: object) -> bytes:
    """Return a line."""
    return json.dumps({"kind": kind} | values, separators=(",", ":")).encode() + b"\n"


def file_to_plain(file: DataFile) -> dict[str, object]:
    """Return a file as JSON knows it, without defaults."""
    named = {name: getattr(file, name) for name in _DEFAULTS}
    plain = {name: value for name, value in named.items() if value != _DEFAULTS[name]}
    return {
        name: value.hex() if isinstance(value, bytes) else value for name, value in plain.items()
    }


def file_from_plain(plain: dict[str, Any], where: str) -> DataFile:
    """Return the file that `file_to_plain` wrote.

    Raises:
        RequestError: It is no file of this release.
    """
    try:
        given = dict(plain)
        for name in _BYTES:
            if given.get(name) is not None:
                given[name] = bytes.fromhex(given[name])
        given["tags"] = tuple((str(tag), str(value)) for tag, value in given.get("tags", ()))
        return DataFile(**given)
    except (TypeError, ValueError) as error:
        raise RequestError(f"{where} is no file of this release: {error}") from error


@dataclass(slots=True)
class _Cursor:
    """Reads lines one by one, and says where something is wrong."""

    source: IO[bytes]
    digest: Digest = field(default_factory=Digest)
    number: int = 0

    def next(self, *kinds: str) -> dict[str, Any]:
        """Return the next line that counts, which must be of one of these kinds.

        Raises:
            RequestError: It is not.
        """
        while True:
            line = self.source.readline(LINE_BYTES_MAX + 1)
            self.number += 1
            body = self._parsed(line)
            if body.get("kind") == "progress":
                continue
            if body.get("kind") not in kinds:
                raise self.wrong(f"has kind {body.get('kind')!r}, wanted {' or '.join(kinds)}")
            if body["kind"] != "end":
                self.digest.see(line)
            return body

    def wrong(self, what: str) -> RequestError:
        """Return the error for the line just read."""
        return RequestError(f"the archive is not whole: line {self.number} {what}")

    def _parsed(self, line: bytes) -> dict[str, Any]:
        if not line:
            raise self.wrong("is missing; was the backup broken off?")
        if not line.endswith(b"\n"):
            raise self.wrong("is cut off, or longer than any line may be")
        try:
            body = json.loads(line)
        except ValueError as error:
            raise self.wrong(f"is no JSON: {error}") from error
        if not isinstance(body, dict):
            raise self.wrong("is no JSON object")
        return body


def read_archive(source: IO[bytes]) -> Iterator[Table | TabletDump]:
    """Yield each table of an archive, followed by its tablets.

    Only when the last one has been yielded is it certain that the archive is whole: go
    through it once before anything is written.

    Raises:
        RequestError: It is no archive, of another version, broken off or changed.
    """
    cursor = _Cursor(source)
    head = cursor.next("archive")
    if head.get("format") != FORMAT or head.get("version") != FORMAT_VERSION:
        raise cursor.wrong(
            f"says {head.get('format')} version {head.get('version')}, "
            f"this release reads {FORMAT} version {FORMAT_VERSION}"
        )
    while (body := cursor.next("table", "end"))["kind"] == "table":
        yield _table(cursor, body)
        yield from _tablets(cursor)
    if body.get("lines") != cursor.digest.lines or body.get("sha256") != cursor.digest.hex:
        raise cursor.wrong("has another digest than the lines before it: they were changed")


def _table(cursor: _Cursor, body: dict[str, Any]) -> Table:
    if not isinstance(body.get("table"), dict):
        raise cursor.wrong("has no table")
    return table_from_plain(body["table"], f"line {cursor.number} of the archive")


def _tablets(cursor: _Cursor) -> Iterator[TabletDump]:
    tablets = files = 0
    while (body := cursor.next("tablet", "table-end"))["kind"] == "tablet":
        dump = _tablet(cursor, body)
        tablets, files = tablets + 1, files + len(dump.files)
        yield dump
    if (body.get("tablets"), body.get("files")) != (tablets, files):
        raise cursor.wrong(f"counts otherwise than the lines before it: {tablets}, {files}")


def _tablet(cursor: _Cursor, body: dict[str, Any]) -> TabletDump:
    count = body.get("files")
    if not isinstance(count, int) or not 0 <= count <= FILES_PER_TABLET_MAX:
        raise cursor.wrong(f"has {count!r} files")
    try:
        start, end, purge = (_key(body.get(name)) for name in ("start", "end", "purge"))
    except (TypeError, ValueError) as error:
        raise cursor.wrong(f"has a key that is none: {error}") from error
    if end is None:
        raise cursor.wrong("has no end")
    files = []
    for _ in range(count):
        plain = cursor.next("file")
        del plain["kind"]
        files.append(file_from_plain(plain, f"line {cursor.number} of the archive"))
    bounds = Bounds(start, end, body.get("partition"))
    return TabletDump(bounds=bounds, purge=purge, files=tuple(files))


def _key(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)
