"""What every tool of recovery works on: one table, its location, and threads for slow work."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any, ParamSpec, Protocol, TypeVar

from common.metadata.store import TabletStore
from common.metadata.store_values import NamedTable
from common.model.location_identity import LocationIdentity
from common.model.table import Table
from common.parquet.location import Location, open_location
from common.parquet.resolved_locations import ResolvedLocation, identities_of
from common.parquet.service_files import (
    UNREADABLE_GENERATION,
    LocationOwner,
    read_owner,
    written_generation,
)
from common.storage_threads import StorageThreads

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="Sortable")

AT_ONCE = 64
"""Pieces of work that are handed to the threads before the first is awaited."""
PROGRESS_EVERY = 100 * AT_ONCE


CALLS_FORGOTTEN = (
    "marks of calls: a call that was made before now is refused; look whether its rows are there, "
    "and send what is missing under a new id"
)
"""Of a table that a rebuild or a restore has made."""
ReportProgress = Callable[[str], None]
"""Tell whoever waits how far it is."""


def ignore_progress(_text: str) -> None:
    """Tell nobody."""


class Sortable(Protocol):
    """What can be sorted."""

    def __lt__(self, other: Any, /) -> bool:
        """Return whether it comes before another."""
        ...


class TableAdmission(Protocol):
    """What everything has to pass that shall become a table, whoever describes it.

    The same for what a user writes and for what an archive or a location says.
    """

    async def site(self, written: str) -> ResolvedLocation:
        """Return a location where a table may be.

        Raises:
            RequestError: It is no location.
            RefusedError: No table may be there.
        """
        ...

    def checked(self, table: Table) -> Table:
        """Return a table as `create` would have made it.

        Raises:
            RequestError: Its name, columns or settings are none that a table can have.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TableScope:
    """One table under a tool."""

    store: TabletStore
    table: Table
    threads: StorageThreads
    grace_s: float
    """Files younger than this may be about to be added or committed."""
    on_progress: ReportProgress = ignore_progress

    @property
    def location(self) -> Location:
        """Where the table's files are."""
        return open_location(self.table.location)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what work on the location returns, from a thread.

        Raises:
            UnavailableError: The storage does not answer.
        """
        return await self.threads.run(self.table.location, work, *args, **kwargs)

    async def generation(self) -> int:
        """Return the generation that the store must have reached; 0: nobody can say.

        Raises:
            UnavailableError: The storage does not answer.
        """
        written = await self.run(written_generation, self.location)
        return 0 if written == UNREADABLE_GENERATION else written

    async def owner(self) -> LocationOwner | None:
        """Return whom the location belongs to."""
        return await self.run(read_owner, self.location)


# ------------------------------------------------------------ Long work that keeps no other waiting


SORTED_AT_ONCE = 10_000


class CallerLeftError(Exception):
    """Ends work in a thread that has no caller any more."""


class Steps:
    """Steps of long work in a thread: no step is long, and the work ends when its caller leaves."""

    def __init__(self) -> None:
        """Begin to count."""
        self.count = 0
        self._has_caller = True

    def over(self, items: Iterable[T]) -> Iterator[T]:
        """Yield some items; each is a step.

        Raises:
            CallerLeftError: The caller has left.
        """
        for item in items:
            self.count += 1
            if not self._has_caller:
                raise CallerLeftError
            yield item

    def in_order(self, items: Iterable[S]) -> list[S]:
        """Return some items, sorted; no other thread waits until all are."""
        rest = self.over(items)
        runs: list[list[S]] = []
        while run := sorted(islice(rest, SORTED_AT_ONCE)):
            runs.append(run)
        return runs[0] if len(runs) == 1 else [*self.over(merge(*runs))]

    def leave(self) -> None:
        """End the work at its next step."""
        self._has_caller = False


async def in_thread(work: Callable[[Steps], T]) -> T:
    """Return what long work on values returns, from a thread; it ends with its caller."""
    steps = Steps()
    try:
        return await asyncio.to_thread(work, steps)
    finally:
        steps.leave()


async def gather_bounded(
    work: Iterable[Coroutine[object, object, T]], on_progress: Callable[[int], None] | None = None
) -> Sequence[T]:
    """Return what all pieces of work return; a bounded number of them at a time.

    Args:
        work: The pieces.
        on_progress: Called now and then with the number of those that are done.
    """
    done: list[T] = []
    pieces = iter(work)
    while some := [*islice(pieces, AT_ONCE)]:
        done += await asyncio.gather(*some)
        if on_progress is not None and len(done) % PROGRESS_EVERY == 0:
            on_progress(len(done))
    return done


async def identities_now(
    threads: StorageThreads, tables: Iterable[NamedTable]
) -> dict[str, LocationIdentity]:
    """Return what the locations of tables are now, by table id; links may have changed since.

    Tables of one folder are looked at together, those of two are not: one may stand still.

    Raises:
        UnavailableError: The storage of one of them does not answer.
    """
    together: dict[str, dict[str, str]] = {}
    for each in tables:
        above = each.location.rpartition("/")[0]
        together.setdefault(above, {})[each.id] = each.location
    work = (threads.run(above, identities_of, some) for above, some in together.items())
    return {table: found for each in await gather_bounded(work) for table, found in each.items()}
