"""Opens Parquet files so that reading them takes as little memory as their rows."""

from collections.abc import Collection
from typing import Any

from pyarrow import parquet as pq

LARGE_BYTES = 192 * 1024**2
"""Of a row group before its codec. Of smaller ones, which most writers make, each column is read
by one request."""
BUFFERS_BYTES = 32 * 1024**2
"""Of all columns of a larger one together, about."""
BUFFER_BYTES_MIN, BUFFER_BYTES_MAX = 64 * 1024, 4 * 1024**2


def parquet_of(
    source: Any, metadata: pq.FileMetaData | None = None, *, packed: Collection[str] = ()
) -> pq.ParquetFile:
    """Return an open file as Parquet, whose pages' checksums are looked at.

    Args:
        source: A file that Arrow has opened; whoever did closes it.
        metadata: Its footer, if that is known: single row groups will be read whole, each by as
            few requests as can be. Otherwise rows are read in the file's order, and of a large
            row group no more than some pages per column are in memory.
        packed: Columns of texts that come with their dictionaries, each text once; then rows are
            read in the file's order, also if its footer is known.

    Raises:
        OSError: It cannot be read.
        ArrowException: It is no Parquet file.
    """
    # A flipped bit would be another value, and written on.
    options = {"page_checksum_verification": True, "read_dictionary": [*packed] or None}
    if metadata is not None and not packed:
        return pq.ParquetFile(source, metadata=metadata, pre_buffer=True, **options)
    file = pq.ParquetFile(source, metadata=metadata, pre_buffer=False, **options)
    footer = file.metadata
    if source.size() <= BUFFER_BYTES_MAX or not _is_large(footer):
        return file
    buffer_bytes = BUFFERS_BYTES // max(1, footer.num_columns)
    buffer_bytes = min(max(buffer_bytes, BUFFER_BYTES_MIN), BUFFER_BYTES_MAX)
    return pq.ParquetFile(
        source, metadata=footer, pre_buffer=False, buffer_size=buffer_bytes, **options
    )


def _is_large(footer: pq.FileMetaData) -> bool:
    sizes = (footer.row_group(at).total_byte_size for at in range(footer.num_row_groups))
    return any(size > LARGE_BYTES for size in sizes)
