"""What a store tells besides tables, tablets and requests.

The change feed, marks of calls and attempts, garbage, pins, history, manifests; a tablet as `neve
fsck` sees it; and the health of the store itself.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from common.errors import ConfigError
from common.model.fields import StoredValue
from common.model.location_identity import LocationIdentity, identity_of_uri
from common.model.outcome import AttemptEnd
from common.model.table import Table
from common.model.tablet import Tablet, TabletId
from common.units import format_bytes

# -------------------------------------------------------------------------------- Entries and marks


UNREADABLE = "unreadable"
"""The word of a change of which nobody can say what it was, or in which tablet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletChanged:
    """One entry of a table's change stream."""

    tablet: TabletId
    what: str
    """The change's word: `add`, `reserve`, `commit`, `release`, …"""
    position: str
    """Where in the stream it stands; reading goes on after it."""
    attempt: str | None = None
    request: str | None = None
    """The request whose doing it was, or that itself changed (`whole_table`, word `request`)."""

    @property
    def whole_table(self) -> bool:
        """Whether the table itself changed (settings, state, a request), not one of its tablets."""
        return not self.tablet.end


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTable:
    """An entry of `neve:tables`: which table has a name, and where its files are."""

    name: str
    id: str
    location: str
    identity: LocationIdentity
    """As it was found when the table was made; of older entries, what the URI tells."""

    @classmethod
    def of(
        cls, name: str, table: str, location: str, identity: LocationIdentity | None = None
    ) -> "NamedTable":
        """Return an entry; one without an identity has that of its URI."""
        known = identity or identity_of_uri(location)
        return cls(name=name, id=table, location=location, identity=known)


