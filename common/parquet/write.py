"""Writing Parquet files according to the table's settings."""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyarrow import parquet as pq

from common.errors import RequestError, UnavailableError
from common.model.table import TableSettings
from common.parquet.file_inspection import FileFacts, open_table_file
from common.parquet.location import Location, size_of, storage_error
from common.parquet.row_batches import OpenFile, row_batches
from common.rows.conform import storage_values
from common.rows.merge import concat_rows, sorted_rows, take_rows
from common.rows.row_facts import RowTally
from common.rows.rules import RowRules
from common.rows.schema import in_microseconds

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
    rows = sorted_by_key(rows, rules)
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


def sorted_by_key(rows: pa.Table, rules: RowRules) -> pa.Table:
    """Return rows in the table's columns, sorted by key, the winning row of a key first."""
    rows = concat_rows([rows], rules)
    return take_rows(rows, sorted_rows(rows, rules).row) if rules.key else rows


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
    with location.filesystem.open_output_stream(full) as sink:
        pq.write_table(rows, sink, row_group_size=group_rows, **_writer_options(settings))


def _writer_options(settings: TableSettings) -> dict[str, Any]:
    level = None if settings.codec.lower() in _WITHOUT_LEVEL else settings.codec_level
    return {
        "compression": settings.codec,
        "compression_level": level,
        "write_statistics": True,
        "write_page_index": True,
        "write_page_checksum": True,
    }


def _remove(location: Location, full: str) -> None:
    try:
        location.filesystem.delete_file(full)
    except OSError:
        return  # Nothing was written, or the listing sweep finds it.


# --------------------------------------------------------------------------- Copies in microseconds


def copy_in_microseconds(
    location: Location,
    paths: tuple[str, str],
    settings: TableSettings,
    *,
    footer: Mapping[str, str],
    truncate: bool,
) -> None:
    """Copy a file; its moments in nanoseconds become microseconds. Memory: one row group.

    Args:
        location: Of the table.
        paths: The file and its copy, relative to the location.
        settings: Codec and size of row groups.
        footer: Written into the copy's key-value metadata.
        truncate: Whether digits below a microsecond are cut off, towards 1970.

    Raises:
        RequestError: The file is missing or damaged, or a moment would lose digits.
        UnavailableError: The storage does not answer, or did not take the copy.
    """
    source, target = paths
    full, groups = location.full(target), _row_groups(location, source, settings.row_group_bytes)
    schema = in_microseconds(next(groups).schema).with_metadata(dict(footer))
    try:
        if location.is_local:
            location.filesystem.create_dir(full.rpartition("/")[0], recursive=True)
        with (
            location.filesystem.open_output_stream(full) as sink,
            pq.ParquetWriter(sink, schema, **_writer_options(settings)) as writer,
        ):
            for rows in groups:
                writer.write_table(
                    _narrowed(rows, schema, source, truncate=truncate), ROW_GROUP_ROWS_MAX
                )
    except BaseException as error:
        _remove(location, full)
        if isinstance(error, OSError):
            message = f"storage of {location.uri} did not take {target}: {error}"
            raise storage_error(UnavailableError, message, error) from error
        raise


def _row_groups(location: Location, path: str, size_bytes: int) -> Iterator[pa.Table]:
    """Yield an empty table with a file's schema, then its rows in tables of about this size."""
    with open_table_file(location, path) as file:
        yield file.schema_arrow.remove_metadata().empty_table()
        parts: list[pa.Table] = []
        for rows in row_batches(OpenFile(location, path, file), file.schema_arrow.names):
            parts.append(rows)
            if sum(part.nbytes for part in parts) >= size_bytes:
                yield pa.concat_tables(parts)
                parts = []
        if parts:
            yield pa.concat_tables(parts)


def _narrowed(rows: pa.Table, schema: pa.Schema, source: str, *, truncate: bool) -> pa.Table:
    columns = []
    for column, field in zip(rows.columns, schema, strict=True):
        if column.type == field.type:
            columns.append(column)
            continue
        try:
            plain = [storage_values(chunk) for chunk in column.chunks]
            narrow = [chunk.cast(field.type, safe=not truncate) for chunk in plain]
        except pa.ArrowInvalid as error:
            raise RequestError(
                f"file {source}: column {field.name} cannot be kept in microseconds: {error}; "
                "to cut such digits off, import with --timestamps us-truncated"
            ) from error
        columns.append(pa.chunked_array(narrow, field.type))
    return pa.table(columns, schema=schema)
