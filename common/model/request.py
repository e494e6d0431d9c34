"""A request: a user's wish to compact a range of a table, and how far it has come.

Also which keys tablets hold, as the half-open ranges that requests speak of.

The range is of keys, half open, as order-preserving bytes; the tablets in it are looked up at
every step, for they may split and merge meanwhile. See protocol, requests.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from common.model.fields import StoredValue
from common.model.tablet import PLUS_INFINITY, Bounds, TabletId
from neve.api.messages import readable_across_releases


class RequestState(StrEnum):
    """Where a request is in its life."""

    ACTIVE = "active"
    CANCELLING = "cancelling"
    """Its holds and markers are being removed; it ends CANCELLED or FAILED."""
    DONE = "done"
    DONE_IN_PART = "done_in_part"
    """Done but for the ranges that were cancelled by themselves."""
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to the request."""
        return self not in {RequestState.ACTIVE, RequestState.CANCELLING}


@readable_across_releases
@dataclass(frozen=True, slots=True)
class KeyRange(StoredValue):
    """Keys from `start` (included) up to `until` (not included); None: no bound."""

    start: bytes | None = None
    until: bytes | None = None

    def holds(self, key: bytes) -> bool:
        """Return whether a key lies in the range."""
        return (self.start is None or key >= self.start) and (
            self.until is None or key < self.until
        )

    def meets(self, after: bytes | None, last: bytes) -> bool:
        """Return whether a tablet with the keys `(after, last]` may hold keys of the range."""
        # The first key of the tablet is the first behind `after`: `after` and a zero byte.
        begins_before_end = self.until is None or after is None or after + b"\x00" < self.until
        ends_after_start = self.start is None or last >= self.start
        return begins_before_end and ends_after_start


class TransformKind(StrEnum):
    """What a request does to the rows that it rewrites."""

    NONE = "none"
    DELETE_WHERE = "delete-where"
    SET = "set"
    PLUGIN = "plugin"


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSpec(StoredValue):
    """A transform as it is stored: checked text, or a plug-in's name with its options."""

    kind: TransformKind = TransformKind.NONE
    text: str = ""
    """As the user wrote it; parsed against the table's schema when it was submitted."""
    name: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorSpec(StoredValue):
    """Which files of a tablet a request takes: a selector's name and its options."""

    name: str = "all"
    options: Mapping[str, str] = field(default_factory=dict)


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec(StoredValue):
    """How outputs are written, where it differs from the table's settings."""

    codec: str | None = None
    codec_level: int | None = None
    row_group_bytes: int | None = None


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Request(StoredValue):
    """One user compaction. Times in seconds since the epoch (the store's)."""

    id: str
    table: str
    range: KeyRange = KeyRange()
    selector: SelectorSpec = field(default_factory=SelectorSpec)
    transform: TransformSpec = field(default_factory=TransformSpec)
    output: OutputSpec = field(default_factory=OutputSpec)
    hints: Mapping[str, str] = field(default_factory=dict)
    """For dispatchers, planners and configurers."""
    boost: int = 0
    """Added to the priority of its jobs."""
    deadline_s: float | None = None
    """When it fails if it is not done."""
    automatic: bool = False
    """Made by the service for a selector that the table has, not by a person."""
    state: RequestState = RequestState.ACTIVE
    cause: str = ""
    """Why it is being cancelled or failed."""
    fails: bool = False
    """While CANCELLING: whether it ends FAILED rather than CANCELLED."""
    cancelled_ranges: tuple[KeyRange, ...] = ()
    """Parts that were cancelled by themselves."""
    submitted_at_s: float = 0.0
    ended_at_s: float | None = None

    @property
    def done_state(self) -> RequestState:
        """The state in which it ends when it is done in every tablet."""
        return RequestState.DONE_IN_PART if self.cancelled_ranges else RequestState.DONE

    def means(self, key: bytes) -> bool:
        """Return whether a row is to be transformed: in the range, and not cancelled."""
        return self.range.holds(key) and not any(part.holds(key) for part in self.cancelled_ranges)


class TabletProgress(StrEnum):
    """Where a request is in one tablet."""

    PENDING = "pending"
    WAITING = "waiting"
    """Its marker stands: it selects when the running jobs are over."""
    SELECTED = "selected"
    DONE = "done"
    CANCELLED = "cancelled"


# ---- Ranges of tablets as requests speak of them
#
# Bounds exclude their start and include their end, ranges the other way round: the first key
# behind another is that key and a zero byte. A tablet that is one partition has no keys between
# bounds; its end stands for it.


def first_key(bounds: Bounds) -> bytes | None:
    """Return the first bytes that a key of a tablet may have; None: from the beginning."""
    if bounds.partition is not None:
        return bounds.end
    return None if bounds.start is None else bounds.start + b"\x00"


def key_range_of(first: Bounds, last: Bounds | None = None) -> KeyRange:
    """Return the keys of a tablet, or of all from one to another: no other tablet meets them.

    Args:
        first: Of the first tablet.
        last: Of the last one; None: there is only one.
    """
    last = first if last is None else last
    whole = last.partition is None and last.end == PLUS_INFINITY
    return KeyRange(first_key(first), None if whole else last.end + b"\x00")


def covers(keys: KeyRange, bounds: Bounds) -> bool:
    """Return whether every key of a tablet is in a range."""
    first = first_key(bounds)
    begins = keys.start is None or (first is not None and first >= keys.start)
    return begins and (keys.until is None or bounds.end < keys.until)


# ----------------------------------------------------------------------------------------- Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestProgressInTablet:
    """How far a request has come in one tablet."""

    tablet: TabletId
    state: TabletProgress
    reason: str
    """Why it is not further, or what came of it: a sentence that a person understands."""
    files: int = 0
    """Files of its selection; 0 unless SELECTED."""
    results: int = 0
    """Those among them that its jobs made."""
    bytes_left: int = 0
    """Bytes that no job of it has rewritten yet; before it selects: of all files in its range."""
    completed_jobs: int = 0
    running: tuple[str, ...] = ()
    """Its attempts under way."""
