"""Recovery: fsck, gc, rebuild, backup, restore.

Their routes answer with lines of JSON, because they may take long: any number of
`{"kind": "progress", "text": …}`, then `{"kind": "result", "result": {…}}`, or
`{"kind": "error", …}` with the content of a problem. A backup answers with its archive.
"""

from dataclasses import dataclass, field
from typing import Annotated

from neve.api.messages import STRICT, MaxLength, Names, ShortText


@dataclass(frozen=True, slots=True, kw_only=True)
class FsckOptions:
    """Repairs that fsck may make. By default it only reports."""

    __pydantic_config__ = STRICT

    repair: bool = False
    """Repair everything that needs none of the other options."""
    deep: bool = False
    """Decode every file instead of reading its footer only."""
    adopt: bool = False
    """Take over the location for this store."""
    accept: bool = False
    """Accept that the store has gone back in time."""
    forget_missing: bool = False
    """Remove files from the table that are missing in storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem that was found."""

    code: str
    sentence: str
    repair: str = ""
    """What repairs it; empty: fsck cannot repair it."""
    path: str | None = None
    tablet: str | None = None
    done: bool | None = None
    """Whether it was repaired; None: no repair was tried."""
    outcome: str = ""
    """Why it was not repaired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FsckReport:
    """Result of fsck of one table."""

    table: str
    sound: bool
    """Whether nothing is wrong, or everything was repaired."""
    findings: tuple[Finding, ...]
    more: int
    """Number of further findings that are not listed."""
    tablets: int
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GcReport:
    """Result of a listing sweep of one table."""

    table: str
    orphans: tuple[Finding, ...]
    files: int
    size_bytes: int
    given: int
    """Files that the collector deletes after the grace period."""
    young: int
    """Files that are so new that they may be added or committed soon."""
    evidence: int
    """Files that are kept because they may hold the only copy of rows; included in `orphans`."""
    marks: int
    """Empty outputs that prove to a rebuild that their inputs were replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTable:
    """A table to rebuild from the files of its location."""

    __pydantic_config__ = STRICT

    location: ShortText
    name: ShortText
    key: Names = ()
    version_column: ShortText | None = None
    tombstone_column: ShortText | None = None
    time_column: ShortText | None = None
    partition_by: Names = ()
    append_only: bool = False
    """Confirms that the table has no key, if nothing in the location describes the table."""
    user_files: bool = True
    """Whether Parquet files of users count as added."""
    adopt: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildReport:
    """Result of a rebuild."""

    table: str
    location: str
    state: str
    tablets: int
    files: int
    rows: int
    size_bytes: int
    user_files: int
    left: dict[str, str] = field(default_factory=dict)
    """Path of each file that was left out → reason."""
    lost: dict[str, str] = field(default_factory=dict)
    """Rows that are lost or may be lost → reason."""
    not_recovered: tuple[str, ...] = ()
    manifest: int | None = None
    """Number of the manifest that the rebuild started from; None: there was none."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupOptions:
    """Options of a backup."""

    __pydantic_config__ = STRICT

    tables: Annotated[tuple[ShortText, ...], MaxLength(100_000)] = ()
    """Names of the tables; empty: all tables."""
    hold: ShortText | float = 0
    """How long files are kept after the backup, so that they can be copied: `1h`."""
    copy_to: ShortText | None = None
    """Location that the files are copied to, with a folder per table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A restored table."""

    table: str
    location: str
    state: str
    tablets: int
    files: int
    missing: tuple[str, ...] = ()
    """Files that are missing in the location. While files are missing, the table stays paused."""
    unused: tuple[str, ...] = ()
    """Data files in the location that the archive does not name; they are not recovered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """Result of a restore."""

    tables: tuple[Restored, ...]
    dry_run: bool = False
    not_recovered: tuple[str, ...] = ()
    """State that an archive does not contain."""
