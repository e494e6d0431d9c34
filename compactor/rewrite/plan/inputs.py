"""Facts about inputs for a plan: footers, sizes of decoded rows, facts from metadata.

Each footer is read once, several concurrently. An input must still have the size, rows and columns
that it had when it was added. No rows are decoded here, except a few texts whose length is not in
the footer.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types as is_type

from common.errors import (
    CompactionError,
    ConfigError,
    InputError,
    PluginError,
    RequestError,
    RewriteError,
)
from common.expressions.file_pruning import ABOVE_ALL, NULL, ColumnBounds
from common.model.file import DataFile
from common.model.request import OutputSpec
from common.model.table import Column
from common.parquet.file_inspection import codec_name, has_level, open_table_file
from common.parquet.location import Location, size_of
from common.plugins import load_configurer
from common.rows.row_facts import RowFacts, facts_of_file
from common.rows.rules import RowRules, may_expire
from common.rows.schema import leaf_count, normal_type, type_from_text
from common.spi.planner import OutputParameters
from common.wire import Assignment
from compactor.rewrite.file_io import opened_input
from compactor.rewrite.kernel.normalized_keys import (
    RowGroup,
    column_ends,
    is_text,
    row_groups_of,
)
from compactor.rewrite.memory_budget import MERGE_CORES, ordered_map
from compactor.rewrite.parquet_bytes.sources import PAGES_START, chunk_place

# ----------------------------------------------------------------------------------- Output options
# How outputs are written: settings, declared order, Bloom filters; which row groups are copied.
#
# The settings come from the table, its configurer and the request. Footers of outputs declare the
# order of rows and include Bloom filters. Row groups that are large enough are copied; smaller ones
# are rewritten.


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """Codec and row groups of every output of a job."""

    codec: str
    codec_level: int | None
    """None: the codec's default level."""
    row_group_bytes: int
    bloom_columns: tuple[str, ...] = ()
    """Columns with a Bloom filter in each row group."""
    decimals_as_integers: bool = False
    """Whether decimals of up to 18 digits are integers in files, as Iceberg has them."""
    plain_texts: bool = False
    """Whether texts that rarely repeat are stored plainly, as writers of lake tables store them:
    every engine reads them, and the rewrite takes less time for slightly larger files."""


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


# ------------------------------------------------------------------------------------------- Inputs


FOOTERS_AT_A_TIME = 8
"""Footers of an object store that are read concurrently. Of a disk, there are as many as cores:
Arrow parses a footer outside of Python's lock, which is less than half of the work."""
SMALL_BYTES = 1024**2
"""Largest uncompressed size of a small file."""


@dataclass(frozen=True, slots=True)
class InputFooter:
    """The parts of a Parquet footer that a rewrite uses."""

    num_rows: int
    size_bytes: int
    """Size of the footer itself."""
    schema: pa.Schema
    sizes: tuple[RowGroupSize, ...]
    """Sizes of its row groups."""
    codecs: frozenset[str | None]
    """Codecs of its column chunks; None: one that Névé does not write."""
    filtered: bool
    """Whether each row group has the requested Bloom filters."""
    groups: tuple[RowGroup, ...]
    """Row groups with bounds on their keys, if requested."""
    small_bytes: int | None
    """Size of the pages of its only row group, from `PAGES_START` on; None: the file is not small,
    or not plain."""
    timed: bool
    """Whether every row has a value in the requested time column."""
    bounds: tuple[Mapping[str, ColumnBounds], ...]
    """Bounds of the requested columns, for each row group; a missing one is unknown."""

    @property
    def decoded_bytes(self) -> int:
        """Uncompressed size of all rows."""
        return sum(size.decoded_bytes for size in self.sizes)


@dataclass(frozen=True, slots=True)
class FooterQuery:
    """Columns for which a footer is evaluated."""

    key: tuple[str, ...] = ()
    """Key columns that bound the row groups; empty: bounds are not needed."""
    filters: tuple[str, ...] = ()
    """Columns that should have Bloom filters."""
    time: str | None = None
    """Column that is checked for missing values."""
    bounds: tuple[Column, ...] = ()
    """Columns of the table whose values are bounded in each row group."""


def read_footer(
    location: Location, path: str, asked: FooterQuery | None = None, number: int = 0
) -> InputFooter:
    """Return the footer of an input.

    Args:
        location: Location of the table.
        path: Path of the input.
        asked: Requested columns; None: none.
        number: Number of the input.

    Raises:
        InputError: The file is missing or is not a Parquet file.
        UnavailableError: The storage does not answer.
    """
    try:
        with open_table_file(location, path) as parquet:
            metadata, schema = parquet.metadata, parquet.schema_arrow
    except RequestError as error:
        raise InputError(str(error)) from error
    asked = asked or FooterQuery()
    has_key = set(asked.key) <= set(schema.names)  # Otherwise its folders give them.
    groups = (
        row_groups_of(number, metadata, schema, asked.key, trusted=has_key) if asked.key else []
    )
    row_groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    sizes = tuple(RowGroupSize(group.num_rows, group.total_byte_size) for group in row_groups)
    return InputFooter(
        num_rows=metadata.num_rows,
        size_bytes=metadata.serialized_size,
        schema=schema,
        sizes=sizes,
        codecs=frozenset(map(codec_name, _codecs(row_groups))),
        filtered=has_blooms(metadata, schema, asked.filters),
        groups=tuple(groups),
        small_bytes=_small_bytes(metadata),
        timed=asked.time is not None and _has_no_null(metadata, asked.time),
        bounds=tuple(_bounds(group, schema, asked.bounds) for group in row_groups),
    )


