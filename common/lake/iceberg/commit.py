"""Replace files or manifests of an Iceberg table: one snapshot, a `replace`, sent once.

    manifests of inputs   written again: inputs as DELETED, the files next to them as EXISTING
    outputs               ADDED, with the sequence number of the planned snapshot
    rows deleted since    position deletes of the outputs
    delete files          DELETED if they apply to no file any more, outputs included
                          → manifest list → snapshot → `commit_table` of the catalog

The catalog takes the snapshot only if the branch `main` is still at the base and no sequence number
was given since. PyIceberg has no such operation, and its tables send a refused commit again and
delete files of it, though the refused request may be the second one of a commit. So its writers of
manifests are used here, and the catalog's own method without what repeats it.
"""

import inspect
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from itertools import chain
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    read_manifest_list,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    Summary,
    UpdateMetrics,
    update_snapshot_summaries,
)
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from common.errors import CompactionError, ConfigError, RefusedError, UnavailableError
from common.lake.iceberg import catalogs, write
from common.lake.iceberg.catalogs import translated
from common.lake.iceberg.manifests import (
    PATH_ID,
    POSITION_ID,
    DeleteFile,
    live_entries,
    read_list,
    schemas_of,
)
from common.lake.iceberg.write import (
    DataWriter,
    DeletesWriter,
    added_entry,
    data_file,
    file_entry,
    layout_of,
    write_entry,
)
from common.lake.source import (
    Answer,
    Commit,
    Freed,
    LakeFile,
    LakeOutput,
    LakeSurvey,
    MaintenanceRules,
    Positions,
)
from common.model.table import ICEBERG_OPERATIONS
from common.primitives import BoundedMap
from common.rows.conform import FIELD_ID
from common.units import format_count

*_, MANIFESTS = ICEBERG_OPERATIONS
ATTEMPT = "neve.attempt"
"""Property of a snapshot's summary with the id of the attempt that committed it."""
MANIFEST_BYTES, MANIFEST_BYTES_PROPERTY = 8 * 1024**2, "commit.manifest.target-size-bytes"
CODEC, CODEC_PROPERTY = "gzip", "write.avro.compression-codec"
CODECS = ("gzip", "zstd", "snappy", "deflate", "bzip2", "zstandard", "null")
READERS = 8
ATTEMPTS_MAX = 1_000
NOT_SENT = -1
"""In place of the last number before a try: it broke off before its request."""
PRIVATE_NAMES = (
    *write.PRIVATE_NAMES,
    "pyiceberg.manifest.ManifestFile.fetch_manifest_entry",
    "pyiceberg.table.snapshots.UpdateMetrics.remove_file",
    "pyiceberg.table.snapshots.update_snapshot_summaries",
    "pyiceberg.typedef.Record._bind",
)
"""Names of PyIceberg that are no part of its interface, and are used here."""


@cache
def require_names(names: tuple[str, ...]) -> None:
    """Refuse a PyIceberg of which a name that is not part of its interface is gone.

    Args:
        names: Dotted names: a module, then a function, or a class and its attribute.
    """
    for name in names:
        try:
            resolve_name(name)
        except (ImportError, AttributeError) as error:
            message = (
                f"the installed pyiceberg {version('pyiceberg')} has no {name}; "
                "install the one that the extra 'lake' names: pip install 'neve[lake]'"
            )
            raise ConfigError(message) from error


_DELETES = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {FIELD_ID: str(PATH_ID)}),
        pa.field("pos", pa.int64(), False, {FIELD_ID: str(POSITION_ID)}),
    ]
)


@dataclass(frozen=True, slots=True)
class HeadFiles:
    """What a snapshot has besides its data files.

    Attributes:
        uri_of: Returns the URI of a file's path, as the table's writers spell it.
        deletes: All live delete files.
        counts: Delete file → data file → number of rows, where this is known.
        is_whole: Whether the data files of the snapshot are all live ones of the table.
    """

    uri_of: Callable[[str], str]
    deletes: Sequence[DeleteFile] = ()
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    is_whole: bool = True


_GIVEN = "older than last sequence number"
"""What PyIceberg says, in catalogs that it updates itself, of a number that was given meanwhile."""


