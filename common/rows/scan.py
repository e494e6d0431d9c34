"""Merge on read: what a reader sees of the files of a table."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import RequestError
from common.model.keys import PLUS_INFINITY
from common.rows.dead import dead_rows
from common.rows.encode import encode_keys
from common.rows.merge import joined, merge_tables
from common.rows.rules import RowRules
from common.rows.sort import sorted_rows


def scan_tables(
    tables: Sequence[pa.Table],
    rules: RowRules,
    now_s: float,
    *,
    columns: Sequence[str] | None = None,
    start: bytes | None = None,
    end: bytes | None = None,
) -> pa.Table:
    """Return the visible rows, by key: neither superseded nor tombstones nor expired.

    Args:
        tables: All rows of every file that may hold keys of the range, with all their
            columns (ties between rows are decided by the whole row).
        rules: Of the table.
        now_s: For expiry.
        columns: The columns to return, in this order; None: all.
        start: Encoded key after which the range begins; None: at the first key.
        end: Encoded key with which the range ends; None: at the last key.

    Raises:
        RequestError: A column is not known, or a table does not fit the rules' schema.
    """
    known = [column.name for column in rules.schema]
    if unknown := [name for name in columns or () if name not in known]:
        message = f"columns {', '.join(unknown)} are not known, wanted some of {', '.join(known)}"
        raise RequestError(message)
    rows = joined([in_range(table, rules, start, end) for table in tables], rules)
    seen = visible(merge_tables([rows], rules, now_s).table, rules, now_s)
    return seen if columns is None else seen.select(list(columns))


def count_visible(tables: Sequence[pa.Table], rules: RowRules, now_s: float) -> int | None:
    """Return how many rows of a keyed table a reader sees.

    Args:
        tables: All rows of every file that may hold keys of the range, but of their columns
            only `rules.merge_columns`.
        rules: Of the table.
        now_s: For expiry.

    Returns:
        The number. None: whole rows are needed to tell it, as they decide a tie of a row that
        has expired with one that has not.
    """
    names = rules.merge_columns
    schema = tuple(column for column in rules.schema if column.name in names)
    narrow = replace(rules, schema=schema, partition_by=(), time_column=None, ttl_s=None)
    if rules.ttl_s is not None:
        narrow = replace(narrow, time_column=rules.time_column, ttl_s=rules.ttl_s)
    rows = joined(tables, narrow)
    if rows.num_rows == 0:
        return 0
    ordered = sorted_rows(rows, narrow)
    tombstones, expired = dead_rows(rows, narrow, now_s)
    ranks = np.flatnonzero(ordered.new_rank)
    gone = expired[ordered.row]
    some, every = np.logical_or.reduceat(gone, ranks), np.logical_and.reduceat(gone, ranks)
    first_ranks = ordered.new_key[ranks]
    dead = tombstones[ordered.row][ranks] | every
    unsure = some & ~dead
    if (unsure & first_ranks).any():
        return None
    return int((first_ranks & ~dead).sum())


def visible(merged: pa.Table, rules: RowRules, now_s: float) -> pa.Table:
    """Return the rows of a merged table that a reader sees."""
    tombstones, expired = dead_rows(merged, rules, now_s)
    dead = tombstones | expired
    return merged.filter(pa.array(~dead)) if dead.any() else merged


def in_range(table: pa.Table, rules: RowRules, start: bytes | None, end: bytes | None) -> pa.Table:
    """Return the rows whose key is in `(start, end]`; a table without a key is one range."""
    if not rules.key or (start is None and end in (None, PLUS_INFINITY)):
        return table
    keys = encode_keys(table, rules.key, rules.key_types)
    inside = pc.is_valid(keys)
    if start is not None:
        inside = pc.and_(inside, pc.greater(keys, pa.scalar(start, pa.large_binary())))
    if end is not None:
        inside = pc.and_(inside, pc.less_equal(keys, pa.scalar(end, pa.large_binary())))
    return table.filter(inside)
