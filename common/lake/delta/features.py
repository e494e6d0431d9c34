"""Which Delta tables Névé can compact, and schemas in both directions. Pure.

A feature is known if a compaction that keeps all rows needs nothing for it, or if Névé does what it
demands. Every other one refuses the table, with a sentence: a writer that ignores a feature may
break the table for all others.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from common.errors import CompactionError, RefusedError
from common.lake.delta.actions import (
    entry_mapping,
    entry_number,
    entry_text,
    entry_texts,
    parse_json,
    refuse,
)
from common.model.table import Column
from common.rows.schema import CHARS_MAX, type_from_text, type_to_text

READER_VERSION_MAX, WRITER_VERSION_MAX = 3, 7
KNOWN = frozenset(
    {
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "checkpointProtection",
        "columnMapping",  # unless the table uses it
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "inCommitTimestamp",
        "invariants",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",  # unless a column uses it
        "variantType-preview",
    }
)
"""Features of readers and writers that need nothing of Névé, or that it has."""
CURES = {
    "catalogManaged": "commits go through the catalog: compact it there",
    "catalogOwned-preview": "commits go through the catalog: compact it there",
    "clustering": "use the engine's own OPTIMIZE, which keeps the clustering",
    "icebergCompatV1": "drop the feature, or use the engine's own OPTIMIZE",
    "icebergCompatV2": "drop the feature, or use the engine's own OPTIMIZE",
    "rowTracking": "drop the feature, or use the engine's own OPTIMIZE, which keeps row ids",
}
"""What to do about a feature that is not known."""
IN_COMMIT_TIMESTAMPS = "delta.enableInCommitTimestamps"
DEPTH_MAX = 20
COLUMNS_MAX = 10_000

_DECIMAL = re.compile(r"decimal\((\d{1,2}),\s*(\d{1,2})\)")
_PRIMITIVES = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "decimal": pa.decimal128(10, 0),
}


def properties_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the properties of a table."""
    values = entry_mapping(metadata, "configuration")
    return {str(name): str(value) for name, value in values.items()}