def commit_once(
    table: Table,
    requirements: tuple[TableRequirement, ...],
    updates: tuple[TableUpdate, ...],
    action: str,
) -> Answer:
    """Send a commit to the catalog of a table, by one request.

    Args:
        table: The table with the metadata that the commit is based on.
        requirements: What must hold of the table when the commit arrives.
        updates: The changes.
        action: What is done, for messages.

    Raises:
        RefusedError: The catalog refuses for ever.
        UnavailableError: Whether it is committed is unknown.
    """
    catalog = table.catalog
    # Nothing may repeat the request, as the client of REST catalogs does after a login.
    commit_table = inspect.unwrap(type(catalog).commit_table)
    with translated(action):
        try:
            commit_table(catalog, table, requirements, updates)
        except CommitFailedException:
            return Answer.CONFLICT
        except ValueError as error:
            if _GIVEN not in str(error):
                raise
            return Answer.CONFLICT
    return Answer.COMMITTED


class SnapshotSender:
    """Sends commits to one table, and deletes what it wrote for those that cannot arrive."""

    def __init__(self) -> None:
        """Create a sender that has sent nothing.

        Raises:
            ConfigError: The installed PyIceberg lacks a name that is used.
        """
        require_names((*catalogs.PRIVATE_NAMES, *PRIVATE_NAMES))
        self._tries: BoundedMap[str, list[tuple[int, list[str]]]] = BoundedMap(ATTEMPTS_MAX)
        """Attempt → its tries: last number before each, and the files that were written."""

    def send(self, table: Table, commit: Commit, head: HeadFiles) -> Answer:
        """Try once to make a commit the next snapshot.

        Args:
            table: The table with the metadata of the commit's base.
            commit: The replacement.
            head: What the base has besides its data files.

        Raises:
            RefusedError: The manifests contradict the base, or the catalog refuses for ever.
            UnavailableError: Files cannot be written, or whether it is committed is unknown.
        """
        snapshot = _Snapshot(table, commit, head)
        try:
            return snapshot.send()
        finally:
            if commit.attempt:
                before = snapshot.last if snapshot.may_arrive else NOT_SENT
                tries = self._tries.get(commit.attempt) or []
                self._tries.put(commit.attempt, [*tries, (before, snapshot.written)])

    def clean(self, table: Table, attempt: str) -> None:
        """Delete what tries of an attempt wrote, if they are not in the table and cannot arrive.

        A try that was sent before another sequence number was given is refused by the catalog.

        Args:
            table: The table as it was just loaded. If one of its snapshots is that of a try, it is
                still retained.
            attempt: Id of the attempt.
        """
        if not (tries := self._tries.get(attempt)):
            return
        metadata, left = table.metadata, []
        last = getattr(metadata, "last_sequence_number", 0)
        named = {snapshot.manifest_list for snapshot in metadata.snapshots}
        for before, paths in tries:
            if before >= last or not named.isdisjoint(paths):
                left.append((before, paths))
            else:
                _delete(table.io, paths)
        self._tries.put(attempt, left)


