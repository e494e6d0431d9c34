"""Writes the outputs of a rewrite: one file per part, under its final name.

`OutputWriter` starts a file wherever a part begins; `OpenOutput` is one file. `RowGroupWriter`
writes row groups of about the wanted size. `RowBuffer` holds rows until a row group is full.
If rows come in another order than their outputs, `TimeCutWriter` is used instead.
"""

import json
import math
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types as is_type

from common.errors import CompactionError, InputError, RequestError, RewriteError
from common.model.outcome import DroppedRows, RowCounts
from common.parquet.location import Location, storage_error
from common.parquet.write import row_group_rows
from common.rows.conform import conform
from common.rows.key_encoding import encode_keys, filled
from common.rows.row_facts import RowFacts, greatest, times_s
from compactor.rewrite.attempt_folder import ProgressMark, allowance_of
from compactor.rewrite.file_io import (
    NewFile,
    delete_file,
    folder_fill,
    read_tables,
    table_location,
)
from compactor.rewrite.parallel_column_writer import (
    PARALLEL_BYTES_MIN,
    PARALLEL_SHARE_MAX,
    ParallelColumnWriter,
)
from compactor.rewrite.plan.inputs import OutputSettings, bloom_options, sorting_columns
from compactor.rewrite.plan.rewrite_plan import Output, RewritePlan


