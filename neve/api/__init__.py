"""The operator's words: what the service, its gateway, its client and its command line name alike.

The ground layer of the project: it imports the standard library only, so that every process may
import it, and a notebook may have packages of its own that are called like the service's. A class
here exists once. The coordinator makes it, the gateway answers with it, the client reads it from
JSON, and the command line shows it. All words can be imported from here.

    tables        how one is created and changed, and what it is
    tablets       what they hold, their explanation and story, splits and merges
    rows          adds, appends, calls, and the stream of a scan
    imports       an existing directory becomes a table
    requests      compactions that a user asks for, and how far they have come
    jobs          those that run and those that have ended
    compactors    their status, their groups, scaling, limits on bytes per second
    planning      what planners want now, what is still to be rewritten, triggers and maintenance
    control       what the controller reads and decides, and what readers report
    access        calls that may have changed something
    recovery      fsck, gc, rebuild, backup, restore
    service       its status and its settings
    messages      bounds of bodies, content types, messages of other releases
    column_types  types of columns as text
    files         files that an operator names
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
