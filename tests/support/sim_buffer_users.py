"""What a life of buffered rows meets: requests, pauses, drops, and a store that goes back in time.

The verbs are the gateway's own. Who carries a request out is a model: it selects all files of a
tablet, rewrites them in one job, and gives up where another change is faster.
"""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from common.errors import CompactionError
from common.metadata.changes import (
    AcceptGeneration,
    Applied,
    CancelHere,
    ChangeTable,
    CommitAttempt,
    DropTable,
    FinishHere,
    MoveRequest,
    ReserveFiles,
    SelectFiles,
)
from common.metadata.store import TabletStore
from common.model.job import Kind
from common.model.key_values import KeyType
from common.model.keys import encode_key
from common.model.outcome import RowCounts
from common.model.request import Request, RequestState
from common.model.table import Table, TableState
from common.model.tablet import Tablet
from common.parquet.file_inspection import FileFacts
from common.parquet.service_files import LocationOwner
from common.runtime import call_id
from common.settings import GatewaySettings, Settings
from neve import api
from neve.gateway.requests import submit_request
from neve.gateway.services import Services
from neve.gateway.tables import drop_table

if TYPE_CHECKING:
    from tests.support.memory_store import MemoryValues
    from tests.support.sim_buffers import BufferWorld

STORE_ID = "store-1"
LOCATION = "file:///nowhere"
TRIES_MAX = 6
"""Tries of a verb, or of a step of a request."""


# --------------------------------------------------------------------------- A gateway of a process


@dataclass(frozen=True)
class WorldFiles:
    """What a gateway needs of the files of the world."""

    world: BufferWorld

    def owner(self, table: Table) -> LocationOwner:
        """Return the owner of the location."""
        return LocationOwner(store=STORE_ID, table=table.id)

    def generation(self, _table: Table) -> int:
        """Return the generation that was written to the location."""
        return self.world.generation

    def write(self, table: Table, path: str, rows: pa.Table) -> FileFacts:
        """Write a file of a flush."""
        return self.world.write(table, path, rows)


def gateway(world: BufferWorld) -> Services:
    """Return the services of a gateway with a connection of its own."""
    unused: Any = None
    threads: Any = world.threads  # Runs the same work.
    files: Any = WorldFiles(world)
    return Services(
        store=world.store(),
        store_watch=unused,
        coordinator=unused,
        plan=unused,
        settings=Settings(gateway=GatewaySettings(locations=(LOCATION,))),
        clock=world.clock,
        ids=world.ids,
        log=lambda *_words, **_fields: None,
        footers=threads,
        files=files,
    )


# ----------------------------------------------------------------------------------------- Requests


@dataclass(eq=False)
class Wish:
    """A request that deletes the rows of some keys."""

    low: int
    high: int
    before: frozenset[int]
    """Rows that were acknowledged before it was submitted: it must delete those."""
    done: bool = False
    until: float = field(default=float("inf"))
    """The first row that was written after its end."""

    def covers(self, row: dict[str, Any]) -> bool:
        """Return whether a row has one of its keys."""
        key: int = row["id"]
        return self.low <= key <= self.high

    def may_delete(self, row: dict[str, Any]) -> bool:
        """Return whether a row may be deleted by it."""
        return self.covers(row) and row["row"] < self.until

    def must_delete(self, row: dict[str, Any]) -> bool:
        """Return whether a row must be deleted, now that it is done."""
        return self.covers(row) and row["row"] in self.before


async def ask(world: BufferWorld) -> None:
    """Submit requests that delete rows, and carry them out."""
    services = gateway(world)
    for _ in range(2):
        await world.turns.pause(60)
        low, high = sorted(world.dice.randrange(world.keys) for _ in range(2))
        if not world.keyed:
            low, high = 0, world.keys
        wish = Wish(low, high, frozenset(world.ledger.acknowledged))
        world.ledger.wishes.append(wish)
        if (request := await _submitted(world, services, wish)) is None:
            world.seen["requests not submitted"] += 1
            continue
        with suppress(CompactionError):
            await _carry_out(world, services.store, request, wish)
        if not wish.done:
            world.seen["requests given up"] += 1
            with suppress(CompactionError):
                await _give_up(world, services.store, request)


async def _submitted(world: BufferWorld, services: Services, wish: Wish) -> Request | None:
    span = {"start": str(wish.low), "end": str(wish.high)} if world.keyed else {}
    body = api.NewRequest(delete_where="row >= 0", **span)  # type: ignore[arg-type]  # texts
    call = call_id(world.clock)
    for _ in range(TRIES_MAX):
        with suppress(CompactionError):
            return await submit_request(services, world.table, body, call)
    return None


async def _carry_out(world: BufferWorld, store: TabletStore, request: Request, wish: Wish) -> None:
    """Delete rows tablet by tablet, until the request is done or another change was faster."""
    for number in range(TRIES_MAX):
        for tablet in await store.read_range(request.table):
            if request.range.meets(tablet.bounds.start, tablet.bounds.end):
                await _carry_out_here(world, store, request, tablet, f"{request.id}-{number}")
        move = MoveRequest(table=request.table, request=request.id, state=RequestState.DONE)
        if isinstance(await store.apply(move), Applied):
            wish.done, wish.until = True, len(world.ledger.rows)
            world.seen["requests done"] += 1
            break
        await world.turns.pause(8)
    if wish.done:
        for tablet in await store.read_range(request.table):
            await store.apply(FinishHere(tablet=tablet.id, request=request.id))


