"""Wire models of limits on bytes per second. Like `neve.api`, whose conventions hold here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitWish:
    """A limit to set."""

    limit: int | str
    """Bytes per second, or a size such as `50MB`; 0: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What the rewrites of a compaction group, or of a volume, may move, and what they do."""

    kind: str
    """`group` or `volume`."""
    name: str
    limit_bytes_s: int | None
    """None: no limit."""
    is_default: bool = True
    """Whether it comes from the settings of the service."""
    rate_bytes_s: int | None = None
    """The limit, or less while the storage is slow."""
    granted_bytes_s: float | None = None
    """What its jobs may be using together; None: some have no limit."""
    attempts: int = 0
    throttled: int = 0
    """Jobs that had to wait lately."""
    moved_bytes: int = 0
    """Read and written since the coordinator was started."""
    waited_s: float = 0.0
    """Time that tasks have waited since then."""
