"""The interfaces of controllers, and of trackers, which estimate the backlog.

The controller interface: how much compaction to do now. Group `neve.controllers`.

A controller reads the backlog, the rate of rewriting and the wait of readers. It returns shares
for the classes of work, bytes per second and slots. The idea is that of ScyllaDB's compaction
controller: a growing backlog gets more resources, and a finished one leaves the machine to the
foreground.

A controller is pure: the same readings give the same decision, so a service, a test and a
simulation agree. Its own last decision is part of its readings. A guard
(`coordinator.core.control`) limits every decision: it bounds how fast shares move and lowers the
rate while readers wait too long, but never below the rate that keeps the backlog bounded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from common.model.file import DataFile
from common.model.table import TableSettings

SHARES_FULL = 1000.0
"""Shares of the system class at which compaction may use the whole machine, as in ScyllaDB."""

SHARES_MIN, SHARES_MAX = 1.0, 1_000_000.0
"""Bounds of the shares of any class."""


class ShareClass(StrEnum):
    """The classes of work that get shares. Every job belongs to one."""

    SYSTEM = "system"
    """The service's own maintenance."""
    USER = "user"
    """A user requested the job and waits for it."""
    URGENT = "urgent"
    """The tablet has more files than its table allows or is being split, or a user requested the
    job with the largest boost."""
    STATISTICS = "statistics"
    """An analysis: the live bytes of a tablet are counted, and nothing is rewritten."""


DEFAULT_SHARES: Mapping[ShareClass, float] = MappingProxyType(
    {
        ShareClass.SYSTEM: 100.0,
        ShareClass.USER: 1_000.0,
        ShareClass.URGENT: 10_000.0,
        ShareClass.STATISTICS: 10.0,
    }
)
"""Each class has ten times the shares of the next lower one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForegroundLatency:
    """The average wait of readers, and its limit."""

    latency_s: float
    limit_s: float

    @property
    def exceeds(self) -> bool:
        """Return whether readers wait longer than the limit."""
        return self.latency_s > self.limit_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlDecision:
    """How much compaction may run until the next decision."""

    shares: Mapping[ShareClass, float]
    """Class → shares, above 0. Classes with waiting work get bytes in proportion."""
    table_weights: Mapping[str, float] = field(default_factory=dict)
    """Table → factor for its weight among tables of its class; default 1."""
    bytes_s: float | None = None
    """Bytes that all rewrites together may read and write per second; None: only the operator's
    limit, `ControlReadings.bytes_s_max`, holds."""
    slots: int | None = None
    """Slots for compaction: the limit on jobs of the classes `system` and `statistics`, and the
    target of the autoscaler. None: all slots, and the autoscaler uses its own rules."""
    reasons: tuple[str, ...] = ()
    """Reasons, a sentence each, most important first."""
    for_readers: bool = False
    """Whether `bytes_s` was lowered below the controller's decision because readers waited. Set by
    the guard, not by controllers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlReadings:
    """The inputs of a controller. Times in seconds, from one monotonic clock."""

    time_s: float
    period_s: float
    """Nominal interval between two decisions."""
    backlog_bytes: float
    """Bytes still to be rewritten in all tables; infinite or NaN: unknown."""
    table_backlogs: Mapping[str, float] = field(default_factory=dict)
    """Table → its part of `backlog_bytes`; a table at rest may be missing."""
    memory_bytes: int = 1
    """Divisor of the backlog: the memory of all executors, as far as it is known."""
    rewrite_bytes_s: float | None = None
    """Input bytes that are rewritten per second now; None: unknown."""
    slot_bytes_s: float | None = None
    """Measured input bytes per second of one busy slot; None: unknown."""
    arrival_bytes_s: float | None = None
    """Growth of the backlog per second, without the effect of rewrites; None: unknown."""
    foreground: ForegroundLatency | None = None
    """None: no recent reports from readers, or no limit."""
    slots: int = 0
    """Slots of the compactors that are up."""
    busy_slots: int = 0
    """Slots that run a job."""
    slots_max: int = 0
    """Slots of all compactors that the settings allow."""
    bytes_s_max: float | None = None
    """Upper bound on the bytes per second of rewrites (`control.bytes_s_max`); None: no limit."""
    base_shares: Mapping[ShareClass, float] = field(default_factory=lambda: DEFAULT_SHARES)
    """Shares from the settings; a controller changes those that it controls."""
    queued_jobs: int = 0
    deepest_files: int = 0
    """Largest number of overlapping files in a tablet with waiting work; 0: no work waits."""
    garbage_fraction: float = 0.0
    """Fraction of all bytes that readers no longer need; 0: none, or unknown."""
    previous: ControlDecision | None = None
    """The decision in force; None: this is the first."""


class Controller(Protocol):
    """Decides how much compaction runs. Never raises, whatever the readings."""

    name: str

    def decide(self, readings: ControlReadings) -> ControlDecision:
        """Return the decision until the next call."""
        ...


class ControllerPlugin(Protocol):
    """Makes controllers. `option_names` is as for planners."""

    option_names: frozenset[str]

    def controller(self, options: Mapping[str, object]) -> Controller:
        """Return a controller.

        Args:
            options: Options from the setting `control.options`.

        Raises:
            ConfigError: An option is unknown or refused.
        """
        ...


# ------------------------------------------------------------------------------------------ Tracker
# The tracker interface: bytes still to be rewritten in a tablet. Group `neve.trackers`.
#
# The backlog is the number of bytes that a planner will have rewritten before it is done. Each
# family of planners has its own estimate, taken from ScyllaDB's controller. A tracker holds one
# tablet. Its caller reports files that are added and removed, and may read the backlog at any time.


LEVEL_TAG = "level"
"""Tag of files with their level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialOutput:
    """A file that a running job or a writer has not finished."""

    size_bytes: int
    """Bytes written so far."""
    time_max_s: float = 0.0
    """Latest time of its rows, for trackers that work by windows."""
    level: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkUnderWay:
    """Progress of a tablet's jobs. It changes between reads while the files stay the same."""

    read_bytes: Mapping[str, int] = field(default_factory=dict)
    """Path of an input → bytes of it that are rewritten. Values are limited to the file's size;
    paths that are not files of the tablet are ignored."""
    outputs: tuple[PartialOutput, ...] = ()
    now_s: float = 0.0


class BacklogTracker(Protocol):
    """The backlog of one tablet."""

    def add(self, file: DataFile) -> None:
        """Add a file, or replace the file with the same path."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; an unknown path is ignored."""
        ...

    def backlog_bytes(self, work: WorkUnderWay) -> float:
        """Return the bytes still to be rewritten, never below 0.

        The cost is proportional to the number of unfinished files, unless files were added or
        removed.
        """
        ...


class TrackerPlugin(Protocol):
    """Creates trackers. `option_names` and `setting_names` are as for planners."""

    option_names: frozenset[str]
    setting_names: frozenset[str]

    def tracker(self, settings: TableSettings, options: Mapping[str, object]) -> BacklogTracker:
        """Return a tracker for a tablet without files.

        Raises:
            ConfigError: An option is unknown or refused.
        """
        ...
