"""Drives splits and merges: takes their steps, and begins new ones based on sizes.

    the scanner reads a tablet with an operation ─► its steps, until it has to wait
    … one that has grown too large ─► a split of it
    a table changed, full scan ─► the records of its tablets ─► splits, merges

The store holds all state: the driver continues operations that another coordinator or a user has
begun. Memory holds only the pending work and, for display, what each operation waits for.
"""

import asyncio
from functools import partial

from common.bounded_map import BoundedMap
from common.errors import MetadataError, UnavailableError
from common.model.key_values import key_type_of
from common.model.keys import format_key
from common.model.table import Table, TableState
from common.model.tablet import Record, Tablet, TabletId
from coordinator.context import ShellContext
from coordinator.core.split_merge import (
    has_ranges,
    merge_bytes,
    pairs_to_merge,
)
from coordinator.split_merge.step_runner import OperationStatus, OperationSteps

LOOKS_AT_ONCE = 4
RETRY_S = 1.0
"""Pause after the store did not answer."""
WALK_REST_S = 5.0
"""Minimum pause between two walks over the records of a table."""
PAGE_TABLETS = 1000
LARGE_MAX = 1000
"""Tablets that wait for a split; the next full scan finds evicted ones again."""
ABANDONED_MAX = 1000
TRY_REST_S = 60.0
"""Pause after no split key was found for a tablet or its split was refused."""


