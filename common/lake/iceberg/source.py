"""The port to an Iceberg table: load the head, look for an attempt, positions of deleted rows.

    catalog → metadata of the table → manifest list of the head → manifests not read so far
            → data files, with the delete files that apply to each

The version of a snapshot is its sequence number. A poll without news asks the catalog only.
"""

import base64
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

import pyarrow as pa
from pyarrow.fs import FileSystem
from pyarrow.parquet import FileMetaData
from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot

from common.errors import InputError, RefusedError, RequestError, UnavailableError
from common.lake.iceberg import expiry, orphans
from common.lake.iceberg.catalogs import (
    Admission,
    GuardedFileIO,
    TableRoot,
    open_catalog,
    split_identifier,
    translated,
)
from common.lake.iceberg.commit import (
    ATTEMPT,
    MANIFESTS,
    HeadFiles,
    SnapshotSender,
    merge_manifests,
    survey_manifests,
)
from common.lake.iceberg.deletes import (
    COUNTED_ROWS_MAX,
    NO_POSITIONS,
    DeleteIndex,
    PositionReader,
    ValueColumns,
    identity_of,
    matched_positions,
)
from common.lake.iceberg.manifests import (
    DeleteFile,
    ManifestFiles,
    ManifestReader,
    read_list,
    schemas_of,
)
from common.lake.iceberg.write import columns_without_bounds, file_schema, sort_keys, stored_columns
from common.lake.source import (
    LOCATIONS,
    Answer,
    Commit,
    Freed,
    LakeFile,
    LakeSurvey,
    Look,
    MaintenanceRules,
    Positions,
    Sighting,
    Snapshot,
)
from common.model.table import ICEBERG_OPERATIONS, Column
from common.rows.schema import CHARS_MAX, normal_type, type_to_text
from common.runtime import SystemClock

FORMAT_VERSION = 2
FILES_MAX = 2_000_000
"""Most live files of a table."""
MANIFESTS_MAX = 200_000
READERS = 8
CODE_PROPERTIES = ("py-io-impl", "write.py-location-provider.impl")
EXPIRES_AT = "s3.session-token-expires-at-ms"
"""Property with the end of lent credentials, in milliseconds since the epoch."""
RENEWED_S = 900.0
"""Lent credentials are used for so long at most."""
COUNTED_FILES_MAX = 2_000
"""Most position-delete files of several data files that one load counts."""

# ------------------------------------------------------------------------------------------- State


@dataclass(frozen=True, slots=True)
class IcebergState:
    """What the source needs to read on from a snapshot, and to commit on it."""

    metadata: TableMetadata
    metadata_location: str
    root: TableRoot
    """Location of the table."""
    manifests: Mapping[str, ManifestFiles] = field(default_factory=dict)
    """Manifests of the snapshot, by path."""
    deletes: tuple[DeleteFile, ...] = ()
    """Live delete files."""
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Delete file → data file → number of rows, where this was counted."""
    applied: Mapping[str, tuple[DeleteFile, ...]] = field(default_factory=dict)
    """Identity of the deletes of a file → the files of position deletes."""
    spelled: Mapping[str, str] = field(default_factory=dict)
    """Path of a file → its URI, where the root does not give it."""

    def uri_of(self, path: str) -> str:
        """Return the URI of a file as the table's writers spell it."""
        return self.spelled.get(path) or self.root.uri_of(path)


def open_iceberg(uri: str, options: Mapping[str, str]) -> "IcebergSource":
    """Return the source of an Iceberg table; nothing is read.

    Args:
        uri: `CATALOG:NAMESPACE.TABLE`.
        options: Properties of the catalog.

    Raises:
        RequestError: The URI is malformed.
    """
    name, identifier = split_identifier(uri)
    return IcebergSource(name, identifier, options)


