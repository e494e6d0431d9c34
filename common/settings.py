"""Every setting of the service with its default: frozen values, one section per part.

Pure: `common.config` reads file, environment and flags into these. A field's metadata
carries the sentence that `docs/reference/settings.md` prints and the rule that its value
keeps (`common.setting_rules`); a test keeps page and code alike. Units stand last in every
name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace

from common.access_settings import AccessSettings
from common.control_settings import ControlSettings
from common.errors import ConfigError
from common.log_events import LogLevel
from common.model.group import LIMIT_BYTES_S_MIN, Group, Service
from common.model.job import AGEING_PER_S
from common.setting_rules import (
    Rule,
    SettingError,
    SettingKind,
    check_section,
    check_value,
    setting,
    size_setting,
)

HEAP_BYTES_MIN = 450 * 1024**2
"""Spark refuses to start in a smaller heap."""
TASK_BYTES_MIN = 300 * 1024**2
"""Below that, not even the libraries of a task fit."""
COMPACTORS_MAX, EXECUTORS_MAX = 1000, 64
DEFAULT_GROUP = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """How the metadata store is reached."""

    url: str = setting(
        "redis://127.0.0.1:6389/0",
        "URL of the Redis that holds the truth, of the Sentinels that know it"
        " (`redis+sentinel://host:26379,host:26379/SERVICE/DB`), or of some nodes of a Redis"
        " Cluster (`redis+cluster://host:6379,host:6379`). `neve up` starts a Redis of its own"
        " unless this is given.",
        secret=True,
    )
    url_file: str = setting(
        "",
        "Absolute path of a file that holds the URL, in place of `store.url`, readable for every"
        " process of the service on every node. With it, Ray's head never gets to know a password"
        " in the URL. Empty: `store.url` counts.",
    )
    connections_max: int = setting(
        32,
        "Number of connections that one process opens to Redis, or to each node of a Redis Cluster,"
        " at most.",
        least=1,
        most=10_000,
    )
    tries_max: int = setting(
        16, "Tries of one change before it fails because of conflicts.", least=1
    )
    wait_replicas: int = setting(
        0, "Replicas that must have an add before it is acknowledged (Redis WAIT); 0: none."
    )
    timeout_s: float = setting(10.0, "Longest wait for an answer of Redis.", least=0.1)
    reserve_bytes: int = size_setting(
        16 * 1024**2,
        "Memory set aside in a Redis (in each node of a cluster) with `maxmemory`, at most a"
        " sixteenth of it, and given back when it is full, so that what frees memory still works;"
        " 0: none.",
    )

    def __post_init__(self) -> None:
        """Refuse values that break their rules."""
        check_section("store", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """How work is found, ordered, handed out and given up."""

    tick_s: float = setting(
        0.25, "Interval at which the coordinator checks its timers.", least=0.001, most=60
    )
    full_scan_interval_s: float = setting(
        60.0, "Interval at which the record of every tablet is checked.", least=0.1
    )
    full_scan_tasks: int = setting(
        2,
        "Ray tasks that scan a large table in a full scan; 0: the coordinator scans it.",
        most=1000,
    )
    queue_bytes_max: int = size_setting(
        64 * 1024**2, "Memory of the queue of one group at most.", least=64 * 1024
    )
    queue_count_max: int = setting(200_000, "Jobs in the queue of one group at most.", least=1)
    ageing_per_s: float = setting(
        AGEING_PER_S,
        "Priority that a queued job gains per second over one offered later.",
        kind=SettingKind.NUMBER,
    )
    silence_max_s: float = setting(
        30.0,
        "A compactor that sends no heartbeat for this time counts as dead, and its "
        "reservations are released. At least two heartbeats.",
        least=0.1,
    )
    adopt_grace_s: float = setting(
        20.0,
        "Time that running attempts have to report after a restart of the coordinator "
        "before their reservations are released.",
    )
    lost_answer_beats: int = setting(
        3, "Heartbeats that may leave out an attempt before the attempt counts as lost.", least=1
    )
    backoff_base_s: float = setting(
        2.0, "First pause after a failure; the pause doubles with each further failure."
    )
    backoff_max_s: float = setting(300.0, "Longest pause after failures.")
    quarantine_failures: int = setting(
        5, "Failures in a row of the same files after which a tablet is quarantined.", least=1
    )
    running_max: int = setting(10_000, "Jobs of one group that run at a time.", least=1)
    running_bytes_max: int = size_setting(
        1024**5,
        "Input bytes of all jobs of one group that run at a time; a larger job runs alone.",
        least=1,
    )
    volume_running_max: int = setting(0, "Jobs of one volume that run at a time; 0: no limit.")
    volume_weight_max: int = setting(
        0,
        "Jobs of about the same size (a factor of 4) that run on one volume at a time; 0: no limit"
        " (control.md).",
    )
    deferral_max_s: float = setting(
        300.0, "A job that a full queue dropped is planned again after this time at the latest."
    )
    overload_after_s: float = setting(
        600.0,
        "A group whose queue has been full for this time counts as overloaded: `neve status` "
        "says so.",
        least=0.1,
    )
    untracked_backlog_bytes: int = size_setting(
        0,
        "Backlog of a tablet that is not at rest and that no tracker measures; 0: the inputs of "
        "the jobs that its planner wants and has.",
    )
    operation_max_s: float = setting(
        3600.0,
        "A split or merge without progress for this time is abandoned. For the same "
        "time no other one starts in that tablet because of its size.",
        least=1,
    )
    operations_max: int = setting(
        4, "Splits and merges start because of size while fewer than this number are under way."
    )
    garbage_grace_s: float = setting(
        900.0,
        "Time that a replaced file is kept for readers that still list it. At least"
        " `generation_interval_s` and `clock_skew_max_s` together.",
    )
    generation_interval_s: float = setting(
        60.0,
        "Interval at which a table's generation is counted up and written beside its data: a Redis"
        " that has gone back further is noticed.",
        least=0.5,
        most=3600,
    )
    retired_names_s: float = setting(
        86_400.0,
        "Time that no file can be added under the name of a user's file that was "
        "deleted after a compaction replaced it.",
    )
    unfinished_interval_s: float = setting(
        3600.0,
        "How often tables are looked for whose creation was interrupted; one that is found twice,"
        " `garbage_grace_s` apart, is removed.",
        least=0.1,
    )
    collect_interval_s: float = setting(
        30.0, "Interval at which replaced files are collected.", least=0.1
    )
    clock_skew_max_s: float = setting(
        5.0, "Largest difference between two clocks of the deployment."
    )
    group_limit_bytes_s: int = size_setting(
        0,
        "Bytes per second that the rewrites of a compaction group may read and write together, if"
        " `neve group limit` has not said otherwise; 0: no limit.",
        least=LIMIT_BYTES_S_MIN,
        off=True,
        live="neve group limit",
    )
    volume_limit_bytes_s: int = size_setting(
        0,
        "The same of a volume, if `neve volume limit` has not said otherwise; 0: no limit.",
        least=LIMIT_BYTES_S_MIN,
        off=True,
        live="neve volume limit",
    )
    volume_least_bytes_s: int = size_setting(
        0,
        "A slow volume's limit falls as far as this; 0: it does not follow latency.",
        least=LIMIT_BYTES_S_MIN,
        off=True,
    )
    volume_latency_s: float = setting(
        0.02, "Time to make a MiB durable from which on a volume counts as slow.", least=0.0001
    )

    def __post_init__(self) -> None:
        """Refuse values that break their rules, and limits under which nothing would move.

        A store that goes back by less than a generation is not noticed. What it has forgotten must
        not be deleted yet.
        """
        check_section("coordinator", self)
        least_s = self.generation_interval_s + self.clock_skew_max_s
        if self.garbage_grace_s < least_s:
            raise SettingError(
                f"setting coordinator.garbage_grace_s is {self.garbage_grace_s:g} s, expected at"
                f" least {least_s:g} s: coordinator.generation_interval_s"
                f" ({self.generation_interval_s:g} s) and coordinator.clock_skew_max_s"
                f" ({self.clock_skew_max_s:g} s) together; a shorter grace needs shorter ones",
                "coordinator.garbage_grace_s",
                "coordinator.generation_interval_s",
                "coordinator.clock_skew_max_s",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactorSettings:
    """How jobs are run; a group may say otherwise for its own compactors."""

    slots: int = setting(2, "Jobs that one compactor runs at a time.", least=1, most=1000)
    beat_interval_s: float = setting(2.0, "Interval of a compactor's heartbeats.", least=0.001)
    take_wait_max_s: float = setting(
        20.0, "Time that a compactor waits for a job per call.", least=0.001, most=110
    )
    executors: int = setting(
        1,
        "Spark executors of one compactor: on its node, or on nodes with `executor_resource`.",
        least=1,
        most=EXECUTORS_MAX,
    )
    executor_cores: int = setting(
        2, "Spark tasks at a time in a compactor's executor.", least=1, most=1000
    )
    executor_resource: str = setting(
        "",
        "Custom Ray resource of which each executor takes 1, on whichever node offers it: one job"
        " may then span nodes. It wants `compactor.scratch` and `compactor.spark_secret_file`."
        " Empty: executors run on their compactor's node.",
    )
    scratch: str = setting(
        "",
        "Folder for what a rewrite writes on its way; executors on other nodes must see the same"
        " folder. Empty: the folder for temporary files.",
    )
    spark_secret_file: str = setting(
        "",
        "File with the line `-Dspark.authenticate.secret=…`, the same on every node of executors."
        " Empty: each application draws one.",
    )
    executor_memory: str = size_setting(
        "1g", "Heap of a compactor's Spark executor.", least=HEAP_BYTES_MIN
    )
    driver_memory: str = size_setting(
        "512m", "Heap of a compactor's Spark driver.", least=HEAP_BYTES_MIN
    )
    task_memory: str = size_setting(
        "768m",
        "Memory that the Python process of one Spark task may have: jobs are cut so that tasks fit,"
        " and it is asked of Ray besides the heap.",
        least=TASK_BYTES_MIN,
    )
    task_memory_max: str = size_setting(
        "1536m",
        "A task's process that uses more is ended, and its job is retried in smaller "
        "pieces; 0: no limit.",
        least=TASK_BYTES_MIN,
        off=True,
    )
    engine: str = setting(
        "raydp",
        "Where Spark runs: `raydp`, or `local` without executors.",
        choices=("raydp", "local"),
    )
    start_timeout_s: float = setting(
        300.0, "Longest time that the Spark application may take to start.", least=1
    )
    attempt_stall_s: float = setting(
        300.0,
        "An attempt without progress for this time is ended: the compactor restarts "
        "Spark, and the job is handed out again; 0: never.",
        least=0.1,
        off=True,
    )
    drain_timeout_s: float = setting(
        600.0,
        "Longest wait for running jobs when a compactor is shut down. Jobs that still run are"
        " handed back, and another compactor takes them.",
    )
    page_cache: str = setting(
        "keep",
        "What becomes of the pages of a job's files in the memory of the compactor's node: `keep`"
        " leaves them to the system; `drop` gives them back when the job is done, so that pages of"
        " other files stay.",
        choices=("keep", "drop"),
    )

    def __post_init__(self) -> None:
        """Refuse values that break their rules."""
        check_section("compactor", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """The door for users."""

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
    token_file: str = setting(
        "",
        "Absolute path of a file that holds the token, in place of `gateway.token`, on the node of"
        " the gateway, which reads it when it starts. With it, Ray's head never gets to know the"
        " token. Empty: `gateway.token` counts.",
    )
    version_ahead_max_s: float = setting(
        86_400.0,
        "How far in the future versions may lie that are points in time; rows and files with later"
        " ones are refused. 0: no bound.",
    )
    body_bytes_max: int = size_setting(256 * 1024**2, "Largest request body.", least=1024)
    body_wait_s: float = setting(
        30.0, "Longest wait for the next piece of a request's body.", least=0.1
    )
    head_wait_s: float = setting(
        20.0,
        "Longest wait for the head of a request after its connection is open.",
        least=0.1,
    )
    connections_max: int = setting(
        1000,
        "Connections at a time, within the limit of file descriptors. Above that, "
        "connections that have waited longest without a request are closed.",
        least=16,
    )
    answer_wait_s: float = setting(
        300.0,
        "Longest time that a caller may not read its answer, such as a scan, before its"
        " connection is closed.",
        least=0.1,
    )
    scans_max: int = setting(
        64, "Scans at a time; callers of further scans are asked to retry.", least=1, most=10_000
    )
    scan_bytes_max: int = size_setting(
        512 * 1024**2,
        "Bytes of rows that all scans together have read and callers have not. Above "
        "that, reading waits for the callers.",
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
        "Where tables may be: folders, buckets or prefixes such as `/data, s3://lake/tables`;"
        " `/` is every folder, `s3://` every bucket. Empty: nowhere, but `neve up` adds some"
        " (storage.md).",
    )
    private_folders: tuple[str, ...] = setting(
        (),
        "Folders that no table may be in or around, such as that of Redis; `neve up` adds its own.",
    )
    shared_folders: tuple[str, ...] = setting(
        (),
        "Folders that hold other things than tables: no table can be one of them or around it,"
        " but tables may be below. `neve up` adds your home, the working folder and the folder"
        " for temporary files.",
    )
    listing_delay_s: float = setting(
        0.0,
        "Time that listings of a storage may miss new files and still name deleted "
        "files. A rebuild waits for this time first. 0: listings are exact, as on disks"
        " and S3.",
        most=3600,
    )
    footers_at_once: int = setting(
        16, "File footers read at a time by one add.", least=1, most=1000
    )
    tls_certificate: str = setting(
        "",
        "Absolute path of the certificate (PEM, with its chain) with which the gateway serves"
        " HTTPS, TLS 1.2 at least. It is read again when it changes. Empty: plain HTTP.",
    )
    tls_key: str = setting(
        "", "File of the private key (PEM) of `gateway.tls_certificate`, if that does not hold it."
    )
    tls_client_authorities: str = setting(
        "",
        "File of authorities (PEM): only clients with a certificate of theirs are let in, and need"
        " their token as well. Empty: no certificate is asked for.",
    )
    insecure: bool = setting(
        False,
        "Whether the gateway may listen beyond loopback without `gateway.tls_certificate`: say true"
        " only if something in front of it speaks TLS, or nobody else is in its network.",
    )

    def __post_init__(self) -> None:
        """Refuse values that break their rules."""
        check_section("gateway", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What the parts of the service log, and the files that a local stack keeps of it."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    """Where the spans of each attempt go, as OpenTelemetry."""

    endpoint: str = setting(
        "",
        "URL that takes traces over OTLP/HTTP, such as `http://collector:4318/v1/traces`. Empty: no"
        " traces. `neve[trace]` must be installed.",
    )
    sample_ratio: float = setting(
        1.0, "Part of all attempts that is traced.", kind=SettingKind.NUMBER, most=1
    )

    def __post_init__(self) -> None:
        """Refuse values that break their rules."""
        check_section("trace", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSettings:
    """The processes in which gateway and coordinator let files of others be opened."""

    count: int = setting(
        8,
        "Processes that read files at a time, in the gateway and in the coordinator "
        "each; further files wait. If none of them makes progress, as many more are started.",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerSettings:
    """How many compactors a group with `compactors = { min, max }` gets."""

    drain_target_s: float = setting(
        300.0,
        "Time in which the queue of a group should be drained: compactors are added while it would"
        " take longer at the rate that was measured.",
        least=1,
    )
    grow_after_s: float = setting(
        5.0, "Compactors are added once more of them have been needed for this time.", most=86_400
    )
    grow_interval_s: float = setting(
        10.0, "Shortest time between two additions of compactors to a group.", most=86_400
    )
    shrink_after_s: float = setting(
        120.0,
        "A compactor is drained and ended once fewer of them have been needed for this time.",
        most=86_400,
    )
    shrink_interval_s: float = setting(
        5.0, "Shortest time between two compactors of a group that are drained.", most=86_400
    )
    start_timeout_s: float = setting(
        600.0,
        "A compactor that has not sent a heartbeat this long after its start is given up, and the"
        " next start waits.",
        least=1,
    )

    def __post_init__(self) -> None:
        """Refuse values that break their rules."""
        check_section("autoscaler", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Where `neve serve` puts what it starts on a Ray cluster."""

    service_resource: str = setting(
        "",
        "Custom Ray resource of the nodes on which coordinator and gateway may run; empty: on any"
        " node.",
    )

    def __post_init__(self) -> None:
        """Refuse values that break their rules."""
        check_section("cluster", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactorCount:
    """How many compactors a group has: at least `min` are started, at most `max` ever run."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """A compaction group that this service serves; None: as the section `compactor` says."""

    compactors: CompactorCount = field(
        default=CompactorCount(),
        metadata={
            "doc": "Compactors of the group: a number, or `{ min = 0, max = 20 }`. `min` are"
            " always there; more are started while work waits, up to `max` (scaling.md).",
            "secret": False,
            "rule": Rule(kind=SettingKind.COUNT),
            "live": "",
        },
    )
    resource: str = setting(
        "",
        "Custom Ray resource of which each compactor of the group takes 1; nodes offer as many as"
        " compactors fit on them. Empty: compactors run on any node. `neve up` does without it.",
    )
    urgent_slots: int = setting(
        0,
        "Slots of all compactors of the group together that only urgent jobs get: of tablets with"
        " more files than their table allows, of splits, of requests with the largest boost. One"
        " slot is always left for the others.",
        most=1000,
    )
    slots: int | None = setting(
        None,
        "Jobs that one compactor of the group runs at a time.",
        kind=SettingKind.COUNT,
        least=1,
        most=1000,
    )
    executors: int | None = setting(
        None,
        "Spark executors of one compactor.",
        kind=SettingKind.COUNT,
        least=1,
        most=EXECUTORS_MAX,
    )
    executor_resource: str | None = setting(
        None,
        "Custom Ray resource of which each executor takes 1, on whichever node offers it.",
        kind=SettingKind.TEXT,
    )
    cores: int | None = setting(
        None,
        "Spark tasks at a time in an executor.",
        kind=SettingKind.COUNT,
        least=1,
        most=1000,
    )
    memory: str | None = setting(
        None, "Heap of an executor.", kind=SettingKind.MEMORY, least=HEAP_BYTES_MIN
    )
    driver_memory: str | None = setting(
        None, "Heap of a Spark driver.", kind=SettingKind.MEMORY, least=HEAP_BYTES_MIN
    )
    task_memory: str | None = setting(
        None,
        "Memory that the Python process of one Spark task may have.",
        kind=SettingKind.MEMORY,
        least=TASK_BYTES_MIN,
    )
    task_memory_max: str | None = setting(
        None,
        "A task's process that has more is ended; 0: none is.",
        kind=SettingKind.MEMORY,
        least=TASK_BYTES_MIN,
        off=True,
    )

    def __post_init__(self) -> None:
        """Refuse values that break their rules."""
        for entry in fields(self):
            if entry.name != "compactors":
                check_value("groups", entry, getattr(self, entry.name))

    def applied_to(self, compactor: CompactorSettings) -> CompactorSettings:
        """Return the settings of this group's compactors.

        Args:
            compactor: The section that holds for all groups.
        """
        own = {name: getattr(self, group_name) for group_name, name in _OF_COMPACTORS.items()}
        given = {name: value for name, value in own.items() if value is not None}
        return replace(compactor, **given)


_OF_COMPACTORS = {
    "slots": "slots",
    "executors": "executors",
    "executor_resource": "executor_resource",
    "cores": "executor_cores",
    "memory": "executor_memory",
    "driver_memory": "driver_memory",
    "task_memory": "task_memory",
    "task_memory_max": "task_memory_max",
}
"""Setting of a group → setting of the section `compactor` in whose place it stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All sections, and where each value comes from."""

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
    """Services by name; each: planner, its options, and the groups that it may use."""
    dispatcher: str = "simple"
    """The dispatcher plug-in that chooses a table's service."""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Full name of a setting → where its value comes from; absent: it is the default."""

    def compactor_of(self, group: str) -> CompactorSettings:
        """Return the settings of a group's compactors.

        Args:
            group: Its name; of one that is not configured: what holds for all.
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
        """Return the group that is meant where none is named: the default one, or the only one.

        Args:
            what: Names no group, for the message.

        Raises:
            ConfigError: There are several, none of them named `default`.
        """
        if DEFAULT_GROUP in self.groups:
            return DEFAULT_GROUP
        if len(self.groups) == 1:
            return next(iter(self.groups))
        names = ", ".join(self.groups)
        raise SettingError(
            f"{what} is of which group? There are {names}: say it of each,"
            f" as --set groups.{next(iter(self.groups))}.{what.lstrip('-')}=2"
        )

    def served_groups(self) -> dict[str, int]:
        """Return how many compactors each group has at most; 0: only a service names it."""
        named = {group.name: 0 for service in self.services.values() for group in service.groups}
        return named | {name: each.compactors.max for name, each in self.groups.items()}

    def is_given(self, name: str) -> bool:
        """Return whether somebody has said what a setting is, by its full name."""
        return name in self.sources


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
        raise SettingError(f"service {service!r}: {problem}", f"services.{service}.groups")
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
