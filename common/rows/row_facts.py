"""Exact statistics of streamed rows, for the metadata of files."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_type

from common.errors import RequestError
from common.model.file import DataFile
from common.model.key_values import KeyType
from common.model.keys import lower_bound, upper_bound
from common.rows.conform import (
    TICKS_PER_S,
    Int64s,
    Words,
    batches,
    conform,
    decimal_words,
    double_bits,
    instants,
    integers,
    range_positions,
    text_bytes,
    validity,
)
from common.rows.key_encoding import encode_column, encode_keys
from common.rows.rules import RowRules
from common.rows.schema import arrow_schema

_Bound = TypeVar("_Bound", bytes, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFacts:
    """Facts about a set of rows; bounds are None if there is no (known) value."""

    rows: int = 0
    key_min: bytes | None = None
    key_max: bytes | None = None
    version_min: bytes | None = None
    version_max: bytes | None = None
    time_min_s: float | None = None
    time_max_s: float | None = None
    tombstones: int = 0
    clean: bool = False
    """Every key is greater than the previous key, and no row is a tombstone."""


def least(values: Iterable[_Bound | None]) -> _Bound | None:
    """Return the least known value; None: there is none."""
    return min((value for value in values if value is not None), default=None)


def greatest(values: Iterable[_Bound | None]) -> _Bound | None:
    """Return the greatest known value; None: there is none."""
    return max((value for value in values if value is not None), default=None)


def unite_facts(parts: Sequence[RowFacts]) -> RowFacts:
    """Return the facts of the rows of several parts together.

    Args:
        parts: The result is `clean` only if keys also ascend from part to part.
    """
    return RowFacts(
        rows=sum(part.rows for part in parts),
        key_min=least(part.key_min for part in parts),
        key_max=greatest(part.key_max for part in parts),
        version_min=least(part.version_min for part in parts),
        version_max=greatest(part.version_max for part in parts),
        time_min_s=least(part.time_min_s for part in parts),
        time_max_s=greatest(part.time_max_s for part in parts),
        tombstones=sum(part.tombstones for part in parts),
        clean=all(part.clean for part in parts),
    )


def facts_of_file(file: DataFile) -> RowFacts:
    """Return the facts of a file's rows from its metadata, where long keys are rounded."""
    return RowFacts(
        rows=file.rows,
        key_min=file.key_min,
        key_max=file.key_max,
        version_min=file.version_min,
        version_max=file.version_max,
        time_min_s=file.time_min_s,
        time_max_s=file.time_max_s,
        tombstones=file.tombstones,
        clean=file.clean,
    )


def data_file_of(
    facts: RowFacts,
    path: str,
    size_bytes: int,
    *,
    key_types: Sequence[KeyType],
    added_at_s: float,
    tombstones_since_s: float,
) -> DataFile:
    """Return the metadata of a file with these rows.

    Args:
        facts: Facts of its rows.
        path: Path relative to the table's location.
        size_bytes: Size of the file.
        key_types: Families of the table's key columns; long keys are rounded outwards.
        added_at_s: When it was added to the table.
        tombstones_since_s: When its oldest tombstone was added, if it has one.
    """
    return DataFile(
        path=path,
        size_bytes=size_bytes,
        rows=facts.rows,
        key_min=None if facts.key_min is None else lower_bound(facts.key_min, key_types),
        key_max=None if facts.key_max is None else upper_bound(facts.key_max, key_types),
        version_min=facts.version_min,
        version_max=facts.version_max,
        time_min_s=facts.time_min_s,
        time_max_s=facts.time_max_s,
        tombstones=facts.tombstones,
        tombstones_since_s=tombstones_since_s if facts.tombstones else None,
        clean=facts.clean,
        added_at_s=added_at_s,
    )


