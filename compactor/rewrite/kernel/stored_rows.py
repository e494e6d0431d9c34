"""Rows of a stored row group, whole or in part, as Arrow reads them."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from compactor.rewrite.kernel.bounds import Group

PIECE_ROWS = 1 << 13


def rows_of(parquet: pq.ParquetFile, group: Group, names: Sequence[str]) -> pa.Table:
    """Return columns of a row group, or of a piece of one, which is never read whole."""
    if group.rows == parquet.metadata.row_group(group.number).num_rows:
        return parquet.read_row_group(group.number, names, use_threads=False)
    found, before, end = [], 0, group.skip + group.rows
    batches = parquet.iter_batches(
        PIECE_ROWS, row_groups=[group.number], columns=names, use_threads=False
    )
    for batch in batches:
        begin = max(group.skip, before)
        if begin < min(end, before + batch.num_rows):
            found.append(batch.slice(begin - before, min(end, before + batch.num_rows) - begin))
        before += batch.num_rows
        if before >= end:
            break
    return pa.Table.from_batches(found)
