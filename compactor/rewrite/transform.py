"""A transform applied to the rows of inputs, after they are read and before they are merged.

A transform is a plug-in or a list of expressions. The result of a plug-in is checked against its
contract. The values of expressions come from Spark.
"""

import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import polars as pl
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
from common.expressions.native import Evaluation, NotNativeError
from common.plugins import load_transform
from common.rows.conform import Flags, Int64s, conform, null_array
from common.rows.key_encoding import filled
from common.rows.row_facts import row_hash
from common.rows.rules import RowRules
from common.spi.rewrite import DELETED, TransformContext
from compactor.rewrite.attempt_folder import ChangeCounts
from compactor.rewrite.file_io import (
    folder_fill,
    read_tables,
    table_location,
)
from compactor.rewrite.kernel.normalized_keys import UnsupportedRowsError
from compactor.rewrite.plan.rewrite_plan import RewritePlan, Rules, TransformPlan
from compactor.rewrite.throttle import allowance_of

# ---------------------------------------------------------------------------- Transform expressions
# Expressions of a transform: their inputs go to Spark, their values come back.
#
# Every row that a transform affects becomes one input row: number of the input file, number of the
# row in it, and the columns that the expressions read. Spark returns the values. A marker row
# follows the rows of each input, so that missing values are detected. The order is preserved,
# because Spark moves nothing between tasks.


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


END_OF_INPUT = (1 << 63) - 1
"""Row number of the marker at the end of an input."""


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
    def answers(self) -> list[str]:
        """The columns of values, as SQL over those of input rows."""
        now_us = self._transform.now_us
        values = [
            f"CASE WHEN {self._row} < {END_OF_INPUT} THEN {expression.at(now_us)} END AS a{at}"
            for at, expression in enumerate(self._transform.transform.expressions)
        ]
        return [f"{self._input} AS input", f"{self._row} AS row", *values]

    def batch(self, at: int, rows: pa.Table, numbers: pa.Array) -> pa.RecordBatch:
        """Return input rows.

        Args:
            at: The input.
            rows: Rows with at least the required columns.
            numbers: Numbers of the rows in the input.

        Raises:
            TransformError: A value cannot be sent to Spark.
        """
        inputs = pa.repeat(pa.scalar(at, pa.int32()), rows.num_rows)
        columns = [inputs, numbers.cast(pa.int64())]
        for field in self._columns:
            try:
                columns.append(to_spark(rows.column(field.name).combine_chunks()))
            except pa.ArrowInvalid as error:
                subject = self._transform.transform.description
                raise TransformError(f"{subject}: column {field.name}: {error}") from error
        names = [self._input, self._row, *(field.name for field in self._columns)]
        return pa.RecordBatch.from_arrays(columns, names=names)

    def end(self, at: int) -> pa.RecordBatch:
        """Return the marker of an input's end."""
        empty = {field.name: pa.nulls(1, field.type) for field in self._columns}
        rows = pa.table(empty) if empty else pa.table({"none": pa.nulls(1)})
        return self.batch(at, rows, pa.array([END_OF_INPUT]))


def read_expression_inputs(plan: RewritePlan, inputs: Iterable[int]) -> Iterator[pa.RecordBatch]:
    """Yield the input rows of some inputs of the plan, in order.

    Raises:
        InputError: A file cannot be read.
        TransformError: A value of it cannot be sent to Spark.
    """
    rules, transform = plan.rules.row_rules, plan.rules.transform
    assert transform is not None
    asking = ExpressionInputs(plan.rules.schema, transform)
    for at in inputs:
        if at in transform.inputs:
            for start, rows in _read_columns(plan, at, transform):
                chosen = np.flatnonzero(transform.matched_rows(rows, rules))
                if len(chosen):
                    everything = len(chosen) == rows.num_rows
                    asked = rows if everything else rows.take(pa.array(chosen))
                    yield asking.batch(at, asked, pa.array(chosen + start))
        yield asking.end(at)


