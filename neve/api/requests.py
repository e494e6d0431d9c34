"""Wire models of requests: compactions that a user asks for, and how far they have come.

Like `neve.api.tables`, whose conventions hold here; nothing of the project is imported.
"""

from dataclasses import dataclass, field

STRICT = {"extra": "forbid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A selector or transform by name, with its options as text."""

    __pydantic_config__ = STRICT

    name: str
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How outputs are written where it differs from the table's settings."""

    __pydantic_config__ = STRICT

    codec: str | None = None
    codec_level: int | None = None
    row_group_bytes: int | str | None = None
    """Bytes, or a size such as `64MB`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """A compaction to ask for; at most one of `delete_where`, `set` and `transform`."""

    __pydantic_config__ = STRICT

    start: str | None = None
    """First key, included, or a prefix of it."""
    end: str | None = None
    """Last key, included, or a prefix of it."""
    selector: Plugin | None = None
    """Chooses the files of each tablet; all if left out."""
    delete_where: str | None = None
    """Delete the rows of the range for which this is true."""
    set: str | None = None
    """Change columns of the rows of the range: `a = a + 1, b = null`."""
    transform: Plugin | None = None
    """A transform that is installed."""
    output: Output | None = None
    hints: dict[str, str] = field(default_factory=dict)
    """For dispatchers, planners and configurers."""
    boost: int = 0
    """Added to the priority of its jobs."""
    deadline: float | str | None = None
    """It fails if it takes longer: seconds, or a duration such as `10m`."""
    dry_run: bool = False
    """Only tell what it would take; nothing is stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """What to cancel: nothing given, the whole; a range of keys; or one tablet."""

    __pydantic_config__ = STRICT

    start: str | None = None
    end: str | None = None
    tablet: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """A range of keys; None: no bound. A bound that is included may be a prefix."""

    start: str | None = None
    end: str | None = None
    start_included: bool = True
    end_included: bool = True

    @property
    def text(self) -> str:
        """The range as a person would say it: `100 to 200 (not included)`."""
        start = _bound(self.start, "first", included=self.start_included)
        return f"{start} to {_bound(self.end, 'last', included=self.end_included)}"


def _bound(key: str | None, unbounded: str, *, included: bool) -> str:
    if key is None:
        return unbounded
    return key if included else f"{key} (not included)"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTablet:
    """How far a request is in one tablet."""

    tablet: str
    state: str
    """`pending`, `waiting`, `selected`, `done` or `cancelled`."""
    reason: str = ""
    end: str | None = None
    partition: str | None = None
    files_left: int = 0
    """Selected files that it has not rewritten."""
    bytes_left: int = 0
    """Bytes that it has not rewritten; before it selects: of all files in its range."""
    running: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a request is, over all tablets of its range; bytes and time are estimates."""

    tablets: int = 0
    pending: int = 0
    waiting: int = 0
    selected: int = 0
    done: int = 0
    cancelled: int = 0
    files_left: int = 0
    running: int = 0
    bytes_done: int = 0
    bytes_left: int = 0
    fraction: float = 0.0
    eta_s: float | None = None
    """None: it ended, or nothing was done yet from which to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the jobs of a request have done, as the table's history tells it.

    Files that a job has written and a later one has merged count on neither side.
    """

    jobs: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    rows_before: int = 0
    rows_after: int = 0
    superseded: int = 0
    """Rows dropped for newer ones of their keys."""
    expired: int = 0
    """Rows dropped because they had expired."""
    changed: int = 0
    """Rows of its files that the transform has given values, whether or not these are new."""
    deleted: int = 0
    """Rows of its files that it has deleted; in a table with a key they become tombstones."""
    tombstones_dropped: int = 0
    complete: bool = True
    """False: the history no longer goes back to the request's first job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A compaction that a user asked for. `progress` and `tablets` are left out of listings."""

    id: str
    table: str
    state: str
    """`active`, `cancelling`, `done`, `done_in_part`, `cancelled` or `failed`."""
    submitted_at_s: float
    cause: str = ""
    keys: Keys | None = None
    """None: all."""
    selector: Plugin | None = None
    transform: str = ""
    """As a sentence: `delete where x > 1`."""
    output: Output | None = None
    hints: dict[str, str] = field(default_factory=dict)
    boost: int = 0
    deadline_at_s: float | None = None
    automatic: bool = False
    ended_at_s: float | None = None
    cancelled: tuple[Keys, ...] = ()
    """Ranges that were cancelled by themselves: what is done in part was not done there."""
    progress: Progress | None = None
    tablets: tuple[RequestTablet, ...] = ()
    """Some of them, those first in which it has not ended."""
    result: Result | None = None
    """What it has done; told once it has ended, and not in listings."""
    notes: tuple[str, ...] = ()
    """What its result is not, a sentence each: such as dead rows that stay for a while."""

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.state not in {"active", "cancelling"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DryTablet:
    """What a request would take in one tablet as it is now."""

    tablet: str
    files: int
    size_bytes: int
    rows: int
    """Of the files, superseded rows among them."""
    rows_in_range: int | None
    """Those whose key is in the range; None: not counted, the files are too large."""
    end: str | None = None
    partition: str | None = None
    held: bool = False
    """Whether something runs there or another request holds files: it would wait first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What a request would take, were it made now. Nothing was stored."""

    table: str
    tablets: int
    files: int
    size_bytes: int
    rows: int
    rows_in_range: int | None
    transform: str = ""
    """Checked, not run: how many rows it would touch is not counted."""
    notes: tuple[str, ...] = ()
    """What the result will not be, a sentence each: such as dead rows that stay for a while."""
    per_tablet: tuple[DryTablet, ...] = ()
    """The first thousand in which files are chosen."""
