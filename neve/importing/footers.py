"""What the footer of a file says of it, or why it cannot be one of a table's."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import RequestError
from common.parquet.file_inspection import open_table_file
from common.parquet.location import Location
from common.readers.pool import in_reader
from neve.importing.listing import Found

_MAGIC, _MAGIC_ENCRYPTED = b"PAR1", b"PARE"


@dataclass(frozen=True, slots=True)
class Column:
    """What the statistics of a file say of one column; None: they do not tell."""

    nulls: int | None
    low: object = None
    high: object = None


@dataclass(frozen=True, slots=True)
class Footer:
    """What a file says of itself."""

    schema: pa.Schema
    rows: int
    columns: dict[str, Column]
    """Of the columns that were asked about and that it has."""


def look(location: Location, file: Found, names: Sequence[str]) -> Footer | str:
    """Return what a file's footer says, or why there is none that can be used.

    Args:
        location: Where the file is.
        file: As listed.
        names: Columns to ask the statistics about.

    Raises:
        UnavailableError: The storage does not answer.
    """
    if file.size_bytes == 0:
        return "it is empty (0 bytes)"
    try:
        return _look(location, file, names)
    except RequestError as error:  # Also of a reader that has died of it.
        return str(error)


@in_reader("file {file.path}")
def _look(location: Location, file: Found, names: Sequence[str]) -> Footer | str:
    try:
        with open_table_file(location, file.path) as parquet:
            metadata = parquet.metadata
            schema = parquet.schema_arrow.remove_metadata()
            return Footer(schema, metadata.num_rows, _columns(metadata, schema, names))
    except RequestError as error:
        return _why(location, file) or str(error)
    except pa.ArrowException as error:
        return f"its footer cannot be understood: {error}"


def _columns(
    metadata: pq.FileMetaData, schema: pa.Schema, names: Sequence[str]
) -> dict[str, Column]:
    wanted = [name for name in names if name in schema.names]
    if not wanted:
        return {}
    at = {metadata.schema.column(n).path: n for n in range(metadata.num_columns)}
    return {name: _column(metadata, at[name]) for name in wanted if name in at}


def _column(metadata: pq.FileMetaData, at: int) -> Column:
    nulls, lows, highs = 0, list[object](), list[object]()
    for number in range(metadata.num_row_groups):
        chunk = metadata.row_group(number).column(at)
        said = chunk.statistics
        if said is None or not said.has_null_count:
            return Column(None)
        nulls += said.null_count
        if said.null_count == chunk.num_values:
            continue
        if not said.has_min_max:
            return Column(nulls if number == metadata.num_row_groups - 1 else None)
        lows.append(said.min)
        highs.append(said.max)
    try:
        return Column(nulls, min(lows, default=None), max(highs, default=None))  # type: ignore[type-var]  # of one type
    except TypeError:
        return Column(nulls)


def _why(location: Location, file: Found) -> str | None:
    """Return what a file that cannot be opened is, by its last bytes; None: like Parquet."""
    try:
        with location.filesystem.open_input_file(location.full(file.path)) as source:
            source.seek(max(0, file.size_bytes - 4))
            magic = bytes(source.read(4))
    except OSError:
        return None
    if magic == _MAGIC_ENCRYPTED:
        return "it is encrypted: the service has no key for it"
    return None if magic == _MAGIC else "it is not Parquet"
