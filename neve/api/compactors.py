"""Compactors and their groups: status, scaling, limits on bytes per second."""

from dataclasses import dataclass
from typing import Annotated

from neve.api.messages import Measured, ShortText, readable_across_releases


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
    task_memory: str = ""
    """Memory of each of its Spark tasks, and why it is that much."""
    problems: tuple[str, ...] = ()
    """What keeps jobs from running on it, one sentence each; the warnings of a status, too."""


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
    """Compactors that did not start."""


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
    """Resources that compactors of the group need and no node has; empty: none, or unknown."""
    unobtainable: bool = False
    """Whether no node type known to Ray can provide the missing resources."""
    starts_failed: int = 0
    """Number of compactors that did not start, since the start of the coordinator."""
    decisions: tuple[ScalingDecision, ...] = ()
    """The last changes, newest last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleWish:
    """Requested number of compactors of a group."""

    compactors: int


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A compaction group: one queue and the compactors that serve it."""

    group: str
    queued: Annotated[int, Measured("neve_queue_jobs", "Jobs in the queue.")]
    queued_bytes: Annotated[int, Measured("neve_queue_bytes", "Memory that the queue uses.")]
    queued_cost_bytes: Annotated[
        int, Measured("neve_queue_cost_bytes", "Bytes that the queued jobs would read and write.")
    ]
    running: Annotated[int, Measured("neve_jobs_running", "Running attempts.")]
    compactors: Annotated[int, Measured("neve_compactors", "Compactors that send heartbeats.")]
    waiting_takes: int
    accepted: Annotated[int, Measured("neve_queue_accepted_total", "Jobs accepted into the queue.")]
    rejected: Annotated[
        int, Measured("neve_queue_rejected_total", "Jobs that a full queue refused.")
    ]
    evicted: Annotated[
        int,
        Measured(
            "neve_queue_evicted_total", "Jobs that a full queue dropped in favour of better ones."
        ),
    ]
    oldest_age_s: Annotated[
        float, Measured("neve_queue_oldest_seconds", "Age of the oldest queued job.")
    ]
    paused: bool = False
    longest_s: Annotated[
        float, Measured("neve_jobs_longest_seconds", "Running time of the oldest running attempt.")
    ] = 0.0
    quiet_s: Annotated[
        float,
        Measured(
            "neve_jobs_quiet_seconds", "Longest time since a running attempt last made progress."
        ),
    ] = 0.0
    queued_input_bytes: int = 0
    """Size of the files that the queued jobs read."""
    running_left_bytes: int = 0
    """Input bytes of running attempts that are not rewritten, by the compactors' last reports."""
    committed_bytes: int = 0
    """Input of committed attempts since the coordinator was started."""
    deferred: int = 0
    """Tablets that are planned again later because the queue was full."""
    scaling: GroupScaling | None = None
    """None: the service does not start compactors of this group."""
    full_s: Annotated[
        float,
        Measured(
            "neve_queue_full_seconds",
            "Time since the queue began to drop jobs without draining to half; 0: it has room.",
        ),
    ] = 0.0
    overloaded: bool = False
    """Whether the queue has been full for longer than `coordinator.overload_after_s`."""
    problems: tuple[str, ...] = ()
    """What keeps its jobs from running, one sentence each; the warnings of a status, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitWish:
    """A limit to set."""

    limit: int | ShortText
    """Bytes per second, or a size such as `50MB`; 0: no limit."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Limit of a compaction group or volume, and the traffic of its jobs."""

    kind: str
    """`group` or `volume`; `control`: the controller's limit of all rewrites."""
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
    """Number of jobs that recently had to wait."""
    moved_bytes: int = 0
    """Bytes read and written since the coordinator was started."""
    waited_s: float = 0.0
    """Total seconds that tasks have waited since the coordinator was started."""
    foreground_bytes: int = 0
    """Part of `moved_bytes` that reads and appends through gateways have moved; 0 unless
    `control.foreground_shares` is set."""
