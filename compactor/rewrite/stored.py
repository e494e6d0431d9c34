"""How many bytes of a file hold what is read of it, told before it is read."""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

Pay = Callable[[int], None]


def leaves_of(metadata: pq.FileMetaData, columns: Sequence[str] | None) -> list[int]:
    """Return the numbers of the leaf columns that hold some columns of a file.

    Args:
        metadata: The file's footer.
        columns: Names of those that are read; None: all.
    """
    leaves = range(metadata.num_columns)
    if columns is None:
        return list(leaves)
    paths = [metadata.schema.column(leaf).path for leaf in leaves]
    # As Arrow reads them: a name also stands for all that begins with it and a dot.
    named = frozenset(columns)
    return [leaf for leaf in leaves if {paths[leaf], paths[leaf].split(".", 1)[0]} & named]


def stored_bytes(metadata: pq.FileMetaData, group: int, leaves: Sequence[int]) -> int:
    """Return how many bytes of a file hold leaf columns of a row group, after the codec."""
    found = metadata.row_group(group)
    return sum(found.column(leaf).total_compressed_size for leaf in leaves)


def paid_batches(
    parquet: pq.ParquetFile, rows_max: int, columns: Sequence[str] | None, pay: Pay
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file; each row group is paid for before its first row is read.

    A batch may reach into the next row group by less than `rows_max` rows.
    """
    metadata, paid_rows, seen_rows, group = parquet.metadata, 0, 0, 0
    leaves = leaves_of(metadata, columns)
    batches = parquet.iter_batches(batch_size=rows_max, columns=columns)
    while True:
        while paid_rows <= seen_rows and group < metadata.num_row_groups:
            pay(stored_bytes(metadata, group, leaves))
            paid_rows += metadata.row_group(group).num_rows
            group += 1
        batch = next(batches, None)
        if batch is None:
            return
        seen_rows += batch.num_rows
        yield batch