class RowTally:
    """Collects facts of rows, in the order in which they are stored."""

    def __init__(self, rules: RowRules) -> None:
        self._rules = rules
        schema = arrow_schema(rules.schema)
        # A file may lack tombstones and times, even if the table does not allow nulls there.
        self._schema = pa.schema([schema.field(name).with_nullable(True) for name in self.columns])
        self._rows = self._tombstones = 0
        self._keys = _Bounds[bytes]()
        self._versions = _Bounds[bytes]()
        self._times = _Bounds[float]()
        self._last_key: bytes | None = None
        self._ascending = True

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the facts depend on; rows need no others."""
        rules = self._rules
        named = (*rules.key, rules.version_column, rules.tombstone_column, rules.time_column)
        return tuple(dict.fromkeys(name for name in named if name is not None))

    def see(self, rows: pa.Table, source: str = "table") -> None:
        """Add rows, which follow all rows that were added before.

        Args:
            rows: Rows with those of `columns` that the file has.
            source: The file's path, for messages.

        Raises:
            RequestError: A column of key or version is missing, or has another type.
        """
        names = [name for name in self.columns if name in rows.column_names]
        self.require(names, source)
        self._rows += rows.num_rows
        conformed = conform(rows.select(names), self._schema, source)
        if rows.num_rows == 0:
            return
        self._see_keys(conformed)
        rules = self._rules
        if rules.version_column is not None:
            versions = encode_column(conformed.column(rules.version_column), rules.version_type)
            self._versions.widen(*_ends(versions))
        if rules.tombstone_column is not None:
            self._tombstones += pc.sum(conformed.column(rules.tombstone_column)).as_py() or 0
        if rules.time_column is not None:
            self._times.widen(*time_ends_s(conformed.column(rules.time_column)))

    def facts(self) -> RowFacts:
        """Return the facts of all rows that were added."""
        return RowFacts(
            rows=self._rows,
            key_min=self._keys.low,
            key_max=self._keys.high,
            version_min=self._versions.low,
            version_max=self._versions.high,
            time_min_s=self._times.low,
            time_max_s=self._times.high,
            tombstones=self._tombstones,
            clean=bool(self._rules.key) and self._ascending and self._tombstones == 0,
        )

    def require(self, names: Iterable[str], source: str) -> None:
        """Refuse rows without the columns of key and version.

        Raises:
            RequestError: Names the missing columns.
        """
        needed = {*self._rules.key, *filter(None, [self._rules.version_column])}
        if missing := sorted(needed.difference(names)):
            message = (
                f"{source} lacks the columns {', '.join(missing)} of the table's key or version"
            )
            raise RequestError(message)

    def _see_keys(self, rows: pa.Table) -> None:
        if not self._rules.key:
            return
        keys = encode_keys(rows, self._rules.key, self._rules.key_types)
        self._keys.widen(*_ends(keys))
        first = keys[0].as_py()
        self._ascending = (
            self._ascending
            and (self._last_key is None or first > self._last_key)
            and pc.all(pc.greater(keys[1:], keys[:-1]), min_count=0).as_py()
        )
        self._last_key = keys[-1].as_py()


class _Bounds(Generic[_Bound]):
    """The least and the greatest value so far; None before the first value."""

    def __init__(self) -> None:
        self.low: _Bound | None = None
        self.high: _Bound | None = None

    def widen(self, low: _Bound | None, high: _Bound | None) -> None:
        """Extend the bounds by the ends of some values; None if there were no values."""
        if low is None or high is None:
            return
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)


def _ends(values: pa.Array | pa.ChunkedArray) -> tuple[Any, Any]:
    ends = pc.min_max(values)
    return ends["min"].as_py(), ends["max"].as_py()


def time_ends_s(times: pa.Array | pa.ChunkedArray) -> tuple[float | None, float | None]:
    """Return the least and greatest time in seconds since the epoch; nulls and NaN are ignored."""
    numbers, unit_s = _time_numbers(times)
    if pa.types.is_floating(numbers.type):
        numbers = numbers.filter(pc.is_finite(numbers))
    low, high = (None if end is None else float(end) * unit_s for end in _ends(numbers))
    return low, high


def times_s(times: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    """Return each time in seconds since the epoch, as in `time_ends_s`; NaN: no valid time."""
    numbers, unit_s = _time_numbers(times)
    # A double is precise enough to distinguish all valid times.
    floats = pc.fill_null(numbers.cast(pa.float64(), safe=False), np.nan).to_numpy() * unit_s
    return np.where(np.isfinite(floats), floats, np.nan)


def _time_numbers(
    times: pa.Array | pa.ChunkedArray,
) -> tuple[pa.Array | pa.ChunkedArray, float]:
    """Return times as numbers, and the seconds per unit."""
    arrow = times.type
    if pa.types.is_timestamp(arrow):
        return times.cast(pa.int64()), 1 / TICKS_PER_S[arrow.unit]
    if pa.types.is_date(arrow):
        return times.cast(pa.date32()).cast(pa.int32()), 86_400
    return times, 1


# ----------------------------------------------------------------------------------------- Row hash
# The canonical hash of a row: one definition, for ties between rows and for verification.
#
# It depends on names and values only. The order of columns, row groups, dictionaries, string types
# and the width of numbers do not change it. A column that is null or missing adds nothing.
# docs/design/0002-row-encoding.md defines it for third parties. All arithmetic is modulo 2^64:
#
#     mix(x)       x ^= x >> 30; x *= BF58476D1CE4E5B9; x ^= x >> 27;
#                  x *= 94D049BB133111EB; x ^= x >> 31          (the finalizer of SplitMix64)
#     fold(n, w)   mix(n + sum over j of mix(mix(w[j]) + (j + 1) * 9E3779B97F4A7C15))
#     text(b)      fold(number of bytes, the bytes as little-endian words, the last filled with 00)
#     value        bool, integer, date, time: fold(1, [two's complement])
#                  float: fold(1, [bits of the double, one zero, NaN = 7ff8000000000000])
#                  timestamp, duration: fold(2, [seconds, nanoseconds])
#                  decimal: fold(4, [the value in units of 10^-38, lowest word first])
#                  string, binary: text(bytes)
#                  list: fold(count, [value or NULL of each]); a map is a list of structs key, value
#                  struct: row of its fields
#     row          mix(sum over columns that are not null of mix(value + text(name)))


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_FIRST, _MIX_SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_NULL = np.uint64(0x6E756C6C6E756C6C)
_WORD_MAX = (1 << 64) - 1
_TEXT_STEP_BYTES = 1 << 22
_STACKED_ROWS_MAX = 10_000
"""Up to so many rows, columns of integers are hashed together: the price is that of the calls."""


def row_hash(table: pa.Table, schema: pa.Schema | None = None) -> Words:
    """Return the canonical hash of every row.

    Args:
        table: Rows of any width, with or without all columns.
        schema: The table's schema; columns outside of it are ignored. Default: all count.
    """
    names = set(table.column_names if schema is None else schema.names)
    total = np.zeros(table.num_rows, np.uint64)
    stacked: dict[str, Words] = {}
    for name in table.column_names:
        if name not in names:
            continue
        column = table.column(name)
        if len(column) <= _STACKED_ROWS_MAX and column.num_chunks == 1:
            array = column.chunk(0)
            if _is_integral(array.type) and not array.null_count:
                stacked[name] = integers(array)
                continue
        start = 0
        for array in batches(table.column(name)):
            total[start : start + len(array)] += _named(name, array)
            start += len(array)
    if stacked:
        salts = np.array([[_salt(name)] for name in stacked])
        total += _mix(_fold_columns(np.array([*stacked.values()])) + salts).sum(axis=0)
    return _mix(total)


def rows_digest(hashes: Words) -> int:
    """Return one number for a multiset of rows, independent of their order."""
    return int(hashes.sum(dtype=np.uint64))


def _named(name: str, array: pa.Array) -> Words:
    """Return a column's contribution to its rows: 0 where it is null."""
    if is_type.is_null(array.type):
        return np.zeros(len(array), np.uint64)
    hashes = _mix(_values(array) + _salt(name))
    return np.where(validity(array), hashes, np.uint64(0)) if array.null_count else hashes


