"""Which row of a key wins, and which dead rows may be dropped: the single definition.

Dropped keys are stored as a few short ranges that contain all of them and as few other keys as
possible.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import ConfigError
from common.model.file import DataFile
from common.model.key_values import NANOS, KeyType, key_type_of
from common.model.outcome import DroppedRows
from common.model.table import Column, Table, missing_columns
from common.rows.conform import TICKS_PER_S, Flags, batches, numbers, validity
from common.rows.key_encoding import encode_column, encode_keys

# ---- Ranges of dropped keys
#
# A commit is refused if a file that was added meanwhile may hold an older row of a dropped key. One
# range from the first such key to the last would meet every file between them, so a range ends
# wherever a file outside the job begins or ends. The number of ranges and the length of their ends
# are bounded, whatever the number and length of keys: neighbours are joined and ends are rounded
# outwards. This can only refuse a commit that would have been allowed.


Span = tuple[bytes, bytes]

SPANS_MAX = 256
KEY_BYTES_MAX = 256
"""Longest end of a range. 256 ranges with such ends are as large as a few pages of a file."""
_GAP_BYTES = 8
"""Bytes after a common prefix that measure the distance of two keys."""


def key_spans(
    key_at: Callable[[int], bytes], count: int, marks: Iterable[bytes]
) -> tuple[Span, ...]:
    """Return ranges that contain some keys.

    Args:
        key_at: Returns a key by its number; keys ascend.
        count: Number of keys, at least one.
        marks: First and last keys of files that hold none of these keys.
    """
    ends = {bisect_right(range(count), mark, key=key_at) for mark in set(marks)}
    cuts = [0, *sorted(end for end in ends if 0 < end < count), count]
    return merged_spans((key_at(first), key_at(end - 1)) for first, end in pairwise(cuts))


def merged_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return disjoint, few and short ranges that cover these; the closest neighbours are joined."""
    joined: list[Span] = []
    for low, high in sorted((_rounded_down(low), _rounded_up(high)) for low, high in spans):
        if joined and low <= joined[-1][1]:
            low, last = joined.pop()
            high = max(high, last)
        joined.append((low, high))
    if len(joined) <= SPANS_MAX:
        return tuple(joined)
    gaps = sorted(range(1, len(joined)), key=lambda at: _gap(joined[at - 1][1], joined[at][0]))
    kept = [0, *sorted(gaps[-(SPANS_MAX - 1) :]), len(joined)]
    return tuple((joined[first][0], joined[end - 1][1]) for first, end in pairwise(kept))


def _gap(low: bytes, high: bytes) -> tuple[int, int]:
    """Return the distance of two keys: the earlier they differ, and the more, the larger it is."""
    pairs = enumerate(zip(low, high, strict=False))
    same = next((at for at, (one, other) in pairs if one != other), len(low))
    return -same, _number(high[same:]) - _number(low[same:])


def _number(key: bytes) -> int:
    return int.from_bytes(key[:_GAP_BYTES].ljust(_GAP_BYTES, b"\x00"), "big")


def _rounded_down(key: bytes) -> bytes:
    return key[:KEY_BYTES_MAX]


def _rounded_up(key: bytes) -> bytes:
    if len(key) <= KEY_BYTES_MAX:
        return key
    short = key[:KEY_BYTES_MAX].rstrip(b"\xff")
    return short[:-1] + bytes([short[-1] + 1]) if short else key


# ---- The rules
#
# Keyed table: the highest version of each key wins (null is the lowest). Among equal versions a
# tombstone wins, then the greater row hash. A winner that is a tombstone or has expired is *dead*:
# readers see neither the row nor older rows of its key. A dead winner stays in a compaction's
# output until no older row can reappear. Where deleted rows are kept, the newest other row of a key
# stays together with a winning tombstone, until the tombstone is settled. Append-only table: every
# row stays, except expired rows.


