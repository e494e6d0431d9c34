"""The effect of a job's request on its inputs, as a value for Spark's tasks.

The value determines which rows a transform affects.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import RequestError, RewriteError, TransformError
from common.expressions.request_transform import (
    Transform,
    parse_transform,
    protected_columns,
)
from common.model.request import KeyRange
from common.model.table import Table
from common.rows.arrays import Flags
from common.rows.key_encoding import encode_keys
from common.rows.rules import RowRules
from common.rows.schema import columns_of
from common.wire import Assignment

# ------------------------------------------------------------------------------------ Affected rows


def matched_rows(
    rows: pa.Table, rules: RowRules, key_range: KeyRange, cancelled: Sequence[KeyRange] = ()
) -> Flags:
    """Return the rows that a transform applies to: in the range, not cancelled, no tombstones.

    Expired rows are included, because they would reappear if the table's TTL became longer.

    Args:
        rows: Rows with at least the columns of key and tombstone.
        rules: Rules of the table.
        key_range: Range of the request.
        cancelled: Ranges that a user has cancelled.
    """
    flags = np.ones(rows.num_rows, np.bool_)
    if rules.tombstone_column is not None:
        flags &= ~_flags(pc.fill_null(rows.column(rules.tombstone_column), fill_value=False))
    if rules.key and (key_range != KeyRange() or cancelled) and rows.num_rows:
        keys = encode_keys(rows, rules.key, rules.key_types)
        flags &= _inside(keys, key_range)
        for part in cancelled:
            flags &= ~_inside(keys, part)
    return flags


def _inside(keys: pa.LargeBinaryArray, key_range: KeyRange) -> Flags:
    flags = np.ones(len(keys), np.bool_)
    if key_range.start is not None:
        flags &= _flags(pc.greater_equal(keys, _bytes(key_range.start)))
    if key_range.until is not None:
        flags &= _flags(pc.less(keys, _bytes(key_range.until)))
    return flags


def _bytes(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.large_binary())


def _flags(column: pa.Array | pa.ChunkedArray) -> Flags:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    flags: Flags = array.to_numpy(zero_copy_only=False)
    return flags


# --------------------------------------------------------------------------- The transform of a job


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformPlan:
    """The transform of one job."""

    transform: Transform
    request: str
    table: Table
    key_range: KeyRange
    """Rows outside are unchanged, whatever file holds them."""
    inputs: frozenset[int]
    """Numbers of the inputs that it has not been applied to; never empty."""
    now_s: float
    cancelled: tuple[KeyRange, ...] = ()
    """Cancelled ranges: rows there are unchanged as well."""

    def matched_rows(self, rows: pa.Table, rules: RowRules) -> Flags:
        """Return the rows that it applies to.

        Args:
            rows: Rows with at least the columns of key and tombstone.
            rules: Rules of the table.
        """
        return matched_rows(rows, rules, self.key_range, self.cancelled)

    @property
    def now_us(self) -> int:
        """The value of `now()` for every row, in microseconds since the epoch."""
        return round(self.now_s * 1_000_000)

    @property
    def protected(self) -> frozenset[str]:
        """Columns that keep their values, even in deleted rows."""
        return protected_columns(self.table)

    @property
    def asks_spark(self) -> bool:
        """Whether it has expressions, which Spark evaluates."""
        return bool(self.transform.expressions)


def make_transform(assignment: Assignment, schema: pa.Schema) -> TransformPlan | None:
    """Return the effect of the job's request on its inputs; None: no effect.

    Args:
        assignment: The reserved job.
        schema: Schema of the rows, as they will be merged.

    Raises:
        RewriteError: The request is missing, or is a different one.
        TransformError: It does not fit the rows.
    """
    request, wanted = assignment.request, assignment.reservation.request
    if (request.id if request is not None else None) != wanted:
        # Otherwise outputs would carry the request, and the transform would never be applied.
        origin = f"came with {request.id}" if request is not None else "came without it"
        raise RewriteError(f"job {assignment.job.id} belongs to request {wanted}, but {origin}")
    if request is None:
        return None
    try:
        transform = parse_transform(
            request.transform, assignment.table, request.range, columns_of(schema)
        )
    except RequestError as error:
        raise TransformError(f"request {request.id}: {error}") from error
    inputs = frozenset(
        at for at, file in enumerate(assignment.inputs) if file.request != request.id
    )
    if transform is None or not inputs:
        return None
    return TransformPlan(
        transform=transform,
        request=request.id,
        table=assignment.table,
        key_range=request.range,
        inputs=inputs,
        now_s=assignment.reservation.now_s,
        cancelled=request.cancelled_ranges,
    )
