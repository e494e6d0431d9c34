"""Tablets of a partitioned table: one per combination of partition values.

A partition is written as in a hive path, `month=1/day=2`; its tablet's end is the
encoded values, so that it is the same tablet whatever wrote the path.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from common.errors import RequestError
from common.model.key_text import value_from_text, value_to_json
from common.model.key_values import KeyType, plain_value
from common.model.keys import encode_key, key_type_of
from common.model.table import Table

NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class Partition:
    """One combination of values: the tablet's end, and the text that names it."""

    end: bytes
    text: str


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


def partition_of_path(table: Table, path: str) -> Partition:
    """Return the partition that a file's folders name.

    Raises:
        RequestError: They do not name every partition column.
    """
    folders = dict(part.partition("=")[::2] for part in path.split("/")[:-1] if "=" in part)
    values = []
    for name, kind in zip(table.partition_by, partition_types(table), strict=True):
        if name not in folders:
            wanted = "/".join(f"{each}=…" for each in table.partition_by)
            raise RequestError(
                f"file {path} lies in no partition: its folders do not name {name}, "
                f"wanted a path such as {wanted}/file.parquet"
            )
        text = unquote(folders[name])
        values.append(None if text == NULL else value_from_text(text, kind))
    return partition_of(table, values)


def partition_values(table: Table, text: str) -> dict[str, object]:
    """Return the plain values that a partition's text names, by column."""
    values: dict[str, object] = {}
    for part, kind in zip(text.split("/"), partition_types(table), strict=True):
        name, _, value = part.partition("=")
        raw = unquote(value)
        values[name] = None if raw == NULL else value_from_text(raw, kind)
    return values


def _text(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
