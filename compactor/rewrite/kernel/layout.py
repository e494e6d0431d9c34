"""Rows of a row group as the kernel holds them: columns of the table, and words of their keys."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa
from pyarrow import types as is_type

from common.rows.rules import RowRules
from compactor.rewrite.kernel.order import order_of
from compactor.rewrite.kernel.words import (
    Level,
    as_column,
    is_sorted,
    key_levels,
    taken,
)

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
    """Return whether Polars keeps every value of a type as it is."""
    if is_type.is_timestamp(arrow):
        return arrow.unit in _UNITS
    return any(belongs(arrow) for belongs in _KNOWN)


@dataclass(slots=True)
class Held:
    """The rows of a row group, by key, and how many of them are done with."""

    frame: pl.DataFrame
    """Columns that Polars knows."""
    rest: pa.Table | None
    """The others."""
    levels: list[Level]
    rows: int
    size_bytes: int
    done: int = 0


class Layout:
    """The columns of a table, as the kernel holds them."""

    def __init__(self, schema: pa.Schema, rules: RowRules) -> None:
        self.schema = schema
        self.rules = rules
        self.kinds = rules.key_types
        self.key_arrows = [schema.field(name).type for name in rules.key]
        self.fast = [field.name for field in schema if known_to_polars(field.type)]
        self.slow = [field.name for field in schema if not known_to_polars(field.type)]
        empty = pa.schema([schema.field(name) for name in self.fast]).empty_table()
        known = pl.from_arrow(empty)
        assert isinstance(known, pl.DataFrame)
        self._dtypes = known.schema

    def dtype(self, name: str) -> pl.DataType:
        """Return the Polars type of a column that Polars knows."""
        return self._dtypes[name]

    def held(self, frame: pl.DataFrame, rest: pa.Table | None, *, by_key: bool) -> Held:
        """Return rows with the words of their keys; sorted, if they are not and should be."""
        columns = [column_of(frame, rest, name) for name in self.rules.key]
        levels, rows = key_levels(columns, self.kinds), len(columns[0])
        size_bytes = int(frame.estimated_size()) + (rest.nbytes if rest is not None else 0)
        size_bytes += sum(0 if isinstance(level, int) else level.nbytes for level in levels)
        held = Held(frame, rest, levels, rows, size_bytes)
        return _by_key(held) if by_key else held

    def held_apart(self, frame: pl.DataFrame, counts: Sequence[int]) -> list[Held]:
        """Return rows of many small row groups, each by key; see `held`.

        Args:
            frame: The rows of all, one after the other.
            counts: How many rows each has.
        """
        whole, found, at = self.held(frame, None, by_key=False), [], 0
        row_bytes = whole.size_bytes / max(1, whole.rows)
        for rows in counts:
            part = frame.slice(at, rows)
            levels = [
                level if isinstance(level, int) else level[at : at + rows] for level in whole.levels
            ]
            found.append(_by_key(Held(part, None, levels, rows, int(rows * row_bytes))))
            at += rows
        return found


def _by_key(held: Held) -> Held:
    """Return rows in the order of their keys: the same ones, if they are."""
    if is_sorted(held.levels, held.rows):
        return held
    places = order_of(held.levels, held.rows)
    rest = held.rest.take(pa.array(places)) if held.rest is not None else None
    levels = taken(held.levels, places)
    return Held(held.frame[places], rest, levels, held.rows, held.size_bytes)


def column_of(frame: pl.DataFrame, rest: pa.Table | None, name: str) -> pl.Series:
    """Return a column of rows that are held in two parts."""
    if name in frame.columns:
        return frame.get_column(name)
    assert rest is not None
    return as_column(rest.column(name))
