"""How a change of metadata or an attempt ended."""

from bisect import bisect_left
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter


class RefusalCode(StrEnum):
    """Why a call of a user, or a change at an old generation, is refused. Stable words."""

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


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something is not allowed now: a sentence with subject, fact and expectation.

    `code` is one stable word for programs: a `RefusalCode`, or one of `gone`, `reserved`,
    `selected`, `waiting`, `operation`, `paused`, `purged`, `bounds`, ….
    """

    code: str
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
