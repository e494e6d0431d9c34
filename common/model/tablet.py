"""A tablet: a key range or partition of a table, its files, and the holds on them.

Also the small values in a tablet's keys: reservation, selection, operation, record.
`common.metadata.keys` documents the keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from common.model.fields import StoredValue
from common.model.file import ChunkGrid, DataFile
from common.model.job import Kind
from common.model.outcome import TabletStatistics
from neve.api.messages import readable_across_releases

PLUS_INFINITY = b"\xff"
"""End of the last tablet: sorts after every encoded key."""


@readable_across_releases
@dataclass(frozen=True, slots=True, order=True)
class TabletId:
    """Identifies a tablet permanently: the table's random id and the tablet's end.

    `end` is the encoded last key of the tablet, inclusive. It is `PLUS_INFINITY` for the
    last tablet, or the encoded partition values of a partitioned table.
    """

    table: str
    end: bytes

    @property
    def text(self) -> str:
        """The end as text that is safe in paths, logs and URLs: hex, or `last`."""
        return "last" if self.end == PLUS_INFINITY else self.end.hex()

    def __str__(self) -> str:
        """Return `<table>;<end>`."""
        return f"{self.table};{self.text}"

    @classmethod
    def parse(cls, table: str, text: str) -> "TabletId":
        """Return the tablet id for a `text`.

        Raises:
            ValueError: The text is neither `last` nor hex.
        """
        return cls(table, PLUS_INFINITY if text == "last" else bytes.fromhex(text))


@readable_across_releases
@dataclass(frozen=True, slots=True)
class Bounds(StoredValue):
    """The keys of a tablet: `(start, end]`. `start` None: no lower bound.

    A tablet of a partitioned table has `partition` instead (`month=1/day=2`), holds
    only rows with these values, and is not part of a sequence of ranges.
    """

    start: bytes | None
    end: bytes
    partition: str | None = None

    def holds(self, key_min: bytes, key_max: bytes) -> bool:
        """Return whether all keys from `key_min` to `key_max` are in these bounds."""
        return (self.start is None or key_min > self.start) and key_max <= self.end


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation(StoredValue):
    """Exclusive right of one attempt to replace these files. Stored in `running[attempt]`."""

    attempt: str
    job: str
    kind: Kind
    inputs: tuple[str, ...]
    output_prefix: str
    """Outputs are `<output_prefix>-<n>.parquet`, n from 0 to `outputs_max` - 1."""
    outputs_max: int
    group: str
    compactor: str
    since_s: float
    now_s: float
    """The `now` of the row rules of this attempt (expiry), fixed when it was reserved."""
    request: str | None = None

    def output_path(self, number: int) -> str:
        """Return the path of output `number`, which must be below `outputs_max`."""
        assert 0 <= number < self.outputs_max, (number, self.outputs_max)
        return f"{self.output_prefix}-{number}.parquet"

    @property
    def output_paths(self) -> tuple[str, ...]:
        """Every path that the attempt may write."""
        return tuple(self.output_path(number) for number in range(self.outputs_max))


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection(StoredValue):
    """The files that a request has chosen in one tablet, held against SYSTEM jobs."""

    request: str
    files: tuple[str, ...]
    results: tuple[str, ...] = ()
    """Selected files that jobs of this request wrote."""
    completed_jobs: int = 0
    since_s: float = 0.0


class OperationKind(StrEnum):
    """An operation that changes the bounds of a tablet."""

    SPLIT = "split"
    MERGE = "merge"


class OperationStep(StrEnum):
    """Progress of an operation; each step allows less than the previous one."""

    CUT = "cut"
    DRAIN = "drain"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class Operation(StoredValue):
    """A running split or merge."""

    kind: OperationKind
    operation_id: str
    step: OperationStep
    at: bytes | None = None
    """The key of a split, or the end of the left tablet of a merge."""
    since_s: float = 0.0
    """The store's time when it began."""
    reason: str = ""
    """Human-readable reason why it began."""


