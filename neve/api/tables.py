"""Wire models of tables, their files and rows, and of import.

Client, gateway and command line share these frozen values; `neve.client.http` builds them from
JSON. Nothing of the project is imported here. Sizes are in bytes, times in seconds since the
epoch. A tablet is named by its end: hex, or `last`. Keys are texts that a person can read and
that every `start`, `end` and `splits` parameter takes back.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

STRICT = {"extra": "forbid"}
"""A body with an unknown field is refused. The gateway reads this."""


@dataclass(frozen=True, slots=True)
class MaxLength:
    """Bound on a field of a request: characters of a text, or entries of a list or mapping."""

    count: int

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Return the schema that checks the bound and stops at the first error of a list."""
        schema = handler(source)
        schema["max_length"] = self.count
        if schema["type"] in {"list", "tuple"}:
            schema["fail_fast"] = True
        return schema


PATHS_MAX = 10_000
COLUMNS_MAX = 10_000
SPLITS_MAX = 100_000
ShortText = Annotated[str, MaxLength(4096)]
"""A name, a path, or a key as text."""
LongText = Annotated[str, MaxLength(64 * 1024)]
"""An expression, or the type of a column."""
Names = Annotated[tuple[ShortText, ...], MaxLength(1000)]
"""Names of columns or tables."""
SettingValues = Annotated[dict[ShortText, Any], MaxLength(1000)]

CALL_HEADER = "Neve-Call"
"""Header with the id of a call. A repeated call counts once."""

ARROW_STREAM = "application/vnd.apache.arrow.stream"
PROBLEM = "application/problem+json"
STREAM_PROBLEM = b"neve-problem:"
"""Begins the last message of an Arrow stream that broke off; the problem follows as JSON."""


