"""A transform applied to the rows of inputs, after they are read and before they are merged.

A transform is a plug-in or a list of expressions. The result of a plug-in is checked against its
contract. Values that Polars does not compute are stored in the attempt's folder before the rewrite:
those of a plug-in by a task of their own, those of expressions by Spark.
"""

import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_type

from common.errors import (
    ConfigError,
    InputError,
    PluginError,
    RequestError,
    RewriteError,
    TransformError,
)
from common.expressions import NotNativeError
from common.plugins import load_transform
from common.rows.conform import Flags, Int64s, conform, null_array
from common.rows.key_encoding import filled
from common.rows.row_facts import row_hash
from common.rows.rules import RowRules
from common.spi.planner import DELETED, TransformContext
from compactor.rewrite.attempt_folder import (
    ChangeCounts,
    NewValues,
    ProgressMark,
    StoredValues,
    ValueWriter,
    allowance_of,
    rows_path,
)
from compactor.rewrite.file_io import (
    folder_fill,
    read_tables,
    table_location,
)
from compactor.rewrite.plan.rewrite_plan import RewritePlan, Rules, TransformPlan

if TYPE_CHECKING:
    import polars as pl

    from common.expressions.native import Evaluation

# ---------------------------------------------------------------------------- Transform expressions
# Expressions of a transform: their inputs go to Spark, their values come back.
#
# An input row has the number of the input file, a number, and the columns that expressions read.
# Spark returns the values; of a predicate, the numbers for which it is true. A marker row follows
# the rows of each input, so that missing values are detected. The order is preserved, because
# Spark moves nothing between tasks.


# ----------------------------------------------------------------- Values in Spark's types


_MICROS = pa.timestamp("us", "UTC")
_Test = Callable[[pa.DataType], bool]
_SPARK_TYPES: tuple[tuple[_Test, pa.DataType, str], ...] = (
    (is_type.is_null, pa.null(), "void"),
    (is_type.is_boolean, pa.bool_(), "boolean"),
    (is_type.is_int8, pa.int8(), "tinyint"),
    (is_type.is_int16, pa.int16(), "smallint"),
    (is_type.is_int32, pa.int32(), "int"),
    (is_type.is_int64, pa.int64(), "bigint"),
    (is_type.is_uint8, pa.int16(), "smallint"),
    (is_type.is_uint16, pa.int32(), "int"),
    (is_type.is_uint32, pa.int64(), "bigint"),
    (is_type.is_uint64, pa.decimal128(20, 0), "decimal(20,0)"),
    (is_type.is_float32, pa.float32(), "float"),
    (is_type.is_float64, pa.float64(), "double"),
    (is_type.is_string, pa.string(), "string"),
    (is_type.is_binary, pa.binary(), "binary"),
    (is_type.is_fixed_size_binary, pa.binary(), "binary"),
    (is_type.is_date, pa.date32(), "date"),
    (is_type.is_timestamp, _MICROS, "timestamp"),
)


def spark_type(arrow: pa.DataType) -> str:
    """Return Spark's name of the type in which a column is sent."""
    if is_type.is_struct(arrow):
        fields = (f"{_quoted(field.name)}: {spark_type(field.type)}" for field in arrow)
        return f"struct<{', '.join(fields)}>"
    if is_type.is_decimal128(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    return next((name for belongs, _, name in _SPARK_TYPES if belongs(arrow)), "boolean")


def to_spark(array: pa.Array) -> pa.Array:
    """Return values in the form that Spark receives.

    Raises:
        pa.ArrowInvalid: A moment is too distant for microseconds.
    """
    arrow = array.type
    if is_type.is_struct(arrow):
        return _struct(array)
    if is_type.is_decimal128(arrow):
        return array
    if is_type.is_timestamp(arrow):
        return _micros(array)
    wanted = next((found for belongs, found, _ in _SPARK_TYPES if belongs(arrow)), None)
    if wanted is None:
        seen = pa.repeat(pa.scalar(value=True), len(array))
        return pc.if_else(array.is_valid(), seen, pa.scalar(None, pa.bool_()))
    return array.cast(wanted)


def from_spark(array: pa.Array, arrow: pa.DataType) -> pa.Array:
    """Return values that Spark computed for a column.

    Raises:
        pa.ArrowInvalid: A value does not fit into the column's type.
    """
    if not is_type.is_timestamp(arrow):
        return array.cast(arrow)
    # Converted through plain numbers, so that a zone shifts nothing.
    micros = array.cast(pa.int64()).cast(pa.timestamp("us"))
    return micros.cast(pa.timestamp(arrow.unit)).cast(pa.int64()).cast(arrow)


def _struct(array: pa.StructArray) -> pa.Array:
    parts = [to_spark(array.field(at)) for at in range(array.type.num_fields)]
    fields = [
        pa.field(field.name, part.type) for field, part in zip(array.type, parts, strict=True)
    ]
    if not fields:
        return array
    return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null())


