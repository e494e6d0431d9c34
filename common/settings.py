"""Every setting of the service with its default: frozen values, one section per part.

Pure: `common.config` reads file, environment and flags into these classes. A field's metadata
carries the sentence for `docs/reference/settings.md` and the rule for its values
(`common.documents`). A test keeps page and code equal. Names end with the unit.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from common.access_settings import AccessSettings
from common.control_settings import (
    CatalogSettings,
    ClusterSettings,
    ControlSettings,
    IngestSettings,
    NotifySettings,
)
from common.documents import FieldKind, FieldRule, check_section, check_value, setting, size_setting
from common.errors import ConfigError, RequestError, SettingError
from common.log_events import LogLevel
from common.model.group import LIMIT_BYTES_S_MIN, Service
from common.model.job import AGEING_PER_S, FAIR_BAND
from common.windows import EXEMPTIONS, check_windows
from neve.api.messages import readable_across_releases

HEAP_BYTES_MIN = 450 * 1024**2
"""Spark does not start with a smaller heap."""
AUTO = "auto"
_TASK_MEMORY: dict[str, Any] = {"kind": FieldKind.MEMORY, "least": 300 * 1024**2, "word": AUTO}
"""`auto` is chosen when the service starts. The libraries of a task fit in no smaller limit."""
COMPACTORS_MAX, EXECUTORS_MAX = 1000, 64
DEFAULT_GROUP = "default"
STORE_SCHEMES = (
    *("redis", "rediss", "unix"),
    *("redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"),
)
SYNCS = ("", "always", "everysec", "no")


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """How processes reach the metadata store."""

    url: str = setting(
        "redis://127.0.0.1:6389/0",
        "URL of the Redis that holds the metadata, of its Sentinels"
        " (`redis+sentinel://host:26379,host:26379/SERVICE/DB`), or of some nodes of a Redis"
        " Cluster (`redis+cluster://host:6379,host:6379`). `neve up` starts its own Redis unless a"
        " URL is given.",
        schemes=STORE_SCHEMES,
        secret=True,
    )
    connections_max: int = setting(
        32,
        "Largest number of connections from one process to Redis, or to each node of a cluster.",
        least=1,
        most=10_000,
    )
    tries_max: int = setting(
        16, "Tries of one change before it fails because of conflicts.", least=1
    )
    wait_replicas: int = setting(
        0, "Replicas that must have an add before it is acknowledged (Redis WAIT); 0: none."
    )
    timeout_s: float = setting(10.0, "Longest wait for an answer from Redis.", least=0.1)
    reserve_bytes: int = size_setting(
        16 * 1024**2,
        "Memory reserved in each Redis that has `maxmemory`, at most a sixteenth of it. It is"
        " released when Redis is full, so that operations that free memory still work. 0: none.",
    )
    url_file: str = setting(
        "",
        "Absolute path of a file that holds the URL, in place of `store.url`. Every process of the"
        " service on every node must be able to read it. A password in the file never reaches Ray's"
        " head. Empty: `store.url` is used.",
    )
    append_fsync: str = setting(
        "", "Redis' `appendfsync`, if the user in `store.url` may not read it.", choices=SYNCS
    )

    def __post_init__(self) -> None:
        """Refuse values that break their rules."""
        check_section("store", self)


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """How the coordinator finds, orders, hands out and abandons work."""

    tick_s: float = setting(
        0.25, "Interval at which the coordinator checks its timers.", least=0.001, most=60
    )
    full_scan_interval_s: float = setting(
        60.0, "Longest time between two checks of the records of a table's tablets.", least=0.1
    )
    full_scan_tasks: int = setting(
        2,
        "Ray tasks that scan a large table in a full scan; 0: the coordinator scans it.",
        most=1000,
    )
    queue_bytes_max: int = size_setting(
        64 * 1024**2, "Largest memory of the queue of one group.", least=64 * 1024
    )
    queue_count_max: int = setting(200_000, "Largest number of jobs in a group's queue.", least=1)
    ageing_per_s: float = setting(
        AGEING_PER_S,
        "Priority per second that a queued job gains over jobs offered later.",
        kind=FieldKind.NUMBER,
    )
    silence_max_s: float = setting(
        30.0,
        "A compactor that sends no heartbeat for this time counts as dead, and its "
        "reservations are released. At least two heartbeats.",
        least=0.1,
    )
    adopt_grace_s: float = setting(
        20.0,
        "Time that running attempts have to report after a restart of the coordinator. "
        "Reservations of attempts that do not report are released.",
    )
    lost_answer_beats: int = setting(
        3, "Consecutive heartbeats without an attempt after which it counts as lost.", least=1
    )
    backoff_base_s: float = setting(2.0, "First pause after a failure; further failures double it.")
    backoff_max_s: float = setting(300.0, "Longest pause after failures.")
    quarantine_failures: int = setting(
        5, "Consecutive failures with the same files after which a tablet is quarantined.", least=1
    )
    running_max: int = setting(10_000, "Jobs of one group that run concurrently.", least=1)
    running_bytes_max: int = size_setting(
        1024**5,
        "Input bytes of all running jobs of one group; a larger job runs alone.",
        least=1,
    )
    volume_running_max: int = setting(0, "Jobs of one volume that run concurrently; 0: no limit.")
    volume_weight_max: int = setting(
        0,
        "Jobs of similar size (within a factor of 4) that run concurrently on one volume; 0: no"
        " limit (control.md).",
    )
    deferral_max_s: float = setting(
        300.0, "Longest time until a job that a full queue dropped is planned again."
    )
    overload_after_s: float = setting(
        600.0,
        "A group whose queue has been full for this time counts as overloaded; `neve status` "
        "reports it.",
        least=0.1,
    )
    untracked_backlog_bytes: int = size_setting(
        0,
        "Backlog of an active tablet without a tracker; 0: the inputs of the jobs that its planner "
        "wants and has queued.",
    )
    operation_max_s: float = setting(
        3600.0,
        "A split or merge without progress for this time is abandoned. No other split or merge "
        "because of size starts in that tablet for the same time.",
        least=1,
    )
    operations_max: int = setting(
        4, "Concurrent splits and merges; at this number none starts because of size."
    )
    garbage_grace_s: float = setting(
        900.0,
        "Time that a replaced file is kept for readers that still list it. At least the sum of"
        " `generation_interval_s` and `clock_skew_max_s`.",
    )
    retired_names_s: float = setting(
        86_400.0,
        "Time during which no file may be added under the name of a user's file that was "
        "deleted after a compaction replaced it.",
    )
    unfinished_interval_s: float = setting(
        3600.0,
        "Interval between searches for tables whose creation was interrupted. A table found twice,"
        " `garbage_grace_s` apart, is removed.",
        least=0.1,
    )
    collect_interval_s: float = setting(
        30.0, "Longest time between two deletions, or manifests, of a table.", least=0.1
    )
    clock_skew_max_s: float = setting(
        5.0, "Largest difference between two clocks of the deployment."
    )
    group_limit_bytes_s: int = size_setting(
        0,
        "Bytes per second that the rewrites of a compaction group may read and write together,"
        " unless `neve group limit` sets another limit; 0: no limit.",
        least=LIMIT_BYTES_S_MIN,
        zero=True,
        live="neve group limit",
    )
    volume_limit_bytes_s: int = size_setting(
        0,
        "The same for a volume, unless `neve volume limit` sets another limit; 0: no limit.",
        least=LIMIT_BYTES_S_MIN,
        zero=True,
        live="neve volume limit",
    )
    volume_least_bytes_s: int = size_setting(
        0,
        "Lowest limit for a slow volume; 0: limits do not follow latency.",
        least=LIMIT_BYTES_S_MIN,
        zero=True,
    )
    volume_latency_s: float = setting(
        0.02, "Time to make a MiB durable above which a volume counts as slow.", least=0.0001
    )
    generation_interval_s: float = setting(
        60.0,
        "Interval between increments of a table's generation, which is also written next to the"
        " table's data. A Redis that lost more than one interval is detected.",
        least=0.5,
        most=3600,
    )
    maintenance_slots: int = setting(
        10, "Concurrent deletions, manifests and full scans (maintenance.md).", least=1, most=1000
    )

    def __post_init__(self) -> None:
        """Refuse values that break their rules, and a grace that is too short.

        A store that loses less than one generation is not detected. Files that it has forgotten
        must not be deleted yet.
        """
        check_section("coordinator", self)
        least_s = self.generation_interval_s + self.clock_skew_max_s
        if self.garbage_grace_s < least_s:
            raise SettingError(
                f"setting coordinator.garbage_grace_s is {self.garbage_grace_s:g} s, expected at"
                f" least {least_s:g} s: coordinator.generation_interval_s"
                f" ({self.generation_interval_s:g} s) and coordinator.clock_skew_max_s"
                f" ({self.clock_skew_max_s:g} s) together; lower those to shorten the grace",
                "coordinator.garbage_grace_s",
                "coordinator.generation_interval_s",
                "coordinator.clock_skew_max_s",
            )


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class CompactorSettings:
    """How compactors run jobs; a group may override values for its own compactors."""

    slots: int = setting(2, "Jobs that one compactor runs concurrently.", least=1, most=1000)
    beat_interval_s: float = setting(2.0, "Interval of a compactor's heartbeats.", least=0.001)
    take_wait_max_s: float = setting(
        20.0, "Longest time that one call of a compactor waits for a job.", least=0.001, most=110
    )
    executors: int = setting(
        1,
        "Spark executors of one compactor: on its node, or on nodes with `executor_resource`.",
        least=1,
        most=EXECUTORS_MAX,
    )
    executor_cores: int = setting(2, "Concurrent Spark tasks in one executor.", least=1, most=1000)
    executor_resource: str = setting(
        "",
        "Custom Ray resource; each executor takes 1 unit on any node that offers it, so a job can"
        " span nodes. Requires `compactor.scratch` and `compactor.spark_secret_file`. Empty:"
        " executors run on their compactor's node.",
    )
    scratch: str = setting(
        "",
        "Folder for temporary files of a rewrite; executors on other nodes must share it. Empty:"
        " the system's folder for temporary files.",
    )
    spark_secret_file: str = setting(
        "",
        "File with the line `-Dspark.authenticate.secret=…`, the same on every node of executors."
        " Empty: each application generates a secret.",
    )
    executor_memory: str = size_setting(
        "1g", "Heap of a compactor's Spark executor.", least=HEAP_BYTES_MIN
    )
    driver_memory: str = size_setting("512m", "Heap of a Spark driver.", least=HEAP_BYTES_MIN)
    task_memory: str = setting(
        AUTO,
        "Memory for the Python process of one Spark task, requested from Ray in addition to the"
        " heap. Jobs are divided so that tasks fit. `auto` divides the memory of the machine or"
        " the node when the compactor starts: 512 MB to 4 GB.",
        **_TASK_MEMORY,
    )
    task_memory_max: str = setting(
        AUTO,
        "Memory above which the process of a task is ended; its job is retried in smaller"
        " pieces; 0: no limit. `auto`: 1.25 times `task_memory`, at least 1536 MB.",
        zero=True,
        **_TASK_MEMORY,
    )
    engine: str = setting(
        "raydp",
        "Where Spark runs: `raydp`, or `local` without executors.",
        choices=("raydp", "local"),
    )
    start_timeout_s: float = setting(300.0, "Longest start time of the Spark application.", least=1)
    attempt_stall_s: float = setting(
        300.0,
        "An attempt without progress for this time is ended: the compactor restarts "
        "Spark, and the job is handed out again; 0: never.",
        least=0.1,
        zero=True,
    )
    drain_timeout_s: float = setting(
        600.0,
        "Longest wait for running jobs when a compactor is shut down. Jobs that still run are"
        " handed back, and another compactor takes them.",
    )
    page_cache: str = setting(
        "keep",
        "Page cache of a job's files on the compactor's node: `keep` leaves it to the system;"
        " `drop` releases it after the job, so that other files stay cached.",
        choices=("keep", "drop"),
    )

    def __post_init__(self) -> None:
        """Refuse values that break their rules."""
        check_section("compactor", self)


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """The HTTP gateway that serves users."""

    host: str = setting("127.0.0.1", "Address that the gateway listens on.")
    port: int = setting(
        8642,
        "Port that the gateway listens on; 0: any free port. `neve up` uses another "
        "port if none is given and 8642 is in use.",
        most=65_535,
    )
    token: str = setting(
        "",
        "Bearer token that callers must send. `neve up` creates one if none is given.",
        secret=True,
    )
    version_ahead_max_s: float = setting(
        86_400.0,
        "How far in the future a version that is a point in time may be; rows and files with later"
        " versions are refused. 0: no bound.",
    )
    body_bytes_max: int = size_setting(256 * 1024**2, "Largest request body.", least=1024)
    body_wait_s: float = setting(
        30.0, "Longest wait for the next piece of a request's body.", least=0.1
    )
    head_wait_s: float = setting(
        20.0,
        "Longest wait for the head of a request after its connection was opened.",
        least=0.1,
    )
    connections_max: int = setting(
        1000,
        "Concurrent connections, within the limit of file descriptors. Above that, "
        "the connections that have been idle longest are closed.",
        least=16,
    )
    answer_wait_s: float = setting(
        300.0,
        "Longest time that a caller may leave an answer unread, for example a scan, before the"
        " connection is closed.",
        least=0.1,
    )
    scans_max: int = setting(
        64, "Concurrent scans; callers of further scans are asked to retry.", least=1, most=10_000
    )
    scan_bytes_max: int = size_setting(
        512 * 1024**2,
        "Bytes of rows that all scans have read and callers have not received. Above "
        "that, scans wait for their callers.",
        least=1024,
    )
    memory_max: int = size_setting(
        8 * 1024**3,
        "Memory of the gateway's process. A call that needs more is refused with 503; "
        "its caller may retry or ask for less.",
        least=1024**3,
    )
    locations: tuple[str, ...] = setting(
        (),
        "Allowed table locations: folders, buckets or prefixes such as `/data, s3://lake/tables`;"
        " `/` is every folder, `s3://` every bucket. Empty: none, but `neve up` adds some"
        " (storage.md).",
    )
    private_folders: tuple[str, ...] = setting(
        (),
        "Folders that no table may contain or be in, such as Redis' data folder; `neve up` adds"
        " its own.",
    )
    listing_delay_s: float = setting(
        0.0,
        "Time for which listings of a storage may miss new files and still include deleted "
        "files. A rebuild waits for this time first. 0: listings are exact, as on disks"
        " and S3.",
        most=3600,
    )
    footers_at_once: int = setting(
        16, "File footers that one add reads concurrently.", least=1, most=1000
    )
    tls_certificate: str = setting(
        "",
        "Absolute path of the certificate (PEM, with its chain) for HTTPS with TLS 1.2 or later. It"
        " is read again when it changes. Empty: plain HTTP.",
    )
    tls_key: str = setting(
        "", "File of the private key (PEM), if `gateway.tls_certificate` does not include it."
    )
    tls_client_authorities: str = setting(
        "",
        "File of certificate authorities (PEM). Only clients with a certificate of theirs are"
        " accepted; they need their token as well. Empty: no client certificate is requested.",
    )
    insecure: bool = setting(
        False,
        "Whether the gateway may listen beyond loopback without `gateway.tls_certificate`. Set true"
        " only if a proxy in front of it terminates TLS, or its network is private.",
    )
    token_file: str = setting(
        "",
        "Absolute path of a file that holds the token, in place of `gateway.token`. The gateway"
        " reads it on its node at start. The token never reaches Ray's head. Empty:"
        " `gateway.token` is used.",
    )
    shared_folders: tuple[str, ...] = setting(
        (),
        "Folders that hold other data: no table may be in exactly such a folder or contain it, but"
        " tables may be below. `neve up` adds your home, the working folder and the folder for"
        " temporary files.",
    )
    public_url: str = setting(
        "",
        "Address of the gateway for browsers, such as `https://neve.example.com`, if a proxy is in"
        " front of it. Links to the console begin with it. Empty: the address of a request.",
        schemes=("https", "http"),
    )
    compactor_hour_price: float = setting(
        0.0,
        "Price of an hour of one compactor, for `neve report`. 0: reports show no prices.",
        kind=FieldKind.NUMBER,
    )
    currency: str = setting("", "Currency of `gateway.compactor_hour_price`, such as `EUR`.")

    def __post_init__(self) -> None:
        """Refuse values that break their rules."""
        check_section("gateway", self)


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What the parts of the service log, and which log files a local stack keeps."""

    file_bytes_max: int = size_setting(
        16 * 1024**2, "Size at which the log file of a part is rotated.", least=64 * 1024
    )
    files_kept: int = setting(3, "Rotated log files that are kept for each part.", most=100)
    level: str = setting(
        LogLevel.INFO.value,
        "Events below this level are not written (reference/logs.md lists events and levels).",
        choices=tuple(LogLevel),
    )

    def __post_init__(self) -> None:
        """Refuse values that break their rules."""
        check_section("log", self)


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    """Where the OpenTelemetry spans of attempts are sent."""

    endpoint: str = setting(
        "",
        "URL that accepts traces over OTLP/HTTP, such as `http://collector:4318/v1/traces`. Empty:"
        " no traces. Requires `neve[trace]`.",
        schemes=("https", "http"),
    )
    sample_ratio: float = setting(
        1.0, "Fraction of attempts that are traced.", kind=FieldKind.NUMBER, most=1
    )

    def __post_init__(self) -> None:
        """Refuse values that break their rules."""
        check_section("trace", self)


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSettings:
    """The processes in which gateway and coordinator open untrusted files."""

    count: int = setting(
        8,
        "Concurrent reader processes of the gateway, and of the coordinator; further files wait. "
        "If none of the readers makes progress, the same number is started in addition.",
        least=1,
        most=1000,
    )
    memory_bytes: int = size_setting(
        1024**3,
        "Memory that a reader may use for one file; a file that needs more is refused.",
        least=64 * 1024**2,
    )
    wait_s: float = setting(
        300.0,
        "Longest time that a reader may take for one file; a file that takes longer is refused.",
        least=1.0,
    )

    def __post_init__(self) -> None:
        """Refuse values that break their rules."""
        check_section("readers", self)


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerSettings:
    """How the number of compactors of a group with `compactors = { min, max }` is chosen."""

    drain_target_s: float = setting(
        300.0,
        "Target time to drain the queue of a group. Compactors are added while draining would take"
        " longer at the measured rate.",
        least=1,
    )
    grow_after_s: float = setting(
        5.0, "Compactors are added after more have been needed for this time.", most=86_400
    )
    grow_interval_s: float = setting(
        10.0, "Shortest time between two additions of compactors to a group.", most=86_400
    )
    shrink_after_s: float = setting(
        120.0,
        "A compactor is drained and stopped after fewer have been needed for this time.",
        most=86_400,
    )
    shrink_interval_s: float = setting(
        5.0, "Shortest time between drains of two compactors of a group.", most=86_400
    )
    start_timeout_s: float = setting(
        600.0,
        "Longest time from a compactor's start to its first heartbeat. A compactor that is slower"
        " is abandoned, and the next start is delayed.",
        least=1,
    )

    def __post_init__(self) -> None:
        """Refuse values that break their rules."""
        check_section("autoscaler", self)


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class CompactorCount:
    """Number of compactors of a group: at least `min` are started, at most `max` run."""

    min: int = 1
    max: int = 1

    def __post_init__(self) -> None:
        """Refuse counts that contradict each other."""
        if not 0 <= self.min <= self.max <= COMPACTORS_MAX:
            raise ConfigError(
                f"compactors {self} are not possible, expected a number of 0 to {COMPACTORS_MAX},"
                " or min and max with min <= max"
            )

    def __str__(self) -> str:
        """Return `3`, or `0 to 20`."""
        return str(self.min) if self.min == self.max else f"{self.min} to {self.max}"


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """A compaction group of this service; None: the value of the section `compactor` applies."""

    compactors: CompactorCount = field(
        default=CompactorCount(),
        metadata={
            "doc": "Compactors of the group: a number, or `{ min = 0, max = 20 }`. `min` are"
            " always there; more are started while work waits, up to `max` (scaling.md).",
            "rule": FieldRule(kind=FieldKind.COUNT),
            "live": "",
        },
    )
    resource: str = setting(
        "",
        "Custom Ray resource; each compactor of the group takes 1 unit. A node offers as many units"
        " as compactors fit on it. Empty: compactors run on any node. `neve up` ignores it.",
    )
    urgent_slots: int = setting(
        0,
        "Slots of the group that are reserved for urgent jobs: tablets with more files than their"
        " table allows, splits, and requests with the largest boost. One slot always remains for"
        " other jobs.",
        most=1000,
    )
    slots: int | None = setting(
        None,
        "Jobs that one compactor of the group runs concurrently.",
        kind=FieldKind.COUNT,
        least=1,
        most=1000,
    )
    executors: int | None = setting(
        None,
        "Spark executors of one compactor.",
        kind=FieldKind.COUNT,
        least=1,
        most=EXECUTORS_MAX,
    )
    executor_resource: str | None = setting(
        None,
        "Custom Ray resource; each executor takes 1 unit on any node that offers it.",
        kind=FieldKind.TEXT,
    )
    cores: int | None = setting(
        None,
        "Concurrent Spark tasks in one executor.",
        kind=FieldKind.COUNT,
        least=1,
        most=1000,
    )
    memory: str | None = setting(
        None, "Heap of an executor.", kind=FieldKind.MEMORY, least=HEAP_BYTES_MIN
    )
    driver_memory: str | None = setting(
        None, "Heap of a Spark driver.", kind=FieldKind.MEMORY, least=HEAP_BYTES_MIN
    )
    task_memory: str | None = setting(
        None, "Memory for the Python process of one Spark task.", **_TASK_MEMORY
    )
    task_memory_max: str | None = setting(
        None,
        "Memory above which the process of a task is ended; 0: no limit.",
        zero=True,
        **_TASK_MEMORY,
    )

    fair_band: int = setting(
        FAIR_BAND,
        "Points of priority within which the jobs of different tables count as equal: these tables"
        " take turns by `weight`. Outside the band, the job of higher priority starts first,"
        " whatever its table. 0: only jobs of equal priority take turns.",
        most=1000,
    )
    strict_shares: bool = setting(
        False,
        "Whether all tables with jobs of a class take turns by `weight`, whatever the priority of"
        " their jobs; `fair_band` then has no effect.",
    )
    windows: str = setting(
        "",
        "When system jobs start in the group: start as in cron(5), length and time zone, such as"
        " `0 22 * * 1-5 for 8h in Europe/Berlin`; `;` separates several windows. A job needs an"
        " open window of its table, too, if that has some. Empty: at any time.",
    )
    window_input_bytes: int = size_setting(
        0,
        "Input of the system jobs that start in one window of the group; the last one may exceed"
        " it. 0: no limit.",
    )
    window_cost_s: float = setting(
        0.0,
        "Slot-seconds of the system jobs that start in one window of the group: none starts when"
        " those that did have taken, or are expected to take, so long. 0: no limit.",
    )
    window_exempt: tuple[str, ...] = setting(
        EXEMPTIONS,
        "Jobs that start outside of the group's window, too, and use no budget: `requests`, those"
        " of users; `over-limit`, those of tablets with more files than their table allows or with"
        " a split in progress. Empty: none.",
        choices=EXEMPTIONS,
    )

    def __post_init__(self) -> None:
        """Refuse values that break their rules."""
        for entry in fields(self):
            if entry.name != "compactors":
                check_value("groups", entry, getattr(self, entry.name))
        try:
            check_windows(self.windows, "setting groups.windows")
        except RequestError as error:
            raise SettingError(str(error), "groups.windows") from error

    def applied_to(self, compactor: CompactorSettings) -> CompactorSettings:
        """Return the settings of this group's compactors.

        Args:
            compactor: The section that applies to all groups.
        """
        overrides = {name: getattr(self, group_name) for group_name, name in _OF_COMPACTORS.items()}
        given = {name: value for name, value in overrides.items() if value is not None}
        return replace(compactor, **given)


