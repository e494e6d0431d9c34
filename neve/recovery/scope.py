"""Common context of the recovery tools: one table, its location, and threads for slow work."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from heapq import merge
from itertools import islice
from typing import Any, ParamSpec, Protocol, TypeVar

from common.metadata.changes import Change, Guarded
from common.metadata.store import TabletStore
from common.metadata.store_values import NamedTable
from common.model.location_identity import LocationIdentity
from common.model.table import Table
from common.model.tablet import TabletId
from common.parquet.location import Location, open_location
from common.parquet.resolved_location import ResolvedLocation, identities_of
from common.parquet.service_files import (
    UNREADABLE_GENERATION,
    LocationOwner,
    read_owner,
    written_generation,
)
from common.runtime import IdSource
from common.storage_threads import StorageThreads

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="Sortable")

AT_ONCE = 64
"""Number of work items that run concurrently."""
PROGRESS_EVERY = 100 * AT_ONCE


CALLS_FORGOTTEN = (
    "marks of calls: a call that was made before now is refused; look whether its rows are there, "
    "and send what is missing under a new id"
)
"""Note for tables that a rebuild or a restore created."""
LOGS_WRITTEN_ANEW = (
    "Delta logs and Iceberg metadata for other engines (setting publish): the next manifest of the "
    "table continues what is in its location, or begins anew in another location"
)
"""Note on what neither an archive nor the metadata has."""
ReportProgress = Callable[[str], None]
"""Callback that reports progress to the caller."""


def ignore_progress(_text: str) -> None:
    """Discard a progress message."""


class Sortable(Protocol):
    """A type with an order."""

    def __lt__(self, other: Any, /) -> bool:
        """Return whether this value sorts before another."""
        ...


class TableAdmission(Protocol):
    """Checks that every new table must pass.

    The checks are the same for the input of a user, an archive and a description in a location.
    """

    async def site(self, uri: str) -> ResolvedLocation:
        """Resolve a location, and check that a table is allowed there.

        Raises:
            RequestError: The text is not a location.
            RefusedError: No table is allowed there.
        """
        ...

    def checked(self, table: Table) -> Table:
        """Return the table as `create` would create it.

        Raises:
            RequestError: Its name, columns or settings are invalid.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TableScope:
    """The table that a tool works on, with its store and threads."""

    store: TabletStore
    table: Table
    threads: StorageThreads
    grace_s: float
    """Files younger than this may be about to be added or committed."""
    on_progress: ReportProgress = ignore_progress

    @property
    def location(self) -> Location:
        """Location of the table's files."""
        return open_location(self.table.location)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work on the location in a thread, and return its result.

        Raises:
            UnavailableError: The storage does not answer.
        """
        return await self.threads.run(self.table.location, work, *args, **kwargs)

    async def generation(self) -> int:
        """Return the generation that the store must have reached; 0: unknown.

        Raises:
            UnavailableError: The storage does not answer.
        """
        stored_generation = await self.run(written_generation, self.location)
        return 0 if stored_generation == UNREADABLE_GENERATION else stored_generation

    async def owner(self) -> LocationOwner | None:
        """Return the owner of the location, or None if it has no mark."""
        return await self.run(read_owner, self.location)


# ----------------------------------------------------------- Long work that yields to other threads


SORTED_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPorts:
    """External dependencies of a rebuild or a restore."""

    store: TabletStore
    threads: StorageThreads
    ids: IdSource
    admission: TableAdmission
    on_progress: ReportProgress = ignore_progress
    listing_delay_s: float = 0.0
    """How long listings of the storage may lag behind writes and deletions, in seconds."""

    def scope(self, table: Table) -> TableScope:
        """Return the scope of a table, for the other tools."""
        return TableScope(
            store=self.store,
            table=table,
            threads=self.threads,
            grace_s=0.0,
            on_progress=self.on_progress,
        )


class CallerLeftError(Exception):
    """Ends work in a thread whose caller has left."""


class Steps:
    """Short steps of long work in a thread; the work ends when its caller leaves."""

    def __init__(self) -> None:
        """Start the count at zero."""
        self.count = 0
        self._has_caller = True

    def over(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items; each item is a step.

        Raises:
            CallerLeftError: The caller has left.
        """
        for item in items:
            self.count += 1
            if not self._has_caller:
                raise CallerLeftError
            yield item

    def in_order(self, items: Iterable[S]) -> list[S]:
        """Return items sorted, in short steps that let other threads run."""
        rest = self.over(items)
        runs: list[list[S]] = []
        while run := sorted(islice(rest, SORTED_AT_ONCE)):
            runs.append(run)
        return runs[0] if len(runs) == 1 else [*self.over(merge(*runs))]

    def leave(self) -> None:
        """End the work at its next step."""
        self._has_caller = False


async def in_thread(work: Callable[[Steps], T]) -> T:
    """Run long work on values in a thread, and return its result; the work ends with its caller."""
    steps = Steps()
    try:
        return await asyncio.to_thread(work, steps)
    finally:
        steps.leave()