class ExpressionValues:
    """Spark's values in the order of the input rows, consumed in pieces."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._rest: pa.RecordBatch | None = None

    def next_input(self) -> int | None:
        """Return the input of the next value; None: no values are left."""
        batch = self._peeked()
        return None if batch is None else int(batch.column("input")[0].as_py())

    def below(self, at: int, row: int) -> pa.Table | None:
        """Return the next values of an input's rows before `row`; None: there are none."""
        taken: list[pa.RecordBatch] = []
        while (batch := self._peeked()) is not None:
            inputs = batch.column("input").to_numpy()
            rows = batch.column("row").to_numpy()
            count = int(np.count_nonzero((inputs == at) & (rows < row)))
            taken.append(batch.slice(0, count))
            self._rest = batch.slice(count)
            if count < batch.num_rows:
                break
        tables = [batch for batch in taken if batch.num_rows]
        return pa.Table.from_batches(tables) if tables else None

    def pieces(self, at: int) -> Iterator[pa.RecordBatch]:
        """Yield all values of an input, and consume its marker.

        Raises:
            RewriteError: Values are missing.
        """
        while (batch := self._peeked()) is not None:
            inputs = batch.column("input").to_numpy()
            rows = batch.column("row").to_numpy()
            count = int(np.count_nonzero((inputs == at) & (rows < END_OF_INPUT)))
            yield batch.slice(0, count)
            self._rest = batch.slice(count)
            if count < batch.num_rows:
                break
        self.end(at)

    def end(self, at: int) -> None:
        """Consume the marker of an input's end.

        Raises:
            RewriteError: The marker is not next.
        """
        batch = self._peeked()
        marker = None
        if batch is not None:
            marker = (batch.column("input")[0].as_py(), batch.column("row")[0].as_py())
            self._rest = batch.slice(1)
        if marker != (at, END_OF_INPUT):
            raise RewriteError(f"the values of input {at} do not end at its marker: {marker}")

    def _peeked(self) -> pa.RecordBatch | None:
        while self._rest is None or self._rest.num_rows == 0:
            self._rest = next(self._batches, None)
            if self._rest is None:
                return None
        return self._rest


def values_path(folder: str, at: int) -> Path:
    """Return the path of the stored values of an input."""
    return Path(folder, f"values-{at}.arrow")


def write_values(folder: str, values: ExpressionValues) -> None:
    """Write Spark's values to files in the attempt's folder, one for each input.

    Raises:
        RewriteError: Values are missing.
        OSError: They cannot be written.
    """
    while (at := values.next_input()) is not None:
        writer = None
        with values_path(folder, at).open("wb") as sink:
            for piece in values.pieces(at):
                writer = writer or pa.ipc.new_file(sink, piece.schema)
                if piece.num_rows:
                    writer.write_batch(piece)
            if writer is not None:
                writer.close()


