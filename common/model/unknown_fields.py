"""Fields of a stored value that a newer release has added and this one does not know.

While releases are exchanged one process after the other, an older one reads what a newer
one has written, and writes some of it back. Such fields belong to the value: they are
read with it, go along with `dataclasses.replace`, and are written back as they were.
They say nothing to this release, so they count neither for equality nor for people.
"""

from collections.abc import Iterable
from dataclasses import Field, asdict, dataclass, field, fields
from typing import Any

UNKNOWN = "unknown_fields"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A value that is stored, and may carry fields of a newer release."""

    unknown_fields: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    """Values in their order behind the known ones, or pairs of name and value."""


def known_fields(value: Any) -> tuple[Field[Any], ...]:
    """Return the fields of a dataclass, or of a value of it, that this release knows."""
    return tuple(each for each in fields(value) if each.name != UNKNOWN)


def as_plain(value: Any) -> dict[str, Any]:
    """Return a dataclass and those inside it as mappings, without unknown fields."""
    return asdict(value, dict_factory=_known)


def _known(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in pairs if name != UNKNOWN}
