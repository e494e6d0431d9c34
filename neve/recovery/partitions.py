"""Which partition a file belongs to: by its folders, else by its own rows."""

import pyarrow.parquet as pq

from common.errors import RequestError
from common.model.table import Table
from common.parquet.file_inspection import open_table_file
from common.parquet.location import Location
from common.readers.pool import in_reader
from common.rows.partitions import Partition, folders_of, partition_of, partition_of_path


@in_reader("file {path}")
def partition_of_file(location: Location, table: Table, path: str) -> Partition:
    """Return the partition that a file's folders name, or that its first row belongs to.

    Raises:
        RequestError: Neither tells, or the file cannot be read.
    """
    if folders_of(path).keys() >= set(table.partition_by):
        return partition_of_path(table, path)
    with open_table_file(location, path) as file:
        return partition_of(table, _first_row(file, table, path))


def _first_row(file: pq.ParquetFile, table: Table, path: str) -> list[object]:
    names = list(table.partition_by)
    if missing := sorted(set(names) - {*file.schema_arrow.names}):
        raise RequestError(f"file {path} lacks the partition column {missing[0]}")
    batch = next(file.iter_batches(1, columns=names), None)
    if batch is None or not batch.num_rows:
        raise RequestError(f"file {path} has no row, so it belongs to no partition")
    return [batch.column(name)[0].as_py() for name in names]
