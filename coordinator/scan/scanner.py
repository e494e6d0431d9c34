"""Finds work: follows changes of tablets, reads the tablets, and calls their planners.

Changes arrive from the tables' streams within milliseconds (`ask`); the full scan finds changes
that the feed has missed (`found`). Both coalesce: a tablet that changes ten times while it waits is
planned once. Changes from the feed take precedence, so a scan that finds work everywhere delays
them by at most one batch.

A position in a change stream refers to an entry. It stays valid across commits, splits and
restarts. It is lost only if the capped stream has dropped the entry after many changes: other
changes may then have been missed, and the whole table is scanned.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice

from common.errors import MetadataError, PluginError, UnavailableError
from common.metadata.bulk_reads import LARGE_FILES
from common.metadata.changes import WriteAnalysis
from common.metadata.store import TabletStore
from common.metadata.store_values import UNREADABLE, TabletChanged, UnreadableTablet
from common.model.job import Job, Kind, TabletPlan
from common.model.outcome import AttemptEnd
from common.model.request import Request, RequestState
from common.model.table import Table, TableState
from common.model.tablet import Analysis, Tablet, TabletId
from common.spi.planner import NOTHING_KNOWN, RequestFacts, Surroundings
from common.telemetry import Log
from coordinator.context import STORE_AWAY_ERRORS, TableFaults, is_store_away
from coordinator.core import events as on
from coordinator.core.requests import facts_of
from coordinator.core.scans import (
    Watermarks,
    has_chunks,
    recent_user_adds,
    recheck_at_s,
    wanted_watermarks,
)
from coordinator.ports import PlanTablet, Submit

# ----------------------------------------------------------------- The change streams of all tables


FEED_BLOCK_S = 0.5
CHANGES_MAX = 2000
"""Entries of a table per read; the cap of every stream is larger."""


class ChangeFeed:
    """The read positions of the tables' streams. Positions only advance."""

    def __init__(self, store: TabletStore) -> None:
        """Create a feed that follows no tables."""
        self._store = store
        self._positions: dict[str, str] = {}
        self.resets = 0
        """Number of lost positions."""

    def __bool__(self) -> bool:
        return bool(self._positions)

    async def follow(self, table: str) -> None:
        """Follow the changes of a table from now on; a followed table keeps its position.

        Raises:
            MetadataError: The store did not answer as it should.
        """
        if table not in self._positions:
            self._positions[table] = await self._store.tail(table)

    def forget(self, table: str) -> None:
        """Stop following a table."""
        self._positions.pop(table, None)

    async def read(self) -> tuple[Sequence[TabletChanged], Sequence[str]]:
        """Wait for changes; return them, and the tables whose other changes were missed.

        Raises:
            MetadataError: The store did not answer as it should; no change is lost.
        """
        before = dict(self._positions)
        changes = await self._store.changes(before, count=CHANGES_MAX, block_s=FEED_BLOCK_S)
        counts = Counter(change.tablet.table for change in changes)
        behind = [table for table, count in counts.items() if count >= CHANGES_MAX]
        missed = [
            table for table in behind if not await self._store.remembers(table, before[table])
        ]
        for change in changes:
            if change.tablet.table in self._positions:
                self._positions[change.tablet.table] = change.position
        self.resets += len(missed)
        return changes, missed


# ------------------------------------------------ Requests and watermarks, also used by range scans


async def read_request_facts(store: TabletStore, tablet: Tablet) -> Mapping[str, RequestFacts]:
    """Return the facts for planners about the active request that holds files of a tablet.

    Raises:
        MetadataError: The store did not answer as it should.
    """
    if tablet.selection is None:
        return {}
    return _active_facts(await store.request(tablet.id.table, tablet.selection.request))


async def with_watermarks(store: TabletStore, tablet: Tablet, table: Table, now_s: float) -> Tablet:
    """Update the watermarks of a tablet in the store if necessary, and return the tablet.

    Raises:
        MetadataError: The store did not answer as it should.
    """
    watermarks = wanted_watermarks(tablet, table, now_s)
    return tablet if watermarks is None else await _watermarks_written(store, tablet, watermarks)