def _read_columns(
    plan: RewritePlan, at: int, transform: TransformPlan
) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of an input with the required columns, and the number of the first row."""
    names = transform.transform.columns | transform.matched_by(plan.rules.row_rules)
    # At least one column, because a table without columns has no rows.
    fields = [field for field in plan.rules.schema if field.name in names] or [
        plan.rules.schema.field(0)
    ]
    schema, start = pa.schema(fields), 0
    path = plan.inputs.paths[at]
    from_folders = folder_fill(plan.rules.row_rules, plan.rules.schema, path)
    fill = {name: value for name, value in from_folders.items() if name in schema.names}
    pay, location = allowance_of(plan.folder).pay, table_location(plan.location)
    for table in read_tables(location, path, plan.read_rows_max, schema.names, pay=pay):
        read = filled(table, fill)
        try:
            yield start, _conformed(read, schema, path)
        except RequestError as error:
            raise InputError(str(error)) from error
        start += read.num_rows


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


# ---------------------------------------------------------------------------------------- Transform


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


def with_values(rows: pa.Table, places: Int64s, values: Mapping[str, pa.ChunkedArray]) -> pa.Table:
    """Return the rows with new values in some of them.

    Args:
        rows: Rows in the plan's schema.
        places: Row numbers, each once.
        values: Values by column, one per row number, of the column's type.
    """
    if len(places) == 0:
        return rows
    source = np.arange(rows.num_rows)
    source[places] = rows.num_rows + np.arange(len(places))
    chosen = pa.array(source)
    columns = [
        pa.chunked_array([*column.chunks, *values[name].chunks], column.type).take(chosen)
        if name in values
        else column
        for name, column in zip(rows.column_names, rows.columns, strict=True)
    ]
    return pa.table(columns, schema=rows.schema)


# ----------------------------------------------------------------------------------------- Plug-ins


class PluginTransform:
    """Passes affected rows to a plug-in, and validates everything that it returns."""

    def __init__(self, rules: Rules, transform: TransformPlan, folder: str) -> None:
        """Load the plug-in.

        Args:
            rules: Rules of the job.
            transform: Names the plug-in.
            folder: Folder of the attempt.

        Raises:
            TransformError: It is not installed on this host, or does not load.
        """
        self._rules, self._transform, self._folder = rules, transform, folder
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
        self._counts = ChangeCounts()

    def rows(self, at: int, start: int, rows: pa.Table) -> pa.Table:
        """Return the next rows of an input, changed.

        Raises:
            TransformError: It raised, or returned a value that its contract forbids.
        """
        if at not in self._transform.inputs:
            return rows
        places = np.flatnonzero(self._transform.matched_rows(rows, self._rules.row_rules))
        if len(places) == 0:
            return rows
        before = rows.take(pa.array(places))
        after, deleted = self._applied(before)
        values = {name: after.column(name) for name in after.column_names}
        changed = with_values(rows, places, values)
        count = int(deleted.sum())
        self._counts.changed += len(places) - count
        self._counts.deleted += count
        if not deleted.any():
            return changed
        if self._rules.row_rules.key and self._rules.row_rules.tombstone_column is None:
            raise self._misbehaved("deletes rows, but the table has no tombstone column")
        gone = np.zeros(rows.num_rows, np.bool_)
        gone[places] = deleted
        return with_deletions(changed, gone, self._rules.row_rules, self._transform.protected)

    def end(self, at: int) -> None:
        """Report how many rows were changed."""
        self._counts.write(self._folder, at)
        self._counts = ChangeCounts()

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
            if (row_hash(before.select([name])) != row_hash(after.select([name]))).any():
                raise self._misbehaved(f"changed the column {name}, which no transform may change")
        return after

    def _misbehaved(self, fact: str) -> TransformError:
        return TransformError(f"{self._transform.transform.description} {fact}")


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
            RewriteError: They cannot be changed.
            PluginError: A plug-in misbehaved.
        """
        ...

    def end(self, at: int) -> None:
        """Mark the end of an input.

        Raises:
            RewriteError: Values are left over.
        """
        ...


def row_change_of(plan: RewritePlan, answers: ExpressionValues | None) -> RowChange:
    """Return the change of a plan.

    Args:
        plan: Plan of the job.
        answers: Spark's values, if it has to evaluate the transform's expressions.
    """
    if plan.rules.transform is None:
        return _NoChange()
    if plan.rules.transform.asks_spark:
        native = plan.rules.transform.native
        assert native or answers is not None, "the expressions need Spark's values"
        return _ExpressionChange(plan, plan.rules.transform, answers)
    return PluginTransform(plan.rules, plan.rules.transform, plan.folder)


class _NoChange:
    def rows(self, at: int, start: int, rows: pa.Table) -> pa.Table:
        return rows

    def end(self, at: int) -> None:
        pass


