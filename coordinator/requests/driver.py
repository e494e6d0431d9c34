"""Drives user requests: reads their tablets, and takes one step in each.

    the feed reports a tablet ─► the tablet is read ─► a step of the request that has the turn
    a request changed, full scan ─► all tablets of all requests ─► … ─► DONE, FAILED, …

The store holds all state: open requests are read again with every pass over all tablets. Memory
holds only the pending work and the tables with requests, so that changes of other tables cost
nothing. The tablets of a range may not fit into memory, so they are read page by page.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from functools import partial

from common.errors import MetadataError, UnavailableError
from common.metadata.changes import Applied, CloseRequest, Unknown
from common.metadata.keys import AUDITED_DELETES_MAX, HISTORY_MAX
from common.metadata.store import TabletStore
from common.model.request import Request, RequestState, TransformKind
from common.model.table import Table
from common.model.tablet import Tablet, TabletId
from coordinator.context import ShellContext
from coordinator.core.requests import (
    meets_tablet,
    next_state,
    requests_in_turn,
    why_cancel,
)
from coordinator.requests.tablet_steps import (
    RETRY_S,
    RequestSteps,
    cancel_part,
)

# ---------------------------------------------------------------- Tablets of requests, page by page


PAGE_TABLETS = 500


async def tablet_pages(
    store: TabletStore, table: Table, requests: Sequence[Request]
) -> AsyncIterator[list[Tablet]]:
    """Yield the tablets that may hold rows of any of these requests, in order.

    A tablet that is split meanwhile may be missed: a request is checked again until the store
    confirms its end.

    Raises:
        MetadataError: The store did not answer as it should.
    """
    start, until = (None, None) if table.partition_by else _common_span(requests)
    first = None if start is None else await store.locate(table.id, start)
    ids: list[TabletId] = [] if first is None else [first]
    after = None if first is None else first.end
    while True:
        ids += await store.tablet_ids(table.id, after=after, count=PAGE_TABLETS)
        if not ids:
            return
        yield [tablet for tablet in await store.tablets(ids) if tablet is not None]
        after = ids[-1].end
        if until is not None and after >= until:
            return
        ids = []


def _common_span(requests: Sequence[Request]) -> tuple[bytes | None, bytes | None]:
    """Return the common bounds of all ranges."""
    starts = [request.range.start for request in requests]
    ends = [request.range.until for request in requests]
    start = None if None in starts else min(each for each in starts if each is not None)
    until = None if None in ends else max(end for end in ends if end is not None)
    return start, until


# --------------------------------------------------------------------------------------- The driver


STEPS_AT_ONCE = 16
"""Concurrent steps in the tablets of one table."""
REST_PER_TABLET_S = 0.001
REST_MAX_S = 60.0
"""Maximum pause between two passes over all tablets that only count the remaining work."""


class _TableNews:
    """Pending work in one table."""

    def __init__(self) -> None:
        self.whole = False
        self.tablets: dict[TabletId, None] = {}


class RequestDriver:
    """The driver of all requests. Every method is called from one event loop."""

    def __init__(self, context: ShellContext, steps: RequestSteps) -> None:
        """Create a driver without pending work."""
        self._context = context
        self._steps = steps
        self._news: dict[str, _TableNews] = {}
        self._driven: set[str] = set()
        self._awake = asyncio.Event()
        self._open: dict[str, tuple[Request, ...]] = {}
        self._rests_until_s: dict[str, float] = {}
        self._counts: dict[str, asyncio.TimerHandle] = {}
        self._waiting: dict[str, set[TabletId]] = {}
        self.ended: Counter[RequestState] = Counter()
        """Number of requests that have ended since the start, by final state."""

    def table_changed(self, table: str) -> None:
        """Schedule a pass over all requests of a table and all their tablets."""
        self._news.setdefault(table, _TableNews()).whole = True
        self._awake.set()

    def tablet_changed(self, tablet: TabletId) -> None:
        """Schedule a step in a tablet if its table has requests."""
        if tablet.table in self._open:
            self._news.setdefault(tablet.table, _TableNews()).tablets[tablet] = None
            self._awake.set()

    def look_at_deadlines(self) -> None:
        """Schedule a pass over the tables with a request whose deadline has passed."""
        now_s = self._context.clock.now_s()
        for table, requests in self._open.items():
            if any(_is_late(request, now_s) for request in requests):
                self.table_changed(table)

    def open_requests(self) -> list[Request]:
        """Return the open requests of all tables."""
        return [
            request for some in self._open.values() for request in some if not request.state.ended
        ]

    @property
    def waiting_tablets(self) -> int:
        """Number of tablets in which a request waits for running jobs, at their last read."""
        return sum(map(len, self._waiting.values()))

    async def cancel_here(self, tablet: TabletId, attempt: str) -> None:
        """Exclude a tablet from the request that an attempt in it belongs to, if any."""
        seen = await self._context.store.tablet(tablet)
        entry = None if seen is None else seen.running.get(attempt)
        if seen is not None and entry is not None and entry.request is not None:
            await self._context.apply_or_unknown(cancel_part(entry.request, seen))
            self.table_changed(tablet.table)

    async def run_forever(self) -> None:
        """Drive tables concurrently, so that a slow selector does not delay other tables."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._awake.wait()
                self._awake.clear()
                for table in [new for new in self._news if new not in self._driven]:
                    self._driven.add(table)
                    tasks.create_task(self._drive(table))

    async def _drive(self, table: str) -> None:
        try:
            while (news := self._news.pop(table, None)) is not None:
                work = partial(self._look_or_wait, table, news)
                again = partial(self.table_changed, table)
                await self._context.faults.run("driving requests", table, work, retry=again)
        finally:
            self._driven.discard(table)

    async def _look_or_wait(self, table: str, news: _TableNews) -> None:
        try:
            await self._look(table, news)
        except (MetadataError, UnavailableError) as error:
            self._context.log("requests wait for the store", table=table, cause=str(error))
            await asyncio.sleep(RETRY_S)
            self.table_changed(table)

    async def _look(self, table: str, news: _TableNews) -> None:
        if news.whole:
            await self._look_at_all(table)
            return
        found = await self._context.store.table(table)
        requests = self._open.get(table, ())
        if found is None or not requests:
            return
        now_s = await self._context.store.now_s()
        tablets = await self._context.store.tablets([*news.tablets])
        read = [tablet for tablet in tablets if tablet is not None]
        unsettled = await self._step_in(requests, found, read, now_s)
        if len(read) < len(tablets) or _any_settled(requests, read, unsettled):
            self._count_soon(table)

    async def _look_at_all(self, table: str) -> None:
        store = self._context.store
        requests = tuple(await store.open_requests(table))
        if not requests:
            self._open.pop(table, None)
            self._rests_until_s.pop(table, None)
            self._waiting.pop(table, None)
            return
        self._open[table] = requests
        found, now_s = await store.table(table), await store.now_s()
        early = [why_cancel(request, found, now_s) for request in requests]
        if moves := [change for change in early if change is not None]:
            outcomes = [await self._context.apply_or_unknown(change) for change in moves]
            if any(isinstance(outcome, Applied) for outcome in outcomes):
                self.table_changed(table)
        elif found is not None:
            await self._step_everywhere(requests, found, now_s)

    async def _step_everywhere(
        self, requests: Sequence[Request], table: Table, now_s: float
    ) -> None:
        """Take a step in every tablet; end the requests that have no work left in any."""
        left = dict.fromkeys((request.id for request in requests), 0)
        count = 0
        async for read in tablet_pages(self._context.store, table, requests):
            count += len(read)
            for _, request in await self._step_in(requests, table, read, now_s):
                left[request] += 1
        await self._move_on([each for each in requests if not left[each.id]], table, now_s)
        rest_s = min(count * REST_PER_TABLET_S, REST_MAX_S)
        self._rests_until_s[table.id] = asyncio.get_running_loop().time() + rest_s

    async def _step_in(
        self, requests: Sequence[Request], table: Table, tablets: Collection[Tablet], now_s: float
    ) -> set[tuple[TabletId, str]]:
        """Take one step in each tablet; return the (tablet, request) pairs with work left."""
        waiting = self._waiting.setdefault(table.id, set())
        waiting.difference_update(tablet.id for tablet in tablets if not tablet.waiting)
        waiting.update(tablet.id for tablet in tablets if tablet.waiting)
        gate = asyncio.Semaphore(STEPS_AT_ONCE)
        unsettled: set[tuple[TabletId, str]] = set()

        async def step(tablet: Tablet) -> None:
            turn = requests_in_turn(requests, tablet)
            for request in requests:
                if request not in turn:
                    if meets_tablet(request, tablet.bounds):
                        unsettled.add((tablet.id, request.id))
                    continue
                async with gate:
                    stepped = await self._steps.take(request, table, tablet, now_s)
                if not stepped.settled:
                    unsettled.add((tablet.id, request.id))
                if stepped.look_again_s is not None:
                    self._look_later(table.id, stepped.look_again_s)

        await asyncio.gather(*(step(tablet) for tablet in tablets))
        return unsettled

    async def _move_on(self, requests: Iterable[Request], table: Table, now_s: float) -> None:
        """Change the state of requests that have no work left in any tablet."""
        for request in requests:
            change = next_state(request, 0)
            if change is not None and change.state.ended:
                await self._audit_rows(request, change.state, table, now_s)
            close = CloseRequest(table=request.table, request=request.id)
            outcome = await self._context.apply_or_unknown(close if change is None else change)
            if isinstance(outcome, Applied):
                self._context.log(
                    "request moves on",
                    request=request.id,
                    state="closed" if change is None else change.state.value,
                )
                self.table_changed(request.table)
                if change is not None and change.state.ended:
                    self.ended[change.state] += 1
            elif isinstance(outcome, Unknown):
                self._look_later(request.table, RETRY_S)

    async def _audit_rows(
        self, request: Request, state: RequestState, table: Table, now_s: float
    ) -> None:
        """Record in the audit how many rows a request has deleted and changed.

        The entry is written before the last change of state. If the coordinator dies in between,
        the entry is written twice under the same id, and the last one counts.
        """
        if request.transform.kind is TransformKind.NONE:
            return
        store = self._context.store
        history = await store.history(table.id, HISTORY_MAX)
        own = [each for each in history if each.request == request.id]
        deleted = sum(max(each.rows_deleted, each.transform_dropped) for each in own)
        changed = sum(each.rows_changed for each in own)
        entry = {
            "id": f"end-{request.id}",
            "at_s": round(now_s, 3),
            "caller": "coordinator",
            "action": f"compaction request ended: {state.value}",
            "table": table.name,
            "outcome": "done",
            "details": f"request={request.id} deleted_rows={deleted} changed_rows={changed}",
        }
        line = json.dumps(entry, separators=(",", ":")).encode()
        await store.note_audit([line], AUDITED_DELETES_MAX, "deletes")

    def _count_soon(self, table: str) -> None:
        """Schedule a count of the remaining tablets, at a limited rate."""
        loop = asyncio.get_running_loop()
        self._look_later(table, max(0.0, self._rests_until_s.get(table, 0.0) - loop.time()))

    def _look_later(self, table: str, wait_s: float) -> None:
        pending = self._counts.get(table)
        if pending is not None and not pending.cancelled():
            return

        def look() -> None:
            self._counts.pop(table, None)
            self.table_changed(table)

        self._counts[table] = asyncio.get_running_loop().call_later(wait_s, look)


def _is_late(request: Request, now_s: float) -> bool:
    late = request.deadline_s is not None and request.deadline_s <= now_s
    return late and request.state is RequestState.ACTIVE


def _any_settled(
    requests: Iterable[Request],
    tablets: Iterable[Tablet],
    unsettled: Collection[tuple[TabletId, str]],
) -> bool:
    """Return whether any request has no work left in one of these tablets."""
    return any(
        (tablet.id, request.id) not in unsettled
        for tablet in tablets
        for request in requests
        if meets_tablet(request, tablet.bounds)
    )
