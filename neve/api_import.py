"""Wire models of import: an existing directory becomes a table."""

from dataclasses import dataclass, field
from typing import Any

from neve.api import STRICT, Column


@dataclass(frozen=True, slots=True, kw_only=True)
class NewImport:
    """A directory to make a table of."""

    __pydantic_config__ = STRICT

    location: str
    name: str
    key: tuple[str, ...] = ()
    version_column: str | None = None
    tombstone_column: str | None = None
    time_column: str | None = None
    partition_by: tuple[str, ...] | None = None
    """None: what the folders say (`month=1/`)."""
    partition_types: dict[str, str] = field(default_factory=dict)
    """Types of partition columns that no file has; else they are told from the folders."""
    settings: dict[str, Any] = field(default_factory=dict)
    leave_misfits: bool = False
    """Import the files that fit, and leave those that do not."""
    readers_use_manifest: bool = False
    """Confirm that nobody reads the directory itself any more, so that it may be compacted."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """A file that cannot be in the table, and why."""

    path: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTotals:
    """What is in one partition."""

    partition: str
    files: int
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportProgress:
    """How far an import is. Numbers are 0 while they are not known."""

    text: str
    files_done: int = 0
    files: int = 0
    bytes_done: int = 0
    size_bytes: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What an import came to, or would come to."""

    table: str
    location: str
    state: str
    """Of the table; empty: there is none (a dry run)."""
    files: int
    """That fit, those that are in the table already among them."""
    rows: int
    """Of the files that were not in the table already."""
    size_bytes: int
    """Likewise."""
    added: int
    already: int
    """Files that were in the table, or had been and were replaced."""
    ignored: int
    """Hidden files: their name, or a folder's, begins with `_` or `.`."""
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