@dataclass(frozen=True, slots=True)
class UnreadableTablet:
    """A tablet of which something is stored that cannot be decoded: nobody knows what it holds."""

    id: TabletId
    cause: str
    """Names the key, and what is wrong with its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTables:
    """The tables that have a name, as far as they can be read."""

    tables: tuple[Table, ...]
    """By name."""
    broken: Mapping[str, str]
    """Name of each other table → what of it cannot be decoded."""
    broken_ids: frozenset[str]
    """Ids of these tables, as far as they are known."""

    def may_be_gone(self, table: str) -> bool:
        """Return whether a table that is not among them may have been dropped."""
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
    """The mark `neve:{t}:call:<id>`: what an accepted call brought (kept for 24 h)."""

    kind: CallKind
    content: str
    """Digest of what was asked for; the same id with another one is another call."""
    at_s: float
    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    names: str = ""
    """Digest of the names of the files alone, which can be compared when they are gone."""
    tablets: tuple[str, ...] = ()
    """Ends of the tablets that took the files; empty if they were many."""
    request: str = ""
    """Of a compaction: the id of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageEntry(StoredValue):
    """A file to delete: when a collector first saw it (0: not yet), and its tablet's key."""

    path: str
    stamped_s: float
    key_min: bytes | None = None
    tablet_end: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorClaim(StoredValue):
    """Who leads (`neve:coordinator`), and since when by the store's clock."""

    coordinator: str
    since_s: float
    """Later than every claim that it replaced: an older one is what a store has gone back to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedLoss(StoredValue):
    """Somebody accepted that a store had lost changes of a table (`neve:{t}:loss`)."""

    since_s: float
    """Before that nothing was lost: the last manifest known then was begun; 0: not known."""
    until_s: float
    """When it was accepted, the last time. What is younger was not lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(StoredValue):
    """The last published manifest of a table, and those before it that are still stored."""

    number: int
    path: str
    begun_s: float
    """The store's time from before its reads."""
    published_s: float = 0.0
    """The store's time when its pointer was out."""
    earlier: tuple[tuple[int, str, float, float], ...] = ()
    """Number, path, begun and published of each, newest first."""

    def covered_s(self, now_s: float, grace_s: float) -> float | None:
        """Return up to when readers know what was replaced; None: nobody can say.

        Files stamped before that moment are in no manifest that a reader may still hold:
        one begun after it has been out for the grace.

        Args:
            now_s: The store's time.
            grace_s: How long a reader may go on with what it has listed.
        """
        every = ((self.begun_s, self.published_s), *((each[2], each[3]) for each in self.earlier))
        known = [begun_s for begun_s, out_s in every if out_s and now_s - out_s >= grace_s]
        return max(known, default=None)

    def outdated(self, now_s: float, grace_s: float) -> tuple[str, ...]:
        """Return the paths of manifests that nobody reads any more: replaced a grace ago."""
        published = [self.published_s, *(each[3] for each in self.earlier)]
        return tuple(
            each[1]
            for each, replaced_s in zip(self.earlier, published, strict=False)
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
    """A finished attempt, for people: what, where, how long, what came of it."""

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
    """Rows that newer ones of their keys have replaced, like the following: of a commit."""
    tombstones_dropped: int = 0
    expired_dropped: int = 0
    transform_dropped: int = 0
    rows_changed: int = 0
    rows_deleted: int = 0


# ------------------------------------------------------------------ A tablet as `neve fsck` sees it


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTablet:
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


# ------------------------------------------------------------------------------ Health of the store


NO_EVICTION = "noeviction"
CLOCKS_APART_MAX_S = 2.0
"""How far clocks of nodes may be apart: graces and leases have some seconds to spare."""
NEARLY_FULL = 0.85
"""Share of `maxmemory` from which on the store is nearly full."""
_DISPENSABLE = frozenset({"info"})
"""Rights without which a store can be used: some operators give no figures of theirs away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreHealth:
    """What the store says of itself. The default is a store without faults or bounds."""

    policy: str = NO_EVICTION
    """Which keys it throws away when it is full."""
    memory_bytes: int = 0
    memory_max_bytes: int = 0
    """0: as much as the machine has."""
    full: bool = False
    """Whether it was full and adds wait until there is room again."""
    append_only: bool = True
    """Whether it would still know everything after a restart."""
    write_failure: str = ""
    """What it could not write to its disk; empty: it could."""
    replicas: int = 0
    replicas_wanted: int = 0
    silence: str = ""
    """Why it does not answer; empty: it does."""
    nodes: Mapping[str, "StoreHealth"] = field(default_factory=dict)
    """Of a Redis Cluster: address of each primary → what it says. The other fields are sums, or
    the worst of all nodes."""
    clocks_apart_s: float = 0.0
    """Of a Redis Cluster: how far the clocks of its nodes are apart."""
    lacks: tuple[str, ...] = ()
    """Rights that the user of `store.url` needs and is not given, as ACL rules name them."""

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
        )

    def check(self) -> None:
        """Refuse a store that forgets.

        Raises:
            ConfigError: It throws keys away when it is full, or refuses commands that it is asked.
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
                f"setting store.url: the store has maxmemory-policy {self.policy} and would throw"
                " away files of tables when it is full: `CONFIG SET maxmemory-policy noeviction`"
            )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What an operator should change; a sentence each."""
        if self.nodes:
            own = (
                _of_node(address, sentence)
                for address, node in self.nodes.items()
                for sentence in node.warnings
            )
            return (*own, *self._clocks())
        if self.silence:
            return (f"the store (Redis) does not answer, its tables wait: {self.silence}",)
        return tuple(
            sentence
            for sentence in (
                self._rights(),
                self._eviction(),
                self._room(),
                "" if self.append_only else _NO_LOG,
                self.write_failure and f"the store (Redis) {self.write_failure}: see its disk",
                self._replicas(),
            )
            if sentence
        )

    def _rights(self) -> str:
        if not self.lacks:
            return ""
        return (
            f"the user of the store (Redis) lacks the rights {', '.join(self.lacks)}: give them"
            " with ACL SETUSER; `neve redis-acl` prints all that it needs"
        )

    def _eviction(self) -> str:
        if self.policy == NO_EVICTION:
            return ""
        return (
            f"the store (Redis) has maxmemory-policy {self.policy} and will throw away files of"
            " tables when it is full: set it to noeviction now"
        )

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
                f" expected at most {CLOCKS_APART_MAX_S:g} s: have all machines follow one time"
            )

    def _replicas(self) -> str:
        if self.replicas >= self.replicas_wanted:
            return ""
        return (
            f"the store (Redis) has {self.replicas} replicas, and store.wait_replicas wants"
            f" {self.replicas_wanted}: no add is acknowledged"
        )


def _of_node(address: str, sentence: str) -> str:
    """Return a sentence about the store as one about a node of it."""
    return sentence.replace("the store (Redis)", f"node {address} of the store (Redis)", 1).replace(
        "the store has", f"node {address} of the store has", 1
    )


_NO_LOG = (
    "the store (Redis) keeps no append-only file (appendonly no): a restart forgets what was added"
)
