"""Control: the controller's inputs and decisions, recorded values, and reports of readers."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

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
class Control:
    """Inputs of the controller, its decisions with their reasons, and the effect."""

    PICKLED: ClassVar[tuple[str, ...]] = (
        *("controller", "now_s", "decided_at_s", "period_s", "classes", "bytes_s", "slots"),
        *("reasons", "table_weights", "backlog_bytes", "memory_bytes", "arrival_bytes_s"),
        *("rewrite_bytes_s", "slot_bytes_s", "living_slots", "busy_slots", "slots_max"),
        *("latencies_s", "latency_limit_s", "failure", "failures", "history", "deepest_files"),
        "garbage_fraction",
    )
    history: ClassVar[tuple[()]] = ()
    """Earlier releases sent recent decisions here; `Series` has them now."""
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
    deepest_files: int = 0
    """Largest number of overlapping files in a tablet with waiting work. 0: no work waits."""
    garbage_fraction: float = 0.0
    """Known garbage as a fraction of all stored bytes, 0 to 1."""


# ------------------------------------------------------------------------------------------- Series


SERIES_MEASURES = (
    "backlog_bytes",
    "queued_jobs",
    "running_jobs",
    "rewritten_bytes_s",
    "compactors",
    "failures",
)
"""Measures of every line of a series. `failures` counts the attempts that failed during a step, so
its values can be added; all other values are averages over a step. `compactors` of a table are
those with a job of the table, so a sum over tables counts a compactor once per table."""
SERIES_OF_GROUPS = ("compactors_desired", "compactors_starting", "compactors_draining")
"""Further measures of groups, and of the whole service."""
SERIES_OF_CONTROL = (
    *("busy_slots", "system_slots", "limit_bytes_s", "reader_wait_s"),
    *("shares_system", "shares_user", "shares_urgent", "shares_statistics"),
    *("used_system", "used_user", "used_urgent", "used_statistics"),
)
"""Further measures of the whole service: the decisions of the controller and their effect. Null
also stands for `no limit` in `system_slots` and `limit_bytes_s`, and for `no reports of readers` in
`reader_wait_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesLine:
    """The values of a table or a group, or a sum."""

    name: str = ""
    """Name of the table or group; empty for a sum."""
    values: dict[str, list[float | None]]
    """Measure → one value per step, oldest first. Null: nothing was recorded, for example because
    no coordinator ran; draw it as a gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Recorded values over the last hour or day.

    Value `i` of each line belongs to the step that begins at `start_s + i * step_s`. A step of five
    seconds is sampled when it begins; longer steps combine steps of five seconds that have ended.
    """

    now_s: float
    start_s: float
    step_s: float
    count: int
    """Number of steps."""
    total: SeriesLine
    """The whole service; for a caller that may not see every table, the sum of the visible ones."""
    groups: tuple[SeriesLine, ...] = ()
    """All groups by name; empty for a caller that may not see every table."""
    tables: tuple[SeriesLine, ...] = ()
    """The requested tables, or those with the largest backlog, largest first."""
    others: SeriesLine | None = None
    """Sum of the visible tables that are not in `tables`; null if tables were requested by name, or
    none at all."""


# ----------------------------------------------------------------------------- Reports of readers


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
