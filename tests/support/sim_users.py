"""Users in a simulation: they ask for compactions, change their minds, split, merge and drop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from common.errors import MetadataError, UnavailableError
from common.metadata.changes import (
    Applied,
    BeginOperation,
    CancelRange,
    Change,
    ChangeTable,
    CreateTable,
    DropTable,
    EndOperation,
    MoveRequest,
    Outcome,
    Refused,
    StepOperation,
    SubmitRequest,
)
from common.metadata.changes.split_merge import operation_tablets
from common.metadata.store import TabletStore
from common.model.request import (
    KeyRange,
    Request,
    RequestState,
    SelectorSpec,
    TransformKind,
    TransformSpec,
)
from common.model.table import Table, TableState
from common.model.tablet import PLUS_INFINITY, OperationKind, OperationStep, Tablet
from tests.support.sim_clients import SimClient
from tests.support.sim_disk import LAST_KEY, key_bytes, key_number
from tests.support.sim_loop import SimLoop
from tests.support.sim_truth import Truth

PATIENCE_S = 15.0
"""How long a user waits before he asks for something else."""
CREATED_NAMES = 3
"""How many names, and locations, those who create tables choose from."""


class SimUser(SimClient):
    """Submits requests and looks how they end; may cancel them, in part or as a whole."""

    def __init__(
        self,
        name: str,
        process: SimLoop,
        store: TabletStore,
        truth: Truth,
        *,
        cancels: bool,
        deadlines: bool,
        cancel_job: Callable[[SimUser, str], Awaitable[None]],
    ) -> None:
        super().__init__(name, process, store, truth)
        self._cancels = cancels
        self._deadlines = deadlines
        self._cancel_job = cancel_job
        self._wanted: dict[str, Request] = {}
        self._cancelled: dict[str, None] = {}
        """Requests whose cancellation was acknowledged."""

    async def run(self, tables: Sequence[Table], busy_s: float) -> None:
        until_s = self.world.now_s() + busy_s
        while self.world.now_s() < until_s:
            await self.pause(8.0)
            request = self._drawn(self.world.dice.choice(tables).id)
            if self.world.chance(0.2):
                self.process.start(self.attempt(SubmitRequest(request=request)))
            if isinstance(await self.repeat(SubmitRequest(request=request)), Applied):
                self._wanted[request.id] = request
                self.truth.seen["requests submitted"] += 1
                await self._wait(request, self.world.now_s() + PATIENCE_S)
        for request in self._wanted.values():
            await self._wait(request, float("inf"))
        self.done = True

    def _drawn(self, table: str) -> Request:
        dice, now_s = self.world.dice, self.world.now_s()
        first, last = sorted((dice.randint(0, LAST_KEY), dice.randint(1, LAST_KEY + 1)))
        selector = dice.choice(
            (
                SelectorSpec(),
                SelectorSpec(),
                SelectorSpec(name="size", options={"smaller_than": "20000"}),
            )
        )
        return Request(
            id=f"req-{self.name}-{len(self._wanted)}-{int(now_s * 1000)}",
            table=table,
            range=dice.choice(
                (
                    KeyRange(),
                    KeyRange(key_bytes(first), key_bytes(last)),
                    KeyRange(None, key_bytes(last)),
                    KeyRange(key_bytes(first), None),
                )
            ),
            selector=selector,
            transform=TransformSpec(kind=dice.choice((TransformKind.NONE, TransformKind.SET))),
            boost=dice.choice((0, 0, 100)),
            deadline_s=now_s + 20.0 * dice.random()
            if self._deadlines and dice.random() < 0.3
            else None,
        )

    async def _wait(self, request: Request, until_s: float) -> None:
        """Wait for the end of a request; meanwhile, perhaps, change one's mind."""
        while self.world.now_s() < until_s:
            try:
                found = await self.store.request(request.table, request.id)
            except (MetadataError, UnavailableError):
                found = request
            if found is None or self.truth.drops(request.table):
                assert self.truth.drops(request.table), f"{request.id} is forgotten"
                return
            if found.state.ended:
                self._check_end(found)
                return
            if self._cancels and until_s < float("inf") and self.world.chance(0.15):
                await self._change_mind(found)
            await self.pause(3.0)

    def _check_end(self, found: Request) -> None:
        if found.id in self._cancelled:
            assert found.state is not RequestState.DONE, f"{found.id}: DONE after it was cancelled"

    async def _change_mind(self, request: Request) -> None:
        how = self.world.dice.choice(("request", "range", "job"))
        self.truth.seen[f"cancelled: {how}"] += 1
        if how == "request":
            state = RequestState.CANCELLING
            change = MoveRequest(
                table=request.table, request=request.id, state=state, cause="not wanted any more"
            )
            if isinstance(await self.repeat(change), Applied):
                self._cancelled[request.id] = None
        elif how == "range":
            low, high = sorted(self.world.dice.randint(0, LAST_KEY) for _ in range(2))
            part = KeyRange(key_bytes(low), key_bytes(high + 1))
            await self.attempt(CancelRange(table=request.table, request=request.id, range=part))
        else:
            views = self.truth.tablets(request.table).values()
            running = [entry for view in views for entry in view.running.values()]
            mine = [entry.attempt for entry in running if entry.request == request.id]
            if mine:
                await self._cancel_job(self, self.world.dice.choice(mine))


