"""What a check found: a code, where, a sentence, and the changes that would mend it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from common.metadata.changes import Change, Guarded
from common.model.tablet import TabletId


class FindingCode(StrEnum):
    """What is wrong. Stable words, for programs."""

    MISSING = "missing"
    """A tablet holds a file that storage does not have."""
    ORPHANED = "orphaned"
    """Storage has a file of ours that no key knows."""
    EVIDENCE = "evidence"
    """Storage has a file of ours that may hold the only copy of rows: nothing deletes it."""
    UNKNOWN = "unknown"
    """Storage has a file of a user that no key knows: perhaps it is to be added."""
    CORRUPT = "corrupt"
    """A file cannot be read."""
    DIFFERENT = "different"
    """A file can be read, but is not what its entry says."""
    LAYOUT = "layout"
    """A file can be read, but its column chunks lie so that some readers miss rows."""
    OUTSIDE = "outside"
    """A file has keys outside its tablet."""
    DOUBLE = "double"
    """Two tablets hold the same file."""
    HOLE = "hole"
    """Keys that belong to no tablet."""
    OVERLAP = "overlap"
    """Keys that belong to two tablets."""
    COUNTS = "counts"
    """A record counts something else than there is."""
    UNDECODABLE = "undecodable"
    """A key holds what this release cannot read."""
    STALE_RESERVATION = "stale-reservation"
    """An attempt has ended, but its reservation stands."""
    STALE_MARKS = "stale-marks"
    """A request has ended, but a selection or marker of it stands."""
    STALE_SELECTION = "stale-selection"
    """A selection names files that the tablet does not hold."""
    STALE_GARBAGE = "stale-garbage"
    """A file in use waits for deletion."""
    STALE_PIN = "stale-pin"
    """A pin whose lease ended long ago."""
    FOREIGN = "foreign"
    """Storage has a file that was written for another table: it is left alone."""
    OWNER = "owner"
    """The location belongs to another store or table, or to none."""
    SHARED = "shared"
    """The location is another table's, too, by another name."""
    OTHER_FORMAT = "other-format"
    """The location shares files with a table of another format: nothing is deleted there."""
    GENERATION = "generation"
    """The store is older than the location: it has gone back in time."""


NOTES = frozenset({FindingCode.UNKNOWN, FindingCode.FOREIGN})
"""Codes of findings that are no damage."""

UNDER_WAY = frozenset({FindingCode.LAYOUT})
"""Codes of findings whose repair lets others mend them: until then they are damage."""

Act = Callable[[], None]
"""A repair in storage. Runs in a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be."""

    code: FindingCode
    sentence: str
    repair: str = ""
    """What `--repair` does, or which option does it; empty: nothing does."""
    path: str | None = None
    tablet: TabletId | None = None
    changes: tuple[Change, ...] = ()
    """What mends it, if the options allow: each is refused if the damage is gone."""
    act: Act | None = field(default=None, compare=False)

    def __hash__(self) -> int:
        """Return a hash that leaves the changes out: some of them have none."""
        return hash((self.code, self.path, self.tablet, self.sentence))

    def changes_at(self, generation: int) -> Iterator[Change]:
        """Yield what mends it, as a store refuses it that has gone back in time.

        Args:
            generation: The one of the table's location, seen before the damage was.
        """
        for change in self.changes:
            yield replace(change, generation=generation) if isinstance(change, Guarded) else change


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairedFinding:
    """What became of a finding when it was repaired."""

    finding: Finding
    done: bool
    outcome: str = ""
    """Why it was not done."""
