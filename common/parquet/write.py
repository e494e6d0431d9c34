"""Writing Parquet files according to the table's settings."""

from collections.abc import Mapping

import pyarrow as pa
from pyarrow import parquet as pq

from common.errors import UnavailableError
from common.model.table import TableSettings
from common.parquet.file_inspection import FileFacts
from common.parquet.location import Location, size_of, storage_error
from common.rows.merge import concat_rows, sorted_rows, take_rows
from common.rows.row_facts import RowTally
from common.rows.rules import RowRules

ROW_GROUP_ROWS_MIN = 1024
ROW_GROUP_ROWS_MAX = 1 << 20
ROW_GROUP_BYTES_MIN = 2 * 1024**2
"""Largest decoded size of row groups with fewer rows than the minimum."""
TABLE_FOOTER = "neve.table"
"""Name in a footer: the id of the table that a file was written for."""
_WITHOUT_LEVEL = ("none", "snappy", "lz4")


def write_table(
    location: Location,
    path: str,
    rows: pa.Table,
    rules: RowRules,
    settings: TableSettings,
    *,
    footer: Mapping[str, str] | None = None,
) -> FileFacts:
    """Write rows to a new file, sorted by key (the winning row of a key first); all rows stay.

    Args:
        location: Location of the table.
        path: Path relative to it; the file must not exist.
        rows: Rows with any of the table's columns.
        rules: Rules of the table.
        settings: Codec and size of row groups.
        footer: Key-value metadata of the file.

    Raises:
        RequestError: The rows do not have the schema of the table.
        UnavailableError: The storage refused the file; remains of it are deleted.
    """
    rows = concat_rows([rows], rules)
    if rules.key:
        rows = take_rows(rows, sorted_rows(rows, rules).row)
    group_rows = row_group_rows(rows, settings.row_group_bytes)
    full = location.full(path)
    try:
        _write(
            location, full, rows.replace_schema_metadata(dict(footer or {})), settings, group_rows
        )
    except OSError as error:
        _remove(location, full)
        message = f"storage of {location.uri} refused {path}: {error}"
        raise storage_error(UnavailableError, message, error) from error
    tally = RowTally(rules)
    tally.see(rows, f"file {path}")
    return FileFacts(
        path=path,
        size_bytes=size_of(location, path),
        schema=rows.schema,
        rows=tally.facts(),
        key_types=rules.key_types,
        row_groups=-(-rows.num_rows // group_rows),
    )


def row_group_rows(rows: pa.Table, row_group_bytes: int) -> int:
    """Return the number of rows for a row group of about this decoded size."""
    if rows.num_rows == 0:
        return ROW_GROUP_ROWS_MIN
    size_bytes = max(1, rows.nbytes)
    fitting = row_group_bytes * rows.num_rows // size_bytes
    # Not more rows than that: long rows would make row groups that are too large for a task.
    short = ROW_GROUP_BYTES_MIN * rows.num_rows // size_bytes
    least = min(ROW_GROUP_ROWS_MIN, max(1, short))
    return int(min(max(fitting, least), ROW_GROUP_ROWS_MAX))


def _write(
    location: Location, full: str, rows: pa.Table, settings: TableSettings, group_rows: int
) -> None:
    if location.is_local:
        location.filesystem.create_dir(full.rpartition("/")[0], recursive=True)
    level = None if settings.codec.lower() in _WITHOUT_LEVEL else settings.codec_level
    with location.filesystem.open_output_stream(full) as sink:
        pq.write_table(
            rows,
            sink,
            row_group_size=group_rows,
            compression=settings.codec,
            compression_level=level,
            write_statistics=True,
            write_page_index=True,
            write_page_checksum=True,
        )


def _remove(location: Location, full: str) -> None:
    try:
        location.filesystem.delete_file(full)
    except OSError:
        return  # Nothing was written, or the listing sweep finds it.
