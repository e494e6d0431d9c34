"""Findings of a check: a code, a location, a sentence, and the changes that repair the damage."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from common.metadata.changes import Change, Guarded
from common.model.tablet import TabletId


class FindingCode(StrEnum):
    """Kind of a finding. The values are stable words for programs."""

    MISSING = "missing"
    """A tablet holds a file that storage does not have."""
    ORPHANED = "orphaned"
    """Storage has a file of the service that no metadata refers to."""
    EVIDENCE = "evidence"
    """Storage has a file of the service that may hold the only copy of rows; it is kept."""
    UNKNOWN = "unknown"
    """Storage has a file of a user that no metadata refers to; perhaps it is still to be added."""
    CORRUPT = "corrupt"
    """A file cannot be read."""
    DIFFERENT = "different"
    """A file can be read, but differs from its metadata entry."""
    LAYOUT = "layout"
    """A file can be read, but some readers miss rows because of the layout of its column chunks."""
    OUTSIDE = "outside"
    """A file has keys outside its tablet."""
    DOUBLE = "double"
    """Two tablets hold the same file."""
    HOLE = "hole"
    """Keys that belong to no tablet."""
    OVERLAP = "overlap"
    """Keys that belong to two tablets."""
    COUNTS = "counts"
    """A count in the metadata differs from the actual number."""
    UNDECODABLE = "undecodable"
    """This release cannot decode the value of a store key."""
    STALE_RESERVATION = "stale-reservation"
    """An attempt has ended, but its reservation still exists."""
    STALE_MARKS = "stale-marks"
    """A request has ended, but one of its selections or markers still exists."""
    STALE_SELECTION = "stale-selection"
    """A selection names files that the tablet does not hold."""
    STALE_GARBAGE = "stale-garbage"
    """A file in use waits for deletion."""
    STALE_PIN = "stale-pin"
    """A pin whose lease ended long ago."""
    FOREIGN = "foreign"
    """Storage has a file that was written for another table; it stays untouched."""
    OWNER = "owner"
    """The location belongs to another store or table, or to none."""
    SHARED = "shared"
    """Another table uses the same location under another name."""
    OTHER_FORMAT = "other-format"
    """The location shares files with a table of another format; nothing is deleted there."""
    GENERATION = "generation"
    """The store is older than the location: the store has gone back in time."""


NOTES = frozenset({FindingCode.UNKNOWN, FindingCode.FOREIGN})
"""Codes of findings that are not damage."""

UNDER_WAY = frozenset({FindingCode.LAYOUT})
"""Codes whose repair only lets another component fix the damage; until then it remains."""

Act = Callable[[], None]
"""A repair in storage. Runs in a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One deviation from the expected state."""

    code: FindingCode
    sentence: str
    repair: str = ""
    """What `--repair` does, or which option repairs it; empty: no option does."""
    path: str | None = None
    tablet: TabletId | None = None
    changes: tuple[Change, ...] = ()
    """Changes that repair the damage, if the options allow; refused once the damage is gone."""
    act: Act | None = field(default=None, compare=False)

    def __hash__(self) -> int:
        """Return a hash without the changes, because some changes are not hashable."""
        return hash((self.code, self.path, self.tablet, self.sentence))

    def changes_at(self, generation: int) -> Iterator[Change]:
        """Yield the repairing changes, guarded so that a store that went back in time refuses them.

        Args:
            generation: Generation of the table's location, read before the damage was found.
        """
        for change in self.changes:
            yield replace(change, generation=generation) if isinstance(change, Guarded) else change


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairedFinding:
    """Outcome of the repair of a finding."""

    finding: Finding
    done: bool
    outcome: str = ""
    """Why the repair was not done."""
