"""Messages between gateway, coordinator and compactor. Values only; Ray carries them.

The coordinator never imports a compactor nor the other way round: they meet here.
"""

from dataclasses import dataclass, field

from common.model.file import DataFile
from common.model.group import LimitStatus, RateGrant
from common.model.job import Job
from common.model.outcome import AttemptEnd, RowCounts
from common.model.request import Request
from common.model.table import Table
from common.model.tablet import Bounds, Reservation

NAMESPACE = "neve"
"""Ray namespace of the actors. The Spark driver of a compactor has one of its own."""
COORDINATOR_NAME = "neve-coordinator"
GATEWAY_NAME = "neve-gateway"


def compactor_actor_name(compactor: str) -> str:
    """Return the Ray name of a compactor's actor."""
    return f"neve-compactor-{compactor}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeRequest:
    """A compactor with a free slot waits for a job of its group."""

    take: str
    """Random id of this call; a repeated call with the same id gets the same answer."""
    compactor: str
    incarnation: str
    """Random id of the compactor's process: a restarted one starts with nothing held."""
    group: str
    node: str = ""
    wait_max_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideFile:
    """A file of the tablet that is not an input, as far as dropping dead rows needs it."""

    path: str
    key_min: bytes | None
    key_max: bytes | None
    version_min: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A reserved job on its way to a compactor: all that it needs, read at reserve."""

    job: Job
    reservation: Reservation
    table: Table
    bounds: Bounds
    inputs: tuple[DataFile, ...]
    outside: tuple[OutsideFile, ...]
    settled: bytes | None = None
    """Highest version at which tombstones may be dropped; None: none may."""
    purge: bytes | None = None
    request: Request | None = None
    """For kind USER: the request whose transform and output settings are applied."""
    grant_bytes_s: float | None = None
    """What the attempt may move at first, reads and writes together; None: no limit."""
    halvings: int = 0
    """How often attempts at this job ran out of memory: each halves what a task may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptProgress:
    """How far an attempt is; bytes and rows only grow."""

    attempt: str
    state: str
    """`preparing`, `rewriting`, `verifying` or `committing`."""
    fraction: float = 0.0
    bytes_done: int = 0
    bytes_total: int = 0
    rows_done: int = 0
    since_s: float = 0.0
    volume: str = "default"
    granted_bytes_s: float | None = None
    """The grant that the compactor applies now; None: no limit."""
    moved_bytes: int = 0
    """Read and written so far, as `docs/operations.md` counts them."""
    waited_s: float = 0.0
    """How long tasks have waited for the grant, together."""
    synced_bytes: int = 0
    """Of large writes, made durable in `sync_s`."""
    sync_s: float = 0.0
    quiet_s: float = 0.0
    """How long ago the compactor saw its last progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A compactor is alive; these are the attempts that it holds."""

    compactor: str
    incarnation: str
    group: str
    node: str
    slots: int
    attempts: tuple[AttemptProgress, ...] = ()
    draining: bool = False
    engine_pid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    """What the coordinator wants of a compactor."""

    coordinator: str
    cancel: tuple[str, ...] = ()
    drain: bool = False
    grants: tuple[RateGrant, ...] = ()
    """Of attempts that shall apply others than their last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReport:
    """How an attempt ended, told by its compactor after the store has been told."""

    compactor: str
    attempt: str
    end: AttemptEnd
    error_class: str = ""
    cause: str = ""
    counts: RowCounts = field(default_factory=RowCounts)
    outputs: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    moved_bytes: int = 0
    waited_s: float = 0.0
    halvings: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A line of the queue listing."""

    job: Job
    place: int
    age_s: float
    effective_priority: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAttempt:
    """A line of the jobs listing."""

    job_id: str
    attempt: str
    tablet: str
    table_name: str
    kind: str
    group: str
    compactor: str
    inputs: int
    input_bytes: int
    since_s: float
    progress: AttemptProgress | None = None
    reason: str = ""
    throttled: bool = False
    """Whether it had to wait for its grant lately."""
    quiet_s: float = 0.0
    """How long ago it made progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactorStatus:
    """A line of the compactor listing."""

    compactor: str
    group: str
    node: str
    slots: int
    busy: int
    heard_ago_s: float
    draining: bool
    failures: int = 0
    backing_off_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """Counters of one compaction group."""

    group: str
    queued: int
    queued_bytes: int
    """Memory of the queue, against its bound."""
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
    """How long ago the attempt that has stood still longest made progress."""


@dataclass(frozen=True, slots=True)
class MetricValue:
    """One value of a metric of `common.telemetry`."""

    metric: str
    value: float
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStatus:
    """The coordinator's own view, for status pages and metrics."""

    coordinator: str
    started_s: float
    now_s: float
    groups: tuple[GroupStatus, ...]
    compactors: tuple[CompactorStatus, ...]
    tables: int
    tablets_known: int
    committed: int
    failed: int
    released: int
    conflicts: int
    quarantined: int
    turns: int
    stalled: int = 0
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """What keeps jobs from running, a sentence each."""
    store_warnings: tuple[str, ...] = ()
    """What is wrong with the store itself, a sentence each."""
    scopes: tuple[LimitStatus, ...] = ()
    figures: tuple[MetricValue, ...] = ()
    """What the parts round the core count: requests, selectors, scans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a tablet is as it is: one sentence per rule that applies, most telling first."""

    tablet: str
    table_name: str
    sentences: tuple[str, ...]
    left: dict[str, str] = field(default_factory=dict)
    """Path → why no job takes it."""
    queued: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
