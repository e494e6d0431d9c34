"""Entries of a Delta log ("actions"): read as untrusted values, and written. Pure.

A version is a file with one JSON object in a line; each object has one action under its name.
Fields that Névé does not need are neither kept nor checked. Unknown actions are skipped, as the
protocol asks: what a reader must know is named by a feature.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NoReturn
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types as is_type

from common.errors import RefusedError
from common.lake.delta.vectors import POSITIONS_MAX, VECTOR_BYTES_MAX
from common.lake.source import BOUNDS_BYTES_MAX, LakeFile, LakeOutput
from common.rows.schema import leaf_count

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


# --------------------------------------------------------------------------------------- Statistics
# Statistics of a Delta file, from the footer of its Parquet file.
#
# They are bounds: readers skip a file whose bounds exclude what they look for. So a bound may be
# wider than the values, never narrower. Long texts are cut, and moments are rounded to
# milliseconds, as Delta writers do. A column without reliable statistics has no bounds.


INDEXED_COLUMNS = 32
"""Default of the table property `delta.dataSkippingNumIndexedCols`."""
BOUND_CHARS_MAX = 32
EXACT_DIGITS = 15
"""A decimal with more digits would be rounded by readers that take a number for a double."""
_LAST_CHARACTER = "\U0010ffff"
_TICKS_PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A leaf column of a Parquet file that may have statistics."""

    number: int
    names: tuple[str, ...]
    """Names from the top-level column down."""
    arrow: pa.DataType


def file_statistics(footer: pq.FileMetaData, properties: Mapping[str, str]) -> str:
    """Return the statistics of a file as JSON text, as an `add` action has them.

    Args:
        footer: The footer of the file, without deleted rows.
        properties: Properties of the table, which choose the columns.
    """
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    leaves = list(_leaves(footer.schema.to_arrow_schema(), (), 0))
    for leaf in _indexed(leaves, properties):
        low, high, count = _column_statistics(footer, leaf)
        for tree, value in ((lows, low), (highs, high), (nulls, count)):
            if value is not None:
                _put(tree, leaf.names, value)
    statistics = {"numRecords": footer.num_rows, "minValues": lows, "maxValues": highs}
    return json.dumps({**statistics, "nullCount": nulls}, separators=(",", ":"))


def _leaves(schema: Any, names: tuple[str, ...], number: int) -> Iterator[_Leaf]:
    """Yield the leaves of a schema or struct; lists and maps have no statistics."""
    for leaf_field in schema:
        inner = (*names, leaf_field.name)
        if is_type.is_struct(leaf_field.type):
            yield from _leaves(leaf_field.type, inner, number)
        elif not is_type.is_nested(leaf_field.type):
            yield _Leaf(number, inner, leaf_field.type)
        number += leaf_count(leaf_field.type)


def _indexed(leaves: list[_Leaf], properties: Mapping[str, str]) -> list[_Leaf]:
    """Return the leaves for which the table wants statistics."""
    chosen = properties.get("delta.dataSkippingStatsColumns", "")
    if chosen:
        names = {name.strip().replace("`", "") for name in chosen.split(",")}
        return [
            leaf
            for leaf in leaves
            if any(".".join(leaf.names[:end]) in names for end in range(1, len(leaf.names) + 1))
        ]
    text = properties.get("delta.dataSkippingNumIndexedCols", "")
    count = int(text) if text.lstrip("-").isdecimal() else INDEXED_COLUMNS
    return leaves if count < 0 else leaves[:count]


def _column_statistics(
    footer: pq.FileMetaData, leaf: _Leaf
) -> tuple[object | None, object | None, int | None]:
    """Return the least and greatest value of a column, and its number of nulls; None: unknown."""
    lows, highs, nulls = list[Any](), list[Any](), 0
    counted = bounded = True
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        statistics = group.column(leaf.number).statistics
        if not group.num_rows:
            continue
        if statistics is None or not statistics.has_null_count:
            counted = False
        else:
            nulls += statistics.null_count
            if statistics.null_count == group.num_rows:
                continue
        if statistics is None or not statistics.has_min_max:
            bounded = False
            continue
        try:
            lows.append(_value(statistics, leaf.arrow, is_low=True))
            highs.append(_value(statistics, leaf.arrow, is_low=False))
        except (ArithmeticError, TypeError, ValueError):
            bounded = False
    known = bounded and bool(lows) and None not in (*lows, *highs)
    low = _low_bound(min(lows), leaf.arrow) if known else None
    # Statistics of a footer ignore NaN, and to most engines it is above all numbers.
    known = known and not is_type.is_floating(leaf.arrow)
    high = _high_bound(max(highs), leaf.arrow) if known else None
    return low, high, nulls if counted else None


def _value(statistics: Any, arrow: pa.DataType, *, is_low: bool) -> Any:
    """Return a bound in a form that compares; None: the type has none, or it is not finite."""
    if is_type.is_integer(arrow) or is_type.is_timestamp(arrow):
        return statistics.min_raw if is_low else statistics.max_raw
    value = statistics.min if is_low else statistics.max
    if is_type.is_floating(arrow):
        return value if math.isfinite(value) else None
    if is_type.is_string(arrow) or is_type.is_large_string(arrow) or is_type.is_string_view(arrow):
        return value if isinstance(value, str) else value.decode()
    if is_type.is_decimal(arrow):
        return value if len(value.normalize().as_tuple().digits) <= EXACT_DIGITS else None
    return value if is_type.is_date32(arrow) else None


def _low_bound(value: Any, arrow: pa.DataType) -> object | None:
    if isinstance(value, str):
        return value[:BOUND_CHARS_MAX]
    if is_type.is_timestamp(arrow):
        return _moment(value // _TICKS_PER_MS[arrow.unit], arrow)
    return _json_value(value)


def _high_bound(value: Any, arrow: pa.DataType) -> object | None:
    if isinstance(value, str):
        end = BOUND_CHARS_MAX
        while value[end : end + 1] == _LAST_CHARACTER:
            end += 1
        return value if len(value) <= end else value[:end] + _LAST_CHARACTER
    if is_type.is_timestamp(arrow):
        return _moment(-(-value // _TICKS_PER_MS[arrow.unit]), arrow)
    return _json_value(value)


def _json_value(value: Any) -> object:
    """Return a bound that needs no rounding as a value of JSON."""
    if isinstance(value, Decimal):
        return float(value)
    return value.isoformat() if isinstance(value, date) else value


def _moment(since_ms: int, arrow: pa.DataType) -> str | None:
    """Return a moment as ISO text; None: its year has more than four digits."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=since_ms)
    except OverflowError:
        return None
    text = moment.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return text if arrow.tz is None else f"{text}Z"


def _put(tree: dict[str, Any], names: tuple[str, ...], value: object) -> None:
    for name in names[:-1]:
        tree = tree.setdefault(name, {})
    tree[names[-1]] = value
