"""How many bytes of a file hold what is read of it, told before it is read."""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

Pay = Callable[[int], None]


def stored_bytes(metadata: pq.FileMetaData, group: int, columns: Sequence[str] | None) -> int:
    """Return how many bytes of a file hold a row group, after the codec.

    Args:
        metadata: The file's footer.
        group: Number of the row group.
        columns: Names of those that are read; None: all.
    """
    found = metadata.row_group(group)
    return sum(found.column(leaf).total_compressed_size for leaf in _leaves(metadata, columns))


def _leaves(metadata: pq.FileMetaData, columns: Sequence[str] | None) -> list[int]:
    leaves = range(metadata.num_columns)
    if columns is None:
        return list(leaves)
    paths = [metadata.schema.column(leaf).path for leaf in leaves]
    roots = frozenset(columns)
    return [
        leaf
        for leaf, path in enumerate(paths)
        if path in roots or any(path.startswith(f"{name}.") for name in roots)
    ]


def paid_batches(
    parquet: pq.ParquetFile, rows_max: int, columns: Sequence[str] | None, pay: Pay
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file; each row group is paid for before its first row is read.

    A batch may reach into the next row group by less than `rows_max` rows.
    """
    metadata, paid_rows, seen_rows, group = parquet.metadata, 0, 0, 0
    batches = parquet.iter_batches(batch_size=rows_max, columns=columns)
    while True:
        while paid_rows <= seen_rows and group < metadata.num_row_groups:
            pay(stored_bytes(metadata, group, columns))
            paid_rows += metadata.row_group(group).num_rows
            group += 1
        batch = next(batches, None)
        if batch is None:
            return
        seen_rows += batch.num_rows
        yield batch
