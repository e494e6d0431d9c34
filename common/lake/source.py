"""The port to a lake table, and the values that cross it. No word of any format.

A *version* is a state of a table that its log or catalog numbers; the *head* is the newest one.
The *deletes* of a file are the positions of rows that readers must skip. They have an identity: two
equal identities mean equal positions. Positions count the rows of a file from 0. *Equality deletes*
skip rows by their values instead: a file of them has a *sequence number*, and removes rows of data
files with smaller ones.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow.fs import FileSystem
from pyarrow.parquet import FileMetaData

from common.errors import RefusedError
from common.model.key_values import KeyType
from common.model.table import Column, Table
from common.rows.key_encoding import partition_types
from common.units import format_count

Positions = NDArray[np.uint64]
"""Positions of rows in a file: one dimension, ascending, without duplicates."""
LOCATIONS = "neve.locations"
"""Option of a source: the locations at which files of a table may lie, one in a line."""
Partition = tuple[tuple[str, str | None], ...]
"""Names and values of the partition columns, in the table's order; None: null."""


class LakeFormat(StrEnum):
    """Formats of lake tables."""

    DELTA = "delta"
    ICEBERG = "iceberg"


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A data file of one version. Sizes in bytes, times in seconds since the epoch."""

    path: str
    """Relative to the table's root, decoded: a `%` stands for itself. A file elsewhere: its URI."""
    size_bytes: int
    rows: int
    """Rows in the file, deleted ones included; -1: the log does not state them."""
    partition: Partition = ()
    deleted_rows: int = 0
    deletes: str = ""
    """Identity of its deletes by position at this version; empty: none."""
    bounds: str = ""
    """Statistics of the format as JSON text of at most `BOUNDS_BYTES_MAX`, or empty."""
    added_at_s: float = 0.0
    entry: str = ""
    """The log's own entry of the file. Only the source that returned the file reads it."""
    sequence: int = 0
    """Data sequence number; 0 where the format has none."""
    equality: tuple[tuple[int, str], ...] = ()
    """Files of equality deletes that apply to it, as sequence number and path, ascending."""
    delete_files: int = 0
    """Number of files of both kinds of deletes that readers apply to it."""


@dataclass(frozen=True, slots=True)
class SortKey:
    """A column of a table's sort order."""

    column: str
    """Its name in data files."""
    is_descending: bool = False
    has_nulls_first: bool = True


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of a table, read whole. A newer one of the same source is another value."""

    version: int
    """Number of the version. With sequence numbers: that of the version, 0 for an empty table."""
    table_id: str
    columns: tuple[Column, ...] = ()
    partition_columns: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, LakeFile] = field(default_factory=dict)
    """Live files by path."""
    refusal: str = ""
    """Why Névé cannot compact the table and what to do about it, as one sentence; empty: it can."""
    steady_since: int = 0
    """Each version above this one was read, and none of them changed schema, properties or
    features of the table."""
    changed_at_s: float = 0.0
    """When the version was committed, by the clock of its writer."""
    state: object = None
    """What the source needs to read on from here. Only the source reads it."""
    field_ids: Mapping[str, int] = field(default_factory=dict)
    """Identifiers of columns, which stay when a column is renamed; empty: names identify them."""
    file_schema: pa.Schema | None = None
    """Columns of data files to be written, with the identifiers of all fields in their metadata
    (`common.rows.conform.FIELD_ID`); None: all columns but those of the partition, by name."""
    sort: tuple[SortKey, ...] = ()
    """Order of rows in data files to be written; empty: none."""
    newest: int = -1
    """Greatest number that any version ever had; -1: that of this one. See `last_version`."""
    root: str = ""
    """Location of the table's files, where the catalog names it: a URI or an absolute path."""

    @property
    def last_version(self) -> int:
        """Return the greatest number so far: a table that went back gives no number twice."""
        return max(self.version, self.newest)


@dataclass(frozen=True, slots=True)
class KeptRows:
    """A run of rows of an input that an output holds in the same order and without gaps.

    The rows at positions from `first` until before `end`, except those with deletes that the
    attempt applied, lie in the output from position `start` on.
    """

    path: str
    first: int
    end: int
    start: int


@dataclass(frozen=True, slots=True)
class LakeOutput:
    """A file that an attempt wrote in place of its inputs."""

    path: str
    """Relative to the table's root, decoded. It contains the attempt's id."""
    size_bytes: int
    rows: int
    partition: Partition
    inputs: tuple[str, ...]
    """Paths of the inputs of which it has rows. Outputs that share an input commit together."""
    stats: str = ""
    """Statistics of the format as JSON text."""
    offsets: tuple[KeptRows, ...] = ()
    """Where the rows of each input lie; empty: unknown, as after a sort."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What an attempt read. It is kept with the attempt: the version may be gone meanwhile."""

    table_id: str
    version: int
    deletes: Mapping[str, str]
    """Identity of the deletes of each input, by path: exactly the inputs of the attempt."""
    positions: Mapping[str, Positions] = field(default_factory=dict)
    """Deleted positions that the attempt left out, by path; inputs without any may be missing."""
    sequences: Mapping[str, int] = field(default_factory=dict)
    """Data sequence number of each input, by path; a missing one is 0."""
    equality: Mapping[str, tuple[tuple[int, str], ...]] = field(default_factory=dict)
    """Files of equality deletes that were applied to each input, by path."""
    matched: Mapping[str, Positions] = field(default_factory=dict)
    """Positions of rows that these removed, by path; a row may be in `positions`, too."""


