"""Names of all keys. Everything of one table shares the hash tag `{<table id>}`: one slot.

neve:tables  neve:store  neve:coordinator  neve:limits  neve:scales   of the whole store
neve:audit  :refused  :reads  :deletes             streams: who has changed what, capped
neve:reserve  neve:full                            room to empty a store that is full
neve:{t}:table  :generation  :manifest  :index     of a table
neve:{t}:tablet:<end>:bounds  :files  :running  …  of a tablet; <end> is `TabletId.text`
neve:{t}:requests  :open-requests  :request:<id>   requests in their order, and each
neve:{t}:outcome:<attempt>  neve:{t}:call:<id>     marks, which expire
neve:{t}:dropped                                   mark of a table that is gone, expires, too
neve:{retired}:<digest>                            a deleted file, by its full name; expires, too
"""

import re
from dataclasses import dataclass

from common.digests import CALL_LIFE_S, digest
from common.model.tablet import TabletId

TABLES = "neve:tables"
STORE = "neve:store"
COORDINATOR = "neve:coordinator"
LIMITS = "neve:limits"
"""Hash: scope → bytes/s."""
SCALES = "neve:scales"
"""Hash: compaction group → number of compactors."""
AUDIT = "neve:audit"
"""Stream: calls of the gateway that may have changed something."""
AUDIT_KINDS = ("", "refused", "reads", "deletes")
"""Streams of the audit, each with its own cap: no caller pushes entries out of another one."""
RESERVE = "neve:reserve"
"""String of nothing: memory that is given back when the store is full."""
FULL = "neve:full"
"""Set when the reserve was given back: what lets the store grow waits."""
TABLE_KEYS = "neve:{*}:table"
"""Pattern of the keys of all tables, for SCAN."""

AUDITED_DELETES_MAX = 100_000
"""Ended requests that have changed or deleted rows, in the audit."""
CHANGES_MAX = 100_000
"""Entries kept in a table's change stream; what falls out, the full scan finds."""
HISTORY_MAX = 10_000
"""Entries kept in a table's history."""
SHORT_STREAM_MAX = 1000
"""Entries that a table's streams keep when the store is full."""
REQUESTS_OPEN_MAX = 1000
"""Requests of a table that may be open at the same time."""
REQUESTS_KEPT = 1000
"""Requests of a table that are listed; older ones leave the list when they are closed."""
CALL_SKEW_S = 300.0
"""How far in the future a call id may lie: clocks of clients differ."""
MARK_LIFE_S = CALL_LIFE_S + 2 * CALL_SKEW_S
"""Life of a call's mark: a call id must be too old before its mark is gone."""
OUTCOME_LIFE_S = 24 * 3600.0
"""Life of an attempt's mark: longer than a compactor tries to commit while Redis is away."""
DROPPED_LIFE_S = 24 * 3600.0
"""Life of a dropped table's mark: longer than anybody who creates or drops it stands still."""


def retired_name(location: str, path: str) -> str:
    """Return the mark of a user's file that a collector has deleted.

    The full name counts, not the table: a collector that stands still may belong to a table that
    was dropped, and delete in a table that was made in the same location, above or below it.
    """
    return "neve:{retired}:" + digest([f"{location.rstrip('/')}/{path}"], 32)


_TABLE_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def audit_key(kind: str) -> str:
    """Return the stream of a kind of audited calls."""
    assert kind in AUDIT_KINDS, kind
    return f"{AUDIT}:{kind}" if kind else AUDIT


