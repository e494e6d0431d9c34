"""Names of all keys. All keys of one table share the hash tag `{<table id>}`: one slot.

neve:tables  neve:store  neve:coordinator  neve:limits  neve:scales   of the whole store
neve:series                                        recorded values of the coordinator
neve:audit  :refused  :reads  :deletes  :notified  audited calls, sent messages: capped streams
neve:reserve  neve:full                            memory reserve for a full store
neve:{t}:table  :generation  :manifest  :index     of a table
neve:{t}:tablet:<end>:bounds  :files  :running  …  of a tablet; <end> is `TabletId.text`
neve:{t}:requests  :open-requests  :request:<id>   requests in their order, and each
neve:{t}:outcome:<attempt>  neve:{t}:call:<id>     marks, which expire
neve:{t}:rows  :rows:counts  :rows:<n>             buffered rows: segments, counts, rows of each
neve:{t}:mirror  :publishing                       of a lake table: mirrored version, attempts
neve:{t}:days                                      daily sums of finished attempts
neve:{t}:dropped                                   mark of a dropped table, which expires
neve:{retired}:<digest>                            mark of a deleted file, which expires
"""

import re
from dataclasses import dataclass

from common.model.tablet import TabletId
from common.primitives import CALL_LIFE_S, digest

TABLES = "neve:tables"
STORE = "neve:store"
COORDINATOR = "neve:coordinator"
LIMITS = "neve:limits"
"""Hash: scope → bytes/s."""
SCALES = "neve:scales"
"""Hash: compaction group → number of compactors."""
SERIES = "neve:series"
"""Hash: part of the recorded values → its values, compressed; see `coordinator.core.series`."""
AUDIT = "neve:audit"
"""Stream: gateway calls that may have changed something."""
AUDIT_KINDS = ("", "refused", "reads", "deletes")
"""Streams of the audit. Each has its own cap, so callers cannot evict entries of another one."""
NOTIFIED = "notified"
"""Another stream of the audit: its newest entry has the messages that operators were sent."""
RESERVE = "neve:reserve"
"""String of zeros: memory that is released when the store is full."""
FULL = "neve:full"
"""Set when the reserve was released: changes that let the store grow wait."""
TABLE_KEYS = "neve:{*}:table"
"""Pattern of the keys of all tables, for SCAN."""

STREAM_START = "0-0"
"""The position before the first entry of a stream."""
AUDITED_DELETES_MAX = 100_000
"""Ended requests that have changed or deleted rows, in the audit."""
CHANGES_MAX = 100_000
"""Entries kept in a table's change stream; the full scan finds changes that were trimmed."""
HISTORY_MAX = 10_000
"""Entries kept in a table's history."""
SHORT_STREAM_MAX = 1000
"""Entries that a table's streams keep when the store is full."""
REQUESTS_OPEN_MAX = 1000
"""Requests of a table that may be open at the same time."""
REQUESTS_KEPT = 1000
"""Requests of a table that are listed; older ones are removed when they are closed."""
CALL_SKEW_S = 300.0
"""How far in the future the time of a call id may be, because clients' clocks differ."""
MARK_LIFE_S = CALL_LIFE_S + 2 * CALL_SKEW_S
"""Lifetime of a call's mark: a call id expires before its mark does."""
BUFFERED_CALL_LIFE_S = 300.0
"""How long a call that buffers rows may be repeated: writers make thousands of calls."""
BUFFERED_MARK_LIFE_S = BUFFERED_CALL_LIFE_S + 2 * CALL_SKEW_S
"""Lifetime of the mark of such a call."""
OUTCOME_LIFE_S = 24 * 3600.0
"""Lifetime of an attempt's mark: longer than a compactor retries a commit without Redis."""
DROPPED_LIFE_S = 24 * 3600.0
"""Lifetime of a dropped table's mark: longer than a creating or dropping process can stall."""


