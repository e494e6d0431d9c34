"""A table: its identity, schema and settings. Settings are versioned and validated on write."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from common.model.fields import StoredValue, check_field_types
from neve.api.messages import readable_across_releases

PLANNER_SETTINGS = frozenset(
    {"ratio", "lowest_ratio", "file_limit", "target_bytes", "backlog_mode"}
)
"""Table settings that only planners and their trackers read."""
BACKLOG_MODES = ("seed", "interesting")
"""Allowed values of the setting `backlog_mode`."""
FIXED_SETTINGS = frozenset({"log_segment_bytes"})
"""Table settings that a planner fixes when a table gets it; users cannot change them."""
DERIVED_SETTINGS = frozenset({"keep_deleted_rows", "tombstone_retention_s"})
"""Table settings that the options of a planner may require; otherwise users choose them."""
TRIGGERS = ("change", "periodic", "admin", "analysis")
"""Allowed values of the setting `triggers`."""
PUBLISH_OFF, PUBLISH_DELTA, PUBLISH_ICEBERG = PUBLISH_FORMATS = ("off", "delta", "iceberg")
"""Allowed values of the setting `publish`."""
DELTA_OPERATIONS = ("checkpoint", "log-cleanup", "vacuum")
ICEBERG_OPERATIONS = ("expire-snapshots", "orphan-files")
LAKE_OPERATIONS = (*DELTA_OPERATIONS, *ICEBERG_OPERATIONS)
"""Allowed values of the setting `lake_maintenance`."""
OPERATIONS_OF_LAKES = {"delta": DELTA_OPERATIONS, "iceberg": ICEBERG_OPERATIONS}
"""Format of a lake table → its operations, in the order in which they help each other."""
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class TableState(StrEnum):
    """State of a table. Only a live or paused table is read or changed."""

    NEW = "new"
    FILLING = "filling"
    """A rebuild, a restore or an import adds its files; other calls neither read nor change it."""
    LIVE = "live"
    PAUSED = "paused"
    GOING = "going"


@readable_across_releases
@dataclass(frozen=True, slots=True)
class Column(StoredValue):
    """A column by name; `type` in the text form of `common.rows.schema`, such as `int64`."""

    name: str
    type: str
    nullable: bool = True
    since: int = 0
    """Id of the first schema of its table that has the column in this form."""

    def __post_init__(self) -> None:
        """Refuse fields of other types."""
        check_field_types(self)


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings(StoredValue):
    """How a table is compacted. Sizes in bytes, durations in seconds.

    Defaults follow Accumulo where it has the setting.
    """

    service: str = "default"
    """Configured service that plans and runs the jobs of the table."""
    ratio: float = 3.0
    """Files are merged if their total size is at least this many times that of the largest."""
    max_files: int = 10
    """Largest number of files in one job; at least 2."""
    lowest_ratio: float = 1.1
    """Lower bound of the search for a ratio when a tablet has too many files."""
    file_limit: int = 15
    """Files per tablet above which compaction is forced; 0: no limit."""
    target_bytes: int = 512 * 1024**2
    """File size that planners aim for when they cut outputs (`PlannedJob.cuts`)."""
    ttl_s: float | None = None
    """Rows expire this long after the time in their `time_column`; None: never. Readers do not see
    expired rows. Files of a table with a key keep them for `tombstone_retention_s`, like
    tombstones."""
    tombstone_retention_s: float = 86_400.0
    """Shortest time that a tombstone is kept, because writers may be this late."""
    allow_late_data: bool = False
    """Accept files with rows at or below the purge watermark (deleted rows may reappear)."""
    codec: str = "zstd"
    """Compression codec of outputs."""
    codec_level: int = 3
    """Level of the codec, if it has levels; a higher level is smaller and slower."""
    row_group_bytes: int = 128 * 1024**2
    """Uncompressed size of the outputs' row groups."""
    bloom_columns: tuple[str, ...] = ()
    """Columns with Bloom filters in outputs, for readers that look up single values."""
    split_bytes: int = 0
    """A tablet of a keyed table is split above this size; 0: never."""
    merge_bytes: int = 0
    """Neighbouring tablets with fewer bytes in total are merged; at most half of `split_bytes`
    if that is set; 0: never."""
    weight: float = 1.0
    """Share of its group relative to other tables whose jobs have nearly the same priority
    (`groups.<name>.fair_band`)."""
    hold_expiry_s: float = 120.0
    """A request releases its selected files if none of its jobs runs for this time."""
    manifest_interval_s: float | None = 60.0
    """Interval between manifests while the table changes; None: no manifests."""
    volume: str = "default"
    """Name of the storage that tables share; limits apply per volume."""
    selector: str = ""
    """Plug-in that selects files to compact whenever files of a tablet change; empty: none."""
    selector_options: Mapping[str, str] = field(default_factory=dict)
    """Options of the selector."""
    configurer: str = ""
    """Plug-in that chooses codec and row groups from the inputs of a job; empty: none."""
    configurer_options: Mapping[str, str] = field(default_factory=dict)
    """Options of the configurer."""
    planner: str = ""
    """Plug-in that plans the table; empty: the planner of its service."""
    planner_options: Mapping[str, str] = field(default_factory=dict)
    """Options of the planner."""
    log_segment_bytes: int = 0
    """Size of a segment of the planner `log-segment`. It is fixed when the table gets that planner,
    from the planner's options, and cannot be set. 0: the table never had the planner."""
    triggers: tuple[str, ...] = ()
    """Events that start planning: `change`, `periodic`, `admin`; empty: changes and operators. With
    `periodic` or `admin` but without `change`, system jobs use only files that existed at the
    trigger. `analysis` analyses tablets that have changed much."""
    maintenance_priority: int = 0
    """From -5 to 5: points of the table's system jobs are multiplied by 1.1 to this power, within
    their class. 0: points stay as the planner set them."""
    workload_points: int = 0
    """Extra points for system jobs of the busiest tablets compared to idle ones, by scans and
    written rows per second; a point is one file. 0: the workload is ignored."""
    trigger_interval_s: float = 604_800.0
    """Interval of the trigger `periodic`, which also fires when the service starts."""
    trigger_spread_s: float = 300.0
    """Largest delay of a table's first `periodic` trigger, derived from a hash of the table's id,
    so that tables are not compacted all at once; at most the interval. 0: no delay."""
    analysis_share: float = 0.5
    """Share of a tablet's bytes added since its last analysis at which the trigger `analysis`
    requests another one."""
    analysis_columns: tuple[str, ...] = ()
    """Further columns of a table with a key that an analysis reads. It counts the updates that
    change each of them. Empty: none, which costs least."""
    keep_free_bytes: int = 0
    """Free space in bytes that system jobs preserve in the table's location: a job that would leave
    less does not start. 0: free space is ignored."""
    readers: tuple[str, ...] = ()
    """Engines that must be able to read the table: `spark`, `duckdb`, `polars`, `pyarrow`,
    `pandas`. A column that one of them cannot read is refused. Empty: imports warn, nothing is
    refused."""
    directory_guard: bool = True
    """Whether the table's folders contain a file that makes readers of the directory fail instead
    of returning wrong rows. It is written with the first append or the first commit that replaces
    files; readers of the manifest do not see it."""
    keep_deleted_rows: bool = False
    """Whether compactions keep a row after its delete, hidden from readers, until the delete is
    `tombstone_retention_s` old. For tables with a tombstone column."""
    show_expired_rows: bool = False
    """Whether scans through the service return expired rows until a compaction drops them. Each
    scan may choose otherwise. Readers of the manifest never see expired rows."""
    backlog_mode: str = "interesting"
    """How a tracker with tiers measures the backlog: `interesting` counts the tiers that are due
    for a merge, `seed` counts all files, and outputs that are being written as whole files."""
    gain_points: int = 0
    """Points of the table's system jobs per file that they save for each 64 MiB read and written,
    at least one: the score of `neve ops` ranks them within their class. 0: the planner's points."""
    shadow_planner: str = ""
    """Plug-in that is compared with the table's planner; its jobs are never started. `neve plan
    TABLE --shadow` shows the comparison. Empty: none."""
    shadow_planner_options: Mapping[str, str] = field(default_factory=dict)
    """Options of the shadow planner."""
    windows: str = ""
    """When system jobs start: start as in cron(5), length and time zone, such as
    `0 22 * * 1-5 for 8h in Europe/Berlin`; `;` separates several windows. Running jobs may end
    after the window. Empty: at any time."""
    window_input_bytes: int = 0
    """Input of the system jobs that start in one window; the last one may exceed it. 0: no
    limit."""
    window_cost_s: float = 0.0
    """Slot-seconds of the system jobs that start in one window: none starts when those that did
    have taken, or are expected to take, so long. 0: no limit."""
    window_exempt: tuple[str, ...] = ("requests", "over-limit")
    """Jobs that start outside of the window, too, and use no budget: `requests`, those of users;
    `over-limit`, those of tablets with more files than `file_limit` or with a split in progress.
    Empty: none."""
    publish: str = PUBLISH_OFF
    """Format of a log that the service keeps in the table's folder, so that engines read the table
    without Névé: `off`, `delta` or `iceberg`. For tables that have manifests, those with a key as
    of when they were at rest; other engines can read the log, and refuse to write."""
    lake_maintenance: tuple[str, ...] = ()
    """What the service does for a lake table besides compactions: `checkpoint`, `log-cleanup`,
    `vacuum` for Delta, `expire-snapshots`, `orphan-files` for Iceberg (lake-tables.md). Empty:
    nothing; its own engine does it."""
    lake_maintenance_interval_s: float = 86_400.0
    """Interval between two runs of an operation of a lake table; checkpoints are looked for each
    minute."""
    lake_maintenance_files: int = 10_000
    """Files that one of them deletes at most. Further ones are deleted by the next one, which
    follows at once."""
    lake_orphan_age_s: float = 259_200.0
    """`orphan-files` deletes files that were last written so long ago, one day at least. Set it to
    more than the longest time between writing a file of the table and committing it."""

    def __post_init__(self) -> None:
        """Refuse fields of other types; values are validated where users set them."""
        check_field_types(self)


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """Progress of a `rebuild`, `restore` or `import` of a table."""

    run: str
    """Fencing token: only the latest run may add files."""
    verb: str
    files: int = 0
    """Number of files that the run will add."""
    done: int = 0
    """Number of files that were added."""

    def __post_init__(self) -> None:
        """Refuse fields of other types."""
        check_field_types(self)

    @property
    def text(self) -> str:
        """Return verb and progress in readable form."""
        files = "file" if self.files == 1 else "files"
        return f"{self.verb}, {self.done} of {self.files} {files}"


