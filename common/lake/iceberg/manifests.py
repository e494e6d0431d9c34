"""Manifests of Iceberg tables: lists of manifests, and the files that a manifest names. Untrusted.

A snapshot names a manifest list, which names manifests of data files and manifests of delete files.
All of them are Avro and never change, so what was read from one path is kept. PyIceberg's reader is
used with bounds: a few packed bytes may claim to be any number of entries. Entries that a commit
carries to another manifest keep the bytes of their files.
"""

import bz2
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Self
from urllib.parse import quote_plus

import pyarrow as pa
from pyiceberg.avro.codecs import AVRO_CODEC_KEY
from pyiceberg.avro.decoder import StreamingBinaryDecoder, new_decoder
from pyiceberg.avro.file import _SCHEMA_KEY, SYNC_SIZE, AvroFile, Block
from pyiceberg.avro.resolver import ReadSchemaResolver, SchemaPartnerAccessor
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DataFileContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    _inherit_from_manifest,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, visit_with_partner
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    UnknownType,
)

from common.errors import RefusedError
from common.lake.iceberg.catalogs import Admission, TableRoot, translated
from common.lake.iceberg.write import CarriedFile
from common.lake.source import LakeFile, Partition
from common.model.table import SPEC_PARTITIONS
from common.rows.key_encoding import NULL

BLOCK_BYTES_MAX = 256 * 1024**2
"""Largest block of entries after it is unpacked."""
ENTRIES_MAX = 1_000_000
"""Most entries of one manifest or manifest list."""
TEXT_CHARS_MAX = 4096
NUMBER_MAX = 2**63 - 1
DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
"""Kinds of files, as a manifest has them."""
DELETED = 2
"""Status of an entry whose file is no more in the table."""
DELETE_MANIFEST = 1
DATA_FILE_ID = 2
PARQUET = "PARQUET"
PATH_ID, POSITION_ID = 2_147_483_546, 2_147_483_545
"""Fields of the path of a data file, and of the position, in position deletes."""
SPEC, PARTITION = SPEC_PARTITIONS
"""Names of the parts of a partition: the id of its partition spec; names and values of the spec's
fields, as in a path."""


def _counts(number: int, name: str, key: int, value: int) -> NestedField:
    kind = MapType(key, IntegerType(), value, LongType())
    return NestedField(number, name, kind, required=False)


def _optional(number: int, name: str, kind: IcebergType) -> NestedField:
    return NestedField(number, name, kind, required=False)


_FILE = StructType(
    NestedField(134, "content", IntegerType(), required=True, initial_default=DATA),
    NestedField(100, "file_path", StringType(), required=True),
    NestedField(101, "file_format", StringType(), required=True),
    NestedField(102, "partition", StructType(), required=True),
    NestedField(103, "record_count", LongType(), required=True),
    NestedField(104, "file_size_in_bytes", LongType(), required=True),
    _optional(125, "lower_bounds", MapType(126, IntegerType(), 127, BinaryType())),
    _optional(128, "upper_bounds", MapType(129, IntegerType(), 130, BinaryType())),
    _optional(131, "key_metadata", BinaryType()),
    _optional(135, "equality_ids", ListType(136, LongType(), element_required=True)),
    _optional(143, "referenced_data_file", StringType()),
    # The others are read, but not used.
    _optional(105, "block_size_in_bytes", LongType()),
    _optional(106, "file_ordinal", IntegerType()),
    _optional(107, "sort_columns", ListType(114, IntegerType(), element_required=True)),
    _counts(108, "column_sizes", 117, 118),
    _counts(109, "value_counts", 119, 120),
    _counts(110, "null_value_counts", 121, 122),
    _counts(111, "distinct_counts", 123, 124),
    _counts(137, "nan_value_counts", 138, 139),
    _optional(132, "split_offsets", ListType(133, LongType(), element_required=True)),
    _optional(140, "sort_order_id", IntegerType()),
    _optional(142, "first_row_id", LongType()),
    _optional(144, "content_offset", LongType()),
    _optional(145, "content_size_in_bytes", LongType()),
)
_ENTRY = Schema(
    NestedField(0, "status", IntegerType(), required=True),
    _optional(1, "snapshot_id", LongType()),
    _optional(3, "sequence_number", LongType()),
    NestedField(DATA_FILE_ID, "data_file", _FILE, required=True),
    _optional(4, "file_sequence_number", LongType()),
)
_LISTED = Schema(
    NestedField(500, "manifest_path", StringType(), required=True),
    NestedField(502, "partition_spec_id", IntegerType(), required=True),
    NestedField(517, "content", IntegerType(), required=True, initial_default=DATA),
    NestedField(515, "sequence_number", LongType(), required=True, initial_default=0),
    NestedField(503, "added_snapshot_id", LongType(), required=True),
    _optional(519, "key_metadata", BinaryType()),
    # The others are read, but not used.
    _optional(501, "manifest_length", LongType()),
    _optional(516, "min_sequence_number", LongType()),
    *(_optional(number, f"files_{number}", IntegerType()) for number in (504, 505, 506)),
    *(_optional(number, f"rows_{number}", LongType()) for number in (512, 513, 514, 520)),
    _optional(
        507,
        "partitions",
        ListType(
            508,
            StructType(
                NestedField(509, "contains_null", BooleanType(), required=True),
                _optional(518, "contains_nan", BooleanType()),
                _optional(510, "lower_bound", BinaryType()),
                _optional(511, "upper_bound", BinaryType()),
            ),
            element_required=True,
        ),
    ),
)