def _codecs(row_groups: Sequence[pq.RowGroupMetaData]) -> set[str]:
    """Return the codecs of all column chunks that have rows."""
    return {
        group.column(at).compression
        for group in row_groups
        if group.num_rows
        for at in range(group.num_columns)
    }


def _bounds(
    group: pq.RowGroupMetaData, schema: pa.Schema, columns: Sequence[Column]
) -> dict[str, ColumnBounds]:
    """Return the bounds of columns in a row group, as far as its statistics are reliable."""
    found = {}
    for at in range(group.num_columns if columns else 0):
        chunk = group.column(at)
        for column in columns:
            if chunk.path_in_schema != column.name or column.name not in schema.names:
                continue
            arrow = schema.field(column.name).type
            if normal_type(arrow) != normal_type(type_from_text(column.type)):
                continue  # Values are converted when they are read.
            low, high = column_ends(chunk, arrow)
            if low is not None or high is not None:
                # A known lower bound includes nulls.
                found[column.name] = ColumnBounds(
                    type=column.type, least=low or NULL, greatest=high or ABOVE_ALL
                )
    return found


def _has_no_null(metadata: pq.FileMetaData, column: str) -> bool:
    """Return whether the footer shows that each row has a value in a column."""
    names = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    if column not in names:
        return False
    at = names.index(column)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if not group.num_rows:
            continue
        statistics = group.column(at).statistics
        if statistics is None or not statistics.has_null_count or statistics.null_count:
            return False
    return True


def _small_bytes(metadata: pq.FileMetaData) -> int | None:
    if metadata.num_row_groups != 1:
        return None
    group = metadata.row_group(0)
    if group.total_byte_size > SMALL_BYTES:
        return None
    columns = [group.column(at) for at in range(group.num_columns)]
    if any(column.physical_type == "INT96" for column in columns):
        return None  # A kind of time on which readers disagree.
    end = PAGES_START
    for start, size_bytes in sorted(map(chunk_place, columns)):
        if start != end:
            return None  # Its reader needs to know the positions of its pages.
        end += size_bytes
    return end - PAGES_START


def read_footers(
    location: Location,
    paths: Sequence[str],
    asked: FooterQuery,
    on_read: Callable[[], None] = lambda: None,
) -> list[InputFooter]:
    """Return the footers of inputs, in order; several are read concurrently.

    Args:
        location: Location of the table.
        paths: Paths of the inputs.
        asked: Requested columns.
        on_read: Called after each footer, possibly in several threads.

    Raises:
        InputError: A file is missing or is not a Parquet file.
        UnavailableError: The storage does not answer.
    """

    def work(path: str, number: int) -> InputFooter:
        footer = read_footer(location, path, asked, number)
        on_read()
        return footer

    at_a_time = MERGE_CORES if location.is_local else FOOTERS_AT_A_TIME
    with ThreadPoolExecutor(min(len(paths), at_a_time) or 1, "footer") as threads:
        return list(threads.map(work, paths, range(len(paths))))


# -------------------------------------------------------------------- Inputs must not have changed


_CHANGED = "it was damaged or replaced; files must not change"


def require_inputs_unchanged(
    location: Location, assignment: Assignment, footers: Mapping[str, InputFooter]
) -> None:
    """Refuse inputs that differ from the store's metadata.

    Args:
        location: Location of the table. Object stores are not asked for sizes, which would
            take a request per file.
        assignment: The job.
        footers: Footers of its inputs, by path.

    Raises:
        InputError: Names the file and the difference.
        UnavailableError: The storage does not answer.
    """
    columns = {column.name for column in assignment.table.schema}
    seen: pa.Schema | None = None
    for file in assignment.inputs:
        footer = footers[file.path]
        if footer.num_rows != file.rows:
            raise InputError(
                f"file {file.path} has {footer.num_rows} rows, but {file.rows} when it was"
                f" added: {_CHANGED}"
            )
        if (
            location.is_local
            and (present_bytes := _size_of(location, file.path)) != file.size_bytes
        ):
            raise InputError(
                f"file {file.path} has {present_bytes} bytes, but {file.size_bytes} when it was"
                f" added: {_CHANGED}"
            )
        # Of thousands of files, nearly all have the same schema as the one before. A file that was
        # added under a newer schema than the job's may have additional columns.
        newer = file.schema_id > assignment.table.schema_id
        if not newer and (seen is None or not seen.equals(footer.schema)):
            seen = footer.schema
            if strange := [name for name in seen.names if name not in columns]:
                raise InputError(
                    f"file {file.path} has a column {strange[0]!r}, which its table does not"
                    f" have: {_CHANGED}"
                )