class IcebergSource:
    """An Iceberg table. Calls of several threads may overlap."""

    def __init__(self, name: str, identifier: tuple[str, ...], options: Mapping[str, str]) -> None:
        self._name, self._identifier = name, identifier
        self._options = dict(options)
        locations = options.get(LOCATIONS)
        self._admission = Admission(None if locations is None else locations.splitlines())
        self._sender = SnapshotSender()
        self._state: IcebergState | None = None
        self._table: Table | None = None
        self._loaded_s = 0.0
        """When it was loaded, in seconds since the epoch."""
        self._reader: PositionReader | None = None

    @cached_property
    def catalog(self) -> Catalog:
        """The client of the catalog; it is opened when it is first used."""
        return open_catalog(self._name, self._options)

    @property
    def title(self) -> str:
        """Return the name of the table for messages."""
        return f"{self._name}:{'.'.join(self._identifier)}"

    # ---------------------------------------------------------------------------------------- Load

    def load(self, known: Snapshot | None = None) -> Snapshot:
        """Return the head; see `TableSource`."""
        table = self._loaded()
        state = known.state if known is not None else None
        location = table.metadata_location or ""
        if isinstance(state, IcebergState) and known is not None:
            if location and state.metadata_location == location:
                self._state = state
                return known
            if state.metadata.location != table.metadata.location:
                state = None
        snapshot = self._snapshot(table, state if isinstance(state, IcebergState) else None)
        assert isinstance(snapshot.state, IcebergState), self.title
        self._state = snapshot.state
        return snapshot

    def _loaded(self) -> Table:
        """Return the table as its catalog has it now."""
        now_s = SystemClock().now_s()
        with translated(f"read the table {self.title}"):
            table = self.catalog.load_table(self._identifier)
        self._table, self._loaded_s = table, now_s
        return table

    def _snapshot(self, table: Table, known: IcebergState | None) -> Snapshot:
        metadata = table.metadata
        self._admission.require(f"{metadata.location.rstrip('/')}/metadata")
        head = metadata.current_snapshot()
        refusal = _why_refused(metadata)
        root = TableRoot(metadata.location)
        state = IcebergState(metadata, table.metadata_location or "", root)
        files: dict[str, LakeFile] = {}
        if head is not None and not refusal:
            manifests = self._manifests(table.io, metadata, head, known)
            refusal = next((read.refusal for read in manifests.values() if read.refusal), "")
            spelled = dict(chain.from_iterable(read.spelled.items() for read in manifests.values()))
            state = replace(state, manifests=manifests, spelled=spelled)
            state = self._with_deletes(state, table.io, known)
            files, applied = _applied(state)
            state = replace(state, applied=applied)
        columns = () if _why_unreadable(metadata) else _columns(metadata.schema())
        return Snapshot(
            version=(head.sequence_number or 0) if head is not None else 0,
            table_id=str(metadata.table_uuid),
            columns=columns,
            properties=dict(metadata.properties),
            files={} if refusal else files,
            refusal=refusal,
            changed_at_s=(head.timestamp_ms if head else metadata.last_updated_ms) / 1000,
            state=state,
            newest=getattr(metadata, "last_sequence_number", 0),
            root=root.uri,
            field_ids={column.name: column.field_id for column in metadata.schema().fields},
            file_schema=file_schema(metadata.schema()) if columns else None,
            sort=sort_keys(metadata) if columns else (),
        )

    def _manifests(
        self,
        io: FileIO,
        metadata: TableMetadata,
        head: IcebergSnapshot,
        known: IcebergState | None,
    ) -> dict[str, ManifestFiles]:
        """Return the manifests of a snapshot; only those that are new are read."""
        listed = read_list(io, head.manifest_list)
        if len(listed) > MANIFESTS_MAX:
            message = f"the table {self.title} has more than {MANIFESTS_MAX} manifests"
            raise RefusedError(message)
        before = known.manifests if known is not None else {}
        fresh = [manifest for manifest in listed if manifest.path not in before]
        reader = self._manifest_reader(metadata, io)
        with ThreadPoolExecutor(READERS) as threads:
            contents = list(threads.map(reader.read, fresh))
        new = {manifest.path: read for manifest, read in zip(fresh, contents, strict=True)}
        manifests = {
            manifest.path: before.get(manifest.path) or new[manifest.path] for manifest in listed
        }
        if sum(len(manifest.files) for manifest in manifests.values()) > FILES_MAX:
            message = f"the table {self.title} has more than {FILES_MAX} files"
            raise RefusedError(message)
        return manifests

    def _manifest_reader(self, metadata: TableMetadata, io: FileIO) -> ManifestReader:
        times_s = {
            snapshot.snapshot_id: snapshot.timestamp_ms / 1000 for snapshot in metadata.snapshots
        }
        root, schemas = TableRoot(metadata.location), schemas_of(metadata)
        specs, admission = metadata.specs(), self._admission
        return ManifestReader(root, specs, schemas, times_s, io=io, admission=admission)

    def _with_deletes(
        self, state: IcebergState, io: FileIO, known: IcebergState | None
    ) -> IcebergState:
        """Return a state with its live delete files, those of several data files counted."""
        deletes = tuple(delete for read in state.manifests.values() for delete in read.deletes)
        counts, rows = dict[str, Mapping[str, int]](), 0
        reader = PositionReader(io)
        for delete in sorted(deletes, key=lambda delete: (-delete.sequence, delete.path)):
            if delete.equality_ids or delete.data_path:
                continue
            counted = known.counts.get(delete.path) if known is not None else None
            if counted is None:
                rows += delete.rows
                if rows > COUNTED_ROWS_MAX or len(counts) >= COUNTED_FILES_MAX:
                    continue
                counted = reader.counts(delete)
            counts[delete.path] = counted
        return replace(state, deletes=deletes, counts=counts)

    # ------------------------------------------------------------------------------------- Deletes

    def positions(self, file: LakeFile) -> Positions:
        """Return the positions of a file's rows that position deletes remove."""
        if not file.deletes:
            return NO_POSITIONS
        state, io = self._present()
        applied = state.applied.get(file.deletes)
        if applied is None:
            message = f"the deletes of file {file.path} are those of another version of the table"
            raise InputError(message)
        if (reader := self._reader) is None or reader.io is not io:
            reader = self._reader = PositionReader(io)
        return reader.positions(applied, state.uri_of(file.path), file.rows)

    def matched(self, file: LakeFile) -> Positions:
        """Return the positions of a file's rows that equality deletes remove."""
        if not file.equality:
            return NO_POSITIONS
        state, io = self._present()
        by_path = {delete.path: delete for delete in state.deletes}
        try:
            deletes = [by_path[path] for _, path in file.equality]
        except KeyError as error:
            message = f"equality deletes {error.args[0]} of file {file.path} left the table"
            raise InputError(message) from None
        positions = matched_positions(
            io, deletes, state.uri_of(file.path), _value_columns(state.metadata)
        )
        if positions.size and int(positions[-1]) >= file.rows:
            message = f"file {file.path} has more rows than the {file.rows} that the table says"
            raise InputError(message)
        return positions

    def _present(self) -> tuple[IcebergState, FileIO]:
        """Return the state that was loaded last, and access to its files."""
        if self._state is None or self._table is None:
            self.load()
        assert self._state is not None, self.title
        assert self._table is not None, self.title
        return self._state, self._table.io

    # ---------------------------------------------------------------------------------------- Look

    def look(self, attempt: str, outputs: Collection[str], since: int) -> Sighting:
        """Look for an attempt in all retained snapshots above `since`.

        A snapshot that is missing may have been its commit. It is found then by its files, if a
        branch or tag still has one. If none is missing, what refused tries wrote is deleted.
        """
        table, wanted = self._loaded(), frozenset(outputs)
        metadata = table.metadata
        later = [
            snapshot for snapshot in metadata.snapshots if (snapshot.sequence_number or 0) > since
        ]
        for snapshot in later:
            if attempt and _attempt_of(snapshot) == attempt:
                added = self._named(table, snapshot, wanted, only_own=True)
                self._sender.clean(table, attempt)
                return Sighting(Look.FOUND, snapshot.sequence_number or 0, added)
        last = getattr(metadata, "last_sequence_number", 0)
        for snapshot in _referred(metadata):
            if self._named(table, snapshot, wanted, since=since):
                # Which of its snapshots added them is unknown, so none of them may be deleted.
                return Sighting(Look.FOUND, snapshot.sequence_number or 0, wanted)
        missing = {*range(since + 1, last + 1)} - {snapshot.sequence_number for snapshot in later}
        if last < since or missing:
            number = min(missing, default=since)
            reason = f"the snapshot with sequence number {number} of {self.title} is missing"
            return Sighting(Look.CANNOT_TELL, last, reason=reason)
        self._sender.clean(table, attempt)
        return Sighting(Look.ABSENT, last)

    def _named(
        self,
        table: Table,
        snapshot: IcebergSnapshot,
        wanted: frozenset[str],
        *,
        only_own: bool = False,
        since: int = -1,
    ) -> frozenset[str]:
        """Return which files the manifests of a snapshot name, deleted entries included.

        Args:
            table: The table as it was just loaded.
            snapshot: One of its snapshots.
            wanted: Paths of files.
            only_own: Whether only manifests count that the snapshot has added itself.
            since: Manifests up to this sequence number are not read.
        """
        if not wanted:
            return frozenset()
        reader = self._manifest_reader(table.metadata, table.io)
        listed = [
            manifest
            for manifest in read_list(table.io, snapshot.manifest_list)
            if not manifest.has_deletes
            and manifest.sequence > since
            and (not only_own or manifest.snapshot_id == snapshot.snapshot_id)
        ]
        with ThreadPoolExecutor(READERS) as threads:
            named = threads.map(lambda manifest: reader.added(manifest, wanted), listed)
            return frozenset().union(*named)

    # ---------------------------------------------------------------------------------------- Send

    def send(self, commit: Commit) -> Answer:
        """Make a commit the next snapshot, if its base is the head, by one request."""
        state = commit.base.state
        assert isinstance(state, IcebergState), type(state)
        assert not commit.base.refusal, commit.base.refusal
        head = HeadFiles(
            uri_of=state.uri_of,
            deletes=state.deletes,
            counts=state.counts,
            is_whole=not any(manifest.left_out for manifest in state.manifests.values()),
        )
        return self._sender.send(self._table_of(state), commit, head)

    def _table_of(self, state: IcebergState) -> Table:
        """Return the table with the metadata of a state."""
        _, io = self._present()
        assert self._table is not None, self.title
        location, config = state.metadata_location, self._table.config
        return Table(self._identifier, state.metadata, location, io, self.catalog, config)

    # --------------------------------------------------------------------------------- Maintenance

    @property
    def operations(self) -> tuple[str, ...]:
        """Return the names of the maintenance operations."""
        return ICEBERG_OPERATIONS

    def survey(self, operation: str, snapshot: Snapshot, rules: MaintenanceRules) -> LakeSurvey:
        """Return what an operation would do; see `TableSource`."""
        reach = self._reach(snapshot)
        if operation == MANIFESTS:
            return survey_manifests(reach.table, snapshot.version, rules)
        if operation == orphans.ORPHAN_FILES:
            return orphans.survey_orphans(reach, rules, self._neighbours)
        assert operation == expiry.EXPIRE_SNAPSHOTS, operation
        return expiry.survey_expiry(reach, rules)

    def carry_out(self, survey: LakeSurvey, snapshot: Snapshot, rules: MaintenanceRules) -> Freed:
        """Do what a survey says; see `TableSource`."""
        if survey.operation == MANIFESTS:
            commit = Commit(snapshot, attempt="", now_s=rules.now_s)
            table = self._reach(snapshot).table
            return merge_manifests(self._loaded, table, commit, rules)
        if survey.operation == orphans.ORPHAN_FILES:
            reach = self._reach(snapshot)
            return orphans.delete_orphans(reach, survey, rules, self._neighbours)
        assert survey.operation == expiry.EXPIRE_SNAPSHOTS, survey
        if survey.versions:
            return expiry.expire(self._loaded, survey, rules)
        return expiry.delete_files(self._reach(snapshot), survey, rules)

    def _neighbours(
        self, known: Collection[orphans.Identifier]
    ) -> Mapping[orphans.Identifier, TableMetadata]:
        """Return the other tables of the catalog, without those that are known."""
        return orphans.tables_of(self.catalog, self._identifier, known)

    def _reach(self, snapshot: Snapshot) -> expiry.SnapshotReach:
        """Return access to what a snapshot, as it was just loaded, and older ones name.

        Raises:
            RefusedError: The table is not maintained.
        """
        if snapshot.refusal:
            raise RefusedError(snapshot.refusal)
        state = snapshot.state
        assert isinstance(state, IcebergState), type(state)
        table = self._table_of(state)
        assert isinstance(table.io, GuardedFileIO), type(table.io)
        return expiry.SnapshotReach(table, table.io, state.manifests)

    # ---------------------------------------------------------------------------------- Other calls

    def require_conditions(self, name: str) -> None:
        """Do nothing: catalogs compare versions by themselves."""

    def statistics(self, snapshot: Snapshot, footer: FileMetaData) -> str:
        """Return the metrics of a file for its manifest entry, under the table's metrics modes."""
        state = snapshot.state
        assert isinstance(state, IcebergState), type(state)
        return file_metrics(state.metadata, footer)

    def stored_columns(self, snapshot: Snapshot, file: LakeFile, schema: pa.Schema) -> pa.Schema:
        """Return the columns of a data file with field ids, and those that its partition gives."""
        state = snapshot.state
        assert isinstance(state, IcebergState), type(state)
        with translated(f"identify the columns of {file.path}"):
            return stored_columns(state.metadata, file.path, file.partition, schema)

    def files(self, bucket: str) -> FileSystem | None:
        """Return a client by what the catalog lends or is given, renewed before it ends."""
        now_s = SystemClock().now_s()
        table = self._table
        if table is None or now_s >= renewal_s(table.io.properties, self._loaded_s):
            table = self._loaded()
        assert isinstance(table.io, GuardedFileIO), type(table.io)
        if table.io.is_by_environment:
            return None
        with translated(f"reach the files of {self.title}"):
            return table.io.fs_by_scheme("s3", bucket)

    def delete(self, paths: Sequence[str]) -> None:
        """Delete outputs that were never committed."""
        state, io = self._present()
        for path in paths:
            try:
                with translated(f"delete {path}"):
                    io.delete(state.uri_of(path))
            except UnavailableError:
                if not _is_missing(io, state.uri_of(path)):
                    raise