class _Snapshot:
    """One snapshot in the making."""

    def __init__(self, table: Table, commit: Commit, head: HeadFiles) -> None:
        metadata = table.metadata
        parent = metadata.current_snapshot()
        number = parent.sequence_number if parent is not None else 0
        assert number == commit.base.version, (number, commit.base.version)
        assert isinstance(metadata, TableMetadataV2), metadata.format_version
        self.last = metadata.last_sequence_number
        """Last sequence number before it."""
        self._table, self._commit, self._head = table, commit, head
        self._metadata, self._parent, self._io = metadata, parent, table.io
        self.id = metadata.new_snapshot_id()
        """Id of the snapshot."""
        self._metrics = UpdateMetrics()
        self._counts: dict[str, str] = {}
        """Further properties of the summary."""
        self.may_arrive = False
        """Whether it was sent, and may become the head."""
        self._number, self._name = 1, commit.attempt or "empty"
        self._partitions: set[tuple[int, str]] = set()
        self._inputs: dict[str, DataFile] = {}
        """Removed data files by URI."""
        self.listed: dict[str, ManifestFile] = {}
        """Manifests of the parent, by URI."""
        self.written: list[str] = []
        """URIs of what was written for it, outputs aside."""

    def send(self) -> Answer:
        """Write everything, and send it."""
        metadata = self._metadata
        with translated(f"write the manifests of {self._name}"):
            snapshot = self._made()
        main = metadata.refs.get(MAIN_BRANCH)
        parent = self._parent.snapshot_id if self._parent is not None else None
        requirements = (
            AssertTableUUID(uuid=metadata.table_uuid),
            AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": parent}),
        )
        updates = (AddSnapshotUpdate(snapshot=snapshot), _main_at(self.id, main))
        self.may_arrive = True
        return commit_once(self._table, requirements, updates, f"commit {self._name}")

    def _made(self) -> Snapshot:
        """Return the snapshot, after its files were written."""
        commit, metadata = self._commit, self._metadata
        self.listed = self._listed()
        manifests = self._manifests()
        number = self.last + 1
        uri = self._new_metadata(f"snap-{self.id}-{self._number}-neve-{self._name}.avro")
        parent = self._parent.snapshot_id if self._parent is not None else None
        output = self._io.new_output(uri)
        with write_manifest_list(2, output, self.id, parent, number, self._codec()) as writer:
            writer.add_manifests(manifests)
        fields = {
            "snapshot-id": self.id,
            "parent-snapshot-id": parent,
            "sequence-number": number,
            # Snapshots in order of time, though another writer's clock may be ahead.
            "timestamp-ms": max(round(commit.now_s * 1000), metadata.last_updated_ms),
            "manifest-list": uri,
            "summary": self._summary(),
            "schema-id": metadata.current_schema_id,
        }
        return Snapshot.model_validate(fields)

    def _manifests(self) -> list[ManifestFile]:
        """Return the manifests of the snapshot, after those that are new were written."""
        commit, listed = self._commit, self.listed
        removed = defaultdict[str, dict[str, LakeFile | None]](dict)
        for file in commit.removed:
            removed[file.entry][self._head.uri_of(file.path)] = file
        gone = dangling(commit, self._head)
        for delete in self._head.deletes:
            if delete.path in gone:
                removed[delete.manifest][delete.path] = None
        changed = list(self._without(removed))
        return [
            *self._with_outputs(),
            *changed,
            *(item for path, item in listed.items() if path not in removed and _has_files(item)),
        ]

    def _listed(self) -> dict[str, ManifestFile]:
        if self._parent is None:
            return {}
        file = self._io.new_input(self._parent.manifest_list)
        return {manifest.manifest_path: manifest for manifest in read_manifest_list(file)}

    # ---------------------------------------------------------------------------------- Outputs

    def _entries(self, paths: Sequence[str]) -> Iterator[tuple[str, Iterator[ManifestEntry]]]:
        """Yield the live entries of manifests, some of which are opened at a time."""
        with ThreadPoolExecutor(READERS) as threads:
            for first in range(0, len(paths), READERS):
                some = paths[first : first + READERS]
                reads = [threads.submit(live_entries, self._io, self.listed[path]) for path in some]
                yield from zip(some, (read.result() for read in reads), strict=True)

    def _with_outputs(self) -> Iterator[ManifestFile]:
        """Yield the manifests of outputs, and of rows of them that were deleted since the plan."""
        data, deletes = list[ManifestEntry](), list[ManifestEntry]()
        for output in self._commit.outputs:
            like = self._like(output)
            file = data_file(output, self._head.uri_of(output.path), like)
            data.append(added_entry(file, self._commit.sequence))
            self._note(file, is_added=True)
            rows = self._commit.deletes.get(output.path)
            if rows is not None and rows.size:
                assert int(rows[-1]) < output.rows, output.path
                own = self._written_deletes(file, rows)
                # It has the number of the new snapshot, like the delete files that it stands for.
                deletes.append(added_entry(own, None))
                self._note(own, is_added=True)
        yield from self._written(data, ManifestContent.DATA)
        yield from self._written(deletes, ManifestContent.DELETES)

    def _like(self, output: LakeOutput) -> DataFile:
        """Return an input of an output: all of them have its spec and partition."""
        inputs = [self._inputs[self._head.uri_of(path)] for path in output.inputs]
        if len({(file.spec_id, repr(file.partition)) for file in inputs}) != 1:
            raise RefusedError(f"the inputs of {output.path} are in more than one partition")
        return inputs[0]

    def _written_deletes(self, file: DataFile, rows: Positions) -> DataFile:
        """Write the deleted positions of one output, in its folder."""
        stem = file.file_path.removesuffix(".parquet")
        uri = f"{stem}-{self.id}-deletes.parquet"
        self.written.append(uri)
        paths = pa.DictionaryArray.from_arrays(
            np.zeros(rows.size, np.int32), pa.array([file.file_path])
        )
        columns = [paths.cast(pa.string()), pa.array(rows.astype(np.int64))]
        sink = pa.BufferOutputStream()
        pq.write_table(
            pa.Table.from_arrays(columns, schema=_DELETES),
            sink,
            compression="zstd",
            store_schema=False,
        )
        data = sink.getvalue()
        with self._io.new_output(uri).create(overwrite=True) as stream:
            stream.write(data)
        name = file.file_path.encode()
        first, last = (int(rows[at]).to_bytes(8, "little") for at in (0, -1))
        return file_entry(
            DataFileContent.POSITION_DELETES,
            file.spec_id,
            file.partition,
            file_path=uri,
            record_count=rows.size,
            file_size_in_bytes=data.size,
            value_counts={PATH_ID: rows.size, POSITION_ID: rows.size},
            null_value_counts={PATH_ID: 0, POSITION_ID: 0},
            lower_bounds={PATH_ID: name, POSITION_ID: first},
            upper_bounds={PATH_ID: name, POSITION_ID: last},
        )

    # -------------------------------------------------------------------------------- Manifests

    def _without(
        self, removed: Mapping[str, Mapping[str, LakeFile | None]]
    ) -> Iterator[ManifestFile]:
        """Yield manifests in place of those that name removed files."""
        if missing := removed.keys() - self.listed.keys():
            raise RefusedError(f"manifest {min(missing)} has left the snapshot")
        for content in ManifestContent:
            wanted = sorted(path for path in removed if self.listed[path].content == content)
            entries = (
                self._marked(entries, removed[path]) for path, entries in self._entries(wanted)
            )
            yield from self._written(chain.from_iterable(entries), content)

    def _marked(
        self, entries: Iterable[ManifestEntry], removed: Mapping[str, LakeFile | None]
    ) -> Iterator[ManifestEntry]:
        """Yield the entries of a manifest, those of removed files as DELETED."""
        left = set(removed)
        for entry in entries:
            path = entry.data_file.file_path
            if path not in removed:
                entry.status = ManifestEntryStatus.EXISTING
                yield entry
                continue
            file = removed[path]
            if path not in left or (file is not None and file.sequence != entry.sequence_number):
                raise RefusedError(f"file {path} is in its manifest twice, or with another number")
            left.remove(path)
            self._inputs[path] = entry.data_file
            self._note(entry.data_file, is_added=False)
            entry.status = ManifestEntryStatus.DELETED
            yield entry
        if left:
            raise RefusedError(f"file {min(left)} is not in the manifest that named it")

    def _written(
        self, entries: Iterable[ManifestEntry], content: ManifestContent
    ) -> list[ManifestFile]:
        """Write entries to manifests, each of one spec and of about the table's target size."""
        target = _number(self._metadata, MANIFEST_BYTES_PROPERTY, MANIFEST_BYTES)
        unfilled, writers = dict[tuple[int, str], ManifestWriter](), list[ManifestWriter]()
        with ExitStack() as opened:
            for entry in entries:
                key = (entry.data_file.spec_id, layout_of(entry))
                writer = unfilled.get(key)
                if writer is None:
                    writer = opened.enter_context(self._manifest(*key, content))
                    unfilled[key] = writer
                    writers.append(writer)
                write_entry(writer, entry)
                if writer.tell() >= target:
                    del unfilled[key]
        return [writer.to_manifest_file() for writer in writers]

    def _manifest(self, spec_id: int, layout: str, content: ManifestContent) -> ManifestWriter:
        spec = self._metadata.specs()[spec_id]
        name = f"neve-{self._name}-{self.id}-m{len(self.written)}.avro"
        output = self._io.new_output(self._new_metadata(name))
        kind = DeletesWriter if content == ManifestContent.DELETES else DataWriter
        writer = kind(spec, _schema_of(spec, self._metadata), output, self.id, self._codec())
        writer.layout = layout
        return writer

    def _codec(self) -> Any:
        codec = self._metadata.properties.get(CODEC_PROPERTY, CODEC)
        return codec if codec in CODECS else CODEC

    def _new_metadata(self, name: str) -> str:
        folder = self._metadata.properties.get("write.metadata.path") or (
            f"{self._metadata.location.rstrip('/')}/metadata"
        )
        uri = f"{folder.rstrip('/')}/{name}"
        self.written.append(uri)
        return uri

    # ---------------------------------------------------------------------------------- Summary

    def _note(self, file: DataFile, *, is_added: bool) -> None:
        (self._metrics.add_file if is_added else self._metrics.remove_file)(file)
        self._partitions.add((file.spec_id, repr(file.partition)))

    def _summary(self) -> Summary:
        own = {**self._metrics.to_dict(), **self._counts}
        if self._partitions:
            own["changed-partition-count"] = str(len(self._partitions))
        if self._commit.attempt:
            own[ATTEMPT] = self._commit.attempt
        before = self._parent.summary if self._parent is not None else None
        # The totals are those of any operation, but PyIceberg knows three.
        summary = update_snapshot_summaries(Summary(Operation.OVERWRITE, **own), before)
        return Summary(Operation.REPLACE, **summary.additional_properties)


