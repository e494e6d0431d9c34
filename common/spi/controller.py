"""The controller door: how much compaction to do now. Group `neve.controllers`.

A controller reads how much is still to be rewritten, how fast that goes and how readers fare, and
answers with shares of the classes of work, bytes per second and slots. ScyllaDB's compaction
controller is where the idea comes from: a backlog that grows gets more, one that is done leaves
the machine to the foreground.

A controller is pure: the same readings give the same decision, so that a service, a test and a
simulation agree. Its own last decision is among its readings. What it decides passes through one
guard (`coordinator.core.control`): it bounds how fast shares move, lowers the rate while readers
wait for too long, and never below what keeps the backlog bounded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

SHARES_FULL = 1000.0
"""Shares of the system class at which compaction may use all that there is, as in ScyllaDB."""


class ShareClass(StrEnum):
    """The classes of work that shares are between. Every job is of one."""

    SYSTEM = "system"
    """The service tidies up for its own reasons."""
    USER = "user"
    """Somebody asked for it and waits."""
    URGENT = "urgent"
    """A tablet has more files than its table allows or is being split, or somebody asked for the
    job with the largest boost."""
    STATISTICS = "statistics"
    """Nothing is rewritten: what is live in a tablet is counted."""


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
    """How long readers wait, against what they may wait."""

    latency_s: float
    limit_s: float

    @property
    def exceeds(self) -> bool:
        """Return whether readers wait for too long."""
        return self.latency_s > self.limit_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlDecision:
    """How much compaction there shall be until the next decision."""

    shares: Mapping[ShareClass, float]
    """Class → shares, above 0. Work of a class that waits gets bytes in proportion to them."""
    table_weights: Mapping[str, float] = field(default_factory=dict)
    """Table → factor of its weight among tables of its class; of one that is not named: 1."""
    bytes_s: float | None = None
    """Bytes that all rewrites together may read and write per second; None: no limit."""
    slots: int | None = None
    """Slots that compaction shall have in all: the cap of jobs of the classes `system` and
    `statistics`, and the target of the autoscaler. None: as many as there are, and the autoscaler
    goes by its own rules."""
    reasons: tuple[str, ...] = ()
    """Why, a sentence each, most important first."""
    for_readers: bool = False
    """Whether `bytes_s` is lower than the controller wanted, because readers waited. The guard sets
    it; a controller leaves it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlReadings:
    """What a controller may know. Times in seconds, by one clock that never goes back."""

    time_s: float
    period_s: float
    """Between two decisions, as it is meant."""
    backlog_bytes: float
    """Bytes still to be rewritten in all tables; infinite or not a number: unknown."""
    table_backlogs: Mapping[str, float] = field(default_factory=dict)
    """Table → its part of `backlog_bytes`; a table at rest may be missing."""
    memory_bytes: int = 1
    """What the backlog is normalised by: the memory of all executors, as far as is known."""
    rewrite_bytes_s: float | None = None
    """Input bytes that are rewritten per second now; None: not known."""
    slot_bytes_s: float | None = None
    """Input bytes that one busy slot rewrites per second, as measured; None: not known."""
    arrival_bytes_s: float | None = None
    """Bytes by which the backlog grows per second, before rewrites take from it; None: unknown."""
    foreground: ForegroundLatency | None = None
    """None: no reader has reported lately, or there is no limit."""
    slots: int = 0
    """Slots of the compactors that serve."""
    busy_slots: int = 0
    """Those with a job."""
    slots_max: int = 0
    """Slots of all compactors that may ever run by the settings."""
    bytes_s_max: float | None = None
    """The most that rewrites may ever move per second (`control.bytes_s_max`); None: no limit."""
    base_shares: Mapping[ShareClass, float] = field(default_factory=lambda: DEFAULT_SHARES)
    """Shares by the settings; a controller changes those that it controls, and keeps the rest."""
    queued_jobs: int = 0
    deepest_files: int = 0
    """Files that overlap in the tablet that has the most of those with work; 0: no work waits."""
    garbage_fraction: float = 0.0
    """Bytes that no reader needs any more, of all bytes; 0: none, or not known."""
    previous: ControlDecision | None = None
    """The decision in force; None: this is the first."""


class Controller(Protocol):
    """Decides how much compaction there is. Never raises for any readings."""

    name: str

    def decide(self, readings: ControlReadings) -> ControlDecision:
        """Return what shall hold until the next decision."""
        ...


class ControllerPlugin(Protocol):
    """Makes controllers. `option_names` is as for planners."""

    option_names: frozenset[str]

    def controller(self, options: Mapping[str, object]) -> Controller:
        """Return a controller.

        Args:
            options: Of the section `control.options` of the settings.

        Raises:
            ConfigError: An option is unknown or refused.
        """
        ...
