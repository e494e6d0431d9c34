"""The Delta log of a native table, which the service writes so that other engines read the table.

A version names the files of the table at one moment. The log is a copy, never the truth: a version
is the difference between what the log names and what the tablets hold.

    read the head of the log → read the time and the tablets → create the next version if it is
    absent → checkpoint → delete old entries

The head is read before the tablets. So of two publishers, the one with the older files is too late:
its version exists already. Each publication creates a version, also without a change of files, so
that a version of an earlier publisher that is still on its way cannot follow it.

A table with a key is published while it is at rest: no file has rows that readers would have to
merge with those of another file. Otherwise the next version changes nothing, and states why.

Other engines read the log and write nothing, because it requires a feature of writers that no other
engine has.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, NoReturn

from common.errors import ConflictError, RefusedError, UnavailableError
from common.lake.delta import log
from common.lake.delta.actions import ENGINE, encoded_path, entry_text, relative_path
from common.lake.delta.checkpoints import as_parquet
from common.lake.delta.features import delta_schema, has_plain_timestamps
from common.lake.source import Answer, require_plain_partitions, require_publishable
from common.lake.storage import LakeStorage
from common.model.file import DataFile
from common.model.key_values import KeyType
from common.model.location_identity import LOG_FILES, LOG_LAG, LOG_ROWS, LOG_TABLE, LOG_TIME
from common.model.table import Table
from common.rows.key_encoding import folders_of, partition_types

FEATURE = "neveManaged"
"""Feature that writers must have: only the service has it."""
CHECKPOINT_VERSIONS = 20
"""A checkpoint follows after so many versions, and after more of them in a table of many files."""
FILES_PER_VERSION = 1000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# -------------------------------------------------------------------------------------- Definition


@dataclass(frozen=True, slots=True)
class Definition:
    """What the log states of a table besides its files."""

    table: Table
    protocol: Mapping[str, Any]
    schema: str
    partition_columns: tuple[str, ...]

    @classmethod
    def of(cls, table: Table) -> "Definition":
        """Return the definition of a table.

        Raises:
            RefusedError: Delta cannot state the table; the sentence names the column.
        """
        require_plain_partitions(table)
        schema = delta_schema(table.schema)
        protocol: dict[str, Any] = {
            "minReaderVersion": 1,
            "minWriterVersion": 7,
            "writerFeatures": [FEATURE],
        }
        if has_plain_timestamps(schema):
            protocol["minReaderVersion"] = 3
            protocol["readerFeatures"] = ["timestampNtz"]
            protocol["writerFeatures"] = ["timestampNtz", FEATURE]
        text = json.dumps(schema, separators=(",", ":"))
        return cls(table, protocol, text, table.partition_by)

    def metadata(self, head: "LogHead", now_ms: int) -> dict[str, Any]:
        """Return the `metaData` entry; a log that is continued keeps its id."""
        return {
            "id": head.log_id or self.table.id,
            "name": self.table.name,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": self.schema,
            "partitionColumns": [*self.partition_columns],
            "configuration": {},
            "createdTime": head.created_ms or now_ms,
        }


def partition_entry(table: Table, text: str | None) -> dict[str, str | None]:
    """Return the partition values of a tablet as the log has them.

    Raises:
        RefusedError: The log cannot tell a value from another one.
    """
    if not table.partition_by:
        return {}
    texts = folders_of(f"{text}/")
    values: dict[str, str | None] = {}
    for name, kind in zip(table.partition_by, partition_types(table), strict=True):
        value = texts[name]
        if value == "":
            message = f"partition {text!r} has an empty text, which is null to readers of Delta"
            raise RefusedError(message)
        values[name] = value.lower() if value and kind is KeyType.BOOL else value
    return values


# -------------------------------------------------------------------------------------------- Head


@dataclass(frozen=True, slots=True)
class LogHead:
    """The newest version of a log of the service."""

    version: int = -1
    """-1: there is no log."""
    tag: str = ""
    """Tag of the version as listed."""
    log_id: str = ""
    created_ms: int = 0
    schema: str = ""
    partition_columns: tuple[str, ...] = ()
    protocol: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: int = -1
    """Version of the newest checkpoint; -1: there is none."""
    paths: frozenset[str] = frozenset()
    """Files that it names, relative to the location."""
    table: str = ""
    """Id of the table that wrote it."""
    as_of_s: float = 0.0
    """Readers see the table as of this time of the store."""
    rows: int = 0

    def states(self, definition: Definition) -> bool:
        """Return whether the log has a definition already."""
        return (
            self.schema == definition.schema
            and self.partition_columns == definition.partition_columns
            and self.protocol == definition.protocol
        )

    @property
    def is_checkpoint_due(self) -> bool:
        """Return whether the next version gets a checkpoint."""
        gap = CHECKPOINT_VERSIONS + len(self.paths) // FILES_PER_VERSION
        return self.version + 1 - max(self.checkpoint, 0) >= gap


class PublishedLog:
    """The log of one location. Its methods block."""

    def __init__(self, storage: LakeStorage) -> None:
        """Access the log in a table's location."""
        self._storage = storage

    @staticmethod
    def check(table: Table) -> None:
        """Refuse a table that Delta cannot state.

        Raises:
            RefusedError: The sentence names the column.
        """
        Definition.of(table)

    def require_conditions(self, name: str) -> None:
        """Refuse a storage that overwrites what it should only create.

        Args:
            name: A random name for a file of the trial.
        """
        self._storage.make_folder(log.LOG)
        self._storage.require_conditions(f"{log.LOG}/.{name}.tmp")

    def head(self, table: Table, known: object = None) -> LogHead:
        """Return the newest version of the log.

        Args:
            table: The table. The log must be its own, or one of its former ids.
            known: A head that was read or written before.

        Raises:
            RefusedError: Another writer has added a version, or the log is malformed.
            UnavailableError: The storage does not answer.
        """
        if not self._storage.has_folder(log.LOG):
            return LogHead()
        listing = log.list_whole(self._storage)
        if listing.newest < 0:
            return LogHead()
        newest = listing.versions.get(listing.newest)
        if newest is None:
            _refuse(table, listing.newest, "has a checkpoint only")
        newest_tag = (listing.newest, newest.tag)
        if isinstance(known, LogHead) and (known.version, known.tag) == newest_tag:
            return known
        return self._replayed(table, listing, newest.tag)

    def _replayed(self, table: Table, listing: log.LogListing, tag: str) -> LogHead:
        state, checkpoint = self._state(table, listing)
        return LogHead(
            version=listing.newest,
            tag=tag,
            log_id=entry_text(state.metadata, "id"),
            created_ms=int(state.metadata.get("createdTime") or 0),
            schema=entry_text(state.metadata, "schemaString"),
            partition_columns=tuple(state.metadata.get("partitionColumns") or ()),
            protocol={key: value for key, value in state.protocol.items() if value is not None},
            checkpoint=checkpoint,
            paths=frozenset(state.adds),
            table=entry_text(state.info, LOG_TABLE),
            as_of_s=float(state.info.get(LOG_TIME) or 0),
            rows=int(state.info.get(LOG_ROWS) or 0),
        )

    def _state(self, table: Table, listing: log.LogListing) -> tuple["_LogState", int]:
        """Return what the log states, and the version of its newest checkpoint."""
        state, first, checkpoint = _LogState(), 0, -1
        if listing.checkpoints:
            newest = listing.checkpoints[-1]
            checkpoint = first = newest.version
            state.apply_checkpoint(log.read_checkpoint(self._storage, newest, is_whole=True))
        end = listing.newest + 1
        versions = log.read_versions(self._storage, first, end, lambda entries: entries)
        for number, entries in enumerate(versions, first):
            if entries is None:
                _refuse(table, number, "is missing")
            if entries.info.get(LOG_TABLE) not in table.own_ids:
                _refuse(table, number, f"was written by {entries.info.get('engineInfo')!r:.100}")
            state.info = entries.info
            if number != checkpoint:
                state.apply(entries)
        if not state.protocol or not state.metadata:
            _refuse(table, listing.newest, "has no protocol or no schema")
        return state, checkpoint

    @staticmethod
    def listing(table: Table, head: LogHead) -> "FileListing":
        """Return an empty listing of a table's files, to be compared with a head.

        Raises:
            RefusedError: Delta cannot state the table.
        """
        return FileListing(table, head)

    def publish(self, listing: "FileListing", as_of_s: float, lag: str = "") -> LogHead:
        """Create the next version, by one request.

        Args:
            listing: All files of the table, compared with the head.
            as_of_s: Time of the store before the files were read.
            lag: Why these files cannot be published; the version then names those of the head. It
                also keeps a version of another publisher that is still on its way from following,
                which names files that are deleted since.

        Returns:
            The new head.

        Raises:
            ConflictError: Another publisher was first.
            RefusedError: The storage has no such request, or no right to it.
            UnavailableError: It is unknown whether the version was created.
        """
        self._storage.make_folder(log.LOG)
        head, definition = listing.head, listing.definition
        version, now_ms = head.version + 1, round(as_of_s * 1000)
        metadata: Mapping[str, Any] = definition.metadata(head, now_ms)
        protocol, entries = definition.protocol, listing.entries
        if lag:
            if head.version < 0:
                return head
            listing.keep_head(lag)
            if head.is_checkpoint_due:
                state, _ = self._state(listing.table, log.list_whole(self._storage))
                protocol, metadata = state.protocol, state.metadata
                entries = [dict(entry) for entry in state.adds.values()]
        path = log.version_path(version)
        answer = self._storage.create(path, listing.version_bytes(metadata, as_of_s))
        if answer is Answer.CONFLICT:
            message = f"version {version} of the log of {self._storage.uri} exists already"
            raise ConflictError(message)
        if answer is Answer.UNKNOWN:
            message = f"{self._storage.uri} does not answer whether version {version} was created"
            raise UnavailableError(message)
        checkpoint, tag = head.checkpoint, self._tag_of(version)
        if entries is not None:
            self._write_checkpoint(version, {"protocol": protocol, "metaData": metadata}, entries)
            checkpoint = version
        if lag:
            return replace(
                head, version=version, tag=tag, checkpoint=checkpoint, table=listing.table.id
            )
        return LogHead(
            version=version,
            tag=tag,
            log_id=metadata["id"],
            created_ms=metadata["createdTime"],
            schema=definition.schema,
            partition_columns=definition.partition_columns,
            protocol=definition.protocol,
            checkpoint=checkpoint,
            paths=frozenset(listing.paths),
            table=listing.table.id,
            as_of_s=as_of_s,
            rows=listing.rows,
        )

    def _tag_of(self, version: int) -> str:
        file = log.list_log(self._storage, version).versions.get(version)
        return file.tag if file else ""

    def _write_checkpoint(
        self, version: int, head: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]
    ) -> None:
        """Write the checkpoint of a version that this call has created.

        Args:
            version: The version.
            head: Protocol and schema, by the names of their actions.
            entries: All files. Files that were removed are not among them: nothing of another
                engine deletes them.
        """
        files = ({"add": entry} for entry in entries)
        data = as_parquet(chain(({name: value} for name, value in head.items()), files))
        path = f"{log.LOG}/{version:020}.checkpoint.parquet"
        answer = self._storage.create(path, data)
        if answer is Answer.UNKNOWN:
            message = f"{self._storage.uri} does not answer whether a checkpoint was created"
            raise UnavailableError(message)
        hint = {"version": version, "size": len(entries) + 2}
        self._storage.replace(log.HINT, json.dumps(hint).encode())

    def clean(self, keep_s: float, now_s: float) -> int:
        """Delete entries that no reader needs; return how many.

        Those below the newest checkpoint that is older than `keep_s` go.

        Args:
            keep_s: How long versions can be read.
            now_s: The present time by the clock of the storage.
        """
        files = list(self._storage.list_after(log.LOG, ""))
        numbered = [(number, file) for file in files if (number := log.number_of(file.path)) >= 0]
        old = [
            number
            for number, file in numbered
            if file.path.endswith(".checkpoint.parquet") and file.changed_at_s <= now_s - keep_s
        ]
        doomed = [file.path for number, file in numbered if old and number < max(old)]
        for path in sorted(doomed):
            self._storage.delete(path)
        return len(doomed)