# --------------------------------------------------------------------------------- Merged manifests


MERGED_MAX, MERGED_BYTES_MAX = 1_000, 256 * 1024**2
"""Manifests that one snapshot merges at most, and their bytes."""
MERGE_TRIES_MAX = 5
Group = Sequence[ManifestFile]


def mergeable(manifests: Iterable[ManifestFile], target_bytes: int) -> list[Group]:
    """Return manifests that are merged with each other, those of a group into one.

    Manifests of one spec with files of one kind are merged, in the order of their list, if they
    have less than half of the target size: larger ones would be written again and again.
    """
    groups: list[list[ManifestFile]] = []
    for key in dict.fromkeys((item.partition_spec_id, item.content) for item in manifests):
        group: list[ManifestFile] = []
        groups.append(group)
        for item in manifests:
            length = item.manifest_length
            if (item.partition_spec_id, item.content) != key or length * 2 >= target_bytes:
                continue
            if sum(other.manifest_length for other in group) + length > target_bytes:
                group = []
                groups.append(group)
            group.append(item)
    return [group for group in groups if len(group) > 1]


@dataclass(frozen=True, slots=True)
class _MergePlan:
    """What a snapshot merges."""

    groups: tuple[Group, ...] = ()
    fewer: int = 0
    """How many manifests the snapshot has less."""
    more: int = 0
    """Manifests that are left to another snapshot."""
    count: int = 0
    """Manifests of the head."""


