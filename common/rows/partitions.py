"""Partitions of a table as text, as keys, and as the columns that files may leave out.

A partition is written as in a hive path, `month=1/day=2`; its tablet's end is the
encoded values, so that it is the same tablet whatever wrote the path. Values are
percent-encoded where a path could not hold them, and null is `NULL`, as Hive, Spark
and Arrow write them.

A file may leave the partition columns out: its folders tell them. A null in a column
that it has means what the folder says, too, whatever piece of the file it is read in.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc

from common.errors import RequestError
from common.model.key_values import (
    NANOS,
    KeyType,
    key_type_of,
    plain_value,
    value_from_text,
    value_to_json,
)
from common.model.keys import encode_key
from common.model.table import Table
from common.rows.arrays import TICKS_PER_S
from common.rows.conform import widen
from common.rows.types import type_to_text

NULL = "__HIVE_DEFAULT_PARTITION__"
FOLDER_BYTES_MAX = 255
"""Longest name of a folder that file systems take."""
_WHOLE = re.compile(r"[+-]?[0-9]+")

Fill = Mapping[str, pa.Scalar]
"""Values by column, for rows of one file that lack them; empty: nothing is filled."""


@dataclass(frozen=True, slots=True)
class Partition:
    """One combination of values: the tablet's end, and the text that names it."""

    end: bytes
    text: str

    @property
    def folder(self) -> str:
        """Where files of the partition lie, with a slash behind; empty: nowhere of their own.

        Readers that know hive paths then find the columns whoever wrote the file.
        """
        return partition_folder(self.text)


def partition_folder(text: str | None) -> str:
    """Return the folders that a partition's text names, with a slash behind.

    Empty for a table without partitions, and for values too long for a folder's name:
    outputs hold their partition columns, so only their place is less telling.
    """
    if not text or any(len(part.encode()) > FOLDER_BYTES_MAX for part in text.split("/")):
        return ""
    return f"{text}/"


def partition_types(table: Table) -> tuple[KeyType, ...]:
    """Return the families of the partition columns, in order."""
    types = {column.name: column.type for column in table.schema}
    return tuple(key_type_of(types[name]) for name in table.partition_by)


def partition_of(table: Table, values: Sequence[object]) -> Partition:
    """Return the partition of plain values.

    Args:
        table: Whose.
        values: One per partition column.
    """
    types = partition_types(table)
    values = [plain_value(value, kind) for value, kind in zip(values, types, strict=True)]
    texts = [
        NULL if value is None else quote(_text(value_to_json(value, kind)), safe=" ")
        for value, kind in zip(values, types, strict=True)
    ]
    text = "/".join(f"{name}={each}" for name, each in zip(table.partition_by, texts, strict=True))
    return Partition(encode_key(values, types), text)


def folders_of(path: str) -> dict[str, str | None]:
    """Return what the folders of a path say, by column, in their order; null is None.

    Raises:
        RequestError: A column is named twice.
    """
    said: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        name, equals, written = part.partition("=")
        if not equals or not name:
            continue
        name = unquote(name)
        if name in said:
            raise RequestError(f"file {path} lies in two folders of {name}, expected one")
        text = unquote(written)
        said[name] = None if text == NULL else text
    return said


def partition_of_path(table: Table, path: str) -> Partition:
    """Return the partition that a file's folders name.

    Raises:
        RequestError: They do not name every partition column.
    """
    folders = folders_of(path)
    values = []
    for name, kind in zip(table.partition_by, partition_types(table), strict=True):
        if name not in folders:
            wanted = "/".join(f"{each}=…" for each in table.partition_by)
            raise RequestError(
                f"file {path} lies in no partition: its folders do not name {name}, "
                f"expected a path such as {wanted}/file.parquet"
            )
        values.append(value_of_folder(folders[name], kind))
    return partition_of(table, values)


def partition_values(table: Table, text: str) -> dict[str, object]:
    """Return the plain values that a partition's text names, by column."""
    folders = folders_of(f"{text}/")
    return {
        name: value_of_folder(folders[name], kind)
        for name, kind in zip(table.partition_by, partition_types(table), strict=True)
    }


def value_of_folder(text: str | None, kind: KeyType) -> object:
    """Return the plain value of what a folder says.

    Raises:
        RequestError: It cannot be read as this family.
    """
    if text is None:
        return None
    if kind is KeyType.INT and not _WHOLE.fullmatch(text):  # Python reads more than that.
        raise RequestError(f"key value {text!r} cannot be read as int: expected a whole number")
    return value_from_text(text, kind)


def fill_of_path(partition_by: Sequence[str], schema: pa.Schema, path: str) -> Fill:
    """Return the values of the partition columns that a file's folders name.

    Args:
        partition_by: The table's.
        schema: With these columns, in normal types: values come in the types of this.
        path: Of the file, relative to its table's location.

    Raises:
        RequestError: A value does not fit its column.
    """
    if not partition_by or "=" not in path:
        return {}
    said = folders_of(path)
    fill: dict[str, pa.Scalar] = {}
    for name in partition_by:
        if name in said:
            arrow = schema.field(name).type
            plain = value_of_folder(said[name], key_type_of(type_to_text(arrow)))
            fill[name] = _scalar(plain, arrow, path)
    return fill


def filled(rows: pa.Table, fill: Fill) -> pa.Table:
    """Return rows with the columns that their file has left out, and without the nulls in them.

    Args:
        rows: Of one file, as they were read.
        fill: What its folders say.

    Raises:
        RequestError: A column that the file has does not widen to the table's.
    """
    for name, value in fill.items():
        at = rows.schema.get_field_index(name)
        if at < 0:
            rows = rows.append_column(name, _constant(value, rows.num_rows))
            continue
        column = rows.column(at)
        if not value.is_valid or not column.null_count:
            continue
        if pa.types.is_null(column.type):
            known = _constant(value, rows.num_rows)
        else:
            field = pa.field(name, value.type)
            known = pc.fill_null(widen(column, field, "the file"), value)
        rows = rows.set_column(at, name, known)
    return rows


def _constant(value: pa.Scalar, rows: int) -> pa.Array:
    return pa.repeat(value, rows) if value.is_valid else pa.nulls(rows, value.type)


def _scalar(plain: object, arrow: pa.DataType, path: str) -> pa.Scalar:
    try:
        if isinstance(plain, int) and (pa.types.is_timestamp(arrow) or pa.types.is_time(arrow)):
            units, rest = divmod(plain * TICKS_PER_S[arrow.unit], NANOS)
            if rest:
                raise RequestError(f"file {path}: its folder is finer than {arrow}")
            return pa.scalar(units, arrow)
        return pa.scalar(plain, arrow)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise RequestError(
            f"file {path}: {plain!r} of its folder is no {arrow}: {error}"
        ) from error


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
