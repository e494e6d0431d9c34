"""The interface of a metadata store for the rest of the system.

Both adapters (`redis`, `memory`) and the flaky one implement this protocol and pass the same
contract suite. All reads are asynchronous and bounded. Every read of a tablet happens at one moment
(one MULTI).
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
    """The authoritative state of tables and tablets."""

    async def close(self) -> None:
        """Close the connections."""
        ...

    async def now_s(self) -> float:
        """Return the store's time (Redis `TIME`), the time base of holds, leases and stamps."""
        ...

    async def apply(self, change: Change, *, confirm: Confirm | None = None) -> Outcome:
        """Execute a change: watch, read, decide, write; retry conflicts within bounds.

        Unknown outcomes are resolved by the mark where the protocol has one; outcomes that stay
        unknown after bounded tries are returned as `Unknown`.

        Args:
            change: The change.
            confirm: Called in each try, after everything is watched and right before the write.
                Its observations outside the store are valid for the state that is written. Its
                errors are passed on.

        Raises:
            ConflictError: A requirement changed on every try.
            MetadataError: A stored value cannot be decoded, or has another format version.
        """
        ...

    async def health(self) -> StoreHealth:
        """Return the free memory and the durability of the store."""
        ...

    async def keep_reserve(self) -> None:
        """Reserve memory while there is room, so that a full store can be emptied."""
        ...

    async def tables(self) -> Sequence[Table]:
        """Return every named table, by name."""
        ...

    async def listed_tables(self) -> ListedTables:
        """Return the readable named tables, and why others cannot be read."""
        ...

    async def names(self) -> Mapping[str, str]:
        """Return name → table id for every taken name, whatever the state of its table."""
        ...

    async def named_tables(self) -> Sequence[NamedTable]:
        """Return every taken name with the location of its table, by name."""
        ...

    async def table_ids(self) -> Sequence[str]:
        """Return the ids of all tables, including those without a creator or a name.

        Iterates over every key of the store: for a full scan, not for a request.
        """
        ...

    async def store_id(self) -> str:
        """Return the random id of this store, created at first use; locations carry it.

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
        """Return a complete tablet, or None if its bounds do not exist."""
        ...

    async def tablet_ids(
        self, table: str, after: bytes | None = None, count: int = 1000
    ) -> Sequence[TabletId]:
        """Return up to `count` tablets whose end is greater than `after`, ascending."""
        ...

    async def every(self, table: str, count: int) -> Sequence[bytes]:
        """Return the end of every `count`-th tablet, to divide a scan of a table.

        The last tablet is not included. The cost is low, whatever the number of tablets.
        """
        ...

    async def locate(self, table: str, key: bytes) -> TabletId | None:
        """Return the tablet of a range-partitioned table that holds `key`, or None."""
        ...

    async def locate_each(self, table: str, keys: Sequence[bytes]) -> Sequence[TabletId | None]:
        """Return `locate` for many keys, in few round trips; not at one moment."""
        ...

    async def tablets(self, tablets: Sequence[TabletId]) -> Sequence[Tablet | None]:
        """Return many tablets, each read at one moment, in few round trips."""
        ...

    async def readable(
        self, tablets: Sequence[TabletId]
    ) -> Sequence[Tablet | UnreadableTablet | None]:
        """Return `tablets`, with the reason for each tablet that cannot be decoded."""
        ...

    async def records(self, tablets: Sequence[TabletId]) -> Sequence[Record | None]:
        """Return only the records, which show a scan whether to look further."""
        ...

    async def files(self, tablets: Sequence[TabletId]) -> Sequence[Mapping[str, DataFile]]:
        """Return only the files of many tablets: path → file; empty for a missing tablet."""
        ...

    async def held_among(
        self, asked: Mapping[TabletId, Sequence[str]]
    ) -> Sequence[Collection[str]]:
        """Return which of some paths are files of their tablet, for each tablet.

        The cost depends on the number of paths, not on the number of files in the tablets.

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
        """Return all values under the keys of tablets, for `neve fsck`."""
        ...

    async def request(self, table: str, request: str) -> Request | None:
        """Return a request, or None if it does not exist or ended long ago."""
        ...

    async def requests(self, table: str, count: int = 100) -> Sequence[Request]:
        """Return the newest requests, including ended ones, newest first."""
        ...

    async def open_requests(self, table: str) -> Sequence[Request]:
        """Return the requests that are not closed, oldest first.

        They have not ended, or have ended without `CloseRequest`.
        """
        ...

    async def outcome(self, table: str, attempt: str) -> AttemptOutcome | None:
        """Return the outcome of an attempt, or None if it has no mark."""
        ...

    async def generation(self, table: str) -> int:
        """Return the table's generation; 0 if it was never incremented."""
        ...

    async def call(self, table: str, call: str) -> CallMark | None:
        """Return the result of an accepted call, or None if it has no mark."""
        ...

    async def loss(self, table: str) -> AcceptedLoss | None:
        """Return the accepted period in which changes were lost, or None."""
        ...

    async def manifest(self, table: str) -> Manifest | None:
        """Return the last published manifest, or None."""
        ...

    async def drop_deletes(self, table: str) -> bool:
        """Return whether a table is being dropped with all of its files."""
        ...

    async def claim(self) -> CoordinatorClaim | None:
        """Return the leading coordinator and the start of its lead; None: no claim exists."""
        ...

    async def limits(self) -> Mapping[LimitScope, int]:
        """Return the limits that operators have set, in bytes/s; 0: no limit."""
        ...

    async def scales(self) -> Mapping[str, int]:
        """Return the number of compactors set by operators, by group; absent: not set."""
        ...

    async def garbage(self, table: str) -> Sequence[GarbageEntry]:
        """Return the files to delete."""
        ...

    async def garbage_among(self, table: str, paths: Sequence[str]) -> Sequence[str]:
        """Return which of some paths are in garbage."""
        ...

    async def retired_among(self, location: str, paths: Sequence[str]) -> Sequence[str]:
        """Return which of some paths have names that are retired in a location.

        A collector has deleted files of these names, and a stalled collector may do so again.
        """
        ...

    async def uncommitted(self, table: str) -> Sequence[Reservation]:
        """Return reservations that ended without a commit and whose outputs wait for deletion.

        A collector that has seen their inputs in storage removes them from this list.
        """
        ...

    async def pins(self, table: str) -> Sequence[PinEntry]:
        """Return the pins, including expired ones."""
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

        The position before the first entry returns True, because trimming cannot be detected there.
        """
        ...

    async def changes(
        self, after: dict[str, str], count: int = 1000, block_s: float = 1.0
    ) -> Sequence[TabletChanged]:
        """Return changes of several tables after the given positions.

        Args:
            after: Table id → position, from `tail` or of the last entry read.
            count: Largest number of entries per table.
            block_s: How long to wait if there are none.
        """
        ...
