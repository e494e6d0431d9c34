"""Keys of rows spread evenly over a file: where its bytes lie, for a fraction of a read."""

import pyarrow as pa
from pyarrow import parquet as pq

from common.errors import RequestError
from common.parquet.inspect import opened
from common.parquet.location import Location
from common.parquet.picking import rows_at
from common.readers.door import in_reader
from common.rows.conform import conform
from common.rows.encode import encode_keys
from common.rows.rules import RowRules
from common.rows.schema import arrow_schema

SAMPLES = 64
"""Keys per file: a cut is then right to about two percent of its bytes."""
ROW_GROUPS_MAX = 16
"""Row groups that are looked into, one at a time, and only their key columns."""


@in_reader("file {path}")
def sample_keys(location: Location, path: str, rules: RowRules) -> list[bytes]:
    """Return up to `SAMPLES` encoded keys of a keyed table's file, none if it has no row.

    Args:
        location: Of the table.
        path: Relative to it.
        rules: Of the table.

    Raises:
        RequestError: The file is missing, not Parquet or damaged.
        UnavailableError: The storage does not answer.
    """
    names = {*rules.key}
    schema = arrow_schema([column for column in rules.schema if column.name in names])
    with opened(location, path) as file:
        groups = _row_groups(file.metadata)
        if not groups:
            return []
        known = [name for name in schema.names if name in file.schema_arrow.names]
        count = max(2, SAMPLES // len(groups))
        try:
            parts = [
                rows_at(file, each, known, _spread(file.metadata.row_group(each).num_rows, count))
                for each in groups
            ]
            rows = conform(pa.concat_tables(parts), schema, f"file {path}")
        except pa.ArrowNotImplementedError as error:
            raise RequestError(f"the keys of file {path} cannot be read: {error}") from error
    return list(encode_keys(rows, rules.key, rules.key_types).to_pylist())


def _row_groups(footer: pq.FileMetaData) -> list[int]:
    """Return some row groups that have rows, the first and the last among them."""
    filled = [n for n in range(footer.num_row_groups) if footer.row_group(n).num_rows]
    if len(filled) <= ROW_GROUPS_MAX:
        return filled
    step = (len(filled) - 1) / (ROW_GROUPS_MAX - 1)
    return [filled[round(number * step)] for number in range(ROW_GROUPS_MAX)]


def _spread(rows: int, count: int) -> list[int]:
    """Return the numbers of so many of some rows in equal distances, both ends among them."""
    count = min(count, rows)
    if count < 2:
        return list(range(count))
    step = (rows - 1) / (count - 1)
    return [round(number * step) for number in range(count)]
