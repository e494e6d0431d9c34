"""A tablet: a key range or partition of a table, its files, and what holds them.

Also the small values that live in a tablet's keys: reservation, selection,
operation, record. See DESIGN of the keys in `common.metadata.keys`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from common.model.fields import StoredValue
from common.model.file import DataFile
from common.model.job import Kind
from common.model.outcome import TabletStatistics
from neve.api.messages import readable_across_releases

PLUS_INFINITY = b"\xff"
"""End of the last tablet: sorts after every encoded key."""


@readable_across_releases
@dataclass(frozen=True, slots=True, order=True)
class TabletId:
    """Names a tablet for good: the table's random id and the tablet's end.

    `end` is the encoded key that the tablet includes as its last, `PLUS_INFINITY`
    for the last tablet, or the encoded partition values of a partitioned table.
    """

    table: str
    end: bytes

    @property
    def text(self) -> str:
        """The end in a form that is safe in paths, logs and URLs: hex, or `last`."""
        return "last" if self.end == PLUS_INFINITY else self.end.hex()

    def __str__(self) -> str:
        """Return `<table>;<end>`."""
        return f"{self.table};{self.text}"

    @classmethod
    def parse(cls, table: str, text: str) -> "TabletId":
        """Return the tablet id whose `text` this is.

        Raises:
            ValueError: The text is neither `last` nor hex.
        """
        return cls(table, PLUS_INFINITY if text == "last" else bytes.fromhex(text))


@readable_across_releases
@dataclass(frozen=True, slots=True)
class Bounds(StoredValue):
    """The keys of a tablet: `(start, end]`. `start` None: from the beginning.

    A tablet of a partitioned table has `partition` instead (`month=1/day=2`), holds
    only rows with these values, and does not tile with others.
    """

    start: bytes | None
    end: bytes
    partition: str | None = None

    def holds(self, key_min: bytes, key_max: bytes) -> bool:
        """Return whether every key from `key_min` to `key_max` belongs here."""
        return (self.start is None or key_min > self.start) and key_max <= self.end

    def overlaps(self, key_min: bytes, key_max: bytes) -> bool:
        """Return whether some key from `key_min` to `key_max` may belong here."""
        return (self.start is None or key_max > self.start) and key_min <= self.end


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation(StoredValue):
    """One attempt alone may replace these files. Lives in `running[attempt]`."""

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
        """Every path that this attempt may write."""
        return tuple(self.output_path(number) for number in range(self.outputs_max))


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection(StoredValue):
    """The files a request has chosen in one tablet: a hold against SYSTEM jobs."""

    request: str
    files: tuple[str, ...]
    results: tuple[str, ...] = ()
    """Those among `files` that jobs of this request made."""
    completed_jobs: int = 0
    since_s: float = 0.0


class OperationKind(StrEnum):
    """What changes the bounds of a tablet."""

    SPLIT = "split"
    MERGE = "merge"


class OperationStep(StrEnum):
    """How far it has come; each step allows less than the one before."""

    CUT = "cut"
    DRAIN = "drain"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class Operation(StoredValue):
    """A split or merge under way."""

    kind: OperationKind
    operation_id: str
    step: OperationStep
    at: bytes | None = None
    """Where a split cuts, or the end of the left tablet of a merge."""
    since_s: float = 0.0
    """The store's time when it began."""
    reason: str = ""
    """Why it began, for people."""


class Analysis(StrEnum):
    """What the planner last said of a tablet."""

    UNKNOWN = "unknown"
    EMPTY = "empty"
    STABLE = "stable"
    """Nothing to do with these files and settings."""
    UNSTABLE = "unstable"
    """Jobs are wanted or running."""
    DEFERRED = "deferred"
    """Jobs were wanted but shed from a full queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Flags and counts of a tablet: one cheap read tells a scan whether to look further.

    Watched by no change, so it may lag behind by one; never a reason to allow anything.
    """

    version: int = 0
    """Bumped by every change of the tablet."""
    files: int = 0
    size_bytes: int = 0
    running: int = 0
    waiting: int = 0
    selected: bool = False
    operation: bool = False
    analysis: Analysis = Analysis.UNKNOWN
    analysis_version: int = -1
    """`version` for which `analysis` was said."""
    analysis_settings: int = -1
    """Settings version for which `analysis` was said."""
    due_at_s: float | None = None
    """When to look again though nothing has changed, said with `analysis`; None: never."""
    failures: int = 0
    failure: str = ""
    """The last failure's cause."""
    halved_job: str = ""
    halvings: int = 0
    """The job that ran out of memory here last, and how often it has."""
    selector_hash: str = ""
    """Files and selector settings for which the table's own selector was asked last."""
    selector_due_s: float | None = None
    """When that answer may be another though nothing has changed; None: never."""
    read_heat: float = 0.0
    """How often rows here are read; not used yet: nobody counts reads."""
    abandoned_s: float = 0.0
    """The store's time when a split or merge was abandoned here last; 0: none was."""
    settled: tuple[tuple[float, bytes], ...] = ()
    """A few marks (time, highest version that the files held then); see tombstones."""
    recent_adds: tuple[tuple[float, bytes], ...] = ()
    """Until when → lowest version that adds have reached; see `common.metadata.recent_adds`."""
    answered_s: float = 0.0
    """`Table.triggered_at_s` of the last trigger for which the tablet has come to rest."""
    statistics: TabletStatistics | None = None
    """What the last analysis has found; None: there was none since the tablet has these bounds."""
    analysis_group: str = ""
    """Whose compactors are to count the tablet's live bytes, as somebody asked; empty: nobody has,
    or it is done."""
    compactions: int = 0
    """Jobs that have committed here, analyses apart. A split gives both sides the count, a merge
    takes the larger one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tablet:
    """Everything the store knows of one tablet, read at one moment."""

    id: TabletId
    bounds: Bounds
    files: Mapping[str, DataFile] = field(default_factory=dict)
    running: Mapping[str, Reservation] = field(default_factory=dict)
    selection: Selection | None = None
    waiting: Mapping[str, float] = field(default_factory=dict)
    """Requests that wait here → since when."""
    done: frozenset[str] = frozenset()
    operation: Operation | None = None
    purge: bytes | None = None
    record: Record = field(default_factory=Record)

    @property
    def reserved_files(self) -> frozenset[str]:
        """Paths that some attempt holds."""
        return frozenset(path for entry in self.running.values() for path in entry.inputs)