def _micros(array: pa.Array) -> pa.Array:
    plain = array.cast(pa.int64())
    if array.type.unit == "ns":
        # Rounded down, even before the epoch: to the microsecond that contains the moment.
        whole = pc.divide(plain, 1000)
        above = pc.greater(pc.multiply(whole, 1000), plain)
        plain = pc.subtract(whole, above.cast(pa.int64()))
        return plain.cast(_MICROS)
    naive = plain.cast(pa.timestamp(array.type.unit)).cast(pa.timestamp("us"))
    return naive.cast(pa.int64()).cast(_MICROS)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


# -------------------------------------------------------------------------------- Inputs and values
# Spark receives each combination of values of a batch once, because an expression has one value for
# it. Rows refer to their combination by its number among those of the input.


SAMPLED_ROWS = 4096
"""Rows of which at most half may differ if a batch is to be searched for equal rows."""


class ExpressionInputs:
    """The columns of input rows, and the SQL of their values."""

    def __init__(self, schema: pa.Schema, transform: TransformPlan) -> None:
        self._transform = transform
        self._columns = [field for field in schema if field.name in self._wanted]
        mark = _free_prefix([field.name for field in self._columns])
        self._input, self._row = f"{mark}input", f"{mark}row"

    @property
    def _wanted(self) -> frozenset[str]:
        return self._transform.transform.columns

    @property
    def schema(self) -> str:
        """The columns of input rows, as a Spark schema."""
        columns = [f"{_quoted(f.name)} {spark_type(f.type)}" for f in self._columns]
        return ", ".join([f"{self._input} int", f"{self._row} bigint", *columns])

    @property
    def condition(self) -> str:
        """Which input rows are answered, as SQL; for a deletion those for which it is true."""
        if not self._transform.deletes:
            return "true"
        (predicate,) = self._transform.transform.expressions
        return (
            f"CASE WHEN {self._row} < 0 THEN true ELSE {predicate.at(self._transform.now_us)} END"
        )

    @property
    def answers(self) -> list[str]:
        """The columns of answers, as SQL over those of input rows."""
        now_us, values = self._transform.now_us, []
        if not self._transform.deletes:
            values = [
                f"CASE WHEN {self._row} >= 0 THEN {expression.at(now_us)} END AS a{at}"
                for at, expression in enumerate(self._transform.transform.expressions)
            ]
        return [f"{self._input} AS input", f"{self._row} AS row", *values]

    def batch(self, at: int, first: int, rows: pa.Table) -> tuple[pa.RecordBatch, Int64s]:
        """Return input rows, and for each of the given rows the number of its input row.

        Args:
            at: The input.
            first: Number of the first input row among those of the input.
            rows: Rows with at least the required columns.

        Raises:
            TransformError: A value cannot be sent to Spark.
        """
        columns = []
        for field in self._columns:
            try:
                columns.append(to_spark(rows.column(field.name).combine_chunks()))
            except pa.ArrowInvalid as error:
                subject = self._transform.transform.description
                raise TransformError(f"{subject}: column {field.name}: {error}") from error
        numbers = combinations(columns, rows.num_rows)
        if numbers is None:
            numbers = np.arange(rows.num_rows)
        else:
            # Of several rows with the same number, the last one assigned counts: the first row.
            firsts = np.empty(int(numbers.max(initial=-1)) + 1, np.int64)
            firsts[numbers[::-1]] = np.arange(rows.num_rows)[::-1]
            columns = [column.take(pa.array(firsts)) for column in columns]
        count = int(numbers.max(initial=-1)) + 1
        return self._batch_of(at, np.arange(first, first + count), columns), numbers + first

    def end(self, at: int, count: int) -> pa.RecordBatch:
        """Return the marker of an input's end, whose number is `~count`.

        Args:
            at: The input.
            count: Number of its input rows.
        """
        empty = [to_spark(pa.nulls(1, field.type)) for field in self._columns]
        return self._batch_of(at, np.array([~count]), empty)

    def _batch_of(self, at: int, numbers: Int64s, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        inputs = pa.repeat(pa.scalar(at, pa.int32()), len(numbers))
        names = [self._input, self._row, *(field.name for field in self._columns)]
        return pa.RecordBatch.from_arrays([inputs, pa.array(numbers), *columns], names=names)


def combinations(columns: Sequence[pa.Array], rows: int) -> Int64s | None:
    """Return for each row the number of its combination of values, by first occurrence.

    Args:
        columns: Columns in the types that Spark receives.
        rows: Number of rows.

    Returns:
        None if most rows differ, or a type cannot be compared.
    """
    if rows > SAMPLED_ROWS:
        sample = [column.slice(0, SAMPLED_ROWS) for column in columns]
        if combinations(sample, SAMPLED_ROWS) is None:
            return None
    numbers, count = np.zeros(rows, np.int64), 1
    for column in columns:
        if is_type.is_nested(column.type):
            return None
        if is_type.is_floating(column.type):  # Zeros of both signs differ.
            column = column.view(pa.int32() if column.type == pa.float32() else pa.int64())
        encoded = column.dictionary_encode(null_encoding="encode")
        own = encoded.indices.to_numpy().astype(np.int64)
        # Both factors are at most the number of rows, so nothing overflows.
        together = pa.array(numbers * len(encoded.dictionary) + own).dictionary_encode()
        numbers = together.indices.to_numpy().astype(np.int64)
        count = len(together.dictionary)
        if 2 * count > rows:
            return None
    return numbers


def read_expression_inputs(plan: RewritePlan, inputs: Iterable[int]) -> Iterator[pa.RecordBatch]:
    """Yield the input rows of some inputs of the plan, in order.

    The numbers of the rows' values are in the attempt's folder when an input's marker is yielded.

    Raises:
        InputError: A file cannot be read.
        TransformError: A value of it cannot be sent to Spark.
        OSError: The numbers cannot be written.
    """
    rules, transform = plan.rules.row_rules, plan.rules.transform
    assert transform is not None
    asking = ExpressionInputs(plan.rules.schema, transform)
    names = transform.transform.columns | transform.matched_by(rules)
    for at in inputs:
        if at not in transform.inputs:
            continue
        count = 0
        with rows_path(plan.folder, at).open("wb") as sink:
            for rows in _read_columns(plan, at, names):
                chosen = np.flatnonzero(transform.matched_rows(rows, rules))
                numbers = np.full(rows.num_rows, -1, np.int64)
                if len(chosen):
                    everything = len(chosen) == rows.num_rows
                    asked = rows if everything else rows.take(pa.array(chosen))
                    batch, numbers[chosen] = asking.batch(at, count, asked)
                    count += batch.num_rows
                    yield batch
                sink.write(numbers.tobytes())
        yield asking.end(at, count)


def write_values(plan: RewritePlan, batches: Iterable[pa.RecordBatch]) -> None:
    """Write Spark's answers to files in the attempt's folder.

    Args:
        plan: Plan of the job.
        batches: The answers for whole inputs, in order, with a marker after those of each input.

    Raises:
        TransformError: A value does not fit.
        RewriteError: Answers are missing.
        OSError: They cannot be written.
    """
    transform = plan.rules.transform
    assert transform is not None
    writer: ValueWriter | None = None
    with ExitStack() as files:
        for at, answers, count in _answers_of_inputs(batches):
            if writer is None:
                complete = not transform.deletes
                writer = files.enter_context(ValueWriter(plan.folder, at, complete=complete))
            numbers = answers.column(1).to_numpy()
            if transform.deletes:
                writer.add_deleted(numbers)
            elif len(numbers):
                table = pa.Table.from_batches([answers])
                values = fitting_values(transform, plan.rules.schema, table)
                writer.add_values(numbers, values)
            if count is not None:
                writer.finish(count)
                files.close()
                writer = None
    if writer is not None:
        raise RewriteError(f"the values of input {at} do not end at its marker")


def _answers_of_inputs(
    batches: Iterable[pa.RecordBatch],
) -> Iterator[tuple[int, pa.RecordBatch, int | None]]:
    """Yield an input, answers for it, and after the last of them the number of its input rows."""
    for batch in batches:
        inputs, numbers = (batch.column(at).to_numpy() for at in range(2))
        begin = 0
        for end in np.flatnonzero(numbers < 0).tolist():
            yield int(inputs[end]), batch.slice(begin, end - begin), ~int(numbers[end])
            begin = end + 1
        if begin < batch.num_rows:
            yield int(inputs[begin]), batch.slice(begin), None


def _read_columns(plan: RewritePlan, at: int, names: Collection[str]) -> Iterator[pa.Table]:
    """Yield the rows of an input with the required columns."""
    # At least one column, because a table without columns has no rows.
    fields = [field for field in plan.rules.schema if field.name in names] or [
        plan.rules.schema.field(0)
    ]
    schema = pa.schema(fields)
    path, mark = plan.inputs.paths[at], ProgressMark(plan.folder, f"values-{at}")
    from_folders = folder_fill(plan.rules.row_rules, plan.rules.schema, path)
    fill = {name: value for name, value in from_folders.items() if name in schema.names}
    pay, location = allowance_of(plan.folder).pay, table_location(plan.location)
    for table in read_tables(location, path, plan.read_rows_max, schema.names, pay=pay):
        read = filled(table, fill)
        mark.add(read.nbytes, 0)  # These rows are counted when they are rewritten.
        try:
            yield _conformed(read, schema, path)
        except RequestError as error:
            raise InputError(str(error)) from error


def _conformed(read: pa.Table, schema: pa.Schema, path: str) -> pa.Table:
    present = [name for name in schema.names if name in read.column_names]
    if not present:
        return pa.table([null_array(read.num_rows, f.type) for f in schema], schema=schema)
    return conform(read.select(present), schema, f"file {path}")


def _free_prefix(names: Collection[str]) -> str:
    """Return a prefix that no name has."""
    prefix = "neve_"
    while any(name.startswith(prefix) for name in names):
        prefix += "_"
    return prefix


# ------------------------------------------------------------------------------------- Changed rows


def with_deletions(rows: pa.Table, gone: Flags, rules: RowRules, kept: frozenset[str]) -> pa.Table:
    """Return the rows with some of them deleted.

    Append-only: they are removed. Keyed: they become tombstones, with nulls in all columns
    except those that are kept or must not be null. No value is invented for these.

    Args:
        rows: Rows in the plan's schema.
        gone: Which of them.
        rules: Rules of the table; with a key it has a tombstone column.
        kept: Columns that keep their values.
    """
    if not gone.any():
        return rows
    if not rules.key:
        return rows.filter(pa.array(~gone))
    own = pa.array(np.arange(rows.num_rows), mask=gone)
    columns = []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if field.name == rules.tombstone_column:
            columns.append(pc.if_else(pa.array(gone), pa.scalar(value=True), column))
        elif field.name in kept or not field.nullable:
            columns.append(column)
        else:
            columns.append(column.take(own))
    return pa.table(columns, schema=rows.schema)


def with_values(rows: pa.Table, values: Mapping[str, NewValues]) -> pa.Table:
    """Return the rows with new values in some of them.

    Args:
        rows: Rows in the plan's schema.
        values: New values by column, of the column's type.
    """
    for name, new in values.items():
        assert isinstance(new.values, pa.ChunkedArray), "a table has Arrow's values"
        at = rows.schema.get_field_index(name)
        source = np.arange(rows.num_rows)
        source[new.places] = rows.num_rows + new.index
        joined = pa.chunked_array([*rows.column(at).chunks, *new.values.chunks], new.values.type)
        rows = rows.set_column(at, rows.schema.field(at), joined.take(pa.array(source)))
    return rows


# ----------------------------------------------------------------------------------------- Plug-ins


def store_plugin_values(plan: RewritePlan, inputs: Iterable[int]) -> None:
    """Pass the rows of some inputs to the plug-in, once and in order, and store what it returns.

    The counts of changed and deleted rows are stored as well.

    Args:
        plan: Plan of a job whose transform is a plug-in.
        inputs: Numbers of inputs.

    Raises:
        TransformError: It is not installed on this host, raised, or broke its contract.
        InputError: A file cannot be read.
        OSError: The values cannot be written.
    """
    rules, transform = plan.rules.row_rules, plan.rules.transform
    assert transform is not None
    plugin = PluginTransform(plan.rules, transform)
    for at in inputs:
        if at not in transform.inputs:
            continue
        counts, count = ChangeCounts(), 0
        with (
            rows_path(plan.folder, at).open("wb") as sink,
            ValueWriter(plan.folder, at, complete=True) as writer,
        ):
            for rows in _read_columns(plan, at, plan.rules.schema.names):
                chosen = np.flatnonzero(transform.matched_rows(rows, rules))
                numbers = np.full(rows.num_rows, -1, np.int64)
                if len(chosen):
                    own = np.arange(count, count + len(chosen))
                    everything = len(chosen) == rows.num_rows
                    before = rows if everything else rows.take(pa.array(chosen))
                    changed, deleted = plugin.apply(before)
                    writer.add_values(own, changed)
                    writer.add_deleted(own[deleted])
                    gone = int(deleted.sum())
                    counts.deleted += gone
                    counts.changed += len(chosen) - gone
                    numbers[chosen] = own
                    count += len(chosen)
                sink.write(numbers.tobytes())
            writer.finish(count)
        counts.write(plan.folder, at)


class PluginTransform:
    """Passes rows to a plug-in, and validates everything that it returns."""

    def __init__(self, rules: Rules, transform: TransformPlan) -> None:
        """Load the plug-in.

        Args:
            rules: Rules of the job.
            transform: Names the plug-in.

        Raises:
            TransformError: It is not installed on this host, or does not load.
        """
        self._rules, self._transform = rules, transform
        try:
            self._plugin = load_transform(transform.transform.plugin)
        except (ConfigError, PluginError) as error:
            # Otherwise the result would depend on which compactor takes the job.
            where = f"cannot be used on compactor host {socket.gethostname()}"
            raise self._misbehaved(f"{where}: {error}") from error
        self._context = TransformContext(
            table=transform.table,
            request=transform.request,
            options=transform.transform.options,
            now_s=transform.now_s,
        )

    def apply(self, before: pa.Table) -> tuple[dict[str, pa.ChunkedArray], Flags]:
        """Return the columns that the plug-in has changed, and which rows it deletes.

        Args:
            before: Rows in the plan's schema; at least one.

        Raises:
            TransformError: It raised, or returned a value that its contract forbids.
        """
        after, deleted = self._applied(before)
        row_rules = self._rules.row_rules
        if deleted.any() and row_rules.key and row_rules.tombstone_column is None:
            raise self._misbehaved("deletes rows, but the table has no tombstone column")
        changed = {
            name: after.column(name)
            for name in after.column_names
            if name not in self._transform.protected
            and not _is_same(before.column(name), after.column(name))
        }
        return changed, deleted

    def _applied(self, before: pa.Table) -> tuple[pa.Table, Flags]:
        try:
            after = self._plugin.apply(before, self._context)
        except (Exception, SystemExit) as error:
            raise self._misbehaved(f"raised {type(error).__name__}: {error}") from error
        if not isinstance(after, pa.Table):
            raise self._misbehaved(f"returned {type(after).__name__}, expected a pyarrow table")
        if after.num_rows != before.num_rows:
            rows = f"{after.num_rows} rows for {before.num_rows}"
            raise self._misbehaved(f"returned {rows}; it may neither add nor remove rows")
        deleted = self._deleted(after)
        if DELETED in after.column_names:
            after = after.drop_columns([DELETED])
        return self._checked(before, after), deleted

    def _deleted(self, after: pa.Table) -> Flags:
        if DELETED not in after.column_names:
            return np.zeros(after.num_rows, np.bool_)
        column = after.column(DELETED)
        if column.type != pa.bool_():
            raise self._misbehaved(f"returned {DELETED} as {column.type}, expected bool")
        flags: Flags = pc.fill_null(column, fill_value=False).to_numpy()
        return flags

    def _checked(self, before: pa.Table, after: pa.Table) -> pa.Table:
        schema = self._rules.schema
        if sorted(after.column_names) != sorted(schema.names):
            names = ", ".join(after.column_names)
            raise self._misbehaved(
                f"returned the columns {names}, expected {', '.join(schema.names)}"
            )
        try:
            after = conform(after, schema, "what it returned")
        except RequestError as error:
            raise self._misbehaved(str(error)) from error
        for field, column in zip(schema, after.columns, strict=True):
            if not field.nullable and column.null_count:
                raise self._misbehaved(f"returned nulls in {field.name}, which must not be null")
        for name in sorted(self._transform.protected.intersection(schema.names)):
            if _is_same(before.column(name), after.column(name)):
                continue
            if (row_hash(before.select([name])) != row_hash(after.select([name]))).any():
                raise self._misbehaved(f"changed the column {name}, which no transform may change")
        return after

    def _misbehaved(self, fact: str) -> TransformError:
        return TransformError(f"{self._transform.transform.description} {fact}")


def _is_same(before: pa.ChunkedArray, after: pa.ChunkedArray) -> bool:
    """Return whether two columns share their memory, so that no value can differ."""
    if before.type != after.type or before.num_chunks != after.num_chunks:
        return False
    return all(
        (one.offset, len(one), [buffer and buffer.address for buffer in one.buffers()])
        == (other.offset, len(other), [buffer and buffer.address for buffer in other.buffers()])
        for one, other in zip(before.chunks, after.chunks, strict=True)
    )


# ------------------------------------------------------------------------------ The change of a job


class RowChange(Protocol):
    """The change of the inputs' rows; all rows of each input are passed, in order."""

    def rows(self, at: int, start: int, rows: pa.Table) -> pa.Table:
        """Return the next rows of an input, changed; the same table if they are not.

        Args:
            at: Number of the input.
            start: Number of the first of the rows.
            rows: Rows in the plan's schema.

        Raises:
            NotNativeError: Spark has to evaluate the expressions.
            RewriteError: They cannot be changed.
        """
        ...

    def end(self, at: int) -> None:
        """Mark the end of an input."""
        ...


def row_change_of(plan: RewritePlan) -> RowChange:
    """Return the change of a plan; its values are stored, unless the transform is native."""
    transform = plan.rules.transform
    if transform is None:
        return _NoChange()
    return _NativeChange(plan, transform) if transform.native else _StoredChange(plan, transform)


class _NoChange:
    def rows(self, at: int, start: int, rows: pa.Table) -> pa.Table:
        return rows

    def end(self, at: int) -> None:
        pass


class _StoredChange:
    """Applies values that were stored before."""

    def __init__(self, plan: RewritePlan, transform: TransformPlan) -> None:
        self._plan, self._transform, self._counts = plan, transform, ChangeCounts()
        self._stored: tuple[int, StoredValues] | None = None

    def rows(self, at: int, start: int, rows: pa.Table) -> pa.Table:
        transform = self._transform
        if at not in transform.inputs:
            return rows
        numbers = self._values(at).numbers(start, rows.num_rows)
        meant = transform.matched_rows(rows, self._plan.rules.row_rules)
        places = chosen_rows(numbers, meant, self._plan.inputs.paths[at])
        if len(places) == 0:
            return rows
        own = numbers[places]
        if not transform.deletes:
            values = self._values(at).columns(own, places)
            rows = with_values(rows, values)
            self._counts.changed += len(places)
        if transform.may_delete:
            gone = np.zeros(rows.num_rows, np.bool_)
            gone[places] = self._values(at).deleted(own)
            self._counts.deleted += int(gone.sum())
            rows = with_deletions(rows, gone, self._plan.rules.row_rules, transform.protected)
        return rows

    def _values(self, at: int) -> StoredValues:
        if self._stored is None or self._stored[0] != at:
            self._stored = at, StoredValues(self._plan.folder, at)
        return self._stored[1]

    def end(self, at: int) -> None:
        if self._transform.asks_spark:  # The counts of a plug-in are stored with its values.
            self._counts.write(self._plan.folder, at)
        self._counts = ChangeCounts()


class _NativeChange:
    """Applies the values of expressions that Polars computes."""

    def __init__(self, plan: RewritePlan, transform: TransformPlan) -> None:
        self._rules, self._folder = plan.rules.row_rules, plan.folder
        self._transform = transform
        self._evaluations = transform.evaluations(plan.rules.schema) or ()
        self._counts = ChangeCounts()

    def rows(self, at: int, start: int, rows: pa.Table) -> pa.Table:
        transform = self._transform
        if at not in transform.inputs:
            return rows
        places = np.flatnonzero(transform.matched_rows(rows, self._rules))
        if len(places) == 0:
            return rows
        names = sorted(transform.transform.columns) or rows.column_names[:1]
        asked = rows.select(names)
        import polars as pl  # Here: tasks that store values of expressions do without it.

        frame = pl.from_arrow(asked if len(places) == len(rows) else asked.take(pa.array(places)))
        assert isinstance(frame, pl.DataFrame)
        series = computed_values(transform, self._evaluations, frame)
        if transform.deletes:
            gone = np.zeros(rows.num_rows, np.bool_)
            gone[places] = series[0].fill_null(value=False).to_numpy()
            self._counts.deleted += int(gone.sum())
            return with_deletions(rows, gone, self._rules, transform.protected)
        self._counts.changed += len(places)
        index = np.arange(len(places))
        arrays = {
            one.column: pa.chunked_array(
                [values.to_arrow().cast(rows.schema.field(one.column).type)]
            )
            for one, values in zip(transform.transform.assignments, series, strict=True)
        }
        return with_values(
            rows, {name: NewValues(places, index, values) for name, values in arrays.items()}
        )

    def end(self, at: int) -> None:
        self._counts.write(self._folder, at)
        self._counts = ChangeCounts()


def chosen_rows(numbers: Int64s, meant: Flags, path: str) -> Int64s:
    """Return the rows that have a value.

    Args:
        numbers: Number of the value of each row; -1: it has none.
        meant: The rows that must have one.
        path: The file, for messages.

    Raises:
        RewriteError: Other rows have one.
    """
    has_value = numbers >= 0
    if not np.array_equal(has_value, meant):
        rows, values = int(meant.sum()), int(has_value.sum())
        raise RewriteError(f"file {path}: {values} values for {rows} rows")
    return np.flatnonzero(has_value)


def computed_values(
    transform: TransformPlan, evaluations: "Sequence[Evaluation]", rows: "pl.DataFrame"
) -> "list[pl.Series]":
    """Return the value of each expression that Polars computes.

    Args:
        transform: The transform.
        evaluations: Its expressions for Polars.
        rows: The columns that they read.

    Raises:
        NotNativeError: Spark has to evaluate the expressions.
    """
    series = [evaluate(rows) for evaluate in evaluations]
    for one, values in zip(transform.transform.assignments, series, strict=False):
        if values.null_count() and not _may_be_null(transform, one.column):
            raise NotNativeError(f"a value of column {one.column} is null")
    return series


def fitting_values(
    transform: TransformPlan, schema: pa.Schema, answers: pa.Table
) -> dict[str, pa.ChunkedArray]:
    """Return Spark's values by column, in the types of the columns.

    Args:
        transform: A transform with assignments.
        schema: Schema of the rows.
        answers: The values, in columns `a0`, `a1`, …

    Raises:
        TransformError: A value does not fit into its column, or is null in one that must not be.
    """
    fitting = {}
    for number, one in enumerate(transform.transform.assignments):
        arrow = schema.field(one.column).type
        try:
            chunks = [from_spark(chunk, arrow) for chunk in answers.column(f"a{number}").chunks]
        except pa.ArrowInvalid as error:
            subject = transform.transform.description
            message = f"{subject}: a value does not fit into column {one.column}: {error}"
            raise TransformError(message) from error
        values = pa.chunked_array(chunks, arrow)
        if values.null_count and not _may_be_null(transform, one.column):
            raise TransformError(
                f"{transform.transform.description}: a value is null, but column {one.column} must"
                " not be null"
            )
        fitting[one.column] = values
    return fitting


def _may_be_null(transform: TransformPlan, name: str) -> bool:
    return next(column for column in transform.table.schema if column.name == name).nullable