def renewal_s(properties: Mapping[str, Any], loaded_s: float) -> float:
    """Return when credentials are renewed, in seconds since the epoch.

    Work on one file has to end before they do. So they are renewed after half of their life, or
    `RENEWED_S` if the catalog does not say how long it is.

    Args:
        properties: Properties of the access to files, as the catalog has lent them.
        loaded_s: When they were lent.
    """
    try:
        ends_s = int(properties[EXPIRES_AT]) / 1000
    except (KeyError, TypeError, ValueError):
        return loaded_s + RENEWED_S
    return min(loaded_s + RENEWED_S, (loaded_s + ends_s) / 2)


def _is_missing(io: FileIO, uri: str) -> bool:
    with translated(f"look for {uri}"):
        return not io.new_input(uri).exists()


def _attempt_of(snapshot: IcebergSnapshot) -> str:
    summary = snapshot.summary
    return "" if summary is None else summary.additional_properties.get(ATTEMPT, "")


def _referred(metadata: TableMetadata) -> Iterator[IcebergSnapshot]:
    """Yield the snapshots that branches and tags name, each once."""
    ids = {reference.snapshot_id for reference in metadata.refs.values()}
    if metadata.current_snapshot_id is not None:
        ids.add(metadata.current_snapshot_id)
    return (snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id in ids)


