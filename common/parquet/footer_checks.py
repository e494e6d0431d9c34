"""What a Parquet footer says, and whether it can be true.

Names and levels of codecs; whether a footer agrees with itself, since some that do not end the
process that looks further; where column chunks lie, and whether every reader finds its rows there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow.parquet as pq

# ------------------------------------------------------------------------------------------- Codecs


CODECS = ("zstd", "snappy", "lz4", "gzip", "brotli", "none")
LEVELS = {"zstd": (1, 22), "gzip": (1, 9), "brotli": (0, 11)}
_ALIASES = {"uncompressed": "none", "gz": "gzip"}


def codec_name(written: str) -> str | None:
    """Return a codec by the name that we have for it, None if there is no such codec."""
    name = _ALIASES.get(written.lower(), written.lower())
    return name if name in CODECS else None


def has_level(codec: str, level: int) -> bool:
    """Return whether a codec knows a level; one without levels takes any."""
    low, high = LEVELS.get(codec, (level, level))
    return low <= level <= high


# ----------------------------------------------------------------- Does a footer agree with itself?


def footer_fault(metadata: pq.FileMetaData) -> str | None:
    """Return what is wrong with a footer, or None.

    Arrow ends the whole process when it is asked for statistics of a column chunk that is
    of another type than its column.
    """
    physical = [metadata.schema.column(n).physical_type for n in range(metadata.num_columns)]
    rows = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        rows += group.num_rows
        if group.num_columns != len(physical) or group.num_rows < 0 or group.total_byte_size < 0:
            return f"row group {number} has sizes that cannot be"
        for at, wanted in enumerate(physical):
            if (found := group.column(at).physical_type) != wanted:
                name = metadata.schema.column(at).path
                return f"column {name} is {wanted}, but {found} in row group {number}"
    if rows != metadata.num_rows:
        return f"row groups have {rows} rows, the file {metadata.num_rows}"
    return None


# ---- Where column chunks lie
#
# A reader that splits a file gives each row group to exactly one split, by a byte that it works
# out from the footer: the first page of the first column (Trino, Hive), or the middle between
# there and the row group's end (Spark and everything else on parquet-mr; Impala). These bytes are
# in one split each only if column chunks follow each other in the order of the schema. Where they
# do not, such a reader misses row groups, and says nothing. `docs/reference/files.md` has the
# rules. Pure: footers in, a sentence out.


FOOTER_FRAME_BYTES = 8
"""Behind a footer: its length, and the letters PAR1."""
DATA_START = 4
"""Where the first page of a file may be: behind the letters PAR1."""


@dataclass(frozen=True, slots=True)
class RowGroupPlaces:
    """Where a row group lies, as its footer has it."""

    rows: int
    chunks: tuple[tuple[int, int], ...]
    """First byte and size of each column chunk, in the footer's order."""
    file_offset: int | None = None
    """Where the footer says that the row group begins; None: it does not, or was not asked."""
    total_compressed_size: int | None = None
    """How many bytes the footer says that its pages have; None: likewise."""
    ordinal: int | None = None
    """Which row group of the file the footer says that it is; None: likewise."""


def chunk_fault(metadata: pq.FileMetaData, size_bytes: int) -> str | None:
    """Return why some readers miss rows of a file, or None.

    Arrow does not tell what a footer says of whole row groups: that is not looked at.

    Args:
        metadata: The footer as Arrow has it.
        size_bytes: Of the file.
    """
    numbers = range(metadata.num_row_groups)
    data_end = size_bytes - metadata.serialized_size - FOOTER_FRAME_BYTES
    return _order_of_columns(metadata) or layout_fault(
        [_places(metadata.row_group(number)) for number in numbers], data_end
    )


def layout_fault(groups: Sequence[RowGroupPlaces], data_end: int) -> str | None:
    """Return why some readers miss rows of a file with such row groups, or None.

    Row groups without rows are passed by: their places may point to nothing.

    Args:
        groups: In the footer's order.
        data_end: The first byte behind pages, indexes and Bloom filters: where the footer begins.
    """
    end = DATA_START
    for number, group in enumerate(groups):
        if not group.rows or not group.chunks:
            continue
        for column, (start, size) in enumerate(group.chunks):
            if start < end:
                return (
                    f"column {column} of row group {number} begins at byte {start}, before byte"
                    f" {end}, where what precedes it in the footer ends"
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
    """Return what a footer says wrongly of a whole row group, or None."""
    start, size = group.chunks[0][0], sum(size for _, size in group.chunks)
    if group.file_offset not in (None, start):
        said = group.file_offset
        return f"row group {number} is said to begin at byte {said}, but begins at byte {start}"
    if group.total_compressed_size not in (None, size):
        said = group.total_compressed_size
        return f"row group {number} is said to have {said} bytes, but has {size}"
    if group.ordinal not in (None, number):
        return f"row group {number} is said to be number {group.ordinal}"
    return None


def _order_of_columns(metadata: pq.FileMetaData) -> str | None:
    """Return which column the footer lists at another's place, or None."""
    names = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for at, wanted in enumerate(names):
            if (found := group.column(at).path_in_schema) != wanted:
                return f"row group {number} lists column {found} at the place of {wanted}"
    return None


def _places(group: pq.RowGroupMetaData) -> RowGroupPlaces:
    return RowGroupPlaces(
        rows=group.num_rows,
        chunks=tuple(_place(group.column(at)) for at in range(group.num_columns)),
    )


def _place(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return where a column chunk begins, and its size.

    Some writers have an offset of 0 for a dictionary that is not there.
    """
    start = chunk.data_page_offset
    if dictionary := chunk.dictionary_page_offset:
        start = min(start, dictionary)
    return start, chunk.total_compressed_size