def _is_integral(arrow: pa.DataType) -> bool:
    """Return whether values are one word each, see `integers`."""
    return bool(
        is_type.is_integer(arrow)
        or is_type.is_boolean(arrow)
        or is_type.is_date(arrow)
        or is_type.is_time(arrow)
    )


@lru_cache(maxsize=10_000)
def _salt(name: str) -> np.uint64:
    """Return the hash of a column's name."""
    raw = np.frombuffer(name.encode(), np.uint8)
    return np.uint64(_texts(raw, np.array([0, len(raw)], np.int64))[0])


def _values(array: pa.Array) -> Words:
    arrow = array.type
    if is_type.is_floating(arrow):
        return _fold_columns(double_bits(array))
    if is_type.is_timestamp(arrow) or is_type.is_duration(arrow):
        seconds, nanos = instants(array)
        return _fold_columns(seconds.view(np.uint64), nanos.view(np.uint64))
    if is_type.is_decimal(arrow):
        return _fold_columns(*decimal_words(array).T)
    if is_type.is_nested(arrow):
        return _nested(array)
    if _is_integral(arrow):
        return _fold_columns(integers(array))
    return _texts(*text_bytes(array))


def _nested(array: pa.Array) -> Words:
    arrow = array.type
    if is_type.is_struct(arrow):
        total = np.zeros(len(array), np.uint64)
        for at, field in enumerate(arrow):
            total += _whole(field.name, array.field(at))
        return _mix(total)
    if is_type.is_map(arrow):
        entries = pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])
        return _lists(array.offsets, entries)
    if not is_type.is_list(arrow) and not is_type.is_large_list(arrow):
        return _other_lists(array)
    return _lists(array.offsets, array.values)


