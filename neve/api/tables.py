"""Tables: how one is created and changed, and what it is."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from neve.api.messages import (
    COLUMNS_MAX,
    SPLITS_MAX,
    STRICT,
    MaxLength,
    Names,
    SettingValues,
    ShortText,
)


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