# ------------------------------------------------------------------------------------------ Values


@dataclass(frozen=True, slots=True)
class ListedManifest:
    """A manifest as its list has it."""

    path: str
    spec_id: int
    has_deletes: bool
    sequence: int
    snapshot_id: int
    has_removed: bool = True
    """Whether it may name files that are no more in the table."""


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A live delete file. Its path is a whole URI, as the table's writers spell it."""

    path: str
    manifest: str
    equality_ids: tuple[int, ...]
    """Fields whose values identify deleted rows; empty: rows are deleted by position."""
    sequence: int
    partition: Partition
    is_global: bool
    """Its spec has no fields: equality deletes of it apply to files of every partition."""
    rows: int
    size_bytes: int
    path_min: str = ""
    path_max: str = ""
    """Least and greatest path of a data file in it, as URI; empty: unknown."""

    @property
    def data_path(self) -> str:
        """Return the path of the only data file that it applies to, or an empty text."""
        return self.path_min if self.path_min == self.path_max else ""


@dataclass(frozen=True, slots=True)
class ManifestFiles:
    """The live files that a manifest names."""

    files: tuple[LakeFile, ...] = ()
    deletes: tuple[DeleteFile, ...] = ()
    spelled: Mapping[str, str] = field(default_factory=dict)
    """Path of a file → its URI, where `TableRoot.uri_of` does not return it."""
    left_out: int = 0
    """Data files of other formats than Parquet."""
    refusal: str = ""
    """Why the table cannot be compacted, as one sentence; empty: this is no reason."""


# ------------------------------------------------------------------------------------------ Reading


class _Partners(SchemaPartnerAccessor):
    """Lets unknown lists and maps be skipped; PyIceberg refuses files that have some."""

    def field_partner(
        self, partner_struct: IcebergType | None, field_id: int, field_name: str
    ) -> IcebergType | None:
        if partner_struct is None:
            return None
        return super().field_partner(partner_struct, field_id, field_name)

    def list_element_partner(self, partner_list: IcebergType | None) -> IcebergType | None:
        return None if partner_list is None else super().list_element_partner(partner_list)

    def map_key_partner(self, partner_map: IcebergType | None) -> IcebergType | None:
        return None if partner_map is None else super().map_key_partner(partner_map)

    def map_value_partner(self, partner_map: IcebergType | None) -> IcebergType | None:
        return None if partner_map is None else super().map_value_partner(partner_map)