def _other_lists(array: pa.Array) -> Words:
    # Not by a cast to list, because Arrow's cast loses the last element of some views.
    counts = pc.fill_null(pc.list_value_length(array).cast(pa.int64()), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(counts)])
    return _lists(offsets, array.flatten())


def _whole(name: str, column: pa.Array) -> Words:
    parts = [_named(name, array) for array in batches(column)]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint64)


def _lists(offsets: pa.Array, elements: pa.Array) -> Words:
    bounds = np.asarray(offsets.cast(pa.int64()).to_numpy(zero_copy_only=False), np.int64)
    elements = elements.slice(bounds[0], bounds[-1] - bounds[0])
    words = np.full(len(elements), _NULL)
    start = 0
    for array in batches(elements):
        if not is_type.is_null(array.type):
            words[start : start + len(array)] = np.where(validity(array), _values(array), _NULL)
        start += len(array)
    counts = np.diff(bounds)
    return _fold_runs(words, counts, counts)


def _texts(run: "np.typing.NDArray[np.uint8]", offsets: Int64s) -> Words:
    """Hash byte strings, in steps of bounded memory."""
    hashes = np.empty(len(offsets) - 1, np.uint64)
    for start, stop in _steps(offsets):
        low, high = offsets[start], offsets[stop]
        sizes = np.diff(offsets[start : stop + 1])
        counts = (sizes + 7) // 8
        padded = np.zeros(int(counts.sum()) * 8, np.uint8)
        padded[range_positions((np.cumsum(counts) - counts) * 8, sizes)] = run[low:high]
        hashes[start:stop] = _fold_runs(padded.view("<u8"), counts, sizes)
    return hashes


def _steps(offsets: Int64s) -> Iterable[tuple[int, int]]:
    start, rows = 0, len(offsets) - 1
    while start < rows:
        limit = offsets[start] + _TEXT_STEP_BYTES
        stop = max(start + 1, int(np.searchsorted(offsets, limit, side="right")) - 1)
        yield start, stop
        start = stop


def _fold_runs(words: Words, counts: Int64s, sizes: Int64s) -> Words:
    """Fold `counts[i]` consecutive words for each row i."""
    positions = range_positions(np.ones(len(counts), np.int64), counts).view(np.uint64)
    sums = np.zeros(len(words) + 1, np.uint64)
    np.cumsum(_mix(_mix(words) + positions * _GOLDEN), out=sums[1:])
    ends = np.cumsum(counts)
    return _mix(sizes.view(np.uint64) + sums[ends] - sums[ends - counts])


def _fold_columns(*columns: Words) -> Words:
    """Fold the same number of words for every row."""
    total = np.full(columns[0].shape, np.uint64(len(columns)))
    for number, words in enumerate(columns, 1):
        total += _mix(_mix(words) + np.uint64(number * int(_GOLDEN) & _WORD_MAX))
    return _mix(total)


def _mix(words: Words) -> Words:
    mixed = words ^ (words >> np.uint64(30))
    mixed *= _MIX_FIRST
    mixed ^= mixed >> np.uint64(27)
    mixed *= _MIX_SECOND
    mixed ^= mixed >> np.uint64(31)
    return mixed
