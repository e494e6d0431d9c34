"""Reads row groups for the merge, and reads back what was written.

A row group is decoded into the columns of the table, with the words of its keys. Errors name the
file. The outputs of a merge are read back: keys in order, each once except for a delete with the
row that it keeps, and the facts of the rows.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types as is_type

from common.errors import InputError, RequestError, VerificationError
from common.model.key_values import KeyType
from common.parquet.file_inspection import open_table_file
from common.parquet.location import Location, storage_error
from common.rows.conform import Flags, Int64s, conform, null_array
from common.rows.key_encoding import Fill, encode_column, encode_keys, filled
from common.rows.row_facts import (
    RowFacts,
    time_ends_s,
    unite_facts,
)
from common.rows.rules import DropRule, RowRules, are_kept_pairs
from common.rows.schema import normal_type
from compactor.rewrite.file_io import leaf_columns, opened_input, stored_bytes
from compactor.rewrite.kernel.normalized_keys import (
    RowGroup,
    is_sorted,
    repeats,
    row_groups_of,
    take_words,
)
from compactor.rewrite.kernel.winners import (
    DecodedRows,
    RowLayout,
    column_of,
)
from compactor.rewrite.memory_budget import ordered_map
from compactor.rewrite.parquet_bytes.excerpts import (
    Excerpts,
    RowStretch,
    arrow_column,
)
from compactor.rewrite.parquet_bytes.sources import (
    PageError,
    check_chunk,
    chunk_places,
)


class FileErrors:
    """Adds the file's name to errors while it is read."""

    def __init__(self, source: str) -> None:
        self._source = source

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RequestError):
            raise InputError(str(error)) from error
        broken = (
            pl.exceptions.PolarsError,
            pl.exceptions.PanicException,
            pa.ArrowException,
            OSError,
        )
        if isinstance(error, MemoryError):
            return  # Arrow's error has both classes and is no fault of the file.
        if isinstance(error, broken):
            message = f"{self._source} cannot be read: {error}"
            raise storage_error(InputError, message, error) from error


# ------------------------------------------------------------------- Row groups, whole or in pieces


PIECE_ROWS = 1 << 13


def stored_rows(parquet: pq.ParquetFile, group: RowGroup, names: Sequence[str]) -> pa.Table:
    """Return columns of a row group, or of a piece of one, which is never read completely."""
    if group.rows == parquet.metadata.row_group(group.number).num_rows:
        return parquet.read_row_group(group.number, names, use_threads=False)
    found, before, end = [], 0, group.skip + group.rows
    batches = parquet.iter_batches(
        PIECE_ROWS, row_groups=[group.number], columns=names, use_threads=False
    )
    for batch in batches:
        begin = max(group.skip, before)
        if begin < min(end, before + batch.num_rows):
            found.append(batch.slice(begin - before, min(end, before + batch.num_rows) - begin))
        before += batch.num_rows
        if before >= end:
            break
    return pa.Table.from_batches(found)


# ------------------------------------------------------------------------------------------- Inputs


EXCERPT_BYTES_MIN = 16 * 1024**2
"""Stored bytes of a row group below which all pages are read for a piece."""


class RowGroupChange(Protocol):
    """The change of decoded rows by a transform; keys stay as they are."""

    def apply(
        self, frame: pl.DataFrame, rest: pa.Table | None, groups: Sequence[RowGroup]
    ) -> tuple[pl.DataFrame, pa.Table | None, Flags | None]:
        """Return rows after the change, and which of them count as affected; None: none.

        Args:
            frame: Columns that Polars supports, in the order of the files.
            rest: The other columns.
            groups: The row groups that the rows are from, in this order.

        Raises:
            NotNativeError: Only Spark can compute the change.
        """
        ...