class _ExpressionChange:
    """Applies the values of expressions: Spark's, or those that Polars computes."""

    def __init__(
        self, plan: RewritePlan, transform: TransformPlan, answers: ExpressionValues | None
    ) -> None:
        self._rules, self._folder, self._paths = plan.rules, plan.folder, plan.inputs.paths
        self._transform = transform
        self._answers = answers
        self._evaluations = transform.evaluations(plan.rules.schema) or ()
        self._counts = ChangeCounts()

    def rows(self, at: int, start: int, rows: pa.Table) -> pa.Table:
        if at not in self._transform.inputs:
            return rows
        places = np.flatnonzero(self._transform.matched_rows(rows, self._rules.row_rules))
        if self._answers is None:
            values = self._computed(rows, places) if len(places) else []
        else:
            values = self._answered(self._answers, at, start, rows, places)
        if len(places) == 0:
            return rows
        if self._transform.deletes:
            return self._deleted(rows, places, values[0])
        return self._assigned(rows, places, values)

    def end(self, at: int) -> None:
        if self._answers is not None:
            self._answers.end(at)
        self._counts.write(self._folder, at)
        self._counts = ChangeCounts()

    def _answered(
        self, answers: ExpressionValues, at: int, start: int, rows: pa.Table, places: Int64s
    ) -> list[pa.ChunkedArray]:
        answer = answers.below(at, start + rows.num_rows)
        answered = answer.column("row").to_numpy() - start if answer is not None else places[:0]
        if not np.array_equal(places, answered):
            path = self._paths[at]
            message = f"file {path}: {len(answered)} values for {len(places)} rows"
            raise RewriteError(message)
        return [] if answer is None else fitting_values(self._transform, rows.schema, answer)

    def _computed(self, rows: pa.Table, places: Int64s) -> list[pa.ChunkedArray]:
        """Return values that Polars computes.

        Raises:
            UnsupportedRowsError: Spark has to evaluate the expressions.
        """
        names = sorted(self._transform.transform.columns) or rows.column_names[:1]
        frame = pl.from_arrow(rows.select(names).take(pa.array(places)))
        assert isinstance(frame, pl.DataFrame)
        series = computed_values(self._transform, self._evaluations, frame)
        if self._transform.deletes:
            return [pa.chunked_array([series[0].to_arrow()])]
        columns = [one.column for one in self._transform.transform.assignments]
        return [
            pa.chunked_array([values.to_arrow().cast(rows.schema.field(name).type)])
            for name, values in zip(columns, series, strict=True)
        ]

    def _deleted(self, rows: pa.Table, places: Int64s, values: pa.ChunkedArray) -> pa.Table:
        chosen = pc.fill_null(values, fill_value=False).combine_chunks()
        gone = np.zeros(rows.num_rows, np.bool_)
        gone[places] = chosen.to_numpy(zero_copy_only=False)
        self._counts.deleted += int(gone.sum())
        return with_deletions(rows, gone, self._rules.row_rules, self._transform.protected)

    def _assigned(
        self, rows: pa.Table, places: Int64s, values: Sequence[pa.ChunkedArray]
    ) -> pa.Table:
        names = [one.column for one in self._transform.transform.assignments]
        self._counts.changed += len(places)
        return with_values(rows, places, dict(zip(names, values, strict=True)))


def computed_values(
    transform: TransformPlan, evaluations: Sequence[Evaluation], rows: pl.DataFrame
) -> list[pl.Series]:
    """Return the value of each expression that Polars computes.

    Args:
        transform: The transform.
        evaluations: Its expressions for Polars.
        rows: The columns that they read.

    Raises:
        UnsupportedRowsError: Spark has to evaluate the expressions.
    """
    try:
        series = [evaluate(rows) for evaluate in evaluations]
    except NotNativeError as error:
        raise UnsupportedRowsError(str(error)) from error
    for one, values in zip(transform.transform.assignments, series, strict=False):
        if values.null_count() and not _may_be_null(transform, one.column):
            raise UnsupportedRowsError(f"a value of column {one.column} is null")
    return series


def fitting_values(
    transform: TransformPlan, schema: pa.Schema, answers: pa.Table
) -> list[pa.ChunkedArray]:
    """Return Spark's values of each expression in the types of their columns.

    Args:
        transform: The transform.
        schema: Schema of the rows.
        answers: The values, in columns `a0`, `a1`, …

    Raises:
        TransformError: A value does not fit into its column, or is null in one that must not be.
    """
    if transform.deletes:
        return [answers.column("a0")]
    fitting = []
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
        fitting.append(values)
    return fitting


def _may_be_null(transform: TransformPlan, name: str) -> bool:
    return next(column for column in transform.table.schema if column.name == name).nullable
