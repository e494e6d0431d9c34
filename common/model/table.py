"""A table: its identity, schema and settings. Settings are versioned and validated on write."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from common.model.fields import StoredValue, check_field_types
from neve.api.messages import readable_across_releases

PLANNER_SETTINGS = frozenset({"ratio", "lowest_ratio", "file_limit", "target_bytes"})
"""Settings of a table that nobody but planners reads."""
TRIGGERS = ("change", "periodic", "admin", "analysis")
"""Names that the setting `triggers` may have."""
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class TableState(StrEnum):
    """Where a table is in its life. Only a live or paused table is read or changed."""

    NEW = "new"
    FILLING = "filling"
    """A rebuild, a restore or an import puts its files in; nothing else reads or changes it."""
    LIVE = "live"
    PAUSED = "paused"
    GOING = "going"


@readable_across_releases
@dataclass(frozen=True, slots=True)
class Column(StoredValue):
    """A column by name; `type` in the text form of `common.rows.types`, such as `int64`."""

    name: str
    type: str
    nullable: bool = True
    since: int = 0
    """Id of the first schema of its table that has it in this form."""

    def __post_init__(self) -> None:
        """Refuse other types."""
        check_field_types(self)


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings(StoredValue):
    """How a table is compacted. Sizes in bytes, durations in seconds.

    Attributes' defaults follow Accumulo's where it has the setting.
    """

    service: str = "default"
    """Configured service that plans and runs the jobs of the table."""
    ratio: float = 3.0
    """Files are merged if together they are this many times as large as the largest of them."""
    max_files: int = 10
    """Number of files in one job at most; at least 2."""
    lowest_ratio: float = 1.1
    """Lower bound of the search when a tablet has too many files."""
    file_limit: int = 15
    """Files per tablet above which compaction is forced; 0: no limit known."""
    target_bytes: int = 512 * 1024**2
    """Size of files that planners aim at where they cut outputs (`PlannedJob.cuts`)."""
    ttl_s: float | None = None
    """Rows expire this long after the time in their `time_column`; None: never. Readers do not see
    expired rows. Files of a table with a key keep them for `tombstone_retention_s`, like
    tombstones."""
    tombstone_retention_s: float = 86_400.0
    """A tombstone is kept at least this long, because writers may be this late."""
    allow_late_data: bool = False
    """Accept files with rows at or below the purge watermark (deleted rows may come back)."""
    codec: str = "zstd"
    """Codec that compresses outputs."""
    codec_level: int = 3
    """Level of the codec, if it has levels; a higher level is smaller and slower."""
    row_group_bytes: int = 128 * 1024**2
    """Size of the outputs' row groups before they are encoded."""
    bloom_columns: tuple[str, ...] = ()
    """Columns for which outputs have Bloom filters, for readers that look up single values."""
    split_bytes: int = 0
    """A tablet of a keyed table with more bytes is split; 0: never."""
    merge_bytes: int = 0
    """Neighbouring tablets with fewer bytes together are merged; at most half of `split_bytes`
    if that is set; 0: never."""
    weight: float = 1.0
    """Share of the jobs that its group starts, relative to other tables."""
    hold_expiry_s: float = 120.0
    """A request releases the files that it has selected if none of its jobs runs for this time."""
    manifest_interval_s: float | None = 60.0
    """Interval at which the manifest is published while the table changes; None: never."""
    volume: str = "default"
    """Name of the storage that tables share; limits apply per volume."""
    selector: str = ""
    """Plug-in that chooses files to compact whenever files of a tablet change; empty: none."""
    selector_options: Mapping[str, str] = field(default_factory=dict)
    """Options of the selector."""
    configurer: str = ""
    """Plug-in that chooses codec and row groups for the inputs of a job; empty: none."""
    configurer_options: Mapping[str, str] = field(default_factory=dict)
    """Options of the configurer."""
    planner: str = ""
    """Plug-in that plans the table; empty: the planner of its service."""
    planner_options: Mapping[str, str] = field(default_factory=dict)
    """Options of the planner."""
    triggers: tuple[str, ...] = ()
    """What has the planner asked: `change`, `periodic`, `admin`; empty: changes, and operators.
    With `periodic` or `admin` and without `change`, system jobs are planned only from files that
    were there when a trigger asked. `analysis` has tablets analysed that have changed much."""
    maintenance_priority: int = 0
    """From -5 to 5: multiplies the points of the table's system jobs by 1.1 to the power of it,
    inside their class. 0: they stay as their planner has them."""
    workload_points: int = 0
    """Points that system jobs of the busiest tablets get more than those of idle ones, by scans
    and written rows per second; a point is one file. 0: the workload does not count."""
    trigger_interval_s: float = 604_800.0
    """Interval of the trigger `periodic`, which also asks when the service starts."""
    trigger_spread_s: float = 300.0
    """The first `periodic` asking of a table is late by up to this time, by a hash of its id, so
    that tables are not compacted all at once; never more than the interval. 0: all at once."""
    analysis_share: float = 0.5
    """Share of a tablet's bytes that is new since its last analysis from which on the trigger
    `analysis` asks for another one."""
    analysis_columns: tuple[str, ...] = ()
    """Columns of a table with a key that an analysis reads besides those that tell which rows are
    live: it counts by how many updates each is changed. Empty: none, which costs least."""
    keep_free_bytes: int = 0
    """System jobs do not begin where their outputs would leave less space free than this in the
    table's location; 0: free space is not looked at."""
    readers: tuple[str, ...] = ()
    """Engines that have to read the table: `spark`, `duckdb`, `polars`, `pyarrow`, `pandas`. A
    column that one of them cannot read is refused. Empty: an import warns, nothing is refused."""
    directory_guard: bool = True
    """Whether a file is put into the table's folders, with the first append or the first commit
    that replaces files, that makes readers of the directory fail instead of returning wrong rows;
    readers of the manifest do not see it."""

    def __post_init__(self) -> None:
        """Refuse other types; which values are allowed is checked where users write them."""
        check_field_types(self)


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """How far a run of `rebuild`, `restore` or `import` is with the table that it fills."""

    run: str
    """Fencing token: only the run that took the table last puts files in."""
    verb: str
    files: int = 0
    """Number of files that the run wants to put in."""
    done: int = 0
    """Number of files that are in."""

    def __post_init__(self) -> None:
        """Refuse other types."""
        check_field_types(self)

    @property
    def text(self) -> str:
        """Return verb and progress for people."""
        files = "file" if self.files == 1 else "files"
        return f"{self.verb}, {self.done} of {self.files} {files}"


