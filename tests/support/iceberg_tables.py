"""Iceberg tables of other writers: PyIceberg, and delete files that PyIceberg cannot write.

Rows are identified by a column `id`, so that a test can say which rows a table has to have. The
deletes share no code with the product: a manifest of delete files and a snapshot, committed by the
catalog on condition that the head is the one that was read.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
)
from pyiceberg.typedef import Record

NAMESPACE = "db"
PATH_ID, POSITION_ID = 2147483546, 2147483545
"""Reserved identifiers of the columns of position deletes."""
_ID = b"PARQUET:field_id"
_POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {_ID: str(PATH_ID)}),
        pa.field("pos", pa.int64(), False, {_ID: str(POSITION_ID)}),
    ]
)
Deletes = Sequence[DataFile]


def _files(table: Table) -> dict[str, DataFile]:
    """Return the live data files of a version: PyIceberg plans no scan with equality deletes."""
    snapshot = table.current_snapshot()
    return {
        entry.data_file.file_path: entry.data_file
        for manifest in (snapshot.manifests(table.io) if snapshot else ())
        if manifest.content == ManifestContent.DATA
        for entry in manifest.fetch_manifest_entry(table.io)
    }


def _added(table: Table) -> Iterator[str]:
    """Yield the paths of the data files that a version has added."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    for manifest in snapshot.manifests(table.io):
        is_own = manifest.added_snapshot_id == snapshot.snapshot_id
        if is_own and manifest.content == ManifestContent.DATA:
            for entry in manifest.fetch_manifest_entry(table.io):
                if entry.status == ManifestEntryStatus.ADDED:
                    yield entry.data_file.file_path


