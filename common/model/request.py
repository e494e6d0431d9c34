"""A request: a user's wish to compact a range of a table, and how far it has come.

The range is of keys, half open, as order-preserving bytes; the tablets in it are looked
up at every step, for they may split and merge meanwhile. See protocol, requests.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from common.model.unknown_fields import Stored


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


@dataclass(frozen=True, slots=True)
class KeyRange(Stored):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSpec(Stored):
    """A transform as it is stored: checked text, or a plug-in's name with its options."""

    kind: TransformKind = TransformKind.NONE
    text: str = ""
    """As the user wrote it; parsed against the table's schema when it was submitted."""
    name: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorSpec(Stored):
    """Which files of a tablet a request takes: a selector's name and its options."""

    name: str = "all"
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec(Stored):
    """How outputs are written, where it differs from the table's settings."""

    codec: str | None = None
    codec_level: int | None = None
    row_group_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Stored):
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
