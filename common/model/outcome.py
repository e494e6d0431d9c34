"""The outcome of a metadata change or an attempt."""

from bisect import bisect_left
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from typing import Self

from neve.api.messages import readable_across_releases


class RefusalCode(StrEnum):
    """Why a change or a call is refused: a stable word for programs.

    A code that only a newer release defines is kept as its text and equals no member.
    """

    CALL_FORM = "call-form"
    """The call id is not a UUIDv7, so the time of the call is unknown."""
    CALL_TOO_OLD = "call-too-old"
    """The call is so old that its mark is deleted, so a repetition cannot be recognised."""
    CALL_TOO_NEW = "call-too-new"
    """The call id carries a time in the future: the clock of the caller is wrong."""
    CALL_CONTENT = "call-content"
    """The call id was used before with different content."""
    EXISTS = "exists"
    """The table, file or request exists already."""
    REPLACED = "replaced"
    """A compaction has replaced the file, and the collector will delete it."""
    RETIRED = "retired"
    """A file of this name was deleted recently."""
    LOOK_TOO_OLD = "look-too-old"
    """Too much time has passed since the files were inspected: inspect them again."""
    GENERATION = "generation"
    """The store has lost changes: it is older than the table's location."""
    PIN = "pin"
    """The pin has expired, or the store has lost it."""
    NAME = "name"
    """The name of the table is not a DNS label."""
    LOCATION = "location"
    """The location overlaps the location of another table."""
    TABLE = "table"
    """The table does not exist, or its state does not allow the change."""
    STATE = "state"
    """The table must be paused first."""
    PAUSED = "paused"
    """The table is paused."""
    VERSION = "version"
    """The object of the change has a newer version."""
    TABLET = "tablet"
    """The tablet does not exist: look it up again."""
    BOUNDS = "bounds"
    """The keys do not fit the bounds of the tablet, or its bounds have changed."""
    OPERATION = "operation"
    """A split or merge of the tablet is under way."""
    CROSSES = "crosses"
    """The file has keys on both sides of the key where the tablet is being split."""
    PURGED = "purged"
    """The file has versions at or below the purge watermark, whose tombstones are gone."""
    FILES = "files"
    """The change names no file, a file twice, or too many files."""
    WINDOW = "window"
    """A file is only partly in the window to replace, or a higher version is there already."""
    GONE = "gone"
    """The files are gone from the tablet."""
    RESERVED = "reserved"
    """An attempt has reserved the file."""
    SELECTED = "selected"
    """The file belongs to the selection of a request, or the selection has changed."""
    USED = "used"
    """The file is in use."""
    REQUEST = "request"
    """The request does not exist, or its state does not allow the change."""
    RANGE = "range"
    """The request does not cover the tablet, or is cancelled there."""
    DONE = "done"
    """The request is done in the tablet."""
    OPEN = "open"
    """The request still has entries in the tablet, or is not done there."""
    WAITING = "waiting"
    """Requests wait to select files of the tablet."""
    FULL = "full"
    """The request or the table has the largest number of entries."""
    TOO_LARGE = "too-large"
    """The selection is too large for one change."""
    HOLD = "hold"
    """The hold on the selected files does not allow it."""
    RESULTS = "results"
    """Files of the selection have not been rewritten yet."""
    RUNNING = "running"
    """Attempts are running on the files."""
    RELEASED = "released"
    """The attempt holds no reservation."""
    RESURFACE = "resurface"
    """A file that was added later may hold rows older than rows that the attempt dropped."""
    OUTPUTS = "outputs"
    """The attempt did not reserve the outputs."""
    BUFFERED = "buffered"
    """Rows are buffered: flush the table first."""
    SCHEMA = "schema"
    """The schema of the table has changed."""
    WATERMARK = "watermark"
    """The watermark of the tablet does not allow it."""
    COORDINATOR = "coordinator"
    """Another coordinator has taken over."""
    LIMITS = "limits"
    """The largest number of limits is set."""
    MANIFESTS = "manifests"
    """The largest number of manifests is stored."""
    MIRROR = "mirror"
    """The mirror of a lake table has moved, lacks a commit, or cannot be moved."""
    OVERDUE = "overdue"
    """The attempt has run for too long to publish its outputs."""
    COMMITTED = "committed"
    """The attempt has ended: it committed."""
    FAILED = "failed"
    """The attempt has ended: it failed."""
    CANCELLED = "cancelled"
    """The attempt has ended: it was cancelled."""
    LOST = "lost"
    """The attempt has ended: its compactor was lost."""
    DRAINED = "drained"
    """The attempt has ended: its compactor was drained."""
    CONFLICTED = "conflicted"
    """The attempt has ended: a concurrent change prevented its commit."""
    CONFLICT = "conflict"
    """Concurrent changes interfered on every try; nothing was written."""
    METADATA = "metadata"
    """The metadata could not be read or written."""

    @classmethod
    def _missing_(cls, value: object) -> "RefusalCode | None":
        """Keep the code of a newer release, so that its refusal is still readable."""
        if not isinstance(value, str):
            return None
        unknown = str.__new__(cls, value)
        unknown._name_ = unknown._value_ = value
        return unknown

    def __reduce_ex__(self, _protocol: object) -> tuple[type[Self], tuple[str]]:
        """Pickle by value: before Python 3.11.4, enums pickle by name, which a new code lacks."""
        return type(self), (self.value,)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason for a refusal: a sentence with subject, fact and expectation."""

    code: RefusalCode
    reason: str


class AttemptEnd(StrEnum):
    """How an attempt ended, as recorded in its outcome mark."""

    COMMITTED = "committed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"
    """No living coordinator or compactor held it."""
    DRAINED = "drained"
    CONFLICTED = "conflicted"
    """A concurrent change prevented its commit; the next attempt takes it into account."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """Outcome of an attempt's input rows: input equals output plus all other counts."""

    rows_in: int = 0
    rows_out: int = 0
    superseded: int = 0
    tombstones_dropped: int = 0
    expired_dropped: int = 0
    transform_dropped: int = 0
    """Rows of an append-only table that a transform deleted; keyed ones become tombstones."""
    changed: int = 0
    """Rows whose values a transform changed; also included in another count."""
    deleted: int = 0
    """Rows that a transform deleted, in any kind of table; also included in another count."""

    @property
    def balanced(self) -> bool:
        """Whether every input row is accounted for."""
        dropped = self.tombstones_dropped + self.expired_dropped + self.transform_dropped
        return self.rows_in == self.rows_out + self.superseded + dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedRows:
    """Dead rows that an attempt dropped: the ranges of their keys, and their highest version."""

    spans: tuple[tuple[bytes, bytes], ...]
    """Disjoint ranges of keys, both ends included, ascending; they contain every dropped key."""
    version_max: bytes

    def meets(self, low: bytes | None, high: bytes | None) -> bool:
        """Return whether keys from `low` to `high` may be among them; None: unknown."""
        at = 0 if low is None else bisect_left(self.spans, low, key=itemgetter(1))
        return at < len(self.spans) and (high is None or self.spans[at][0] <= high)


