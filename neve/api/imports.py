"""Import of an existing directory as a table."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from neve.api.messages import STRICT, MaxLength, Names, SettingValues, ShortText
from neve.api.tables import Column


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
    """Partition columns; None: taken from the folder names (`month=1/`)."""
    partition_types: Annotated[dict[ShortText, ShortText], MaxLength(1000)] = field(
        default_factory=dict
    )
    """Types of partition columns that no file contains; inferred from folder names by default."""
    settings: SettingValues = field(default_factory=dict)
    timestamps: Literal["us", "us-truncated"] | None = None
    """Copy files with nanoseconds in microseconds. `us` rejects values that are finer than a
    microsecond, `us-truncated` truncates them."""
    leave_misfits: bool = False
    """Import the files that fit and leave out the misfits."""
    readers_use_manifest: bool = False
    """Confirm that all readers use the manifest, so that the table may be compacted."""
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
    """Files that are in the table already, or were in the table and have been replaced."""
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