_NANOS = 1_000_000_000
_TIME_FAMILIES = (KeyType.TIMESTAMP, KeyType.DATE, KeyType.INT, KeyType.FLOAT)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRules:
    """The rules of one table; every column that they name is in the schema.

    A time column is a timestamp (UTC if it has no zone), a date (its first moment), or a
    number of seconds since the epoch.
    """

    schema: tuple[Column, ...]
    key: tuple[str, ...] = ()
    version_column: str | None = None
    tombstone_column: str | None = None
    time_column: str | None = None
    ttl_s: float | None = None
    partition_by: tuple[str, ...] = ()
    """Columns that files may omit because their folders give the values (see `partitions`)."""

    def __post_init__(self) -> None:
        """Refuse rules that contradict each other."""
        for problem in chain(self._missing(), self._unfit()):
            raise ConfigError(problem)
        for name in filter(None, (*self.key, self.version_column)):
            key_type_of(self.type_of(name))  # Refuses a type that has no order.

    @classmethod
    def of(cls, table: Table) -> Self:
        """Return the rules of a table."""
        return cls(
            schema=table.schema,
            key=table.key,
            version_column=table.version_column,
            tombstone_column=table.tombstone_column,
            time_column=table.time_column,
            ttl_s=table.settings.ttl_s,
            partition_by=table.partition_by,
        )

    @property
    def key_types(self) -> tuple[KeyType, ...]:
        """The families of the key columns."""
        return tuple(key_type_of(self.type_of(name)) for name in self.key)

    @property
    def version_type(self) -> KeyType:
        """The family of the version column, which must exist."""
        assert self.version_column is not None
        return key_type_of(self.type_of(self.version_column))

    @property
    def time_type(self) -> KeyType:
        """The family of the time column, which must exist."""
        assert self.time_column is not None
        return key_type_of(self.type_of(self.time_column))

    def type_of(self, name: str) -> str:
        """Return the text form of a column's type."""
        return next(column.type for column in self.schema if column.name == name)

    @property
    def merge_columns(self) -> tuple[str, ...]:
        """The columns that decide which rows a reader sees: key, version, tombstone, time.

        For one exception see `common.rows.merge.count_visible`.
        """
        time = self.time_column if self.ttl_s is not None else None
        named = (*self.key, self.version_column, self.tombstone_column, time)
        return tuple(dict.fromkeys(name for name in named if name is not None))

    def expiry_ns(self, now_s: float) -> int | None:
        """Return the latest expired time (ns since the epoch), or None without a TTL."""
        if self.time_column is None or self.ttl_s is None:
            return None
        return math.floor((now_s - self.ttl_s) * _NANOS)

    def _missing(self) -> Iterable[str]:
        named = (*self.key, self.version_column, self.tombstone_column, self.time_column)
        columns = ", ".join(sorted({column.name for column in self.schema}))
        for name in missing_columns(self.schema, named):
            yield f"column {name} is not in the schema ({columns})"

    def _unfit(self) -> Iterable[str]:
        if self.key and self.version_column is None:
            yield "a table with a key needs a version column"
        if self.tombstone_column is not None and not self.key:
            yield f"tombstone column {self.tombstone_column} needs a key"
        if self.tombstone_column is not None and self.type_of(self.tombstone_column) != "bool":
            yield f"tombstone column {self.tombstone_column} must be of type bool"
        if self.time_column is not None and self.time_type not in _TIME_FAMILIES:
            yield f"time column {self.time_column} must be a timestamp, a date or a number"
        if self.ttl_s is not None and self.time_column is None:
            yield "a time to live needs a time column"


class HoldsRows(Protocol):
    """A file of the tablet that is not an input of the job, reduced to what rules need."""

    @property
    def key_min(self) -> bytes | None:
        """Its smallest key; None: unknown."""
        ...

    @property
    def key_max(self) -> bytes | None:
        """Its greatest key; None: unknown."""
        ...

    @property
    def version_min(self) -> bytes | None:
        """Its lowest version; None: unknown."""
        ...


@dataclass(frozen=True, slots=True)
class DropRule:
    """When dead rows may be dropped: they are settled, and no file outside holds older rows.

    Attributes:
        settled: The highest droppable version (encoded); None: no row may be dropped.
        outside: The files of the tablet that are not inputs of the job.
        keeps_deleted: Whether a winning tombstone that is not settled keeps the newest other row of
            its key.
    """

    settled: bytes | None
    outside: tuple[HoldsRows, ...] = ()
    keeps_deleted: bool = False

    @property
    def of_a_part(self) -> "DropRule":
        """The rule for some rows of a key, which are merged with the others later."""
        return DropRule(None, keeps_deleted=self.keeps_deleted)

    def allows(self, key: bytes, version: bytes) -> bool:
        """Return whether a dead row may be dropped."""
        if self.settled is None or version > self.settled:
            return False
        return not any(may_hold_older(file, key, version) for file in self.outside)


def keeps_deleted_rows(table: Table) -> bool:
    """Return whether compactions keep a row whose delete is inside the retention."""
    return table.settings.keep_deleted_rows and table.tombstone_column is not None


def may_drop_rows(table: Table) -> bool:
    """Return whether compactions may drop dead rows of a table: deleted or expired ones."""
    expires = table.settings.ttl_s is not None and table.time_column is not None
    return table.version_column is not None and (expires or table.tombstone_column is not None)


