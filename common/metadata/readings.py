"""What a store tells besides tables, tablets and requests: feed, marks, garbage, pins, history."""

from dataclasses import dataclass

from common.model.outcome import AttemptEnd
from common.model.tablet import TabletId


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletChanged:
    """One entry of a table's change stream."""

    tablet: TabletId
    what: str
    """The change's word: `add`, `reserve`, `commit`, `release`, …"""
    position: str
    """Where in the stream it stands; reading goes on after it."""
    attempt: str | None = None
    request: str | None = None
    """The request whose doing it was, or that itself changed (`whole_table`, word `request`)."""

    @property
    def whole_table(self) -> bool:
        """Whether the table itself changed (settings, state, a request), not one of its tablets."""
        return not self.tablet.end


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutcome:
    """The mark `neve:{t}:outcome:<attempt>`: how an attempt ended (kept for 24 h)."""

    attempt: str
    end: AttemptEnd
    cause: str = ""
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageEntry:
    """A file to delete: when a collector first saw it (0: not yet), and its tablet's key."""

    path: str
    stamped_s: float
    key_min: bytes | None = None
    tablet_end: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The last published manifest of a table."""

    number: int
    path: str
    begun_s: float
    """The store's time from before its reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinEntry:
    """A reader's or backup's pin."""

    pin: str
    since_s: float
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """A finished attempt, for people: what, where, how long, what came of it."""

    position: str
    attempt: str
    job: str
    tablet: TabletId
    kind: str
    end: str
    group: str
    compactor: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    bytes_in: int
    bytes_out: int
    rows_in: int
    rows_out: int
    started_s: float
    ended_s: float
    reason: str = ""
    cause: str = ""
