"""Control: inputs and decisions of the controller, and reports of readers."""

from dataclasses import dataclass, field
from typing import Annotated

from neve.api.messages import STRICT, MaxLength, ShortText, readable_across_releases


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class ClassControl:
    """A class of work: its shares, and the bytes granted to it."""

    name: str
    """`system`, `user`, `urgent` or `statistics`."""
    shares: float
    granted: float
    """Fraction of all shares, 0 to 1; also the fraction of bytes while every class has jobs."""
    used: float
    """Fraction of the bytes granted in the last minute, 0 to 1."""
    used_bytes: int
    """Bytes granted in the last minute."""
    total_bytes: int
    """Bytes granted since the coordinator was started."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPoint:
    """A point of the history, for plots."""

    at_s: float
    backlog_bytes: float
    shares: dict[str, float]
    used: dict[str, float]
    """Class → fraction of the bytes granted in the preceding minute."""
    bytes_s: float | None = None
    slots: int | None = None
    busy_slots: int = 0
    latency_s: float | None = None


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Inputs of the controller, its decisions with their reasons, and the effect."""

    controller: str
    now_s: float
    decided_at_s: float | None
    period_s: float
    classes: tuple[ClassControl, ...]
    bytes_s: float | None
    """Bytes per second that all rewrites together may move. None: no limit."""
    slots: int | None
    """Slots that system jobs and statistics may use together. None: no limit."""
    reasons: tuple[str, ...]
    table_weights: dict[str, float]
    """Table → factor of its weight, where it is not 1."""
    backlog_bytes: float
    memory_bytes: int
    arrival_bytes_s: float | None
    rewrite_bytes_s: float | None
    slot_bytes_s: float | None
    living_slots: int
    busy_slots: int
    slots_max: int
    latencies_s: dict[str, float]
    """Table → average wait of its readers in seconds."""
    latency_limit_s: float | None
    failure: str = ""
    """Why the last decision of the controller was rejected. Empty: it was accepted."""
    failures: int = 0
    history: tuple[ControlPoint, ...] = ()
    """Points of up to the last hour, oldest first."""
    deepest_files: int = 0
    """Largest number of overlapping files in a tablet with waiting work. 0: no work waits."""
    garbage_fraction: float = 0.0
    """Known garbage as a fraction of all stored bytes, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReads:
    """Report of the readers of one table since their last report."""

    __pydantic_config__ = STRICT

    reads: int
    latency_s: float
    """Average latency of these reads in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReport:
    """Read latencies by table."""

    __pydantic_config__ = STRICT

    tables: Annotated[dict[ShortText, TableReads], MaxLength(1000)] = field(default_factory=dict)
    """Name of a table → its reads."""
