"""Wire models of splits and merges: what is wished for, and what is under way.

Like `neve.api.tables`, whose conventions hold here; nothing of the project is imported.
"""

from dataclasses import dataclass

STRICT = {"extra": "forbid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Where to split: at a key, or a tablet into parts of about equal bytes."""

    __pydantic_config__ = STRICT

    at: str | None = None
    """The last key of the left half; may be a prefix."""
    tablet: str | None = None
    """By its end; the service chooses the keys."""
    into: int = 2
    """With `tablet`: how many parts, at most 64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """What to merge: a tablet with the next one, or all that hold keys of a range."""

    __pydantic_config__ = STRICT

    tablet: str | None = None
    """The left one, by its end."""
    start: str | None = None
    """A key of the first tablet; None: the first of the table."""
    end: str | None = None
    """A key of the last tablet; None: the last of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A split or merge under way."""

    id: str
    kind: str
    """`split` or `merge`."""
    step: str
    """`cut`, `drain` or `close`."""
    tablets: tuple[str, ...]
    """By their ends; of a merge two, the left one first."""
    left: str = ""
    """End of the left tablet: a split makes it, a merge takes it away."""
    at: str | None = None
    """The last key of the left tablet."""
    since_s: float = 0.0
    reason: str = ""
    """Why it began."""
    waits: str = ""
    """What its next step waits for; empty: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedOperation:
    """What came of a wish."""

    operation: Operation | None = None
    """Under way now; None: nothing was left to do."""
    keys: tuple[str, ...] = ()
    """Of a split of a tablet: the keys to split at, in this order; the first is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """The splits and merges under way in a table."""

    operations: tuple[Operation, ...] = ()