async def _watermarks_written(store: TabletStore, tablet: Tablet, watermarks: Watermarks) -> Tablet:
    note = WriteAnalysis(
        tablet=tablet.id,
        analysis=Analysis.UNKNOWN,
        version=-1,
        settings_version=-1,
        settled=watermarks,
    )
    await store.apply(note)
    return replace(tablet, record=replace(tablet.record, settled=watermarks))


def _active_facts(request: Request | None) -> Mapping[str, RequestFacts]:
    if request is None or request.state is not RequestState.ACTIVE:
        return {}
    return {request.id: facts_of(request)}


# -------------------------------------------------------------------------------------- The scanner


BATCH_TABLETS = 200
"""Tablets that are read and planned before the event loop may run other tasks."""
PAUSE_AFTER_ERROR_S = 1.0
TABLES_REFRESH_S = 2.0
JOBS_MAX = 1_000
"""Jobs of one kind and group of a tablet that are queued at a time."""
FOUND_MAX = 20_000
"""Number of waiting tablets from a full scan at which the full scan pauses."""
RESERVED_PAUSE_S = 0.5
"""How long a tablet waits to be planned after a reservation. Its other jobs are queued already, and
the commit of a small job comes sooner and has the tablet planned at once."""
_ENDS = {
    "commit": AttemptEnd.COMMITTED,
    "release": AttemptEnd.LOST,
}


def _numbers(tablet: Tablet, plan: TabletPlan) -> Mapping[str, Collection[int]]:
    """Return the chunks of the inputs of a plan's jobs."""
    grid = plan.grid
    if grid is None:
        return {}
    inputs = (path for job in plan.jobs for path in job.inputs)
    return {path: grid.chunks_of(tablet.files[path]) for path in inputs if path in tablet.files}


def bounded_plan(plan: TabletPlan) -> TabletPlan:
    """Return a plan with the first `JOBS_MAX` jobs of each kind and group.

    The core queues them in one turn, which 10,000 would make long. Each commit has the tablet
    planned again, so the other jobs get their turn.
    """
    if len(plan.jobs) <= JOBS_MAX:
        return plan
    counts, jobs, later = Counter[tuple[Kind, str]](), list[Job](), dict[str, Job]()
    for job in plan.jobs:
        counts[job.kind, job.group] += 1
        is_over = counts[job.kind, job.group] > JOBS_MAX
        if is_over or not later.keys().isdisjoint(job.depends_on):
            later[job.id] = job
        else:
            jobs.append(job)
    why = f"is planned later, since {JOBS_MAX:,} jobs of its tablet come first"
    left = dict(plan.left)
    for job in later.values():
        left.update(dict.fromkeys(job.inputs, why))
    return replace(plan, jobs=tuple(jobs), left=left)


class _Waiting:
    """Tablets that wait to be planned."""

    def __init__(self) -> None:
        self.asked: dict[TabletId, None] = {}
        self.found: dict[TabletId, None] = {}
        self.held: set[str] = set()
        """Tables whose tablets go on waiting."""
        self.news = asyncio.Event()

    def take(self, count: int) -> list[TabletId]:
        """Remove and return the next tablets, at most `count`; without any, there are no news."""
        batch = list(islice(self._ready(self.asked), count))
        batch += islice(self._ready(self.found), count - len(batch))
        for tablet in batch:
            self.asked.pop(tablet, None)
            self.found.pop(tablet, None)
        if not any(True for _ in chain(self._ready(self.asked), self._ready(self.found))):
            self.news.clear()
        return list(dict.fromkeys(batch))

    def _ready(self, tablets: Iterable[TabletId]) -> Iterator[TabletId]:
        return (tablet for tablet in tablets if tablet.table not in self.held)


