"""Streams rows through the row rules, in bounded memory: tables in, tables and counts out."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import VerificationError
from common.model.outcome import DroppedRows, RowCounts
from common.rows.dead_rows import dead_rows
from common.rows.key_encoding import encode_keys
from common.rows.merge import MergeResult, merge_tables
from common.rows.row_hash import row_hash, rows_digest
from common.rows.rules import DropRule, RowRules, join_dropped

STEP_BYTES = 32 * 1024**2
"""Decoded rows that are merged at a time."""
DIGEST_MODULUS = 1 << 64
_COUNTS = fields(RowCounts)


@dataclass(slots=True)
class Tally:
    """What has become of the rows so far."""

    counts: RowCounts = field(default_factory=RowCounts)
    dropped: DroppedRows | None = None
    digest: int = 0
    """Sum of the row hashes of what should come out; append-only tables only."""

    def add(self, result: MergeResult) -> None:
        """Count one step, whose input rows were not counted before."""
        self.counts = sum_counts(self.counts, result.counts)
        self.dropped = join_dropped((self.dropped, result.dropped))

    def deleted(self, rows: int) -> None:
        """Count rows that a transform has left out; nothing else counts them."""
        gone = RowCounts(rows_in=rows, transform_dropped=rows)
        self.counts = sum_counts(self.counts, gone)


def sum_counts(one: RowCounts, other: RowCounts) -> RowCounts:
    """Return both counts together."""
    summed = {each.name: getattr(one, each.name) + getattr(other, each.name) for each in _COUNTS}
    return RowCounts(**summed)


def merge_sorted(
    tables: Iterable[pa.Table], rules: RowRules, now_s: float, drop: DropRule, tally: Tally
) -> Iterator[pa.Table]:
    """Yield the rows that stay, by key; the input is in the order of keys.

    Rows of one key may spread over any number of tables. What is known of the last key
    is kept back as its best row so far, which merging allows in any order.

    Args:
        tables: Rows in the rules' schema, in the order of encoded keys.
        rules: Of the table.
        now_s: The job's `now`.
        drop: Which dead rows may go.
        tally: Counts what became of the rows.

    Raises:
        VerificationError: The input is not in order.
    """
    kept_back: pa.Table | None = None
    for table in _steps(tables):
        whole = table if kept_back is None else pa.concat_tables([kept_back, table])
        last = _last_key_begins(whole, rules)
        done = merge_tables([whole.slice(0, last)], rules, now_s, drop)
        best = merge_tables([whole.slice(last)], rules, now_s)
        tally.add(done)
        # Not settled yet, but what it beat is; it will be counted in again.
        tally.counts = sum_counts(tally.counts, _only_superseded(best))
        kept_back = best.table
        yield done.table
    if kept_back is not None:
        done = merge_tables([kept_back], rules, now_s, drop)
        tally.add(done)
        yield done.table


def _only_superseded(best: MergeResult) -> RowCounts:
    superseded = best.counts.superseded
    return RowCounts(rows_in=superseded, superseded=superseded)


def filter_bag(
    read: pa.Table, fitting: pa.Table, rules: RowRules, now_s: float, tally: Tally
) -> pa.Table:
    """Return the rows of an append-only table that have not expired.

    Args:
        read: Rows as they were read. Hashed like this: what happens to them afterwards
            is what is to be verified.
        fitting: The same rows in the rules' schema.
        rules: Of a table without a key.
        now_s: The job's `now`.
        tally: Counts and hashes what should come out.
    """
    _, expired = dead_rows(fitting, rules, now_s)
    gone = int(expired.sum())
    kept = pa.array(~expired)
    counts = RowCounts(rows_in=read.num_rows, rows_out=read.num_rows - gone, expired_dropped=gone)
    tally.counts = sum_counts(tally.counts, counts)
    tally.digest += digest_of(read.filter(kept) if gone else read)
    tally.digest %= DIGEST_MODULUS
    return fitting.filter(kept) if gone else fitting


def digest_of(table: pa.Table) -> int:
    """Return the sum of the row hashes of a table, modulo 2^64."""
    return rows_digest(row_hash(table)) if table.num_rows else 0


def _steps(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the tables in steps of some size, none of them empty."""
    held: list[pa.Table] = []
    size = 0
    for table in tables:
        if table.num_rows:
            held.append(table)
            size += table.nbytes
        if size >= STEP_BYTES:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)


def _last_key_begins(table: pa.Table, rules: RowRules) -> int:
    """Return the number of the first row of the last key."""
    keys = encode_keys(table, rules.key, rules.key_types)
    if not keys_ascend(keys):
        message = "rows did not arrive in the order of their keys"
        raise VerificationError(message)
    before = pc.less(keys, keys[-1])
    return int(np.count_nonzero(before.to_numpy(zero_copy_only=False)))


def keys_ascend(keys: pa.LargeBinaryArray, *, strictly: bool = False) -> bool:
    """Return whether encoded keys ascend; strictly: without a key twice."""
    if len(keys) < 2:
        return True
    compare = pc.less if strictly else pc.less_equal
    return bool(pc.all(compare(keys[:-1], keys[1:])).as_py())
