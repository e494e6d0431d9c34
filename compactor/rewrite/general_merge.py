"""The general rewrite, for tables and jobs that the kernel does not support.

in memory   one task reads everything, merges and writes: small jobs
  sorted      tasks read, Spark sorts by encoded key (on disk if necessary), one task merges
              the stream and writes
  bag         one task copies the rows of an append-only table, without the expired rows

Rows that cross Spark are converted to types that Spark preserves. No task may run twice over
the same output; `spark_tasks.refuse_second_try` ensures that.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types as is_type

from common.errors import InputError, RequestError, RewriteError, VerificationError
from common.expressions import NotNativeError
from common.model.outcome import RowCounts
from common.parquet.location import open_location, storage_error
from common.rows.conform import conform
from common.rows.key_encoding import encode_keys, filled
from common.rows.merge import (
    DIGEST_MODULUS,
    MergeResult,
    Tally,
    digest_of,
    keys_ascend,
    merge_tables,
    sum_counts,
)
from common.rows.row_facts import RowFacts, RowTally, unite_facts
from common.rows.rules import DropRule, RowRules, dead_rows
from compactor.rewrite.attempt_folder import ProgressMark, allowance_of
from compactor.rewrite.file_io import (
    folder_fill,
    read_tables,
    table_location,
)
from compactor.rewrite.outputs import (
    RowGroupWriter,
    TaskResult,
    TimeCutWriter,
    WrittenFile,
    abandoned_on_error,
    open_output_writer,
    output_footer,
    purge_after,
    rows_of_files,
)
from compactor.rewrite.parquet_bytes.relocation import StitchedFooter, StitchPiece
from compactor.rewrite.parquet_bytes.stitch import stitch
from compactor.rewrite.plan.rewrite_plan import RewritePlan
from compactor.rewrite.transform import RowChange, row_change_of

# ---------------------------------------------------------------------------- Rows that cross Spark


KEY_COLUMN = "key"
"""Name of the column with the encoded key; columns are c0, c1, …"""
_INTEGERS = {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}
_SPARK_NAMES = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.binary(): "binary",
}
_PLAIN_INSIDE = frozenset(
    {pa.bool_(), *_INTEGERS.values(), pa.float32(), pa.float64(), pa.string(), pa.binary()}
)
_NESTED_NAMES = {
    **_SPARK_NAMES,
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
}


def spark_schema(schema: pa.Schema) -> str:
    """Return the columns that cross Spark, as a Spark schema.

    Raises:
        InputError: A column's type cannot cross.
    """
    columns = [f"{KEY_COLUMN} binary"]
    columns += [f"c{at} {_spark_name(field)}" for at, field in enumerate(schema)]
    return ", ".join(columns)


def to_spark_rows(table: pa.Table, keys: pa.LargeBinaryArray) -> pa.Table:
    """Return a table in the form that crosses Spark.

    Args:
        table: Rows with normal types.
        keys: The encoded key of each.
    """
    columns = [keys.cast(pa.binary())]
    columns += [_to_carrier(column.combine_chunks()) for column in table.columns]
    return pa.table(columns, names=[KEY_COLUMN, *(f"c{at}" for at in range(table.num_columns))])


def from_spark_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Return rows that have crossed Spark, in their original schema."""
    columns = [_from_carrier(batch.column(f"c{at}"), field.type) for at, field in enumerate(schema)]
    return pa.table(columns, schema=schema)


def _spark_name(field: pa.Field) -> str:
    carrier = _spark_carrier_type(field.type)
    if carrier is not None:
        return _SPARK_NAMES[carrier]
    name = _nested_name(field.type)
    if name is None:
        message = (
            f"column {field.name} of type {field.type} cannot be sorted on disk, "
            f"and the inputs are too large for memory"
        )
        raise InputError(message)
    return name