class Reader:
    """One input, read by row groups."""

    def __init__(
        self,
        location: Location,
        path: str,
        layout: RowLayout,
        fill: Fill | None = None,
        change: RowGroupChange | None = None,
    ) -> None:
        """Read the file's columns.

        Args:
            location: Location of the file.
            path: Path relative to it.
            layout: Wanted layout of its rows.
            fill: Values that its folders give for columns it may omit.
            change: Change of its rows; None: none.

        Raises:
            InputError: It is not a Parquet file.
            UnavailableError: The storage does not answer.
        """
        self._fill = fill or {}
        self._change = change
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

    def read(self, group: RowGroup, *, by_key: bool = True) -> DecodedRows:
        """Return the rows of a row group.

        Args:
            group: A row group of the file.
            by_key: Whether to sort them, if they are not in key order.

        Raises:
            InputError: They cannot be read, or a value does not fit.
            UnavailableError: The storage does not answer.
        """
        frame, rest = self._columns(group)
        affected = None
        if self._change is not None:
            frame, rest, affected = self._change.apply(frame, rest, [group])
        return self.layout.held(frame, rest, by_key=by_key, affected=affected)

    def _columns(self, group: RowGroup) -> tuple[pl.DataFrame, pa.Table | None]:
        """Return the columns that Polars supports, and the others."""
        quick = self._quickly(group)
        there = frozenset(quick.columns)
        others = [name for name in self.layout.schema.names if name not in there]
        if not others:
            return quick, None
        table = self._slowly(group, others)
        fast = [name for name in others if name in self.layout.fast]
        slow = [name for name in others if name in self.layout.slow]
        if fast:
            more = pl.from_arrow(table.select(fast))
            assert isinstance(more, pl.DataFrame)
            quick = more if quick.width == 0 else quick.hstack(more)
        return quick.select(self.layout.fast), table.select(slow) if slow else None

    def _look(self) -> None:
        """Determine which columns Polars reads with the table's types."""
        with FileErrors(self._source), open_table_file(self._location, self._path) as parquet:
            metadata = self._metadata = parquet.metadata
            self._arrow = parquet.schema_arrow
            types = {field.name: field.type for field in self._arrow}
            int96 = {
                metadata.schema.column(n).path
                for n in range(metadata.num_columns)
                if metadata.schema.column(n).physical_type == "INT96"
            }
        self._lazy = pl.scan_parquet(Path(self._location.full(self._path)), glob=False)
        self._quick = [
            name
            for name in self.layout.fast
            if name in types
            and name not in int96
            and _same(types[name], self.layout.schema.field(name).type)
        ]

    def _quickly(self, group: RowGroup) -> pl.DataFrame:
        if self._lazy is None or not self._quick:
            return pl.DataFrame()
        with FileErrors(self._source):
            frame = self._piece(group) if self._is_excerpt(group) else self._decoded(group)
        if frame.width and frame.height != group.rows:
            raise InputError(
                f"{self._source} has {frame.height} rows in a row group of {group.rows}"
            )
        dtypes = zip(frame.columns, frame.dtypes, strict=True)
        wrong = [name for name, dtype in dtypes if dtype != self.layout.dtype(name)]
        if wrong:
            self._quick = [name for name in self._quick if name not in wrong]
            frame = frame.drop(wrong)
        return frame

    def _decoded(self, group: RowGroup) -> pl.DataFrame:
        assert self._lazy is not None
        if not group.skip:
            self._check_pages(group.number)
        return self._lazy.select(self._quick).slice(group.start, group.rows).collect()

    def _is_excerpt(self, group: RowGroup) -> bool:
        """Return whether rows are a small part of many stored bytes."""
        assert self._metadata is not None
        if group.rows == self._metadata.row_group(group.number).num_rows:
            return False
        leaves = leaf_columns(self._metadata, self.layout.schema.names)
        return stored_bytes(self._metadata, group.number, leaves) >= EXCERPT_BYTES_MIN

    def _piece(self, group: RowGroup) -> pl.DataFrame:
        """Return what Polars reads of a piece, column by column."""
        stretch, columns = RowStretch(group.number, group.skip, group.rows), list[pl.DataFrame]()
        for name in self._quick:
            if name in self._excerpts.columns():
                excerpt = self._excerpts.take(stretch, self._arrow.field(name))
                lazy = pl.scan_parquet(excerpt.content)
                columns.append(lazy.slice(excerpt.skip, group.rows).collect())
        return pl.concat(columns, how="horizontal") if columns else pl.DataFrame()

    def _check_pages(self, number: int) -> None:
        """Verify the checksums that Polars ignores; Arrow verifies its own."""
        assert self._metadata is not None
        with open(self._location.full(self._path), "rb") as stored:
            for name, start, size in chunk_places(self._metadata.row_group(number), self._quick):
                try:
                    check_chunk(stored.fileno(), start, size)
                except PageError as error:
                    raise InputError(f"{self._source}, column {name}: {error}") from error

    def _slowly(self, group: RowGroup, names: Sequence[str]) -> pa.Table:
        wanted = pa.schema([self.layout.schema.field(name) for name in names])
        fill = {name: value for name, value in self._fill.items() if name in names}
        location, path, footer = self._location, self._path, self._metadata
        if footer is not None and self._is_excerpt(group):
            footer = None  # Columns without excerpts are read in batches.
        with FileErrors(self._source), open_table_file(location, path, footer) as parquet:
            # Cached, so that an object store is not asked for them again.
            self._metadata, self._arrow = parquet.metadata, parquet.schema_arrow
            # At least one column, because a table without columns has no rows.
            present = [name for name in names if name in self._arrow.names] or self._arrow.names[:1]
            table = self._stored(parquet, group, present)
            if present[0] not in names:
                nothing = null_array(table.num_rows, wanted.field(0).type)
                table = pa.table({wanted.field(0).name: nothing})
            return conform(filled(table, fill), wanted, self._source)

    def _stored(self, parquet: pq.ParquetFile, group: RowGroup, names: Sequence[str]) -> pa.Table:
        """Return columns as Arrow reads them."""
        flat = self._excerpts.columns() if self._is_excerpt(group) else frozenset[str]()
        stretch, columns = RowStretch(group.number, group.skip, group.rows), {}
        for name in names:
            if name in flat:
                excerpt = self._excerpts.take(stretch, self._arrow.field(name))
                columns[name] = arrow_column(excerpt, group.rows)
        if others := [name for name in names if name not in flat]:
            table = stored_rows(parquet, group, others)
            columns |= dict(zip(table.column_names, table.columns, strict=True))
        return pa.table({name: columns[name] for name in names})


