r"""The format of a backup: lines of JSON, with a digest at the end. Version 1.

    {"kind": "archive", "format": "neve-archive", "version": 1, "store": …, "made_at_s": …}
    {"kind": "table", "table": {name, location, schema, key, settings, …}, "pin", …}
    {"kind": "tablet", "end": hex, "start": hex | null, "partition", "purge", "files": n}
    {"kind": "file", "path", "size_bytes", "rows", "key_min": hex, …}      n times
    …
    {"kind": "table-end", "tablets": n, "files": n, "size_bytes": n}
    {"kind": "end", "lines": n, "sha256": of all lines before, each with its \n}

Lines of kind `progress` report progress to the caller; they count neither as lines nor for the
digest. Keys, versions and watermarks are the order-preserving bytes of the store as hex. Fields
with their default value are omitted.

An archive may come from an untrusted source. The reader checks that all values have the types,
bounds and order that the store would have written, and otherwise rejects the archive with the
line number. It checks the size of a line, the number and depth of its items, the numbers of
tables, tablets and files, that paths are plain, and that tablets tile.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from typing import IO, Any

from common.errors import MetadataError, RequestError
from common.metadata.codec.tablet import FILE, unpack_file
from common.model.fields import known_fields
from common.model.file import DataFile
from common.model.table import Table
from common.model.tablet import PLUS_INFINITY, Bounds
from common.parquet.service_files import table_from_plain
from common.rows.key_encoding import partition_of_path

FORMAT = "neve-archive"
FORMAT_VERSION = 1
LINE_BYTES_MAX = 16 * 1024**2
LINE_ITEMS_MAX = 1_000_000
"""Limit of brackets and commas in a line: a short text must not become a large value."""
TABLES_MAX = 10_000
TABLETS_MAX = 1_000_000
FILES_MAX = 2_000_000
"""Limit per table: its entries are held in memory."""
_DEFAULTS = {known_field.name: known_field.default for known_field in known_fields(DataFile)}
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""A surrogate; the store can hold only text in which surrogates form pairs."""
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
        """Add a line to the digest, and return the line."""
        self.lines += 1
        self._hash.update(line)
        return line

    @property
    def hex(self) -> str:
        """The digest so far."""
        return self._hash.hexdigest()


def line_of(kind: str, **values: object) -> bytes:
    """Return a line of an archive, with its line ending."""
    return json.dumps({"kind": kind} | values, separators=(",", ":")).encode() + b"\n"


def file_to_plain(file: DataFile) -> dict[str, object]:
    """Return a file as a JSON object, without default values."""
    named = {name: getattr(file, name) for name in _DEFAULTS}
    plain = {name: value for name, value in named.items() if value != _DEFAULTS[name]}
    return {
        name: value.hex() if isinstance(value, bytes) else value for name, value in plain.items()
    }


def file_from_plain(plain: dict[str, Any], where: str) -> DataFile:
    """Return the file from the output of `file_to_plain`.

    Raises:
        RequestError: The object is not a valid file of this release.
    """
    try:
        given = dict(plain)
        for name in _BYTES:
            if given.get(name) is not None:
                given[name] = bytes.fromhex(given[name])
        given["tags"] = tuple((str(tag), str(value)) for tag, value in given.get("tags", ()))
        file = _file(**given)
    except (TypeError, ValueError, OverflowError, MetadataError) as error:
        raise RequestError(f"{where} is no file of this release: {error}") from error
    return file


def _file(path: object = None, **given: Any) -> DataFile:
    """Return a file after checking that the store could read it back.

    Raises:
        MetadataError: The store could not read it.
        TypeError: It has unknown fields, or no path.
        ValueError: Its path or one of its times is invalid.
    """
    if not isinstance(path, str):
        raise TypeError(f"its path is {path!r}")
    file = DataFile(path=path, **given)
    parts = file.path.split("/")
    if "\\" in file.path or "\0" in file.path or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{file.path!r} is not a plain path below a location")
    times = (file.added_at_s, file.time_min_s, file.time_max_s, file.tombstones_since_s)
    if not all(isfinite(time) for time in times if time is not None):
        raise ValueError(f"file {file.path} has a time that is no number")
    unpack_file("the archive", file.path.encode(), FILE.pack(file))
    return file


@dataclass(slots=True)
class _Cursor:
    """Reads lines one by one, and reports errors with the line number."""

    source: IO[bytes]
    digest: Digest = field(default_factory=Digest)
    number: int = 0

    def next(self, *kinds: str) -> dict[str, Any]:
        """Return the next line that is not progress; it must be of one of these kinds.

        Raises:
            RequestError: The line is missing, malformed or of another kind.
        """
        while True:
            line = self.source.readline(LINE_BYTES_MAX + 1)
            self.number += 1
            body = self._parsed(line)
            if body.get("kind") == "progress":
                continue
            if body.get("kind") not in kinds:
                raise self.wrong(f"has kind {body.get('kind')!r}, expected {' or '.join(kinds)}")
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
        if sum(map(line.count, (b"[", b"{", b","))) > LINE_ITEMS_MAX:
            raise self.wrong(f"has more than {LINE_ITEMS_MAX} items")
        try:
            body = json.loads(line)
            if _SURROGATE.search(line):
                json.dumps(body, ensure_ascii=False).encode()
        except RecursionError as error:
            raise self.wrong("is nested too deeply") from error
        except ValueError as error:
            raise self.wrong(f"is no JSON: {error}") from error
        if not isinstance(body, dict):
            raise self.wrong("is no JSON object")
        return body


