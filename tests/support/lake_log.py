"""A lake table of values: a log in memory that other writers append to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from pyarrow.parquet import FileMetaData

from common.errors import UnavailableError
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
    TableSource,
    WasteFile,
)
from common.model.table import LAKE_OPERATIONS, Column

COLUMNS = (Column("day", "date32[day]"), Column("amount", "int64"))


def lake_file(path: str, rows: int = 10, **fields: object) -> LakeFile:
    """Return a file of 100 bytes a row."""
    return LakeFile(path, rows * 100, rows, **fields)  # type: ignore[arg-type]  # any field


@dataclass
class LakeLog:
    """Satisfies `TableSource`. The last version is the head."""

    versions: list[Snapshot] = field(default_factory=lambda: [Snapshot(0, "uid-1", COLUMNS)])
    attempts: dict[str, int] = field(default_factory=dict)
    """Attempt that a version names → the version."""
    deleted: list[str] = field(default_factory=list)
    silence: str = ""
    """Why it does not answer; empty: it does."""
    forgotten: int = 0
    """Versions below this one are missing."""
    loads: int = 0
    sent: list[Commit] = field(default_factory=list)
    expiring: tuple[int, ...] = ()
    """Versions that an expiry removes before it deletes its waste."""
    waste: dict[str, list[str]] = field(default_factory=dict)
    """Operation of maintenance → paths of files that it would delete now."""
    listings: dict[str, str] = field(default_factory=dict)
    """Path after which a listing begins → path after which the next one does."""
    rules: list[MaintenanceRules] = field(default_factory=list)
    """Rules of the operations that were carried out."""

    @property
    def head(self) -> Snapshot:
        """The newest version."""
        return self.versions[-1]

    def write(
        self, *came: LakeFile, went: Collection[str] = (), attempt: str = "", **fields: object
    ) -> int:
        """Append a version; return its number."""
        files = {path: file for path, file in self.head.files.items() if path not in went}
        files |= {file.path: file for file in came}
        number = self.head.version + 1
        self.versions.append(replace(self.head, version=number, files=files, **fields))  # type: ignore[arg-type]  # any field
        if attempt:
            self.attempts[attempt] = number
        return number

    def opened(self, _format: str, _uri: str, _options: Mapping[str, str]) -> TableSource:
        """Return this table, in place of `open_source`."""
        return self

    def load(self, known: Snapshot | None = None) -> Snapshot:
        self._answer()
        self.loads += 1
        return known if known is not None and known.version == self.head.version else self.head

    def positions(self, file: LakeFile) -> Positions:
        self._answer()
        return np.arange(file.deleted_rows, dtype=np.uint64)

    def matched(self, file: LakeFile) -> Positions:
        self._answer()
        assert not file.equality, file.path
        return np.empty(0, np.uint64)

    def stored_columns(self, snapshot: Snapshot, file: LakeFile, schema: pa.Schema) -> pa.Schema:
        return schema

    def look(self, attempt: str, outputs: Collection[str], since: int) -> Sighting:
        self._answer()
        for snapshot in self.versions:
            if snapshot.version <= since:
                continue
            if snapshot.version < self.forgotten:
                return Sighting(Look.CANNOT_TELL, self.head.version, reason="a version is missing")
            is_named = self.attempts.get(attempt) == snapshot.version
            if is_named or not snapshot.files.keys().isdisjoint(outputs):
                added = frozenset(outputs) & snapshot.files.keys()
                return Sighting(Look.FOUND, snapshot.version, added)
        return Sighting(Look.ABSENT, self.head.version)

    def send(self, commit: Commit) -> Answer:
        """Accept a version without changes, all that the service writes itself."""
        self._answer()
        assert not commit.outputs + commit.removed, commit
        assert not commit.attempt, commit
        self.sent.append(commit)
        if commit.base.version != self.head.version:
            return Answer.CONFLICT
        self.write()
        return Answer.COMMITTED

    def require_conditions(self, name: str) -> None:
        self._answer()
        assert name, "a trial needs a name of its own"

    def statistics(self, snapshot: Snapshot, footer: FileMetaData) -> str:
        raise AssertionError("the service writes no files")

    @property
    def operations(self) -> tuple[str, ...]:
        return LAKE_OPERATIONS

    def survey(self, operation: str, snapshot: Snapshot, rules: MaintenanceRules) -> LakeSurvey:
        self._answer()
        after = self.listings.get(rules.after, "")
        survey = LakeSurvey(operation=operation, version=snapshot.version, after=after)
        if operation == "checkpoint":
            return replace(survey, creates=f"checkpoint of version {snapshot.version}")
        if operation == "expire-snapshots" and self.expiring:
            creates = f"metadata without {len(self.expiring)} snapshots"
            survey = replace(survey, versions=self.expiring, creates=creates)
        paths = sorted(self.waste.get(operation, ()))
        files = tuple(WasteFile(path, 100, "", 0.0) for path in paths if path not in rules.kept)
        if not files:
            return replace(survey, why="there is nothing to delete")
        most = rules.files_max
        return replace(survey, files=files[:most], more=max(0, len(files) - most))

    def carry_out(self, survey: LakeSurvey, snapshot: Snapshot, rules: MaintenanceRules) -> Freed:
        self._answer()
        self.rules.append(rules)
        if survey.versions:
            assert not survey.files, "the commit is the first step"
            self.expiring = ()
            return Freed(created=survey.creates)
        if survey.creates and not survey.files:
            return Freed(created=survey.creates)
        paths = [file.path for file in survey.files if file.path not in rules.kept]
        self.deleted += paths
        for path in paths:
            self.waste[survey.operation].remove(path)
        return Freed(files=len(paths), size_bytes=100 * len(paths))

    def files(self, bucket: str) -> None:
        """Lend nothing."""

    def delete(self, paths: Sequence[str]) -> None:
        self._answer()
        self.deleted += paths

    def _answer(self) -> None:
        if self.silence:
            raise UnavailableError(self.silence)
