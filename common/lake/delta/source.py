"""The port to a Delta table: load the head, look for an attempt, send a commit."""

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow.fs import FileSystem
from pyarrow.parquet import FileMetaData

from common.errors import InputError, RefusedError
from common.lake.delta import checkpoints, log, vacuum
from common.lake.delta.actions import (
    CommitLines,
    VectorEntry,
    file_statistics,
    parse_json,
    relative_path,
    vector_of,
)
from common.lake.delta.features import IN_COMMIT_TIMESTAMPS
from common.lake.delta.vectors import (
    VectorError,
    decode_vector,
    encode_vector,
    from_base85,
    to_base85,
    vector_of_file,
)
from common.lake.source import (
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
from common.lake.storage import LakeStorage
from common.model.table import DELTA_OPERATIONS

_UUID_CHARS = 20


def open_delta(uri: str, options: Mapping[str, str]) -> "DeltaSource":
    """Return the source of a Delta table; nothing is read."""
    return DeltaSource(LakeStorage(uri, options))


class DeltaSource:
    """A Delta table. Calls of several threads may overlap."""

    def __init__(self, storage: LakeStorage) -> None:
        self._storage = storage

    def load(self, known: Snapshot | None = None) -> Snapshot:
        """Return the head; see `TableSource`."""
        return log.load_newer(self._storage, known) if known else log.load_whole(self._storage)

    # --------------------------------------------------------------------------------- Deletes

    def positions(self, file: LakeFile) -> Positions:
        """Return the deleted positions of a file."""
        vector = vector_of(parse_json(file.entry, "entry"))
        if vector is None:
            return np.empty(0, np.uint64)
        try:
            positions = decode_vector(self._vector_bytes(vector), vector.cardinality)
        except VectorError as error:
            message = f"deletes of file {file.path}: {error}"
            raise InputError(message) from None
        if positions.size and int(positions[-1]) >= file.rows:
            message = f"file {file.path} has {file.rows} rows; row {positions[-1]} is deleted"
            raise InputError(message)
        return positions

    def matched(self, file: LakeFile) -> Positions:
        """Return nothing: the format has no equality deletes."""
        assert not file.equality, file.path
        return np.empty(0, np.uint64)

    def _vector_bytes(self, vector: VectorEntry) -> bytes:
        if vector.storage == "i":
            return from_base85(vector.text, vector.size_bytes)
        path = self._vector_path(vector)
        data = self._storage.read_range(path, vector.offset, vector.size_bytes + 8)
        if data is None:
            message = f"deletion vector {self._storage.uri}/{path} is missing"
            raise InputError(message)
        return vector_of_file(data, vector.size_bytes)

    def _vector_path(self, vector: VectorEntry) -> str:
        """Return the path of a vector's file."""
        if vector.storage == "u":
            prefix, code = vector.text[:-_UUID_CHARS], vector.text[-_UUID_CHARS:]
            name = f"deletion_vector_{uuid.UUID(bytes=from_base85(code, 16))}.bin"
            return relative_path(f"{prefix}/{name}" if prefix else name)
        path = self._storage.relative(vector.text)
        if path is None:
            message = (
                f"deletion vector {vector.text[:200]} lies outside of the table's location; Névé "
                "compacts only tables whose files lie together: make a deep clone"
            )
            raise RefusedError(message)
        return relative_path(path)

    # ------------------------------------------------------------------------------------ Look

    def look(self, attempt: str, outputs: Collection[str], since: int) -> Sighting:
        """Look for an attempt in all versions above `since`."""
        wanted = frozenset(outputs)
        listing = log.list_log(self._storage, since)
        end = self._end_of_versions(max(listing.newest, since) + 1)
        seen = list(
            log.read_versions(
                self._storage, since + 1, end, lambda entries: _sighting(entries, attempt, wanted)
            )
        )
        for sighting in seen:
            if sighting is not None and sighting.look is Look.FOUND:
                return self._confirmed(sighting, since)
        has_begin = since in listing.versions or any(
            checkpoint.version == since for checkpoint in listing.checkpoints
        )
        missing = [since + 1 + index for index, sighting in enumerate(seen) if sighting is None]
        if missing or not (seen or has_begin):
            version = missing[0] if missing else since
            reason = f"version {version} of {self._storage.uri} is missing"
            return Sighting(Look.CANNOT_TELL, end - 1, reason=reason)
        return Sighting(Look.ABSENT, end - 1)

    def _end_of_versions(self, end: int) -> int:
        """Return the first version that does not exist, from one on.

        A listing of a folder may lack files that were made meanwhile.
        """
        while self._storage.read_range(log.version_path(end), 0, 1) is not None:
            end += 1
        return end

    def _confirmed(self, sighting: Sighting, since: int) -> Sighting:
        """Return a sighting unless a checkpoint at or above its version does not know its files.

        The log below a checkpoint may be deleted. If that happens between load and send, the name
        of the next version is free again, and a file of that name is no commit.
        """
        above = [
            checkpoint
            for checkpoint in log.list_log(self._storage, since).checkpoints
            if checkpoint.version >= sighting.version
        ]
        if not above:
            return sighting
        paths = {
            relative_path(str(file.get("path")))
            for entry in log.read_checkpoint(self._storage, above[0], with_removes=True)
            for file in (entry.get("add"), entry.get("remove"))
            if file
        }
        if sighting.outputs and sighting.outputs <= paths:
            return sighting
        reason = (
            f"the checkpoint of version {above[0].version} does not know the files of version "
            f"{sighting.version}"
        )
        return Sighting(Look.CANNOT_TELL, sighting.version, reason=reason)

    # ------------------------------------------------------------------------------------ Send

    def send(self, commit: Commit) -> Answer:
        """Create the next version, if it is absent, by one request."""
        base = commit.base
        assert not base.refusal, base.refusal
        lines = CommitLines(
            commit.attempt, base.version, round(commit.now_s * 1000), self._in_commit_ms(commit)
        )
        for file in commit.removed:
            assert base.files[file.path] == file, file.path
            lines.remove(file)
        for output in commit.outputs:
            assert commit.attempt, output.path
            assert commit.attempt in output.path, output.path
            assert output.path not in base.files, output.path
            rows = commit.deletes.get(output.path)
            assert rows is None or not rows.size or int(rows[-1]) < output.rows, output.path
            lines.add(output, None if rows is None else _inline(rows))
        return self._storage.create(log.version_path(base.version + 1), lines.to_bytes())

    def _in_commit_ms(self, commit: Commit) -> int | None:
        """Return the time of the version, above that of the one before; None: it needs none."""
        now_ms = round(commit.now_s * 1000)
        if commit.base.properties.get(IN_COMMIT_TIMESTAMPS, "false").lower() != "true":
            return None
        entries = log.read_version(self._storage, commit.base.version)
        if entries is None:
            message = f"version {commit.base.version} of {self._storage.uri} is missing"
            raise RefusedError(message)
        return max(now_ms, entries.time_ms + 1)

    def require_conditions(self, name: str) -> None:
        """Refuse a storage on which writers could replace commits; see `TableSource`."""
        self._storage.require_conditions(f"{log.LOG}/.{name}.tmp")

    def stored_columns(self, snapshot: Snapshot, file: LakeFile, schema: pa.Schema) -> pa.Schema:
        """Return the columns of a data file; names identify them."""
        return schema

    def statistics(self, snapshot: Snapshot, footer: FileMetaData) -> str:
        """Return the statistics of a file for its `add` action."""
        return file_statistics(footer, snapshot.properties)

    def files(self, bucket: str) -> FileSystem | None:
        """Return None: data files are reached by the environment of the process."""

    def delete(self, paths: Sequence[str]) -> None:
        """Delete outputs that were never committed."""
        for path in paths:
            self._storage.delete(path)

    # ----------------------------------------------------------------------------- Maintenance

    @property
    def operations(self) -> tuple[str, ...]:
        """Return the names of the maintenance operations."""
        return DELTA_OPERATIONS

    def survey(self, operation: str, snapshot: Snapshot, rules: MaintenanceRules) -> LakeSurvey:
        """Return what an operation would do; see `TableSource`."""
        if snapshot.refusal:
            raise RefusedError(snapshot.refusal)
        if operation == checkpoints.CHECKPOINT:
            return checkpoints.survey_checkpoint(self._storage, snapshot, rules)
        if operation == checkpoints.LOG_CLEANUP:
            return checkpoints.survey_log(self._storage, snapshot, rules)
        assert operation == checkpoints.VACUUM, operation
        return vacuum.survey_files(self._storage, snapshot, rules, self._own_vector_path)

    def carry_out(self, survey: LakeSurvey, snapshot: Snapshot, rules: MaintenanceRules) -> Freed:
        """Do what a survey says; see `TableSource`."""
        if snapshot.refusal:
            raise RefusedError(snapshot.refusal)
        if survey.operation == checkpoints.CHECKPOINT:
            return checkpoints.write_checkpoint(self._storage, snapshot, rules)
        if survey.operation == checkpoints.LOG_CLEANUP:
            return checkpoints.clean_log(self._storage, survey, snapshot, rules)
        assert survey.operation == checkpoints.VACUUM, survey
        return vacuum.delete_files(self._storage, survey, snapshot, rules, self._own_vector_path)

    def _own_vector_path(self, vector: VectorEntry) -> str | None:
        """Return the path of a vector's file; None: it is in the log, or outside of the root."""
        if vector.storage == "i":
            return None
        if vector.storage == "p" and self._storage.relative(vector.text) is None:
            return None
        try:
            return self._vector_path(vector)
        except VectorError as error:
            message = f"deletion vector {vector.text[:200]} has no readable name: {error}"
            raise RefusedError(message) from None


def _inline(rows: Positions) -> VectorEntry:
    """Return positions as a vector that lies in the log itself: no further file is to be kept."""
    data = encode_vector(rows)
    return VectorEntry("i", to_base85(data), 0, len(data), rows.size)


def _sighting(entries: log.VersionEntries, attempt: str, wanted: frozenset[str]) -> Sighting:
    outputs = wanted.intersection(_paths(entries.adds))
    is_ours = bool(attempt) and entries.attempt == attempt
    look = Look.FOUND if is_ours or outputs else Look.ABSENT
    return Sighting(look, entries.version, outputs)


def _paths(adds: Sequence[Mapping[str, Any]]) -> list[str]:
    return [relative_path(str(entry.get("path"))) for entry in adds]
