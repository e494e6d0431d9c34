"""The public names for packages that provide a planner or another plug-in.

    from neve.plugins import Plan, PlannedJob, PlanParameters

These names are stable; the modules that define them may move. Each kind of plug-in is a protocol
with one parameter object; see `docs/plugins.md`.
"""

from common.errors import ConfigError, PluginError, RequestError
from common.model.file import ChunkGrid, DataFile
from common.model.group import Group
from common.model.job import IntervalState, JobAction, Kind, Plan, PlannedInterval, PlannedJob
from common.model.request import OutputSpec
from common.model.table import Column, Table, TableSettings
from common.model.tablet import TabletId
from common.spi.controller import (
    BacklogTracker,
    ControlDecision,
    Controller,
    ControllerPlugin,
    ControlReadings,
    ForegroundLatency,
    PartialOutput,
    ShareClass,
    TrackerPlugin,
    WorkUnderWay,
)
from common.spi.options import of_table, option, option_names, read_options, settings_of
from common.spi.planner import (
    DELETED,
    Chosen,
    DeclaredPlanner,
    Dispatcher,
    DispatchParameters,
    OutputConfigurer,
    OutputParameters,
    Planner,
    PlanParameters,
    RequestFacts,
    RowTransform,
    RunningJob,
    Selector,
    SelectorParameters,
    TransformContext,
)

__all__ = [
    "DELETED",
    "BacklogTracker",
    "Chosen",
    "ChunkGrid",
    "Column",
    "ConfigError",
    "ControlDecision",
    "ControlReadings",
    "Controller",
    "ControllerPlugin",
    "DataFile",
    "DeclaredPlanner",
    "DispatchParameters",
    "Dispatcher",
    "ForegroundLatency",
    "Group",
    "IntervalState",
    "JobAction",
    "Kind",
    "OutputConfigurer",
    "OutputParameters",
    "OutputSpec",
    "PartialOutput",
    "Plan",
    "PlanParameters",
    "PlannedInterval",
    "PlannedJob",
    "Planner",
    "PluginError",
    "RequestError",
    "RequestFacts",
    "RowTransform",
    "RunningJob",
    "Selector",
    "SelectorParameters",
    "ShareClass",
    "Table",
    "TableSettings",
    "TabletId",
    "TrackerPlugin",
    "TransformContext",
    "WorkUnderWay",
    "of_table",
    "option",
    "option_names",
    "read_options",
    "settings_of",
]
