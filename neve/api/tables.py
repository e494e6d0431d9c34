"""Tables: creation, change and description."""

from dataclasses import dataclass, field
from typing import Annotated, Any

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
    """Progress of a rebuild, a restore or an import that fills a table."""

    run: str
    verb: str
    files: int
    """Number of files that the table will have."""
    done: int
    """Number of files that the table has so far."""

    @property
    def text(self) -> str:
        """Verb and progress as human-readable text."""
        files = "file" if self.files == 1 else "files"
        return f"{self.verb}, {self.done} of {self.files} {files}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeMirror:
    """The log of a lake table, and how far the service has followed it."""

    format: str
    """Format of the log or catalog: `delta`, `iceberg`."""
    uri: str
    table_id: str
    """Id of the table in its log."""
    version: int | None = None
    """Version that the service has mirrored; null: none was read so far."""
    moved_at_s: float | None = None
    """Time at which it was mirrored."""
    problem: str = ""
    """Why the log is not followed, so that no job starts; empty: it is followed."""

    @property
    def partition_types(self) -> tuple[str, ...]:
        """Types of the parts of a partition where these are no columns; empty: they are columns."""
        return ("int64", "string") if self.format == "iceberg" else ()

    @property
    def text(self) -> str:
        """Format and version as human-readable text."""
        version = "not read" if self.version is None else f"version {self.version}"
        return f"{self.format}, {version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedLog:
    """The log that the service publishes of a table for other engines, in the table's location."""

    format: str
    """Format of the log: `delta` or `iceberg`."""
    version: int | None = None
    """Its newest version; null: there is none so far."""
    as_of_s: float | None = None
    """Readers of this version see the table as of this time of the store."""
    files: int | None = None
    rows: int | None = None
    problem: str = ""
    """Why newer versions cannot be published; empty: they can."""
    lag: str = ""
    """Why the table has newer rows that this version lacks: a table with a key is published as of
    the last time at which it was at rest. Empty: there is no reason of this kind."""
    metadata: str = ""
    """URI or path of the newest metadata file of Iceberg, for readers and catalogs. Empty: none."""

    @property
    def text(self) -> str:
        """Format and version as human-readable text."""
        version = "no version so far" if self.version is None else f"version {self.version}"
        return f"{self.format}, {version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachTable:
    """A table of another format to follow and compact. Its name is in the path."""

    __pydantic_config__ = STRICT

    format: ShortText
    """Format of its log or catalog: `delta`, `iceberg`."""
    uri: ShortText
    """Delta: URI of its folder, or an absolute path on the service's machine. Iceberg:
    `CATALOG:NAMESPACE.TABLE`, with a catalog of the settings."""
    settings: SettingValues = field(default_factory=dict)
    paused: bool = False
    dry_run: bool = False
    """Read its log and plan it, but do not attach it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table and its totals. In listings the totals are None."""

    id: str
    name: str
    location: str
    state: str
    schema: tuple[Column, ...]
    """In listings only the columns with a role in the table: key, version, tombstone, time and
    partition columns."""
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
    """Choices that the service made when it created the table, with reasons. Only the answer to a
    creation has notes."""
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
    lake: LakeMirror | None = None
    """Set for a table whose files belong to the log of another format."""
    published: PublishedLog | None = None
    """Set for a table that publishes a log for other engines. Listings leave it out."""

    @property
    def state_text(self) -> str:
        """State as human-readable text."""
        if self.filling is not None:
            return f"{self.state} ({self.filling.text})"
        if self.lake is not None and self.lake.problem:
            return f"{self.state} (not followed)"
        return f"{self.state} (incomplete)" if self.incomplete else self.state


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSummary:
    """Figures of a table from some of its tablets, evenly spread over it."""

    table: str
    tablets: int
    """Number of tablets of the table."""
    sampled_tablets: int
    """Number of tablets that the following figures are about."""
    files: int
    size_bytes: int
    files_max: int
    """Largest number of files in one of these tablets."""
    small_share: float
    """Fraction of the files that are smaller than a quarter of the table's `target_bytes`."""
    tombstone_share: float
    """Fraction of the rows that are tombstones."""
    garbage_share: float | None
    """Fraction of the bytes that no reader sees, in files that an analysis has counted; null: it
    has counted none."""
    committed_at_s: float | None
    """Time of the last committed job among the newest 20 attempts; null: there is none."""
    write_amplification: float | None = None
    """Bytes that jobs have written per byte that arrived, by the daily sums; null: no job has
    committed. If not every tablet is sampled, it is an estimate."""

    @property
    def files_per_tablet(self) -> float | None:
        """Average number of files in a tablet; None: no tablet was read."""
        return self.files / self.sampled_tablets if self.sampled_tablets else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A dropped table, and when its name is free again."""

    table: str
    files_left: int = 0
    """Files to be deleted first: replaced files, and with `delete_files` all files."""
    name_free_at_s: float | None = None
    """Earliest time at which the name is free; None: it is free now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """An attached table, or with a dry run what would be attached."""

    table: str
    format: str
    uri: str
    dry_run: bool
    version: int
    """Version of its log that was read."""
    tablets: int
    """Partitions; 1 for a table without partitions."""
    files: int
    size_bytes: int
    rows: int
    """Rows of all files, deleted ones included."""
    deleted_rows: int
    files_with_deletes: int
    partition_by: tuple[str, ...] = ()
    planner: str = ""
    """Choice of the planner, as a sentence."""
    refusal: str = ""
    """Why the table cannot be compacted, and what to do; empty: it can be. A refused table is not
    attached."""
    jobs: int = 0
    """Jobs that would be planned now."""
    planned_files: int = 0
    """Files in these jobs."""
    planned_bytes: int = 0
    reasons: tuple[str, ...] = ()
    """Reasons of the first jobs."""