def retired_name(location: str, path: str) -> str:
    """Return the key that marks a user's file as deleted by a collector.

    The mark is for the full name, not the table. A stalled collector may belong to a table that
    was dropped, and may delete files in a new table in the same location, above or below it.
    """
    return "neve:{retired}:" + digest([f"{location.rstrip('/')}/{path}"], 32)


_TABLE_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def audit_key(kind: str) -> str:
    """Return the stream for a kind of audited calls."""
    assert kind in (*AUDIT_KINDS, NOTIFIED), kind
    return f"{AUDIT}:{kind}" if kind else AUDIT


def is_table_id(text: str) -> bool:
    """Return whether `text` may be a table id, which must stay within the hash tag."""
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
        """String: start and end. Absent: the tablet does not exist."""
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
        """Hash: request → start of its wait."""
        return self.prefix + "waiting"

    @property
    def done(self) -> str:
        """Set: requests that are done here."""
        return self.prefix + "done"

    @property
    def operation(self) -> str:
        """String: Operation."""
        return self.prefix + "operation"

    @property
    def purge(self) -> str:
        """String: highest version at or below which no row may be added."""
        return self.prefix + "purge"

    @property
    def record(self) -> str:
        """Hash: counts and flags."""
        return self.prefix + "record"

    @property
    def chunks(self) -> str:
        """Hash: notes on chunks of time, and the changes of files in each."""
        return self.prefix + "chunks"

    @property
    def every(self) -> tuple[str, ...]:
        """All keys of the tablet."""
        return (*self.counted, self.record, self.chunks)

    @property
    def counted(self) -> tuple[str, ...]:
        """All keys but those that count what the others hold."""
        return (
            self.bounds,
            self.files,
            self.running,
            self.selection,
            self.waiting,
            self.done,
            self.operation,
            self.purge,
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
        """String: a counter that reveals a rollback of the store."""
        return self._key("generation")

    @property
    def loss(self) -> str:
        """String: the accepted period in which changes were lost."""
        return self._key("loss")

    @property
    def uncommitted(self) -> str:
        """Hash: attempt → reservation that ended without a commit, until a collector saw it."""
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
    def lock(self) -> str:
        """String, which expires: a large add has had conflicts, and other changes wait for it."""
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
    def days(self) -> str:
        """String: daily sums of finished attempts."""
        return self._key("days")

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
        """Sorted set (lex): those of `requests` that are not closed."""
        return self._key("open-requests")

    @property
    def rows(self) -> str:
        """Hash: segments of the buffered rows, and the highest number of one."""
        return self._key("rows")

    @property
    def row_counts(self) -> str:
        """Hash: rows, bytes and calls of each segment."""
        return self._key("rows:counts")

    @property
    def mirror(self) -> str:
        """Hash of a lake table: the head of its mirror, and the newest committed version."""
        return self._key("mirror")

    @property
    def publishing(self) -> str:
        """Hash of a lake table: attempt → what it may have sent to the table's log."""
        return self._key("publishing")

    def segment(self, number: int) -> str:
        """Return the key of the rows of a segment, a hash by call."""
        return self._key(f"rows:{number}")

    @property
    def dropped(self) -> str:
        """String, which expires: the table is dropped, and its id must not be used again."""
        return self._key("dropped")

    def request(self, request: str) -> str:
        """Return the key of a request."""
        return self._key("request:" + request)

    def outcome(self, attempt: str) -> str:
        """Return the key of an attempt's outcome."""
        return self._key("outcome:" + attempt)

    def call(self, call: str) -> str:
        """Return the key of the mark of an accepted call."""
        return self._key("call:" + call)

    @property
    def every(self) -> tuple[str, ...]:
        """All permanent keys of the table itself, without those of tablets and requests."""
        return (
            self.index,
            self.generation,
            self.loss,
            self.manifest,
            self.garbage,
            self.uncommitted,
            self.pins,
            self.history,
            self.days,
            self.policy,
            self.requests,
            self.open_requests,
            self.changes,
            self.rows,
            self.row_counts,
            self.mirror,
            self.publishing,
            self.table,
        )