# --------------------------------------------------------------------------------------- Statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStatistics:
    """An analysis's counts for a file."""

    path: str
    size_bytes: int
    """Size at the time of the analysis; a different size means a different file."""
    live_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletStatistics:
    """An analysis's facts about the rows of a tablet. Bounded in size."""

    tablet_version: int
    """Version of the tablet that was read."""
    measured_at_s: float
    """The `now` of the row rules."""
    rows: int
    """Rows of all files."""
    updated_rows: int = 0
    """Rows that a newer row of the same key hides."""
    key_quantiles: tuple[bytes, ...] = ()
    """Keys, or prefixes of keys, that divide the rows into parts of similar bytes, ascending."""
    compared_rows: int = 0
    """Updates whose columns were compared with the row they hide; 0: columns were not read."""
    changed_shares: tuple[tuple[str, float], ...] = ()
    """Column → share of the compared updates that change it."""
    merged_share: float | None = None
    """Share of the delta rows whose older row is in the tablet: a merge leaves one row of the two.
    None: not measured."""
    merged_shares: tuple[tuple[str, float], ...] = ()
    """Column → the same, of the delta rows that concern the column: they change it, put or delete
    the whole row, or have no older row."""

    @property
    def updated_share(self) -> float:
        """Share of the rows that newer rows hide."""
        return self.updated_rows / self.rows if self.rows else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """The result of an analysis of a tablet, and its cost."""

    files: tuple[FileStatistics, ...]
    tablet_version: int
    """Version of the tablet that was read."""
    rows: int
    read_bytes: int
    """Stored bytes of the columns that were read."""
    elapsed_s: float
    tablet: TabletStatistics | None = None
    """For a table with a key: facts about the rows."""
