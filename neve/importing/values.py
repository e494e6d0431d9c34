"""What a survey of a directory is asked, and what it comes to."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.model.table import Column
from neve.importing.footers import Footer
from neve.importing.listing import Found


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a user said of the table that a directory is to become."""

    key: tuple[str, ...] = ()
    version_column: str | None = None
    partition_by: tuple[str, ...] | None = None
    """None: what the folders say."""
    partition_types: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[Column, ...] | None = None
    """Of the table that is there already; None: it is new."""


@dataclass(slots=True)
class Tally:
    """What some files come to."""

    files: int = 0
    rows: int = 0
    size_bytes: int = 0

    def add(self, file: Found, footer: Footer) -> None:
        """Count a file."""
        self.files += 1
        self.rows += footer.rows
        self.size_bytes += file.size_bytes


@dataclass(slots=True, kw_only=True)
class Survey:
    """What a directory could be: a table's columns, and the files that fit."""

    columns: tuple[Column, ...] = ()
    partition_by: tuple[str, ...] = ()
    files: list[Found] = field(default_factory=list)
    total: Tally = field(default_factory=Tally)
    partitions: dict[str, Tally] = field(default_factory=dict)
    misfits: dict[str, str] = field(default_factory=dict)
    untold: int = 0
    """Files whose statistics do not tell whether a version is null."""
    unversioned_rows: int = 0
    """Rows whose version is null, as far as statistics tell."""