class Scanner:
    """The set of tablets to plan, and the loops that fill and empty it."""

    def __init__(
        self,
        store: TabletStore,
        plan: PlanTablet,
        log: Log,
        faults: TableFaults | None = None,
        around: Callable[[Tablet, Table], Surroundings] = lambda *_: NOTHING_KNOWN,
    ) -> None:
        """Create a scanner without waiting tablets; `attach` sets the receiver of events.

        Args:
            store: The store.
            plan: Plans a tablet.
            log: Gets what goes wrong.
            faults: Counts failures of tables.
            around: Returns the facts with which a large tablet is planned in a thread.
        """
        self.faults = faults or TableFaults(log)
        self._store, self._plan, self._around, self._log = store, plan, around, log
        self._submit: Submit = lambda _event: None
        self.on_table_changed: list[Callable[[str], None]] = []
        """Called when a table, or a request of it, is new or has changed. Must not wait."""
        self.on_tablet_changed: list[Callable[[TabletId], None]] = []
        """Called when a tablet has changed. Must not wait."""
        self.on_committed: list[Callable[[str], None]] = []
        """Called with the table of each commit of a job. Must not wait."""
        self.before_planning: list[Callable[[str], Awaitable[None]]] = []
        """Awaited with each table of a batch of tablets that will be planned."""
        self.on_asked: list[Callable[[TabletId], None]] = []
        """Called with each tablet that is scheduled by `ask`."""
        self.on_tablet_read: list[Callable[[Tablet, Table], None]] = []
        """Called with a tablet that was read to be planned. Must not wait."""
        self._own, self._lakes = _Waiting(), _Waiting()
        """Tablets of native tables, and those of lake tables, which may have 100,000 files."""
        self._asked_later: dict[TabletId, asyncio.TimerHandle] = {}
        self._drained = asyncio.Event()
        self._drained.set()
        self._scan: Callable[[str], None] | None = None
        self._tables_news = asyncio.Event()
        self.feed = ChangeFeed(store)
        self._lost: set[str] = set()
        """Tables with missed changes; all of their tablets are scanned."""
        self.tables: dict[str, Table] = {}
        self.planned = 0

    def attach(self, submit: Submit) -> None:
        """Set the receiver of events."""
        self._submit = submit

    def scan_by(self, scan: Callable[[str], None]) -> None:
        """Use `scan` for all tablets of a table that is new or has changed."""
        self._scan = scan

    def remind(self, table: str) -> None:
        """Report a table as changed, because a notification may have been missed."""
        self._table_changed(table)

    def ask(self, tablet: TabletId) -> None:
        """Schedule a tablet with precedence."""
        if (timer := self._asked_later.pop(tablet, None)) is not None:
            timer.cancel()
        waiting = self._waiting_of(tablet)
        waiting.asked[tablet] = None
        for notify in self.on_asked:
            notify(tablet)
        waiting.news.set()

    def _ask_later(self, tablet: TabletId) -> None:
        """Schedule a tablet soon, unless something else schedules it before."""
        if tablet not in self._waiting_of(tablet).asked and tablet not in self._asked_later:
            loop = asyncio.get_running_loop()
            self._asked_later[tablet] = loop.call_later(RESERVED_PAUSE_S, self.ask, tablet)

    def found(self, tablet: TabletId) -> None:
        """Schedule a tablet after all tablets of `ask`."""
        waiting = self._waiting_of(tablet)
        if tablet not in waiting.asked:
            waiting.found[tablet] = None
            waiting.news.set()
            if self._found_count >= FOUND_MAX:
                self._drained.clear()

    def _waiting_of(self, tablet: TabletId) -> _Waiting:
        table = self.tables.get(tablet.table)
        return self._own if table is None or table.lake is None else self._lakes

    @contextmanager
    def held(self, table: str) -> Iterator[None]:
        """Plan no tablet of a lake table meanwhile: its mirror is moved in several steps."""
        self._lakes.held.add(table)
        try:
            yield
        finally:
            self._lakes.held.discard(table)
            self._lakes.news.set()

    async def room(self) -> None:
        """Wait until the lane of found tablets has room."""
        await self._drained.wait()

    @property
    def _found_count(self) -> int:
        return len(self._own.found) + len(self._lakes.found)

    @property
    def waiting(self) -> int:
        """Number of tablets that wait to be planned."""
        return self._found_count + len(self._own.asked) + len(self._lakes.asked)

    async def plan_forever(self) -> None:
        """Read and plan waiting tablets in batches, first those of `ask`, then those found."""
        await self._plan_waiting(self._own)

    async def plan_lakes_forever(self) -> None:
        """Do the same for tablets of lake tables, so that large ones delay no others."""
        await self._plan_waiting(self._lakes)

    async def _plan_waiting(self, waiting: _Waiting) -> None:
        while True:
            await waiting.news.wait()
            if batch := self._next_batch(waiting):
                await self._plan_again(batch)

    def _next_batch(self, waiting: _Waiting) -> list[TabletId]:
        batch = waiting.take(BATCH_TABLETS)
        if self._found_count < FOUND_MAX / 2:
            self._drained.set()
        return batch

    async def _plan_again(self, batch: Sequence[TabletId]) -> None:
        try:
            await self.plan_batch(batch)
        except Exception as error:
            if not is_store_away(error):  # Due to a tablet: plan each alone, to find it.
                await self._plan_each(batch)
                return
            self._log("planning waits for the store", cause=str(error), tablets=len(batch))
            await asyncio.sleep(PAUSE_AFTER_ERROR_S)
            for tablet in batch:
                self.ask(tablet)

    async def _plan_each(self, batch: Sequence[TabletId]) -> None:
        for tablet in batch:
            work, again = partial(self.plan_batch, [tablet]), partial(self.ask, tablet)
            try:
                await self.faults.run("planning", str(tablet), work, STORE_AWAY_ERRORS, again)
            except STORE_AWAY_ERRORS:
                again()

    async def plan_batch(self, batch: Sequence[TabletId]) -> None:
        """Read and plan these tablets, and submit their plans.

        Raises:
            MetadataError: The store did not answer as it should.
        """
        for prepare in self.before_planning:
            for name in dict.fromkeys(tablet.table for tablet in batch):
                await prepare(name)
        now_s = await self._store.now_s()
        tables = {tablet: self.tables.get(tablet.table) for tablet in batch}
        chunked = {tablet for tablet, table in tables.items() if table and has_chunks(table)}
        read = await self._store.readable(batch, chunked)
        for tablet_id, tablet in zip(batch, read, strict=True):
            table = tables[tablet_id]
            if isinstance(tablet, UnreadableTablet):
                cause = self.faults.unreadable("planning", str(tablet_id), tablet.cause)
                self._submit(on.PlanningFailed(tablet=tablet_id, cause=cause))
                continue
            self.faults.readable(str(tablet_id))
            if tablet is None:
                self._submit(on.TabletGone(tablet=tablet_id))
            elif table is not None:
                await self._plan_or_note(tablet, table, now_s)

    async def _plan_or_note(self, tablet: Tablet, table: Table, now_s: float) -> None:
        """Plan a tablet; a failure is recorded for this tablet and does not affect others."""
        try:
            await self._plan_one(tablet, table, now_s)
        except Exception as error:  # A failure on one tablet must not stop the others.
            if is_store_away(error):
                raise
            cause = self.faults.note("planning", str(tablet.id), error)
            self._submit(on.PlanningFailed(tablet=tablet.id, cause=cause))

    async def _plan_one(self, tablet: Tablet, table: Table, now_s: float) -> None:
        entries = tuple(entry for _, entry in sorted(tablet.running.items()))
        self._submit(on.ReservationsFound(tablet=tablet.id, reservations=entries))
        tablet = await with_watermarks(self._store, tablet, table, now_s)
        for notify in self.on_tablet_read:
            notify(tablet, table)
        facts = await read_request_facts(self._store, tablet)

        def planned(known: Surroundings | None = None) -> TabletPlan:
            return bounded_plan(self._plan(tablet, table, now_s, facts, known=known))

        try:
            if len(tablet.files) <= LARGE_FILES:
                plan = planned()
            else:
                plan = await asyncio.to_thread(planned, self._around(tablet, table))
        except PluginError as error:
            self._submit(on.PlanningFailed(tablet=tablet.id, cause=str(error)))
            return
        self.planned += 1
        self._submit(
            on.TabletPlanned(
                tablet=tablet.id,
                plan=plan,
                record=tablet.record,
                settings_version=table.settings_version,
                due_at_s=recheck_at_s(tablet, table, plan),
                adds=recent_user_adds(tablet, now_s),
                chunks=tablet.chunks,
                files=() if plan.asked is None else tablet.files.keys(),
                numbers=_numbers(tablet, plan),
            )
        )

    async def follow_forever(self) -> None:
        """Follow the change streams of all tables."""
        while True:
            try:
                await self._follow_once()
            except (MetadataError, UnavailableError) as error:
                self._log("change feed waits for the store", cause=str(error))
                await asyncio.sleep(PAUSE_AFTER_ERROR_S)

    async def _follow_once(self) -> None:
        if not self.feed:
            await asyncio.sleep(FEED_BLOCK_S)
            return
        changes, missed = await self.feed.read()
        for change in changes:
            self._heard(change)
        for table in missed:
            self._log("changes missed", table=table)
            self._table_changed(table)
        self._lost.update(missed)
        while self._lost:
            await self._look_at_all(self._lost.pop())

    def _heard(self, change: TabletChanged) -> None:
        table = change.tablet.table
        if change.what == UNREADABLE:
            self._log("change cannot be read", table=table, position=change.position)
            self._table_changed(table)
            self._tables_news.set()
            self._lost.add(table)
            return
        if change.whole_table:
            self._table_changed(table)
            if change.request is None:
                self._tables_news.set()
            return
        self._submit_end(change)
        if change.what == "reserve":
            self._ask_later(change.tablet)
        else:
            self.ask(change.tablet)
        for notify in self.on_tablet_changed:
            notify(change.tablet)

    def _submit_end(self, change: TabletChanged) -> None:
        """Submit the end of an attempt, if a change is one."""
        if change.attempt is not None and change.what in _ENDS:
            self._submit(
                on.AttemptSettled(
                    tablet=change.tablet, attempt=change.attempt, end=_ENDS[change.what]
                )
            )
        if change.what == "commit":
            for committed in self.on_committed:
                committed(change.tablet.table)

    def _table_changed(self, table: str) -> None:
        for notify in self.on_table_changed:
            notify(table)

    async def refresh_tables_forever(self) -> None:
        """Detect new, changed and dropped tables in a loop."""
        while True:
            try:
                await self.refresh_tables()
            except (MetadataError, UnavailableError) as error:
                self._log("list of tables waits for the store", cause=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(TABLES_REFRESH_S):
                    await self._tables_news.wait()
            self._tables_news.clear()

    async def refresh_tables(self) -> None:
        """Read the list of tables; scan all tablets of each new or changed table."""
        tables = await self._read_tables()
        for gone in [table for table in self.tables if table not in tables]:
            del self.tables[gone]
            self.feed.forget(gone)
            self.faults.forget(gone)
            self._submit(on.TableGone(table=gone))
            self._table_changed(gone)
        await self._notice(tables)

    async def _read_tables(self) -> dict[str, Table]:
        """Return all tables by id; for an unreadable table, return its last known version.

        A table that is being filled by a recovery is excluded: the coordinator ignores it.
        """
        listed = await self._store.listed_tables()
        filled = (table for table in listed.tables if table.state is not TableState.FILLING)
        tables = {table.id: table for table in filled}
        for name, cause in listed.broken.items():
            self.faults.unreadable("reading", name, cause)
        for name in self.faults.unreadable_tables:
            if name not in listed.broken:
                self.faults.readable(name)
        kept = {
            table_id: old
            for table_id, old in self.tables.items()
            if not listed.may_be_gone(table_id)
        }
        return kept | tables

    async def _notice(self, tables: Mapping[str, Table]) -> None:
        for table in tables.values():
            if self.tables.get(table.id) != table:
                work = partial(self._notice_one, table)
                await self.faults.run("taking notice", table.id, work, STORE_AWAY_ERRORS)

    async def _notice_one(self, table: Table) -> None:
        # Read the position first, so that changes during the scan are received, too.
        await self.feed.follow(table.id)
        self.tables[table.id] = table
        self._submit(on.TableSeen(table=table))
        self._table_changed(table.id)
        await self._look_at_all(table.id)

    async def _look_at_all(self, table: str) -> None:
        """Schedule every tablet of a table, through the full scan if there is one."""
        if self._scan is not None:
            self._scan(table)
            return
        after: bytes | None = None
        while ids := await self._store.tablet_ids(table, after=after):
            for tablet in ids:
                self.ask(tablet)
            after = ids[-1].end