class _BoundedAvro(AvroFile[Any]):
    """An Avro file of which at most a number of records are read."""

    __slots__ = ("_left", "is_known")

    def fetch(self) -> None:
        """Read the bytes of the file."""
        with self.input_file.open() as stream:
            self.decoder = new_decoder(stream.read())

    def __enter__(self) -> Self:
        self._left = ENTRIES_MAX
        self.header = self._read_header()
        self.schema = self.header.get_schema()
        assert self.read_schema is not None
        self.is_known = _numbers(self.schema) <= _numbers(self.read_schema)
        resolver: Any = ReadSchemaResolver(self.read_types, self.read_enums)
        self.reader = visit_with_partner(self.schema, self.read_schema, resolver, _Partners())
        return self

    def _read_block(self) -> int:
        count, data = self._next_block()
        # The faster decoder skips without regard to the end or begin of the bytes.
        decoder = new_decoder(data) if self.is_known else StreamingBinaryDecoder(data)
        self.block = Block(self.reader, count, decoder)
        return count

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield the number of records of each block, and the block's unpacked bytes."""
        while True:
            try:
                block = self._next_block()
            except EOFError:
                return
            yield block

    def _next_block(self) -> tuple[int, bytes]:
        count = self.decoder.read_int()
        try:
            packed, mark = self.decoder.read_bytes(), self.decoder.read(SYNC_SIZE)
        except EOFError:
            packed, mark = b"", b""
        if mark != self.header.sync:
            message = "a block of the file does not end with its mark"
            raise ValueError(message)
        self._left -= count
        if count < 0 or self._left < 0:
            message = f"the file has more than {ENTRIES_MAX} entries"
            raise RefusedError(message)
        return count, _unpack(self.header.meta.get(AVRO_CODEC_KEY, "null"), packed)


def _numbers(schema: Schema) -> set[int]:
    """Return the field ids of a schema and of its data file, if it has one."""
    fields = [*schema.fields]
    for entry in schema.fields:
        if entry.field_id == DATA_FILE_ID and isinstance(entry.field_type, StructType):
            fields += entry.field_type.fields
    return {entry.field_id for entry in fields}


def _unpack(codec: str, packed: bytes) -> bytes:
    unpacker = _UNPACKERS.get(codec)
    if unpacker is None:
        message = f"the file has the codec {codec[:40]!r}, which is not supported"
        raise RefusedError(message)
    data = unpacker(packed)
    if len(data) > BLOCK_BYTES_MAX:
        message = f"a block of the file has more than {BLOCK_BYTES_MAX} bytes"
        raise RefusedError(message)
    return data


def _inflated(packed: bytes) -> bytes:
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    data = unpacker.decompress(packed, BLOCK_BYTES_MAX + 1)
    if not unpacker.eof and len(data) <= BLOCK_BYTES_MAX:
        message = "a block of the file is cut off"
        raise ValueError(message)
    return data


def _from_zstd(packed: bytes) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
        return bytes(stream.read(BLOCK_BYTES_MAX + 1))


def _from_snappy(packed: bytes) -> bytes:
    """Return unpacked bytes; the last four are a checksum, the first ones the size."""
    size = shift = at = 0
    while True:
        size |= (packed[at] & 0x7F) << shift
        if packed[at] < 0x80:
            break
        at, shift = at + 1, shift + 7
    if size > BLOCK_BYTES_MAX:
        return bytes(BLOCK_BYTES_MAX + 1)
    data: bytes = pa.decompress(packed[:-4], size, "snappy", asbytes=True)
    if zlib.crc32(data) != int.from_bytes(packed[-4:], "big"):
        message = "a block of the file does not match its checksum"
        raise ValueError(message)
    return data


_UNPACKERS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": _inflated,
    "zstandard": _from_zstd,
    "snappy": _from_snappy,
    "bzip2": lambda packed: bz2.BZ2Decompressor().decompress(packed, BLOCK_BYTES_MAX + 1),
}


_DECODING = Lock()
"""Held while a file is decoded. The loop of a service waits for each thread that computes, so of
several threads that read manifests, all but one wait for a storage or for this lock."""


@contextmanager
def _records(io: FileIO, path: str, schema: Schema) -> Iterator[Iterator[list[Any]]]:
    """Return the records of a file as lists, in the order of a schema's fields."""
    with translated(f"read {path}"):
        file = _BoundedAvro(io.new_input(path), schema, _LISTS)
        file.fetch()
        with _DECODING, file:
            yield file


def _listed(*values: Any) -> list[Any]:
    return list(values)


