"""Single rows of a row group, however large it is."""

from collections.abc import Sequence

import pyarrow as pa
from pyarrow import parquet as pq

_BATCH_ROWS = 1 << 13


def rows_at(
    parquet: pq.ParquetFile, group: int, names: Sequence[str], places: Sequence[int]
) -> pa.Table:
    """Return some rows of a row group, of which few are decoded at a time.

    Args:
        parquet: The open file.
        group: The row group's number.
        names: Columns of the file.
        places: The rows' numbers in the row group, ascending.
    """
    schema = pa.schema([parquet.schema_arrow.field(name) for name in names])
    found, before, at = [schema.empty_table()], 0, 0
    batches = parquet.iter_batches(
        _BATCH_ROWS, row_groups=[group], columns=list(names), use_threads=False
    )
    for batch in batches:
        end = at
        while end < len(places) and places[end] < before + batch.num_rows:
            end += 1
        if end > at:
            here = [place - before for place in places[at:end]]
            picked = batch.select(list(names)).take(pa.array(here, pa.int64()))
            found.append(pa.Table.from_batches([picked]))
        before, at = before + batch.num_rows, end
        if at == len(places):
            break
    return pa.concat_tables(found)
