"""Tablets: state, explanation, story, splits and merges."""

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
    """Jobs committed in this tablet since the table was created, including moves and drops. A split
    copies the count to both sides, a merge keeps the larger count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletPage:
    """A page of tablets. `next` is the `after` of the following page; None: this is the last."""

    tablets: tuple[Tablet, ...]
    unreadable: dict[str, str] = field(default_factory=dict)
    """Tablet that cannot be read → what of it cannot be decoded."""
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBytes:
    """Live bytes of a tablet that analyses have counted so far."""

    tablet: str
    files: int
    size_bytes: int
    measured_files: int
    """Number of files whose live bytes were counted."""
    measured_bytes: int
    """Bytes of those files."""
    live_bytes: int
    """Live bytes of those files."""
    since_s: float | None = None
    """Time of the oldest of these counts."""
    waiting: bool = False
    """Whether an analysis was requested and is not done."""
    read_bytes: int | None = None
    """Bytes that the last analysis has read; None: the history has no analysis."""
    elapsed_s: float | None = None
    """Duration of the last analysis."""
    rows: int | None = None
    """Number of rows that the last analysis has read."""
    updated_share: float | None = None
    """In a table with a key: fraction of these rows that newer rows of their key hide; None: the
    last analysis comes from an earlier release, or had other bounds."""
    compared_rows: int = 0
    """Updates whose columns were compared with the row that they hide (`analysis_columns`)."""
    changed_shares: dict[str, float] = field(default_factory=dict)
    """Column → fraction of those updates that change the column."""
    merged_share: float | None = None
    """Fraction of the rows of deltas whose older row is in the tablet."""
    key_quantiles: tuple[str, ...] = ()
    """Keys that divide the tablet into parts of about equal bytes, in the form of tablet ends."""
    merged_shares: dict[str, float] = field(default_factory=dict)
    """Column of `analysis_columns` → the same, of the rows of deltas that concern the column: they
    change it, put or delete the whole row, or have no older row."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class TabletLoads:
    """What the coordinator remembers of tablets, as columns. All columns have the same length.

    A tablet at rest may have no memory; its values are 0.
    """

    tablets: tuple[str, ...] = ()
    backlog_bytes: tuple[int, ...] = ()
    """Bytes that are still to be rewritten."""
    overlapping_files: tuple[int, ...] = ()
    """Largest number of files that may hold the same key, if work waits."""
    garbage_shares: tuple[float, ...] = ()
    """Known garbage as a fraction of the stored bytes, 0 to 1."""
    scans_s: tuple[float, ...] = ()
    """Scans per second, averaged over about the last minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletMap:
    """A summary of all tablets of a table in the order of their keys; columns of cells.

    A cell stands for one tablet or, in a table with many tablets, for as many tablets in a row as
    `counts` says. Such a cell has the files and bytes of its last tablet, and the largest backlog,
    overlap, garbage and reads that are known of its tablets.
    """

    table: str
    tablets: int
    """Number of tablets of the table."""
    ends: tuple[str, ...] = ()
    """Last tablet of each cell."""
    counts: tuple[int, ...] = ()
    files: tuple[int, ...] = ()
    size_bytes: tuple[int, ...] = ()
    backlog_bytes: tuple[int, ...] = ()
    overlapping_files: tuple[int, ...] = ()
    garbage_shares: tuple[float, ...] = ()
    scans_s: tuple[float, ...] = ()
    unreadable: int = 0
    """Cells whose tablet cannot be decoded; they count no files."""
    sampled_tablets: int = 0
    """Number of tablets whose files are counted in `sizes`."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Exponent of two → number of sampled files of at least so many bytes, and less than twice."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Explanation of a tablet's state. `left`: path → why no job takes the file; 10,000 at most."""

    tablet: str
    table: str
    sentences: tuple[str, ...]
    left: dict[str, str] = field(default_factory=dict)
    queued: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    inputs: tuple[tuple[str, ...], ...] = ()
    """Paths of the inputs of each running job, in the order of `running`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryEntry:
    """An event of a tablet. Texts that do not apply are empty."""

    at_s: float
    kind: str
    """A stable word, such as `planned`, `assigned`, `failed`, `committed`."""
    sentence: str
    """Human-readable description of the event."""
    code: str = ""
    """A stable word: the class of an error, a refusal code, or the outcome of a plan."""
    reason: str = ""
    """Reason, truncated and with secrets redacted."""
    job: str = ""
    attempt: str = ""
    compactor: str = ""
    request: str = ""
    """Id of the request, split or merge."""
    group: str = ""
    files: tuple[str, ...] = ()
    """The first few paths."""
    times: int = 1
    """Number of times that the event happened in a row."""
    last_s: float | None = None
    """Time of the last repetition, if there was one."""
    until_s: float | None = None
    """End of the pause of its files that followed the event."""
    quarantined: bool = False
    """Whether the pause lasts until an operator lifts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Events of a tablet since the coordinator started, oldest first."""

    tablet: str
    table: str
    coordinator: str
    entries: tuple[StoryEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredWatermark:
    """A lowered watermark: the tablet accepts rows of older versions again."""

    tablet: str
    before: str | None
    """Watermark before the change; None: there was none."""
    after: str | None
    may_rise: str
    """Which deleted rows may become visible again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A split to start: at a key, or of a tablet into parts of about equal size."""

    __pydantic_config__ = STRICT

    at: ShortText | None = None
    """Last key of the left tablet, or a prefix of it."""
    tablet: ShortText | None = None
    """End of the tablet to split. The service chooses the keys."""
    into: int = 2
    """Number of parts with `tablet`, at most 64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """A merge to start: of a tablet with the next one, or of all tablets of a range of keys."""

    __pydantic_config__ = STRICT

    tablet: ShortText | None = None
    """End of the left tablet."""
    start: ShortText | None = None
    """Key in the first tablet; None: the first tablet of the table."""
    end: ShortText | None = None
    """Key in the last tablet; None: the last tablet of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A split or merge in progress."""

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
    """What the next step waits for; empty: it does not wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedOperation:
    """The operation that was started."""

    operation: Operation | None = None
    """The operation in progress; None: nothing is left to do."""
    keys: tuple[str, ...] = ()
    """Keys at which a tablet is split, in this order. The split at the first key is in progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """The splits and merges in progress in a table."""

    operations: tuple[Operation, ...] = ()
