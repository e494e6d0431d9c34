"""The changes of repair and restore, as values: what `neve fsck`, `gc`, `restore` write.

Like `common.metadata.changes`, which joins them to `Change`. Each says what was seen, and
is refused if that is no longer so: a repair never overtakes the work that goes on.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from common.metadata.upkeep_changes import Guarded
from common.model.file import DataFile
from common.model.tablet import TabletId


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardFiles(Guarded):
    """Hand files that no key knows to the collector."""

    tablet: TabletId
    """Where the keys of these files belong; the collector looks there once more."""
    files: Mapping[str, bytes | None]
    """Path → smallest key, if the file can be read and has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetFiles(Guarded):
    """Take files out of a tablet whose bytes are lost. Refused: reserved or selected ones."""

    tablet: TabletId
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestateFile(Guarded):
    """Correct what is said of a file. Refused: it says something else by now."""

    tablet: TabletId
    before: DataFile
    after: DataFile


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveFile(Guarded):
    """Move a file's entry to the tablet that holds its keys."""

    tablet: TabletId
    target: TabletId
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RescueFile(Guarded):
    """Take a file that a tablet holds out of garbage."""

    tablet: TabletId
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecountRecord(Guarded):
    """Write the counts and flags of a tablet's record as its other keys have them."""

    tablet: TabletId


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReservation(Guarded):
    """Remove the reservation of an attempt whose outcome is written."""

    tablet: TabletId
    attempt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearMarks(Guarded):
    """Remove selection and markers of requests that have ended or do not exist."""

    tablet: TabletId
    requests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FillHole(Guarded):
    """Make the tablet that is missing between two others."""

    tablet: TabletId
    """Its end is where the next one starts."""
    start: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DropDouble(Guarded):
    """Take a file out of a tablet, because another one, which holds its keys, has it, too."""

    tablet: TabletId
    holder: TabletId
    """The tablet that keeps it."""
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimTablet(Guarded):
    """Let a tablet that reaches into the one before it begin where that one ends.

    Refused while a file of it lies, or may lie, below that.
    """

    tablet: TabletId
    before: bytes | None
    """Its start as it was seen."""
    start: bytes
    """The end of the tablet before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinTablets(Guarded):
    """Give everything of a tablet to the next one, which reaches into it.

    Refused while somebody works in one of them, and if dead rows were dropped in one of
    them that the other may hold older rows of.
    """

    left: TabletId
    right: TabletId
    """It keeps its end, and so its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutFiles:
    """Put files into a tablet of a paused table as they are: a restore, or a rebuild.

    What is there already is left alone, so that a repetition does no harm.
    """

    tablet: TabletId
    files: tuple[DataFile, ...]
    purge: bytes | None = None
    partition: str | None = None
    """Makes the tablet of a partitioned table if it is new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptGeneration:
    """Raise the table's generation, so that it is not behind its location any more."""

    table: str
    generation: int
    lost: bool = False
    """Whether changes were lost: then files that nobody knows may be rows of users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerWatermark(Guarded):
    """Let a tablet take rows again of versions at which tombstones were dropped.

    Rows that such a tombstone had deleted may come back with files that are added again.
    """

    tablet: TabletId
    to: bytes | None
    """The new watermark; None: none."""


RepairChange = (
    DiscardFiles
    | ForgetFiles
    | RestateFile
    | MoveFile
    | RescueFile
    | RecountRecord
    | EndReservation
    | ClearMarks
    | FillHole
    | DropDouble
    | TrimTablet
    | JoinTablets
    | PutFiles
    | AcceptGeneration
    | LowerWatermark
)
