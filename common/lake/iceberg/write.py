"""Data files of an Iceberg table as a rewrite reads and writes them: columns with field ids.

Writers of Iceberg name columns in files as in the table, except for letters that Avro does not
allow. Readers go by the field ids, which every output has for each of its fields. A file without
ids was imported: the table's name mapping gives them. Manifests are written with
PyIceberg's writers.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import unquote_plus

import pyarrow as pa
from pyarrow import types as is_type
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriter,
    ManifestWriterV2,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import MappedField
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import UUIDType

from common.errors import InputError
from common.lake.source import LakeOutput, Partition, SortKey
from common.model.table import SPEC_PARTITIONS
from common.rows.conform import FIELD_ID, ONLY_VALUE, field_id
from common.rows.key_encoding import NULL
from common.rows.schema import normal_type

NO_MAPPING = (
    "file {} has no field ids, and its table has no name mapping (property "
    "schema.name-mapping.default), so its columns cannot be identified; set the mapping with the "
    "table's engine"
)


def file_schema(schema: Schema) -> pa.Schema:
    """Return the columns of a data file that is written with a schema, with all field ids."""
    return pa.schema(list(map(_plain, schema_to_pyarrow(sanitize_column_names(schema)))))


def _plain(field: pa.Field) -> pa.Field:
    """Return a field with normal types inside, and no metadata but its identifier."""
    arrow = field.type
    if is_type.is_struct(arrow):
        arrow = pa.struct([_plain(inner) for inner in arrow])
    elif is_type.is_map(arrow):
        arrow = pa.map_(_plain(arrow.key_field), _plain(arrow.item_field))
    elif is_type.is_list(arrow) or is_type.is_large_list(arrow):
        arrow = pa.list_(_plain(arrow.value_field).with_name("element"))
    elif not isinstance(arrow, pa.UuidType):  # Its logical type is part of the file.
        arrow = normal_type(arrow)
    metadata = {FIELD_ID: (field.metadata or {})[FIELD_ID]}
    return pa.field(field.name, arrow, field.nullable, metadata)


def stored_columns(
    metadata: TableMetadata, path: str, partition: Partition, schema: pa.Schema
) -> pa.Schema:
    """Return the columns of a data file with field ids, and those that its partition gives.

    Args:
        metadata: The table.
        path: The file, for messages.
        partition: Its partition: the id of the spec, and the values as in a path.
        schema: Its columns as Arrow reads them.

    Raises:
        InputError: The columns cannot be identified.
    """
    fields = list(schema)
    if all(field_id(field) is None for field in fields):
        mapping = metadata.name_mapping()
        if mapping is None:
            raise InputError(NO_MAPPING.format(path))
        fields = list(_numbered(fields, mapping.root))
    numbers = {field_id(field) for field in fields}
    spec_id, values = map(dict(partition).get, SPEC_PARTITIONS)
    spec = metadata.specs().get(int(spec_id or 0))
    if spec is not None:
        given = _given_columns(spec, values or "", metadata.schema())
        fields += [field for field in given if field_id(field) not in numbers]
    return pa.schema(fields)


def _numbered(fields: Iterable[pa.Field], mapped: Sequence[MappedField]) -> Iterator[pa.Field]:
    """Yield fields with the identifiers of a name mapping; those that it lacks have none."""
    by_name = {name: entry for entry in mapped for name in entry.names}
    for field in fields:
        entry = by_name.get(field.name)
        if entry is None or entry.field_id is None:
            yield field.remove_metadata()
            continue
        arrow = _numbered_type(field.type, entry.fields)
        metadata = {FIELD_ID: str(entry.field_id)}
        yield pa.field(field.name, arrow, field.nullable, metadata)


def _numbered_type(arrow: pa.DataType, mapped: Sequence[MappedField]) -> pa.DataType:
    if is_type.is_struct(arrow):
        return pa.struct(list(_numbered(arrow, mapped)))
    if is_type.is_map(arrow):
        inner = (arrow.key_field.with_name("key"), arrow.item_field.with_name("value"))
        return pa.map_(*_numbered(inner, mapped))
    if is_type.is_list(arrow) or is_type.is_large_list(arrow):
        (element,) = _numbered((arrow.value_field.with_name("element"),), mapped)
        return pa.large_list(element) if is_type.is_large_list(arrow) else pa.list_(element)
    return arrow


def _given_columns(spec: PartitionSpec, text: str, schema: Schema) -> Iterator[pa.Field]:
    """Yield the columns that a partition gives, with their values.

    Args:
        spec: The spec of the partition.
        text: Its values as in a path: `day=2026-11-28/kind=a`.
        schema: Columns of the table.
    """
    for field, part in zip(spec.fields, text.split("/") if text else (), strict=True):
        number, value = field.source_id, unquote_plus(part.partition("=")[2])
        name = schema.find_column_name(number)
        if isinstance(field.transform, IdentityTransform) and name is not None and value != NULL:
            metadata = {FIELD_ID: str(number), ONLY_VALUE: value}
            yield pa.field(name, pa.string(), True, metadata)


def sort_keys(metadata: TableMetadata) -> tuple[SortKey, ...]:
    """Return the order of rows in data files: the sort order up to the first transform.

    Columns after a transform order rows with equal results of it, which Arrow does not compute.
    """
    schema, keys = sanitize_column_names(metadata.schema()), list[SortKey]()
    names = {field.field_id: field for field in schema.fields}
    for field in metadata.sort_order().fields:
        column = names.get(field.source_id)
        if column is None or not isinstance(field.transform, IdentityTransform):
            break
        if isinstance(column.field_type, UUIDType):  # Arrow does not sort it.
            break
        keys.append(
            SortKey(
                column.name,
                field.direction is SortDirection.DESC,
                field.null_order is NullOrder.NULLS_FIRST,
            )
        )
    return tuple(keys)


# --------------------------------------------------------------------------------------- Manifests

BLOCK_ENTRIES = 16
"""Entries that are packed together: as many as lose little when a manifest ends at its size."""


class _Blocks(AvroOutputFile[ManifestEntry]):
    """Packs some entries at a time; PyIceberg packs each one alone, to three times the size."""

    def __enter__(self) -> "_Blocks":
        self._held: list[ManifestEntry] = []
        super().__enter__()
        return self

    def write_block(self, objects: list[ManifestEntry]) -> None:
        self._held += objects
        if len(self._held) >= BLOCK_ENTRIES:
            self._flush()

    def _flush(self) -> None:
        held, self._held = self._held, []
        if held:
            super().write_block(held)

    def __exit__(
        self,
        exctype: type[BaseException] | None,
        excinst: BaseException | None,
        exctb: TracebackType | None,
    ) -> None:
        if exctype is None:
            self._flush()
        super().__exit__(exctype, excinst, exctb)


class DataWriter(ManifestWriterV2):
    """Writes manifests of data files."""

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        """Return the file of the manifest."""
        return _Blocks(
            output_file=self._output_file,
            file_schema=self._with_partition(self.version),
            record_schema=self._with_partition(DEFAULT_READ_VERSION),
            schema_name="manifest_entry",
            metadata=self._meta,
        )


class DeletesWriter(DataWriter):
    """Writes manifests of delete files, which PyIceberg only reads."""

    def content(self) -> ManifestContent:
        """Return what the manifest names."""
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def file_entry(like: DataFile, content: DataFileContent, **fields: Any) -> DataFile:
    """Return an entry's file with the spec and partition of another one."""
    file = DataFile.from_args(
        content=content, file_format=FileFormat.PARQUET, partition=like.partition, **fields
    )
    file.spec_id = like.spec_id
    return file


