"""The contents of a Parquet footer, and their consistency.

Names and levels of codecs; whether a footer is consistent, since some inconsistent ones crash the
process that reads on; and whether every reader finds the rows of its column chunks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow.parquet as pq

# ------------------------------------------------------------------------------------------- Codecs


CODECS = ("zstd", "snappy", "lz4", "gzip", "brotli", "none")
LEVELS = {"zstd": (1, 22), "gzip": (1, 9), "brotli": (0, 11)}
_ALIASES = {"uncompressed": "none", "gz": "gzip"}


def codec_name(written: str) -> str | None:
    """Return Névé's name of a codec, or None if it is unknown."""
    name = _ALIASES.get(written.lower(), written.lower())
    return name if name in CODECS else None


def has_level(codec: str, level: int) -> bool:
    """Return whether a codec supports a level; one without levels accepts any."""
    low, high = LEVELS.get(codec, (level, level))
    return low <= level <= high


# ------------------------------------------------------------------------ Consistency of a footer


def footer_fault(metadata: pq.FileMetaData) -> str | None:
    """Return what is wrong with a footer, or None.

    Arrow crashes the process when it is asked for statistics of a column chunk whose type
    differs from its column's.
    """
    physical = [metadata.schema.column(n).physical_type for n in range(metadata.num_columns)]
    rows = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        rows += group.num_rows
        if group.num_columns != len(physical) or group.num_rows < 0 or group.total_byte_size < 0:
            return f"row group {number} has impossible sizes"
        for at, wanted in enumerate(physical):
            if (chunk_type := group.column(at).physical_type) != wanted:
                name = metadata.schema.column(at).path
                return f"column {name} is {wanted}, but {chunk_type} in row group {number}"
    if rows != metadata.num_rows:
        return f"row groups have {rows} rows, the file {metadata.num_rows}"
    return None


# ---- Positions of column chunks
#
# A reader that splits a file assigns each row group to exactly one split, by a byte position from
# the footer: the first page of the first column (Trino, Hive), or the middle between that and the
# row group's end (Spark and everything else on parquet-mr; Impala). These positions are in one
# split each only if column chunks follow each other in the order of the schema. Otherwise such a
# reader silently misses row groups. `docs/reference/files.md` has the rules. Pure: footers in, a
# sentence out.


FOOTER_FRAME_BYTES = 8
"""Bytes after a footer: its length, and the letters PAR1."""
DATA_START = 4
"""Position of the first page of a file: after the letters PAR1."""


@dataclass(frozen=True, slots=True)
class RowGroupPlaces:
    """Positions of a row group according to its footer."""

    rows: int
    chunks: tuple[tuple[int, int], ...]
    """First byte and size of each column chunk, in the footer's order."""
    file_offset: int | None = None
    """Start of the row group according to the footer; None: missing, or not read."""
    total_compressed_size: int | None = None
    """Bytes of its pages according to the footer; None: missing, or not read."""
    ordinal: int | None = None
    """Index of the row group according to the footer; None: missing, or not read."""


def chunk_fault(metadata: pq.FileMetaData, size_bytes: int) -> str | None:
    """Return why some readers miss rows of a file, or None.

    Arrow does not expose the footer's fields of whole row groups, so those are not checked.

    Args:
        metadata: The footer from Arrow.
        size_bytes: Size of the file.
    """
    numbers = range(metadata.num_row_groups)
    data_end = size_bytes - metadata.serialized_size - FOOTER_FRAME_BYTES
    return _order_of_columns(metadata) or layout_fault(
        [_places(metadata.row_group(number)) for number in numbers], data_end
    )


def layout_fault(groups: Sequence[RowGroupPlaces], data_end: int) -> str | None:
    """Return why some readers miss rows of a file with such row groups, or None.

    Row groups without rows are skipped: their positions may be invalid.

    Args:
        groups: In the footer's order.
        data_end: First byte after pages, indexes and Bloom filters: the start of the footer.
    """
    end = DATA_START
    for number, group in enumerate(groups):
        if not group.rows or not group.chunks:
            continue
        for column, (start, size) in enumerate(group.chunks):
            if start < end:
                return (
                    f"column {column} of row group {number} begins at byte {start}, before byte"
                    f" {end}, the end of the previous one in the footer"
                )
            end = start + size
            if size < 0 or end > data_end:
                return (
                    f"column {column} of row group {number} ends at byte {end}, but pages end at"
                    f" byte {data_end}"
                )
        if fault := _fault_of_words(number, group):
            return fault
    return None


def _fault_of_words(number: int, group: RowGroupPlaces) -> str | None:
    """Return the contradiction in a footer's fields of a row group, or None."""
    start, size = group.chunks[0][0], sum(size for _, size in group.chunks)
    if group.file_offset not in (None, start):
        stated = group.file_offset
        return f"row group {number} claims to begin at byte {stated}, but begins at byte {start}"
    if group.total_compressed_size not in (None, size):
        stated = group.total_compressed_size
        return f"row group {number} claims to have {stated} bytes, but has {size}"
    if group.ordinal not in (None, number):
        return f"row group {number} claims to be number {group.ordinal}"
    return None


def _order_of_columns(metadata: pq.FileMetaData) -> str | None:
    """Return which column the footer lists in the wrong order, or None."""
    names = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for at, wanted in enumerate(names):
            if (chunk_path := group.column(at).path_in_schema) != wanted:
                return f"row group {number} lists column {chunk_path} in the position of {wanted}"
    return None


def _places(group: pq.RowGroupMetaData) -> RowGroupPlaces:
    return RowGroupPlaces(
        rows=group.num_rows,
        chunks=tuple(_place(group.column(at)) for at in range(group.num_columns)),
    )


def _place(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return the start and the size of a column chunk.

    Some writers store an offset of 0 for a missing dictionary.
    """
    start = chunk.data_page_offset
    if dictionary := chunk.dictionary_page_offset:
        start = min(start, dictionary)
    return start, chunk.total_compressed_size