class OperationDriver:
    """The driver of all splits and merges. Every method is called from one event loop."""

    def __init__(self, context: ShellContext, steps: OperationSteps) -> None:
        """Create a driver without pending work."""
        self._context = context
        self._steps = steps
        self._look: dict[TabletId, None] = {}
        self._large: BoundedMap[TabletId, None] = BoundedMap(LARGE_MAX)
        self._walk: dict[str, None] = {}
        self._walked_s: dict[str, float] = {}
        self._statuses: dict[TabletId, OperationStatus] = {}
        self._tried_s: BoundedMap[TabletId, float] = BoundedMap(LARGE_MAX)
        self._abandoned: BoundedMap[TabletId, tuple[float, str]] = BoundedMap(ABANDONED_MAX)
        self._splitting: set[TabletId] = set()
        self._awake = asyncio.Event()
        self._to_walk = asyncio.Event()

    def table_changed(self, table: str) -> None:
        """Schedule a check of the tablet sizes of a table."""
        self._walk[table] = None
        self._to_walk.set()

    def tablet_read(self, tablet: Tablet, table: Table) -> None:
        """Schedule the next step of a tablet's operation, or a split if it is too large."""
        if tablet.operation is not None:
            self._look[tablet.id] = None
            self._awake.set()
            return
        self._statuses.pop(tablet.id, None)
        limit = table.settings.split_bytes
        if limit and has_ranges(table) and tablet.record.size_bytes > limit:
            self._large.put(tablet.id, None)
            self._awake.set()

    def sentences(self, tablet: TabletId) -> tuple[str, ...]:
        """Return sentences for users on the splits and merges of a tablet."""
        status, now_s = self._statuses.get(tablet), self._context.clock.now_s()
        if status is not None:
            return (_sentence(status, now_s),)
        given_up = self._abandoned.get(tablet)
        if given_up is None or now_s - given_up[0] > self._steps.rules.lasts_max_s:
            return ()
        return (f"a split or merge was abandoned {now_s - given_up[0]:.0f} s ago: {given_up[1]}",)

    async def run_forever(self) -> None:
        """Take steps of several operations at a time, and begin new operations."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(LOOKS_AT_ONCE):
                tasks.create_task(self._look_forever())
            tasks.create_task(self._walk_forever())

    async def _look_forever(self) -> None:
        while True:
            await self._awake.wait()
            if self._look:
                tablet = next(iter(self._look))
                del self._look[tablet]
                await self._guarded(tablet)
            elif (large := next(iter(self._large), None)) is not None:
                self._large.pop(large[0])
                work = partial(self._split, large[0])
                await self._context.faults.run("splitting", str(large[0]), work)
            else:
                self._awake.clear()

    async def _guarded(self, tablet: TabletId) -> None:
        work, again = partial(self._go_on_or_wait, tablet), partial(self._look_again, tablet)
        await self._context.faults.run("splitting and merging", str(tablet), work, retry=again)

    async def _go_on_or_wait(self, tablet: TabletId) -> None:
        try:
            again = await self._go_on(tablet)
        except (MetadataError, UnavailableError) as error:
            self._log("operation waits for the store", tablet, cause=str(error))
            again = True
        if again:
            asyncio.get_running_loop().call_later(RETRY_S, self._look_again, tablet)

    def _look_again(self, tablet: TabletId) -> None:
        self._look[tablet] = None
        self._awake.set()

    async def _go_on(self, tablet: TabletId) -> bool:
        """Take the steps of the operation in a tablet; return whether to look again soon."""
        table = await self._context.store.table(tablet.table)
        if table is None or table.state is TableState.GOING:
            self._statuses.pop(tablet, None)
            return False
        result = await self._steps.look(tablet, table)
        if result.status is not None:
            self._statuses.update(dict.fromkeys(result.status.tablets, result.status))
            return result.look_again
        before = self._statuses.pop(tablet, None)
        for tablet_id in () if before is None else before.tablets:
            self._statuses.pop(tablet_id, None)
        if result.abandoned:
            now_s = self._context.clock.now_s()
            self._abandoned.put(tablet, (now_s, result.abandoned))
        self.table_changed(tablet.table)
        return result.look_again

    async def _split(self, tablet: TabletId) -> None:
        now_s, tried_s = self._context.clock.now_s(), self._tried_s.get(tablet)
        if tablet in self._splitting or not self._has_room():
            return
        if tried_s is not None and now_s - tried_s < TRY_REST_S:
            return
        self._splitting.add(tablet)
        try:
            table = await self._context.store.table(tablet.table)
            if table is not None and await self._steps.split(tablet, table):
                await self._guarded(tablet)
            else:
                self._tried_s.put(tablet, now_s)
        except (MetadataError, UnavailableError) as error:
            self._log("split waits for the store", tablet, cause=str(error))
        finally:
            self._splitting.discard(tablet)

    async def _walk_forever(self) -> None:
        """Walk over the records of scheduled tables, one table after another."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None
        while True:
            await self._to_walk.wait()
            now_s = loop.time()
            due = [each for each in self._walk if self._walked_s.get(each, 0.0) <= now_s]
            if not due:
                self._to_walk.clear()
                if timer is not None:
                    timer.cancel()
                if self._walk:
                    first_s = min(self._walked_s[each] for each in self._walk)
                    timer = loop.call_at(first_s, self._to_walk.set)
                continue
            del self._walk[due[0]]
            work, again = (
                partial(self._walk_over_or_log, due[0]),
                partial(self.table_changed, due[0]),
            )
            await self._context.faults.run("looking at sizes", due[0], work, retry=again)

    async def _walk_over_or_log(self, table: str) -> None:
        try:
            await self._walk_over(table)
        except (MetadataError, UnavailableError) as error:
            self._context.log("sizes not looked at", table=table, cause=str(error))

    async def _walk_over(self, table: str) -> None:
        found = await self._context.store.table(table)
        if found is None:
            self._walked_s.pop(table, None)
            for tablet in [status for status in self._statuses if status.table == table]:
                del self._statuses[tablet]
            return
        self._walked_s[table] = asyncio.get_running_loop().time() + WALK_REST_S
        if not has_ranges(found) or found.state is not TableState.LIVE:
            return
        store, limit = self._context.store, found.settings.split_bytes
        if not limit and not merge_bytes(found):
            return
        before: list[tuple[TabletId, Record]] = []
        after: bytes | None = None
        while ids := await store.tablet_ids(table, after=after, count=PAGE_TABLETS):
            records = await store.records(ids)
            page = [(id_, record or Record()) for id_, record in zip(ids, records, strict=True)]
            for id_, record in page:
                if limit and record.size_bytes > limit and not record.operation:
                    self._large.put(id_, None)
                    self._awake.set()
            await self._merge([*before, *page], found)
            before, after = page[-1:], ids[-1].end

    async def _merge(self, page: list[tuple[TabletId, Record]], table: Table) -> None:
        now_s = await self._context.store.now_s()
        for left, right in pairs_to_merge(page, table, now_s, self._steps.rules.lasts_max_s):
            if not self._has_room():
                return
            if await self._steps.merge(left, right, table):
                await self._guarded(right)

    def _has_room(self) -> bool:
        """Return whether fewer operations are in progress than `at_once_max`."""
        under_way = {status.operation.operation_id for status in self._statuses.values()}
        return len(under_way) + len(self._splitting) < self._steps.rules.at_once_max

    def _log(self, event: str, tablet: TabletId, **fields: str) -> None:
        self._context.log(event, tablet=str(tablet), **fields)


def key_text(key: bytes, table: Table) -> str:
    """Return a readable form of a table's key."""
    types = {column.name: column.type for column in table.schema}
    try:
        return format_key(key, [key_type_of(types[name]) for name in table.key])
    except ValueError:
        return key.hex()


def _sentence(status: OperationStatus, now_s: float) -> str:
    operation = status.operation
    where = "" if operation.at is None else f" at {key_text(operation.at, status.table)}"
    why = f" (begun because {operation.reason})" if operation.reason else ""
    since_s = max(0.0, now_s - operation.since_s)
    return (
        f"a {operation.kind.value}{where} has been running for {since_s:.0f} s{why}, at step"
        f" {operation.step.value}: {status.waits}"
    )
