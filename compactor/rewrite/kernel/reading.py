"""Row groups of inputs, decoded into the columns of the table, with the words of their keys.

Polars decodes what it reads as the table wants it; of what it does not (types that it
lacks, narrower ones, other storage than a local disk) Arrow reads these columns.
"""

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types as is_type

from common.errors import InputError
from common.parquet.inspect import opened
from common.parquet.location import Location
from common.rows.conform import conform
from common.rows.partitions import Fill, filled
from common.rows.types import normal_type
from compactor.rewrite.kernel.bounds import Group
from compactor.rewrite.kernel.layout import Held, Layout
from compactor.rewrite.kernel.named_errors import NamedErrors
from compactor.rewrite.kernel.page_sums import PageError, check_chunk, chunk_places
from compactor.rewrite.kernel.stored_rows import rows_of


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
        with NamedErrors(self._source), opened(self._location, self._path) as parquet:
            metadata = self._metadata = parquet.metadata
            found = {field.name: field.type for field in parquet.schema_arrow}
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
            if not group.skip:
                self._check_pages(group.number)
            frame = self._lazy.select(self._quick).slice(group.start, group.rows).collect()
        if frame.height != group.rows:
            raise InputError(
                f"{self._source} has {frame.height} rows in a row group of {group.rows}"
            )
        found = zip(frame.columns, frame.dtypes, strict=True)
        wrong = [name for name, dtype in found if dtype != self.layout.dtype(name)]
        if wrong:
            self._quick = [name for name in self._quick if name not in wrong]
            frame = frame.drop(wrong)
        return frame

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
        location, path = self._location, self._path
        with NamedErrors(self._source), opened(location, path, self._metadata) as parquet:
            self._metadata = parquet.metadata  # An object store is not asked for it again.
            known = parquet.schema_arrow.names
            # A table without columns would have no rows either.
            present = [name for name in names if name in known] or known[:1]
            table = rows_of(parquet, group, present)
            if present[0] not in names:
                nothing = pa.nulls(table.num_rows, wanted.field(0).type)
                table = pa.table({wanted.field(0).name: nothing})
            return conform(filled(table, fill), wanted, self._source)


def _same(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a column is stored as the table has it; dictionaries go the slow way."""
    if is_type.is_dictionary(found) or isinstance(found, pa.BaseExtensionType):
        return False
    if is_type.is_fixed_size_binary(found):
        return False
    return bool(normal_type(found) == wanted)