def missing_columns(schema: Iterable[Column], named: Iterable[str | None]) -> list[str]:
    """Return the columns that are named and that a schema lacks; None names none."""
    known = {column.name for column in schema}
    return [name for name in named if name is not None and name not in known]


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Table(StoredValue):
    """One table as its key `neve:{t}:table` tells it."""

    id: str
    """Random, never used again."""
    name: str
    location: str
    """URI of the folder that holds every file: `file:///…`, `s3://…`; no trailing slash."""
    schema: tuple[Column, ...]
    schema_id: int = 0
    """Counted up by every change of the schema; a file carries that of the schema it has."""
    key: tuple[str, ...] = ()
    """Sort and primary key; empty: an append-only bag of rows."""
    version_column: str | None = None
    tombstone_column: str | None = None
    time_column: str | None = None
    partition_by: tuple[str, ...] = ()
    settings: TableSettings = field(default_factory=TableSettings)
    settings_version: int = 1
    state: TableState = TableState.LIVE
    created_at_s: float = 0.0
    former_ids: tuple[str, ...] = ()
    """Ids that it had before it was restored or rebuilt: its files may carry them."""
    calls_since_s: float = 0.0
    """A rebuild or restore has made it then, without the marks of calls: older ones are refused."""
    triggered_at_s: float = 0.0
    """The store's time when a trigger had the planner asked last; 0: none has."""
    triggered_by: str = ""
    """That trigger, one of `TRIGGERS`."""
    filling: Filling | None = None
    """Set while the state is FILLING."""
    incomplete: bool = False
    """Its recovery did not find all files: no manifest is published before it is resumed."""

    def __post_init__(self) -> None:
        """Refuse other types."""
        check_field_types(self)

    @property
    def own_ids(self) -> frozenset[str]:
        """All ids under which files have been written for it."""
        return frozenset((self.id, *self.former_ids))


def filling_text(table: Table) -> str:
    """Return the sentence about a table that is being filled."""
    assert table.filling is not None, table.name
    verb = table.filling.verb
    command = "table import" if verb == "import" else verb
    return (
        f"table {table.name!r} is being filled ({table.filling.text}) in {table.location}: wait, "
        f"or repeat `neve {command}` if that has ended early; `neve table drop "
        f"{table.name}` ends it and leaves the files"
    )


def recovery_note(table: Table) -> str:
    """Return the sentence about a table whose recovery is under way or incomplete, or none."""
    if table.filling is not None:
        return filling_text(table)
    if not table.incomplete:
        return ""
    return (
        f"table {table.name!r} is incomplete: its recovery did not find all files, so no manifest "
        f"of it is published. Recover it again after `neve table drop {table.name}`, or accept it "
        f"with `neve resume {table.name}`"
    )