def _merge_plan(table: Table) -> _MergePlan:
    head = table.metadata.current_snapshot()
    if head is None:
        return _MergePlan()
    listed = list(read_manifest_list(table.io.new_input(head.manifest_list)))
    live = [item for item in listed if _has_files(item)]
    target = _number(table.metadata, MANIFEST_BYTES_PROPERTY, MANIFEST_BYTES)
    chosen, count, size_bytes, more = list[Group](), 0, 0, 0
    for group in mergeable(live, target):
        size_bytes += sum(item.manifest_length for item in group)
        some = group[: MERGED_MAX - count] if size_bytes <= MERGED_BYTES_MAX else ()
        more += len(group) - len(some)
        if len(some) > 1:
            chosen.append(some)
            count += len(some)
    fewer = count - len(chosen) + len(listed) - len(live)
    return _MergePlan(tuple(chosen), fewer, more, len(listed))


def survey_manifests(table: Table, version: int, rules: MaintenanceRules) -> LakeSurvey:
    """Return which manifests a snapshot would merge.

    Args:
        table: The table as it was just loaded.
        version: Its version.
        rules: How many manifests less are enough.

    Raises:
        UnavailableError: The storage does not answer.
    """
    with translated("read the list of manifests"):
        plan = _merge_plan(table)
    survey = LakeSurvey(operation=MANIFESTS, version=version)
    counted = format_count(plan.count, "manifest")
    if not plan.fewer or plan.fewer < (1 if rules.is_asked else rules.manifests_min):
        least = "" if rules.is_asked else f"; lake_manifests_min is {rules.manifests_min}"
        return replace(survey, why=f"of {counted}, merging would leave {plan.fewer} fewer{least}")
    return replace(survey, creates=_fewer(plan.count - plan.fewer, plan.count), more=plan.more)


