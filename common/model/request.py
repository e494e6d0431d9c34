"""A request: a user's compaction of a key range of a table, and its progress.

Also the key ranges of tablets as half-open ranges, the form that requests use.

The range is half open and uses order-preserving bytes. Its tablets are looked up at every step,
because they may split and merge in between. See protocol, requests.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from common.model.fields import StoredValue
from common.model.tablet import PLUS_INFINITY, Bounds, TabletId
from neve.api.messages import readable_across_releases

AUTOMATIC_PREFIX = "auto-"
"""Beginning of the ids of requests that the service creates for a table with a selector."""


class RequestState(StrEnum):
    """State of a request."""

    ACTIVE = "active"
    CANCELLING = "cancelling"
    """Its holds and markers are being removed; it ends as CANCELLED or FAILED."""
    DONE = "done"
    DONE_IN_PART = "done_in_part"
    """Done except in ranges that were cancelled separately."""
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Whether the request has reached a final state."""
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
        # The first key of the tablet is `after` with an appended zero byte.
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
    """A stored transform: validated text, or a plug-in's name with its options."""

    kind: TransformKind = TransformKind.NONE
    text: str = ""
    """The user's text; it was parsed against the table's schema at submission."""
    name: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorSpec(StoredValue):
    """How a request chooses files of a tablet: a selector's name and its options."""

    name: str = "all"
    options: Mapping[str, str] = field(default_factory=dict)


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec(StoredValue):
    """Output settings that differ from the table's."""

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
    """Hints for dispatchers, planners and configurers."""
    boost: int = 0
    """Added to the priority of its jobs."""
    deadline_s: float | None = None
    """Time at which it fails if it is not done."""
    automatic: bool = False
    """Whether the table's selector created it, not a user."""
    state: RequestState = RequestState.ACTIVE
    cause: str = ""
    """Why it is being cancelled or has failed."""
    fails: bool = False
    """While CANCELLING: whether it ends as FAILED instead of CANCELLED."""
    cancelled_ranges: tuple[KeyRange, ...] = ()
    """Ranges that were cancelled separately."""
    submitted_at_s: float = 0.0
    ended_at_s: float | None = None

    @property
    def done_state(self) -> RequestState:
        """Final state after it is done in every tablet."""
        return RequestState.DONE_IN_PART if self.cancelled_ranges else RequestState.DONE

    def means(self, key: bytes) -> bool:
        """Return whether a row is to be transformed: in the range, and not cancelled."""
        return self.range.holds(key) and not any(part.holds(key) for part in self.cancelled_ranges)


class TabletProgress(StrEnum):
    """State of a request in one tablet."""

    PENDING = "pending"
    WAITING = "waiting"
    """Its marker is set; it selects files after the running jobs end."""
    SELECTED = "selected"
    DONE = "done"
    CANCELLED = "cancelled"


# ---- Ranges of tablets as requests speak of them
#
# Bounds exclude their start and include their end. Ranges include their start and exclude their
# end. The key after another is that key with an appended zero byte. A tablet that is one partition
# has no keys between bounds; its end represents it.


def first_key(bounds: Bounds) -> bytes | None:
    """Return the first bytes that a key of a tablet may have; None: no lower bound."""
    if bounds.partition is not None:
        return bounds.end
    return None if bounds.start is None else bounds.start + b"\x00"


def key_range_of(first: Bounds, last: Bounds | None = None) -> KeyRange:
    """Return the keys of one tablet, or of all tablets between two, and of no other tablet.

    Args:
        first: Bounds of the first tablet.
        last: Bounds of the last tablet; None: there is only one.
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
    """Progress of a request in one tablet."""

    tablet: TabletId
    state: TabletProgress
    reason: str
    """Why it is waiting, or its result: a human-readable sentence."""
    files: int = 0
    """Files of its selection; 0 unless SELECTED."""
    results: int = 0
    """Selected files that its jobs wrote."""
    bytes_left: int = 0
    """Bytes that its jobs have still to rewrite; before it selects: all files in its range."""
    completed_jobs: int = 0
    running: tuple[str, ...] = ()
    """Its running attempts."""