def read_archive(source: IO[bytes]) -> Iterator[Table | TabletDump]:
    """Yield each table of an archive, followed by its tablets.

    The digest is verified after the last item. Iterate over the whole archive once before
    writing anything.

    Raises:
        RequestError: The source is not an archive, has another version, is truncated or was
            changed.
    """
    cursor = _Cursor(source)
    head = cursor.next("archive")
    if head.get("format") != FORMAT or head.get("version") != FORMAT_VERSION:
        raise cursor.wrong(
            f"says {head.get('format')} version {head.get('version')}, "
            f"this release reads {FORMAT} version {FORMAT_VERSION}"
        )
    tables = 0
    while (body := cursor.next("table", "end"))["kind"] == "table":
        tables += 1
        if tables > TABLES_MAX:
            raise cursor.wrong(f"begins a table too many: at most {TABLES_MAX} are taken")
        table = _table(cursor, body)
        yield table
        yield from _tablets(cursor, table)
    if body.get("lines") != cursor.digest.lines or body.get("sha256") != cursor.digest.hex:
        raise cursor.wrong("has another digest than the lines before it: they were changed")


def _table(cursor: _Cursor, body: dict[str, Any]) -> Table:
    if not isinstance(body.get("table"), dict):
        raise cursor.wrong("has no table")
    return table_from_plain(body["table"], f"line {cursor.number} of the archive")


def _tablets(cursor: _Cursor, table: Table) -> Iterator[TabletDump]:
    tablets, paths = 0, set[str]()
    before: TabletDump | None = None
    while (body := cursor.next("tablet", "table-end"))["kind"] == "tablet":
        dump = _tablet(cursor, body, paths)
        _check_order(cursor, table, before, dump)
        tablets, before = tablets + 1, dump
        if tablets > TABLETS_MAX:
            raise cursor.wrong(f"ends a tablet too many: at most {TABLETS_MAX} are taken")
        yield dump
    if (body.get("tablets"), body.get("files")) != (tablets, len(paths)):
        raise cursor.wrong(f"counts otherwise than the lines before it: {tablets}, {len(paths)}")
    if not table.partition_by and (before is None or before.bounds.end != PLUS_INFINITY):
        raise cursor.wrong("ends a table whose last tablet does not reach to the end")


def _check_order(
    cursor: _Cursor, table: Table, before: TabletDump | None, dump: TabletDump
) -> None:
    """Reject a tablet that does not follow the previous one."""
    bounds = dump.bounds
    if table.partition_by:
        _check_partition(cursor, table, before, bounds)
        return
    start = None if before is None else before.bounds.end
    if bounds.partition is not None or bounds.start != start or bounds.end <= (start or b""):
        raise cursor.wrong("ends a tablet that does not begin where the one before it ends")


def _check_partition(
    cursor: _Cursor, table: Table, before: TabletDump | None, bounds: Bounds
) -> None:
    try:
        partition = partition_of_path(table, f"{bounds.partition}/x")
    except (RequestError, KeyError) as error:
        raise cursor.wrong(f"ends a tablet of no partition: {error}") from error
    follows = before is None or before.bounds.end < bounds.end
    if bounds.start is not None or (partition.end, partition.text) != (
        bounds.end,
        bounds.partition,
    ):
        raise cursor.wrong(f"ends a tablet that is not that of partition {bounds.partition!r}")
    if not follows:
        raise cursor.wrong("ends a tablet that does not come after the one before it")


def _tablet(cursor: _Cursor, body: dict[str, Any], paths: set[str]) -> TabletDump:
    """Return a tablet, and add its paths to those of the table."""
    count = body.get("files")
    if type(count) is not int or not 0 <= count <= FILES_MAX - len(paths):
        raise cursor.wrong(f"has {count!r} files, at most {FILES_MAX} of a table are taken")
    partition = body.get("partition")
    if partition is not None and not isinstance(partition, str):
        raise cursor.wrong("has a partition that is no text")
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
        file = file_from_plain(plain, f"line {cursor.number} of the archive")
        if file.path in paths:
            raise cursor.wrong(f"has file {file.path}, which an earlier line has, too")
        paths.add(file.path)
        files.append(file)
    bounds = Bounds(start, end, partition)
    return TabletDump(bounds=bounds, purge=purge, files=tuple(files))


def _key(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)