class Answer(StrEnum):
    """What the log or catalog answered to a commit. Any answer may be wrong: look afterwards."""

    COMMITTED = "committed"
    CONFLICT = "conflict"
    UNKNOWN = "unknown"


class Look(StrEnum):
    """Whether an attempt is found in the versions since one."""

    FOUND = "found"
    ABSENT = "absent"
    """Every version was read, and none has it."""
    CANNOT_TELL = "cannot-tell"
    """A version is missing, or the versions contradict each other."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """Result of a look. `version` is the one that has the attempt, or the head that was reached."""

    look: Look
    version: int = -1
    outputs: frozenset[str] = frozenset()
    """Paths of the attempt that the version adds; the others were never committed."""
    reason: str = ""
    """Why it cannot tell."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A replacement of files, to become the version after `base`.

    Attributes:
        base: The head that was validated.
        attempt: Id of the attempt; empty: a version without changes of files.
        outputs: Files to add.
        removed: Files to remove, as the head has them.
        deletes: Deleted positions of outputs, by path: rows deleted since the plan.
        now_s: Time of the commit, in seconds since the epoch.
        sequence: Data sequence number of the outputs: the planned version.
    """

    base: Snapshot
    attempt: str
    outputs: tuple[LakeOutput, ...] = ()
    removed: tuple[LakeFile, ...] = ()
    deletes: Mapping[str, Positions] = field(default_factory=dict)
    now_s: float = 0.0
    sequence: int = 0


BOUNDS_BYTES_MAX = 64 * 1024
"""Longer statistics of a file are left out."""


# ------------------------------------------------------------------------------------- Maintenance


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceRules:
    """What a maintenance operation has to keep, and how much it may do."""

    now_s: float
    """The earliest of all clocks at hand, in seconds since the epoch: too early keeps more."""
    keep_s: float
    """Versions and files are kept for so long, whatever the table says."""
    files_max: int
    """Files that one run deletes at most."""
    since: int | None = None
    """Lowest version that an attempt has planned on: it and all later ones stay. None: no attempt
    may look for anything."""
    kept: frozenset[str] = frozenset()
    """Paths of files that an attempt reads, has written, or may have committed."""
    own_name: str = ""
    """Names of files that Névé writes begin so. Such a file may be named by a commit that is on its
    way, so it is deleted only after the table has a newer version than when it was surveyed."""
    is_asked: bool = False
    """An operator asks for the operation, so it runs although little has to be done."""
    after: str = ""
    """Path after which a listing goes on; empty: from the begin."""
    orphan_age_s: float = 259_200.0
    """Files that no version names stay for so long after they were written."""
    others: tuple[tuple[str, str], ...] = ()
    """Names and locations of the other tables of the service, where an operation lists folders."""
    manifests_min: int = 10
    """Manifests that a table has less at least after they were merged, unless one asks for it."""


@dataclass(frozen=True, slots=True)
class WasteFile:
    """A file that an operation deletes, as it was listed. `tag` changes with its content."""

    path: str
    size_bytes: int
    tag: str
    changed_at_s: float
    """When it was written, by the clock of its storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSurvey:
    """What an operation would do to a table. Making a survey changes nothing."""

    operation: str
    version: int
    """The head that was surveyed."""
    files: tuple[WasteFile, ...] = ()
    """Files to delete, the oldest first; at most `files_max`."""
    more: int = 0
    """Further files that a later run deletes or merges."""
    creates: str = ""
    """What it writes, as a noun; empty: nothing."""
    spared: Mapping[str, int] = field(default_factory=dict)
    """Why other files are not deleted → their number."""
    floor: int = -1
    """Versions from this one on stay; -1: the operation deletes no versions."""
    versions: tuple[int, ...] = ()
    """Ids of versions that it removes by a commit, before it deletes what only they need."""
    after: str = ""
    """Path up to which files were listed: the next run goes on there. Empty: all were listed."""
    state: object = None
    """What was compared. Only the source reads it."""
    why: str = ""
    """Why there is nothing to do, or until when the table is kept, as a sentence."""

    @property
    def has_work(self) -> bool:
        """Whether the operation would do anything."""
        return bool(self.files or self.creates)

    @property
    def rest(self) -> str:
        """What it leaves to the next run, which follows at once; empty: nothing."""
        if self.more:
            done = "deleted" if self.files else "merged"
            return f"{format_count(self.more, 'more file')} can be {done}"
        return f"the listing goes on after {self.after[:100]}" if self.after else ""

    @property
    def size_bytes(self) -> int:
        """Bytes that it frees."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """What an operation has done."""

    files: int = 0
    size_bytes: int = 0
    created: str = ""
    """What it wrote, as a noun; empty: nothing."""
    spared: Mapping[str, int] = field(default_factory=dict)
    """Why surveyed files were not deleted after all → their number."""


class TableSource(Protocol):
    """Access to one lake table. Calls block: services make them in threads, with a deadline.

    All but `send` may be repeated. Errors are `UnavailableError` (the storage does not answer; try
    again), `RefusedError` (the log or catalog is malformed or above a bound; the sentence names
    it) and `InputError` (deletes of a file are missing or malformed).
    """

    def load(self, known: Snapshot | None = None) -> Snapshot:
        """Return the head.

        Args:
            known: A snapshot of this source: only newer versions are read. If there are none, it
                is returned itself.
        """
        ...

    def positions(self, file: LakeFile) -> Positions:
        """Return the deleted positions of a file, all below its number of rows."""
        ...

    def matched(self, file: LakeFile) -> Positions:
        """Return the positions of rows that the equality deletes of a file remove.

        Rows that are deleted by position may be among them.
        """
        ...

    def stored_columns(self, snapshot: Snapshot, file: LakeFile, schema: pa.Schema) -> pa.Schema:
        """Return the columns of a data file, with the identifiers that the table gives them.

        A column that the file lacks and its partition gives is added, with its value as the
        metadata `common.rows.conform.ONLY_VALUE`.

        Args:
            snapshot: A version of the table that has the file, and a `file_schema`.
            file: The data file.
            schema: Its columns as Arrow reads them.
        """
        ...

    def look(self, attempt: str, outputs: Collection[str], since: int) -> Sighting:
        """Look for an attempt in all versions above `since`.

        It is found if a version names it or adds one of its outputs, and no checkpoint
        contradicts that version. It is absent only if every version above `since` was read. What
        `send` has written for it here is deleted, outputs aside, if it can no longer arrive.

        Args:
            attempt: Id of the attempt.
            outputs: Paths of all files that it wrote.
            since: The planned version, or the last one before the last send.
        """
        ...

    def send(self, commit: Commit) -> Answer:
        """Try once to create the version after the commit's base. Never repeats a request."""
        ...

    def require_conditions(self, name: str) -> None:
        """Refuse a storage on which two writers could replace each other's commits.

        It is called at `attach`, and once by each attempt before its first `send`.

        Args:
            name: A random name for a file of the trial, which is deleted at the end.
        """
        ...

    def statistics(self, snapshot: Snapshot, footer: FileMetaData) -> str:
        """Return the statistics of a file that has been written, in the form of its format.

        Args:
            snapshot: A version of the table, whose properties choose the columns.
            footer: The footer of the file.
        """
        ...

    def delete(self, paths: Sequence[str]) -> None:
        """Delete outputs that were never committed; missing ones are skipped."""
        ...

    def files(self, bucket: str) -> FileSystem | None:
        """Return a client for data files with credentials that the catalog lends or is given.

        They last for the work on one file; nobody keeps the client longer.

        Args:
            bucket: Name of a bucket.

        Returns:
            None: data files are reached by the environment of the process.
        """
        ...

    @property
    def operations(self) -> tuple[str, ...]:
        """Names of the maintenance operations of the format, in the order in which they help."""
        ...

    def survey(self, operation: str, snapshot: Snapshot, rules: MaintenanceRules) -> LakeSurvey:
        """Return what an operation would do; change nothing.

        Args:
            operation: One of `operations`.
            snapshot: The head, as it was just loaded.
            rules: What has to be kept.

        Raises:
            RefusedError: The table cannot be maintained so; the sentence says why.
        """
        ...

    def carry_out(self, survey: LakeSurvey, snapshot: Snapshot, rules: MaintenanceRules) -> Freed:
        """Do what a survey says. It may be repeated, interrupted, and run twice at once.

        Args:
            survey: The survey, or one with some of its files.
            snapshot: The head, as it was just loaded: what it names since the survey stays.
            rules: What has to be kept by now.

        Raises:
            RefusedError: The table has changed since, so that another survey is needed.
        """
        ...


# -------------------------------------------------------------------------- Native tables outwards


FILES_MAX = 200_000
"""Most files of a published table: the coordinator holds their paths in memory."""
_PARTITION_TYPES = frozenset({KeyType.INT, KeyType.STRING, KeyType.DATE, KeyType.BOOL})


def require_plain_partitions(table: Table) -> None:
    """Refuse a table with partitions whose values other engines may read as different ones.

    Raises:
        RefusedError: The sentence names the column.
    """
    for name, kind in zip(table.partition_by, partition_types(table), strict=True):
        if kind not in _PARTITION_TYPES:
            message = (
                f"table {table.name!r} is partitioned by {name}, a {kind}; a log can be "
                "published of partitions by whole numbers, texts, days and bool"
            )
            raise RefusedError(message)


def require_publishable(table: Table, files: int) -> None:
    """Refuse a table with more files than are published.

    Raises:
        RefusedError: It has.
    """
    if files > FILES_MAX:
        message = (
            f"table {table.name!r} has more than {FILES_MAX} files, the limit of a "
            "published table; larger files (target_bytes) make it fewer"
        )
        raise RefusedError(message)
