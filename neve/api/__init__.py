"""Wire models shared by the coordinator, the gateway, the client and the command line.

This package is the lowest layer of the project. It imports only the standard library, so that every
process can import it, and a notebook can have its own packages with the names of the service's
packages. Each class is defined once: the coordinator creates it, the gateway returns it, the client
decodes it from JSON, and the command line shows it. All classes can be imported from here.

    tables        creation, change and description of tables
    tablets       tablets, their explanation and story, splits and merges
    rows          adds, appends, calls, and the stream of a scan
    imports       import of an existing directory as a table
    requests      compaction requests and their progress
    jobs          running jobs and finished attempts
    compactors    status, groups, scaling, limits on bytes per second
    planning      plans, backlog, triggers and maintenance
    control       state of the controller, and reports of readers
    access        entries of the audit
    recovery      fsck, gc, rebuild, backup, restore
    service       status and settings of the service
    messages      limits of bodies, content types, compatibility between releases
    column_types  types of columns as text
    files         opening of files that an operator names
"""

from neve.api.access import (
    AuditEntry,
)
from neve.api.compactors import (
    Compactor,
    Group,
    GroupScaling,
    Limit,
    LimitWish,
    ScaleWish,
    ScalingDecision,
)
from neve.api.control import (
    ClassControl,
    Control,
    ControlPoint,
    ReadReport,
    TableReads,
)
from neve.api.imports import (
    ImportProgress,
    ImportReport,
    Misfit,
    NewImport,
    PartitionTotals,
)
from neve.api.jobs import (
    Finished,
    Job,
)
from neve.api.messages import (
    ARCHIVE,
    ARROW_STREAM,
    CALL_HEADER,
    COLUMNS_MAX,
    LINES,
    PATHS_MAX,
    PROBLEM,
    SPLITS_MAX,
    STRICT,
    LongText,
    MaxLength,
    Names,
    SettingValues,
    ShortText,
)
from neve.api.planning import (
    Backlog,
    BacklogPoint,
    Interval,
    MaintenanceOperation,
    MaintenanceState,
    OwedTablet,
    Plan,
    PlannedJob,
    Reads,
    TableMaintenance,
    TabletRates,
    TableTrigger,
    TabletTrigger,
    Trigger,
    TriggerVerdict,
)
from neve.api.recovery import (
    BackupOptions,
    Finding,
    FsckOptions,
    FsckReport,
    GcReport,
    LostTable,
    RebuildReport,
    Restored,
    RestoreReport,
)
from neve.api.requests import (
    HINTS_MAX,
    Cancel,
    DryRun,
    DryTablet,
    HintText,
    Keys,
    NewRequest,
    Output,
    Plugin,
    Progress,
    Request,
    RequestTablet,
    Result,
)
from neve.api.rows import (
    STREAM_PROBLEM,
    Added,
    Call,
    File,
    FilePage,
    NewFiles,
    failed_stream,
)
from neve.api.service import (
    Quarantine,
    Setting,
    Status,
)
from neve.api.tables import (
    Column,
    Dropped,
    Filling,
    NewTable,
    Table,
    TableChange,
)
from neve.api.tablets import (
    Explanation,
    LiveBytes,
    LoweredWatermark,
    Merge,
    Operation,
    Operations,
    Split,
    StartedOperation,
    Story,
    StoryEntry,
    Tablet,
    TabletPage,
)

__all__ = [
    "ARCHIVE",
    "ARROW_STREAM",
    "CALL_HEADER",
    "COLUMNS_MAX",
    "HINTS_MAX",
    "LINES",
    "PATHS_MAX",
    "PROBLEM",
    "SPLITS_MAX",
    "STREAM_PROBLEM",
    "STRICT",
    "Added",
    "AuditEntry",
    "Backlog",
    "BacklogPoint",
    "BackupOptions",
    "Call",
    "Cancel",
    "ClassControl",
    "Column",
    "Compactor",
    "Control",
    "ControlPoint",
    "Dropped",
    "DryRun",
    "DryTablet",
    "Explanation",
    "File",
    "FilePage",
    "Filling",
    "Finding",
    "Finished",
    "FsckOptions",
    "FsckReport",
    "GcReport",
    "Group",
    "GroupScaling",
    "HintText",
    "ImportProgress",
    "ImportReport",
    "Interval",
    "Job",
    "Keys",
    "Limit",
    "LimitWish",
    "LiveBytes",
    "LongText",
    "LostTable",
    "LoweredWatermark",
    "MaintenanceOperation",
    "MaintenanceState",
    "MaxLength",
    "Merge",
    "Misfit",
    "Names",
    "NewFiles",
    "NewImport",
    "NewRequest",
    "NewTable",
    "Operation",
    "Operations",
    "Output",
    "OwedTablet",
    "PartitionTotals",
    "Plan",
    "PlannedJob",
    "Plugin",
    "Progress",
    "Quarantine",
    "ReadReport",
    "Reads",
    "RebuildReport",
    "Request",
    "RequestTablet",
    "RestoreReport",
    "Restored",
    "Result",
    "ScaleWish",
    "ScalingDecision",
    "Setting",
    "SettingValues",
    "ShortText",
    "Split",
    "StartedOperation",
    "Status",
    "Story",
    "StoryEntry",
    "Table",
    "TableChange",
    "TableMaintenance",
    "TableReads",
    "TableTrigger",
    "Tablet",
    "TabletPage",
    "TabletRates",
    "TabletTrigger",
    "Trigger",
    "TriggerVerdict",
    "failed_stream",
]