def _applied(state: IcebergState) -> tuple[dict[str, LakeFile], dict[str, tuple[DeleteFile, ...]]]:
    """Return the live files with their deletes, and the position deletes by identity."""
    index = DeleteIndex(state.deletes, state.counts)
    files: dict[str, LakeFile] = {}
    applied: dict[str, tuple[DeleteFile, ...]] = {}
    for manifest in state.manifests.values():
        for file in manifest.files:
            if file.path in files:
                message = f"file {file.path} is in the table twice"
                raise RefusedError(message)
            files[file.path] = file
        if index.is_empty:
            continue
        for file in manifest.files:
            equality = index.equality_deletes(file)
            deletes = index.position_deletes(file, state.uri_of(file.path))
            if not deletes and not equality:
                continue
            identity = ""
            if deletes:
                identity = identity_of(delete.path for delete, _ in deletes)
                applied[identity] = tuple(delete for delete, _ in deletes)
            files[file.path] = replace(
                file,
                deletes=identity,
                deleted_rows=min(file.rows, sum(count for _, count in deletes)),
                equality=equality,
                delete_files=len(deletes) + len(equality),
            )
    return files, applied


# ---------------------------------------------------------------------------------------- Metadata


def _why_refused(metadata: TableMetadata) -> str:
    """Return why Névé cannot compact a table and what to do, or an empty text."""
    version = metadata.format_version
    if version < FORMAT_VERSION:
        return (
            "the table has version 1 of the format, which lacks sequence numbers; upgrade it with "
            "its engine: set the property format-version = 2"
        )
    if version > FORMAT_VERSION:
        return (
            f"the table has version {version} of the format, and Névé does not keep its row "
            "lineage; use the engine's own compaction"
        )
    for name in CODE_PROPERTIES:
        if name in metadata.properties:
            return (
                f"the table has the property {name}, with which PyIceberg loads other code; remove "
                "it, and set it in the settings of those who need it"
            )
    if metadata.properties.get("encryption.key-id"):
        return "the table is encrypted, which Névé does not support"
    return _why_unreadable(metadata)