def _fewer(count: int, before: int) -> str:
    return f"version with {format_count(count, 'manifest')} in place of {before}"


def merge_manifests(
    load: Callable[[], Table], table: Table, commit: Commit, rules: MaintenanceRules
) -> Freed:
    """Commit a snapshot with the same files in fewer manifests, if there are still enough.

    What was written serves for further tries, as long as the head has the merged manifests.

    Args:
        load: Returns the table as its catalog has it now.
        table: The table with the metadata of the commit's base.
        commit: A commit without files.
        rules: How many manifests less are enough.

    Raises:
        RefusedError: A manifest is malformed, or the catalog refuses for ever.
        UnavailableError: Whether it is committed is unknown, or other writers were faster.
    """
    with translated("read the list of manifests"):
        plan = _merge_plan(table)
    if not plan.fewer or plan.fewer < (1 if rules.is_asked else rules.manifests_min):
        return Freed()
    merge = _Merge(table, commit, plan.groups)
    failure: CompactionError | None = None
    for _ in range(MERGE_TRIES_MAX):
        try:
            merge.send()
        except CompactionError as error:
            failure = error
        # Any answer may be wrong or late: what the catalog has is what counts.
        table = load()
        if any(snapshot.snapshot_id == merge.id for snapshot in table.metadata.snapshots):
            return Freed(created=merge.created)
        if failure is not None or not merge.rebase(table):
            break
    merge.clean(table)
    message = "another writer committed first: the next run merges the manifests"
    raise failure or UnavailableError(message)


class _Merge(_Snapshot):
    """A snapshot with the files of its parent in fewer manifests."""

    def __init__(self, table: Table, commit: Commit, groups: Sequence[Group]) -> None:
        super().__init__(table, commit, HeadFiles(str))
        self._groups, self._name = groups, MANIFESTS
        self._replaced = {item.manifest_path for group in groups for item in group}
        self._merged: list[ManifestFile] = []
        self.created = ""
        """What it has, as a noun."""

    def rebase(self, table: Table) -> bool:
        """Go on from a newer head; return whether that is possible.

        A try that was sent before another sequence number was given cannot arrive any more.
        """
        metadata = table.metadata
        if not isinstance(metadata, TableMetadataV2) or metadata.last_sequence_number <= self.last:
            return False
        self.may_arrive, self._number = False, self._number + 1
        self._table, self._metadata, self._io = table, metadata, table.io
        self._parent, self.last = metadata.current_snapshot(), metadata.last_sequence_number
        return self._replaced <= self._listed().keys()

    def clean(self, table: Table) -> None:
        """Delete what was written, unless it may arrive or a branch or tag has it."""
        named = {snapshot.manifest_list for snapshot in table.metadata.snapshots}
        ids = {ref.snapshot_id for ref in table.metadata.refs.values()}
        for snapshot in table.metadata.snapshots:
            if snapshot.snapshot_id in ids:
                named.update(item.path for item in read_list(table.io, snapshot.manifest_list))
        if not self.may_arrive and named.isdisjoint(self.written):
            _delete(table.io, self.written)

    def _manifests(self) -> list[ManifestFile]:
        if missing := self._replaced - self.listed.keys():
            raise RefusedError(f"manifest {min(missing)} has left the snapshot")
        if not self._merged:
            for group in self._groups:
                self._merged += self._merged_group(group)
        others = [item for path, item in self.listed.items() if path not in self._replaced]
        kept = [item for item in others if _has_files(item)]
        count = len(self._merged) + len(kept)
        self.created = _fewer(count, len(self.listed))
        if count >= len(self.listed):
            raise RefusedError(f"merging saves nothing: it leaves a {self.created}")
        self._counts = {
            "manifests-created": str(len(self._merged)),
            "manifests-kept": str(len(kept)),
            "manifests-replaced": str(len(self.listed) - len(kept)),
        }
        return [*self._merged, *kept]

    def _merged_group(self, group: Group) -> list[ManifestFile]:
        """Write the live entries of some manifests to as few as possible.

        Raises:
            RefusedError: A manifest has other files than its list says.
        """
        paths = [item.manifest_path for item in group]
        merged = self._written(self._existing(paths), group[0].content)
        wanted = [_live_files(item) for item in group]
        if None not in wanted and sum(map(_live_files, merged)) != sum(wanted):
            raise RefusedError(f"manifest {paths[0]} or one after it has other files than listed")
        return merged

    def _existing(self, paths: Sequence[str]) -> Iterator[ManifestEntry]:
        for _, entries in self._entries(paths):
            for entry in entries:
                entry.status = ManifestEntryStatus.EXISTING
                yield entry


