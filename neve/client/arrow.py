"""Rows as Arrow data: dictionaries with the types of a table, streams to and from the service.

The only module of the client that imports pyarrow, and only calls with rows import this module.
"""

import io
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from numbers import Integral, Real
from typing import Any

import pyarrow as pa
from pyarrow import types as is_type

from neve.api import STREAM_PROBLEM
from neve.api.column_types import read_type
from neve.client.errors import CallerError, ProtocolError, error_of

# ------------------------------------------------------------------------------------- Dictionaries
# Lossless conversion of dictionaries to an Arrow table with the column types of the service.
#
# Arrow itself would truncate `1.5` in an integer column and microseconds in a column of seconds,
# and would drop fields that a struct lacks. This module rejects such rows. Rounding to the
# precision of a floating-point column (`0.1` as `float`) is allowed: the user has chosen that type.


_WRONG = (pa.ArrowException, ValueError, TypeError, OverflowError, AttributeError)
"""Exceptions that Arrow raises for values that do not fit a type."""
_SHOWN_CHARS = 100


def table_of(rows: Sequence[Any], types: Mapping[str, str]) -> pa.Table:
    """Return dictionaries as a table, with columns in order of first appearance.

    Args:
        rows: One dictionary per row; a missing column is null.
        types: Column name → type, in the notation of the service.

    Raises:
        CallerError: A value does not fit its column; the message names row, column and type.
    """
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise CallerError(
                f"row {number} is {_shown(row)}, expected a dictionary with a text as each name"
            )
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table(
        {name: _column(name, [row.get(name) for row in rows], types.get(name)) for name in names}
    )


def _column(name: str, values: list[Any], text: str | None) -> pa.Array:
    kind = None if text is None else type_of(text)
    try:
        column = pa.array(values, kind)
    except _WRONG as error:
        raise _refusal(name, values, text, kind) or CallerError(
            f"the values of column {name!r} have no common type: {error}"
        ) from error
    if kind is not None and any(True for value in values for _ in _losses(value, kind)):
        raise _refusal(name, values, text, kind) or AssertionError(name)
    return column


def _refusal(
    name: str, values: list[Any], text: str | None, kind: pa.DataType | None
) -> CallerError | None:
    """Return an error about the first value that does not fit, or None if all fit."""
    for number, value in enumerate(values, start=1):
        if cause := _misfit(value, kind):
            expected = "a value that Arrow knows" if text is None else text
            return CallerError(
                f"row {number}: the value {_shown(value)} of column {name!r} does not fit,"
                f" expected {expected}: {cause}"
            )
    return None


def _misfit(value: object, kind: pa.DataType | None) -> str:
    try:
        pa.array([value], kind)
    except _WRONG as error:
        return str(error)
    return "" if kind is None else next(_losses(value, kind), "")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


# ----------------------------------------------------------------------- What Arrow would truncate


def _losses(value: Any, kind: pa.DataType) -> Iterator[str]:
    """Yield what storing a value as a type would lose; usually nothing."""
    if value is None or not _may_lose(kind):
        return
    if is_type.is_integer(kind):
        if isinstance(value, Decimal | Real) and not isinstance(value, Integral) and value % 1:
            yield f"{value} is no whole number"
    elif is_type.is_temporal(kind):
        if _is_cut(value, kind):
            yield f"{value} is finer than that"
    else:
        if is_type.is_struct(kind):
            unknown = (name for name in dict(value) if kind.get_field_index(name) < 0)
            yield from (f"it has no field {name!r}" for name in unknown)
        for inner, inner_kind in _parts(value, kind):
            yield from _losses(inner, inner_kind)


def _parts(value: Any, kind: pa.DataType) -> Iterator[tuple[Any, pa.DataType]]:
    """Yield the values inside a nested value, each with its type."""
    if is_type.is_struct(kind):
        fields = dict(value)
        yield from ((fields.get(field.name), field.type) for field in kind)
    elif is_type.is_map(kind):
        for key, item in value.items() if isinstance(value, Mapping) else value:
            yield from ((key, kind.key_type), (item, kind.item_type))
    else:
        yield from ((item, kind.value_type) for item in value)


def _may_lose(kind: pa.DataType) -> bool:
    if is_type.is_list(kind):
        return _may_lose(kind.value_type)
    return bool(is_type.is_nested(kind) or is_type.is_integer(kind) or is_type.is_temporal(kind))


def _is_cut(value: object, kind: pa.DataType) -> bool:
    """Return whether a time or duration has parts that are finer than a type's unit."""
    if is_type.is_date(kind):
        return isinstance(value, datetime) and value.time() != time()
    unit = {"s": 1_000_000, "ms": 1000}.get(kind.unit, 1)
    if isinstance(value, datetime | time):
        return bool(value.microsecond % unit)
    return isinstance(value, timedelta) and bool(value.microseconds % unit)


# ------------------------------------------------------------------------------------ Types as text


@lru_cache(maxsize=1000)
def type_of(text: str) -> pa.DataType | None:
    """Return the Arrow type that a text names, or None if only the service can parse it."""
    try:
        return read_type(text, pa)
    except (LookupError, *_WRONG):
        return None


# ------------------------------------------------------------------------------------------ Streams


def stream_of(rows: Any) -> bytes:
    """Return the rows of an `append` as an Arrow stream."""
    if isinstance(rows, pa.Table | pa.RecordBatch):
        schema, pieces = rows.schema, [rows]
    elif hasattr(rows, "__arrow_c_stream__"):
        with pa.RecordBatchReader.from_stream(rows) as reader:
            schema, pieces = reader.schema, list(reader)
    elif hasattr(rows, "__arrow_c_array__"):
        batch = pa.record_batch(rows)
        schema, pieces = batch.schema, [batch]
    else:
        pieces = list(rows)
        if not pieces:
            raise ValueError("there are no rows to append: give a table or at least one batch")
        schema = pieces[0].schema
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        for piece in pieces:
            writer.write(piece)
    return sink.getvalue()


def reader_of(stream: Generator[pa.RecordBatch | pa.Schema, None, None]) -> pa.RecordBatchReader:
    """Return a reader of a schema and the batches that follow it."""
    return pa.RecordBatchReader.from_batches(next(stream), stream)


@contextmanager
def arrow_reader(chunks: Iterator[bytes]) -> Iterator[pa.RecordBatchReader]:
    """Open the answer of a scan; raise what the service reports in it."""
    source = _Chunks(chunks)
    try:
        with pa.ipc.open_stream(pa.PythonFile(source, mode="r")) as reader:
            yield reader
    except (pa.ArrowInvalid, OSError) as error:
        if source.problem is not None:
            raise error_of(int(source.problem.get("status", 500)), source.problem) from None
        raise ProtocolError(f"the answer of a scan is no Arrow stream: {error}") from error


class _Chunks(io.RawIOBase):
    """A file object over chunks of bytes, for Arrow."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""
        self.problem: dict[str, Any] | None = None
        """The problem that the server reported when it ended the stream early, if any."""

    def readable(self) -> bool:
        """Return True: the file is readable."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Return exactly `size` bytes, fewer only at the end."""
        parts = [self._rest]
        length = len(self._rest)
        while size < 0 or length < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            parts.append(chunk)
            length += len(chunk)
        whole = b"".join(parts)
        cut = length if size < 0 else min(size, length)
        self._rest = whole[cut:]
        if whole.startswith(STREAM_PROBLEM):
            self.problem = json.loads(whole[len(STREAM_PROBLEM) : cut])
        return whole[:cut]
