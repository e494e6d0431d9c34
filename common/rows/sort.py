"""The order of rows: by key, then the better row first (higher version, then tombstones)."""

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from common.model.keys import KeyType
from common.rows.arrays import Flags, Int64s, batches, ordered_double_bits, validity
from common.rows.encode import encode_column
from common.rows.rules import RowRules


@dataclass(frozen=True, slots=True)
class SortedRows:
    """Row numbers in order, with flags where a key and where a (key, version, tombstone) begins.

    The three are of one length; where a key begins, a rank begins too.
    """

    row: Int64s
    new_key: Flags
    new_rank: Flags


def sorted_rows(table: pa.Table, rules: RowRules) -> SortedRows:
    """Return the order of the rows of a keyed table, which has the rules' types."""
    assert rules.key, "rows of a table without a key have no order"
    assert rules.version_column is not None
    key_names = [f"key{at}" for at in range(len(rules.key))]
    columns = {
        label: sortable(table.column(name), kind)
        for label, name, kind in zip(key_names, rules.key, rules.key_types, strict=True)
    }
    columns["version"] = sortable(table.column(rules.version_column), rules.version_type)
    columns["tombstone"] = _tombstones(table, rules)
    ranks = list(columns)
    better_first = [False] * len(key_names) + [True, True]
    frame = (
        pl.DataFrame(columns)
        .with_row_index("row")
        .sort(ranks, descending=better_first, nulls_last=better_first)
    )
    return SortedRows(
        row=frame["row"].to_numpy().astype(np.int64),
        new_key=_begins(frame, key_names),
        new_rank=_begins(frame, ranks),
    )


def sortable(column: pa.ChunkedArray, key_type: KeyType) -> pl.Series:
    """Return a column as a series that sorts like its encoded values, nulls first."""
    match key_type:
        case KeyType.FLOAT:
            chunks = [
                pa.array(ordered_double_bits(array), mask=~validity(array))
                for array in batches(column)
            ]
            return _series(pa.chunked_array(chunks, pa.uint64()))
        case KeyType.STRING:
            return _series(column.cast(pa.large_string()))
        case KeyType.BINARY:
            return _series(column.cast(pa.large_binary()))
        case KeyType.DATE:
            return _series(column.cast(pa.date32()).cast(pa.int32()))
        case KeyType.TIMESTAMP:
            return _series(column.cast(pa.int64()))
        case KeyType.DECIMAL | KeyType.TIME:
            return _series(pa.chunked_array([encode_column(column, key_type)]))
        case KeyType.BOOL | KeyType.INT:
            return _series(column)


def _series(column: pa.ChunkedArray) -> pl.Series:
    series = pl.from_arrow(column)
    assert isinstance(series, pl.Series)
    return series


def _tombstones(table: pa.Table, rules: RowRules) -> pl.Series:
    if rules.tombstone_column is None:
        return pl.repeat(value=False, n=table.num_rows, dtype=pl.Boolean, eager=True)
    return _series(table.column(rules.tombstone_column)).fill_null(value=False)


def _begins(frame: pl.DataFrame, columns: list[str]) -> Flags:
    """Return where one of the columns differs from the row before."""
    if frame.height == 0:
        return np.zeros(0, np.bool_)
    changed = frame.select(
        pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift(1)) for name in columns)
    )
    flags: Flags = changed.to_series().to_numpy().copy()
    flags[0] = True
    return flags
