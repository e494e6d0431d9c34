"""Exact statistics of streamed rows, for the metadata of files."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import RequestError
from common.model.file import DataFile
from common.model.key_values import KeyType
from common.model.keys import lower_bound, upper_bound
from common.rows.arrays import TICKS_PER_S
from common.rows.conform import conform
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
        present = [name for name in self.columns if name in rows.column_names]
        self.require(present, source)
        self._rows += rows.num_rows
        known = conform(rows.select(present), self._schema, source)
        if rows.num_rows == 0:
            return
        self._see_keys(known)
        rules = self._rules
        if rules.version_column is not None:
            versions = encode_column(known.column(rules.version_column), rules.version_type)
            self._versions.widen(*_ends(versions))
        if rules.tombstone_column is not None:
            self._tombstones += pc.sum(known.column(rules.tombstone_column)).as_py() or 0
        if rules.time_column is not None:
            self._times.widen(*time_ends_s(known.column(rules.time_column)))

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

    def require(self, present: Iterable[str], source: str) -> None:
        """Refuse rows without the columns of key and version.

        Raises:
            RequestError: Names the missing columns.
        """
        needed = {*self._rules.key, *filter(None, [self._rules.version_column])}
        if missing := sorted(needed.difference(present)):
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