class SimDivider(SimClient):
    """Begins splits and merges, and now and then takes a next step: anyone may."""

    async def run(self, tables: Sequence[Table], busy_s: float) -> None:
        until_s = self.world.now_s() + busy_s
        number = 0
        while self.world.now_s() < until_s:
            await self.pause(6.0)
            number += 1
            if not tables:  # Between two that have one name.
                continue
            table = self.world.dice.choice(tables)
            try:
                await self._begin(table, f"op-{self.name}-{number}")
                await self.pause(3.0)
                await self.step(table)
            except (MetadataError, UnavailableError):
                continue
        self.done = True

    async def _begin(self, table: Table, operation: str) -> None:
        ids = [*await self.store.tablet_ids(table.id)]
        if not ids:
            return
        at = self.world.dice.randrange(len(ids))
        if at and self.world.chance(0.5):
            change = BeginOperation(
                kind=OperationKind.MERGE, tablets=(ids[at - 1], ids[at]), operation=operation
            )
        else:
            first = key_number(ids[at - 1].end) if at else 0
            last = LAST_KEY if ids[at].end == PLUS_INFINITY else key_number(ids[at].end)
            if last - first < 2:
                return
            cut = key_bytes(self.world.dice.randint(first + 1, last - 1))
            change = BeginOperation(
                kind=OperationKind.SPLIT, tablets=(ids[at],), operation=operation, at=cut
            )
        if isinstance(await self.attempt(change), Applied):
            self.truth.seen[f"{change.kind.value}s begun"] += 1

    async def step(self, table: Table) -> None:
        """Try every step in every tablet: the store refuses what is not next.

        Raises:
            MetadataError: The store did not answer as it should.
        """
        for tablet in await self.store.tablets([*await self.store.tablet_ids(table.id)]):
            if tablet is not None and (tablets := operation_tablets(tablet)) is not None:
                await self._step(tablet, tablets)

    async def _step(self, tablet: Tablet, tablets: tuple[object, ...]) -> None:
        assert tablet.operation is not None, tablet.id
        known = {"tablets": tablets, "operation": tablet.operation.operation_id}
        for step in (OperationStep.DRAIN, OperationStep.CLOSE):
            await self.attempt(StepOperation(**known, step=step))
        await self.attempt(EndOperation(**known))


class SimOwner(SimClient):
    """Pauses tables, and drops one at last."""

    async def pause_table(self, table: Table) -> None:
        """Pause a table for some seconds."""
        for state in (TableState.PAUSED, TableState.LIVE):
            while True:
                try:
                    found = await self.store.table(table.id)
                except (MetadataError, UnavailableError):
                    found = table
                if found is None or found.state is TableState.GOING:
                    return
                change = ChangeTable(
                    table=table.id, settings_version=found.settings_version, state=state
                )
                if isinstance(await self.attempt(change), Applied):
                    break
                await self.pause(1.0)
            await self.pause(8.0)

    async def drop_table(self, table: Table, after_s: float, *, delete_files: bool) -> None:
        """Drop a table, again and again, until nothing of it is left."""
        await asyncio.sleep(after_s)
        self.truth.seen["drops"] += 1
        while True:
            outcome = await self.attempt(DropTable(table=table.id, delete_files=delete_files))
            if isinstance(outcome, Refused) or (isinstance(outcome, Applied) and outcome.complete):
                break
            await self.pause(3.0)
        self.done = True


class SimCreator(SimClient):
    """Creates tables and drops them, under few names; others want the same ones."""

    async def run(self, tables: Sequence[Table], busy_s: float) -> None:
        until_s = self.world.now_s() + busy_s
        number = 0
        while self.world.now_s() < until_s:
            number += 1
            name = f"own{self.world.dice.randrange(CREATED_NAMES)}"
            place = f"file:///sim/own{self.world.dice.randrange(CREATED_NAMES)}"
            own = replace(tables[0], id=f"{self.name}-{number}", name=name, location=place)
            await self._live(own)
            await self.pause(2.0)
        self.done = True

    async def _live(self, table: Table) -> None:
        outcome = await self._asked(CreateTable(table=table))
        if isinstance(outcome, Applied):
            self.truth.created(table)
        await self.pause(4.0)
        if isinstance(outcome, Refused) or self.world.chance(0.2):
            return
        self.truth.drop_begins(table.id)
        outcome = await self._asked(DropTable(table=table.id))
        if isinstance(outcome, Applied) and outcome.complete:
            self.truth.dropped(table.id)

    async def _asked(self, change: Change) -> Outcome | None:
        """Apply a change: mostly until there is an answer, else once."""
        if self.world.chance(0.7):
            return await self.repeat(change)
        return await self.attempt(change)


def renamed(table: Table, number: int) -> Table:
    """Return another table of the same kind."""
    return replace(table, id=f"t{number}", name=f"table{number}", location=f"file:///sim/{number}")
