"""Which row of a key wins, and which dead rows may be dropped: the single definition.

Dropped keys are stored as a few short ranges that contain all of them and as few other keys as
possible.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Protocol, Self

from common.errors import ConfigError
from common.model.key_values import KeyType, key_type_of
from common.model.outcome import DroppedRows
from common.model.table import Column, Table, missing_columns

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
# output until no older row can reappear. Append-only table: every row stays, except expired
# rows.


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
        known = ", ".join(sorted({column.name for column in self.schema}))
        for name in missing_columns(self.schema, named):
            yield f"column {name} is not in the schema ({known})"

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
    """

    settled: bytes | None
    outside: tuple[HoldsRows, ...] = ()

    def allows(self, key: bytes, version: bytes) -> bool:
        """Return whether a dead row may be dropped."""
        if self.settled is None or version > self.settled:
            return False
        return not any(may_hold_older(file, key, version) for file in self.outside)


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


def expires_by(time: object, time_type: KeyType, expiry_ns: int | None) -> bool:
    """Return whether a row with this plain time has expired; null never expires."""
    if time is None or expiry_ns is None:
        return False
    assert isinstance(time, int | float)
    return bool(time <= expiry_limit(time_type, expiry_ns))


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
    known = [part for part in parts if part is not None]
    if not known:
        return None
    return DroppedRows(
        spans=merged_spans(span for part in known for span in part.spans),
        version_max=max(part.version_max for part in known),
    )