def _size_of(location: Location, path: str) -> int:
    try:
        return size_of(location, path)
    except RequestError as error:
        raise InputError(str(error)) from error


# ---------------------------------------------------------------------------- Decoded bytes of rows


ROWS_MIN = 1 << 14
"""Files with fewer rows are not sampled, because their contents are small in any case."""
FILES_MAX, SAMPLE_ROWS = 3, 1024
SHORT_BYTES = 64
"""Stored bytes per row of a text column above which most texts are unique."""


LEVEL_CHARS_MAX = 3
CODEC, CODEC_LEVEL = "write.parquet.compression-codec", "write.parquet.compression-level"
"""Properties of a table with the codec that its own engine writes."""


def settings_like_inputs(
    assignment: Assignment,
    wanted: OutputSettings,
    footers: Sequence[InputFooter],
    properties: Mapping[str, str],
) -> tuple[OutputSettings, str | None]:
    """Return how outputs are written, and the only codec of copied row groups; None: any.

    Outputs have the codec that a request names, else that of the table's properties, else that of
    the largest input.
    """
    request = assignment.request
    if request is not None and request.output.codec is not None:
        return wanted, wanted.codec
    if (codec := codec_name(properties.get(CODEC, ""))) is not None:
        text = properties.get(CODEC_LEVEL, "")
        level = int(text) if text.isdecimal() and len(text) <= LEVEL_CHARS_MAX else None
        if level is not None and not has_level(codec, level):
            level = None
        return replace(wanted, codec=codec, codec_level=level), codec
    largest = max(footers, key=lambda footer: footer.decoded_bytes)
    codec = next(iter(sorted(codec for codec in largest.codecs if codec is not None)), wanted.codec)
    if codec == wanted.codec:
        return wanted, None
    return replace(wanted, codec=codec, codec_level=None), None


def estimate_decoded_bytes(location: Location, footers: Mapping[str, InputFooter]) -> int:
    """Return the decoded size of all rows of some files.

    Args:
        location: Location of the table.
        footers: Footers by path.

    Raises:
        InputError: A file cannot be read.
        UnavailableError: The storage does not answer.
    """
    by_footers = sum(footer.decoded_bytes for footer in footers.values())
    large = [path for path, footer in footers.items() if footer.num_rows >= ROWS_MIN]
    large.sort(key=lambda path: (-footers[path].num_rows, path))
    more = ordered_map(
        "sample", [partial(_extra_text_bytes, location, path) for path in large[:FILES_MAX]]
    )
    rows = sum(footer.num_rows for footer in footers.values())
    return by_footers + int(max(more, default=0.0) * rows)


def _extra_text_bytes(location: Location, path: str) -> float:
    """Return the difference between decoded and stored bytes of a row's texts."""
    with opened_input(location, path) as parquet:
        metadata, schema = parquet.metadata, parquet.schema_arrow
        names = [field.name for field in schema if _holds_texts(field.type)]
        stored = dict.fromkeys(names, 0)
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            for at in range(group.num_columns):
                if (column := group.column(at)).path_in_schema in stored:
                    stored[column.path_in_schema] += column.total_uncompressed_size
        rows = max(1, metadata.num_rows)
        repeated = [name for name in names if stored[name] < SHORT_BYTES * rows]
        if not repeated:
            return 0.0
        lengths = _sample_text_lengths(parquet, repeated)
    return float(sum(max(0.0, lengths[name] - stored[name] / rows) for name in repeated))


def _sample_text_lengths(parquet: pq.ParquetFile, names: list[str]) -> dict[str, float]:
    """Return the mean length of texts in some rows of the first and the middle row group."""
    groups = sorted({0, parquet.num_row_groups // 2})
    lengths = dict.fromkeys(names, 0.0)
    for number in groups:
        batches = parquet.iter_batches(SAMPLE_ROWS, row_groups=[number], columns=names)
        if (batch := next(batches, None)) is not None and batch.num_rows:
            for name in names:
                length = (
                    pc.sum(pc.binary_length(_without_dictionary(batch.column(name)))).as_py() or 0
                )
                lengths[name] = max(lengths[name], length / batch.num_rows)
    return lengths


def _without_dictionary(values: pa.Array) -> pa.Array:
    if is_type.is_dictionary(values.type):
        return values.dictionary_decode()
    return values


def _holds_texts(arrow: pa.DataType) -> bool:
    return is_text(arrow.value_type if is_type.is_dictionary(arrow) else arrow)


# ------------------------------------------------------------------------------ Facts from metadata


def clean_facts(
    files: Sequence[DataFile], rules: RowRules, schema: pa.Schema, now_s: float
) -> dict[int, RowFacts]:
    """Return the facts of inputs whose keys ascend and whose rows are all alive.

    Args:
        files: The inputs.
        rules: Rules of the table.
        schema: Schema of its rows.
        now_s: The job's `now`.
    """
    return {
        at: facts_of_file(file)
        for at, file in enumerate(files)
        if file.clean and not may_expire([file], rules, schema, now_s)
    }