_LISTS: dict[int, Callable[..., Any]] = {-1: _listed, DATA_FILE_ID: _listed, 102: _listed}
"""Structs that are read as lists: records, files and partitions."""


def read_list(io: FileIO, path: str) -> tuple[ListedManifest, ...]:
    """Return the manifests of a snapshot.

    Raises:
        RefusedError: The list is malformed or above a bound.
        UnavailableError: The storage does not answer, or the list is gone.
    """
    with _records(io, path, _LISTED) as records:
        return tuple(_listed_manifest(path, record) for record in records)


def _listed_manifest(path: str, record: Sequence[Any]) -> ListedManifest:
    manifest, spec_id, content, sequence, snapshot_id, key, _, _, _, _, removed, *_ = record
    if key:
        message = f"the table is encrypted ({path[:200]}), which Névé does not support"
        raise RefusedError(message)
    _require_text(manifest, "manifest_path")
    _require_numbers(spec_id, sequence)
    return ListedManifest(
        path=manifest,
        spec_id=spec_id,
        has_deletes=content == DELETE_MANIFEST,
        sequence=sequence,
        snapshot_id=snapshot_id,
        has_removed=removed != 0,
    )


def read_uris(io: FileIO, path: str, *, with_deleted: bool = False) -> frozenset[str]:
    """Return the URIs of the files that a manifest names, whatever their format is.

    Args:
        io: Reads files.
        path: URI of the manifest.
        with_deleted: Whether files count, too, that are no more in the table.

    Raises:
        RefusedError: It is malformed or above a bound.
        UnavailableError: The storage does not answer, or the manifest is gone.
    """
    uris = set()
    with _records(io, path, _ENTRY) as records:
        for status, _, _, file, _ in records:
            if status != DELETED or with_deleted:
                _require_text(file[1], "file_path")
                uris.add(file[1])
    return frozenset(uris)


class ManifestReader:
    """Reads manifests of one table at one state of its metadata."""

    def __init__(
        self,
        root: TableRoot,
        specs: Mapping[int, PartitionSpec],
        schemas: Sequence[Schema],
        times_s: Mapping[int, float],
        *,
        io: FileIO,
        admission: Admission,
    ) -> None:
        """Keep what manifests refer to.

        Args:
            root: Location of the table.
            specs: Partition specs by id.
            schemas: All schemas, the current one first.
            times_s: Snapshot id → its time; expired ones are missing.
            io: Reads files.
            admission: Where files may lie.
        """
        self._root, self._specs, self._schemas = root, specs, schemas
        self._times_s, self._io, self._admission = times_s, io, admission

    def read(self, listed: ListedManifest) -> ManifestFiles:
        """Return the live files of a manifest.

        Raises:
            RefusedError: It is malformed, above a bound, or names a file that is not allowed.
            UnavailableError: The storage does not answer, or the manifest is gone.
        """
        spec = self._specs.get(listed.spec_id)
        if spec is None:
            message = f"{listed.path[:200]} has the unknown partition spec {listed.spec_id}"
            raise RefusedError(message)
        partitions = _Partitions(spec, self._schemas)
        with _records(self._io, listed.path, _ENTRY) as records:
            if listed.has_deletes:
                return self._deletes(listed, records, partitions)
            return self._data(listed, records, partitions)

    def added(self, listed: ListedManifest, wanted: frozenset[str]) -> frozenset[str]:
        """Return which paths a manifest names, deleted entries included."""
        with _records(self._io, listed.path, _ENTRY) as records:
            paths = (self._root.path_of(record[3][1]) for record in records)
            return frozenset(path for path in paths if path in wanted)

    def _data(
        self, listed: ListedManifest, records: Iterable[list[Any]], partitions: "_Partitions"
    ) -> ManifestFiles:
        files, spelled, left_out = [], dict[str, str](), 0
        for record in records:
            status, snapshot_id, own_sequence, file, _ = record
            if status == DELETED:
                continue
            _, uri, kind, partition, rows, size_bytes, _, _, key, *_ = file
            if key:
                return ManifestFiles(refusal=ENCRYPTED)
            _require_text(uri, "file_path")
            _require_numbers(rows, size_bytes)
            if str(kind).upper() != PARQUET:
                left_out += 1
                continue
            self._admission.require(uri)
            path = self._root.path_of(uri)
            if self._root.uri_of(path) != uri:
                spelled[path] = uri
            files.append(
                LakeFile(
                    path=path,
                    size_bytes=size_bytes,
                    rows=rows,
                    partition=partitions.of(partition),
                    added_at_s=self._added_at_s(snapshot_id, listed),
                    entry=listed.path,
                    sequence=_sequence(own_sequence, listed),
                )
            )
        return ManifestFiles(tuple(files), spelled=spelled, left_out=left_out)

    def _deletes(
        self, listed: ListedManifest, records: Iterable[list[Any]], partitions: "_Partitions"
    ) -> ManifestFiles:
        deletes = []
        for record in records:
            status, _, own_sequence, file, _ = record
            if status == DELETED:
                continue
            content, uri, kind, partition, rows, size_bytes, *more = file
            lower, upper, key, ids, data_path, *_ = more
            if key:
                return ManifestFiles(refusal=ENCRYPTED)
            if str(kind).upper() != PARQUET:
                return ManifestFiles(refusal=OTHER_DELETES.format(str(kind)[:40]))
            _require_text(uri, "file_path")
            _require_numbers(rows, size_bytes)
            self._admission.require(uri)
            least, greatest = _path_bounds(lower, upper)
            by_value = content == EQUALITY_DELETES
            if by_value and not ids:
                message = f"equality deletes {uri[:200]} name no columns"
                raise RefusedError(message)
            deletes.append(
                DeleteFile(
                    path=uri,
                    manifest=listed.path,
                    equality_ids=tuple(sorted(ids)) if by_value else (),
                    sequence=_sequence(own_sequence, listed),
                    partition=partitions.of(partition),
                    is_global=partitions.is_empty,
                    rows=rows,
                    size_bytes=size_bytes,
                    path_min=data_path or least,
                    path_max=data_path or greatest,
                )
            )
        return ManifestFiles(deletes=tuple(deletes))

    def _added_at_s(self, snapshot_id: int | None, listed: ListedManifest) -> float:
        own = listed.snapshot_id if snapshot_id is None else snapshot_id
        return self._times_s.get(own, 0.0)


