"""Tablets: what they hold, their explanation and story, splits and merges."""

from dataclasses import dataclass, field

from neve.api.messages import STRICT, ShortText, readable_across_releases


@dataclass(frozen=True, slots=True, kw_only=True)
class Tablet:
    """A tablet and its state. It holds the keys after `start` up to `end`; None: no bound."""

    tablet: str
    files: int
    size_bytes: int
    rows: int
    start: str | None = None
    end: str | None = None
    partition: str | None = None
    running: int = 0
    waiting: int = 0
    selected: bool = False
    operation: str | None = None
    analysis: str = "unknown"
    failures: int = 0
    failure: str = ""
    compactions: int = 0
    """Jobs that have been committed here, moves and drops among them, since the table was made. A
    split gives both sides the count, a merge takes the larger one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletPage:
    """A page of tablets. `next` is the `after` of the following page; None: this is the last."""

    tablets: tuple[Tablet, ...]
    unreadable: dict[str, str] = field(default_factory=dict)
    """Tablet that cannot be read → what of it cannot be decoded."""
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBytes:
    """What is live in a tablet, as far as it has been counted."""

    tablet: str
    files: int
    size_bytes: int
    measured_files: int
    """Files of which somebody has counted."""
    measured_bytes: int
    """Bytes of those files."""
    live_bytes: int
    """Live bytes of those files."""
    since_s: float | None = None
    """When the oldest of these counts was made."""
    waiting: bool = False
    """Whether an analysis was asked for that is not done."""
    read_bytes: int | None = None
    """What the last analysis has read; None: the history knows of none."""
    elapsed_s: float | None = None
    """How long it took."""
    rows: int | None = None
    """Rows that it has looked at."""
    updated_share: float | None = None
    """Of a table with a key: share of these rows that newer ones of their key hide; None: the last
    analysis is of a release before, or of other bounds."""
    compared_rows: int = 0
    """Updates whose columns were compared with the row that they hide (`analysis_columns`)."""
    changed_shares: dict[str, float] = field(default_factory=dict)
    """Column → share of those updates that change it."""
    merged_share: float | None = None
    """Share of the rows of deltas whose older row is in the tablet."""
    key_quantiles: tuple[str, ...] = ()
    """Keys that cut the tablet into parts of about equal bytes, in the form of tablets' ends."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a tablet is as it is. `left`: path → why no job takes the file."""

    tablet: str
    table: str
    sentences: tuple[str, ...]
    left: dict[str, str] = field(default_factory=dict)
    queued: tuple[str, ...] = ()
    running: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryEntry:
    """One thing that happened to a tablet. Texts are empty where they do not apply."""

    at_s: float
    kind: str
    """A stable word, such as `planned`, `assigned`, `failed`, `committed`."""
    sentence: str
    """What happened, who was concerned and why, for people."""
    code: str = ""
    """A stable word: the class of an error, a refusal code, or how a plan came out."""
    reason: str = ""
    """Without secrets, and cut."""
    job: str = ""
    attempt: str = ""
    compactor: str = ""
    request: str = ""
    """Id of the request, split or merge."""
    group: str = ""
    files: tuple[str, ...] = ()
    """Paths; the first few only."""
    times: int = 1
    """How often in a row the same happened."""
    last_s: float | None = None
    """When it happened last, if it did more than once."""
    until_s: float | None = None
    """When a pause of its files is over that followed."""
    quarantined: bool = False
    """Whether that pause lasts until an operator lifts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What has happened to a tablet since the coordinator started, oldest entry first."""

    tablet: str
    table: str
    coordinator: str
    entries: tuple[StoryEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredWatermark:
    """A lowered watermark: the tablet takes rows of older versions again."""

    tablet: str
    before: str | None
    """Watermark before the change; None: there was none."""
    after: str | None
    may_rise: str
    """Which deleted rows may be visible again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What to split: at a key, or a tablet into parts of about equal size."""

    __pydantic_config__ = STRICT

    at: ShortText | None = None
    """Last key of the left tablet, or a prefix of it."""
    tablet: ShortText | None = None
    """End of the tablet to split. The service chooses the keys."""
    into: int = 2
    """Number of parts with `tablet`, at most 64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """What to merge: a tablet with the next one, or all tablets of a range of keys."""

    __pydantic_config__ = STRICT

    tablet: ShortText | None = None
    """End of the left tablet."""
    start: ShortText | None = None
    """Key in the first tablet; None: the first tablet of the table."""
    end: ShortText | None = None
    """Key in the last tablet; None: the last tablet of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A split or merge under way."""

    id: str
    kind: str
    """`split` or `merge`."""
    step: str
    """`cut`, `drain` or `close`."""
    tablets: tuple[str, ...]
    """Ends of the tablets. A merge has two, the left tablet first."""
    left: str = ""
    """End of the left tablet. A split creates this tablet, a merge removes it."""
    at: str | None = None
    """Last key of the left tablet."""
    since_s: float = 0.0
    reason: str = ""
    """Why the operation was started."""
    waits: str = ""
    """What its next step waits for; empty: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedOperation:
    """The operation that was started."""

    operation: Operation | None = None
    """The operation under way; None: nothing is left to do."""
    keys: tuple[str, ...] = ()
    """Keys that a tablet is split at, in this order. The split at the first key is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """The splits and merges under way in a table."""

    operations: tuple[Operation, ...] = ()
