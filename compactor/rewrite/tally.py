"""Counts the outcome of a job's rows, and compares rows: digests, order of keys."""

from dataclasses import dataclass, field, fields

import pyarrow as pa
import pyarrow.compute as pc

from common.model.outcome import DroppedRows, RowCounts
from common.rows.merge import MergeResult
from common.rows.row_facts import row_hash, rows_digest
from common.rows.rules import join_dropped

DIGEST_MODULUS = 1 << 64
_COUNTS = fields(RowCounts)


@dataclass(slots=True)
class Tally:
    """The outcome of the rows so far."""

    counts: RowCounts = field(default_factory=RowCounts)
    dropped: DroppedRows | None = None
    digest: int = 0
    """Sum of the row hashes of the expected output; append-only tables only."""

    def add(self, result: MergeResult) -> None:
        """Add one step, whose input rows were not counted before."""
        self.counts = sum_counts(self.counts, result.counts)
        self.dropped = join_dropped((self.dropped, result.dropped))

    def deleted(self, rows: int) -> None:
        """Count rows that a transform has removed, which are in no other count."""
        gone = RowCounts(rows_in=rows, transform_dropped=rows)
        self.counts = sum_counts(self.counts, gone)


def sum_counts(one: RowCounts, other: RowCounts) -> RowCounts:
    """Return the sum of two counts."""
    summed = {each.name: getattr(one, each.name) + getattr(other, each.name) for each in _COUNTS}
    return RowCounts(**summed)


def digest_of(table: pa.Table) -> int:
    """Return the sum of the row hashes of a table, modulo 2^64."""
    return rows_digest(row_hash(table)) if table.num_rows else 0


def keys_ascend(keys: pa.LargeBinaryArray, *, strictly: bool = False) -> bool:
    """Return whether encoded keys ascend; strictly: without duplicates."""
    if len(keys) < 2:
        return True
    compare = pc.less if strictly else pc.less_equal
    return bool(pc.all(compare(keys[:-1], keys[1:])).as_py())
