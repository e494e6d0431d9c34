"""What the footers of outputs declare beside their pages: the order of rows, Bloom filters."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types as is_type

BLOOM_FALSE_SHARE = 0.01
"""Share of absent values that a Bloom filter takes for present."""


def leaf_places(schema: pa.Schema) -> dict[str, int]:
    """Return where the columns that are not nested are among the columns of a Parquet file."""
    places, place = dict[str, int](), 0
    for field in schema:
        if not is_type.is_nested(field.type):
            places[field.name] = place
        place += leaves(field.type)
    return places


def leaves(arrow: pa.DataType) -> int:
    """Return how many columns of a Parquet file hold values of a type."""
    if not is_type.is_nested(arrow):
        return 1
    return sum(leaves(arrow.field(at).type) for at in range(arrow.num_fields))


def sorting_columns(schema: pa.Schema, key: Sequence[str]) -> list[pq.SortingColumn] | None:
    """Return the order of rows that ascend by key, null first, as Parquet can tell it.

    Parquet has no order of NaN, so the declared order ends before a column of floats.
    """
    places, found = leaf_places(schema), list[pq.SortingColumn]()
    for name in key:
        if is_type.is_floating(schema.field(name).type):
            break
        found.append(pq.SortingColumn(places[name], descending=False, nulls_first=True))
    return found or None


def bloom_options(names: Sequence[str], group_rows: int) -> dict[str, dict[str, Any]] | None:
    """Return what Arrow's writer is told of Bloom filters.

    Args:
        names: Columns that carry one.
        group_rows: Rows of a row group: it has no more different values.
    """
    options = {"ndv": max(1, group_rows), "fpp": BLOOM_FALSE_SHARE}
    return dict.fromkeys(names, options) or None


def has_blooms(metadata: pq.FileMetaData, schema: pa.Schema, names: Sequence[str]) -> bool:
    """Return whether each row group of a file carries Bloom filters of these columns."""
    if not names:
        return True
    places = [leaf_places(schema).get(name) for name in names]
    return all(
        place is not None
        and metadata.row_group(number).column(place).bloom_filter_offset is not None
        for number in range(metadata.num_row_groups)
        if metadata.row_group(number).num_rows
        for place in places
    )