class _DeletesWriter(ManifestWriterV2):
    """Writes a manifest of delete files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def sqlite_catalog(
    folder: Path, name: str = "prod", storage: Mapping[str, str] | None = None
) -> SqlCatalog:
    """Return a catalog in a file of a folder; its tables lie in the folder, too.

    Args:
        folder: Of the file. Catalogs of several names share it.
        name: Of the catalog.
        storage: Properties with another `warehouse`, and those of its storage.
    """
    folder.mkdir(parents=True, exist_ok=True)
    catalog = SqlCatalog(name, **{**sqlite_properties(folder), **(storage or {})})
    catalog.create_namespace_if_not_exists(NAMESPACE)
    return catalog


def sqlite_properties(folder: Path) -> dict[str, str]:
    """Return the properties of `sqlite_catalog`."""
    return {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": (folder / "warehouse").as_uri()}


class IcebergTable:
    """A table of a catalog, changed by other writers than Névé. Each change is one snapshot."""

    def __init__(self, catalog: Catalog, identifier: str) -> None:
        self.catalog, self.identifier = catalog, identifier

    @classmethod
    def create(
        cls,
        catalog: Catalog,
        name: str,
        schema: pa.Schema | Schema,
        spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        properties: Mapping[str, str] | None = None,
        **options: Any,
    ) -> IcebergTable:
        """Create a table of format version 2; options are those of `Catalog.create_table`."""
        identifier = f"{NAMESPACE}.{name}"
        merged = {"format-version": "2", **(properties or {})}
        catalog.create_table(identifier, schema, partition_spec=spec, properties=merged, **options)
        return cls(catalog, identifier)

    @property
    def table(self) -> Table:
        """The table at its head."""
        return self.catalog.load_table(self.identifier)

    @property
    def metadata(self) -> str:
        """Location of the metadata of the head, as the independent reader takes it."""
        return self.table.metadata_location.removeprefix("file://")

    def append(self, rows: pa.Table) -> list[str]:
        """Append rows; return the paths of the new files."""
        appended: list[Table] = []

        def append() -> None:
            table = self.table
            table.append(rows)
            appended.append(table)  # At the version that it has made.

        self._repeated(append)
        return sorted(_added(*appended))

    def delete_by_copy(self, predicate: str) -> None:
        """Delete rows as PyIceberg does: files with such rows are written again."""
        self._repeated(lambda: self.table.delete(predicate))

    def live(self) -> dict[str, DataFile]:
        """Return the live data files by their paths."""
        return _files(self.table)

    def stored(self, path: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows of a data file, deleted ones included, with the names in the file."""
        with self.table.io.new_input(path).open() as stream:
            return pq.ParquetFile(stream).read(columns)

    # --------------------------------------------------------------------------- Position deletes

    def delete(self, ids: Iterable[int], *, single: bool = True) -> None:
        """Delete rows by position, whatever file holds them.

        Args:
            ids: Their values of `id`.
            single: Whether each data file gets a delete file of its own; else each partition.
        """
        wanted = pa.array(sorted(set(ids)), pa.int64())

        def positions(table: Table) -> Deletes:
            chosen = {}
            for path in _files(table):
                column = self.stored(path, ["id"]).column(0)
                hits = pc.indices_nonzero(pc.is_in(column, wanted))
                if len(hits):
                    chosen[path] = hits.to_pylist()
            return self._position_deletes(table, chosen, single=single)

        self.change(positions)

    def delete_positions(
        self, positions: Mapping[str, Iterable[int]], *, single: bool = False
    ) -> None:
        """Delete rows of files by position."""
        self.change(lambda table: self._position_deletes(table, positions, single=single))

    def _position_deletes(
        self, table: Table, positions: Mapping[str, Iterable[int]], *, single: bool
    ) -> Deletes:
        files = _files(table)
        groups: dict[Any, list[str]] = {}
        for path in sorted(positions):
            file = files[path]
            key = path if single else (file.spec_id, tuple(file.partition[:]))
            groups.setdefault(key, []).append(path)
        made = []
        for paths in groups.values():
            rows = [(path, row) for path in paths for row in sorted(set(positions[path]))]
            columns = [pa.array([row[at] for row in rows], _POSITIONS.types[at]) for at in (0, 1)]
            file, ends = files[paths[0]], (paths[0].encode(), paths[-1].encode())
            made.append(
                self._written(
                    table,
                    pa.table(columns, schema=_POSITIONS),
                    (file.spec_id, file.partition),
                    content=DataFileContent.POSITION_DELETES,
                    lower_bounds={PATH_ID: ends[0]},
                    upper_bounds={PATH_ID: ends[1]},
                )
            )
        return made

    # --------------------------------------------------------------------------- Equality deletes

    def delete_equal(self, rows: pa.Table) -> None:
        """Delete all earlier rows that are equal to one of these in their columns.

        A partitioned table gets one delete file for each partition that has data files.
        """

        def equal(table: Table) -> Deletes:
            parts = {
                (file.spec_id, tuple(file.partition[:])): file.partition
                for file in _files(table).values()
            }
            schema = table.schema()
            chosen = [schema.find_field(name) for name in rows.column_names]
            target = schema_to_pyarrow(Schema(*chosen))
            values = pa.table(
                [rows.column(at).cast(target.types[at]) for at in range(len(target))], schema=target
            )
            return [
                self._written(
                    table,
                    values,
                    (spec, partition),
                    content=DataFileContent.EQUALITY_DELETES,
                    equality_ids=[field.field_id for field in chosen],
                )
                for (spec, _), partition in parts.items()
            ]

        self.change(equal)

    # ------------------------------------------------------------------------------------- Commits

    def _written(
        self, table: Table, rows: pa.Table, part: tuple[int, Record], **fields: Any
    ) -> DataFile:
        """Write a delete file."""
        path = f"{table.location()}/data/deletes-{uuid.uuid4()}.parquet"
        with table.io.new_output(path).create() as stream:
            pq.write_table(rows, stream)
        file = DataFile.from_args(
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=part[1],
            record_count=rows.num_rows,
            file_size_in_bytes=len(table.io.new_input(path)),
            **fields,
        )
        file.spec_id = part[0]
        return file

    def change(self, make: Callable[[Table], Deletes]) -> None:
        """Commit the delete files that `make` returns for the head; repeat it after a conflict."""
        while True:
            table = self.table
            files = make(table)
            if not files:
                return
            try:
                self._commit(table, files)
            except CommitFailedException:
                continue
            return

    def _commit(self, table: Table, files: Deletes) -> None:
        metadata, parent = table.metadata, table.metadata.current_snapshot()
        assert parent is not None, "there is nothing to delete"
        snapshot_id, name = metadata.new_snapshot_id(), uuid.uuid4()
        folder, manifests = f"{table.location()}/metadata", parent.manifests(table.io)
        for spec_id in sorted({file.spec_id for file in files}):
            sink = table.io.new_output(f"{folder}/{name}-m{spec_id}.avro")
            spec, schema = metadata.specs()[spec_id], metadata.schema()
            with _DeletesWriter(spec, schema, sink, snapshot_id, "gzip") as writer:
                for file in files:
                    if file.spec_id == spec_id:
                        entry = ManifestEntry.from_args(
                            status=ManifestEntryStatus.ADDED,
                            snapshot_id=snapshot_id,
                            data_file=file,
                        )
                        writer.add(entry)
            manifests.append(writer.to_manifest_file())
        number, listed = metadata.next_sequence_number(), f"{folder}/snap-{snapshot_id}-{name}.avro"
        sink = table.io.new_output(listed)
        with write_manifest_list(
            2, sink, snapshot_id, parent.snapshot_id, number, "gzip"
        ) as writer:
            writer.add_manifests(manifests)
        snapshot = Snapshot(
            snapshot_id=snapshot_id,
            parent_snapshot_id=parent.snapshot_id,
            sequence_number=number,
            timestamp_ms=max(int(time.time() * 1000), parent.timestamp_ms),
            manifest_list=listed,
            summary=Summary(Operation.DELETE),
            schema_id=metadata.current_schema_id,
        )
        self.catalog.commit_table(
            table,
            (
                AssertTableUUID(uuid=metadata.table_uuid),
                AssertRefSnapshotId(ref="main", snapshot_id=parent.snapshot_id),
            ),
            (
                AddSnapshotUpdate(snapshot=snapshot),
                SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=snapshot_id),
            ),
        )

    def _repeated(self, act: Callable[[], Any]) -> None:
        while True:
            try:
                act()
            except (CommitFailedException, ValidationException):  # Others were faster.
                continue
            return
