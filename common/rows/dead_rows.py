"""Which rows are tombstones, which have expired, and which of them may be dropped.

The metadata of files often shows that no row can have expired, without reading the rows.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.model.file import DataFile
from common.model.key_values import NANOS, KeyType
from common.model.outcome import DroppedRows
from common.rows.arrays import TICKS_PER_S, Flags, batches, numbers, validity
from common.rows.key_encoding import encode_column, encode_keys
from common.rows.rules import DropRule, HoldsRows, RowRules, expiry_limit, key_spans

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
    tombstones = expired = np.zeros(table.num_rows, np.bool_)
    if rules.tombstone_column is not None:
        column = pc.fill_null(table.column(rules.tombstone_column), fill_value=False)
        tombstones = _flags(column)
    expiry_ns = rules.expiry_ns(now_s)
    if expiry_ns is not None:
        parts = [
            _expired(array, rules.time_type, expiry_ns)
            for array in batches(table.column(rules.time_column))
        ]
        expired = np.concatenate(parts) if parts else expired
    return tombstones, expired


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
