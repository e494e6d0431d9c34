"""Data files of an Iceberg table as a rewrite reads and writes them: columns with field ids.

Writers of Iceberg name columns in files as in the table, except for letters that Avro does not
allow. Readers go by the field ids, which every output has for each of its fields. A file without
ids was imported: the table's name mapping gives them. Native tables that are published have such
files: their columns get ids here, and the metrics of a file come from its footer. Manifests are
written with PyIceberg's writers.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from io import BytesIO
from types import TracebackType
from typing import Any
from urllib.parse import unquote_plus

import pyarrow as pa
from pyarrow import types as is_type
from pyarrow.parquet import FileMetaData
from pyiceberg.avro.codecs import AVRO_CODEC_KEY, CODEC_MAPPING_ICEBERG_TO_AVRO
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import _SCHEMA_KEY, MAGIC, META_SCHEMA, AvroFileHeader, AvroOutputFile
from pyiceberg.avro.resolver import construct_writer
from pyiceberg.avro.writer import Writer
from pyiceberg.io.pyarrow import StatsAggregator, schema_to_pyarrow
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
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from common.errors import InputError, RefusedError
from common.lake.source import LakeOutput, Partition, SortKey
from common.model.table import SPEC_PARTITIONS, Column
from common.rows.conform import FIELD_ID, ONLY_VALUE, field_id
from common.rows.key_encoding import NULL
from common.rows.schema import arrow_schema, normal_type

BOUND_CHARS = 16
"""Characters or bytes of a bound of a published file."""
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


def columns_without_bounds(footer: FileMetaData) -> frozenset[str]:
    """Return the paths of leaf columns with values in a row group that states no bounds of them.

    Writers leave bounds out that are long. PyIceberg takes those of the other row groups for the
    whole file, so that readers would skip rows that they look for.
    """
    paths = set()
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for at in range(group.num_columns):
            column = group.column(at)
            values = column.statistics
            if values is None or not (
                values.has_min_max
                or (values.has_null_count and values.null_count == column.num_values)
            ):
                paths.add(column.path_in_schema)
    return frozenset(paths)


# ---------------------------------------------------------------------- Columns of native tables


_TYPES: Mapping[pa.DataType, PrimitiveType] = {
    pa.bool_(): BooleanType(),
    pa.int8(): IntegerType(),
    pa.int16(): IntegerType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.date32(): DateType(),
}


class _FieldNumbers:
    """Field ids by the whole names of fields. Those of a former schema stay."""

    def __init__(self, former: TableMetadata | None) -> None:
        self._last = 0 if former is None else former.last_column_id
        self._numbers: dict[str, int] = {}
        if former is not None:
            schema = former.schema()
            for number in schema.field_ids:
                name = schema.find_column_name(number)
                assert name is not None, number
                self._numbers[name] = number

    def __getitem__(self, names: tuple[str, ...]) -> int:
        name = ".".join(names)
        if name not in self._numbers:
            self._last += 1
            self._numbers[name] = self._last
        return self._numbers[name]


def native_schema(columns: Sequence[Column], former: TableMetadata | None) -> Schema:
    """Return the schema of native columns. All are optional: older files may lack a column.

    Args:
        columns: The columns.
        former: Metadata whose field ids stay; the id of its schema, too, if nothing differs.

    Raises:
        RefusedError: Iceberg has no such type, or some readers take two names for one.
    """
    _require_distinct(columns)
    numbers, arrow = _FieldNumbers(former), list(arrow_schema(columns))
    for column in arrow:
        numbers[(column.name,)]  # Top-level columns come first, as with other writers.
    fields = [_field(numbers, column, ()) for column in arrow]
    number = 0
    if former is not None:
        number = former.schema().schema_id + (former.schema().fields != tuple(fields))
    try:
        schema = Schema(*fields, schema_id=number)
        assert len(schema.field_ids) >= len(fields), schema
    except ValueError as error:  # Such as a column a.b and a field b of a column a.
        raise RefusedError(f"the columns are no schema of Iceberg: {error}") from None
    return schema


def _field(numbers: _FieldNumbers, column: pa.Field, names: tuple[str, ...]) -> NestedField:
    path = (*names, column.name)
    kind = _iceberg_type(column.type, path, numbers)
    return NestedField(numbers[path], column.name, kind, required=False)


def _require_distinct(columns: Iterable[Column]) -> None:
    first: dict[str, str] = {}
    for column in columns:
        if (other := first.setdefault(column.name.lower(), column.name)) != column.name:
            message = (
                f"columns {other} and {column.name} differ only in case, which is one name to "
                "some readers of Iceberg"
            )
            raise RefusedError(message)


def _iceberg_type(
    arrow: pa.DataType, names: tuple[str, ...], numbers: _FieldNumbers
) -> IcebergType:
    def inner(child: pa.Field, name: str) -> tuple[int, IcebergType]:
        path = (*names, name)
        return numbers[path], _iceberg_type(child.type, path, numbers)

    if is_type.is_struct(arrow):
        children = [arrow.field(at) for at in range(arrow.num_fields)]
        return StructType(*(_field(numbers, child, names) for child in children))
    if is_type.is_list(arrow):
        number, kind = inner(arrow.value_field, "element")
        return ListType(number, kind, element_required=False)
    if is_type.is_map(arrow):
        key_number, key = inner(arrow.key_field, "key")
        number, kind = inner(arrow.item_field, "value")
        return MapType(key_number, key, number, kind, value_required=False)
    if is_type.is_decimal128(arrow) and 0 <= arrow.scale <= arrow.precision:
        return DecimalType(arrow.precision, arrow.scale)
    if is_type.is_timestamp(arrow) and arrow.unit != "ns":
        return TimestampType() if arrow.tz is None else TimestamptzType()
    if (plain := _TYPES.get(arrow)) is not None:
        return plain
    message = f"column {names[0][:100]} is {arrow}, which is not published as Iceberg"
    raise RefusedError(message)


# ------------------------------------------------------------------------- Files of native tables


def require_ids(path: str, footer: FileMetaData, schema: Schema) -> None:
    """Refuse a file with field ids, unless they are those of the metadata.

    Readers go by the ids of a file that has some, and not by the names of its columns.

    Args:
        path: The file, for messages.
        footer: Its footer.
        schema: Columns of the metadata.

    Raises:
        RefusedError: A field has another id, or none where others have one.
    """
    columns = footer.schema.to_arrow_schema()
    numbers = dict(_numbers(columns, ()))
    if all(number is None for number in numbers.values()):
        return
    for names, number in numbers.items():
        name = ".".join(names)
        wanted = next((n for n in schema.field_ids if schema.find_column_name(n) == name), None)
        if number != wanted:
            message = (
                f"column {name} of file {path} has the field id {number}, readers of Iceberg would "
                f"expect {wanted}; write the file anew without field ids"
            )
            raise RefusedError(message)


def _numbers(
    fields: Iterable[pa.Field], names: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], int | None]]:
    """Yield the whole names and field ids of columns, and of all fields in them."""
    for column in fields:
        path = (*names, column.name)
        yield path, field_id(column)
        arrow = column.type
        if is_type.is_struct(arrow):
            yield from _numbers(arrow, path)
        elif is_type.is_list(arrow) or is_type.is_large_list(arrow):
            yield from _numbers([arrow.value_field.with_name("element")], path)
        elif is_type.is_map(arrow):
            inner = (arrow.key_field.with_name("key"), arrow.item_field.with_name("value"))
            yield from _numbers(inner, path)


def footer_metrics(
    footer: FileMetaData, columns: pa.Schema, schema: Schema
) -> dict[str, dict[int, Any]]:
    """Return the metrics of a file for its manifest entry: those of its plain columns.

    Columns of another type than the table's have no bounds, because these would be read as values
    of the table's type.

    Args:
        footer: The footer of the file.
        columns: Columns of the table.
        schema: The same with field ids.
    """
    names = ("column_sizes", "value_counts", "null_value_counts", "lower_bounds", "upper_bounds")
    metrics: dict[str, dict[int, Any]] = {name: {} for name in names}
    unbounded = columns_without_bounds(footer)
    table = {column.name: column.type for column in columns}
    stored = {column.name: normal_type(column.type) for column in footer.schema.to_arrow_schema()}
    for at in range(footer.num_columns):
        column = footer.schema.column(at)
        if column.path not in table or is_type.is_nested(table[column.path]):
            continue
        kind = schema.find_field(column.path)
        assert isinstance(kind.field_type, PrimitiveType), kind
        chunks = [footer.row_group(group).column(at) for group in range(footer.num_row_groups)]
        metrics["column_sizes"][kind.field_id] = sum(one.total_compressed_size for one in chunks)
        metrics["value_counts"][kind.field_id] = sum(one.num_values for one in chunks)
        statistics = [chunk.statistics for chunk in chunks]
        if all(one is not None and one.has_null_count for one in statistics):
            nulls = sum(one.null_count for one in statistics)
            metrics["null_value_counts"][kind.field_id] = nulls
        if column.path in unbounded or not _is_like(stored[column.path], table[column.path]):
            continue
        low, high = _bounds(kind.field_type, [one for one in statistics if one.has_min_max])
        if low is not None and high is not None:
            metrics["lower_bounds"][kind.field_id] = low
            # Statistics of a footer ignore NaN, which to some engines is above all numbers.
            if not is_type.is_floating(table[column.path]):
                metrics["upper_bounds"][kind.field_id] = high
    return metrics


def _is_like(stored: pa.DataType, table: pa.DataType) -> bool:
    """Return whether statistics of a column of one type are values of the other one."""
    if is_type.is_signed_integer(stored) and is_type.is_signed_integer(table):
        return True
    if is_type.is_timestamp(stored) and is_type.is_timestamp(table):
        return stored.unit != "ns" and (stored.tz is None) == (table.tz is None)
    if is_type.is_decimal(table):
        return False  # Their statistics are numbers without a scale, depending on their width.
    return bool(stored.equals(table)) or (stored == pa.float32() and table == pa.float64())


def _bounds(kind: PrimitiveType, statistics: Sequence[Any]) -> tuple[bytes | None, bytes | None]:
    if not statistics:
        return None, None
    length = BOUND_CHARS if isinstance(kind, StringType | BinaryType) else None
    with suppress(ArithmeticError, TypeError, ValueError, pa.ArrowException):
        values = StatsAggregator(kind, statistics[0].physical_type, length)
        for one in statistics:
            values.update_min(one.min)
            values.update_max(one.max)
        return values.min_as_bytes(), values.max_as_bytes()
    return None, None


# --------------------------------------------------------------------------------------- Manifests

PRIVATE_NAMES = (
    "pyiceberg.manifest.ManifestWriterV2._meta",
    "pyiceberg.manifest.ManifestWriterV2._with_partition",
    "pyiceberg.manifest.ManifestWriterV2.new_writer",
    "pyiceberg.avro.file.AvroOutputFile.write_block",
    "pyiceberg.manifest.ManifestWriter.add",
    "pyiceberg.manifest.ManifestWriter.delete",
    "pyiceberg.manifest.ManifestWriter.add_entry",
    "pyiceberg.avro.file.AvroOutputFile._write_header",
)
"""Names of PyIceberg that are no part of its interface, and are used here."""
BLOCK_ENTRIES = 16
"""Entries that are packed together: as many as lose little when a manifest ends at its size."""


class CarriedFile(DataFile):
    """A file of an entry that goes from one manifest to another, with its bytes."""

    encoded: bytes
    """The file as its manifest has it."""
    layout: str
    """The Avro schema of entries with such bytes, as JSON text."""


class _EntryWriter(Writer):
    """Writes entries; the bytes of a carried file are copied."""

    def __init__(self, plain: Writer) -> None:
        self._plain = plain

    def write(self, encoder: BinaryEncoder, value: ManifestEntry) -> None:
        file = value.data_file
        if not isinstance(file, CarriedFile):
            self._plain.write(encoder, value)
            return
        numbers = (value.snapshot_id, value.sequence_number, value.file_sequence_number)
        encoder.write(_leading(value.status, *numbers))
        encoder.write(file.encoded)


@lru_cache(1024)  # Most entries of a manifest have the same.
def _leading(status: int, *numbers: int | None) -> bytes:
    """Return the fields of an entry that come before its file."""
    data = BytesIO()
    encoder = BinaryEncoder(data)
    encoder.write_int(status)
    for number in numbers:
        encoder.write_int(0 if number is None else 1)
        if number is not None:
            encoder.write_int(number)
    return data.getvalue()


class _Blocks(AvroOutputFile[ManifestEntry]):
    """Packs some entries at a time; PyIceberg packs each one alone, to three times the size."""

    layout = ""
    """The Avro schema of carried entries, to which all of them belong; empty: none is carried."""

    def __enter__(self) -> "_Blocks":
        self._held: list[ManifestEntry] = []
        self.writer = _EntryWriter(self.writer)
        super().__enter__()
        return self

    def _write_header(self) -> None:
        if not self.layout:
            super()._write_header()
            return
        codec = self.metadata[AVRO_CODEC_KEY]
        codec = CODEC_MAPPING_ICEBERG_TO_AVRO.get(codec, codec)
        meta = {**self.metadata, _SCHEMA_KEY: self.layout, AVRO_CODEC_KEY: codec}
        header = AvroFileHeader(MAGIC, meta, self.sync_bytes)
        construct_writer(META_SCHEMA).write(self.encoder, header)

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

    layout = ""
    """See `layout_of`: that of all entries that are written."""

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        """Return the file of the manifest."""
        blocks = _Blocks(
            output_file=self._output_file,
            file_schema=self._with_partition(self.version),
            record_schema=self._with_partition(DEFAULT_READ_VERSION),
            schema_name="manifest_entry",
            metadata=self._meta,
        )
        blocks.layout = self.layout
        return blocks


class DeletesWriter(DataWriter):
    """Writes manifests of delete files, which PyIceberg only reads."""

    def content(self) -> ManifestContent:
        """Return what the manifest names."""
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def file_entry(
    content: DataFileContent, spec_id: int, partition: Record, **fields: Any
) -> DataFile:
    """Return an entry's Parquet file in a partition of a spec."""
    file = DataFile.from_args(
        content=content, file_format=FileFormat.PARQUET, partition=partition, **fields
    )
    file.spec_id = spec_id
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
        DataFileContent.DATA,
        like.spec_id,
        like.partition,
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


def layout_of(entry: ManifestEntry) -> str:
    """Return the Avro schema of an entry that is carried; empty: it is written anew."""
    file = entry.data_file
    return file.layout if isinstance(file, CarriedFile) else ""


def write_entry(writer: ManifestWriter, entry: ManifestEntry) -> None:
    """Write an entry with its status."""
    if entry.status == ManifestEntryStatus.ADDED:
        writer.add(entry)
    elif entry.status == ManifestEntryStatus.DELETED:
        writer.delete(entry)
    else:
        writer.add_entry(entry)
