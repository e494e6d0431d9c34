"""Entries of a Delta log ("actions"): read as untrusted values, and written. Pure.

A version is a file with one JSON object in a line; each object has one action under its name.
Fields that Névé does not need are neither kept nor checked. Unknown actions are skipped, as the
protocol asks: what a reader must know is named by a feature.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn
from urllib.parse import quote, unquote

from common.errors import RefusedError
from common.lake.delta.vectors import POSITIONS_MAX, VECTOR_BYTES_MAX
from common.lake.source import BOUNDS_BYTES_MAX, LakeFile, LakeOutput

LINE_BYTES_MAX = 64 * 1024**2
TEXT_CHARS_MAX = 4096
NUMBER_MAX = 2**63 - 1
STATS_BYTES_MAX = 1024**2
"""Longer statistics are not read, not even the number of rows."""
ATTEMPT = "neveAttempt"
"""Name of the attempt's id in `commitInfo`, and of the tag of files that it wrote."""
ENGINE = "Neve"

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")
_SAFE = "/=:@!$&'()*+,;-._~"
"""Characters that are not encoded in paths of the log, like those that other writers leave."""


def refuse(subject: str, fact: str) -> NoReturn:
    """Refuse an entry of the log."""
    message = f"the log of the table is malformed: {subject} {fact}"
    raise RefusedError(message)


# ------------------------------------------------------------------------------------------- Values


def entry_text(entry: Mapping[str, Any], name: str) -> str:
    """Return a text of an entry."""
    value = entry.get(name)
    if not isinstance(value, str):
        refuse(name, f"is {value!r:.80}, expected a text")
    return value