def _why_unreadable(metadata: TableMetadata) -> str:
    try:
        columns = _columns(metadata.schema())
    except (RequestError, NotImplementedError, TypeError, ValueError, pa.ArrowException) as error:
        return f"a column has a type that Névé does not rewrite: {error!s:.200}"
    for column in columns:
        if len(column.type) > CHARS_MAX:
            return f"column {column.name[:100]} has a type of {len(column.type)} characters"
    return ""


def _columns(schema: Schema) -> tuple[Column, ...]:
    arrow = schema_to_pyarrow(schema, include_field_ids=False)
    return tuple(
        Column(column.name, type_to_text(column.type), column.nullable) for column in arrow
    )


def _value_columns(metadata: TableMetadata) -> ValueColumns:
    """Return types and names of all columns that the table has or had, by field id."""
    types: dict[int, pa.DataType] = {}
    names: dict[int, list[str]] = {}
    for schema in schemas_of(metadata):
        arrow = schema_to_pyarrow(schema, include_field_ids=False)
        for column, kind in zip(schema.fields, arrow.types, strict=True):
            types.setdefault(column.field_id, normal_type(kind))
            names.setdefault(column.field_id, []).append(column.name)
    mapping = metadata.name_mapping()
    for mapped in mapping.root if mapping is not None else ():
        if mapped.field_id is not None:
            names[mapped.field_id] = list(mapped.names)
    return ValueColumns(types, names)


