"""What the rest of the system may ask of a metadata store.

Both adapters (`redis`, `memory`) and the flaky one satisfy this protocol and the
same contract suite. All reads are asynchronous and bounded; every read of a tablet
is one moment (one MULTI).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from common.metadata.changes import Change, Confirm, Outcome
from common.metadata.store_values import (
    AcceptedLoss,
    AttemptOutcome,
    CallMark,
    CoordinatorClaim,
    GarbageEntry,
    HistoryEntry,
    ListedTables,
    Manifest,
    NamedTable,
    PinEntry,
    RawTablet,
    StoreHealth,
    TabletChanged,
    UnreadableTablet,
)
from common.model.file import DataFile
from common.model.group import LimitScope
from common.model.request import Request
from common.model.table import Table
from common.model.tablet import Record, Reservation, Tablet, TabletId

__all__ = [
    "AcceptedLoss",
    "AttemptOutcome",
    "CallMark",
    "CoordinatorClaim",
    "GarbageEntry",
    "HistoryEntry",
    "Manifest",
    "NamedTable",
    "PinEntry",
    "TabletChanged",
    "TabletStore",
]


class TabletStore(Protocol):
    """The truth about tables and tablets."""

    async def close(self) -> None:
        """Give the connections back."""
        ...

    async def now_s(self) -> float:
        """Return the store's time (Redis `TIME`), which holds, leases and stamps use."""
        ...

    async def apply(self, change: Change, *, confirm: Confirm | None = None) -> Outcome:
        """Execute a change: watch, read, decide, write; retry conflicts within bounds.

        Unknown outcomes are resolved by the mark where the protocol has one; only what
        stays unknown after bounded tries is returned as `Unknown`.

        Args:
            change: What is to be changed.
            confirm: Is asked in each try, after everything is watched and right before it is
                written: what it sees outside the store holds for the store that is written. What
                it raises is raised.

        Raises:
            ConflictError: Something required changed on every try.
            MetadataError: What is stored cannot be decoded, or has another format version.
        """
        ...

    async def health(self) -> StoreHealth:
        """Return how much room the store has, and what it would survive."""
        ...

    async def keep_reserve(self) -> None:
        """Set memory aside while there is room, so that a full store can be emptied."""
        ...

    async def tables(self) -> Sequence[Table]:
        """Return every named table, by name."""
        ...

    async def listed_tables(self) -> ListedTables:
        """Return the named tables that can be read, and what keeps others from that."""
        ...

    async def names(self) -> Mapping[str, str]:
        """Return name → table id of every name that is taken, whatever became of the table."""
        ...

    async def named_tables(self) -> Sequence[NamedTable]:
        """Return every name that is taken, with the location of its table; by name."""
        ...

    async def table_ids(self) -> Sequence[str]:
        """Return the ids of all tables, also of those that lost their creator or their name.

        Walks over every key of the store: for a full scan, not for a request.
        """
        ...

    async def store_id(self) -> str:
        """Return the random id of this store, made at first use; locations carry it.

        Raises:
            MetadataError: The store was written by a release with another format.
        """
        ...

    async def table(self, table: str) -> Table | None:
        """Return a table by id, or None."""
        ...

    async def table_named(self, name: str) -> Table | None:
        """Return a table by name, or None."""
        ...

    async def tablet(self, tablet: TabletId) -> Tablet | None:
        """Return all of a tablet, or None if its bounds are not there."""
        ...

    async def tablet_ids(
        self, table: str, after: bytes | None = None, count: int = 1000
    ) -> Sequence[TabletId]:
        """Return up to `count` tablets whose end is greater than `after`, ascending."""
        ...

    async def every(self, table: str, count: int) -> Sequence[bytes]:
        """Return the end of every `count`-th tablet: where a scan of a table is cut.

        The last tablet's is not among them. Costs little, however many tablets there are.
        """
        ...

    async def locate(self, table: str, key: bytes) -> TabletId | None:
        """Return the tablet of a range-partitioned table that holds `key`, or None."""
        ...

    async def locate_each(self, table: str, keys: Sequence[bytes]) -> Sequence[TabletId | None]:
        """Return what `locate` does for many keys, in few round trips; not at one moment."""
        ...

    async def tablets(self, tablets: Sequence[TabletId]) -> Sequence[Tablet | None]:
        """Return many tablets, each read at one moment, in few round trips."""
        ...

    async def readable(
        self, tablets: Sequence[TabletId]
    ) -> Sequence[Tablet | UnreadableTablet | None]:
        """Return what `tablets` does; for one that cannot be decoded, why, and the others."""
        ...

    async def records(self, tablets: Sequence[TabletId]) -> Sequence[Record | None]:
        """Return the records only: what tells a scan whether to look further."""
        ...

    async def files(self, tablets: Sequence[TabletId]) -> Sequence[Mapping[str, DataFile]]:
        """Return only the files of many tablets: path → file; nothing for one that is gone."""
        ...

    async def held_among(
        self, asked: Mapping[TabletId, Sequence[str]]
    ) -> Sequence[Collection[str]]:
        """Return those of some paths that are files of their tablet, tablet by tablet.

        Costs as much as there are paths, however many files the tablets have.

        Args:
            asked: Tablet → paths.
        """
        ...

    async def read_range(
        self, table: str, start: bytes | None = None, end: bytes | None = None
    ) -> Sequence[Tablet]:
        """Return the tablets that cover keys from `start` to `end`, by the tile rule.

        Raises:
            ConflictError: Splits and merges kept changing the range.
        """
        ...

    async def inspect(self, tablets: Sequence[TabletId]) -> Sequence[RawTablet]:
        """Return everything under the keys of tablets, for `neve fsck`."""
        ...

    async def request(self, table: str, request: str) -> Request | None:
        """Return a request, or None if there is none, or it ended long ago."""
        ...

    async def requests(self, table: str, count: int = 100) -> Sequence[Request]:
        """Return the newest requests, ended ones too, newest first."""
        ...

    async def open_requests(self, table: str) -> Sequence[Request]:
        """Return the requests that something is left to do for, oldest first.

        Those that have not ended, and those that have but are not closed (`CloseRequest`).
        """
        ...

    async def outcome(self, table: str, attempt: str) -> AttemptOutcome | None:
        """Return how an attempt ended, or None if there is no mark (yet)."""
        ...

    async def generation(self, table: str) -> int:
        """Return the table's generation; 0 if it was never counted up."""
        ...

    async def call(self, table: str, call: str) -> CallMark | None:
        """Return what an accepted call brought, or None if there is no mark (any more)."""
        ...

    async def loss(self, table: str) -> AcceptedLoss | None:
        """Return between which moments changes were lost, as somebody has accepted, or None."""
        ...

    async def manifest(self, table: str) -> Manifest | None:
        """Return the last published manifest, or None."""
        ...

    async def drop_deletes(self, table: str) -> bool:
        """Return whether a table is being dropped with all of its files."""
        ...

    async def claim(self) -> CoordinatorClaim | None:
        """Return which coordinator leads, and since when; None: nobody has claimed it."""
        ...

    async def limits(self) -> Mapping[LimitScope, int]:
        """Return the limits that operators have set, in bytes/s; 0: none."""
        ...

    async def scales(self) -> Mapping[str, int]:
        """Return how many compactors operators want, by group; absent: nobody has said."""
        ...

    async def garbage(self, table: str) -> Sequence[GarbageEntry]:
        """Return the files to delete."""
        ...

    async def garbage_among(self, table: str, paths: Sequence[str]) -> Sequence[str]:
        """Return those of some paths that are in garbage."""
        ...

    async def retired_among(self, location: str, paths: Sequence[str]) -> Sequence[str]:
        """Return those of some paths whose names are retired in a location.

        A collector has deleted files of these names, and one that stood still may do so again.
        """
        ...

    async def uncommitted(self, table: str) -> Sequence[Reservation]:
        """Return reservations that ended without a commit and whose outputs wait for deletion.

        A collector that has seen their inputs in storage takes them off this list.
        """
        ...

    async def pins(self, table: str) -> Sequence[PinEntry]:
        """Return the pins, ended ones too."""
        ...

    async def history(self, table: str, count: int = 100) -> Sequence[HistoryEntry]:
        """Return the newest finished attempts, newest first."""
        ...

    async def note_audit(self, lines: Sequence[bytes], entries_max: int, kind: str = "") -> None:
        """Append lines to the audit, which keeps about `entries_max` of them.

        Raises:
            UnavailableError: The store does not answer, or is full; lines may have been written.
        """
        ...

    async def audit(self, count: int, kind: str = "") -> Sequence[bytes]:
        """Return the newest lines of a stream of the audit, newest first."""
        ...

    async def tail(self, table: str) -> str:
        """Return the position of the newest entry of the table's change stream."""
        ...

    async def remembers(self, table: str, position: str) -> bool:
        """Return whether a table's change stream, which is capped, still has an entry.

        True of the position before every entry: nobody can tell what came after it.
        """
        ...

    async def changes(
        self, after: dict[str, str], count: int = 1000, block_s: float = 1.0
    ) -> Sequence[TabletChanged]:
        """Return changes of several tables after the given positions.

        Args:
            after: Table id → position; from `tail`, or of the last entry seen.
            count: Most entries per table.
            block_s: How long to wait if there is none.
        """
        ...
