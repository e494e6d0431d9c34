"""How a change of metadata or an attempt ended."""

from bisect import bisect_left
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from typing import Self

from neve.api.messages import readable_across_releases


class RefusalCode(StrEnum):
    """Why a change or a call is refused: one stable word for programs.

    A code that only a newer release knows is kept as its text: it equals no member.
    """

    CALL_FORM = "call-form"
    """The call id is no UUIDv7, so nothing tells when it was made."""
    CALL_TOO_OLD = "call-too-old"
    """Nobody can tell any more whether the call was made before."""
    CALL_TOO_NEW = "call-too-new"
    """The call id carries a time in the future: the clock of the caller is wrong."""
    CALL_CONTENT = "call-content"
    """The call id was used before, for something else."""
    EXISTS = "exists"
    """The table, file or request is there already."""
    REPLACED = "replaced"
    """A compaction has replaced the file, and the collector will delete it."""
    RETIRED = "retired"
    """A file of this name was deleted a short while ago."""
    LOOK_TOO_OLD = "look-too-old"
    """Too much time has passed since the files were looked at: look again."""
    GENERATION = "generation"
    """The store has gone back in time: it is older than the table's location."""
    PIN = "pin"
    """The pin has run out, or the store has forgotten it."""
    NAME = "name"
    """The name of the table is no DNS label."""
    LOCATION = "location"
    """The location overlaps the location of another table."""
    TABLE = "table"
    """The table does not exist, or its state does not allow the change."""
    STATE = "state"
    """The table must be paused first."""
    PAUSED = "paused"
    """The table is paused."""
    VERSION = "version"
    """What the change was made for has another version by now."""
    TABLET = "tablet"
    """The tablet does not exist: look it up again."""
    BOUNDS = "bounds"
    """The keys do not fit the bounds of the tablet, or its bounds have changed."""
    OPERATION = "operation"
    """A split or merge of the tablet is under way."""
    CROSSES = "crosses"
    """The file has keys on both sides of the key where the tablet is being split."""
    PURGED = "purged"
    """The file has versions at or below those whose tombstones are gone."""
    FILES = "files"
    """The change names no file, a file twice, or too many files."""
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
    """The request or the table has as many entries as it may have."""
    TOO_LARGE = "too-large"
    """The selection is larger than one change may be."""
    HOLD = "hold"
    """The hold on the selected files does not allow it."""
    RESULTS = "results"
    """Files of the selection have not been rewritten yet."""
    RUNNING = "running"
    """Attempts are running on the files."""
    RELEASED = "released"
    """The attempt holds no reservation."""
    RESURFACE = "resurface"
    """A file that came later may hold rows older than those that the attempt dropped."""
    OUTPUTS = "outputs"
    """The attempt did not reserve the outputs."""
    WATERMARK = "watermark"
    """The watermark of the tablet does not allow it."""
    COORDINATOR = "coordinator"
    """Another coordinator has taken over."""
    LIMITS = "limits"
    """As many limits are set as may be."""
    MANIFESTS = "manifests"
    """As many manifests are stored as may be."""
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
    """The attempt has ended: a change that came in between stood in its way."""
    CONFLICT = "conflict"
    """Other changes came first each time; nothing was written."""
    METADATA = "metadata"
    """The metadata could not be read or written."""

    @classmethod
    def _missing_(cls, value: object) -> "RefusalCode | None":
        """Keep the code of a newer release, so that its sender can still be understood."""
        if not isinstance(value, str):
            return None
        unknown = str.__new__(cls, value)
        unknown._name_ = unknown._value_ = value
        return unknown

    def __reduce_ex__(self, _protocol: object) -> tuple[type[Self], tuple[str]]:
        """Be pickled by value: before Python 3.11.4 it would be by name, which a new code lacks."""
        return type(self), (self.value,)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something is not allowed now: a sentence with subject, fact and expectation."""

    code: RefusalCode
    reason: str


class AttemptEnd(StrEnum):
    """How an attempt ended, as its outcome mark tells."""

    COMMITTED = "committed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"
    """Nobody alive stood behind it."""
    DRAINED = "drained"
    CONFLICTED = "conflicted"
    """Something that came meanwhile stood in the way of its commit; the next one knows of it."""


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """What happened to the rows of an attempt: in = out + all the others together."""

    rows_in: int = 0
    rows_out: int = 0
    superseded: int = 0
    tombstones_dropped: int = 0
    expired_dropped: int = 0
    transform_dropped: int = 0
    """Rows of an append-only table that a transform deleted; keyed ones become tombstones."""
    changed: int = 0
    """Rows that a transform has given values; they are counted elsewhere, too."""
    deleted: int = 0
    """Rows that a transform deleted, of whatever table; they are counted elsewhere, too."""

    @property
    def balanced(self) -> bool:
        """Whether every row that came in is accounted for."""
        dropped = self.tombstones_dropped + self.expired_dropped + self.transform_dropped
        return self.rows_in == self.rows_out + self.superseded + dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedRows:
    """Dead rows that an attempt dropped: where their keys lie, and the highest version of them."""

    spans: tuple[tuple[bytes, bytes], ...]
    """Ranges of keys, both ends included, ascending and apart: each key is in one of them."""
    version_max: bytes

    def meets(self, low: bytes | None, high: bytes | None) -> bool:
        """Return whether keys from `low` to `high` may be among them; None: not known."""
        at = 0 if low is None else bisect_left(self.spans, low, key=itemgetter(1))
        return at < len(self.spans) and (high is None or self.spans[at][0] <= high)


# --------------------------------------------------------------------------------------- Statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStatistics:
    """What an analysis has counted of a file."""

    path: str
    size_bytes: int
    """As it was when it was read: another size is another file."""
    live_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletStatistics:
    """What an analysis has found about the rows of a tablet. Bounded in size."""

    tablet_version: int
    """Of the tablet as it was read."""
    measured_at_s: float
    """The `now` of the row rules."""
    rows: int
    """Rows of all files."""
    updated_rows: int = 0
    """Those that a newer row of the same key hides."""
    key_quantiles: tuple[bytes, ...] = ()
    """Keys, or beginnings of keys, that cut the rows into parts of about equal bytes, ascending."""
    compared_rows: int = 0
    """Updates whose columns were compared with the row that they hide; 0: columns were not read."""
    changed_shares: tuple[tuple[str, float], ...] = ()
    """Column → share of the compared updates that change it."""
    merged_share: float | None = None
    """Of the rows of deltas, the share whose older row is in the tablet: a merge leaves one row of
    both. Rows are whole, so it is the same for all columns. None: not looked at."""

    @property
    def updated_share(self) -> float:
        """Share of the rows that are hidden by newer ones."""
        return self.updated_rows / self.rows if self.rows else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What an analysis has counted in a tablet, and what that has cost."""

    files: tuple[FileStatistics, ...]
    tablet_version: int
    """Of the tablet as it was read."""
    rows: int
    read_bytes: int
    """Stored bytes of the columns that were read."""
    elapsed_s: float
    tablet: TabletStatistics | None = None
    """Of a table with a key: what was found about its rows."""
