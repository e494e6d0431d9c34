"""The service as a whole: its status and its settings."""

from dataclasses import dataclass
from typing import Annotated, Any

from neve.api.compactors import Compactor, Group
from neve.api.messages import Measured, readable_across_releases
from neve.api.planning import TableTrigger, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting of the running service; secrets are hidden."""

    name: str
    """Full name of the setting, such as `compactor.slots`."""
    value: Any
    """Sizes in bytes, durations in seconds."""
    text: str
    """The value as text."""
    source: str
    """Source of the value: `default`, a file, an environment variable, a flag, `this stack`."""
    change: str
    """How to change it: `restart`, or the command that changes the running service."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """A tablet with files that no job reads until an operator lifts the quarantine."""

    table: str
    tablet: str
    reason: str

    @property
    def lift_command(self) -> str:
        """The command that lifts it, for when the cause is gone."""
        return f"neve lift-quarantine {self.table} {self.tablet}"


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class TableActivity:
    """The queued and running jobs of a table."""

    table: str
    queued: int = 0
    queued_bytes: int = 0
    """Size of the files that the queued jobs read."""
    oldest_s: float = 0.0
    """Age of the oldest queued job."""
    running: int = 0
    running_bytes: int = 0
    """Size of the files that the running jobs read."""
    compactors: int = 0
    """Number of compactors with a job of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationTarget:
    """A target of notifications, and the messages that wait for it."""

    name: str
    """`webhook` or `e-mail`."""
    waiting: int = 0
    sent: int = 0
    """Number of messages that were delivered since the gateway started."""
    dropped: int = 0
    """Number of messages that were refused, too old, or too many."""
    failure: str = ""
    """Why the last try failed; empty: it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingCondition:
    """A condition whose begin was notified, and that has not ended."""

    kind: str
    subject: str
    """Table or group; empty: the service."""
    since_s: float
    count: int
    """Largest number of tablets, or of bytes of a backlog."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notifications:
    """Targets of notifications, and what they were notified of."""

    targets: tuple[NotificationTarget, ...] = ()
    standing: tuple[StandingCondition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationTest:
    """What became of a test message."""

    target: str
    failure: str = ""
    """Why it was not delivered; empty: it was."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedTable:
    """A table with acknowledged rows that are in no file so far."""

    table: str
    rows: int
    size_bytes: int
    """Decoded size."""
    age_s: float
    """Age of the oldest of them."""
    why: str
    """What the buffer holds, and why it is flushed now, or when it will be."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Status of the service as a whole."""

    coordinator: str
    started_s: float
    now_s: float
    groups: tuple[Group, ...]
    compactors: tuple[Compactor, ...]
    tables: Annotated[int, Measured("neve_tables", "Live and paused tables.")]
    tablets_known: int
    committed: Annotated[int, Measured("neve_jobs_committed_total", "Attempts that committed.")]
    failed: Annotated[int, Measured("neve_jobs_failed_total", "Attempts that failed.")]
    released: Annotated[
        int,
        Measured("neve_jobs_released_total", "Reservations that were released without a commit."),
    ]
    conflicts: Annotated[
        int, Measured("neve_store_conflicts_total", "Changes that were retried after a conflict.")
    ]
    quarantined: Annotated[
        int, Measured("neve_tablets_quarantined", "Tablets in quarantine after repeated failures.")
    ]
    turns: int = 0
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """What keeps jobs from running, one sentence each, such as a group without compactors."""
    store_warnings: tuple[str, ...] = ()
    """Problems of the store, one sentence each, such as little memory or eviction."""
    triggers: tuple[TableTrigger, ...] = ()
    """The last triggers of tables, newest first, at most 100."""
    tables_unscanned: int = 0
    """Tables whose first scan since the start of the coordinator has not ended. Until then,
    `tablets_known` and the queue are incomplete."""
    quarantines: tuple[Quarantine, ...] = ()
    """At most 100 of the `quarantined` tablets."""
    stalled: Annotated[
        int,
        Measured(
            "neve_jobs_stalled_total",
            "Attempts that compactors ended because they made no progress.",
        ),
    ] = 0
    queued_tables: Annotated[
        int, Measured("neve_queue_tables", "Tables with at least one job in a queue.")
    ] = 0
    durability: str = ""
    """What the store guarantees for acknowledged changes, buffered rows among them."""
    buffered: tuple[BufferedTable, ...] = ()
    """Tables with buffered rows, largest first, at most 100; a second old."""
    windows: tuple[Window, ...] = ()
    """Maintenance windows of tables and groups, closed ones first, at most 100."""