async def gather_bounded(
    work: Iterable[Coroutine[object, object, T]], on_progress: Callable[[int], None] | None = None
) -> Sequence[T]:
    """Return the results of all work items; run at most `AT_ONCE` of them at a time.

    Args:
        work: The work items.
        on_progress: Called every `PROGRESS_EVERY` items with the number of completed items.
    """
    done: list[T] = []
    pieces = iter(work)
    while batch := [*islice(pieces, AT_ONCE)]:
        done += await asyncio.gather(*batch)
        if on_progress is not None and len(done) % PROGRESS_EVERY == 0:
            on_progress(len(done))
    return done


async def identities_now(
    threads: StorageThreads, tables: Iterable[NamedTable]
) -> dict[str, LocationIdentity]:
    """Return the current identities of table locations, by table id; links may have changed.

    Tables of one folder are resolved together. Different folders are resolved separately,
    because the storage of one of them may hang.

    Raises:
        UnavailableError: The storage of a table does not answer.
    """
    together: dict[str, dict[str, str]] = {}
    for table in tables:
        above = table.location.rpartition("/")[0]
        together.setdefault(above, {})[table.id] = table.location
    work = (threads.run(above, identities_of, locations) for above, locations in together.items())
    return {
        table: identity
        for findings in await gather_bounded(work)
        for table, identity in findings.items()
    }


# ----------------------------------------------------------------------------------------- Findings
# Findings of a check: a code, a location, a sentence, and the changes that repair the damage.


class FindingCode(StrEnum):
    """Kind of a finding. The values are stable words for programs."""

    MISSING = "missing"
    """A tablet holds a file that storage does not have."""
    ORPHANED = "orphaned"
    """Storage has a file of the service that no metadata refers to."""
    EVIDENCE = "evidence"
    """Storage has a file of the service that may hold the only copy of rows; it is kept."""
    UNKNOWN = "unknown"
    """Storage has a file of a user that no metadata refers to; perhaps it is still to be added."""
    CORRUPT = "corrupt"
    """A file cannot be read."""
    DIFFERENT = "different"
    """A file can be read, but differs from its metadata entry."""
    LAYOUT = "layout"
    """A file can be read, but some readers miss rows because of the layout of its column chunks."""
    OUTSIDE = "outside"
    """A file has keys outside its tablet."""
    DOUBLE = "double"
    """Two tablets hold the same file."""
    HOLE = "hole"
    """Keys that belong to no tablet."""
    OVERLAP = "overlap"
    """Keys that belong to two tablets."""
    COUNTS = "counts"
    """A count in the metadata differs from the actual number."""
    UNDECODABLE = "undecodable"
    """This release cannot decode the value of a store key."""
    STALE_RESERVATION = "stale-reservation"
    """An attempt has ended, but its reservation still exists."""
    STALE_MARKS = "stale-marks"
    """A request has ended, but one of its selections or markers still exists."""
    STALE_SELECTION = "stale-selection"
    """A selection names files that the tablet does not hold."""
    STALE_GARBAGE = "stale-garbage"
    """A file in use waits for deletion."""
    STALE_PIN = "stale-pin"
    """A pin whose lease ended long ago."""
    FOREIGN = "foreign"
    """Storage has a file that was written for another table; it stays untouched."""
    OWNER = "owner"
    """The location belongs to another store or table, or to none."""
    SHARED = "shared"
    """Another table uses the same location under another name."""
    OTHER_FORMAT = "other-format"
    """The location shares files with a table of another format; nothing is deleted there."""
    GENERATION = "generation"
    """The store is older than the location: the store has gone back in time."""


NOTES = frozenset({FindingCode.UNKNOWN, FindingCode.FOREIGN})
"""Codes of findings that are not damage."""

UNDER_WAY = frozenset({FindingCode.LAYOUT})
"""Codes whose repair only lets another component fix the damage; until then it remains."""

Act = Callable[[], None]
"""A repair in storage. Runs in a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One deviation from the expected state."""

    code: FindingCode
    sentence: str
    repair: str = ""
    """What `--repair` does, or which option repairs it; empty: no option does."""
    path: str | None = None
    tablet: TabletId | None = None
    changes: tuple[Change, ...] = ()
    """Changes that repair the damage, if the options allow; refused once the damage is gone."""
    act: Act | None = field(default=None, compare=False)

    def __hash__(self) -> int:
        """Return a hash without the changes, because some changes are not hashable."""
        return hash((self.code, self.path, self.tablet, self.sentence))

    def changes_at(self, generation: int) -> Iterator[Change]:
        """Yield the repairing changes, guarded so that a store that went back in time refuses them.

        Args:
            generation: Generation of the table's location, read before the damage was found.
        """
        for change in self.changes:
            yield replace(change, generation=generation) if isinstance(change, Guarded) else change


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairedFinding:
    """Outcome of the repair of a finding."""

    finding: Finding
    done: bool
    outcome: str = ""
    """Why the repair was not done."""
