"""Stored values other than tables, tablets and requests.

The change feed, marks of calls and attempts, garbage, pins, history, manifests; a tablet as `neve
fsck` sees it; and the health of the store.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from common.errors import ConfigError
from common.model.fields import StoredValue
from common.model.file import DataFile, overlapping_files
from common.model.location_identity import LocationIdentity, identity_of_uri
from common.model.outcome import AttemptEnd
from common.model.table import Table
from common.model.tablet import Tablet, TabletId
from common.units import format_bytes, format_count
from neve.api.planning import Correction

# -------------------------------------------------------------------------------- Entries and marks


UNREADABLE = "unreadable"
"""The word of a change entry that cannot be decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletChanged:
    """One entry of a table's change stream."""

    tablet: TabletId
    what: str
    """The change's word: `add`, `reserve`, `commit`, `release`, …"""
    position: str
    """Its position in the stream, from which reading continues."""
    attempt: str | None = None
    request: str | None = None
    """The request that made the change, or that changed itself (`whole_table`, word `request`)."""

    @property
    def whole_table(self) -> bool:
        """Whether the table itself changed (settings, state, a request), instead of a tablet."""
        return not self.tablet.end


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTable:
    """An entry of `neve:tables`: a name, its table, and the location of its files."""

    name: str
    id: str
    location: str
    identity: LocationIdentity
    """Identity at the creation of the table; for older entries, derived from the URI."""

    @classmethod
    def of(
        cls, name: str, table: str, location: str, identity: LocationIdentity | None = None
    ) -> "NamedTable":
        """Return an entry; without an identity, the URI's is used."""
        known_identity = identity or identity_of_uri(location)
        return cls(name=name, id=table, location=location, identity=known_identity)


