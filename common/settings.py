"""Every setting of the service with its default: frozen values, one section per part.

Pure: `common.config` reads file, environment and flags into these. A field's
metadata carries the sentence that `docs/reference/settings.md` prints; a test keeps
the two alike. Units stand last in every name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from common.errors import ConfigError, RequestError
from common.model.group import Group, Service
from common.model.limit import checked_limit
from common.model.priority import AGEING_PER_S


def _setting(default: Any, doc: str, *, secret: bool = False) -> Any:
    """Declare a setting: its default and what it is for."""
    return field(default=default, metadata={"doc": doc, "secret": secret})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """How the metadata store is reached."""

    url: str = _setting(
        "redis://127.0.0.1:6389/0", "URL of the Redis that holds the truth.", secret=True
    )
    connections_max: int = _setting(32, "Most connections that one process opens to Redis.")
    tries_max: int = _setting(16, "Tries of one change that keeps losing races before it fails.")
    wait_replicas: int = _setting(
        0, "Replicas that must have an add before it is acknowledged (Redis WAIT); 0: none."
    )
    timeout_s: float = _setting(10.0, "Longest wait for one answer of Redis.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """How work is found, ordered, handed out and given up."""

    tick_s: float = _setting(0.25, "How often the coordinator looks at its clocks.")
    full_scan_interval_s: float = _setting(60.0, "How often every tablet's record is looked at.")
    full_scan_tasks: int = _setting(
        2, "Ray tasks in which a full scan looks at a large table; 0: the coordinator does it."
    )
    queue_bytes_max: int = _setting(64 * 1024**2, "Memory of one group's queue.")
    queue_count_max: int = _setting(200_000, "Jobs in one group's queue.")
    ageing_per_s: float = _setting(
        AGEING_PER_S, "Priority that a queued job gains per second over one offered later."
    )
    silence_max_s: float = _setting(
        30.0, "A compactor unheard of for so long is dead; what it held is released."
    )
    adopt_grace_s: float = _setting(
        20.0, "After a restart, how long running attempts have to report before release."
    )
    lost_answer_beats: int = _setting(
        3, "Heartbeats without an attempt handed out before it counts as lost."
    )
    backoff_base_s: float = _setting(2.0, "First pause after a failure; it doubles.")
    backoff_max_s: float = _setting(300.0, "Longest pause after failures.")
    quarantine_failures: int = _setting(
        5, "Failures in a row of the same files after which a tablet is quarantined."
    )
    running_max: int = _setting(10_000, "Jobs of one group under way at a time.")
    running_bytes_max: int = _setting(
        1024**5,
        "Input bytes of all jobs of one group under way at a time; a larger job runs alone.",
    )
    volume_running_max: int = _setting(0, "Jobs of one volume under way at a time; 0: no limit.")
    deferral_max_s: float = _setting(
        300.0, "A job shed from a full queue is planned again after this long at the latest."
    )
    operation_max_s: float = _setting(
        3600.0,
        "A split or merge that stands still after so long is abandoned, and none begins by size"
        " in that tablet for as long.",
    )
    operations_max: int = _setting(
        4, "Splits and merges begin by size while fewer than so many are under way."
    )
    garbage_grace_s: float = _setting(
        900.0, "How long a replaced file is kept for readers that still list it."
    )
    collect_interval_s: float = _setting(30.0, "How often replaced files are looked at.")
    clock_skew_max_s: float = _setting(5.0, "Most that two clocks of the deployment differ.")
    group_limit_bytes_s: int = _setting(
        0,
        "Bytes per second that the rewrites of a compaction group may read and write together, if"
        " `neve group limit` has not said otherwise; 0: no limit.",
    )
    volume_limit_bytes_s: int = _setting(
        0, "The same of a volume, if `neve volume limit` has not said otherwise; 0: no limit."
    )
    volume_least_bytes_s: int = _setting(
        0, "A slow volume's limit falls as far as this; 0: it does not follow latency."
    )
    volume_latency_s: float = _setting(
        0.02, "Time to make a MiB durable from which on a volume counts as slow."
    )

    def __post_init__(self) -> None:
        """Refuse limits under which nothing would move."""
        for name in ("group_limit_bytes_s", "volume_limit_bytes_s", "volume_least_bytes_s"):
            try:
                checked_limit(getattr(self, name), f"coordinator.{name}")
            except RequestError as error:
                raise ConfigError(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactorSettings:
    """How jobs are run."""

    group: str = _setting("default", "The compaction group that this compactor serves.")
    slots: int = _setting(2, "Jobs that one compactor runs at a time.")
    beat_interval_s: float = _setting(2.0, "How often a compactor says that it lives.")
    take_wait_max_s: float = _setting(20.0, "How long a compactor waits for a job per call.")
    executor_cores: int = _setting(2, "Spark tasks at a time in a compactor's executor.")
    executor_memory: str = _setting("1g", "Heap of a compactor's Spark executor.")
    driver_memory: str = _setting("512m", "Heap of a compactor's Spark driver.")
    task_memory: str = _setting(
        "768m",
        "Memory that the Python process of one Spark task may have: jobs are cut so that tasks fit,"
        " and it is asked of Ray besides the heap.",
    )
    task_memory_max: str = _setting(
        "1536m",
        "A task's process that has more is ended, and its job tried again in smaller pieces;"
        " 0: none is.",
    )
    engine: str = _setting("raydp", "Where Spark runs: `raydp`, or `local` without executors.")
    start_timeout_s: float = _setting(300.0, "Longest start of the Spark application.")
    drain_timeout_s: float = _setting(600.0, "Longest wait for running jobs at a shutdown.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """The door for users."""

    host: str = _setting("127.0.0.1", "Address that the gateway listens on.")
    port: int = _setting(8642, "Port that the gateway listens on; 0: any free one.")
    token: str = _setting("", "Bearer token that callers must send.", secret=True)
    body_bytes_max: int = _setting(256 * 1024**2, "Largest request body.")
    footers_at_once: int = _setting(16, "File footers read at a time by one add.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All sections."""

    store: StoreSettings = field(default_factory=StoreSettings)
    coordinator: CoordinatorSettings = field(default_factory=CoordinatorSettings)
    compactor: CompactorSettings = field(default_factory=CompactorSettings)
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    services: Mapping[str, Service] = field(
        default_factory=lambda: {"default": Service(name="default")}
    )
    """Services by name; each: planner, its options, and the groups that it may use."""
    dispatcher: str = "simple"
    """The dispatcher plug-in that chooses a table's service."""


def checked_groups(service: str, groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """Return a service's groups ascending by size, the unlimited one last.

    Args:
        service: Name of the service, for messages.
        groups: As they were written.

    Raises:
        ConfigError: No group, a name twice, a size twice or not positive, two unlimited.
    """
    problem = _group_problem(groups)
    if problem is not None:
        message = f"service {service!r}: {problem}"
        raise ConfigError(message)
    return tuple(sorted(groups, key=lambda group: (group.max_bytes is None, group.max_bytes or 0)))


def _group_problem(groups: tuple[Group, ...]) -> str | None:
    names = [group.name for group in groups]
    sizes = [group.max_bytes for group in groups]
    if not groups:
        return "no groups; name at least one"
    for name in names:
        if names.count(name) > 1:
            return f"group {name!r} is named {names.count(name)} times; name each group once"
    for size in sizes:
        if size is not None and size <= 0:
            return f"max_size {size} is not positive; leave it out for a group without limit"
        if sizes.count(size) > 1:
            what = "no max_size" if size is None else f"max_size {size}"
            return f"{sizes.count(size)} groups have {what}; sizes must differ"
    return None