# ---------------------------------------------------------------------------------- Carried entries


_LEADING = ((0, True), (1, False), (3, False), (4, False), (2, True))
"""Field ids of an entry of version 2 of the format, and whether it must have the field."""
_CARRIED = StructType(
    *DATA_FILE_TYPE[2].fields,
    *(
        entry
        for entry in _FILE.fields
        if entry.field_id not in {known.field_id for known in DATA_FILE_TYPE[2].fields}
    ),
)
"""What is read of a carried file: first the fields of `DataFile`, in its order."""


def live_entries(io: FileIO, manifest: ManifestFile) -> Iterator[ManifestEntry]:
    """Open a manifest, and return its live entries with what they inherit from it.

    Their files are `CarriedFile`, unless the manifest has fields in another order than version 2 of
    the format, or unknown ones.

    Raises:
        RefusedError: It is malformed or above a bound.
        UnavailableError: The storage does not answer, or the manifest is gone.
    """
    path = manifest.manifest_path
    with translated(f"read {path}"):
        file = _BoundedAvro(io.new_input(path), _ENTRY, _LISTS)
        file.fetch()
        with file:
            fields = tuple((entry.field_id, entry.required) for entry in file.schema.fields)
            if file.is_known and fields == _LEADING:
                return _carried(file, manifest)
        return iter(manifest.fetch_manifest_entry(io))


def _carried(file: _BoundedAvro, manifest: ManifestFile) -> Iterator[ManifestEntry]:
    """Yield the live entries of an open manifest; few exist at a time."""
    resolver: Any = ReadSchemaResolver(_LISTS, {134: DataFileContent})
    stored = file.schema.find_type(DATA_FILE_ID)
    reader: Any = visit_with_partner(stored, _CARRIED, resolver, _Partners())
    layout = file.header.meta[_SCHEMA_KEY]
    with translated(f"read {manifest.manifest_path}"):
        for count, data in file.blocks():
            decoder = new_decoder(data)
            for _ in range(count):
                status = ManifestEntryStatus(decoder.read_int())
                numbers = [decoder.read_int() if decoder.read_int() else None for _ in range(3)]
                begin = decoder.tell()
                own = CarriedFile(*reader.read(decoder))
                if status != ManifestEntryStatus.DELETED:
                    own.encoded, own.layout = data[begin : decoder.tell()], layout
                    yield _inherit_from_manifest(ManifestEntry(status, *numbers, own), manifest)