class Analysis(StrEnum):
    """The planner's latest verdict on a tablet."""

    UNKNOWN = "unknown"
    EMPTY = "empty"
    STABLE = "stable"
    """There is nothing to do with these files and settings."""
    UNSTABLE = "unstable"
    """Jobs are wanted or running."""
    DEFERRED = "deferred"
    """Jobs were wanted, but a full queue dropped them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Flags and counts of a tablet. One cheap read shows a scan whether to look further.

    Changes do not watch it, so it may lag by one change; it never justifies a change.
    """

    version: int = 0
    """Incremented by every change of the tablet."""
    files: int = 0
    size_bytes: int = 0
    running: int = 0
    waiting: int = 0
    selected: bool = False
    operation: bool = False
    analysis: Analysis = Analysis.UNKNOWN
    analysis_version: int = -1
    """`version` at the time of `analysis`."""
    analysis_settings: int = -1
    """Settings version at the time of `analysis`."""
    due_at_s: float | None = None
    """When to plan again even if nothing changes, stored with `analysis`; None: never."""
    failures: int = 0
    failure: str = ""
    """Cause of the last failure."""
    halved_job: str = ""
    halvings: int = 0
    """The last job that ran out of memory here, and how often it did."""
    selector_hash: str = ""
    """Files and settings of the selector's last call."""
    selector_due_s: float | None = None
    """When the selector's answer may change even if nothing else does; None: never."""
    read_heat: float = 0.0
    """Read rate of the rows; not used: reads are not counted."""
    abandoned_s: float = 0.0
    """The store's time when a split or merge was last abandoned here; 0: never."""
    settled: tuple[tuple[float, bytes], ...] = ()
    """A few pairs of time and the highest version in the files at that time; see tombstones."""
    recent_adds: tuple[tuple[float, bytes], ...] = ()
    """Expiry time → lowest version that adds have reached; see `common.metadata.changes.files`."""
    answered_s: float = 0.0
    """Time of the last trigger that the tablet has fully answered: `Table.triggered_at_s` or
    `triggered_s`."""
    triggered_s: float = 0.0
    """The store's time when an operator last triggered the planner for this tablet alone; 0:
    never."""
    statistics: TabletStatistics | None = None
    """Result of the last analysis; None: none since the tablet got these bounds."""
    analysis_group: str = ""
    """Group whose compactors should count the tablet's live bytes; empty: no analysis is
    requested."""
    compactions: int = 0
    """Number of commits here, without analyses. A split copies the count to both sides, a merge
    takes the larger one."""


@dataclass(frozen=True, slots=True)
class ChunkNote:
    """The planner's verdict on one chunk of a tablet, with what it has seen there."""

    analysis: Analysis
    version: int
    """Changes of files of the chunk, as of the verdict."""
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkHead:
    """What the notes on the chunks of a tablet hold for. Changes of files read it, and count."""

    epoch: int
    """Rises each time that the notes are begun anew; part of the names of all counts."""
    grid: ChunkGrid
    policy: str
    """Digest of the planner, its options and the settings."""
    due_at_s: float | None = None
    """When to plan the whole tablet again even if nothing changes; None: never."""
    files: int | None = None
    """Files of the tablet less the counted ones: if another release has changed files without
    counting, the difference differs. None: no note is written."""
    size_bytes: int = 0
    """The same for the bytes of the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkNotes:
    """Notes on chunks to be stored. Notes that have the stored head's epoch and policy count."""

    head: ChunkHead
    notes: Mapping[int, ChunkNote] = field(default_factory=dict, hash=False)
    begins_at: int | None = None
    """Version of the tablet that was planned, if what is stored is deleted. If the tablet has
    changed since, only the head is stored, so that changes count from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChunks:
    """The notes on the chunks of a tablet, as stored."""

    head: ChunkHead | None = None
    versions: Mapping[int, int] = field(default_factory=dict)
    """Number of a chunk → changes of files in it since the notes were begun."""
    notes: Mapping[int, ChunkNote] = field(default_factory=dict)
    files: int = 0
    """Files that came since the notes were begun, less those that left."""
    size_bytes: int = 0
    """The same in bytes."""

    @property
    def restless(self) -> set[int]:
        """Numbers of the chunks that have changed since their note, or do not rest."""
        rests, notes = {Analysis.STABLE, Analysis.EMPTY}, self.notes
        changed = {
            number
            for number, version in self.versions.items()
            if (note := notes.get(number)) is None or note.version != version
        }
        return changed.union([n for n, note in notes.items() if note.analysis not in rests])


@dataclass(frozen=True, slots=True, kw_only=True)
class Tablet:
    """Everything that the store has on one tablet, read at one moment."""

    id: TabletId
    bounds: Bounds
    files: Mapping[str, DataFile] = field(default_factory=dict)
    running: Mapping[str, Reservation] = field(default_factory=dict)
    selection: Selection | None = None
    waiting: Mapping[str, float] = field(default_factory=dict)
    """Requests that wait here → start of the wait."""
    done: frozenset[str] = frozenset()
    operation: Operation | None = None
    purge: bytes | None = None
    record: Record = field(default_factory=Record)
    chunks: StoredChunks | None = None
    """Notes on chunks of time; None: not read."""

    @property
    def reserved_files(self) -> frozenset[str]:
        """Paths of all reserved files."""
        return frozenset(path for entry in self.running.values() for path in entry.inputs)
