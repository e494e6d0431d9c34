"""Compaction requests and their progress."""

from dataclasses import dataclass, field
from typing import Annotated

from neve.api.messages import STRICT, LongText, MaxLength, ShortText

HINTS_MAX = 32


HintText = Annotated[str, MaxLength(256)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """Name and options of a selector or transform."""

    __pydantic_config__ = STRICT

    name: ShortText
    options: Annotated[dict[HintText, ShortText], MaxLength(HINTS_MAX)] = field(
        default_factory=dict
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Settings of the output files that differ from the settings of the table."""

    __pydantic_config__ = STRICT

    codec: ShortText | None = None
    codec_level: int | None = None
    row_group_bytes: int | ShortText | None = None
    """Size of a row group in bytes, or as text: `64MB`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """A request for a compaction. Give at most one of `delete_where`, `set` and `transform`."""

    __pydantic_config__ = STRICT

    start: ShortText | None = None
    """First key (included), or a prefix of it."""
    end: ShortText | None = None
    """Last key (included), or a prefix of it."""
    selector: Plugin | None = None
    """Selector that chooses the files of each tablet; all files by default."""
    delete_where: LongText | None = None
    """Delete the rows of the range for which this expression is true."""
    set: LongText | None = None
    """Change columns of the rows of the range: `a = a + 1, b = null`."""
    transform: Plugin | None = None
    """Name and options of an installed transform."""
    output: Output | None = None
    hints: Annotated[dict[HintText, HintText], MaxLength(HINTS_MAX)] = field(default_factory=dict)
    """Hints for plug-ins: dispatchers, planners and configurers."""
    boost: int = 0
    """Number that is added to the priority of the jobs."""
    deadline: float | ShortText | None = None
    """The request fails if it takes longer. Seconds, or a duration such as `10m`."""
    dry_run: bool = False
    """Only report what the request would select. Nothing is stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """What to cancel: a range of keys, or one tablet; by default the whole request."""

    __pydantic_config__ = STRICT

    start: ShortText | None = None
    end: ShortText | None = None
    tablet: ShortText | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """A range of keys; None: no bound. An included bound may be a prefix of keys."""

    start: str | None = None
    end: str | None = None
    start_included: bool = True
    end_included: bool = True

    @property
    def text(self) -> str:
        """The range as text: `100 to 200 (not included)`."""
        start = _bound(self.start, "first", included=self.start_included)
        return f"{start} to {_bound(self.end, 'last', included=self.end_included)}"


def _bound(key: str | None, unbounded: str, *, included: bool) -> str:
    if key is None:
        return unbounded
    return key if included else f"{key} (not included)"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTablet:
    """Progress of a request in one tablet."""

    tablet: str
    state: str
    """`pending`, `waiting`, `selected`, `done` or `cancelled`."""
    reason: str = ""
    end: str | None = None
    partition: str | None = None
    files_left: int = 0
    """Number of selected files that are still to be rewritten."""
    bytes_left: int = 0
    """Bytes still to be rewritten. Before files are selected: of all files in the range."""
    running: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a request over all tablets of its range. Bytes and time are estimates."""

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
    """Seconds until the request is done; None: it has ended, or there is no estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Results of a request's jobs, summed over the history of the table.

    Files that one job has written and a later job has merged count neither before nor after.
    """

    jobs: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    rows_before: int = 0
    rows_after: int = 0
    superseded: int = 0
    """Rows that were dropped because their key has a newer row."""
    expired: int = 0
    """Rows that were dropped because they had expired."""
    changed: int = 0
    """Rows that the transform has updated, even if their values stayed the same."""
    deleted: int = 0
    """Rows that the request has deleted. In a table with a key they become tombstones."""
    tombstones_dropped: int = 0
    complete: bool = True
    """Whether the history still holds all jobs of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for a compaction. Listings leave out `progress` and `tablets`."""

    id: str
    table: str
    state: str
    """`active`, `cancelling`, `done`, `done_in_part`, `cancelled` or `failed`."""
    submitted_at_s: float
    cause: str = ""
    keys: Keys | None = None
    """Range of keys; None: all keys."""
    selector: Plugin | None = None
    transform: str = ""
    """The transform as text: `delete where x > 1`."""
    output: Output | None = None
    hints: dict[str, str] = field(default_factory=dict)
    boost: int = 0
    deadline_at_s: float | None = None
    automatic: bool = False
    ended_at_s: float | None = None
    cancelled: tuple[Keys, ...] = ()
    """Ranges that were cancelled separately, where the request was not carried out."""
    progress: Progress | None = None
    tablets: tuple[RequestTablet, ...] = ()
    """Some of the tablets. Tablets that are not done come first."""
    result: Result | None = None
    """Result of the request once it has ended. Listings leave it out."""
    notes: tuple[str, ...] = ()
    """What the request does not do, one sentence each, such as dead rows that stay for a while."""

    @property
    def ended(self) -> bool:
        """Whether the request has ended."""
        return self.state not in {"active", "cancelling"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DryTablet:
    """What a request would select in one tablet as it is now."""

    tablet: str
    files: int
    size_bytes: int
    rows: int
    """Rows of the files, including superseded rows."""
    rows_in_range: int | None
    """Rows whose key is in the range; None: not counted because the files are too large."""
    end: str | None = None
    partition: str | None = None
    held: bool = False
    """Whether the request would wait first: a job runs there, or another request holds files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What a request would select if it were made now. Nothing is stored."""

    table: str
    tablets: int
    files: int
    size_bytes: int
    rows: int
    rows_in_range: int | None
    transform: str = ""
    """The transform as text. It is checked but not run, so its rows are not counted."""
    notes: tuple[str, ...] = ()
    """What the request would not do, one sentence each, such as dead rows that stay for a while."""
    per_tablet: tuple[DryTablet, ...] = ()
    """The first 1,000 tablets with selected files."""