@dataclass(frozen=True, slots=True)
class UnreadableTablet:
    """A tablet with a stored value that cannot be decoded, so its content is unknown."""

    id: TabletId
    cause: str
    """Names the key and the problem of its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTables:
    """The named tables, and those that cannot be read."""

    tables: tuple[Table, ...]
    """By name."""
    broken: Mapping[str, str]
    """Name of each other table → what cannot be decoded."""
    broken_ids: frozenset[str]
    """Ids of these tables, as far as known."""

    def may_be_gone(self, table: str) -> bool:
        """Return whether a table that is not listed may have been dropped."""
        return len(self.broken) == len(self.broken_ids) and table not in self.broken_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutcome(StoredValue):
    """The mark `neve:{t}:outcome:<attempt>`: how an attempt ended (kept for 24 h)."""

    attempt: str
    end: AttemptEnd
    cause: str = ""


class CallKind(StrEnum):
    """What a call did."""

    ADD = "add"
    APPEND = "append"
    COMPACT = "compact"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMark(StoredValue):
    """The mark `neve:{t}:call:<id>`: the result of an accepted call (kept for 24 h)."""

    kind: CallKind
    content: str
    """Digest of the request's content; a different digest means a different call."""
    at_s: float
    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    names: str = ""
    """Digest of the file names alone, which can be compared after the files are gone."""
    tablets: tuple[str, ...] = ()
    """Ends of the tablets that received the files; empty if there are many."""
    request: str = ""
    """For a compaction: the id of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSegment(StoredValue):
    """A segment of a table's buffered rows (`s<n>` in `neve:{t}:rows`). A closed one is final."""

    number: int
    flush: str
    """Call id of its flush: all tries of it have the same."""
    schema_id: int
    schema: bytes
    """Arrow schema of its rows."""
    opened_s: float
    closed_s: float = 0.0
    """0: it is open."""
    floor: bytes = b""
    """At most the lowest version of its rows; empty: unknown, or the table has no versions."""

    @property
    def is_open(self) -> bool:
        """Whether it takes further rows."""
        return not self.closed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferCounts:
    """What a segment holds."""

    rows: int = 0
    size_bytes: int = 0
    """Decoded size."""
    calls: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableBuffer:
    """The buffered rows of a table, without the rows."""

    segments: tuple[BufferSegment, ...] = ()
    """Ascending by number."""
    counts: Mapping[int, BufferCounts] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """All rows."""
        return sum(counts.rows for counts in self.counts.values())

    @property
    def size_bytes(self) -> int:
        """Decoded size of all rows."""
        return sum(counts.size_bytes for counts in self.counts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorHead(StoredValue):
    """How far the mirror of a lake table has come (`head` in `neve:{t}:mirror`)."""

    token: str
    """Random id of the last change of the mirror; the next one requires it."""
    version: int
    """Version of the table's log that the mirror has reached; -1: none was read whole."""
    moved_s: float = 0.0
    """The store's time of that change."""
    problem: str = ""
    """Why the log cannot be read, or why its table is not compacted; empty: nothing is wrong."""
    problem_s: float = 0.0
    """The store's time since which there is a problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """The state of a lake table's mirror, without its files."""

    head: MirrorHead | None = None
    """None: nothing was mirrored so far."""
    committed: int = -1
    """Newest version that an own attempt has committed; -1: none since the table was attached."""

    @property
    def is_behind(self) -> bool:
        """Whether the mirror lacks a commit of an own attempt: its inputs still seem free."""
        return self.head is None or self.head.version < self.committed


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishingMark(StoredValue):
    """An attempt that may have sent its outputs to the log of a lake table.

    It stays until no file of the attempt waits for deletion.
    """

    attempt: str
    tablet_end: bytes
    planned: int
    """Version that the attempt has read."""
    base: int
    """Version on which its last try is based: the next one may be its own."""
    outputs: tuple[str, ...]
    """Paths of everything that the attempt may have written or referred to."""
    marked_s: float
    """The store's time of the last mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageEntry(StoredValue):
    """A file to delete: when a collector first saw it (0: not seen), and its tablet's key."""

    path: str
    stamped_s: float
    key_min: bytes | None = None
    tablet_end: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorClaim(StoredValue):
    """The leading coordinator (`neve:coordinator`), and the start of its lead."""

    coordinator: str
    since_s: float
    """Later than every claim that it replaced; an earlier time reveals a store that lost
    changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedLoss(StoredValue):
    """An operator's acceptance that a store lost changes of a table (`neve:{t}:loss`)."""

    since_s: float
    """Nothing was lost before this time, the start of the last known manifest; 0: unknown."""
    until_s: float
    """Time of the last acceptance. Later changes were not lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(StoredValue):
    """The last published manifest of a table, and earlier ones that are still stored."""

    number: int
    path: str
    begun_s: float
    """The store's time before its reads."""
    published_s: float = 0.0
    """The store's time after its pointer was written."""
    earlier: tuple[tuple[int, str, float, float], ...] = ()
    """Number, path, begun and published of each, newest first."""

    def covered_s(self, now_s: float, grace_s: float) -> float | None:
        """Return the time up to which readers know all replacements; None: unknown.

        Files stamped before this time are in no manifest that a reader may still use: readers had
        a whole grace to move to a manifest that was begun later.

        Args:
            now_s: The store's time.
            grace_s: How long a reader may use what it has listed.
        """
        every = (
            (self.begun_s, self.published_s),
            *((manifest[2], manifest[3]) for manifest in self.earlier),
        )
        begins = [begun_s for begun_s, out_s in every if out_s and now_s - out_s >= grace_s]
        return max(begins, default=None)

    def outdated(self, now_s: float, grace_s: float) -> tuple[str, ...]:
        """Return the paths of manifests that no reader uses any more: replaced a grace ago."""
        published = [self.published_s, *(manifest[3] for manifest in self.earlier)]
        return tuple(
            manifest[1]
            for manifest, replaced_s in zip(self.earlier, published, strict=False)
            if now_s - replaced_s >= grace_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PinEntry(StoredValue):
    """A reader's or backup's pin."""

    pin: str
    since_s: float
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry(StoredValue):
    """A finished attempt in readable form: job, tablet, duration, outcome."""

    position: str
    attempt: str
    job: str
    tablet: TabletId
    kind: str
    end: str
    group: str
    compactor: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    bytes_in: int
    bytes_out: int
    rows_in: int
    rows_out: int
    started_s: float
    ended_s: float
    reason: str = ""
    cause: str = ""
    request: str | None = None
    """The user request of its job."""
    superseded: int = 0
    """Rows replaced by newer rows of their keys; like the following counts, for a commit."""
    tombstones_dropped: int = 0
    expired_dropped: int = 0
    transform_dropped: int = 0
    rows_changed: int = 0
    rows_deleted: int = 0
    expected_bytes: int = 0
    """Estimate of `bytes_out`, for a commit of a rewrite."""
    expected_files: int = 0
    """Estimate of the number of outputs; 0: the job has no estimates."""
    expected_s: float = 0.0
    """Estimate of the time from start to end; 0: unknown."""
    expected_gain: int = 0
    gain: int = 0
    """Decrease of the largest number of files that may hold the same key, from inputs to outputs;
    `expected_gain` is its estimate."""


def with_estimates(
    entry: HistoryEntry,
    estimates: tuple[int, int, float],
    inputs: Sequence[DataFile],
    outputs: Sequence[DataFile],
) -> HistoryEntry:
    """Return an entry with the estimates of its job, and the read amplification gained.

    Args:
        entry: Entry of a commit.
        estimates: Bytes and number of the outputs, and the time of the attempt.
        inputs: Its inputs.
        outputs: Its outputs.
    """
    size_bytes, files, took_s = estimates
    before = overlapping_files(inputs)
    # Outputs with keys do not overlap each other.
    keyed = all(file.key_min is not None for file in inputs)
    return replace(
        entry,
        expected_bytes=size_bytes,
        expected_files=files,
        expected_s=took_s,
        expected_gain=before - (1 if keyed else files),
        gain=before - overlapping_files(outputs),
    )


CORRECTED_JOBS_MAX = 32
"""Number of recent jobs that a correction is based on."""
CORRECTING_ENTRIES_MAX = 2 * CORRECTED_JOBS_MAX
"""Entries that are read for them; some are failures, or jobs of requests."""
_STEP = 1 / 8
_RATIO_MAX = 4.0


def correction_of(entries: Iterable[HistoryEntry]) -> Correction:
    """Return the correction of estimates that follows from the history of a table.

    Args:
        entries: Finished attempts, newest first. Only commits of system jobs with estimates count.
    """
    counted = [entry for entry in entries if entry.expected_files and entry.request is None]
    counted = counted[:CORRECTED_JOBS_MAX]
    written = files = gain = 1.0
    for entry in reversed(counted):
        written = _moved(written, entry.bytes_out, entry.bytes_in)
        files = _moved(files, len(entry.outputs), entry.expected_files)
        gain = _moved(gain, entry.gain, entry.expected_gain)
    took_s = sum(max(0.0, entry.ended_s - entry.started_s) for entry in counted)
    read_bytes = sum(entry.bytes_in for entry in counted)
    return Correction(
        jobs=len(counted),
        written=written,
        files=files,
        gain=gain,
        bytes_s=read_bytes / took_s if took_s else 0.0,
    )


def _moved(factor: float, result: float, estimate: float) -> float:
    """Return a factor after another result; without an estimate it stays."""
    if estimate <= 0:
        return factor
    ratio = min(max(result / estimate, 1 / _RATIO_MAX), _RATIO_MAX)
    return factor + _STEP * (ratio - factor)


# ------------------------------------------------------------------ A tablet as `neve fsck` sees it


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTablet:
    """The raw values under the keys of one tablet, at one moment."""

    id: TabletId
    tablet: Tablet | None = None
    """None: its bounds are missing, or a value cannot be decoded."""
    broken: str = ""
    """The value that cannot be decoded, and why."""
    miscounted: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Wrong count of the record → stored count, actual count."""
    outcomes: frozenset[str] = frozenset()
    """Running attempts whose outcome is already written."""
    ended: frozenset[str] = frozenset()
    """Requests with a selection or marker here that have ended, or do not exist."""


# ------------------------------------------------------------------------------ Health of the store


NO_EVICTION = "noeviction"
CLOCKS_APART_MAX_S = 2.0
"""Largest accepted difference between clocks of nodes; graces and leases tolerate seconds."""
NEARLY_FULL = 0.85
"""Share of `maxmemory` above which the store counts as nearly full."""
_DISPENSABLE = frozenset({"info"})
"""Rights that are optional, because some operators restrict INFO."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreHealth:
    """The state that the store reports. The default is a store without faults or bounds."""

    policy: str = NO_EVICTION
    """Which keys it evicts when it is full."""
    memory_bytes: int = 0
    memory_max_bytes: int = 0
    """0: limited by the machine only."""
    full: bool = False
    """Whether it was full, so that adds wait until there is room again."""
    append_only: bool = True
    """Whether all data survives a restart."""
    write_failure: str = ""
    """Why it could not write to its disk; empty: no failure."""
    replicas: int = 0
    replicas_wanted: int = 0
    silence: str = ""
    """Why it does not answer; empty: it answers."""
    nodes: Mapping[str, "StoreHealth"] = field(default_factory=dict)
    """For a Redis Cluster: address of each primary → its state. The other fields are sums, or the
    worst of all nodes."""
    clocks_apart_s: float = 0.0
    """For a Redis Cluster: largest difference between the clocks of its nodes."""
    lacks: tuple[str, ...] = ()
    """Rights that the user of `store.url` needs and lacks, as ACL rules name them."""
    append_sync: str = ""
    """Redis' `appendfsync`: when the append-only file is synced; empty: it may not be read."""

    @classmethod
    def of_info(cls, info: object, *, full: bool, replicas_wanted: int) -> "StoreHealth":
        """Return what a Redis reports of itself as answer to `INFO`; nothing if it refuses."""
        lines = info.decode().splitlines() if isinstance(info, bytes) else ()
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        states = {
            "append-only file": fields.get("aof_last_write_status", "ok"),
            "snapshot": fields.get("rdb_last_bgsave_status", "ok"),
        }
        failures = [f"cannot write its {name}" for name, state in states.items() if state != "ok"]
        return cls(
            policy=fields.get("maxmemory_policy", NO_EVICTION),
            memory_bytes=int(fields.get("used_memory", 0)),
            memory_max_bytes=int(fields.get("maxmemory", 0)),
            full=full,
            append_only=fields.get("aof_enabled", "1") == "1",
            write_failure=", ".join(failures),
            replicas=int(fields.get("connected_slaves", 0)),
            replicas_wanted=replicas_wanted,
        )

    @classmethod
    def of_nodes(cls, nodes: Mapping[str, "StoreHealth"], clocks_apart_s: float) -> "StoreHealth":
        """Return the health of all nodes together: sums, or that of the worst that answers.

        Args:
            nodes: Address → health. At least one answers.
            clocks_apart_s: How far their clocks are apart.
        """
        every = [health for health in nodes.values() if not health.silence]
        bounded = all(health.memory_max_bytes for health in every)
        failures = [health.write_failure for health in every if health.write_failure]
        return cls(
            policy=max((health.policy for health in every), key=NO_EVICTION.__ne__),
            memory_bytes=sum(health.memory_bytes for health in every),
            memory_max_bytes=sum(health.memory_max_bytes for health in every) if bounded else 0,
            full=any(health.full for health in every),
            append_only=all(health.append_only for health in every),
            write_failure=", ".join(failures),
            replicas=min(health.replicas for health in every),
            replicas_wanted=every[0].replicas_wanted,
            nodes=nodes,
            clocks_apart_s=clocks_apart_s,
            append_sync=min((health.append_sync for health in every), key=_WEAKEST_FIRST.index),
        )

    def check(self) -> None:
        """Refuse a store that may lose data.

        Raises:
            ConfigError: It evicts keys when it is full, or refuses required commands.
        """
        for address, node in self.nodes.items():
            try:
                node.check()
            except ConfigError as error:
                raise ConfigError(_of_node(address, str(error))) from error
        if any(right not in _DISPENSABLE for right in self.lacks):
            raise ConfigError(f"setting store.url: {self._rights()}")
        if self.policy != NO_EVICTION:
            raise ConfigError(
                f"setting store.url: the store has maxmemory-policy {self.policy} and would evict"
                " files of tables when it is full: `CONFIG SET maxmemory-policy noeviction`"
            )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Problems that an operator should fix; a sentence each."""
        if self.nodes:
            own = (
                _of_node(address, sentence)
                for address, node in self.nodes.items()
                for sentence in node.warnings
            )
            return (*own, *self._clocks())
        if self.silence:
            return (f"the store (Redis) does not answer, so its tables wait: {self.silence}",)
        return tuple(
            sentence
            for sentence in (
                self._rights(),
                self._eviction(),
                self._room(),
                "" if self.append_only else _NO_LOG,
                self.write_failure and f"the store (Redis) {self.write_failure}: check its disk",
                self._replicas(),
            )
            if sentence
        )

    @property
    def durability(self) -> str:
        """What it guarantees for changes that it has acknowledged, in words."""
        copies = f" and {format_count(self.replicas_wanted, 'replica')}"
        where = f"in the metadata store{copies if self.replicas_wanted else ''}, "
        if not self.append_only:
            return where + "which has no append-only file (appendonly no): a restart loses them"
        return where + _KEPT[self.append_sync if self.append_sync in _KEPT else ""]

    def _rights(self) -> str:
        if not self.lacks:
            return ""
        return (
            f"the user of the store (Redis) lacks the rights {', '.join(self.lacks)}: grant them"
            " with ACL SETUSER; `neve redis-acl` prints all required rights"
        )

    def _eviction(self) -> str:
        if self.policy == NO_EVICTION:
            return ""
        return (
            f"the store (Redis) has maxmemory-policy {self.policy} and will evict files of"
            " tables when it is full: set it to noeviction now"
        )

    @property
    def used_pct(self) -> float:
        """Used percentage of its memory limit; 0 without a limit."""
        return 100.0 * self.memory_bytes / self.memory_max_bytes if self.memory_max_bytes else 0.0

    def _room(self) -> str:
        if not self.memory_max_bytes:
            return ""
        of = f"{format_bytes(self.memory_bytes)} of maxmemory {format_bytes(self.memory_max_bytes)}"
        if self.full:
            return (
                f"the store (Redis) was full and uses {of}: adds, new tables and requests wait"
                " until there is room; raise maxmemory"
            )
        if self.memory_bytes < NEARLY_FULL * self.memory_max_bytes:
            return ""
        return f"the store (Redis) is nearly full, {of}: raise maxmemory before adds have to wait"

    def _clocks(self) -> Iterator[str]:
        if self.clocks_apart_s > CLOCKS_APART_MAX_S:
            yield (
                f"clocks of nodes of the store (Redis) are {self.clocks_apart_s:.1f} s apart,"
                f" expected at most {CLOCKS_APART_MAX_S:g} s: synchronise the machines with NTP"
            )

    def _replicas(self) -> str:
        if self.replicas >= self.replicas_wanted:
            return ""
        return (
            f"the store (Redis) has {self.replicas} replicas, but store.wait_replicas requires"
            f" {self.replicas_wanted}: no add is acknowledged"
        )


def _of_node(address: str, sentence: str) -> str:
    """Turn a sentence about the store into one about a node of it."""
    return sentence.replace("the store (Redis)", f"node {address} of the store (Redis)", 1).replace(
        "the store has", f"node {address} of the store has", 1
    )


_KEPT: Mapping[str, str] = {
    "no": "synced to disk when its operating system does (appendfsync no): a power failure may lose"
    " the last half minute",
    "": "synced to disk as its appendfsync says, which the user of store.url may not read",
    "everysec": "synced to disk once per second (appendfsync everysec): a power failure may lose"
    " the last second",
    "always": "synced to disk before the answer (appendfsync always)",
}
"""Redis' `appendfsync` → what becomes of acknowledged changes; the weakest first."""
_WEAKEST_FIRST = [*_KEPT]
_NO_LOG = (
    "the store (Redis) has no append-only file (appendonly no): a restart loses recent changes"
)