def may_hold_older(file: HoldsRows, key: bytes, version: bytes) -> bool:
    """Return whether a file may hold a row of this key that a dead row of `version` hides.

    Equal versions count, because a tombstone wins over them as well. Unknown values may match.
    """
    return may_hold_older_between(file, key, key, version)


def may_hold_older_between(
    file: HoldsRows, low: bytes | None, high: bytes | None, version: bytes | None
) -> bool:
    """Return whether a file may hold a row that some dead rows hide.

    Args:
        file: A file outside the job.
        low: The smallest key of the dead rows.
        high: Their greatest key.
        version: Their highest version. An unknown value (None) may match.
    """
    if not may_share_keys(file, low, high):
        return False
    return version is None or file.version_min is None or file.version_min <= version


def may_share_keys(file: HoldsRows, low: bytes | None, high: bytes | None) -> bool:
    """Return whether a file may hold keys from `low` to `high`; unknown keys may match."""
    if file.key_min is not None and high is not None and high < file.key_min:
        return False
    return file.key_max is None or low is None or low <= file.key_max


def expiry_limit(time_type: KeyType, expiry_ns: int) -> float:
    """Return the latest expired value of a time column, in its own unit (timestamps: ns)."""
    match time_type:
        case KeyType.TIMESTAMP:
            return expiry_ns
        case KeyType.DATE:
            return expiry_ns // (86_400 * _NANOS)
        case KeyType.FLOAT:
            return expiry_ns / _NANOS
        case _:
            return expiry_ns // _NANOS


def join_dropped(parts: Iterable[DroppedRows | None]) -> DroppedRows | None:
    """Return the union of the dropped rows of several merges."""
    drops = [part for part in parts if part is not None]
    if not drops:
        return None
    return DroppedRows(
        spans=merged_spans(span for part in drops for span in part.spans),
        version_max=max(part.version_max for part in drops),
    )


# ---------------------------------------------------------------------------------------- Dead rows
# Which rows are tombstones, which have expired, and which of them may be dropped.
#
# The metadata of files often shows that no row can have expired, without reading the rows.


# ------------------------------------------------------------------------------ Facts from metadata


CLOCK_MARGIN_S = 1.0
"""Times in file metadata are floating-point seconds; a row this close to its end may be expired."""


def may_expire(files: Sequence[DataFile], rules: RowRules, schema: pa.Schema, now_s: float) -> bool:
    """Return whether a row of some files may have expired, according to their metadata."""
    if rules.ttl_s is None or rules.time_column is None:
        return False
    if pa.types.is_floating(schema.field(rules.time_column).type):
        return True  # Bounds of files do not include an infinite past.
    safe_s = now_s - rules.ttl_s + CLOCK_MARGIN_S
    return any(file.time_min_s is None or file.time_min_s <= safe_s for file in files)


# ------------------------------------------------------------------------------ Facts from the rows


def dead_rows(table: pa.Table, rules: RowRules, now_s: float) -> tuple[Flags, Flags]:
    """Return which rows are tombstones and which have expired."""
    expired = np.zeros(table.num_rows, np.bool_)
    expiry_ns = rules.expiry_ns(now_s)
    if expiry_ns is not None:
        parts = [
            _expired(array, rules.time_type, expiry_ns)
            for array in batches(table.column(rules.time_column))
        ]
        expired = np.concatenate(parts) if parts else expired
    return tombstone_rows(table, rules), expired


def tombstone_rows(table: pa.Table, rules: RowRules) -> Flags:
    """Return which rows are tombstones."""
    if rules.tombstone_column is None:
        return np.zeros(table.num_rows, np.bool_)
    return _flags(pc.fill_null(table.column(rules.tombstone_column), fill_value=False))


def _expired(times: pa.Array, time_type: KeyType, expiry_ns: int) -> Flags:
    limit = expiry_limit(time_type, expiry_ns)
    match time_type:
        case KeyType.FLOAT:
            early = numbers(times.cast(pa.float64()), np.float64) <= limit
        case KeyType.TIMESTAMP:
            tick_ns = NANOS // TICKS_PER_S[times.type.unit]
            early = numbers(times, np.int64) <= expiry_ns // tick_ns
        case KeyType.DATE:
            early = numbers(times.cast(pa.date32()), np.int32) <= limit
        case _ if pa.types.is_uint64(times.type):
            early = numbers(times, np.uint64) <= limit
        case _:
            early = numbers(times.cast(pa.int64()), np.int64) <= limit
    return np.asarray(early & validity(times))


