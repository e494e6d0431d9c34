"""Control: what the controller reads and decides, and what readers report."""

from dataclasses import dataclass, field
from typing import Annotated

from neve.api.messages import STRICT, MaxLength, ShortText, readable_across_releases


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class ClassControl:
    """A class of work: the shares that it has, and what it was handed."""

    name: str
    """`system`, `user`, `urgent` or `statistics`."""
    shares: float
    granted: float
    """Part of all shares, 0 to 1. While every class has jobs, it is the part of bytes."""
    used: float
    """Part of the bytes that were handed out in the last minute, 0 to 1."""
    used_bytes: int
    """In the last minute."""
    total_bytes: int
    """Since the coordinator was started."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPoint:
    """A moment of the history, for plots."""

    at_s: float
    backlog_bytes: float
    shares: dict[str, float]
    used: dict[str, float]
    """Class → part of the bytes that were handed out in the minute before."""
    bytes_s: float | None = None
    slots: int | None = None
    busy_slots: int = 0
    latency_s: float | None = None


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What the controller reads, what it has decided and why, and what became of it."""

    controller: str
    now_s: float
    decided_at_s: float | None
    period_s: float
    classes: tuple[ClassControl, ...]
    bytes_s: float | None
    """Bytes per second that all rewrites together may move. None: no limit."""
    slots: int | None
    """Slots that system jobs and statistics may have in all. None: as many as there are."""
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
    """Why the last answer of the controller does not count. Empty: it does."""
    failures: int = 0
    history: tuple[ControlPoint, ...] = ()
    """Oldest first, an hour at most."""
    deepest_files: int = 0
    """Files that overlap in the tablet that has the most of those with work. 0: no work waits."""
    garbage_fraction: float = 0.0
    """Garbage of all stored bytes, 0 to 1, as far as it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReads:
    """What readers of one table have seen since their last report."""

    __pydantic_config__ = STRICT

    reads: int
    latency_s: float
    """Average wait of these reads in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReport:
    """How long readers have waited, by table."""

    __pydantic_config__ = STRICT

    tables: Annotated[dict[ShortText, TableReads], MaxLength(1000)] = field(default_factory=dict)
    """Name of a table → its reads."""
