"""Rows of a row group in the kernel: columns, words of their keys, and slices of both.

`RowLayout` defines which columns are held and how. `RowSlice` is a part of a row group that a step
merges. Slices are cut between keys, or anywhere.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
from pyarrow import types as is_type

from common.rows.rules import RowRules
from compactor.rewrite.kernel.normalized_keys import (
    KeyWords,
    as_column,
    is_sorted,
    key_levels,
    take_words,
    words_of_row,
)
from compactor.rewrite.kernel.winners import order_of

_KNOWN = (
    is_type.is_boolean,
    is_type.is_integer,
    is_type.is_float32,
    is_type.is_float64,
    is_type.is_string,
    is_type.is_binary,
    is_type.is_date32,
    is_type.is_decimal128,
)
_UNITS = ("ms", "us", "ns")


def known_to_polars(arrow: pa.DataType) -> bool:
    """Return whether Polars preserves every value of a type."""
    if is_type.is_timestamp(arrow):
        return arrow.unit in _UNITS
    return any(belongs(arrow) for belongs in _KNOWN)


@dataclass(slots=True)
class DecodedRows:
    """The rows of a row group, by key, and how many of them are finished."""

    frame: pl.DataFrame
    """Columns that Polars supports."""
    rest: pa.Table | None
    """The other columns."""
    levels: list[KeyWords]
    rows: int
    size_bytes: int
    done: int = 0


class RowLayout:
    """The columns of a table as the kernel holds them."""

    def __init__(self, schema: pa.Schema, rules: RowRules) -> None:
        self.schema = schema
        self.rules = rules
        self.kinds = rules.key_types
        self.key_arrows = [schema.field(name).type for name in rules.key]
        self.fast = [field.name for field in schema if known_to_polars(field.type)]
        self.slow = [field.name for field in schema if not known_to_polars(field.type)]
        empty = pa.schema([schema.field(name) for name in self.fast]).empty_table()
        supported = pl.from_arrow(empty)
        assert isinstance(supported, pl.DataFrame)
        self._dtypes = supported.schema

    def dtype(self, name: str) -> pl.DataType:
        """Return the Polars type of a column that Polars supports."""
        return self._dtypes[name]

    def held(self, frame: pl.DataFrame, rest: pa.Table | None, *, by_key: bool) -> DecodedRows:
        """Return rows with the words of their keys, sorted if requested and necessary."""
        columns = [column_of(frame, rest, name) for name in self.rules.key]
        levels, rows = key_levels(columns, self.kinds), len(columns[0])
        size_bytes = int(frame.estimated_size()) + (rest.nbytes if rest is not None else 0)
        size_bytes += sum(0 if isinstance(level, int) else level.nbytes for level in levels)
        held = DecodedRows(frame, rest, levels, rows, size_bytes)
        return _by_key(held) if by_key else held

    def held_apart(self, frame: pl.DataFrame, counts: Sequence[int]) -> list[DecodedRows]:
        """Return the rows of many small row groups, each by key; see `held`.

        Args:
            frame: The concatenated rows.
            counts: Number of rows of each.
        """
        whole, result, at = self.held(frame, None, by_key=False), [], 0
        row_bytes = whole.size_bytes / max(1, whole.rows)
        for rows in counts:
            part = frame.slice(at, rows)
            levels = [
                level if isinstance(level, int) else level[at : at + rows] for level in whole.levels
            ]
            result.append(_by_key(DecodedRows(part, None, levels, rows, int(rows * row_bytes))))
            at += rows
        return result


def _by_key(held: DecodedRows) -> DecodedRows:
    """Return rows in key order; unchanged if they already are."""
    if is_sorted(held.levels, held.rows):
        return held
    order = order_of(held.levels, held.rows)
    rest = held.rest.take(pa.array(order)) if held.rest is not None else None
    levels = take_words(held.levels, order)
    return DecodedRows(held.frame[order], rest, levels, held.rows, held.size_bytes)


def column_of(frame: pl.DataFrame, rest: pa.Table | None, name: str) -> pl.Series:
    """Return a column of rows that are held in two parts."""
    if name in frame.columns:
        return frame.get_column(name)
    assert rest is not None
    return as_column(rest.column(name))


# ------------------------------------------------------------------------------------------- Slices


_SAMPLES = 16
"""Keys that are sampled for each step."""
_GOLDEN = 0.6180339887498949


@dataclass(slots=True)
class RowSlice:
    """Some rows of a row group, from `start` to `stop`."""

    held: DecodedRows
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


def portions(slices: Sequence[RowSlice], rows_max: int) -> Iterator[list[RowSlice]]:
    """Cut rows anywhere into portions of bounded size."""
    portion: list[RowSlice] = []
    room = rows_max
    for slice_ in slices:
        start = slice_.start
        while start < slice_.stop:
            stop = min(slice_.stop, start + room)
            portion.append(RowSlice(slice_.held, start, stop))
            room -= stop - start
            start = stop
            if room == 0:
                yield portion
                portion, room = [], rows_max
    if portion:
        yield portion


def step_cuts(slices: Sequence[RowSlice], wanted: int, total: int) -> list[tuple[int, ...]]:
    """Return keys that divide rows into steps of about the wanted size.

    Args:
        slices: Slices, each by key.
        wanted: Rows of a step.
        total: Total number of rows.
    """
    samples = sorted(
        words_of_row(slices[number].held.levels, slices[number].start + place)
        for number, place in _spread(slices, max(1, wanted // _SAMPLES), total)
    )
    steps = -(-total // wanted)
    places = (len(samples) * step // steps for step in range(1, steps))
    return list(dict.fromkeys(samples[place] for place in places))


def _spread(slices: Sequence[RowSlice], stride: int, total: int) -> Iterator[tuple[int, int]]:
    """Yield one row per `stride` rows: the number of its slice, and its position there.

    Positions within the strides vary evenly (multiples of the golden ratio). With many small
    slices, the middle of each stride would always be the middle of a slice: a few thousand rows
    about one key, and all others to the left and right of them.
    """
    starts = np.cumsum([0, *(slice_.rows for slice_ in slices)])
    stretches = np.arange(max(1, total // stride))
    rows = np.minimum(((stretches + stretches * _GOLDEN % 1) * stride).astype(np.int64), total - 1)
    numbers = np.searchsorted(starts, rows, "right") - 1
    yield from zip(numbers.tolist(), (rows - starts[numbers]).tolist(), strict=True)
