"""The planner door: files of a tablet in, jobs out. Entry point group `neve.planners`.

A planner is pure: same parameters, same plan; no clock, no I/O, no randomness.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from common.model.file import DataFile
from common.model.group import Group
from common.model.job import Kind
from common.model.plan import Plan
from common.model.table import TableSettings
from common.model.tablet import TabletId


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job under way in the tablet: its kind, and its inputs with their sizes."""

    kind: Kind
    files: tuple[DataFile, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all inputs."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """What a planner may know of the user request that it plans for."""

    request: str
    hints: Mapping[str, str] = field(default_factory=dict)
    boost: int = 0
    output: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanParameters:
    """Everything a planner may look at, for one tablet and one kind."""

    tablet: TabletId
    table_name: str
    kind: Kind
    settings: TableSettings
    options: Mapping[str, object] = field(default_factory=dict)
    """The service's options; they win over settings of the same name."""
    files: Mapping[str, DataFile]
    """All files of the tablet."""
    candidates: tuple[DataFile, ...]
    """Those that may be used now."""
    running: tuple[RunningJob, ...] = ()
    groups: tuple[Group, ...] = (Group(name="default"),)
    """Ascending by `max_bytes`, the unlimited one last; never empty."""
    waiting: bool = False
    """Whether a request waits to select files here."""
    request: RequestFacts | None = None
    """For kind USER: the request that holds the candidates."""
    now_s: float = 0.0


class Planner(Protocol):
    """Breaks the compaction work of a tablet into jobs."""

    def plan(self, parameters: PlanParameters) -> Plan:
        """Return the jobs wanted now and why each other candidate was left.

        Must reach a fixed point: planning and committing repeatedly ends in no jobs.
        """
        ...
