"""Row groups of inputs, decoded into the columns of the table, with the words of their keys.

Polars decodes what it reads as the table wants it; of what it does not (types that it
lacks, narrower ones, other storage than a local disk) Arrow reads these columns.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
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
from common.rows.rules import RowRules
from common.rows.types import normal_type
from compactor.rewrite.kernel.bounds import Group
from compactor.rewrite.kernel.named_errors import NamedErrors
from compactor.rewrite.kernel.page_sums import PageError, check_pages, chunk_places
from compactor.rewrite.kernel.stored_rows import rows_of
from compactor.rewrite.kernel.words import (
    Level,
    as_column,
    is_sorted,
    key_levels,
    sorted_places,
    taken,
)

_KNOWN = (
    is_type.is_boolean,
    is_type.is_integer,
    is_type.is_float32,
    is_type.is_float64,
    is_type.is_string,
    is_type.is_binary,
    is_type.is_date32,
    is_type.is_decimal128,
)
_UNITS = ("ms", "us", "ns")


def known_to_polars(arrow: pa.DataType) -> bool:
    """Return whether Polars keeps every value of a type as it is."""
    if is_type.is_timestamp(arrow):
        return arrow.unit in _UNITS
    return any(belongs(arrow) for belongs in _KNOWN)


@dataclass(slots=True)
class Held:
    """The rows of a row group, by key, and how many of them are done with."""

    frame: pl.DataFrame
    """Columns that Polars knows."""
    rest: pa.Table | None
    """The others."""
    levels: list[Level]
    rows: int
    size_bytes: int
    done: int = 0


class Layout:
    """The columns of a table, as the kernel holds them."""

    def __init__(self, schema: pa.Schema, rules: RowRules) -> None:
        self.schema = schema
        self.rules = rules
        self.kinds = rules.key_types
        self.key_arrows = [schema.field(name).type for name in rules.key]
        self.fast = [field.name for field in schema if known_to_polars(field.type)]
        self.slow = [field.name for field in schema if not known_to_polars(field.type)]
        empty = pa.schema([schema.field(name) for name in self.fast]).empty_table()
        known = pl.from_arrow(empty)
        assert isinstance(known, pl.DataFrame)
        self._dtypes = known.schema

    def dtype(self, name: str) -> pl.DataType:
        """Return the Polars type of a column that Polars knows."""
        return self._dtypes[name]

    def held(self, frame: pl.DataFrame, rest: pa.Table | None, *, by_key: bool) -> Held:
        """Return rows with the words of their keys; sorted, if they are not and should be."""
        columns = [column_of(frame, rest, name) for name in self.rules.key]
        levels, rows = key_levels(columns, self.kinds), len(columns[0])
        if by_key and not is_sorted(levels, rows):
            places = sorted_places(levels, rows)
            levels = taken(levels, places)
            frame = frame[places]
            rest = rest.take(pa.array(places)) if rest is not None else None
        size_bytes = int(frame.estimated_size()) + (rest.nbytes if rest is not None else 0)
        return Held(frame, rest, levels, rows, size_bytes)


def column_of(frame: pl.DataFrame, rest: pa.Table | None, name: str) -> pl.Series:
    """Return a column of rows that are held in two parts."""
    if name in frame.columns:
        return frame.get_column(name)
    assert rest is not None
    return as_column(rest.column(name))


class Reader:
    """One input, read by row groups."""

    def __init__(
        self,
        location: Location,
        path: str,
        layout: Layout,
        fill: Fill | None = None,
        *,
        checked: bool = True,
    ) -> None:
        """Look at the file's columns.

        Args:
            location: Of the file.
            path: Relative to it.
            layout: How its rows are wanted.
            fill: What its folders say of columns that it may leave out.
            checked: Look at the checksums of pages; for a file of our own there is no need.

        Raises:
            InputError: It is no Parquet file.
            UnavailableError: The storage does not answer.
        """
        self._fill = fill or {}
        self._checked = checked
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
        others = [name for name in self.layout.schema.names if name not in quick.columns]
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
            self._metadata = parquet.metadata
            found = {field.name: field.type for field in parquet.schema_arrow}
            int96 = {
                parquet.metadata.schema.column(n).path
                for n in range(parquet.metadata.num_columns)
                if parquet.metadata.schema.column(n).physical_type == "INT96"
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
            if self._checked and not group.skip:
                self._check_pages(group.number)
            frame = self._lazy.select(self._quick).slice(group.start, group.rows).collect()
        if frame.height != group.rows:
            raise InputError(
                f"{self._source} has {frame.height} rows in a row group of {group.rows}"
            )
        wrong = [name for name in frame.columns if frame.schema[name] != self.layout.dtype(name)]
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
                    check_pages(os.pread(stored.fileno(), size, start))
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
