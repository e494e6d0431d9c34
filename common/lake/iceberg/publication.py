"""The Iceberg metadata of a native table, which the service writes so that other engines read it.

    read the head → read the time and the tablets → manifests → manifest list
    → create the next metadata file if it is absent → hint → delete old metadata

The rules are those of the Delta log (`common.lake.delta.publication`): the metadata is a copy,
never the truth; its number is taken by a conditional write, so of two publishers the one with the
older files is too late; a table with a key is published while it is at rest.

A metadata file has one snapshot, its own: the files of earlier ones are deleted after the grace.
Names of metadata files have a number and the id of the table's metadata (`00012-….metadata.json`).
Engines that write to tables by their path take tables with such names for missing ones, and the
folders for new data and new metadata do not exist (`write.data.path`): no engine writes that does
not change them.

Data files need no field ids: the name mapping gives them. A file with other ids is refused, because
readers would go by these.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NoReturn
from uuid import NAMESPACE_OID, uuid5

from pyarrow.parquet import FileMetaData
from pyiceberg.io import OutputFile
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    read_manifest_list,
    write_manifest_list,
)
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataUtil, TableMetadataV2
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from common.errors import CompactionError, ConflictError, RefusedError, UnavailableError
from common.lake.iceberg import write
from common.lake.iceberg.catalogs import METADATA_BYTES_MAX, StorageIO, translated
from common.lake.iceberg.commit import CODEC, require_names
from common.lake.iceberg.expiry import COLLECT
from common.lake.iceberg.manifests import read_uris
from common.lake.iceberg.write import (
    DataWriter,
    added_entry,
    file_entry,
    footer_metrics,
    native_schema,
    require_ids,
    write_entry,
)
from common.lake.source import Answer, require_plain_partitions, require_publishable
from common.lake.storage import LakeStorage, ListedFile
from common.model.file import DataFile as TableFile
from common.model.location_identity import (
    ICEBERG_FILE,
    ICEBERG_FOLDER,
    ICEBERG_HINT,
    LOG_FILES,
    LOG_LAG,
    LOG_ROWS,
    LOG_TABLE,
    LOG_TIME,
    OWN_ICEBERG_MANIFEST,
    OWN_ICEBERG_METADATA,
)
from common.model.table import Table
from common.rows.key_encoding import partition_values
from common.rows.schema import arrow_schema

HINT = f"{ICEBERG_FOLDER}/{ICEBERG_HINT}"
NAME_MAPPING = "schema.name-mapping.default"
NOWHERE = "neve-read-only:/this-table-is-managed-by-neve"
"""Where other engines would put files that they write: no storage has such locations."""
MANIFEST_FILES = 2_000
"""Most files that a manifest names."""
SMALL_MANIFESTS_MAX = 8
"""Manifests with less than a quarter of that; when there are more, all of them become one."""
CLEAN_VERSIONS = 16
"""Old metadata is looked for after so many versions."""
READERS = 8
FooterReader = Callable[[str], FileMetaData]
_CODEC: Any = CODEC
PRIVATE_NAMES = (
    *write.PRIVATE_NAMES,
    "pyiceberg.io.pyarrow.StatsAggregator",
    "pyiceberg.manifest.ManifestFile.fetch_manifest_entry",
    "pyiceberg.table.name_mapping.create_mapping_from_schema",
)
"""Names of PyIceberg that are no part of its interface, and are used here."""

# -------------------------------------------------------------------------------------- Definition


@dataclass(frozen=True, slots=True)
class IcebergDefinition:
    """What the metadata states of a table besides its files."""

    table: Table
    schema: Schema
    spec: PartitionSpec
    last_column_id: int

    @classmethod
    def of(cls, table: Table, former: TableMetadataV2 | None = None) -> "IcebergDefinition":
        """Return the definition of a table.

        Args:
            table: The table.
            former: Its last metadata, whose field ids stay.

        Raises:
            RefusedError: Iceberg cannot state the table; the sentence names the column.
        """
        require_plain_partitions(table)
        schema = native_schema(table.schema, former)
        by_name = {column.name: column.field_id for column in schema.fields}
        first = PARTITION_FIELD_ID_START
        fields = [
            PartitionField(by_name[name], first + at, IdentityTransform(), name)
            for at, name in enumerate(table.partition_by)
        ]
        last = max((0 if former is None else former.last_column_id, *schema.field_ids))
        return cls(table, schema, PartitionSpec(*fields, spec_id=0), last)


# -------------------------------------------------------------------------------------------- Head


@dataclass(frozen=True, slots=True)
class IcebergHead:
    """The newest metadata of a table that the service has written."""

    version: int = -1
    """-1: there is none."""
    tag: str = ""
    """Tag of its file as listed."""
    metadata: TableMetadataV2 | None = None
    manifests: tuple[tuple[ManifestFile, frozenset[str]], ...] = ()
    """Manifests of its snapshot, and the files that each of them names."""
    paths: frozenset[str] = frozenset()
    """Files that it names, relative to the location."""
    table: str = ""
    """Id of the table that wrote it."""
    as_of_s: float = 0.0
    """Readers see the table as of this time of the store."""
    rows: int = 0

    @property
    def is_clean_due(self) -> bool:
        """Return whether old metadata is deleted after the next version."""
        return (self.version + 1) % CLEAN_VERSIONS == 0


@dataclass(frozen=True, slots=True)
class _Listing:
    """The files in the folder of the metadata that the service has written."""

    versions: Mapping[int, ListedFile] = field(default_factory=dict)
    manifests: Sequence[ListedFile] = ()
    """Manifests and their lists."""
    id: str = ""
    """Id of the metadata, as the names of its files have it."""
    foreign: str = ""
    """A metadata file of another writer; empty: there is none."""

    @property
    def newest(self) -> int:
        return max(self.versions, default=-1)


def metadata_path(version: int, metadata_id: str) -> str:
    """Return the path of a version, relative to the location."""
    return f"{ICEBERG_FOLDER}/{version:05}-{metadata_id}.metadata.json"


class PublishedMetadata:
    """The Iceberg metadata in one location. Its methods block."""

    def __init__(self, storage: LakeStorage, read_footer: FooterReader) -> None:
        """Access the metadata in a table's location.

        Args:
            storage: The location.
            read_footer: Returns the footer of a data file by its path.

        Raises:
            ConfigError: The installed PyIceberg lacks a name that is used.
        """
        require_names(PRIVATE_NAMES)
        self._storage = storage
        self._read_footer = read_footer
        self.root = storage.uri if storage.folder is None else f"file://{storage.folder}"
        """The location as the metadata has it; nothing in it is encoded."""
        self._files = StorageIO(storage, self.root)

    @staticmethod
    def check(table: Table) -> None:
        """Refuse a table that Iceberg cannot state.

        Raises:
            RefusedError: The sentence names the column.
        """
        IcebergDefinition.of(table)

    def require_conditions(self, name: str) -> None:
        """Refuse a storage that overwrites what it should only create.

        Args:
            name: A random name for a file of the trial.
        """
        self._storage.make_folder(ICEBERG_FOLDER)
        self._storage.require_conditions(f"{ICEBERG_FOLDER}/.{name}.tmp")

    def head(self, table: Table, known: Any = None) -> IcebergHead:
        """Return the newest version of the metadata.

        Args:
            table: The table. The metadata must be its own, or one of its former ids.
            known: A head that was read or written before.

        Raises:
            RefusedError: Another writer has added metadata, or it is malformed.
            UnavailableError: The storage does not answer.
        """
        listing = self._listed()
        if listing.foreign:
            _refuse(table, listing.foreign, "was written by another engine")
        if listing.newest < 0:
            return IcebergHead()
        newest = listing.versions[listing.newest]
        newest_tag = (listing.newest, newest.tag)
        if isinstance(known, IcebergHead) and (known.version, known.tag) == newest_tag:
            return known
        metadata = self._read(newest.path)
        if metadata is None:
            raise UnavailableError(f"{self.root}/{newest.path} is gone")
        if str(metadata.table_uuid) != listing.id:
            _refuse(table, newest.path, "has the id of another table")
        own = metadata.properties.get(LOG_TABLE, "")
        if own not in table.own_ids:
            _refuse(table, newest.path, f"was written for the table {own!r:.100}")
        manifests = self._manifests(metadata)
        with translated(f"read {newest.path}"):
            as_of_s = float(metadata.properties.get(LOG_TIME) or 0)
            rows = int(metadata.properties.get(LOG_ROWS) or 0)
        return IcebergHead(
            version=listing.newest,
            tag=newest.tag,
            metadata=metadata,
            manifests=manifests,
            paths=frozenset(path for _, paths in manifests for path in paths),
            table=own,
            as_of_s=as_of_s,
            rows=rows,
        )

    def _listed(self) -> _Listing:
        if not self._storage.has_folder(ICEBERG_FOLDER):
            return _Listing()
        versions, manifests, ids, foreign = (
            dict[int, ListedFile](),
            list[ListedFile](),
            set[str](),
            "",
        )
        for file in self._storage.list_after(ICEBERG_FOLDER, ""):
            name = file.path.removeprefix(f"{ICEBERG_FOLDER}/")
            if match := OWN_ICEBERG_METADATA.fullmatch(name):
                versions[int(match[1])] = file
                ids.add(match[2])
            elif ICEBERG_FILE.fullmatch(name):
                foreign = file.path
            elif OWN_ICEBERG_MANIFEST.fullmatch(name):
                manifests.append(file)
        if len(ids) > 1:
            foreign = max(file.path for file in versions.values())
        return _Listing(versions, manifests, next(iter(ids), ""), foreign)

    def _read(self, path: str) -> TableMetadataV2 | None:
        """Return a metadata file; None: it is gone.

        Raises:
            RefusedError: It is malformed.
        """
        content = self._storage.read(path, METADATA_BYTES_MAX)
        if content is None:
            return None
        with translated(f"read {self.root}/{path}"):
            metadata = TableMetadataUtil.parse_raw(content.decode())
        if not isinstance(metadata, TableMetadataV2):
            raise RefusedError(f"{self.root}/{path} is not of version 2")
        return metadata

    def _manifests(
        self, metadata: TableMetadataV2
    ) -> tuple[tuple[ManifestFile, frozenset[str]], ...]:
        prefix, manifests = f"{self.root}/", list[tuple[ManifestFile, frozenset[str]]]()
        for manifest in self._list_of(metadata):
            uris = read_uris(self._files, manifest.manifest_path)
            manifests.append((manifest, frozenset(uri.removeprefix(prefix) for uri in uris)))
        return tuple(manifests)

    def _list_of(self, metadata: TableMetadataV2) -> list[ManifestFile]:
        snapshot = metadata.current_snapshot()
        if snapshot is None:
            return []
        with translated(f"read {snapshot.manifest_list}"):
            return list(read_manifest_list(self._files.new_input(snapshot.manifest_list)))

    @staticmethod
    def listing(table: Table, head: IcebergHead) -> "MetadataListing":
        """Return an empty listing of a table's files, to be compared with a head.

        Raises:
            RefusedError: Iceberg cannot state the table.
        """
        return MetadataListing(table, head)

    def publish(self, listing: "MetadataListing", as_of_s: float, lag: str = "") -> IcebergHead:
        """Create the next version: its manifests, then its metadata by one request, then the hint.

        Args:
            listing: All files of the table, compared with the head.
            as_of_s: Time of the store before the files were read.
            lag: Why these files cannot be published; the version then has the snapshot of the head.

        Returns:
            The new head.

        Raises:
            ConflictError: Another publisher was first.
            RefusedError: The storage has no such request, or no right to it, or a file cannot be
                published.
            UnavailableError: It is unknown whether the version was created.
        """
        self._storage.make_folder(ICEBERG_FOLDER)
        head, former = listing.head, listing.head.metadata
        if lag and former is None:
            return head
        now_ms = round(as_of_s * 1000)
        if former is not None:
            now_ms = max(now_ms, former.last_updated_ms)
        made = _SnapshotFiles(self._files, self._read_footer, listing)
        if lag:
            assert former is not None
            properties = {**former.properties, LOG_TABLE: listing.table.id, LOG_LAG: lag}
            metadata = former.model_copy(
                update={"properties": properties, "last_updated_ms": now_ms}
            )
        else:
            metadata = made.metadata(as_of_s, now_ms)
        version = head.version + 1
        path = metadata_path(version, str(metadata.table_uuid))
        answer = self._storage.create(path, metadata.model_dump_json().encode())
        if answer is Answer.CONFLICT:
            made.delete()
            raise ConflictError(f"{self.root}/{path} exists already")
        if answer is Answer.UNKNOWN:
            message = f"{self.root} does not answer whether {path} was created"
            raise UnavailableError(message)
        tag = self._point_to(version)
        if lag:
            return replace(
                head, version=version, tag=tag, metadata=metadata, table=listing.table.id
            )
        return IcebergHead(
            version=version,
            tag=tag,
            metadata=metadata,
            manifests=tuple(made.manifests),
            paths=frozenset(listing.paths),
            table=listing.table.id,
            as_of_s=as_of_s,
            rows=listing.rows,
        )

    def _point_to(self, version: int) -> str:
        """Let the hint name the newest version; return the tag of one.

        A publisher may be interrupted before the hint. So the newest version is looked up after
        each write of it: an older one that was written late is replaced.
        """
        tag, hinted = "", -1
        while hinted < (listing := self._listed()).newest:
            hinted = listing.newest
            tag = listing.versions[version].tag if version in listing.versions else tag
            name = listing.versions[hinted].path.rpartition("/")[2]
            self._storage.replace(HINT, name.removesuffix(".metadata.json").encode())
        return tag

    def clean(self, keep_s: float, now_s: float) -> int:
        """Delete metadata that no reader needs; return how many files.

        A version goes when the next one is older than `keep_s`, a manifest when no version that is
        left names it and it is older.

        Args:
            keep_s: How long replaced versions can be read.
            now_s: The present time by the clock of the storage.
        """
        listing, old_s = self._listed(), now_s - keep_s
        numbers = sorted(listing.versions)
        doomed = [
            listing.versions[number].path
            for number, after in pairwise(numbers)
            if listing.versions[after].changed_at_s <= old_s
        ]
        named = dict[str, None]()
        for number in numbers[len(doomed) :]:
            metadata = self._read(listing.versions[number].path)
            snapshot = None if metadata is None else metadata.current_snapshot()
            if metadata is None or snapshot is None or snapshot.manifest_list in named:
                continue
            named[snapshot.manifest_list] = None
            for manifest in self._list_of(metadata):
                named[manifest.manifest_path] = None
        doomed += sorted(
            file.path
            for file in listing.manifests
            if file.changed_at_s <= old_s and f"{self.root}/{file.path}" not in named
        )
        for path in doomed:
            self._storage.delete(path)
        return len(doomed)


def _refuse(table: Table, path: str, fact: str) -> NoReturn:
    message = (
        f"{path} of table {table.name!r} {fact}; the service adds nothing to Iceberg metadata "
        "that it has not written alone. Look what was written; remove the metadata files from the "
        f"folder {ICEBERG_FOLDER} to have the metadata written anew"
    )
    raise RefusedError(message)


# ------------------------------------------------------------------------------------------- Files


class MetadataListing:
    """The files of a table as they are read, compared with the head of its metadata."""

    def __init__(self, table: Table, head: IcebergHead) -> None:
        """Create an empty listing.

        Raises:
            RefusedError: Iceberg cannot state the table.
        """
        self.table = table
        self.head = head
        self.definition = IcebergDefinition.of(table, head.metadata)
        self.paths: set[str] = set()
        self.rows = 0
        self.size_bytes = 0
        self.added: list[tuple[TableFile, Record]] = []
        """Files that the head does not name, and their partitions."""

    @property
    def is_clean_due(self) -> bool:
        """Whether old metadata is deleted after this version."""
        return self.head.is_clean_due

    def add(self, partition: str | None, files: Iterable[TableFile]) -> None:
        """Add the files of a tablet.

        Args:
            partition: Text of its partition.
            files: Its complete files.

        Raises:
            RefusedError: There are too many files, or a name that readers would cut off.
        """
        values = partition_values(self.table, partition or "") if self.table.partition_by else {}
        record = Record(*values.values())
        for file in files:
            if file.path in self.paths:
                continue
            self.paths.add(file.path)
            self.rows += file.rows
            self.size_bytes += file.size_bytes
            if file.path not in self.head.paths:
                self.added.append((file, record))
            if "?" in file.path or "#" in file.path:
                message = f"file {file.path} has a name with ? or #, which readers cut off"
                raise RefusedError(message)
        require_publishable(self.table, len(self.paths))


class _SnapshotFiles:
    """The manifests of one snapshot in the making. Those of the head that still hold are used."""

    def __init__(
        self, files: StorageIO, read_footer: FooterReader, listing: MetadataListing
    ) -> None:
        self._files, self._read_footer, self._listing = files, read_footer, listing
        self._head, self._definition = listing.head, listing.definition
        self._columns = arrow_schema(listing.table.schema)
        former = listing.head.metadata
        self._id = secrets.randbits(62) + 1
        self._parent = None if former is None else former.current_snapshot_id
        self._sequence = 1 if former is None else former.last_sequence_number + 1
        self.manifests: list[tuple[ManifestFile, frozenset[str]]] = []
        self._written: list[str] = []

    def metadata(self, as_of_s: float, now_ms: int) -> TableMetadataV2:
        """Write manifests and their list; return the metadata that names it."""
        definition, listing, former = self._definition, self._listing, self._head.metadata
        with translated(f"write the manifests of table {listing.table.name!r}"):
            manifest_list = self._write_list()
        properties = {
            NAME_MAPPING: create_mapping_from_schema(definition.schema).model_dump_json(),
            COLLECT: "false",
            "write.data.path": NOWHERE,
            "write.metadata.path": NOWHERE,
            LOG_TABLE: listing.table.id,
            LOG_TIME: repr(as_of_s),
            LOG_FILES: str(len(listing.paths)),
            LOG_ROWS: str(listing.rows),
            LOG_LAG: "",
        }
        snapshot = {
            "snapshot-id": self._id,
            "parent-snapshot-id": self._parent,
            "sequence-number": self._sequence,
            "timestamp-ms": now_ms,
            "manifest-list": manifest_list,
            "summary": self._summary(),
            "schema-id": definition.schema.schema_id,
        }
        # Two first publishers have to choose the same name.
        new_id = uuid5(NAMESPACE_OID, f"neve {listing.table.id}")
        fields = {
            "format-version": 2,
            "table-uuid": new_id if former is None else former.table_uuid,
            "location": self._files.root,
            "last-sequence-number": self._sequence,
            "last-updated-ms": now_ms,
            "last-column-id": definition.last_column_id,
            "current-schema-id": definition.schema.schema_id,
            "schemas": [definition.schema],
            "default-spec-id": 0,
            "partition-specs": [definition.spec],
            "last-partition-id": PARTITION_FIELD_ID_START - 1 + len(definition.spec.fields),
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": properties,
            "current-snapshot-id": self._id,
            "snapshots": [snapshot],
            "snapshot-log": [{"snapshot-id": self._id, "timestamp-ms": now_ms}],
            "metadata-log": [],
            "refs": {"main": {"snapshot-id": self._id, "type": "branch"}},
        }
        return TableMetadataV2.model_validate(fields)

    def delete(self) -> None:
        """Delete what was written: no version names it."""
        for uri in self._written:
            with suppress(CompactionError):
                self._files.delete(uri)

    def _write_list(self) -> str:
        """Write manifests and their list; return its URI."""
        self._compose()
        output = self._output("list")
        with write_manifest_list(
            2, output, self._id, self._parent, self._sequence, _CODEC
        ) as writer:
            writer.add_manifests([manifest for manifest, _ in self.manifests])
        named = dict(zip((m.manifest_path for m, _ in self.manifests), self.manifests, strict=True))
        listed = read_manifest_list(output.to_input_file())  # Now they have sequence numbers.
        self.manifests = [(manifest, named[manifest.manifest_path][1]) for manifest in listed]
        return str(output.location)

    def _compose(self) -> None:
        """Keep manifests whose files are all there, and write the others anew."""
        definition, gone = self._definition, self._head.paths - self._listing.paths
        former = self._head.metadata
        if former is not None and former.spec().fields != definition.spec.fields:
            message = f"table {definition.table.name!r} has other partitions than its metadata"
            raise RefusedError(message)
        kept, replaced = list[tuple[ManifestFile, frozenset[str]]](), list[ManifestFile]()
        for manifest, paths in self._head.manifests:
            if paths.isdisjoint(gone):
                kept.append((manifest, paths))
            else:
                replaced.append(manifest)
        small = [entry for entry in kept if len(entry[1]) < MANIFEST_FILES // 4]
        if len(small) + bool(replaced or self._listing.added) > SMALL_MANIFESTS_MAX:
            kept = [entry for entry in kept if entry not in small]
            replaced += [manifest for manifest, _ in small]
        self.manifests = kept
        entries = [*self._survivors(replaced), *self._added()]
        entries.sort(key=lambda entry: entry.data_file.file_path)  # Partitions are neighbours.
        for first in range(0, len(entries), MANIFEST_FILES):
            self._write_manifest(entries[first : first + MANIFEST_FILES])

    def _survivors(self, manifests: Iterable[ManifestFile]) -> Iterator[ManifestEntry]:
        prefix = f"{self._files.root}/"
        for manifest in manifests:
            for entry in manifest.fetch_manifest_entry(self._files):
                if entry.data_file.file_path.removeprefix(prefix) in self._listing.paths:
                    entry.status = ManifestEntryStatus.EXISTING
                    yield entry

    def _added(self) -> Iterator[ManifestEntry]:
        with ThreadPoolExecutor(READERS) as threads:
            for file in threads.map(self._data_file, self._listing.added):
                yield added_entry(file, None)

    def _data_file(self, added: tuple[TableFile, Record]) -> DataFile:
        file, partition = added
        footer = self._read_footer(file.path)
        require_ids(file.path, footer, self._definition.schema)
        metrics: dict[str, Any] = footer_metrics(footer, self._columns, self._definition.schema)
        return file_entry(
            DataFileContent.DATA,
            self._definition.spec.spec_id,
            partition,
            file_path=f"{self._files.root}/{file.path}",
            record_count=file.rows,
            file_size_in_bytes=file.size_bytes,
            **metrics,
        )

    def _write_manifest(self, entries: Sequence[ManifestEntry]) -> None:
        definition, prefix = self._definition, f"{self._files.root}/"
        output = self._output(f"m{len(self._written)}")
        with DataWriter(definition.spec, definition.schema, output, self._id, _CODEC) as writer:
            for entry in entries:
                write_entry(writer, entry)
        paths = frozenset(entry.data_file.file_path.removeprefix(prefix) for entry in entries)
        self.manifests.append((writer.to_manifest_file(), paths))

    def _output(self, name: str) -> OutputFile:
        output = self._files.new_output(
            f"{self._files.root}/{ICEBERG_FOLDER}/neve-{self._id}-{name}.avro"
        )
        self._written.append(output.location)
        return output

    def _summary(self) -> dict[str, str]:
        listing, head = self._listing, self._head
        removed = len(head.paths - listing.paths)
        return {
            "operation": "overwrite" if removed else "append",
            "added-data-files": str(len(listing.added)),
            "deleted-data-files": str(removed),
            "total-data-files": str(len(listing.paths)),
            "total-records": str(listing.rows),
            "total-files-size": str(listing.size_bytes),
            "total-delete-files": "0",
            "total-position-deletes": "0",
            "total-equality-deletes": "0",
        }
