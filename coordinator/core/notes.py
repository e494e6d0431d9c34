"""What planners last said of a tablet, for `explain` and for notes in the store."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The last plan of a tablet. May be forgotten at any time: nothing is decided by it alone."""

    table_name: str
    version: int
    """The record's version that the plan was made from."""
    settings_version: int
    planned_s: float
    left: Mapping[str, str] = field(default_factory=dict)
    """Path → why no job takes it."""
    wanted: int = 0
    """Jobs of the plan."""
    holds: tuple[str, ...] = ()
    """Which requests hold files, or wait to; a sentence each."""
    held: tuple[str, ...] = ()
    """Why jobs of the plan were not queued, a sentence each."""
    failure: str = ""
    """Why planning failed; empty if it did not."""
    failures: int = 0
    """In a row."""