def failed_stream(problem: Mapping[str, object]) -> bytes:
    """Return what ends an Arrow IPC stream that cannot go on.

    It has the frame of a message, so that every reader stops there, and none takes the rows
    before it for all of them.
    """
    text = STREAM_PROBLEM + json.dumps(problem).encode()
    text += b" " * (-len(text) % 8)
    return b"\xff\xff\xff\xff" + len(text).to_bytes(4, "little") + text


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table; `type` as Arrow writes it: `int64`, `timestamp[us, tz=UTC]`."""

    name: str
    type: str
    nullable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTable:
    """A table to create. Give its schema, or the path of a Parquet file as `example`."""

    __pydantic_config__ = STRICT

    name: ShortText
    location: ShortText
    schema: Annotated[tuple[Column, ...], MaxLength(COLUMNS_MAX)] | None = None
    example: ShortText | None = None
    key: Names = ()
    version_column: ShortText | None = None
    tombstone_column: ShortText | None = None
    time_column: ShortText | None = None
    partition_by: Names = ()
    splits: Annotated[tuple[ShortText, ...], MaxLength(SPLITS_MAX)] = ()
    """Last key of each tablet but the last, in ascending order."""
    settings: SettingValues = field(default_factory=dict)
    paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """Changes of a table: values of settings, new columns, wider columns."""

    __pydantic_config__ = STRICT

    settings: SettingValues = field(default_factory=dict)
    settings_version: int | None = None
    """Refuse the change if the settings of the table have another version."""
    add_columns: Annotated[tuple[Column, ...], MaxLength(COLUMNS_MAX)] = ()
    """New columns. They are null in existing rows."""
    widen_columns: Annotated[tuple[Column, ...], MaxLength(COLUMNS_MAX)] = ()
    """Existing columns with a wider type, which holds every value of the old type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """How far a rebuild, a restore or an import is with the table that it fills."""

    run: str
    verb: str
    files: int
    """Number of files that the table shall have."""
    done: int
    """Number of files that it has."""

    @property
    def text(self) -> str:
        """Return verb and progress for people."""
        files = "file" if self.files == 1 else "files"
        return f"{self.verb}, {self.done} of {self.files} {files}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table and its totals. In listings the totals are None."""

    id: str
    name: str
    location: str
    state: str
    schema: tuple[Column, ...]
    """In listings only the columns that the table names: for its key, versions, deletes, times and
    partitions."""
    columns: int = 0
    """Number of columns, at most 10,000."""
    schema_id: int = 0
    """Version of the schema. Every change of the schema increases it."""
    key: tuple[str, ...] = ()
    version_column: str | None = None
    tombstone_column: str | None = None
    time_column: str | None = None
    partition_by: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    settings_version: int = 1
    without_effect: dict[str, str] = field(default_factory=dict)
    """Setting without effect in this service → reason. Listings leave it out."""
    notes: tuple[str, ...] = ()
    """What the service chose when it created the table, and why. Only the answer to a creation has
    notes."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Tablet that the totals do not count → what of it cannot be decoded."""
    created_at_s: float = 0.0
    tablets: int | None = None
    files: int | None = None
    rows: int | None = None
    size_bytes: int | None = None
    filling: Filling | None = None
    """Set while a rebuild, a restore or an import fills the table."""
    incomplete: bool = False
    """The recovery of the table did not find all files. No manifest is published until the table is
    resumed."""

    @property
    def state_text(self) -> str:
        """Return the state for people."""
        if self.filling is not None:
            return f"{self.state} ({self.filling.text})"
        return f"{self.state} (incomplete)" if self.incomplete else self.state


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A data file of a table. `path` is relative to the location of the table."""

    path: str
    tablet: str
    size_bytes: int
    rows: int
    key_min: str | None = None
    key_max: str | None = None
    tombstones: int = 0
    schema_id: int = 0
    """Id of the newest schema of the table whose columns the file has."""
    clean: bool = False
    open: bool = False
    """Still being written. Not used yet: every file that is added is complete."""
    added_at_s: float = 0.0
    time_min_s: float | None = None
    time_max_s: float | None = None
    tags: dict[str, str] = field(default_factory=dict)
    job: str | None = None
    request: str | None = None
    live_bytes: int | None = None
    """Bytes of rows that a reader sees or a rewrite has to keep; None: nobody has counted."""
    measured_at_s: float | None = None
    """As of when they were counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFiles:
    """Parquet files to add: paths relative to the location of the table, or URIs below it."""

    __pydantic_config__ = STRICT

    paths: Annotated[tuple[ShortText, ...], MaxLength(PATHS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What an add or append has added to the table."""

    call: str
    files: tuple[File, ...]
    """Empty for a repeated call: the files may have been compacted since."""
    rows: int
    size_bytes: int
    file_count: int = 0
    tablets: tuple[str, ...] = ()
    """Tablets that hold the new files. For a repeated call only if there are few."""
    repeated: bool = False
    """Whether the call was accepted before. Nothing was added now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What became of a call id in a table."""

    call: str
    state: str
    """`accepted`, `unknown` (not accepted so far) or `too-old` (no longer known)."""
    kind: str | None = None
    """`add`, `append` or `compact`."""
    at_s: float | None = None
    """When the call was accepted."""
    rows: int | None = None
    file_count: int | None = None
    size_bytes: int | None = None
    tablets: tuple[str, ...] = ()
    """Tablets that hold the new files, if there are few."""
    request: str | None = None
    """Id of the request, if the call requested a compaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tablet:
    """A tablet and its state. It holds the keys after `start` up to `end`; None: no bound."""

    tablet: str
    files: int
    size_bytes: int
    rows: int
    start: str | None = None
    end: str | None = None
    partition: str | None = None
    running: int = 0
    waiting: int = 0
    selected: bool = False
    operation: str | None = None
    analysis: str = "unknown"
    failures: int = 0
    failure: str = ""
    compactions: int = 0
    """Jobs that have been committed here, moves and drops among them, since the table was made. A
    split gives both sides the count, a merge takes the larger one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletPage:
    """A page of tablets. `next` is the `after` of the following page; None: this is the last."""

    tablets: tuple[Tablet, ...]
    unreadable: dict[str, str] = field(default_factory=dict)
    """Tablet that cannot be read → what of it cannot be decoded."""
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A dropped table, and when its name is free again."""

    table: str
    files_left: int = 0
    """Files to be deleted first: replaced files, and with `delete_files` all files."""
    name_free_at_s: float | None = None
    """Earliest time at which the name is free; None: it is free now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePage:
    """A page of files. `next` is the `after` of the following page; None: this is the last."""

    files: tuple[File, ...]
    next: str | None = None


# ---------------------------------------------------- Import: an existing directory becomes a table


@dataclass(frozen=True, slots=True, kw_only=True)
class NewImport:
    """A directory to import as a table."""

    __pydantic_config__ = STRICT

    location: ShortText
    name: ShortText
    key: Names = ()
    version_column: ShortText | None = None
    tombstone_column: ShortText | None = None
    time_column: ShortText | None = None
    partition_by: Names | None = None
    """Partition columns; None: as the folder names say (`month=1/`)."""
    partition_types: Annotated[dict[ShortText, ShortText], MaxLength(1000)] = field(
        default_factory=dict
    )
    """Types of partition columns that are in no file; guessed from folder names by default."""
    settings: SettingValues = field(default_factory=dict)
    timestamps: Literal["us", "us-truncated"] | None = None
    """Copy files with nanoseconds in microseconds. `us` refuses a value that has more digits,
    `us-truncated` cuts them off."""
    leave_misfits: bool = False
    """Import the files that fit and leave out the misfits."""
    readers_use_manifest: bool = False
    """Confirm that nobody reads the directory itself any more. The table may be compacted."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """A file that does not fit into the table, and why."""

    path: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTotals:
    """Totals of one partition."""

    partition: str
    files: int
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportProgress:
    """Progress of an import. Unknown numbers are 0."""

    text: str
    files_done: int = 0
    files: int = 0
    bytes_done: int = 0
    size_bytes: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """Result of an import, or of its dry run."""

    table: str
    location: str
    state: str
    """State of the table; empty: there is no table (a dry run)."""
    files: int
    """Files that fit, including files that are in the table already."""
    rows: int
    """Rows of the files that were not in the table already."""
    size_bytes: int
    """Bytes of the files that were not in the table already."""
    added: int
    already: int
    """Files that are in the table already, or were in it and have been replaced."""
    ignored: int
    """Hidden files: the name of the file or of a folder begins with `_` or `.`."""
    misfits: int
    schema: tuple[Column, ...]
    key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    partitions: int = 0
    per_partition: tuple[PartitionTotals, ...] = ()
    """The first of them."""
    misfit_files: tuple[Misfit, ...] = ()
    """The first of them."""
    notes: tuple[str, ...] = ()
    dry_run: bool = False
