"""Which partition a file belongs to, by its own rows: the path of an output does not tell."""

from dataclasses import dataclass
from urllib.parse import quote

import pyarrow.parquet as pq

from common.errors import RequestError
from common.model.key_text import value_to_json
from common.model.key_values import plain_value
from common.model.keys import encode_key, key_type_of
from common.model.table import Table
from common.parquet.inspect import opened
from common.parquet.location import Location

NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class Partition:
    """One combination of values: the tablet's end, and the text that names it."""

    end: bytes
    text: str


def partition_of_file(location: Location, table: Table, path: str) -> Partition:
    """Return the partition that the first row of a file belongs to.

    Raises:
        RequestError: The file has no row, lacks a partition column, or cannot be read.
    """
    columns = {column.name: column.type for column in table.schema}
    with opened(location, path) as file:
        values = _first_row(file, table, path)
    types = [key_type_of(columns[name]) for name in table.partition_by]
    plain = [plain_value(value, kind) for value, kind in zip(values, types, strict=True)]
    texts = []
    for name, value, kind in zip(table.partition_by, plain, types, strict=True):
        shown = NULL if value is None else quote(_text(value_to_json(value, kind)), safe=" ")
        texts.append(f"{name}={shown}")
    return Partition(encode_key(plain, types), "/".join(texts))


def _first_row(file: pq.ParquetFile, table: Table, path: str) -> list[object]:
    names = list(table.partition_by)
    if missing := sorted(set(names) - {*file.schema_arrow.names}):
        raise RequestError(f"file {path} lacks the partition column {missing[0]}")
    batch = next(file.iter_batches(1, columns=names), None)
    if batch is None or not batch.num_rows:
        raise RequestError(f"file {path} has no row, so it belongs to no partition")
    return [batch.column(name)[0].as_py() for name in names]


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
