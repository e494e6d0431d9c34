"""Expressions of a transform: their inputs go to Spark, their values come back.

Every row that a transform affects becomes one input row: number of the input file, number of the
row in it, and the columns that the expressions read. Spark returns the values. A marker row follows
the rows of each input, so that missing values are detected. The order is preserved, because Spark
moves nothing between tasks.
"""

from collections.abc import Callable, Collection, Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_type

from common.errors import InputError, RequestError, RewriteError, TransformError
from common.rows.arrays import null_array
from common.rows.conform import conform
from common.rows.partitions import filled
from compactor.rewrite.file_io import (
    folder_fill,
    read_tables,
    table_location,
)
from compactor.rewrite.plan.rewrite_plan import RewritePlan
from compactor.rewrite.plan.transform_plan import TransformPlan
from compactor.rewrite.throttle import allowance_of

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
                    asked = rows.take(pa.array(chosen))
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


def _read_columns(
    plan: RewritePlan, at: int, transform: TransformPlan
) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of an input with the required columns, and the number of the first row."""
    names = {*transform.transform.columns, *plan.rules.row_rules.key}
    names |= {plan.rules.row_rules.tombstone_column or ""}
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
