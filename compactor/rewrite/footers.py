"""What a rewrite asks of the footers of its inputs: read once each, several at a time."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import InputError, RequestError
from common.parquet.inspect import opened
from common.parquet.location import Location
from compactor.rewrite.kernel.bounds import Group, groups_of
from compactor.rewrite.kernel.page_sums import PAGES_START, chunk_places

FOOTERS_AT_A_TIME = 8
SMALL_BYTES = 1024**2
"""A file with more bytes before the codec is not small."""


@dataclass(frozen=True, slots=True)
class Footer:
    """What a rewrite asks of a Parquet footer."""

    num_rows: int
    decoded_bytes: int
    schema: pa.Schema
    groups: tuple[Group, ...] = ()
    """Row groups, where they are bounded by a key."""
    small_bytes: int | None = None
    """What the pages of its one row group take there, from `PAGES_START` on; None: it is not
    small, or not plain."""


def read_footer(location: Location, path: str, key: Sequence[str] = (), number: int = 0) -> Footer:
    """Return what the footer of an input says.

    Args:
        location: Of the table.
        path: Of the input.
        key: Columns that bound its row groups; empty: nobody asks for these.
        number: Of the input.

    Raises:
        InputError: The file is missing or is no Parquet file.
        UnavailableError: The storage does not answer.
    """
    try:
        with opened(location, path) as parquet:
            metadata, schema = parquet.metadata, parquet.schema_arrow
    except RequestError as error:
        raise InputError(str(error)) from error
    known = set(key) <= set(schema.names)  # Or its folders tell them.
    groups = groups_of(number, metadata, schema, key, trusted=known) if key else []
    decoded = sum(metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups))
    return Footer(metadata.num_rows, decoded, schema, tuple(groups), _small_bytes(metadata))


def _small_bytes(metadata: pq.FileMetaData) -> int | None:
    if metadata.num_row_groups != 1 or metadata.row_group(0).total_byte_size > SMALL_BYTES:
        return None
    columns = [metadata.row_group(0).column(at) for at in range(metadata.num_columns)]
    if any(column.physical_type == "INT96" for column in columns):
        return None  # A time of a kind that readers do not agree on.
    end = PAGES_START
    for _, start, size_bytes in sorted(
        chunk_places(metadata.row_group(0), metadata.schema.names), key=lambda each: each[1]
    ):
        if start != end:
            return None  # Whoever reads it has to know where its pages are.
        end += size_bytes
    return end - PAGES_START


def read_footers(location: Location, paths: Sequence[str], key: Sequence[str]) -> list[Footer]:
    """Return what the footers of inputs say, in order; several are read at a time.

    Args:
        location: Of the table.
        paths: Of the inputs.
        key: See `read_footer`.

    Raises:
        InputError: A file is missing or is no Parquet file.
        UnavailableError: The storage does not answer.
    """
    with ThreadPoolExecutor(min(len(paths), FOOTERS_AT_A_TIME) or 1, "footer") as threads:
        work = partial(read_footer, location, key=key)
        return list(threads.map(lambda each: work(each[1], number=each[0]), enumerate(paths)))