ENCRYPTED = "the table is encrypted, which Névé does not support; use the engine's own compaction"
OTHER_DELETES = (
    "the table has delete files of the format {}, which Névé does not read; rewrite them with the "
    "table's engine, with write.delete.format.default = parquet"
)


def _sequence(own: int | None, listed: ListedManifest) -> int:
    """Return the data sequence number of an entry; an added one has that of its manifest."""
    number = listed.sequence if own is None else own
    _require_numbers(number)
    return number


def _path_bounds(lower: Any, upper: Any) -> tuple[str, str]:
    """Return the least and greatest path of data files in position deletes; empty: unknown."""
    least, greatest = (lower or {}).get(PATH_ID), (upper or {}).get(PATH_ID)
    if not least or not greatest:
        return "", ""
    return least.decode("utf-8", "replace"), greatest.decode("utf-8", "replace")


def _require_text(value: object, name: str) -> None:
    if not isinstance(value, str) or not value or len(value) > TEXT_CHARS_MAX:
        message = f"a manifest of the table is malformed: {name} is {str(value)[:80]!r}"
        raise RefusedError(message)


def _require_numbers(*values: object) -> None:
    for value in values:
        if not isinstance(value, int) or not 0 <= value <= NUMBER_MAX:
            message = f"a manifest of the table is malformed: it has the number {value!r:.80}"
            raise RefusedError(message)


# --------------------------------------------------------------------------------------- Partitions


def schemas_of(metadata: TableMetadata) -> list[Schema]:
    """Return all schemas of a table, the current one first, then the newest."""
    current = metadata.schema()
    others = sorted(metadata.schemas, key=lambda schema: -schema.schema_id)
    return [current, *(schema for schema in others if schema.schema_id != current.schema_id)]


class _Partitions:
    """Partitions of one spec as texts. Equal partitions are the same object."""

    def __init__(self, spec: PartitionSpec, schemas: Sequence[Schema]) -> None:
        self._spec_id, self._fields = spec.spec_id, spec.fields
        self._types = [_source_type(field, schemas) for field in spec.fields]
        self._cache: dict[tuple[Any, ...], Partition] = {}

    @property
    def is_empty(self) -> bool:
        """Whether the spec has no fields."""
        return not self._fields

    def of(self, record: Sequence[Any]) -> Partition:
        """Return the partition with some values."""
        values = tuple(record)
        partition = self._cache.get(values)
        if partition is None:
            if len(values) != len(self._fields):
                message = f"a partition of spec {self._spec_id} has {len(values)} values"
                raise RefusedError(message)
            parts = [
                f"{quote_plus(field.name, safe='')}={self._text(field, kind, value)}"
                for field, kind, value in zip(self._fields, self._types, values, strict=True)
            ]
            partition = ((SPEC, str(self._spec_id)), (PARTITION, "/".join(parts)))
            self._cache[values] = partition
        return partition

    def _text(self, field: PartitionField, kind: IcebergType, value: Any) -> str:
        if value is None:
            return NULL
        result = field.transform.result_type(kind) if not _is_unknown(kind) else kind
        text = str(value) if _is_unknown(kind) else field.transform.to_human_string(result, value)
        if len(text) > TEXT_CHARS_MAX:
            message = f"a value of the partition field {field.name[:80]} has {len(text)} characters"
            raise RefusedError(message)
        return quote_plus(text, safe="")


def _is_unknown(kind: IcebergType) -> bool:
    return isinstance(kind, UnknownType)


def _source_type(field: PartitionField, schemas: Sequence[Schema]) -> IcebergType:
    """Return the type of a field's source column, which may have been dropped meanwhile."""
    for schema in schemas:
        try:
            return schema.find_type(field.source_id)
        except ValueError:
            continue
    return UnknownType()