def data_file(output: LakeOutput, uri: str, like: DataFile) -> DataFile:
    """Return the entry of an output; its statistics are JSON text of `TableSource.statistics`."""
    stats: Mapping[str, Any] = json.loads(output.stats) if output.stats else {}
    counts = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
    metrics: dict[str, Any] = {
        name: {int(key): int(count) for key, count in stats[name].items()}
        for name in counts
        if stats.get(name)
    }
    for name in ("lower_bounds", "upper_bounds"):
        if stats.get(name):
            metrics[name] = {int(key): base64.b64decode(text) for key, text in stats[name].items()}
    return file_entry(
        like=like,
        content=DataFileContent.DATA,
        file_path=uri,
        record_count=output.rows,
        file_size_in_bytes=output.size_bytes,
        split_offsets=stats.get("split_offsets") or None,
        sort_order_id=stats.get("sort_order_id"),
        **metrics,
    )


def added_entry(file: DataFile, sequence: int | None) -> ManifestEntry:
    """Return the entry of a file that a snapshot adds; None: it has the snapshot's number."""
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED, sequence_number=sequence, data_file=file
    )


def write_entry(writer: ManifestWriter, entry: ManifestEntry) -> None:
    """Write an entry with its status."""
    if entry.status == ManifestEntryStatus.ADDED:
        writer.add(entry)
    elif entry.status == ManifestEntryStatus.DELETED:
        writer.delete(entry)
    else:
        writer.existing(entry)
