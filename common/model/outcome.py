"""How a change of metadata or an attempt ended."""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something is not allowed now: a sentence with subject, fact and expectation.

    `code` is one stable word for programs (`gone`, `reserved`, `selected`, `waiting`,
    `operation`, `paused`, `purged`, `bounds`, `exists`, …).
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

    @property
    def balanced(self) -> bool:
        """Whether every row that came in is accounted for."""
        dropped = self.tombstones_dropped + self.expired_dropped + self.transform_dropped
        return self.rows_in == self.rows_out + self.superseded + dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedRows:
    """Dead rows that an attempt dropped: their key range and the highest version among them."""

    key_min: bytes
    key_max: bytes
    version_max: bytes
