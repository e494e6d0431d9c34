"""The rows of a lake table in its sort order, within the memory of a task.

    sort    the rows of some row groups, which fit into memory → a run in the attempt's folder
    merge   the runs of an output, batch by batch → the output

Where a row lies in an output is unknown afterwards: rows that are deleted while the job runs drop
their output. Verification reads outputs again and compares their rows with those of the inputs.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from common.lake.source import SortKey
from common.rows.merge import DIGEST_MODULUS, digest_of
from compactor.rewrite.file_io import table_location
from compactor.rewrite.outputs import OpenOutput, abandoned_on_error
from compactor.rewrite.plan.rewrite_plan import RewritePlan

SORTED_SHARE = 3
"""Sorting takes the memory of this many copies of the rows."""


def sorted_rows(
    tables: Iterable[pa.Table], schema: pa.Schema, order: Sequence[SortKey]
) -> Iterator[pa.Table]:
    """Yield rows in an order, as one table; without an order, the tables as they come."""
    if not order:
        yield from tables
        return
    rows = pa.concat_tables([schema.empty_table(), *tables])
    yield rows.take(_indices(rows, order))


def merge_output(
    plan: RewritePlan, names: Sequence[str], path: str, order: Sequence[SortKey]
) -> tuple[int, int]:
    """Merge runs to an output; return its number of rows, and the sum of their hashes.

    Raises:
        RewriteError: The output cannot be written.
    """
    rows_max = max(1, plan.read_rows_max // max(1, len(names)))
    files = [pq.ParquetFile(Path(plan.folder, name)) for name in names]
    digest = 0
    with abandoned_on_error(OpenOutput(plan, table_location(plan.location), 0, path)) as output:
        for rows in merged([_batches(file, rows_max) for file in files], order):
            digest = (digest + digest_of(rows)) % DIGEST_MODULUS
            output.write(rows)
        output.close(None, None)
    for file in files:
        file.close()
    return output.rows, digest


def _batches(file: pq.ParquetFile, rows_max: int) -> Iterator[pa.Table]:
    return (pa.Table.from_batches([batch]) for batch in file.iter_batches(rows_max))


def merged(runs: Sequence[Iterator[pa.Table]], order: Sequence[SortKey]) -> Iterator[pa.Table]:
    """Yield the rows of sorted runs in order; equal ones in the order of the runs.

    Rows are final up to the least last row of the batches at hand, since a run goes on above its
    own last row.
    """
    held: list[pa.Table | None] = [None] * len(runs)
    ended = [False] * len(runs)
    while True:
        for at, run in enumerate(runs):
            while not ended[at] and ((table := held[at]) is None or not table.num_rows):
                held[at] = next(run, None)
                ended[at] = held[at] is None
        filled = [(at, table) for at, table in enumerate(held) if table is not None]
        if not filled:
            return
        rows = pa.concat_tables([table for _, table in filled])
        indices = _indices(rows, order).to_numpy()
        ranks = np.empty(len(indices), np.int64)
        ranks[indices] = np.arange(len(indices))
        ends = np.cumsum([table.num_rows for _, table in filled])
        final = indices[: int(ranks[ends - 1].min()) + 1]
        yield rows.take(pa.array(final))
        taken = np.bincount(np.searchsorted(ends, final, side="right"), minlength=len(filled))
        for (at, table), count in zip(filled, taken.tolist(), strict=True):
            held[at] = table.slice(count)


def _indices(rows: pa.Table, order: Sequence[SortKey]) -> pa.Array:
    keys = [
        (
            key.column,
            "descending" if key.is_descending else "ascending",
            "at_start" if key.has_nulls_first else "at_end",
        )
        for key in order
    ]
    return pc.sort_indices(rows, sort_keys=keys)
