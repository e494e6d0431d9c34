"""Compactors and their groups: status, scaling, limits on bytes per second."""

from dataclasses import dataclass

from neve.api.messages import ShortText, readable_across_releases


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Compactor:
    """A compactor as the coordinator sees it."""

    compactor: str
    group: str
    node: str
    slots: int
    busy: int
    heard_ago_s: float
    draining: bool = False
    failures: int = 0
    backing_off_s: float = 0.0
    ready: bool = True
    """Whether the compactor takes jobs. Before that, its Spark application starts."""
    start_problem: str = ""
    """Why its Spark application did not start at the last try."""
    edition: str = ""
    """Name of the settings and the release that it was started with."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingDecision:
    """A change in the number of compactors of a group."""

    at_s: float
    desired: int
    """Number of compactors that the group was meant to have."""
    reason: str
    started: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()
    """Compactors that did not come up."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupScaling:
    """How many compactors a group has and is meant to have, and why."""

    least: int
    most: int
    set_to: int | None
    """Number that an operator has set; None: the service decides."""
    desired: int
    starting: int
    draining: int
    reason: str
    blocked: str = ""
    """Why the group cannot grow; empty: it can."""
    missing: str = ""
    """What compactors of the group need and no node has; empty: nothing, or it is not known."""
    unobtainable: bool = False
    """Whether no node type that Ray knows of can give what is missing."""
    starts_failed: int = 0
    """Compactors that did not come up since the coordinator started."""
    decisions: tuple[ScalingDecision, ...] = ()
    """The last changes, newest last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleWish:
    """The number of compactors that a group shall have."""

    compactors: int


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A compaction group: one queue and the compactors that serve it."""

    group: str
    queued: int
    queued_bytes: int
    """Memory of the queue."""
    queued_cost_bytes: int
    running: int
    compactors: int
    waiting_takes: int
    accepted: int
    rejected: int
    evicted: int
    oldest_age_s: float
    paused: bool = False
    longest_s: float = 0.0
    """How long the attempt that began first has run."""
    quiet_s: float = 0.0
    """Time since the last progress of the attempt that has stood still longest."""
    queued_input_bytes: int = 0
    """Size of the files that the queued jobs read."""
    running_left_bytes: int = 0
    """Input of running attempts that is not rewritten, as far as the compactors have reported."""
    committed_bytes: int = 0
    """Input of committed attempts since the coordinator was started."""
    deferred: int = 0
    """Tablets that are planned again later because the queue was full."""
    scaling: GroupScaling | None = None
    """None: the service does not start compactors of this group."""
    full_s: float = 0.0
    """How long the queue has dropped jobs without getting half empty; 0: it has room."""
    overloaded: bool = False
    """Whether the queue has been full for longer than `coordinator.overload_after_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitWish:
    """A limit to set."""

    limit: int | ShortText
    """Bytes per second, or a size such as `50MB`; 0: no limit."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Limit of a compaction group or volume, and the bytes that its jobs read and write."""

    kind: str
    """`group` or `volume`; `control`: all rewrites, by the controller."""
    name: str
    limit_bytes_s: int | None
    """Limit in bytes per second; None: no limit."""
    is_default: bool = True
    """Whether the limit comes from the settings of the service."""
    rate_bytes_s: int | None = None
    """The limit, or less while the storage is slow."""
    granted_bytes_s: float | None = None
    """Sum of the grants of the jobs; None: a job has no limit."""
    attempts: int = 0
    throttled: int = 0
    """Number of jobs that had to wait lately."""
    moved_bytes: int = 0
    """Bytes read and written since the coordinator was started."""
    waited_s: float = 0.0
    """Seconds that tasks have waited since the coordinator was started."""