class RowBuffer:
    """Rows in arrival order."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self.size_bytes = 0
        """Decoded."""

    def __bool__(self) -> bool:
        return bool(self._tables)

    def add(self, table: pa.Table) -> None:
        """Append rows."""
        self._tables.append(table)
        self.size_bytes += table.nbytes

    def take(
        self, portion: Callable[[pa.Table], int], *, everything: bool
    ) -> tuple[pa.Table, int, int]:
        """Return all rows, how many of them leave the buffer, and the size of a portion.

        Args:
            portion: Returns how many rows are written together.
            everything: Whether all rows leave; otherwise those that fill no portion stay.
        """
        rows = pa.concat_tables(self._tables)
        portion_rows = portion(rows)
        count = rows.num_rows if everything else rows.num_rows // portion_rows * portion_rows
        rest = rows.slice(count)
        self._tables, self.size_bytes = ([rest], rest.nbytes) if rest.num_rows else ([], 0)
        return rows, count, portion_rows


# --------------------------------------------------------------------------- Row groups of one file


LEVELLED_CODECS = frozenset({"zstd", "gzip", "brotli"})
SAMPLE_ROWS = 4096
DISTINCT_MAX = 0.5
"""Share of distinct values in a sample up to which a dictionary is worthwhile."""
SPARSE_STRIDE, SPARSE_DISTINCT_MAX = 8, 0.85
"""The limit for a sample of one row in eight, because the other rows resemble these. For types
without a better encoding than plain."""
_PACKED = (is_type.is_integer, is_type.is_date32, is_type.is_time, is_type.is_timestamp)
_TEXTS = (is_type.is_string, is_type.is_binary)
_SAMPLED_TYPES = (*_PACKED, *_TEXTS, is_type.is_floating, is_type.is_decimal128)


class RowGroupWriter:
    """The rows of one file, in arrival order."""

    def __init__(
        self,
        sink: Any,
        schema: pa.Schema,
        writing: OutputSettings,
        key: Sequence[str] = (),
        *,
        threads: bool = True,
    ) -> None:
        """Create a writer.

        Args:
            sink: An open binary file; the caller closes it.
            schema: Schema of all rows.
            writing: Codec and size of row groups.
            key: Columns by which rows ascend; empty: rows have no order.
            threads: Whether columns may be encoded concurrently, which takes more processor time.
        """
        self.rows = 0
        self._threads = threads
        self._sink = sink
        self._schema = schema
        self._writing = writing
        self._key = key
        self._writer: pq.ParquetWriter | ParallelColumnWriter | None = None
        self._waiting = RowBuffer()

    def write(self, table: pa.Table) -> None:
        """Add rows; they are written when a row group is full."""
        self.rows += table.num_rows
        self._waiting.add(table)
        if self._waiting.size_bytes >= self._writing.row_group_bytes:
            self._write_groups()

    @property
    def waiting_bytes(self) -> int:
        """Decoded bytes of rows that wait until their row group is full."""
        return self._waiting.size_bytes

    def write_waiting(self) -> None:
        """Write all waiting rows, even if they fill no row group."""
        self._write_groups(everything=True)

    def close(self, footer: Mapping[str, str]) -> None:
        """Write the remaining rows and the footer.

        Args:
            footer: Key-value metadata.
        """
        self._write_groups(everything=True)
        writer = self._opened(self._schema.empty_table(), 0)
        writer.add_key_value_metadata(dict(footer))
        writer.close()

    def abandon(self) -> None:
        """Release the writer; its output is not usable."""
        if self._writer is not None:
            with suppress(OSError, ValueError, pa.ArrowException):
                self._writer.close()

    def _write_groups(self, *, everything: bool = False) -> None:
        """Write full row groups; remaining rows wait for more, or are written last."""
        if not self._waiting:
            return
        wanted = partial(row_group_rows, row_group_bytes=self._writing.row_group_bytes)
        rows, count, group_rows = self._waiting.take(wanted, everything=everything)
        if count:
            writer = self._opened(rows, group_rows)
            writer.write_table(rows.slice(0, count), row_group_size=group_rows)

    def _opened(self, rows: pa.Table, group_rows: int) -> "pq.ParquetWriter | ParallelColumnWriter":
        """Return the writer, opened for rows like these."""
        if self._writer is None:
            group_rows = min(rows.num_rows, group_rows)
            options = partial(_arrow_options, self._writing, distinct_columns(rows), group_rows)
            order = sorting_columns(self._schema, self._key)
            if self._is_for_threads(rows):
                self._writer = ParallelColumnWriter(self._sink, self._schema, order, options)
            else:
                self._writer = pq.ParquetWriter(
                    self._sink, self._schema, sorting_columns=order, **options(self._schema)
                )
        return self._writer

    def _is_for_threads(self, rows: pa.Table) -> bool:
        """Return whether columns are encoded concurrently: several columns have many bytes."""
        if not self._threads:
            return False
        if min(rows.nbytes, self._writing.row_group_bytes) < PARALLEL_BYTES_MIN:
            return False
        largest = max(column.nbytes for column in rows.columns)
        return bool(largest <= PARALLEL_SHARE_MAX * rows.nbytes)


def _arrow_options(
    writing: OutputSettings, plain: Sequence[str], group_rows: int, schema: pa.Schema
) -> dict[str, Any]:
    """Return the options of Arrow's writer.

    Args:
        writing: The settings.
        plain: Columns without dictionaries.
        group_rows: Rows of a row group.
        schema: The columns to write.
    """
    codec = writing.codec.lower()
    blooms = [name for name in writing.bloom_columns if name in schema.names]
    return {
        "compression": "none" if codec == "uncompressed" else codec,
        "compression_level": writing.codec_level if codec in LEVELLED_CODECS else None,
        "use_dictionary": _dictionary_columns(schema, plain),
        "column_encoding": _encodings(schema, plain, texts=not writing.plain_texts),
        "write_statistics": True,
        "write_page_index": True,
        "write_page_checksum": True,
        "bloom_filter_options": bloom_options(blooms, group_rows),
        "store_decimal_as_integer": writing.decimals_as_integers,
    }


def distinct_columns(rows: pa.Table) -> list[str]:
    """Return the columns whose values rarely repeat.

    Neighbours in key order are similar, so the sample is spread over all rows.
    """
    import polars as pl  # Here: tasks that store values of expressions do without it.

    if rows.num_rows == 0:
        return []
    stride = -(-rows.num_rows // SAMPLE_ROWS)
    fields = [field for field in rows.schema if _is_any(field.type, _SAMPLED_TYPES)]
    sample = pl.from_arrow(_every(rows.select([field.name for field in fields]), stride))
    assert isinstance(sample, pl.DataFrame)
    names = []
    for field in fields:
        sparse = stride >= SPARSE_STRIDE and not _is_any(field.type, _PACKED)
        limit = SPARSE_DISTINCT_MAX if sparse else DISTINCT_MAX
        if sample.get_column(field.name).n_unique() > limit * sample.height:
            names.append(field.name)
    return names


def _every(rows: pa.Table, stride: int) -> pa.Table:
    """Return every row with a number that is a multiple of `stride`.

    Taken from one batch after the other: from a table, Arrow would join its columns first.
    """
    taken, before = list[pa.RecordBatch](), 0
    for batch in rows.to_batches():
        numbers = np.arange(-before % stride, batch.num_rows, stride)
        taken.append(batch.take(pa.array(numbers)))
        before += batch.num_rows
    return pa.Table.from_batches(taken, rows.schema)


def _encodings(schema: pa.Schema, plain: Sequence[str], *, texts: bool) -> dict[str, str]:
    """Return the encodings of columns without dictionaries that are not plain.

    Args:
        schema: The columns.
        plain: Columns without dictionaries.
        texts: Whether texts get one.
    """
    encodings = {}
    for field in schema:
        if field.name not in plain:
            continue
        if _is_any(field.type, _TEXTS) and texts:
            encodings[field.name] = "DELTA_LENGTH_BYTE_ARRAY"
        elif _is_any(field.type, _PACKED):
            encodings[field.name] = "DELTA_BINARY_PACKED"
    return encodings


def _dictionary_columns(schema: pa.Schema, plain: Sequence[str]) -> list[str]:
    """Return the paths of the leaf columns that get dictionaries."""
    kept = pa.schema([field for field in schema if field.name not in plain])
    if not any(is_type.is_nested(field.type) for field in kept):
        return list(kept.names)
    # Only the writer defines the names of nested columns.
    written = pa.BufferOutputStream()
    pq.write_table(kept.empty_table(), written)
    leaves = pq.read_metadata(pa.BufferReader(written.getvalue())).schema
    return [leaves.column(at).path for at in range(len(leaves))]


def _is_any(arrow: pa.DataType, kinds: Sequence[Callable[[pa.DataType], bool]]) -> bool:
    return any(belongs(arrow) for belongs in kinds)


# ----------------------------------------------------------------------------- The outputs of a job


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A written output."""

    part: int
    path: str
    rows: int


