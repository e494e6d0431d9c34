"""Writes tables as the row groups of one Parquet file: of about the wanted size each.

Dictionaries are written only for columns in which values come again: for others they
cost up to half of the time, and make files larger. A sample of the first rows decides.
Other whole numbers and times are packed by their differences, which is quicker than
plain values and a codec, and smaller.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types as is_type

from common.parquet.write import row_group_rows
from compactor.rewrite.columns_beside import BESIDE_BYTES_MIN, BESIDE_SHARE_MAX, ColumnsBeside
from compactor.rewrite.declared import bloom_options, sorting_columns
from compactor.rewrite.output_settings import OutputSettings
from compactor.rewrite.waiting import Waiting

LEVELLED_CODECS = frozenset({"zstd", "gzip", "brotli"})
SAMPLE_ROWS = 4096
DISTINCT_MAX = 0.5
"""Share of different values in a sample up to which a dictionary pays."""
SPARSE_STRIDE, SPARSE_DISTINCT_MAX = 8, 0.85
"""Of one row in eight, so many may be different: the others will be like these. That is for
types that can only be written plainly otherwise."""
_PACKED = (is_type.is_integer, is_type.is_date32, is_type.is_time, is_type.is_timestamp)
_TEXTS = (is_type.is_string, is_type.is_binary)
_SAMPLED = (*_PACKED, *_TEXTS, is_type.is_floating, is_type.is_decimal128)


class RowGroups:
    """The rows of one file, in the order in which they come."""

    def __init__(
        self, sink: Any, schema: pa.Schema, writing: OutputSettings, key: Sequence[str] = ()
    ) -> None:
        """Write nothing yet.

        Args:
            sink: An open binary file; whoever opened it closes it.
            schema: Of all rows.
            writing: Codec and size of row groups.
            key: What rows ascend by; empty: they are in no order.
        """
        self.rows = 0
        self._sink = sink
        self._schema = schema
        self._writing = writing
        self._key = key
        self._writer: pq.ParquetWriter | ColumnsBeside | None = None
        self._waiting = Waiting()

    def write(self, table: pa.Table) -> None:
        """Take rows; they are written when a row group is full."""
        self.rows += table.num_rows
        self._waiting.add(table)
        if self._waiting.size_bytes >= self._writing.row_group_bytes:
            self._write_groups()

    def close(self, footer: Mapping[str, str]) -> None:
        """Write what is held and the footer.

        Args:
            footer: Key-value metadata.
        """
        self._write_groups(everything=True)
        writer = self._opened(self._schema.empty_table(), 0)
        writer.add_key_value_metadata(dict(footer))
        writer.close()

    def abandon(self) -> None:
        """Let go of the writer; what it has written is of no use."""
        if self._writer is not None:
            with suppress(OSError, ValueError, pa.ArrowException):
                self._writer.close()

    def _write_groups(self, *, everything: bool = False) -> None:
        """Write full row groups; what is left over waits for more rows, or goes last."""
        if not self._waiting:
            return
        wanted = partial(row_group_rows, row_group_bytes=self._writing.row_group_bytes)
        rows, count, group_rows = self._waiting.take(wanted, everything=everything)
        if count:
            writer = self._opened(rows, group_rows)
            writer.write_table(rows.slice(0, count), row_group_size=group_rows)

    def _opened(self, rows: pa.Table, group_rows: int) -> "pq.ParquetWriter | ColumnsBeside":
        """Return the writer, opened for rows like these."""
        if self._writer is None:
            group_rows = min(rows.num_rows, group_rows)
            options = partial(_options, self._writing, distinct_columns(rows), group_rows)
            order = sorting_columns(self._schema, self._key)
            if self._is_for_threads(rows):
                self._writer = ColumnsBeside(self._sink, self._schema, order, options)
            else:
                self._writer = pq.ParquetWriter(
                    self._sink, self._schema, sorting_columns=order, **options(self._schema)
                )
        return self._writer

    def _is_for_threads(self, rows: pa.Table) -> bool:
        """Return whether columns are encoded beside each other: there are bytes in several."""
        if min(rows.nbytes, self._writing.row_group_bytes) < BESIDE_BYTES_MIN:
            return False
        largest = max(column.nbytes for column in rows.columns)
        return bool(largest <= BESIDE_SHARE_MAX * rows.nbytes)


def _options(
    writing: OutputSettings, plain: Sequence[str], group_rows: int, schema: pa.Schema
) -> dict[str, Any]:
    """Return what Arrow's writer is told.

    Args:
        writing: The settings.
        plain: Columns without dictionaries.
        group_rows: Rows of a row group.
        schema: The columns that it will write.
    """
    codec = writing.codec.lower()
    blooms = [name for name in writing.bloom_columns if name in schema.names]
    return {
        "compression": "none" if codec == "uncompressed" else codec,
        "compression_level": writing.codec_level if codec in LEVELLED_CODECS else None,
        "use_dictionary": _leaves(schema, plain),
        "column_encoding": _encodings(schema, plain),
        "write_statistics": True,
        "write_page_index": True,
        "write_page_checksum": True,
        "bloom_filter_options": bloom_options(blooms, group_rows),
    }


def distinct_columns(rows: pa.Table) -> list[str]:
    """Return the columns in which values hardly come again.

    Neighbours in the order of keys are alike, so the sample is of all over the rows.
    """
    if rows.num_rows == 0:
        return []
    stride = -(-rows.num_rows // SAMPLE_ROWS)
    places = pa.array(range(0, rows.num_rows, stride))
    fields = [field for field in rows.schema if _is_any(field.type, _SAMPLED)]
    sample = pl.from_arrow(rows.select([field.name for field in fields]).take(places))
    assert isinstance(sample, pl.DataFrame)
    found = []
    for field in fields:
        sparse = stride >= SPARSE_STRIDE and not _is_any(field.type, _PACKED)
        limit = SPARSE_DISTINCT_MAX if sparse else DISTINCT_MAX
        if sample.get_column(field.name).n_unique() > limit * sample.height:
            found.append(field.name)
    return found


def _encodings(schema: pa.Schema, plain: Sequence[str]) -> dict[str, str]:
    """Return how columns without dictionaries are encoded, where not plainly."""
    found = {}
    for field in schema:
        if field.name not in plain:
            continue
        if _is_any(field.type, _TEXTS):
            found[field.name] = "DELTA_LENGTH_BYTE_ARRAY"
        elif _is_any(field.type, _PACKED):
            found[field.name] = "DELTA_BINARY_PACKED"
    return found


def _leaves(schema: pa.Schema, plain: Sequence[str]) -> list[str]:
    """Return the paths of the leaf columns that get dictionaries."""
    kept = pa.schema([field for field in schema if field.name not in plain])
    if not any(is_type.is_nested(field.type) for field in kept):
        return list(kept.names)
    # Only the writer knows how it names what is nested.
    written = pa.BufferOutputStream()
    pq.write_table(kept.empty_table(), written)
    leaves = pq.read_metadata(pa.BufferReader(written.getvalue())).schema
    return [leaves.column(at).path for at in range(len(leaves))]


def _is_any(arrow: pa.DataType, kinds: Sequence[Callable[[pa.DataType], bool]]) -> bool:
    return any(belongs(arrow) for belongs in kinds)