def entry_number(entry: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return a whole number of at least 0; a missing one is the default, if there is one."""
    value = entry.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= NUMBER_MAX:
        refuse(name, f"is {value!r:.80}, expected a whole number of at least 0")
    return value


def entry_texts(entry: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return a list of texts; a missing one is empty."""
    value = entry.get(name) or []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        refuse(name, f"is {value!r:.80}, expected a list of texts")
    return tuple(value)


def entry_mapping(entry: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a mapping of an entry; a missing one is empty.

    Parquet has maps as lists of pairs.
    """
    value = entry.get(name)
    if isinstance(value, list) and all(isinstance(item, tuple) for item in value):
        value = dict(value)
    if value is not None and not isinstance(value, dict):
        refuse(name, f"is {value!r:.80}, expected a mapping")
    return value or {}


def parse_json(data: bytes | str, subject: str) -> Any:
    """Return a JSON value of any depth that Python reads; no other number than JSON has."""
    try:
        text = (
            data
            if isinstance(data, str)
            else data.decode(json.detect_encoding(data), "surrogatepass")
        )
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        refuse(subject, f"is no JSON: {error!s:.200}")


def _no_constant(name: str) -> NoReturn:
    message = f"{name} is no number of JSON"
    raise ValueError(message)


# A log has 100,000 texts, and `json.loads` and `json.dumps` make a coder for each.
_DECODER = json.JSONDecoder(parse_constant=_no_constant)
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def entries_of(data: bytes, subject: str) -> Iterator[dict[str, Any]]:
    """Yield the actions of a version, or of a checkpoint in JSON, each under its name."""
    for number, line in enumerate(data.split(b"\n"), 1):
        if len(line) > LINE_BYTES_MAX:
            refuse(f"{subject} line {number}", f"has {len(line)} bytes")
        if not line.strip():
            continue
        value = parse_json(line, f"{subject} line {number}")
        if not isinstance(value, dict) or not all(
            item is None or isinstance(item, dict) for item in value.values()
        ):
            refuse(f"{subject} line {number}", "is no object of objects")
        yield value


# -------------------------------------------------------------------------------------------- Files


@dataclass(frozen=True, slots=True)
class FileKey:
    """What identifies a file in the log: its path, and its deletes."""

    path: str
    deletes: str


def relative_path(raw: str) -> str:
    """Return the decoded path of a file relative to the root.

    Raises:
        RefusedError: The file lies elsewhere, or the path is no plain one.
    """
    if len(raw) > TEXT_CHARS_MAX:
        refuse(f"path {raw[:80]}…", f"has more than {TEXT_CHARS_MAX} characters")
    if raw.startswith("/") or _SCHEME.match(raw):
        message = (
            f"file {raw[:200]} is named by an absolute path, as in a shallow clone; Névé compacts "
            "only files in the table's own location: make a deep clone"
        )
        raise RefusedError(message)
    path = unquote(raw, errors="surrogateescape")
    parts = path.split("/")
    if not path or any(part in {"", ".", ".."} for part in parts) or _UNPRINTABLE.search(path):
        refuse(f"path {raw[:200]!r}", "is not a plain path below the table's location")
    if parts[0] == "_delta_log":
        refuse(f"path {raw[:200]!r}", "is one of the log itself")
    if not _is_plain(path):
        refuse(f"path {raw[:200]!r}", "is no UTF-8")
    return path


def _is_plain(value: object) -> bool:
    """Return whether a value is a text of a bounded length that every store can keep."""
    if not isinstance(value, str) or len(value) > TEXT_CHARS_MAX:
        return False
    if value.isascii():
        return True
    return not any("\ud800" <= character <= "\udfff" for character in value)


def encoded_path(path: str) -> str:
    """Return a path as the log has it."""
    return quote(path, safe=_SAFE)


@dataclass(frozen=True, slots=True)
class VectorEntry:
    """Where the deletion vector of a file lies, as the log states it."""

    storage: str
    """`i`: in `text`; `u`: in a file named by an encoded UUID; `p`: in a file with a URI."""
    text: str
    offset: int
    size_bytes: int
    cardinality: int

    @property
    def identity(self) -> str:
        """Return the unique id of the protocol; long texts are replaced by their digest."""
        text = self.text
        if len(text) > 200:
            text = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self.storage}{text}@{self.offset}" if self.offset else self.storage + text

    @property
    def json_value(self) -> dict[str, Any]:
        """Return it as an entry of the log."""
        offset = {"offset": self.offset} if self.storage != "i" else {}
        return {
            "storageType": self.storage,
            "pathOrInlineDv": self.text,
            **offset,
            "sizeInBytes": self.size_bytes,
            "cardinality": self.cardinality,
        }


def vector_of(entry: Mapping[str, Any]) -> VectorEntry | None:
    """Return the deletion vector of an `add` or `remove`, or None."""
    value = entry_mapping(entry, "deletionVector")
    if not value:
        return None
    vector = VectorEntry(
        entry_text(value, "storageType"),
        entry_text(value, "pathOrInlineDv"),
        entry_number(value, "offset", 0),
        entry_number(value, "sizeInBytes"),
        entry_number(value, "cardinality"),
    )
    if vector.storage not in {"i", "u", "p"}:
        refuse("deletion vector", f"has the unknown storage {vector.storage!r:.20}")
    if vector.size_bytes > VECTOR_BYTES_MAX or vector.cardinality > POSITIONS_MAX:
        refuse("deletion vector", f"has {vector.size_bytes} bytes, {vector.cardinality} rows")
    return vector


def file_of(entry: Mapping[str, Any], partition_columns: tuple[str, ...]) -> LakeFile:
    """Return the file of an `add`."""
    raw = entry_text(entry, "path")
    path = relative_path(raw)
    values = entry_mapping(entry, "partitionValues")
    if values.keys() != set(partition_columns):
        refuse(f"file {path}", f"has partition values of {sorted(values)!r:.200}")
    if not all(value is None or _is_plain(value) for value in values.values()):
        refuse(f"file {path}", f"has partition values that are no texts: {values!r:.200}")
    vector = vector_of(entry)
    bounds, rows = _statistics(entry)
    deleted_rows = vector.cardinality if vector else 0
    if vector and deleted_rows > rows:
        refuse(f"file {path}", f"has {rows} rows, and a deletion vector of {deleted_rows}")
    kept = {"path": raw, "partitionValues": values}
    if vector:
        kept["deletionVector"] = vector.json_value
    return LakeFile(
        path=path,
        size_bytes=entry_number(entry, "size"),
        rows=rows,
        partition=tuple((name, values[name] or None) for name in partition_columns),
        deleted_rows=deleted_rows,
        deletes=vector.identity if vector else "",
        bounds=bounds,
        added_at_s=entry_number(entry, "modificationTime", 0) / 1000,
        entry=_ENCODER.encode(kept),
    )


def _statistics(entry: Mapping[str, Any]) -> tuple[str, int]:
    """Return the statistics of an `add` as text, and its number of rows."""
    text = entry.get("stats") or ""
    if not isinstance(text, str) or len(text) > STATS_BYTES_MAX:
        return "", -1
    stats = parse_json(text, "stats") if text else entry_mapping(entry, "stats_parsed")
    rows = stats.get("numRecords") if isinstance(stats, dict) else None
    if isinstance(rows, bool) or not isinstance(rows, int) or not 0 <= rows <= NUMBER_MAX:
        rows = -1
    return (text if len(text) <= BOUNDS_BYTES_MAX else ""), rows


def key_of(entry: Mapping[str, Any]) -> FileKey:
    """Return what an `add` or `remove` names."""
    vector = vector_of(entry)
    return FileKey(relative_path(entry_text(entry, "path")), vector.identity if vector else "")


# ------------------------------------------------------------------------------------------ Writing


@dataclass(frozen=True, slots=True)
class CommitLines:
    """The lines of a version that replaces files."""

    attempt: str
    read_version: int
    now_ms: int
    in_commit_ms: int | None = None
    """Time of the version for tables with `inCommitTimestamp`: above that of the version before."""
    lines: list[dict[str, Any]] = field(default_factory=list)

    def remove(self, file: LakeFile) -> None:
        """Remove a file, with the deletes that it has at the head: without them it would stay."""
        entry = parse_json(file.entry, "entry")
        line = {
            "path": entry["path"],
            "deletionTimestamp": self.now_ms,
            "dataChange": False,
            "extendedFileMetadata": True,
            "partitionValues": entry["partitionValues"],
            "size": file.size_bytes,
        }
        if "deletionVector" in entry:
            line["deletionVector"] = entry["deletionVector"]
        self.lines.append({"remove": line})

    def add(self, output: LakeOutput, vector: VectorEntry | None) -> None:
        """Add an output, with the rows of it that were deleted since the plan."""
        stats = parse_json(output.stats, "stats") if output.stats else {}
        stats["numRecords"] = output.rows
        line = {
            "path": encoded_path(output.path),
            "partitionValues": dict(output.partition),
            "size": output.size_bytes,
            "modificationTime": self.now_ms,
            "dataChange": False,
            "tags": {ATTEMPT: self.attempt},
        }
        if vector:
            stats["tightBounds"] = False
            line["deletionVector"] = vector.json_value
        line["stats"] = json.dumps(stats, separators=(",", ":"), ensure_ascii=False)
        self.lines.append({"add": line})

    def to_bytes(self) -> bytes:
        """Return the version. `commitInfo` comes first, as `inCommitTimestamp` demands."""
        removed = [line["remove"] for line in self.lines if "remove" in line]
        added = [line["add"] for line in self.lines if "add" in line]
        metrics = {
            "numRemovedFiles": str(len(removed)),
            "numRemovedBytes": str(sum(line["size"] for line in removed)),
            "numAddedFiles": str(len(added)),
            "numAddedBytes": str(sum(line["size"] for line in added)),
        }
        in_commit = {} if self.in_commit_ms is None else {"inCommitTimestamp": self.in_commit_ms}
        info = {
            **in_commit,
            "timestamp": self.now_ms,
            "operation": "OPTIMIZE",
            "operationParameters": {"predicate": "[]"},
            "readVersion": self.read_version,
            "isolationLevel": "SnapshotIsolation",
            "isBlindAppend": False,
            "operationMetrics": metrics,
            "engineInfo": ENGINE,
            ATTEMPT: self.attempt,
        }
        texts = (
            json.dumps(line, separators=(",", ":"), ensure_ascii=False)
            for line in ({"commitInfo": info}, *self.lines)
        )
        return "".join(f"{text}\n" for text in texts).encode()