def why_refused(protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    """Return why Névé cannot compact a table and what to do, or an empty text."""
    reader = entry_number(protocol, "minReaderVersion")
    writer = entry_number(protocol, "minWriterVersion")
    if reader > READER_VERSION_MAX or writer > WRITER_VERSION_MAX:
        return (
            f"the table needs reader version {reader} and writer version {writer} of Delta; Névé "
            f"knows them up to {READER_VERSION_MAX} and {WRITER_VERSION_MAX}"
        )
    features = {*entry_texts(protocol, "readerFeatures"), *entry_texts(protocol, "writerFeatures")}
    for name in sorted(features - KNOWN):
        cure = CURES.get(name, "use the engine's own OPTIMIZE, or drop the feature")
        return f"the table has the feature {name[:100]}, which Névé does not support; {cure}"
    properties = properties_of(metadata)
    mode = properties.get("delta.columnMapping.mode", "none")
    if mode != "none":
        return (
            f"the table uses column mapping (delta.columnMapping.mode = {mode[:100]}), which Névé "
            "does not support; rewrite it as a table without column mapping"
        )
    if properties.get("delta.enableRowTracking", "false").lower() == "true":
        return f"the table tracks rows, which Névé does not support; {CURES['rowTracking']}"
    provider = entry_mapping(metadata, "format").get("provider")
    if provider != "parquet":
        return f"the table has files of the format {provider!r:.100}; Névé compacts Parquet files"
    return _why_unreadable(metadata)


def _why_unreadable(metadata: Mapping[str, Any]) -> str:
    try:
        columns_of(metadata)
    except _TypeRefusedError as error:
        return str(error)
    return ""


class _TypeRefusedError(CompactionError):
    """A column has a type that Névé does not rewrite."""


def columns_of(metadata: Mapping[str, Any]) -> tuple[Column, ...]:
    """Return the columns of a table, partition columns included, in order."""
    schema = parse_json(entry_text(metadata, "schemaString"), "schemaString")
    fields = _fields_of(schema)
    columns = []
    for field in fields:
        name = entry_text(field, "name")
        text = type_to_text(_arrow_type(field.get("type"), name, DEPTH_MAX))
        if len(text) > CHARS_MAX:
            message = (
                f"column {name[:100]} has a type of {len(text)} characters, at most {CHARS_MAX}"
            )
            raise _TypeRefusedError(message)
        columns.append(Column(name, text, field.get("nullable") is not False))
    return tuple(columns)


def readable_columns(metadata: Mapping[str, Any]) -> tuple[Column, ...]:
    """Return the columns of a table, or none if it is refused because of one."""
    return () if _why_unreadable(metadata) else columns_of(metadata)


def _fields_of(value: Any) -> list[Any]:
    fields = value.get("fields") if isinstance(value, dict) else None
    if not isinstance(fields, list) or len(fields) > COLUMNS_MAX:
        refuse("schemaString", "has no list of fields, or too many")
    if not all(isinstance(field, dict) for field in fields):
        refuse("schemaString", "has fields that are no objects")
    return fields


def _arrow_type(value: Any, column: str, depth: int) -> pa.DataType:
    if not depth:
        message = f"column {column[:100]} is nested more than {DEPTH_MAX} levels deep"
        raise _TypeRefusedError(message)
    if isinstance(value, str):
        return _primitive(value, column)
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "struct":
        return pa.struct(
            [
                pa.field(
                    entry_text(field, "name"),
                    _arrow_type(field.get("type"), column, depth - 1),
                    field.get("nullable") is not False,
                )
                for field in _fields_of(value)
            ]
        )
    if kind == "array":
        element = _arrow_type(value.get("elementType"), column, depth - 1)
        return pa.list_(pa.field("element", element, value.get("containsNull") is not False))
    if kind != "map":
        refuse(f"column {column[:100]}", f"has the type {value!r:.100}")
    key = _arrow_type(value.get("keyType"), column, depth - 1)
    item = _arrow_type(value.get("valueType"), column, depth - 1)
    return pa.map_(key, pa.field("value", item, value.get("valueContainsNull") is not False))


def _primitive(name: str, column: str) -> pa.DataType:
    if arrow := _PRIMITIVES.get(name):
        return arrow
    if match := _DECIMAL.fullmatch(name):
        precision, scale = int(match[1]), int(match[2])
        if 1 <= precision <= 38 and scale <= precision:
            return pa.decimal128(precision, scale)
    message = f"column {column[:100]} has the type {name[:100]}, which Névé does not rewrite"
    raise _TypeRefusedError(message)


# ------------------------------------------------------------------------------- Schemas to publish


_NAMES = {
    arrow: name
    for name, arrow in _PRIMITIVES.items()
    if name not in {"decimal", "timestamp", "timestamp_ntz"}
}


def delta_schema(columns: Iterable[Column]) -> dict[str, Any]:
    """Return the schema of native columns, as a log has it.

    Raises:
        RefusedError: Delta has no such type, or takes two names for one.
    """
    columns = list(columns)
    first: dict[str, str] = {}
    for column in columns:
        if (other := first.setdefault(column.name.lower(), column.name)) != column.name:
            message = (
                f"columns {other} and {column.name} differ only in case, which is one name to Delta"
            )
            raise RefusedError(message)
    fields = [
        _field(pa.field(column.name, type_from_text(column.type), column.nullable), column.name)
        for column in columns
    ]
    return {"type": "struct", "fields": fields}


def has_plain_timestamps(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema has timestamps without a zone, which need a feature of readers."""
    return "timestamp_ntz" in json.dumps(schema["fields"])


def _field(field: pa.Field, column: str) -> dict[str, Any]:
    delta = _delta_type(field.type, column)
    return {"name": field.name, "type": delta, "nullable": field.nullable, "metadata": {}}


def _delta_type(arrow: pa.DataType, column: str) -> Any:
    if pa.types.is_struct(arrow):
        fields = [_field(arrow.field(index), column) for index in range(arrow.num_fields)]
        return {"type": "struct", "fields": fields}
    if pa.types.is_list(arrow):
        element = arrow.value_field
        return {
            "type": "array",
            "elementType": _delta_type(element.type, column),
            "containsNull": element.nullable,
        }
    if pa.types.is_map(arrow):
        return {
            "type": "map",
            "keyType": _delta_type(arrow.key_type, column),
            "valueType": _delta_type(arrow.item_type, column),
            "valueContainsNull": arrow.item_field.nullable,
        }
    if pa.types.is_decimal128(arrow) and 0 <= arrow.scale <= arrow.precision:
        return f"decimal({arrow.precision},{arrow.scale})"
    if pa.types.is_timestamp(arrow) and arrow.unit != "ns":
        return "timestamp_ntz" if arrow.tz is None else "timestamp"
    if (name := _NAMES.get(arrow)) is not None:
        return name
    message = f"column {column[:100]} is {arrow}, which Delta does not have"
    raise RefusedError(message)
