"""What a rewrite asks of the footers of its inputs: read once each, several at a time."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import InputError, RequestError
from common.parquet.file_inspection import open_table_file
from common.parquet.footer_checks import codec_name
from common.parquet.location import Location
from compactor.rewrite.declared import has_blooms
from compactor.rewrite.kernel.bounds import Group, groups_of
from compactor.rewrite.page_sums import PAGES_START, chunk_places
from compactor.rewrite.worth import GroupSize

FOOTERS_AT_A_TIME = 8
"""Of an object store. Those on a disk are there at once, and threads get in each other's way."""
SMALL_BYTES = 1024**2
"""A file with more bytes before the codec is not small."""


@dataclass(frozen=True, slots=True)
class Footer:
    """What a rewrite asks of a Parquet footer."""

    num_rows: int
    size_bytes: int
    """Of the footer itself."""
    schema: pa.Schema
    sizes: tuple[GroupSize, ...]
    """Of its row groups."""
    codecs: frozenset[str | None]
    """Of its column chunks; None: one that we do not write."""
    filtered: bool
    """Whether each row group has the Bloom filters that are asked for."""
    groups: tuple[Group, ...]
    """Row groups, where they are bounded by a key."""
    small_bytes: int | None
    """What the pages of its one row group take there, from `PAGES_START` on; None: it is not
    small, or not plain."""

    @property
    def decoded_bytes(self) -> int:
        """Of all rows, before the codec."""
        return sum(size.decoded_bytes for size in self.sizes)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked for by columns."""

    key: tuple[str, ...] = ()
    """These bound the row groups; empty: nobody wants to know."""
    filters: tuple[str, ...] = ()
    """These should have Bloom filters."""


def read_footer(
    location: Location, path: str, asked: Asked | None = None, number: int = 0
) -> Footer:
    """Return what the footer of an input says.

    Args:
        location: Of the table.
        path: Of the input.
        asked: Columns; None: none.
        number: Of the input.

    Raises:
        InputError: The file is missing or is no Parquet file.
        UnavailableError: The storage does not answer.
    """
    try:
        with open_table_file(location, path) as parquet:
            metadata, schema = parquet.metadata, parquet.schema_arrow
    except RequestError as error:
        raise InputError(str(error)) from error
    asked = asked or Asked()
    known = set(asked.key) <= set(schema.names)  # Or its folders tell them.
    groups = groups_of(number, metadata, schema, asked.key, trusted=known) if asked.key else []
    found = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    sizes = tuple(GroupSize(group.num_rows, group.total_byte_size) for group in found)
    return Footer(
        num_rows=metadata.num_rows,
        size_bytes=metadata.serialized_size,
        schema=schema,
        sizes=sizes,
        codecs=frozenset(
            codec_name(group.column(at).compression)
            for group in found
            if group.num_rows
            for at in range(group.num_columns)
        ),
        filtered=has_blooms(metadata, schema, asked.filters),
        groups=tuple(groups),
        small_bytes=_small_bytes(metadata),
    )


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


def read_footers(
    location: Location,
    paths: Sequence[str],
    asked: Asked,
    on_read: Callable[[], None] = lambda: None,
) -> list[Footer]:
    """Return what the footers of inputs say, in order; of an object store several at a time.

    Args:
        location: Of the table.
        paths: Of the inputs.
        asked: Columns.
        on_read: Is called after each footer, perhaps in several threads.

    Raises:
        InputError: A file is missing or is no Parquet file.
        UnavailableError: The storage does not answer.
    """

    def work(path: str, number: int) -> Footer:
        footer = read_footer(location, path, asked, number)
        on_read()
        return footer

    numbers = range(len(paths))
    if location.is_local:
        return list(map(work, paths, numbers))
    with ThreadPoolExecutor(min(len(paths), FOOTERS_AT_A_TIME) or 1, "footer") as threads:
        return list(threads.map(work, paths, numbers))
