"""How outputs are written: settings, declared order, Bloom filters; which row groups are copied.

The settings come from the table, its configurer and the request. Footers of outputs declare the
order of rows and include Bloom filters. Row groups that are large enough are copied; smaller ones
are rewritten.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types as is_type

from common.errors import CompactionError, ConfigError, PluginError, RewriteError
from common.model.request import OutputSpec
from common.parquet.footer_checks import codec_name, has_level
from common.plugins import load_configurer
from common.spi.output import OutputParameters
from common.wire import Assignment


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """Codec and row groups of every output of a job."""

    codec: str
    codec_level: int | None
    """None: the codec's default level."""
    row_group_bytes: int
    bloom_columns: tuple[str, ...] = ()
    """Columns with a Bloom filter in each row group."""


def output_settings(assignment: Assignment) -> OutputSettings:
    """Return how the outputs of a job are written.

    Raises:
        ConfigError: The table's configurer is not installed.
        PluginError: It raised, or its result is not allowed.
        RewriteError: The request's output settings are not allowed.
    """
    settings, request = assignment.table.settings, assignment.request
    chosen = OutputSettings(
        settings.codec, settings.codec_level, settings.row_group_bytes, settings.bloom_columns
    )
    if settings.configurer:
        chosen = _ask_configurer(chosen, assignment)
    if request is not None:
        try:
            chosen = _with_spec(chosen, request.output)
        except ValueError as error:
            raise RewriteError(f"request {request.id} wants {error}") from error
    return chosen


def _ask_configurer(base: OutputSettings, assignment: Assignment) -> OutputSettings:
    name, request = assignment.table.settings.configurer, assignment.request
    parameters = OutputParameters(
        table=assignment.table,
        kind=assignment.job.kind,
        inputs=assignment.inputs,
        hints=request.hints if request is not None else {},
    )
    configurer = load_configurer(name)
    try:
        return _with_spec(base, configurer.configure(parameters))
    except ConfigError:
        raise
    except CompactionError as error:
        raise PluginError(str(error)) from error
    except Exception as error:
        message = f"configurer {name} failed: {type(error).__name__}: {error}"
        raise PluginError(message) from error


def _with_spec(base: OutputSettings, spec: OutputSpec) -> OutputSettings:
    """Return the settings after applying a spec.

    Raises:
        ValueError: Names the value that is not allowed.
    """
    codec, level = base.codec, base.codec_level
    if spec.codec is not None:
        known = codec_name(spec.codec)
        if known is None:
            raise ValueError(f"the codec {spec.codec!r}, which is unknown")
        codec, level = known, level if known == codec_name(codec) else None
    if spec.codec_level is not None:
        level = spec.codec_level
        if not has_level(codec, level):
            raise ValueError(f"the level {level}, which {codec} does not have")
    row_group_bytes = spec.row_group_bytes or base.row_group_bytes
    if row_group_bytes <= 0:
        raise ValueError(f"row groups of {row_group_bytes} bytes")
    return OutputSettings(codec, level, row_group_bytes, base.bloom_columns)


# ----------------------------------------------------------------- Declared order and Bloom filters


BLOOM_FALSE_SHARE = 0.01
"""False positive rate of a Bloom filter."""


def leaf_indexes(schema: pa.Schema) -> dict[str, int]:
    """Return the leaf column indexes of columns that are not nested."""
    indexes, next_index = dict[str, int](), 0
    for field in schema:
        if not is_type.is_nested(field.type):
            indexes[field.name] = next_index
        next_index += leaf_count(field.type)
    return indexes


def leaf_count(arrow: pa.DataType) -> int:
    """Return the number of leaf columns of a type in a Parquet file."""
    if not is_type.is_nested(arrow):
        return 1
    return sum(leaf_count(arrow.field(at).type) for at in range(arrow.num_fields))


def sorting_columns(schema: pa.Schema, key: Sequence[str]) -> list[pq.SortingColumn] | None:
    """Return the order of rows that ascend by key, null first, as Parquet can declare it.

    Parquet does not define the order of NaN, so the declared order ends before a float column.
    """
    indexes, columns = leaf_indexes(schema), list[pq.SortingColumn]()
    for name in key:
        if is_type.is_floating(schema.field(name).type):
            break
        columns.append(pq.SortingColumn(indexes[name], descending=False, nulls_first=True))
    return columns or None


def bloom_options(names: Sequence[str], group_rows: int) -> dict[str, dict[str, Any]] | None:
    """Return the options for Bloom filters of Arrow's writer.

    Args:
        names: Columns with Bloom filters.
        group_rows: Rows of a row group, an upper bound on its distinct values.
    """
    options = {"ndv": max(1, group_rows), "fpp": BLOOM_FALSE_SHARE}
    return dict.fromkeys(names, options) or None


def has_blooms(metadata: pq.FileMetaData, schema: pa.Schema, names: Sequence[str]) -> bool:
    """Return whether each row group of a file has Bloom filters for these columns."""
    if not names:
        return True
    indexes = [leaf_indexes(schema).get(name) for name in names]
    return all(
        index is not None
        and metadata.row_group(number).column(index).bloom_filter_offset is not None
        for number in range(metadata.num_row_groups)
        if metadata.row_group(number).num_rows
        for index in indexes
    )


# ------------------------------------------------------------------ Row groups large enough to copy


SMALLER_FACTOR_MAX = 4
"""On average, a row group may be smaller than wanted by this factor."""
LARGE_BYTES = 2 * 1024**2
"""A row group of this size is never too small: its overhead for readers is negligible."""
LARGE_ROWS = 1 << 17
"""A row group with this many rows is never too small, however well they compress."""
LARGER_FACTOR_MAX = 4
"""No row group may be larger than wanted by this factor, which bounds the memory of readers."""


@dataclass(frozen=True, slots=True)
class RowGroupSize:
    """The size of a row group."""

    rows: int
    decoded_bytes: int
    """Uncompressed size according to its footer."""


def worth_copying(row_groups: Sequence[RowGroupSize], settings: OutputSettings) -> bool:
    """Return whether row groups are copied unchanged instead of rewritten.

    Args:
        row_groups: All that would follow each other in one output.
        settings: Wanted settings of the output.
    """
    filled = [group for group in row_groups if group.rows]
    largest = max((group.decoded_bytes for group in filled), default=0)
    if largest > LARGER_FACTOR_MAX * settings.row_group_bytes:
        return False
    rows = sum(group.rows for group in filled)
    decoded_bytes = sum(group.decoded_bytes for group in filled)
    return not too_fragmented(len(filled), RowGroupSize(rows, decoded_bytes), settings)


def too_fragmented(count: int, total: RowGroupSize, settings: OutputSettings) -> bool:
    """Return whether `count` or more row groups of this total size are too small.

    The average is decisive: every file ends with a row group that is not full. While the
    average is large enough, compactions do not leave files with many tiny row groups.

    Args:
        count: Number of row groups.
        total: Total rows and bytes.
        settings: Wanted settings of the output.
    """
    small_bytes = min(settings.row_group_bytes / SMALLER_FACTOR_MAX, LARGE_BYTES)
    return total.rows < count * LARGE_ROWS and total.decoded_bytes < count * small_bytes