_OF_COMPACTORS = {
    name: {"cores": "executor_cores", "memory": "executor_memory"}.get(name, name)
    for name in (
        *("slots", "executors", "executor_resource", "cores", "memory", "driver_memory"),
        *("task_memory", "task_memory_max"),
    )
}
"""Setting of a group → setting of the section `compactor` that it overrides."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All sections, and the source of each value."""

    store: StoreSettings = field(default_factory=StoreSettings)
    coordinator: CoordinatorSettings = field(default_factory=CoordinatorSettings)
    compactor: CompactorSettings = field(default_factory=CompactorSettings)
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    readers: ReaderSettings = field(default_factory=ReaderSettings)
    log: LogSettings = field(default_factory=LogSettings)
    trace: TraceSettings = field(default_factory=TraceSettings)
    autoscaler: AutoscalerSettings = field(default_factory=AutoscalerSettings)
    control: ControlSettings = field(default_factory=ControlSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    access: AccessSettings = field(default_factory=AccessSettings)
    groups: Mapping[str, GroupSettings] = field(
        default_factory=lambda: {DEFAULT_GROUP: GroupSettings()}
    )
    """Compaction groups that this service serves, by name."""
    services: Mapping[str, Service] = field(
        default_factory=lambda: {"default": Service(name="default")}
    )
    """Services by name, each with a planner, its options and its groups."""
    dispatcher: str = "simple"
    """The dispatcher plug-in that chooses a table's service."""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Full name of a setting → source of its value; a missing name has its default."""
    ingest: IngestSettings = field(default_factory=IngestSettings)
    notify: NotifySettings = field(default_factory=NotifySettings)
    catalog: CatalogSettings = field(default_factory=CatalogSettings)
    catalogs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Catalogs of Iceberg tables by name, with PyIceberg's properties but without secrets."""

    def compactor_of(self, group: str) -> CompactorSettings:
        """Return the settings of a group's compactors.

        Args:
            group: Name of the group; an unknown group gets the general settings.
        """
        return self.groups.get(group, GroupSettings()).applied_to(self.compactor)

    def compactor_names(self) -> Iterator[tuple[str, str]]:
        """Yield group and name of every compactor that is started with the service."""
        for group, settings in self.groups.items():
            for number in range(1, settings.compactors.min + 1):
                yield group, f"{group}-{number}"

    def compactors_max(self) -> Iterator[str]:
        """Yield the group of every compactor that may run at the same time."""
        for group, settings in self.groups.items():
            yield from [group] * settings.compactors.max

    def only_group(self, what: str) -> str:
        """Return the group for a flag that names none: the default group, or the only one.

        Args:
            what: The flag, for the message.

        Raises:
            ConfigError: There are several groups, and none is named `default`.
        """
        if DEFAULT_GROUP in self.groups:
            return DEFAULT_GROUP
        if len(self.groups) == 1:
            return next(iter(self.groups))
        names = ", ".join(self.groups)
        raise SettingError(
            f"{what} needs a group, because there are several: {names}; name one,"
            f" as in --set groups.{next(iter(self.groups))}.{what.lstrip('-')}=2"
        )

    def served_groups(self) -> dict[str, int]:
        """Return the largest number of compactors of each group; 0: only a service names it."""
        counts = {group.name: 0 for service in self.services.values() for group in service.groups}
        return counts | {name: group.compactors.max for name, group in self.groups.items()}

    def is_given(self, name: str) -> bool:
        """Return whether any source gives a value for a setting, by its full name."""
        return name in self.sources