def droppable_rows(
    table: pa.Table, dead: Flags, rules: RowRules, drop: DropRule | None
) -> tuple[Flags, DroppedRows | None]:
    """Return which rows may be dropped, and their keys and versions.

    Args:
        table: The winning rows of a keyed table, by key.
        dead: Which of them are tombstones or expired.
        rules: Rules of the table.
        drop: Which dead rows may be dropped; None: none.
    """
    gone = np.zeros(table.num_rows, np.bool_)
    if drop is None or drop.settled is None or not dead.any():
        return gone, None
    numbers = np.flatnonzero(dead)
    chosen = table.select([*dict.fromkeys([*rules.key, rules.version_column])]).take(
        pa.array(numbers)
    )
    keys = encode_keys(chosen, rules.key, rules.key_types)
    versions = encode_column(chosen.column(rules.version_column), rules.version_type)
    free = pc.less_equal(versions, _bytes(drop.settled))
    for file in drop.outside:
        free = pc.and_not(free, _may_hold_older(file, keys, versions))
    flags = _flags(free)
    if not flags.any():
        return gone, None
    gone[numbers[flags]] = True
    dropped = keys.filter(free)
    marks = chain.from_iterable((file.key_min, file.key_max) for file in drop.outside)
    spans = key_spans(lambda at: dropped[at].as_py(), len(dropped), filter(None, marks))
    highest = pc.max(versions.filter(free)).as_py()
    return gone, DroppedRows(spans=spans, version_max=highest)


def dropped_together(
    key_at: Callable[[int], bytes], count: int, highest: bytes, drop: DropRule
) -> DroppedRows | None:
    """Return the keys and versions of dead rows if all of them may certainly be dropped.

    Only a few keys are read, so most dead rows need not be encoded. None: see `droppable_rows`.

    Args:
        key_at: Returns the encoded key of a row by its number; keys ascend.
        count: Number of rows, at least one.
        highest: Their highest version, encoded.
        drop: Which dead rows may be dropped.
    """
    if drop.settled is None or highest > drop.settled:
        return None
    low, high = key_at(0), key_at(count - 1)
    if any(may_hold_older_between(file, low, high, highest) for file in drop.outside):
        return None
    ends = chain.from_iterable((file.key_min, file.key_max) for file in drop.outside)
    marks = (end for end in ends if end is not None and low <= end < high)
    return DroppedRows(spans=key_spans(key_at, count, marks), version_max=highest)


def unsettled_rows(table: pa.Table, rules: RowRules, settled: bytes | None) -> Flags:
    """Return which rows have versions above the settled one.

    Args:
        table: Rows of a keyed table; only their versions are read.
        rules: Rules of the table.
        settled: The highest settled version; None: no version is settled.
    """
    if settled is None or not table.num_rows:
        return np.ones(table.num_rows, np.bool_)
    versions = encode_column(table.column(rules.version_column), rules.version_type)
    return _flags(pc.greater(versions, _bytes(settled)))


def are_kept_pairs(deletes: pa.Table, rows: pa.Table, rules: RowRules, drop: DropRule) -> bool:
    """Return whether each pair of rows of one key is a delete and the row that it keeps.

    Args:
        deletes: The first row of each pair, with at least version and tombstone.
        rows: The second row of each.
        rules: Rules of the table.
        drop: The rule by which they were merged.
    """
    if not drop.keeps_deleted:
        return False
    dead, others = (tombstone_rows(part, rules) for part in (deletes, rows))
    newer, older = (
        encode_column(part.column(rules.version_column), rules.version_type)
        for part in (deletes, rows)
    )
    in_order = _flags(pc.greater_equal(newer, older))
    return bool((dead & ~others & in_order & unsettled_rows(deletes, rules, drop.settled)).all())


def _may_hold_older(file: HoldsRows, keys: pa.Array, versions: pa.Array) -> pa.Array:
    """Evaluate `rules.may_hold_older` for many rows at once."""
    may = pa.array(np.ones(len(keys), np.bool_))
    if file.key_min is not None:
        may = pc.and_(may, pc.greater_equal(keys, _bytes(file.key_min)))
    if file.key_max is not None:
        may = pc.and_(may, pc.less_equal(keys, _bytes(file.key_max)))
    if file.version_min is not None:
        may = pc.and_(may, pc.greater_equal(versions, _bytes(file.version_min)))
    return may


def _bytes(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.large_binary())


def _flags(column: pa.Array | pa.ChunkedArray) -> Flags:
    flags: Flags = (
        column.to_numpy()
        if isinstance(column, pa.ChunkedArray)
        else column.to_numpy(zero_copy_only=False)
    )
    return flags
