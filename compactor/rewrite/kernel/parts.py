"""What was written, read back: keys in order, each once, and the facts of the rows.

Only the columns that facts are about are decoded again; the other columns of a file are
held against nothing here.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from common.errors import VerificationError
from common.model.key_values import KeyType
from common.parquet.location import Location
from common.rows.key_encoding import encode_column, encode_keys
from common.rows.row_facts import (
    RowFacts,
    time_ends_s,
    unite_facts,
)
from common.rows.rules import RowRules
from compactor.rewrite.files import opened_input
from compactor.rewrite.kernel.bounds import Group, groups_of
from compactor.rewrite.kernel.lanes import in_order
from compactor.rewrite.kernel.layout import Held, Layout, column_of
from compactor.rewrite.kernel.reading import Reader
from compactor.rewrite.kernel.words import is_sorted


def read_back(location: Location, path: str, rules: RowRules, schema: pa.Schema) -> RowFacts:
    """Return the facts of a file that was just written.

    Args:
        location: Of the file.
        path: Relative to it.
        rules: Of a table with a key.
        schema: Of its rows.

    Raises:
        VerificationError: Its keys are not in order, or one is there twice.
        InputError: It cannot be read.
    """
    with opened_input(location, path) as parquet:
        metadata, arrow = parquet.metadata, parquet.schema_arrow
        groups = groups_of(0, metadata, arrow, rules.key, trusted=False)
    reader = Reader(location, path, facts_layout(rules, schema))
    calls = (partial(facts_of, reader, group, f"output {path}") for group in groups)
    facts = list(in_order("read back", calls))
    return join_facts(facts, f"output {path}") if facts else RowFacts(clean=True)


def facts_layout(rules: RowRules, schema: pa.Schema) -> Layout:
    """Return the columns that facts are about."""
    named = (*rules.key, rules.version_column, rules.tombstone_column, rules.time_column)
    names = dict.fromkeys(name for name in named if name is not None)
    return Layout(pa.schema([schema.field(name) for name in names]), rules)


def key_layout(rules: RowRules, schema: pa.Schema) -> Layout:
    """Return the columns of the key."""
    return Layout(pa.schema([schema.field(name) for name in rules.key]), rules)


def key_ends(reader: Reader, first: Group, last: Group) -> tuple[bytes, bytes]:
    """Return the first key of one row group and the last key of another, or of the same.

    Args:
        reader: Of their file, with a layout for keys.
        first: The former.
        last: The latter.
    """
    at = last.rows - 1
    low = reader.read(replace(first, rows=1))
    high = reader.read(replace(last, start=last.start + at, skip=last.skip + at, rows=1))
    return _encoded_keys(low, reader.layout)[0], _encoded_keys(high, reader.layout)[-1]


def facts_of(reader: Reader, group: Group, source: str) -> RowFacts:
    """Return the facts of one row group.

    Args:
        reader: Of its file, with a layout for facts.
        group: The row group.
        source: What the file is, for messages.

    Raises:
        VerificationError: Its keys are not in order, or one is there twice.
    """
    held = reader.read(group, by_key=False)
    if not is_sorted(held.levels, held.rows, strictly=True):
        raise VerificationError(f"{source} does not have its keys in order, each once")
    return _facts(held, reader.layout)


def join_facts(parts: Sequence[RowFacts], source: str) -> RowFacts:
    """Return the facts of rows that follow each other, by key.

    Raises:
        VerificationError: The keys of one do not all come after those of the one before.
    """
    known = [part for part in parts if part.rows]
    for before, after in itertools.pairwise(known):
        assert before.key_max is not None
        assert after.key_min is not None
        if before.key_max >= after.key_min:
            raise VerificationError(f"{source} does not have its keys in order, each once")
    return unite_facts(known)


def _facts(held: Held, layout: Layout) -> RowFacts:
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


def _encoded_keys(held: Held, layout: Layout) -> tuple[bytes, bytes]:
    """Return the first and the last key of rows."""
    rules = layout.rules
    ends = pa.table({name: _ends(held, layout, name) for name in rules.key})
    low, high = encode_keys(ends, rules.key, rules.key_types).to_pylist()
    return low, high


def _column(held: Held, layout: Layout, name: str) -> pa.Array:
    """Return a column of rows as Arrow, in the table's type."""
    if held.rest is not None and name in held.rest.column_names:
        return held.rest.column(name).combine_chunks()
    return _as_arrow(column_of(held.frame, held.rest, name), layout, name)


def _ends(held: Held, layout: Layout, name: str) -> pa.Array:
    """Return the first and the last value of a column, without making Arrow of the others."""
    places = [0, held.rows - 1]
    if held.rest is not None and name in held.rest.column_names:
        return held.rest.column(name).take(pa.array(places)).combine_chunks()
    return _as_arrow(column_of(held.frame, held.rest, name).gather(places), layout, name)


def _as_arrow(column: pl.Series, layout: Layout, name: str) -> pa.Array:
    return column.to_arrow().cast(layout.schema.field(name).type)


def _encoded_ends(values: pa.Array, kind: KeyType) -> tuple[bytes, bytes]:
    """Return the encoded least and greatest of some values; null is the least."""
    if kind in (KeyType.INT, KeyType.DATE, KeyType.TIME, KeyType.TIMESTAMP, KeyType.STRING):
        ends = pc.min_max(values)
        known = [ends["min"], ends["max"], *([None] if values.null_count else [])]
        values = pa.concat_arrays([pa.array([end], values.type) for end in known])
    encoded = pc.min_max(encode_column(values, kind))
    return encoded["min"].as_py(), encoded["max"].as_py()