def file_metrics(metadata: TableMetadata, footer: FileMetaData) -> str:
    """Return the metrics of a file as JSON text: counts, and bounds in Base64, by field id.

    Args:
        metadata: Metadata of the table, whose properties choose the columns and their bounds.
        footer: The footer of a file with columns of the current schema.
    """
    schema = metadata.schema()
    numbers = parquet_path_to_id_mapping(sanitize_column_names(schema))
    with translated("compute the metrics of a file"):
        plan = compute_statistics_plan(schema, metadata.properties)
        statistics = data_file_statistics_from_parquet_metadata(footer, plan, numbers)
    unbounded = {numbers[path] for path in columns_without_bounds(footer)}
    values = statistics.to_serialized_dict()
    counts = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
    metrics: dict[str, Any] = {name: _by_text(values[name]) for name in counts}
    for name in ("lower_bounds", "upper_bounds"):
        bounds: Iterable[tuple[int, bytes]] = values[name].items()
        metrics[name] = {
            str(number): base64.b64encode(value).decode()
            for number, value in bounds
            if value is not None and number not in unbounded
        }
    metrics["split_offsets"] = list(values["split_offsets"] or ())
    return json.dumps(metrics, separators=(",", ":"))


def _by_text(values: Mapping[int, int]) -> dict[str, int]:
    return {str(number): count for number, count in values.items()}
