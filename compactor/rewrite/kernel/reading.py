"""Row groups of inputs, decoded into the columns of the table, with the words of their keys.

Polars decodes what it reads as the table wants it; of what it does not (types that it
lacks, narrower ones, other storage than a local disk) Arrow reads these columns. Both would
take the stored bytes of a whole row group for a piece of one: of large ones they get excerpts.
"""

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types as is_type

from common.errors import InputError
from common.parquet.file_inspection import open_table_file
from common.parquet.location import Location
from common.rows.conform import conform
from common.rows.partitions import Fill, filled
from common.rows.types import normal_type
from compactor.rewrite.excerpts.reading import Excerpts, Place, arrow_column
from compactor.rewrite.kernel.bounds import Group
from compactor.rewrite.kernel.layout import Held, Layout
from compactor.rewrite.kernel.named_errors import NamedErrors
from compactor.rewrite.kernel.stored_rows import rows_of
from compactor.rewrite.page_sums import PageError, check_chunk, chunk_places
from compactor.rewrite.stored import leaves_of, stored_bytes

EXCERPT_BYTES_MIN = 16 * 1024**2
"""Stored; of smaller row groups all pages are read for a piece."""


class Reader:
    """One input, read by row groups."""

    def __init__(
        self,
        location: Location,
        path: str,
        layout: Layout,
        fill: Fill | None = None,
    ) -> None:
        """Look at the file's columns.

        Args:
            location: Of the file.
            path: Relative to it.
            layout: How its rows are wanted.
            fill: What its folders say of columns that it may leave out.

        Raises:
            InputError: It is no Parquet file.
            UnavailableError: The storage does not answer.
        """
        self._fill = fill or {}
        self._location = location
        self._path = path
        self.layout = layout
        self._source = f"file {path}"
        self._metadata: pq.FileMetaData | None = None
        self._arrow = pa.schema([])
        self._excerpts = Excerpts(location, path)
        self._quick: list[str] = []
        self._lazy: pl.LazyFrame | None = None
        if location.is_local:
            self._look()

    def read(self, group: Group, *, by_key: bool = True) -> Held:
        """Return the rows of a row group.

        Args:
            group: One of the file.
            by_key: Sort them, if they are not in the order of their keys.

        Raises:
            InputError: They cannot be read, or a value does not fit.
            UnavailableError: The storage does not answer.
        """
        quick = self._quickly(group)
        there = frozenset(quick.columns)
        others = [name for name in self.layout.schema.names if name not in there]
        if not others:
            return self.layout.held(quick, None, by_key=by_key)
        table = self._slowly(group, others)
        fast = [name for name in others if name in self.layout.fast]
        slow = [name for name in others if name in self.layout.slow]
        if fast:
            more = pl.from_arrow(table.select(fast))
            assert isinstance(more, pl.DataFrame)
            quick = more if quick.width == 0 else quick.hstack(more)
        quick = quick.select(self.layout.fast)
        return self.layout.held(quick, table.select(slow) if slow else None, by_key=by_key)

    def _look(self) -> None:
        """Find out which columns Polars reads as the table has them."""
        with NamedErrors(self._source), open_table_file(self._location, self._path) as parquet:
            metadata = self._metadata = parquet.metadata
            self._arrow = parquet.schema_arrow
            found = {field.name: field.type for field in self._arrow}
            int96 = {
                metadata.schema.column(n).path
                for n in range(metadata.num_columns)
                if metadata.schema.column(n).physical_type == "INT96"
            }
        self._lazy = pl.scan_parquet(Path(self._location.full(self._path)), glob=False)
        self._quick = [
            name
            for name in self.layout.fast
            if name in found
            and name not in int96
            and _same(found[name], self.layout.schema.field(name).type)
        ]

    def _quickly(self, group: Group) -> pl.DataFrame:
        if self._lazy is None or not self._quick:
            return pl.DataFrame()
        with NamedErrors(self._source):
            frame = self._piece(group) if self._is_excerpt(group) else self._decoded(group)
        if frame.width and frame.height != group.rows:
            raise InputError(
                f"{self._source} has {frame.height} rows in a row group of {group.rows}"
            )
        found = zip(frame.columns, frame.dtypes, strict=True)
        wrong = [name for name, dtype in found if dtype != self.layout.dtype(name)]
        if wrong:
            self._quick = [name for name in self._quick if name not in wrong]
            frame = frame.drop(wrong)
        return frame

    def _decoded(self, group: Group) -> pl.DataFrame:
        assert self._lazy is not None
        if not group.skip:
            self._check_pages(group.number)
        return self._lazy.select(self._quick).slice(group.start, group.rows).collect()

    def _is_excerpt(self, group: Group) -> bool:
        """Return whether rows are a small part of many stored bytes."""
        assert self._metadata is not None
        if group.rows == self._metadata.row_group(group.number).num_rows:
            return False
        leaves = leaves_of(self._metadata, self.layout.schema.names)
        return stored_bytes(self._metadata, group.number, leaves) >= EXCERPT_BYTES_MIN

    def _piece(self, group: Group) -> pl.DataFrame:
        """Return what Polars reads of a piece, column by column."""
        place, columns = Place(group.number, group.skip, group.rows), list[pl.DataFrame]()
        for name in self._quick:
            if name in self._excerpts.columns():
                excerpt = self._excerpts.take(place, self._arrow.field(name))
                lazy = pl.scan_parquet(excerpt.content)
                columns.append(lazy.slice(excerpt.skip, group.rows).collect())
        return pl.concat(columns, how="horizontal") if columns else pl.DataFrame()

    def _check_pages(self, number: int) -> None:
        """Look at the checksums that Polars passes over; Arrow looks at its own."""
        assert self._metadata is not None
        with open(self._location.full(self._path), "rb") as stored:
            for name, start, size in chunk_places(self._metadata.row_group(number), self._quick):
                try:
                    check_chunk(stored.fileno(), start, size)
                except PageError as error:
                    raise InputError(f"{self._source}, column {name}: {error}") from error

    def _slowly(self, group: Group, names: Sequence[str]) -> pa.Table:
        wanted = pa.schema([self.layout.schema.field(name) for name in names])
        fill = {name: value for name, value in self._fill.items() if name in names}
        location, path, known = self._location, self._path, self._metadata
        if known is not None and self._is_excerpt(group):
            known = None  # Columns that no excerpt is taken of are read bit by bit.
        with NamedErrors(self._source), open_table_file(location, path, known) as parquet:
            # An object store is not asked for them again.
            self._metadata, self._arrow = parquet.metadata, parquet.schema_arrow
            # A table without columns would have no rows either.
            present = [name for name in names if name in self._arrow.names] or self._arrow.names[:1]
            table = self._stored(parquet, group, present)
            if present[0] not in names:
                nothing = pa.nulls(table.num_rows, wanted.field(0).type)
                table = pa.table({wanted.field(0).name: nothing})
            return conform(filled(table, fill), wanted, self._source)

    def _stored(self, parquet: pq.ParquetFile, group: Group, names: Sequence[str]) -> pa.Table:
        """Return columns as Arrow reads them."""
        flat = self._excerpts.columns() if self._is_excerpt(group) else frozenset[str]()
        place, columns = Place(group.number, group.skip, group.rows), {}
        for name in names:
            if name in flat:
                excerpt = self._excerpts.take(place, self._arrow.field(name))
                columns[name] = arrow_column(excerpt, group.rows)
        if others := [name for name in names if name not in flat]:
            table = rows_of(parquet, group, others)
            columns |= dict(zip(table.column_names, table.columns, strict=True))
        return pa.table({name: columns[name] for name in names})


def _same(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a column is stored as the table has it; dictionaries go the slow way."""
    if is_type.is_dictionary(found) or isinstance(found, pa.BaseExtensionType):
        return False
    if is_type.is_fixed_size_binary(found):
        return False
    return bool(normal_type(found) == wanted)
