"""Wire models shared by the coordinator, the gateway, the client and the command line.

This package is the lowest layer of the project. It imports only the standard library, so that every
process can import it, and a notebook can have its own packages with the names of the service's
packages. Each class is defined once: the coordinator creates it, the gateway returns it, the client
decodes it from JSON, and the command line shows it. All classes can be imported from here; a module
is loaded when the first of its classes is, because all of them take 0.1 s of processor time.

    tables        creation, change and description of tables
    tablets       tablets, their explanation and story, splits and merges
    rows          adds, appends, calls, and the stream of a scan
    imports       import of an existing directory as a table
    requests      compaction requests and their progress
    jobs          running jobs and finished attempts
    compactors    status, groups, scaling, limits on bytes per second
    planning      plans, backlog, triggers, maintenance and simulations
    control       state of the controller, and reports of readers
    access        entries of the audit
    recovery      fsck, gc, rebuild, backup, restore
    service       status and settings of the service
    messages      limits of bodies and series, content types, compatibility of releases
    column_types  types of columns as text
    files         opening of files that an operator names
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neve.api.access import *
    from neve.api.compactors import *
    from neve.api.control import *
    from neve.api.imports import *
    from neve.api.jobs import *
    from neve.api.messages import *
    from neve.api.planning import *
    from neve.api.recovery import *
    from neve.api.requests import *
    from neve.api.rows import *
    from neve.api.service import *
    from neve.api.tables import *
    from neve.api.tablets import *
else:
    from importlib import import_module

    _NAMES = {
        "access": "AuditEntry ConsoleLink",
        "compactors": "Compactor ScalingDecision GroupScaling ScaleWish Group LimitWish Limit",
        "control": (
            "ClassControl Control SERIES_MEASURES SERIES_OF_GROUPS SERIES_OF_CONTROL "
            "SeriesLine Series TableReads ReadReport"
        ),
        "imports": "NewImport Misfit PartitionTotals ImportProgress ImportReport",
        "jobs": "Job Finished TableDay TableDays",
        "messages": (
            "STRICT MaxLength PATHS_MAX COLUMNS_MAX SPLITS_MAX ShortText LongText Names "
            "SettingValues CALL_HEADER PROBLEM LINES ARROW_STREAM ROWS_BYTES_MAX ARCHIVE "
            "SERIES_STEP_S SERIES_SPAN_S SERIES_MINUTE_S SERIES_SPAN_MAX_S "
            "SERIES_TABLES_MAX Measured readable_across_releases restore_fields"
        ),
        "planning": (
            "Correction Window PlannedJob Interval Plan PlannerFigures ShadowPlan Backlog "
            "OwedTablet BacklogPoint TabletBacklogHistory RECORDED_TABLETS_MAX "
            "TriggerVerdict TabletTrigger Trigger TableTrigger MaintenanceState "
            "MaintenanceOperation MaintenanceDecision TabletRates TableMaintenance "
            "LakeOrder LakeRunState LakeRun Reads SPECIFICATION_CHARS_MAX NewSimulation "
            "SimulatedCurve SimulatedVariant Simulation"
        ),
        "recovery": (
            "FsckOptions Finding FsckReport GcReport LostTable RebuildReport "
            "BackupOptions Restored RestoreReport"
        ),
        "requests": (
            "HINTS_MAX HintText Plugin Output NewRequest Cancel Keys RequestTablet "
            "Progress Result Request DryTablet DryRun"
        ),
        "rows": (
            "STREAM_PROBLEM failed_stream File FilePage NewFiles Added Buffered FlushedRows Call"
        ),
        "service": (
            "Setting Quarantine TableActivity NotificationTarget StandingCondition "
            "Notifications NotificationTest BufferedTable Status"
        ),
        "tables": (
            "Column NewTable TableChange Filling LakeMirror PublishedLog AttachTable "
            "Table TableSummary Dropped Attached"
        ),
        "tablets": (
            "Tablet TabletPage LiveBytes TabletLoads TabletMap Explanation StoryEntry "
            "Story LoweredWatermark Split Merge Operation StartedOperation Operations"
        ),
    }
    """Module → its public names."""
    _HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

    def __getattr__(name):
        """Load the module of a name when the name is first used."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(f"{__name__}.{_HOMES[name]}")
        value = globals()[name] = getattr(module, name)
        return value