async def _carry_out_here(
    world: BufferWorld, store: TabletStore, request: Request, tablet: Tablet, attempt: str
) -> None:
    """Select all files of a tablet, and replace them by one without the rows of the request."""
    paths = tuple(sorted(tablet.files))
    attempt = f"{attempt}-{world.ids.next('a')}"
    select = SelectFiles(tablet=tablet.id, request=request.id, chosen=paths, shown=paths)
    if not isinstance(await store.apply(select), Applied) or not paths:
        return
    reserve = ReserveFiles(
        tablet=tablet.id,
        attempt=attempt,
        job="job",
        kind=Kind.USER,
        inputs=paths,
        output_prefix=f"out/{attempt}",
        outputs_max=2,
        group="default",
        compactor="c",
        request=request.id,
    )
    if not isinstance(await store.apply(reserve), Applied):
        return
    rows = [row for path in paths for row in world.files[path]]
    kept = [row for row in rows if world.keyed and not _is_inside(request, row)]
    if world.keyed:
        kept += [row | {"gone": True} for row in rows if _is_inside(request, row)]
    outputs = (world.output(attempt, kept),) if kept else ()
    commit = CommitAttempt(
        tablet=tablet.id,
        attempt=attempt,
        outputs=outputs,
        counts=RowCounts(rows_in=len(rows), rows_out=len(kept)),
    )
    await store.apply(commit)


def _is_inside(request: Request, row: dict[str, Any]) -> bool:
    return request.range.holds(encode_key((row["id"],), (KeyType.INT,)))


async def _give_up(world: BufferWorld, store: TabletStore, request: Request) -> None:
    for state in (RequestState.CANCELLING, RequestState.CANCELLED):
        move = MoveRequest(table=request.table, request=request.id, state=state)
        await store.apply(move)
        for tablet in await store.read_range(request.table):
            change = CancelHere if state is RequestState.CANCELLING else FinishHere
            await store.apply(change(tablet=tablet.id, request=request.id))
        await world.turns.pause(8)


# ---------------------------------------------------------------------------------------- Operators


async def pause(world: BufferWorld) -> None:
    """Pause the table, and resume it."""
    store = world.store()
    for state in (TableState.PAUSED, TableState.LIVE) * 2:
        await world.turns.pause(40)
        change = ChangeTable(
            table=world.table.id, settings_version=world.table.settings_version, state=state
        )
        with suppress(CompactionError):
            outcome = await store.apply(change)
            world.seen["pauses"] += isinstance(outcome, Applied) and state is TableState.PAUSED


async def drop(world: BufferWorld) -> None:
    """Drop the table, without its files: all acknowledged rows are in them then."""
    services = gateway(world)
    await world.turns.pause(400)
    for _ in range(TRIES_MAX):
        with suppress(CompactionError):
            table = await services.store.table(world.table.id)
            if table is None:
                return
            await drop_table(services, table, delete_files=False)
            world.seen["drops of the table"] += 1
            return
        await world.turns.pause(8)


async def drop_rest(world: BufferWorld, store: TabletStore) -> None:
    """Finish a drop, as the collector does."""
    world.shared.values.remove(f"neve:{{{world.table.id}}}:garbage")
    await store.apply(DropTable(table=world.table.id, resumed=True))


# ------------------------------------------------------------------------------- Going back in time


@dataclass
class Moment:
    """What the store held, and who had an answer then."""

    values: dict[str, Any]
    expires_s: dict[str, float]
    rows: int
    acknowledged: frozenset[int]
    done: frozenset[Wish]

    @classmethod
    def now(cls, world: BufferWorld) -> Moment:
        """Return the present one."""
        held, ledger = world.shared.values, world.ledger
        return cls(
            values=deepcopy(held._held),
            expires_s=dict(held._expires_s),
            rows=len(ledger.rows),
            acknowledged=frozenset(ledger.acknowledged),
            done=frozenset(wish for wish in ledger.wishes if wish.done),
        )


def go_back(world: BufferWorld, moment: Moment) -> None:
    """Let the store know what it knew once; every connection breaks.

    What was acknowledged since may be lost. All other rows must be there, and none twice.
    """
    values: MemoryValues = world.shared.values
    for key in {*values._versions, *values._held, *moment.values}:
        values.remove(key)
        values.touch(key)
        if key in moment.values:
            values.put(key, deepcopy(moment.values[key]))
        if key in moment.expires_s:
            values._expires_s[key] = moment.expires_s[key]
    for keyspace in world.flaky:
        keyspace._late.clear()
    world.travels += 1
    ledger = world.ledger
    ledger.acknowledged &= moment.acknowledged
    for wish in ledger.wishes:
        wish.before &= moment.acknowledged
        if wish not in moment.done:
            wish.done, wish.until = False, float("inf")


async def accept(world: BufferWorld) -> None:
    """Accept the older state of the store, as `fsck --accept` does."""
    change = AcceptGeneration(table=world.table.id, generation=world.generation, lost=True)
    store = world.store()
    await world.turns.pause(120)
    for _ in range(TRIES_MAX):
        with suppress(CompactionError):
            if isinstance(await store.apply(change), Applied):
                world.seen["older states accepted"] += 1
                return


def count_up(world: BufferWorld) -> None:
    """Count the generation up, in the store and in the location."""
    key = f"neve:{{{world.table.id}}}:generation"
    world.generation += 1
    world.shared.values.put(key, b"%d" % world.generation)