def _same(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a column is stored with the table's type; dictionaries are read slowly."""
    if is_type.is_dictionary(stored) or isinstance(stored, pa.BaseExtensionType):
        return False
    if is_type.is_fixed_size_binary(stored):
        return False
    return bool(normal_type(stored) == wanted)


# ------------------------------------------------------------------------------------- Reading back


def read_back(
    location: Location, path: str, rules: RowRules, schema: pa.Schema, drop: DropRule
) -> RowFacts:
    """Return the facts of a file that was just written.

    Args:
        location: Location of the file.
        path: Path relative to it.
        rules: Rules of a table with a key.
        schema: Schema of its rows.
        drop: The rule by which they were merged.

    Raises:
        VerificationError: Its keys are not in order, or not unique.
        InputError: It cannot be read.
    """
    with opened_input(location, path) as parquet:
        metadata, arrow = parquet.metadata, parquet.schema_arrow
        groups = row_groups_of(0, metadata, arrow, rules.key, trusted=False)
    reader = Reader(location, path, facts_layout(rules, schema))
    calls = (partial(facts_of, reader, group, f"output {path}", drop) for group in groups)
    facts = list(ordered_map("read back", calls))
    for (before, after), (low, high) in zip(
        itertools.pairwise(groups), itertools.pairwise(facts), strict=True
    ):
        if low.key_max == high.key_min:  # A delete may be the last row of its row group.
            ends = reader.read(_last_row(before)), reader.read(replace(after, rows=1))
            _require_kept_pairs(*ends, reader.layout, f"output {path}", drop)
        else:
            join_facts([low, high], f"output {path}")
    return unite_facts(facts) if facts else RowFacts(clean=True)


def facts_layout(rules: RowRules, schema: pa.Schema) -> RowLayout:
    """Return the layout with the columns that facts depend on."""
    named = (*rules.key, rules.version_column, rules.tombstone_column, rules.time_column)
    names = dict.fromkeys(name for name in named if name is not None)
    return RowLayout(pa.schema([schema.field(name) for name in names]), rules)


def key_layout(rules: RowRules, schema: pa.Schema) -> RowLayout:
    """Return the layout with the columns of the key."""
    return RowLayout(pa.schema([schema.field(name) for name in rules.key]), rules)


def key_ends(reader: Reader, first: RowGroup, last: RowGroup) -> tuple[bytes, bytes]:
    """Return the first key of one row group and the last key of another, or of the same.

    Args:
        reader: Reader of their file, with a layout for keys.
        first: The first row group.
        last: The last row group.
    """
    low = reader.read(replace(first, rows=1))
    high = reader.read(_last_row(last))
    return _encoded_keys(low, reader.layout)[0], _encoded_keys(high, reader.layout)[-1]


def _last_row(group: RowGroup) -> RowGroup:
    at = group.rows - 1
    return replace(group, start=group.start + at, skip=group.skip + at, rows=1)


def facts_of(reader: Reader, group: RowGroup, source: str, drop: DropRule) -> RowFacts:
    """Return the facts of one row group.

    Args:
        reader: Reader of its file, with a layout for facts.
        group: The row group.
        source: Name of the file, for messages.
        drop: The rule by which its rows were merged.

    Raises:
        VerificationError: Its keys are not in order, or not unique.
    """
    held = reader.read(group, by_key=False)
    if not is_sorted(held.levels, held.rows, strictly=True):
        if not is_sorted(held.levels, held.rows):
            raise VerificationError(f"{source} does not have its keys in order, each once")
        again = np.flatnonzero(repeats(held.levels, held.rows))
        before, after = (_rows_at(held, numbers) for numbers in (again - 1, again))
        _require_kept_pairs(before, after, reader.layout, source, drop)
    return _facts(held, reader.layout)


def _rows_at(held: DecodedRows, numbers: Int64s) -> DecodedRows:
    rest = held.rest.take(pa.array(numbers)) if held.rest is not None else None
    frame = held.frame[numbers] if held.frame.width else held.frame
    return DecodedRows(frame, rest, take_words(held.levels, numbers), len(numbers), 0)


def _require_kept_pairs(
    before: DecodedRows, after: DecodedRows, layout: RowLayout, source: str, drop: DropRule
) -> None:
    """Refuse rows with the key of the row before, unless that is a delete which keeps them."""
    rules = layout.rules
    names = [name for name in (rules.version_column, rules.tombstone_column) if name is not None]
    deletes, rows = (
        pa.table({name: _column(held, layout, name) for name in names}) for held in (before, after)
    )
    if not are_kept_pairs(deletes, rows, rules, drop):
        raise VerificationError(f"{source} does not have its keys in order, each once")


def join_facts(parts: Sequence[RowFacts], source: str) -> RowFacts:
    """Return the facts of consecutive rows, by key.

    Raises:
        VerificationError: The keys of a part do not all follow those of the part before.
    """
    filled_parts = [part for part in parts if part.rows]
    for before, after in itertools.pairwise(filled_parts):
        assert before.key_max is not None
        assert after.key_min is not None
        if before.key_max >= after.key_min:
            raise VerificationError(f"{source} does not have its keys in order, each once")
    return unite_facts(filled_parts)


def _facts(held: DecodedRows, layout: RowLayout) -> RowFacts:
    """Return the facts of rows whose keys ascend."""
    rules = layout.rules
    assert rules.version_column is not None
    keys = _encoded_keys(held, layout)
    version_ends = _encoded_ends(_column(held, layout, rules.version_column), rules.version_type)
    tombstones = 0
    if rules.tombstone_column is not None:
        tombstones = pc.sum(_column(held, layout, rules.tombstone_column)).as_py() or 0
    times: tuple[float | None, float | None] = (None, None)
    if rules.time_column is not None:
        times = time_ends_s(_column(held, layout, rules.time_column))
    return RowFacts(
        rows=held.rows,
        key_min=keys[0],
        key_max=keys[1],
        version_min=version_ends[0],
        version_max=version_ends[1],
        time_min_s=times[0],
        time_max_s=times[1],
        tombstones=tombstones,
        clean=tombstones == 0,
    )


def _encoded_keys(held: DecodedRows, layout: RowLayout) -> tuple[bytes, bytes]:
    """Return the first and the last key of rows."""
    rules = layout.rules
    ends = pa.table({name: _end_values(held, layout, name) for name in rules.key})
    low, high = encode_keys(ends, rules.key, rules.key_types).to_pylist()
    return low, high


def _column(held: DecodedRows, layout: RowLayout, name: str) -> pa.Array:
    """Return a column of rows as Arrow, in the table's type."""
    if held.rest is not None and name in held.rest.column_names:
        return held.rest.column(name).combine_chunks()
    return _as_arrow(column_of(held.frame, held.rest, name), layout, name)


def _end_values(held: DecodedRows, layout: RowLayout, name: str) -> pa.Array:
    """Return the first and the last value of a column, without converting the others."""
    ends = [0, held.rows - 1]
    if held.rest is not None and name in held.rest.column_names:
        return held.rest.column(name).take(pa.array(ends)).combine_chunks()
    return _as_arrow(column_of(held.frame, held.rest, name).gather(ends), layout, name)


def _as_arrow(column: pl.Series, layout: RowLayout, name: str) -> pa.Array:
    return column.to_arrow().cast(layout.schema.field(name).type)


def _encoded_ends(values: pa.Array, kind: KeyType) -> tuple[bytes, bytes]:
    """Return the encoded least and greatest of some values; null is the least."""
    if kind in (KeyType.INT, KeyType.DATE, KeyType.TIME, KeyType.TIMESTAMP, KeyType.STRING):
        ends = pc.min_max(values)
        candidates = [ends["min"], ends["max"], *([None] if values.null_count else [])]
        values = pa.concat_arrays([pa.array([end], values.type) for end in candidates])
    encoded = pc.min_max(encode_column(values, kind))
    return encoded["min"].as_py(), encoded["max"].as_py()
