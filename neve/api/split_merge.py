"""Wire models of splits and merges: what is requested, and what is under way.

Like `neve.api.tables`, whose conventions hold here; nothing of the project is imported.
"""

from dataclasses import dataclass

from neve.api.tables import ShortText

STRICT = {"extra": "forbid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What to split: at a key, or a tablet into parts of about equal size."""

    __pydantic_config__ = STRICT

    at: ShortText | None = None
    """Last key of the left tablet, or a prefix of it."""
    tablet: ShortText | None = None
    """End of the tablet to split. The service chooses the keys."""
    into: int = 2
    """Number of parts with `tablet`, at most 64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """What to merge: a tablet with the next one, or all tablets of a range of keys."""

    __pydantic_config__ = STRICT

    tablet: ShortText | None = None
    """End of the left tablet."""
    start: ShortText | None = None
    """Key in the first tablet; None: the first tablet of the table."""
    end: ShortText | None = None
    """Key in the last tablet; None: the last tablet of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A split or merge under way."""

    id: str
    kind: str
    """`split` or `merge`."""
    step: str
    """`cut`, `drain` or `close`."""
    tablets: tuple[str, ...]
    """Ends of the tablets. A merge has two, the left tablet first."""
    left: str = ""
    """End of the left tablet. A split creates this tablet, a merge removes it."""
    at: str | None = None
    """Last key of the left tablet."""
    since_s: float = 0.0
    reason: str = ""
    """Why the operation was started."""
    waits: str = ""
    """What its next step waits for; empty: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedOperation:
    """The operation that was started."""

    operation: Operation | None = None
    """The operation under way; None: nothing is left to do."""
    keys: tuple[str, ...] = ()
    """Keys that a tablet is split at, in this order. The split at the first key is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """The splits and merges under way in a table."""

    operations: tuple[Operation, ...] = ()
