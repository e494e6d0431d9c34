"""Limits on bytes per second: of a compaction group, or of a volume that tables share."""

from dataclasses import dataclass
from enum import StrEnum

from common.errors import RequestError
from common.model.table import DNS_LABEL

DEFAULT_VOLUME = "default"
"""Of tables that name no other."""
LIMIT_BYTES_S_MIN = 64 * 1024
"""A lower limit than that would hold a single row group up for minutes."""


class ScopeKind(StrEnum):
    """What a limit is of."""

    GROUP = "group"
    """All attempts of a compaction group."""
    VOLUME = "volume"
    """All attempts on tables with this `volume` in their settings."""


@dataclass(frozen=True, slots=True, order=True)
class Scope:
    """Whatever has a limit of its own; every attempt is under two, its group and its volume."""

    kind: ScopeKind
    name: str

    @property
    def text(self) -> str:
        """The scope as the store and people write it: `group:default`."""
        return f"{self.kind.value}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> "Scope":
        """Return the scope of a text such as `volume:fast`.

        Raises:
            RequestError: It is none.
        """
        kind, _, name = text.partition(":")
        if kind not in set(ScopeKind) or not DNS_LABEL.fullmatch(name):
            raise RequestError(f"{text!r} is no scope, wanted group:<name> or volume:<name>")
        return cls(ScopeKind(kind), name)


def scopes_of(group: str, volume: str) -> tuple[Scope, Scope]:
    """Return what an attempt of a group on a volume is under."""
    return Scope(ScopeKind.GROUP, group), Scope(ScopeKind.VOLUME, volume)


def checked_limit(bytes_s: int, what: str) -> int:
    """Return a limit that may be set; 0 means none.

    Args:
        bytes_s: The limit.
        what: What it is of, for the message.

    Raises:
        RequestError: It is too low to work under.
    """
    if bytes_s == 0 or bytes_s >= LIMIT_BYTES_S_MIN:
        return bytes_s
    raise RequestError(
        f"limit of {what} is {bytes_s} bytes/s, wanted 0 (none) or {LIMIT_BYTES_S_MIN} at least"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What an attempt may move from now on, until the next grant; None: no limit."""

    attempt: str
    bytes_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeStatus:
    """A line of the listing of limits: a group or a volume, and what moves under it."""

    kind: str
    """`group` or `volume`."""
    name: str
    limit_bytes_s: int | None
    """None: no limit."""
    is_default: bool
    """Whether nobody has set a limit of its own."""
    rate_bytes_s: int | None
    """The limit, or less where the storage is slow."""
    granted_bytes_s: float | None
    """What its attempts may be applying together; None: some have no limit."""
    attempts: int
    throttled: int
    moved_bytes: int
    waited_s: float