def missing_columns(schema: Iterable[Column], named: Iterable[str | None]) -> list[str]:
    """Return the named columns that a schema lacks; None is ignored."""
    names = {column.name for column in schema}
    return [name for name in named if name is not None and name not in names]


SPEC_PARTITIONS, SPEC_PARTITION_TYPES = ("spec", "partition"), ("int64", "string")
"""Parts of a partition of an Iceberg table: the id of its partition spec, and the values of the
spec's fields as text. A table may have several specs, and their fields are no columns."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class LakeTable(StoredValue):
    """Where the truth of a table lies whose files belong to another format's log or catalog."""

    format: str
    """A `LakeFormat` of `common.lake.source`, such as `delta`."""
    uri: str
    """Address of the table for its format; without credentials."""
    table_id: str
    """Id of the table in its own log. A table that was created anew there has another one."""
    root: str = ""
    """Location as the table's catalog names it; empty: no catalog does."""
    data_folder: str = ""
    """Folder below the location in which the table's writers put data files; empty: the location
    itself."""

    @property
    def partition_types(self) -> tuple[str, ...]:
        """Types of the parts of a partition where these are no columns; empty: they are columns."""
        return SPEC_PARTITION_TYPES if self.format == "iceberg" else ()

    def __post_init__(self) -> None:
        """Refuse fields of other types."""
        check_field_types(self)


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Table(StoredValue):
    """One table as stored in its key `neve:{t}:table`."""

    id: str
    """Random, never reused."""
    name: str
    location: str
    """URI of the folder that holds every file: `file:///…`, `s3://…`; no trailing slash."""
    schema: tuple[Column, ...]
    schema_id: int = 0
    """Incremented by every schema change; each file records the id of its schema."""
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
    """Ids before the table was restored or rebuilt; its files may carry them."""
    calls_since_s: float = 0.0
    """Time of a rebuild or restore, which loses the marks of calls: older calls are refused."""
    triggered_at_s: float = 0.0
    """The store's time of the last trigger; 0: no trigger has fired."""
    triggered_by: str = ""
    """The last trigger, one of `TRIGGERS`."""
    filling: Filling | None = None
    """Set while the state is FILLING."""
    incomplete: bool = False
    """Whether its recovery missed files: no manifest is published before the table is resumed."""
    lake: LakeTable | None = None
    """Set for a lake table: its log or catalog is the truth, and the store has a mirror of it."""

    def __post_init__(self) -> None:
        """Refuse fields of other types."""
        check_field_types(self)

    @property
    def partition_types(self) -> tuple[str, ...]:
        """Types of the parts of a partition, by the order of `partition_by`."""
        if self.lake is not None and self.lake.partition_types:
            return self.lake.partition_types
        types = {column.name: column.type for column in self.schema}
        return tuple(types[name] for name in self.partition_by)

    @property
    def own_ids(self) -> frozenset[str]:
        """All ids that the table's files may carry."""
        return frozenset((self.id, *self.former_ids))


def filling_text(table: Table) -> str:
    """Return the message about a table that is being filled."""
    assert table.filling is not None, table.name
    verb = table.filling.verb
    command = "table import" if verb == "import" else verb
    return (
        f"table {table.name!r} is being filled ({table.filling.text}) in {table.location}: wait, "
        f"or repeat `neve {command}` if it has ended early; `neve table drop "
        f"{table.name}` ends it and leaves the files"
    )


def recovery_note(table: Table) -> str:
    """Return the message about a table whose recovery is running or incomplete, or `""`."""
    if table.filling is not None:
        return filling_text(table)
    if not table.incomplete:
        return ""
    return (
        f"table {table.name!r} is incomplete: its recovery did not find all files, so its manifest "
        f"is not published. Recover it again after `neve table drop {table.name}`, or accept it "
        f"with `neve resume {table.name}`"
    )
