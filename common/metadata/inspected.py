"""A tablet as `neve fsck` sees it: every key read, whatever its record says."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.model.tablet import Tablet, TabletId


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """What was found under the keys of one tablet, at one moment."""

    id: TabletId
    tablet: Tablet | None = None
    """None: its bounds are not there, or something cannot be decoded."""
    broken: str = ""
    """What cannot be decoded, and why."""
    miscounted: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """What the record counts wrongly → what it says, what is there."""
    outcomes: frozenset[str] = frozenset()
    """Attempts among the running ones whose outcome is written."""
    ended: frozenset[str] = frozenset()
    """Requests with a selection or marker here that have ended, or do not exist."""