def _spark_carrier_type(arrow: pa.DataType) -> pa.DataType | None:
    """Return the type in which a value crosses; None: nested, unchanged."""
    if is_type.is_nested(arrow):
        return None
    if is_type.is_boolean(arrow):
        return arrow
    if is_type.is_null(arrow):
        return pa.int8()
    sized = is_type.is_decimal(arrow) or is_type.is_fixed_size_binary(arrow)
    if sized or is_type.is_string(arrow) or is_type.is_binary(arrow):
        return pa.binary()
    return _INTEGERS[arrow.bit_width // 8]


def _to_carrier(array: pa.Array) -> pa.Array:
    carrier = _spark_carrier_type(array.type)
    if carrier is None or carrier == array.type:
        return array
    if is_type.is_null(array.type):
        return pa.nulls(len(array), carrier)
    if is_type.is_decimal(array.type):
        array = array.view(pa.binary(array.type.byte_width))
    if is_type.is_fixed_size_binary(array.type):
        return array.cast(carrier)
    return array.view(carrier)


def _from_carrier(array: pa.Array, arrow: pa.DataType) -> pa.Array:
    carrier = _spark_carrier_type(arrow)
    if carrier is None:
        return array.cast(arrow)
    if is_type.is_null(arrow):
        return pa.nulls(len(array))
    if is_type.is_decimal(arrow):
        return array.cast(pa.binary(arrow.byte_width)).view(arrow)
    if is_type.is_fixed_size_binary(arrow):
        return array.cast(arrow)
    return array if carrier == arrow else array.view(arrow)


def _nested_name(arrow: pa.DataType) -> str | None:
    if is_type.is_list(arrow):
        inner = _nested_name(arrow.value_type)
        return inner and f"array<{inner}>"
    if is_type.is_map(arrow):
        key, item = _nested_name(arrow.key_type), _nested_name(arrow.item_type)
        return f"map<{key}, {item}>" if key and item else None
    if is_type.is_struct(arrow):
        parts = [(field.name, _nested_name(field.type)) for field in arrow]
        if not all(part for _, part in parts):
            return None
        quoted = (f"`{name.replace('`', '``')}`: {part}" for name, part in parts)
        return f"struct<{', '.join(quoted)}>"
    return _NESTED_NAMES[arrow] if arrow in _PLAIN_INSIDE else None


# -------------------------------------------------------------------------------------------- Tasks


def rewrite_in_memory(plan: RewritePlan) -> TaskResult:
    """Merge all inputs of a keyed table at once."""
    mark, change = ProgressMark(plan.folder, "write"), row_change_of(plan)
    numbers = range(len(plan.inputs.paths))
    tables = [piece.rows for at in numbers for piece in _read_input(plan, at, mark, change)]
    result = merge_tables(tables, plan.rules.row_rules, plan.rules.now_s, plan.rules.drop)
    del tables
    with open_output_writer(plan) as writer:
        writer.write(result.table, result.dropped)
        files = writer.finish(result.dropped)
    return TaskResult(counts=result.counts, dropped=result.dropped, files=files)


def rewrite_bag(plan: RewritePlan) -> TaskResult:
    """Copy the rows of an append-only table, without those that expired or are deleted.

    Raises:
        NotNativeError: Spark has to evaluate the expressions of a transform.
    """
    tally, mark, numbers = (
        Tally(),
        ProgressMark(plan.folder, "write"),
        range(len(plan.inputs.paths)),
    )
    if plan.output.cuts_at_s:
        with abandoned_on_error(TimeCutWriter(plan, rows_of_files(plan))) as by_time:
            for kept in _kept_rows(plan, numbers, mark, tally):
                by_time.write(kept)
            files = by_time.finish(None)
    else:
        with open_output_writer(plan) as writer:
            for kept in _kept_rows(plan, numbers, mark, tally):
                writer.write(kept, None)
            files = writer.finish(None)
    return TaskResult(counts=tally.counts, dropped=None, files=files, digest=tally.digest)


def copy_whole_bag(plan: RewritePlan) -> TaskResult | None:
    """Run `rewrite_bag`; None: only Spark can evaluate the expressions of a transform."""
    try:
        return rewrite_bag(plan)
    except NotNativeError:
        return None


def _kept_rows(
    plan: RewritePlan, inputs: Iterable[int], mark: ProgressMark, tally: Tally
) -> Iterator[pa.Table]:
    """Yield the rows of some inputs of an append-only table that stay."""
    change = row_change_of(plan)
    for at in inputs:
        for piece in _read_input(plan, at, mark, change):
            tally.deleted(piece.deleted)
            yield filter_bag(piece.read, piece.rows, plan.rules.row_rules, plan.rules.now_s, tally)


@dataclass(frozen=True, slots=True)
class BagPart:
    """Rows of consecutive inputs of an append-only table, in a file of the attempt's folder."""

    name: str
    counts: RowCounts
    facts: RowFacts
    """Facts of the rows in the file, read back."""


def copy_bag_part(plan: RewritePlan, inputs: Sequence[int], name: str) -> BagPart | None:
    """Copy the rows of some inputs of an append-only table to a file in the attempt's folder.

    Args:
        plan: Plan of the job.
        inputs: Numbers of the inputs, in order.
        name: Name of the file.

    Returns:
        None if only Spark can evaluate the expressions of a transform.

    Raises:
        RewriteError: The file cannot be written.
        VerificationError: It has other rows than were written.
    """
    tally, mark = Tally(), ProgressMark(plan.folder, name)
    try:
        return write_part(plan, _kept_rows(plan, inputs, mark, tally), tally, name)
    except NotNativeError:
        return None


def write_part(
    plan: RewritePlan,
    tables: Iterable[pa.Table],
    tally: Tally,
    name: str,
    again: Iterable[pa.Table] | None = None,
    *,
    threads: bool = True,
) -> BagPart:
    """Write rows of an append-only table to a file in the attempt's folder, and read them back.

    Args:
        plan: Plan of the job.
        tables: Rows in the plan's schema.
        tally: Has counted all rows when the last table is taken, and hashed them without `again`.
        name: Name of the file.
        again: The same rows, read once more: a comparison is several times as fast as hashes.
        threads: Whether columns may be encoded concurrently.

    Raises:
        RewriteError: The file cannot be written.
        VerificationError: It has other rows than were written.
    """
    path = Path(plan.folder, name)
    try:
        with path.open("xb") as sink:
            rows = RowGroupWriter(sink, plan.rules.schema, plan.output.settings, threads=threads)
            for table in tables:
                rows.write(table)
            rows.close({})
    except OSError as error:
        raise storage_error(RewriteError, f"{path} cannot be written: {error}", error) from error
    facts, digest = RowTally(plan.rules.row_rules), 0
    comparison = None if again is None else RowComparison(again)
    with pq.ParquetFile(path, page_checksum_verification=True) as parquet:
        for batch in parquet.iter_batches(plan.read_rows_max, use_threads=False):
            table = pa.Table.from_batches([batch])
            facts.see(table, name)
            if comparison is None:
                digest = (digest + digest_of(table)) % DIGEST_MODULUS
            elif not comparison.matches(table):
                raise VerificationError(f"{path} has other rows than were written")
    found = facts.facts()
    if (found.rows, digest) != (tally.counts.rows_out, tally.digest):
        raise VerificationError(f"{path} has other rows than the {tally.counts.rows_out} written")
    return BagPart(name, tally.counts, found)


class RowComparison:
    """Compares tables with others that hold the same rows in the same order, cut elsewhere."""

    def __init__(self, tables: Iterable[pa.Table]) -> None:
        self._tables = iter(tables)
        self._rest: pa.Table | None = None

    def matches(self, table: pa.Table) -> bool:
        """Return whether the next rows are those of a table."""
        start = 0
        while start < table.num_rows:
            if self._rest is None or not self._rest.num_rows:
                self._rest = next(self._tables, None)
                if self._rest is None:
                    return False
            count = min(self._rest.num_rows, table.num_rows - start)
            one, other = table.slice(start, count), self._rest.slice(0, count)
            # Arrow compares NaN with NaN as different; the hashes do not.
            if not one.equals(other) and digest_of(one) != digest_of(other):
                return False
            self._rest = self._rest.slice(count)
            start += count
        return True


def join_bag_parts(plan: RewritePlan, parts: Sequence[BagPart]) -> TaskResult:
    """Stitch the parts of an append-only table to the only output.

    Raises:
        RewriteError: The output cannot be written.
        VerificationError: It differs from the parts.
    """
    counts, allowance = RowCounts(), allowance_of(plan.folder)
    for part in parts:
        counts = sum_counts(counts, part.counts)
    filled_parts = [part for part in parts if part.facts.rows]
    if not filled_parts:
        with open_output_writer(plan) as writer:
            return TaskResult(counts=counts, dropped=None, files=writer.finish(None), facts=())
    folder, path = open_location(Path(plan.folder).as_uri()), plan.output.paths[0]
    metadata = output_footer(plan.output, purge_after(plan.output, None), [path])
    made = stitch(
        table_location(plan.location),
        [StitchPiece(part.name, location=folder) for part in filled_parts],
        path,
        footing=StitchedFooter(metadata=metadata, schema=plan.rules.schema),
        on_copied=lambda size_bytes: allowance.pay(written_bytes=size_bytes),
    )
    allowance.synced(made.synced_bytes, made.sync_s)
    facts = unite_facts([part.facts for part in filled_parts])
    files = (WrittenFile(0, path, made.rows),)
    return TaskResult(counts=counts, dropped=None, files=files, facts=(facts,))


def read_for_sort(plan: RewritePlan, inputs: Iterable[int]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some inputs in the form that crosses Spark, with encoded keys.

    Args:
        plan: Plan of the job.
        inputs: Their numbers.
    """
    change = row_change_of(plan)
    for at in inputs:
        mark = ProgressMark(plan.folder, f"read-{at}")
        for piece in _read_input(plan, at, mark, change):
            keys = encode_keys(piece.rows, plan.rules.row_rules.key, plan.rules.row_rules.key_types)
            yield from to_spark_rows(piece.rows, keys).combine_chunks().to_batches()


def write_sorted(plan: RewritePlan, batches: Iterable[pa.RecordBatch]) -> TaskResult:
    """Merge rows from Spark, which are in key order, and write them."""
    tally = Tally()
    mark = ProgressMark(plan.folder, "write")
    tables = (from_spark_rows(batch, plan.rules.schema) for batch in batches)
    with open_output_writer(plan) as writer:
        for table in merge_sorted(
            tables, plan.rules.row_rules, plan.rules.now_s, plan.rules.drop, tally
        ):
            writer.write(table, tally.dropped)
            mark.add(table.nbytes, table.num_rows)
        files = writer.finish(tally.dropped)
    return TaskResult(counts=tally.counts, dropped=tally.dropped, files=files)


@dataclass(frozen=True, slots=True)
class _InputRows:
    """Some rows of an input: as read, and as merged."""

    read: pa.Table
    """Possibly with other columns and types; after a transform the same as `rows`."""
    rows: pa.Table
    deleted: int = 0
    """Number of read rows that a transform has removed."""


def _read_input(
    plan: RewritePlan, at: int, mark: ProgressMark, change: RowChange
) -> Iterator[_InputRows]:
    """Yield the rows of an input in the plan's schema, transformed.

    Raises:
        InputError: The file cannot be read, or a value of it does not fit.
    """
    path, start = plan.inputs.paths[at], 0
    fill = folder_fill(plan.rules.row_rules, plan.rules.schema, path)
    pay = allowance_of(plan.folder).pay
    location = table_location(plan.location)
    for table in read_tables(location, path, plan.read_rows_max, pay=pay):
        try:
            read = filled(table, fill)
            fitting = conform(read, plan.rules.schema, f"file {path}")
        except RequestError as error:
            raise InputError(str(error)) from error
        mark.add(fitting.nbytes, fitting.num_rows)
        rows = change.rows(at, start, fitting)
        same = rows is fitting
        yield _InputRows(read if same else rows, rows, fitting.num_rows - rows.num_rows)
        start += read.num_rows
    change.end(at)


# ------------------------------------------------------------- Rows through the row rules, in steps


STEP_BYTES = 32 * 1024**2
"""Decoded bytes that are merged at a time."""


def merge_sorted(
    tables: Iterable[pa.Table], rules: RowRules, now_s: float, drop: DropRule, tally: Tally
) -> Iterator[pa.Table]:
    """Yield the rows that stay, by key; the input is in key order.

    Rows of one key may span any number of tables. What may stay of the last key is held back and
    merged again, because merging allows any order.

    Args:
        tables: Rows in the rules' schema, in the order of encoded keys.
        rules: Rules of the table.
        now_s: The job's `now`.
        drop: Which dead rows may be dropped.
        tally: Counts the outcome of the rows.

    Raises:
        VerificationError: The input is not in order.
    """
    kept_back: pa.Table | None = None
    for table in _steps(tables):
        whole = table if kept_back is None else pa.concat_tables([kept_back, table])
        last = _last_key_begins(whole, rules)
        done = merge_tables([whole.slice(0, last)], rules, now_s, drop)
        best = merge_tables([whole.slice(last)], rules, now_s, drop.of_a_part)
        tally.add(done)
        # What is held back will be counted again; the rows that it supersedes will not.
        tally.counts = sum_counts(tally.counts, _only_superseded(best))
        kept_back = best.table
        yield done.table
    if kept_back is not None:
        done = merge_tables([kept_back], rules, now_s, drop)
        tally.add(done)
        yield done.table


def _only_superseded(best: MergeResult) -> RowCounts:
    superseded = best.counts.superseded
    return RowCounts(rows_in=superseded, superseded=superseded)


def filter_bag(
    read: pa.Table, fitting: pa.Table, rules: RowRules, now_s: float, tally: Tally
) -> pa.Table:
    """Return the rows of an append-only table that have not expired.

    Args:
        read: Rows as they were read. They are hashed in this form, because the later
            conversion is to be verified as well.
        fitting: The same rows in the rules' schema.
        rules: Rules of a table without a key.
        now_s: The job's `now`.
        tally: Counts and hashes the expected output.
    """
    _, expired = dead_rows(fitting, rules, now_s)
    gone = int(expired.sum())
    kept = pa.array(~expired)
    counts = RowCounts(rows_in=read.num_rows, rows_out=read.num_rows - gone, expired_dropped=gone)
    tally.counts = sum_counts(tally.counts, counts)
    tally.digest += digest_of(read.filter(kept) if gone else read)
    tally.digest %= DIGEST_MODULUS
    return fitting.filter(kept) if gone else fitting


def _steps(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the tables in steps of limited size, none of them empty."""
    held: list[pa.Table] = []
    size = 0
    for table in tables:
        if table.num_rows:
            held.append(table)
            size += table.nbytes
        if size >= STEP_BYTES:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)


def _last_key_begins(table: pa.Table, rules: RowRules) -> int:
    """Return the number of the first row of the last key."""
    keys = encode_keys(table, rules.key, rules.key_types)
    if not keys_ascend(keys):
        message = "rows did not arrive in the order of their keys"
        raise VerificationError(message)
    before = pc.less(keys, keys[-1])
    return int(np.count_nonzero(before.to_numpy(zero_copy_only=False)))