class _LogState:
    """What a log states while its versions are applied in order."""

    def __init__(self) -> None:
        self.adds: dict[str, Mapping[str, Any]] = {}
        """Path of a live file → its entry."""
        self.info: Mapping[str, Any] = {}
        """Facts on the newest version."""
        self.protocol: Mapping[str, Any] = {}
        self.metadata: Mapping[str, Any] = {}

    def apply_checkpoint(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Begin with the actions of a checkpoint."""
        for entry in entries:
            self.protocol = entry.get("protocol") or self.protocol
            self.metadata = entry.get("metaData") or self.metadata
            if add := entry.get("add"):
                self.adds[_path(add)] = add

    def apply(self, entries: log.VersionEntries) -> None:
        """Apply the next version."""
        self.protocol = entries.protocol or self.protocol
        self.metadata = entries.metadata or self.metadata
        for remove in entries.removes:
            self.adds.pop(_path(remove), None)
        self.adds.update({_path(add): add for add in entries.adds})


def _refuse(table: Table, version: int, fact: str) -> NoReturn:
    message = (
        f"version {version} of the Delta log of table {table.name!r} {fact}; the service adds "
        f"nothing to a log that it has not written alone. Look what was written; remove the folder "
        f"{log.LOG} to have the log written anew"
    )
    raise RefusedError(message)


def _path(entry: Mapping[str, Any]) -> str:
    return relative_path(entry_text(entry, "path"))


# ------------------------------------------------------------------------------------------- Files


class FileListing:
    """The files of a table as they are read, compared with the head of its log."""

    def __init__(self, table: Table, head: LogHead) -> None:
        """Create an empty listing.

        Raises:
            RefusedError: Delta cannot state the table.
        """
        self.table = table
        self.head = head
        self.definition = Definition.of(table)
        self.paths: set[str] = set()
        self.rows = 0
        self.entries: list[dict[str, Any]] | None = [] if head.is_checkpoint_due else None
        """Entries of all files, if the version gets a checkpoint."""
        self._time = _time_type(table)
        self._added: list[dict[str, Any]] = []
        self._lag = ""

    @property
    def is_clean_due(self) -> bool:
        """Whether old entries are deleted after this version."""
        return self.entries is not None

    def add(self, partition: str | None, files: Iterable[DataFile]) -> None:
        """Add the files of a tablet.

        Args:
            partition: Text of its partition.
            files: Its complete files.

        Raises:
            RefusedError: There are too many files, or the log cannot state the partition.
        """
        values = partition_entry(self.table, partition)
        for file in files:
            if file.path in self.paths:
                continue
            self.paths.add(file.path)
            self.rows += file.rows
            is_new = file.path not in self.head.paths
            if is_new or self.entries is not None:
                entry = self._entry(file, values)
                if is_new:
                    self._added.append(entry)
                if self.entries is not None:
                    self.entries.append(entry)
        require_publishable(self.table, len(self.paths))

    def _entry(self, file: DataFile, values: Mapping[str, str | None]) -> dict[str, Any]:
        stats: dict[str, Any] = {"numRecords": file.rows}
        if self._time and file.time_min_s is not None and file.time_max_s is not None:
            name, zone = self._time
            low, high = _moment(file.time_min_s, -1, zone), _moment(file.time_max_s, 1, zone)
            if low and high:
                stats |= {"minValues": {name: low}, "maxValues": {name: high}}
        return {
            "path": encoded_path(file.path),
            "partitionValues": values,
            "size": file.size_bytes,
            "modificationTime": round(file.added_at_s * 1000),
            "dataChange": True,
            "stats": json.dumps(stats, separators=(",", ":"), ensure_ascii=False),
        }

    def keep_head(self, lag: str) -> None:
        """Let the version name the files of the head.

        Args:
            lag: Why it does not name newer files.
        """
        self._lag, self._added = lag, []
        self.paths, self.rows = {*self.head.paths}, self.head.rows

    def version_bytes(self, metadata: Mapping[str, Any], as_of_s: float) -> bytes:
        """Return the next version. Its first line has the table, by which the service knows it."""
        now_ms = round(as_of_s * 1000)
        removed = sorted(self.head.paths - self.paths)
        info = {
            "timestamp": now_ms,
            "operation": "PUBLISH",
            "operationParameters": {},
            "operationMetrics": {
                "numAddedFiles": str(len(self._added)),
                "numRemovedFiles": str(len(removed)),
            },
            "engineInfo": ENGINE,
            LOG_TABLE: self.table.id,
            LOG_TIME: self.head.as_of_s if self._lag else as_of_s,
            LOG_FILES: len(self.paths),
            LOG_ROWS: self.rows,
            LOG_LAG: self._lag,
        }
        lines: list[dict[str, Any]] = [{"commitInfo": info}]
        if not self._lag and not self.head.states(self.definition):
            lines += [{"protocol": self.definition.protocol}, {"metaData": metadata}]
        lines += (
            {
                "remove": {
                    "path": encoded_path(path),
                    "deletionTimestamp": now_ms,
                    "dataChange": True,
                }
            }
            for path in removed
        )
        lines += ({"add": entry} for entry in self._added)
        texts = (json.dumps(line, separators=(",", ":"), ensure_ascii=False) for line in lines)
        return "".join(f"{text}\n" for text in texts).encode()


def _time_type(table: Table) -> tuple[str, bool] | None:
    """Return the time column and whether it has a zone; None: it has no bounds in the log."""
    name = table.time_column
    if name is None or name in table.partition_by:
        return None
    text = next(column.type for column in table.schema if column.name == name)
    return (name, "," in text) if text.startswith("timestamp") else None


def _moment(seconds: float, side: int, zone: bool) -> str | None:
    """Return a moment in whole milliseconds, moved outwards; None: a year without four digits.

    Args:
        seconds: Since the epoch, as a float, whose last digits may be rounded.
        side: -1: a lower bound; 1: an upper one.
        zone: Whether the column has a zone.
    """
    try:
        moment = _EPOCH + timedelta(milliseconds=round(seconds * 1000) + side)
    except (OverflowError, ValueError):
        return None
    text = moment.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return f"{text}Z" if zone else text
