"""Wire models of recovery: fsck, gc, rebuild, backup, restore.

Their routes answer with lines of JSON, for they may take long: any number of
`{"kind": "progress", "text": …}`, then `{"kind": "result", "result": {…}}`, or
`{"kind": "error", …}` with what a problem holds. A backup answers with its archive.
Nothing of the project is imported here.
"""

from dataclasses import dataclass, field

STRICT = {"extra": "forbid"}
LINES = "application/x-ndjson"
ARCHIVE = "application/vnd.neve.archive"
"""Content type of an archive: the body of a restore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FsckOptions:
    """What a check may do; without any of these it only looks."""

    __pydantic_config__ = STRICT

    repair: bool = False
    """Mend whatever can be mended without a word of its own."""
    deep: bool = False
    """Decode every file, instead of reading its footer."""
    adopt: bool = False
    """Make the location this store's."""
    accept: bool = False
    """Accept that the store has gone back in time."""
    forget_missing: bool = False
    """Take files out of the table that storage does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be."""

    code: str
    sentence: str
    repair: str = ""
    """What mends it; empty: nothing that fsck can do."""
    path: str | None = None
    tablet: str | None = None
    done: bool | None = None
    """Whether it was mended; None: it was not tried."""
    outcome: str = ""
    """Why it was not mended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FsckReport:
    """What a check of one table came to."""

    table: str
    sound: bool
    """Nothing is wrong, or all of it was mended."""
    findings: tuple[Finding, ...]
    more: int
    """Findings that are not listed."""
    tablets: int
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GcReport:
    """What a listing sweep of one table came to."""

    table: str
    orphans: tuple[Finding, ...]
    files: int
    size_bytes: int
    given: int
    """Files that were given to the collector, which deletes them after the grace."""
    young: int
    """Files that may be about to be added or committed."""
    evidence: int
    """Files that stay because they may hold the only copy of rows; listed with the orphans."""
    marks: int
    """Empty outputs that tell a rebuild that their inputs are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTable:
    """A table to rebuild out of its location."""

    __pydantic_config__ = STRICT

    location: str
    name: str
    key: tuple[str, ...] = ()
    version_column: str | None = None
    tombstone_column: str | None = None
    time_column: str | None = None
    partition_by: tuple[str, ...] = ()
    append_only: bool = False
    """Where nothing describes the table: it has no key."""
    user_files: bool = True
    """Whether Parquet files of users count as added."""
    adopt: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildReport:
    """What a rebuild came to."""

    table: str
    location: str
    state: str
    tablets: int
    files: int
    rows: int
    size_bytes: int
    user_files: int
    left: dict[str, str] = field(default_factory=dict)
    """Files that do not count → why."""
    lost: dict[str, str] = field(default_factory=dict)
    """What rows are, or may be, lost → why."""
    not_recovered: tuple[str, ...] = ()
    manifest: int | None = None
    """Number of the manifest that it began with; None: there was none."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupOptions:
    """Which tables are backed up, and how."""

    __pydantic_config__ = STRICT

    tables: tuple[str, ...] = ()
    """Names; none: all."""
    hold: str | float = 0
    """How long files stay afterwards, for whoever copies them: `1h`."""
    copy_to: str | None = None
    """Location below which the files are copied, table by table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """One table of an archive, as it is now."""

    table: str
    location: str
    state: str
    tablets: int
    files: int
    missing: tuple[str, ...] = ()
    """Files that the location does not have; while there are any, the table stays paused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """What a restore came to."""

    tables: tuple[Restored, ...]
    dry_run: bool = False