class AnyWriter(Protocol):
    """A writer of outputs."""

    path: str
    """The last opened file, or the first one to be opened."""

    def abandon(self) -> None:
        """Delete everything written so far."""


WriterType = TypeVar("WriterType", bound=AnyWriter)


def open_output_writer(plan: RewritePlan) -> AbstractContextManager["OutputWriter"]:
    """Return a writer of the plan's outputs, in `abandoned_on_error`."""
    return abandoned_on_error(OutputWriter(plan))


@contextmanager
def abandoned_on_error(writer: WriterType) -> Iterator[WriterType]:
    """Yield a writer; after an error its outputs are deleted.

    Raises:
        RewriteError: The outputs cannot be written: no space, no rights, or they exist.
        UnavailableError: The storage does not answer.
    """
    try:
        yield writer
    except OSError as error:
        writer.abandon()
        message = f"output {writer.path} cannot be written: {error}"
        raise storage_error(RewriteError, message, error) from error
    except BaseException:
        writer.abandon()
        raise


class OutputWriter:
    """Accepts rows in key order and starts a file wherever a part begins.

    A file is closed when the next one begins, and the last one by `finish`, because its footer
    has entries that are known only at the end.
    """

    def __init__(self, plan: RewritePlan) -> None:
        self._plan = plan
        self._location = table_location(plan.location)
        self._open: OpenOutput | None = None
        self._written: list[WrittenFile] = []
        self._rows = 0
        self.path = plan.output.paths[0]
        """The open file, or the next one."""

    def write(self, table: pa.Table, dropped: DroppedRows | None) -> None:
        """Write rows, which belong to the open part or to later ones.

        Args:
            table: Rows in the plan's schema, in order.
            dropped: The dead rows dropped so far.
        """
        for part, rows in self._parts(table):
            if self._open is not None and self._open.part != part:
                self._close(dropped)
            if self._open is None:
                self._begin(part)
            assert self._open is not None
            self._open.write(rows)

    def finish(
        self,
        dropped: DroppedRows | None,
        meanwhile: Callable[[Sequence[WrittenFile]], None] = lambda _: None,
    ) -> tuple[WrittenFile, ...]:
        """Close the last file and return the written files.

        Without any rows, an empty file is written as the first part. It is not an output: it shows
        a rebuild that the inputs are replaced by nothing.

        Args:
            dropped: All dropped dead rows.
            meanwhile: Called with the written files while a disk makes the last one durable.
        """
        if self._open is None:
            self._begin(0)
        self._close(dropped, last=True, meanwhile=lambda: meanwhile(self._filled()))
        return self._filled()

    def abandon(self) -> None:
        """Delete everything written so far."""
        if self._open is not None:
            self._open.abandon()
        for file in self._written:
            delete_file(self._location, file.path)

    def _begin(self, part: int) -> None:
        self.path = self._plan.output.paths[part]
        self._open = OpenOutput(self._plan, self._location, part, self.path)

    def _close(
        self,
        dropped: DroppedRows | None,
        *,
        last: bool = False,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        assert self._open is not None
        self._written.append(WrittenFile(self._open.part, self.path, self._open.rows))
        # The last file's list shows a rebuild whether an attempt has written all files.
        outputs = [file.path for file in self._written] if last else None
        self._open.close(purge_after(self._plan.output, dropped), outputs, meanwhile)
        self._open = None

    def _filled(self) -> tuple[WrittenFile, ...]:
        return tuple(file for file in self._written if file.rows)

    def _parts(self, table: pa.Table) -> Iterable[tuple[int, pa.Table]]:
        """Return the rows by part, ascending like the rows."""
        if self._plan.output.part_rows:
            return self._parts_of_rows(table, self._plan.output.part_rows)
        if not self._plan.output.cuts:
            return [(0, table)] if table.num_rows else []
        rules = self._plan.rules.row_rules
        keys = encode_keys(table, rules.key, rules.key_types)
        pieces, start = [], 0
        for part, cut in enumerate((*self._plan.output.cuts, None)):
            stop = len(keys) if cut is None else _rows_up_to(keys, cut)
            if stop > start:
                pieces.append((part, table.slice(start, stop - start)))
                start = stop
        return pieces

    def _parts_of_rows(self, table: pa.Table, part_rows: int) -> Iterable[tuple[int, pa.Table]]:
        """Yield rows by part, with this number of rows per part."""
        start = 0
        while start < table.num_rows:
            part, within = divmod(self._rows, part_rows)
            rows = table.slice(start, part_rows - within)
            self._rows += rows.num_rows
            start += rows.num_rows
            yield part, rows


class OpenOutput:
    """One output during the write."""

    def __init__(self, plan: RewritePlan, location: Location, part: int, path: str) -> None:
        """Create its file.

        Args:
            plan: Plan of the job.
            location: Location of the table.
            part: The part of its rows.
            path: Path of the file, relative to the location.
        """
        self.part = part
        self.path = path
        self._plan = plan
        self._file = NewFile(location, path)
        self._groups = RowGroupWriter(
            self._file.sink, plan.rules.schema, plan.output.settings, plan.rules.row_rules.key
        )
        self._allowance, self._paid_bytes = allowance_of(plan.folder), 0

    @property
    def rows(self) -> int:
        """Number of its rows so far."""
        return self._groups.rows

    @property
    def waiting_bytes(self) -> int:
        """Decoded bytes of rows that wait until their row group is full."""
        return self._groups.waiting_bytes

    def write(self, table: pa.Table) -> None:
        """Add rows; they are written when a row group is full."""
        self._groups.write(table)
        self._pay()

    def write_waiting(self) -> None:
        """Write all waiting rows, even if they fill no row group."""
        self._groups.write_waiting()
        self._pay()

    def close(
        self,
        purge: bytes | None,
        outputs: list[str] | None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Write the remaining rows and the footer; the file is then complete and durable.

        Args:
            purge: The tablet's watermark after the commit.
            outputs: For the last file of an attempt: all of them.
            meanwhile: Called while a disk makes the file durable.
        """
        self._groups.close(output_footer(self._plan.output, purge, outputs))
        self._pay()
        self._file.close(meanwhile)
        self._allowance.synced(self._paid_bytes, self._file.sync_s)

    def abandon(self) -> None:
        """Delete the file."""
        self._groups.abandon()
        self._file.abandon()

    def _pay(self) -> None:
        """Pay for the bytes written since the last call, because sizes are unknown in advance."""
        written_bytes = self._file.sink.tell()
        if written_bytes > self._paid_bytes:
            self._allowance.pay(written_bytes=written_bytes - self._paid_bytes)
            self._paid_bytes = written_bytes
            self._file.reached(written_bytes)


def output_footer(
    output: Output, purge: bytes | None, outputs: Sequence[str] | None
) -> dict[str, str]:
    """Return the key-value metadata of an output.

    Args:
        output: The output part of the plan.
        purge: The tablet's watermark after the commit.
        outputs: For the last file of an attempt: all of them.
    """
    footer = {**dict(output.footer), "neve.purge": purge.hex() if purge else ""}
    return footer if outputs is None else footer | {"neve.outputs": json.dumps(list(outputs))}


def purge_after(output: Output, dropped: DroppedRows | None) -> bytes | None:
    """Return the tablet's watermark after the commit."""
    return greatest((output.purge, dropped.version_max if dropped else None))


def _rows_up_to(keys: pa.LargeBinaryArray, cut: bytes) -> int:
    below = pc.less_equal(keys, pa.scalar(cut, pa.large_binary()))
    return int(np.count_nonzero(below.to_numpy(zero_copy_only=False)))


# ---------------------------------------------------------------------------------- Time cut writer
# Writes the outputs of a job that cuts at times: several open files, one for each part.
#
# Rows of a table without a key come in any order of times. So every part has an open file, and each
# row goes to the file of its part. All files together hold a bounded number of rows. Above the
# bound, the file that holds most rows writes them as a row group.
#
#   part 0          before the first time
#   part n          from time n - 1 on, before time n
#   the last part   rows without a time
#
# If a part has more rows than one file may have, its rows are counted first from the time column,
# and divided evenly.


Places = npt.NDArray[np.int64]


def time_parts(rows: pa.Table, plan: RewritePlan) -> Places:
    """Return the part of each row.

    Args:
        rows: Rows with at least the time column.
        plan: Plan of the job.
    """
    assert plan.rules.row_rules.time_column is not None
    times = times_s(rows.column(plan.rules.row_rules.time_column))
    parts = np.searchsorted(np.asarray(plan.output.cuts_at_s), times, side="right")
    return np.where(np.isnan(times), len(plan.output.cuts_at_s) + 1, parts)


def rows_of_files(plan: RewritePlan) -> tuple[int, ...]:
    """Return the largest number of rows of a file, for each part.

    Raises:
        InputError: An input cannot be read.
        UnavailableError: The storage does not answer.
    """
    parts, most = len(plan.output.cuts_at_s) + 2, plan.output.file_rows_max
    if not most or plan.inputs.rows <= most:
        return (plan.inputs.rows,) * parts
    counts = sum((_count(plan, path) for path in plan.inputs.paths), np.zeros(parts, np.int64))
    return tuple(-(-int(count) // max(1, math.ceil(count / most))) for count in counts)


def _count(plan: RewritePlan, path: str) -> Places:
    """Return the number of rows of an input in each part."""
    rules, schema = plan.rules.row_rules, plan.rules.schema
    fill = folder_fill(rules, schema, path)
    column = pa.schema([schema.field(rules.time_column)])
    counts = np.zeros(len(plan.output.cuts_at_s) + 2, np.int64)
    mark = ProgressMark(plan.folder, "count")
    for read in read_tables(
        table_location(plan.location),
        path,
        plan.read_rows_max,
        [rules.time_column or ""],
        pay=allowance_of(plan.folder).pay,
    ):
        try:
            named = [name for name in filled(read, fill).column_names if name in column.names]
            times = conform(filled(read, fill).select(named), column, f"file {path}")
        except RequestError as error:
            raise InputError(str(error)) from error
        mark.add(times.nbytes, 0)
        rows = times if times.num_rows == read.num_rows else _without_times(column, read.num_rows)
        counts += np.bincount(time_parts(rows, plan), minlength=len(counts))
    return counts


def _without_times(column: pa.Schema, rows: int) -> pa.Table:
    """Return rows of a file that lacks the time column."""
    return pa.table([pa.nulls(rows, field.type) for field in column], schema=column)


class TimeCutWriter:
    """Accepts rows in any order and writes each to a file of its part.

    Invariant: a part has at most one open file, and the rows held by all open files take at
    most `_held_max_bytes` after each `write`.
    """

    def __init__(self, plan: RewritePlan, rows_max: Sequence[int]) -> None:
        """Create a writer without files.

        Args:
            plan: Plan of the job.
            rows_max: For each part: largest number of rows of one file, see `rows_of_files`.
        """
        self.path = plan.output.paths[0]
        self._plan = plan
        self._rows_max = rows_max
        self._held_max_bytes = max(plan.memory.group_bytes, plan.memory.held_bytes // 2)
        self._location = table_location(plan.location)
        self._open: dict[int, OpenOutput] = {}
        self._written: list[WrittenFile] = []

    def write(self, table: pa.Table) -> None:
        """Write rows in the plan's schema.

        Raises:
            RewriteError: There are more files than reserved outputs.
        """
        for part, rows in self._parts(table):
            while rows.num_rows:
                output = self._output(part)
                chosen = rows.slice(0, max(1, self._rows_max[part]) - output.rows)
                output.write(chosen)
                rows = rows.slice(chosen.num_rows)
        while sum(output.waiting_bytes for output in self._open.values()) > self._held_max_bytes:
            max(self._open.values(), key=lambda output: output.waiting_bytes).write_waiting()

    def finish(self, dropped: DroppedRows | None) -> tuple[WrittenFile, ...]:
        """Close all files and return the written ones; see `OutputWriter.finish`."""
        if not self._open:
            self._begin(0)
        *others, last = sorted(self._open)
        for part in others:
            self._close(part, dropped)
        self._close(last, dropped, last=True)
        return tuple(file for file in self._written if file.rows)

    def abandon(self) -> None:
        """Delete everything written so far."""
        for output in self._open.values():
            output.abandon()
        for file in self._written:
            delete_file(self._location, file.path)

    def _parts(self, table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows of each part, in arrival order."""
        if not table.num_rows:
            return
        parts = time_parts(table, self._plan)
        present = np.unique(parts)
        if len(present) == 1:
            yield int(present[0]), table
            return
        for part in present:
            yield int(part), table.take(pa.array(np.flatnonzero(parts == part)))

    def _output(self, part: int) -> OpenOutput:
        """Return the open file of a part; a new one if the last is full."""
        if part in self._open and self._open[part].rows >= self._rows_max[part]:
            self._close(part, None)
        if part not in self._open:
            self._begin(part)
        return self._open[part]

    def _begin(self, part: int) -> None:
        number = len(self._open) + len(self._written)
        if number >= len(self._plan.output.paths):
            raise RewriteError(
                f"rows need more than the {number} reserved outputs; "
                "the next plan takes the current state of the table into account"
            )
        self.path = self._plan.output.paths[number]
        self._open[part] = OpenOutput(self._plan, self._location, part, self.path)

    def _close(self, part: int, dropped: DroppedRows | None, *, last: bool = False) -> None:
        output = self._open[part]
        outputs = [*(file.path for file in self._written), output.path] if last else None
        output.close(purge_after(self._plan.output, dropped), outputs)
        self._written.append(WrittenFile(part, output.path, output.rows))
        del self._open[part]


# -------------------------------------------------------------------------------------- Task result
# The outcome of a task, in the form that travels from its process to the driver.


RESULT_SCHEMA = "result binary"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """The result of a task that wrote outputs."""

    counts: RowCounts
    dropped: DroppedRows | None
    files: tuple[WrittenFile, ...]
    digest: int | None = None
    """Sum of the hashes of the expected output rows; None: not computed."""
    facts: tuple[RowFacts, ...] | None = None
    """Facts of each file from reading it back; None: not read back."""


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """An error that a retry would repeat; no output is left."""

    error_class: str
    cause: str


def outcome_batch(task: Callable[[], object]) -> pa.RecordBatch:
    """Run a task that writes outputs; return its outcome in Spark SQL's form."""
    return pa.record_batch([pa.array([pickled_outcome(task)], pa.binary())], names=["result"])


def pickled_outcome(task: Callable[[], object]) -> bytes:
    """Run a task that writes outputs; return its outcome, pickled."""
    outcome: object
    try:
        outcome = task()
    except CompactionError as error:
        outcome = TaskFailure(type(error).__name__, str(error))
    except Exception as error:
        # A boundary: Spark would retry, and report only that there was an earlier try.
        failure = storage_error(RewriteError, f"{type(error).__name__}: {error}", error)
        outcome = TaskFailure(type(failure).__name__, str(failure))
    return pickle.dumps(outcome)