# ------------------------------------------------------------------------------------- Delete files


def dangling(commit: Commit, head: HeadFiles) -> frozenset[str]:
    """Return the URIs of delete files that apply to no file after a commit.

    A delete file that is not known to be without effect stays: it only costs readers time.
    """
    removed = {file.path for file in commit.removed}
    if not head.is_whole or not any(file.deletes or file.equality for file in commit.removed):
        return frozenset()
    others = [file for path, file in commit.base.files.items() if path not in removed]
    ours = {path for file in commit.removed for _, path in file.equality}
    kept = {path for file in others for _, path in file.equality}
    if commit.outputs:
        # Outputs have the sequence number of the plan, so that later deletes apply to them.
        kept |= {
            path for file in commit.removed for at, path in file.equality if at > commit.sequence
        }
    uris = {head.uri_of(path) for path in removed}
    live = {head.uri_of(file.path) for file in others}

    def is_gone(delete: DeleteFile) -> bool:
        if delete.equality_ids:
            return delete.path in ours and delete.path not in kept
        paths: Collection[str] = (
            (delete.data_path,) if delete.data_path else head.counts.get(delete.path, {}).keys()
        )
        return not uris.isdisjoint(paths) and live.isdisjoint(paths)

    return frozenset(delete.path for delete in head.deletes if is_gone(delete))


# ------------------------------------------------------------------------------------------- Values


def _has_files(manifest: ManifestFile) -> bool:
    """Return whether a manifest names live files; one that only names deleted ones may go."""
    return manifest.has_added_files() or manifest.has_existing_files()


def _live_files(manifest: ManifestFile) -> Any:
    """Return how many live files a manifest names; None: its list does not say."""
    added, existing = manifest.added_files_count, manifest.existing_files_count
    return None if added is None or existing is None else added + existing


def _schema_of(spec: PartitionSpec, metadata: TableMetadata) -> Schema:
    """Return the newest schema that has the columns of a spec, which may have been dropped."""
    wanted = {field.source_id for field in spec.fields}
    for schema in schemas_of(metadata):
        if wanted <= set(schema.field_ids):
            return schema
    raise RefusedError(f"the columns of partition spec {spec.spec_id} are in no schema")


def _number(metadata: TableMetadata, name: str, default: int) -> int:
    with suppress(ValueError):
        return max(1024, int(metadata.properties.get(name, default)))
    return default


def _main_at(snapshot_id: int, main: SnapshotRef | None) -> SetSnapshotRefUpdate:
    """Return the branch `main` at a snapshot, with the retention that it has."""
    fields: dict[str, Any] = {
        "ref-name": MAIN_BRANCH,
        "type": SnapshotRefType.BRANCH,
        "snapshot-id": snapshot_id,
    }
    if main is not None:
        fields |= {
            "max-ref-age-ms": main.max_ref_age_ms,
            "max-snapshot-age-ms": main.max_snapshot_age_ms,
            "min-snapshots-to-keep": main.min_snapshots_to_keep,
        }
    return SetSnapshotRefUpdate.model_validate(fields)


def _delete(io: FileIO, uris: Iterable[str]) -> None:
    """Delete files that no snapshot names; what cannot be deleted stays."""
    for uri in uris:
        with suppress(CompactionError), translated(f"delete {uri}"):
            io.delete(uri)
