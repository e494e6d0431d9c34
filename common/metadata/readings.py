"""What a store tells besides tables, tablets and requests: feed, marks, garbage, pins, history."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from common.model.location_identity import LocationIdentity, identity_of_uri
from common.model.outcome import AttemptEnd
from common.model.table import Table
from common.model.tablet import TabletId
from common.model.unknown_fields import Stored

UNREADABLE = "unreadable"
"""The word of a change of which nobody can say what it was, or in which tablet."""


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
class NamedTable:
    """An entry of `neve:tables`: which table has a name, and where its files are."""

    name: str
    id: str
    location: str
    identity: LocationIdentity
    """As it was found when the table was made; of older entries, what the URI tells."""

    @classmethod
    def of(
        cls, name: str, table: str, location: str, identity: LocationIdentity | None = None
    ) -> "NamedTable":
        """Return an entry; one without an identity has that of its URI."""
        known = identity or identity_of_uri(location)
        return cls(name=name, id=table, location=location, identity=known)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A tablet of which something is stored that cannot be decoded: nobody knows what it holds."""

    id: TabletId
    cause: str
    """Names the key, and what is wrong with its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTables:
    """The tables that have a name, as far as they can be read."""

    tables: tuple[Table, ...]
    """By name."""
    broken: Mapping[str, str]
    """Name of each other table → what of it cannot be decoded."""
    broken_ids: frozenset[str]
    """Ids of these tables, as far as they are known."""

    def may_be_gone(self, table: str) -> bool:
        """Return whether a table that is not among them may have been dropped."""
        return len(self.broken) == len(self.broken_ids) and table not in self.broken_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutcome(Stored):
    """The mark `neve:{t}:outcome:<attempt>`: how an attempt ended (kept for 24 h)."""

    attempt: str
    end: AttemptEnd
    cause: str = ""


class CallKind(StrEnum):
    """What a call did."""

    ADD = "add"
    APPEND = "append"
    COMPACT = "compact"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMark(Stored):
    """The mark `neve:{t}:call:<id>`: what an accepted call brought (kept for 24 h)."""

    kind: CallKind
    content: str
    """Digest of what was asked for; the same id with another one is another call."""
    at_s: float
    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    names: str = ""
    """Digest of the names of the files alone, which can be compared when they are gone."""
    tablets: tuple[str, ...] = ()
    """Ends of the tablets that took the files; empty if they were many."""
    request: str = ""
    """Of a compaction: the id of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageEntry(Stored):
    """A file to delete: when a collector first saw it (0: not yet), and its tablet's key."""

    path: str
    stamped_s: float
    key_min: bytes | None = None
    tablet_end: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Stored):
    """Who leads (`neve:coordinator`), and since when by the store's clock."""

    coordinator: str
    since_s: float
    """Later than every claim that it replaced: an older one is what a store has gone back to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss(Stored):
    """Somebody accepted that a store had lost changes of a table (`neve:{t}:loss`)."""

    since_s: float
    """Before that nothing was lost: the last manifest known then was begun; 0: not known."""
    until_s: float
    """When it was accepted, the last time. What is younger was not lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(Stored):
    """The last published manifest of a table, and those before it that are still stored."""

    number: int
    path: str
    begun_s: float
    """The store's time from before its reads."""
    published_s: float = 0.0
    """The store's time when its pointer was out."""
    earlier: tuple[tuple[int, str, float, float], ...] = ()
    """Number, path, begun and published of each, newest first."""

    def covered_s(self, now_s: float, grace_s: float) -> float | None:
        """Return up to when readers know what was replaced; None: nobody can say.

        Files stamped before that moment are in no manifest that a reader may still hold:
        one begun after it has been out for the grace.

        Args:
            now_s: The store's time.
            grace_s: How long a reader may go on with what it has listed.
        """
        every = ((self.begun_s, self.published_s), *((each[2], each[3]) for each in self.earlier))
        known = [begun_s for begun_s, out_s in every if out_s and now_s - out_s >= grace_s]
        return max(known, default=None)

    def outdated(self, now_s: float, grace_s: float) -> tuple[str, ...]:
        """Return the paths of manifests that nobody reads any more: replaced a grace ago."""
        published = [self.published_s, *(each[3] for each in self.earlier)]
        return tuple(
            each[1]
            for each, replaced_s in zip(self.earlier, published, strict=False)
            if now_s - replaced_s >= grace_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PinEntry(Stored):
    """A reader's or backup's pin."""

    pin: str
    since_s: float
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry(Stored):
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
    request: str | None = None
    """The user request of its job."""
    superseded: int = 0
    """Rows that newer ones of their keys have replaced, like the following: of a commit."""
    tombstones_dropped: int = 0
    expired_dropped: int = 0
    transform_dropped: int = 0
    rows_changed: int = 0
    rows_deleted: int = 0