def is_table_id(text: str) -> bool:
    """Return whether `text` may be a table id: it must not break out of the hash tag."""
    return _TABLE_ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class TabletKeys:
    """The keys of one tablet."""

    prefix: str

    @classmethod
    def of(cls, tablet: TabletId) -> "TabletKeys":
        """Return the keys of `tablet`."""
        return cls(f"neve:{{{tablet.table}}}:tablet:{tablet.text}:")

    @property
    def bounds(self) -> str:
        """String: start and end. Absent: no such tablet."""
        return self.prefix + "bounds"

    @property
    def files(self) -> str:
        """Hash: path → DataFile."""
        return self.prefix + "files"

    @property
    def running(self) -> str:
        """Hash: attempt → Reservation."""
        return self.prefix + "running"

    @property
    def selection(self) -> str:
        """String: Selection."""
        return self.prefix + "selection"

    @property
    def waiting(self) -> str:
        """Hash: request → since when it waits here."""
        return self.prefix + "waiting"

    @property
    def done(self) -> str:
        """Set: requests finished here."""
        return self.prefix + "done"

    @property
    def operation(self) -> str:
        """String: Operation."""
        return self.prefix + "operation"

    @property
    def purge(self) -> str:
        """String: version at or below which no row may be added."""
        return self.prefix + "purge"

    @property
    def record(self) -> str:
        """Hash: counts and flags."""
        return self.prefix + "record"

    @property
    def every(self) -> tuple[str, ...]:
        """All keys of the tablet."""
        return (
            self.bounds,
            self.files,
            self.running,
            self.selection,
            self.waiting,
            self.done,
            self.operation,
            self.purge,
            self.record,
        )


@dataclass(frozen=True, slots=True)
class TableKeys:
    """The keys of one table."""

    id: str

    def _key(self, name: str) -> str:
        return f"neve:{{{self.id}}}:{name}"

    @property
    def table(self) -> str:
        """Hash: spec, settings and their version, state."""
        return self._key("table")

    @property
    def generation(self) -> str:
        """String: a counter that a rollback would turn back."""
        return self._key("generation")

    @property
    def loss(self) -> str:
        """String: between which moments changes were lost, as somebody has accepted."""
        return self._key("loss")

    @property
    def uncommitted(self) -> str:
        """Hash: attempt → reservation that ended without a commit, until a collector has looked."""
        return self._key("uncommitted")

    @property
    def manifest(self) -> str:
        """String: the last published manifest."""
        return self._key("manifest")

    @property
    def index(self) -> str:
        """Sorted set of tablet ends, all with score 0."""
        return self._key("index")

    @property
    def changes(self) -> str:
        """Stream of changed tablets."""
        return self._key("changes")

    @property
    def garbage(self) -> str:
        """Hash: path → stamp, smallest key, tablet end."""
        return self._key("garbage")

    @property
    def turn(self) -> str:
        """String, which expires: a large add has lost races, and others let it through."""
        return self._key("turn")

    @property
    def pins(self) -> str:
        """Hash: pin → since, until."""
        return self._key("pins")

    @property
    def history(self) -> str:
        """Stream of finished attempts."""
        return self._key("history")

    @property
    def policy(self) -> str:
        """Hash: state of policies."""
        return self._key("policy")

    @property
    def requests(self) -> str:
        """Sorted set (lex): `<submitted in microseconds>:<id>` of the requests."""
        return self._key("requests")

    @property
    def open_requests(self) -> str:
        """Sorted set (lex): those of `requests` that something is left to do for."""
        return self._key("open-requests")

    @property
    def dropped(self) -> str:
        """String, which expires: the table is gone, and none is made under its id again."""
        return self._key("dropped")

    def request(self, request: str) -> str:
        """Return the key of a request."""
        return self._key("request:" + request)

    def outcome(self, attempt: str) -> str:
        """Return the key that tells how an attempt ended."""
        return self._key("outcome:" + attempt)

    def call(self, call: str) -> str:
        """Return the mark of an accepted call of a user."""
        return self._key("call:" + call)

    @property
    def every(self) -> tuple[str, ...]:
        """All keys that are the table's own and do not expire, its tablets' and requests' aside."""
        return (
            self.index,
            self.generation,
            self.loss,
            self.manifest,
            self.garbage,
            self.uncommitted,
            self.pins,
            self.history,
            self.policy,
            self.requests,
            self.open_requests,
            self.changes,
            self.table,
        )
