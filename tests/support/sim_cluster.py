"""A whole cluster from one seed: store, coordinators, compactors, clients of all kinds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

from common.metadata.changes import CreateTable
from common.metadata.store import TabletStore
from common.model.location_identity import APPEND_FOLDER
from common.model.table import Column, Table, TableSettings, TableState
from common.model.tablet import TabletId
from common.settings import CompactorSettings
from coordinator.core import events as on
from coordinator.core.scans import needs_look
from tests.support.memory_store import MemoryKeyspace
from tests.support.sim_callers import SimCaller, SimScanner
from tests.support.sim_clients import SWEEP_GRACE_S, SimAppender, SimClient, SimReader, SimSweeper
from tests.support.sim_compactor import (
    TAKE_WAIT_MAX_S,
    Link,
    Network,
    SimCompactor,
    SimEngine,
    Traits,
)
from tests.support.sim_coordinator import SimCoordinator
from tests.support.sim_disk import ROW_BYTES, key_bytes
from tests.support.sim_gateway import SimGateway, SimGateways, settings_of
from tests.support.sim_loop import EPOCH_S, SimLoop, World
from tests.support.sim_options import Options, sim_settings
from tests.support.sim_store import SimServer, StoreFaults, sim_store
from tests.support.sim_truth import Truth
from tests.support.sim_users import SimCreator, SimDivider, SimOwner, SimUser

SPLITS = (key_bytes(0x4000), key_bytes(0x8000))
REST_MAX_S = 900.0
QUIET_S = 20.0
STALL_S = 15.0
"""Longer than the longest rewrite, which tells no progress."""
HANG_SHARE = 0.25
"""Of jobs that fail, so many others hang."""
SWEEPS_MAX = 3
SOON_S = 5.0
"""Age of files that a sweep takes for left, where gateways stand still for longer than that."""
DEAD = "dead"
RETENTION_S = 5.0
"""How long dead rows stay, and versions of adds are remembered."""
LEVELS = {"min_file": "0", "max_file": str(12 * ROW_BYTES), "fan_out": "4"}
SELECTOR_OPTIONS = {"": {}, "all": {}, "size": {"smaller_than": "5000"}}


class Cluster:
    """Everything of one run. `live` runs it; an assertion fails where an invariant breaks."""

    coordinator_class = SimCoordinator

    def __init__(self, seed: int, options: Options) -> None:
        self.world = World(seed)
        self.options = options
        self.faults = StoreFaults(options.latency_max_s / 4, feed_max_s=options.feed_s)
        self.network = Network(options.latency_max_s)
        self.traits = Traits(options.rewrite_max_s, drops=options.dead_rows)
        self.truth = self._new_truth()
        self.server = SimServer(
            self.world,
            self.truth,
            self.faults,
            forgets=options.fail_over,
            spread=options.spread,
            waits_for_names=options.spread or options.waits_for_names,
        )
        self.settings = sim_settings(options)
        self.tables = self._new_tables()
        self.coordinators: list[SimCoordinator] = []
        self.compactors: dict[str, SimCompactor] = {}
        self.followed: dict[str, SimCoordinator] = {}
        """Compactor → the coordinator that it talks to."""
        self.gateways = SimGateways(self.world, self._new_gateway)
        self.clients: list[SimClient] = []
        self.operator = self.world.process("operator")
        self.owner = SimOwner("owner", self.operator, self.store(), self.truth)
        self.sweeper = SimSweeper("sweeper", self.operator, self.store(), self.truth)
        self._births = 0
        self._names = 10

    # Parts.

    def _new_truth(self) -> Truth:
        return Truth(MemoryKeyspace(self.world))

    def _new_tables(self) -> list[Table]:
        return [_table(number, self.options) for number in range(self.options.tables)]

    def _new_engine(self, name: str) -> SimEngine:
        return SimEngine(name, self.world, self.truth, self.traits)

    def store(self) -> TabletStore:
        """Return a new client of the store."""
        return sim_store(self.server, self.options.store_tries)

    @property
    def coordinator(self) -> SimCoordinator:
        """The coordinator that was started last."""
        return self.coordinators[-1]

    @property
    def drawn(self) -> str:
        """What its seed has drawn, for whoever reads of its failure."""
        return str(self.options)

    def start_coordinator(self) -> None:
        name = f"coord{len(self.coordinators)}"
        self.world.tell(name, "starts")
        counts_up, store = self.options.goes_back, self.store()
        made = self.coordinator_class(
            name, self.world, store, self.settings, self.truth, counts_up=counts_up
        )
        self.coordinators.append(made)

    def start_compactor(self, name: str) -> None:
        self._births += 1
        number = int(name.removeprefix("comp"))
        settings = CompactorSettings(
            slots=self.options.slots,
            beat_interval_s=2.0,
            take_wait_max_s=TAKE_WAIT_MAX_S,
            attempt_stall_s=STALL_S,
        )
        self.world.tell(name, "starts")
        process = self.world.process(name)
        link = Link(name, process, self.network, self._follow)
        engine = self._new_engine(name)
        group = "large" if number % 2 else "small"
        compactor = SimCompactor(
            name, self._births, process, link, self.store(), engine, settings, group
        )
        self.compactors[name] = compactor
        compactor.left = partial(self._restart, name)

    def end_clients(self) -> None:
        """Let all users die."""
        for client in self.clients:
            client.process.alive = False

    def start_creator(self, name: str) -> None:
        """Start a user who creates and drops tables."""
        self._client(SimCreator, name)

    def replace_compactor(self, name: str) -> None:
        """Start another compactor of the same group; nobody comes back under this name."""
        del self.compactors[name]
        self._names += 2
        number = int(name.removeprefix("comp")) % 2 + self._names
        self.start_compactor(f"comp{number}")

    def _restart(self, name: str) -> None:
        """Start a compactor again that has drained and left."""
        self.operator.call_later(2.0, self.start_compactor, name)

    def _follow(self, compactor: str) -> SimCoordinator:
        target = self.followed.get(compactor, self.coordinator)
        if not target.process.alive:
            target = self.followed[compactor] = self.coordinator
        return target

    # Life.

    def live(self) -> None:
        """Build up; then all are busy."""
        self._create_tables()
        self.start_coordinator()
        for number in range(max(2, self.options.compactors)):
            self.start_compactor(f"comp{number}")
        for number in range(self.options.appenders):
            self._client(SimAppender, f"app{number}")
        for number in range(self.options.readers):
            self._client(SimReader, f"reader{number}")
        self._start_callers()
        for number in range(self.options.users):
            cancels, deadlines = self.options.cancels, self.options.deadlines
            own = partial(
                SimUser, cancels=cancels, deadlines=deadlines, cancel_job=self._cancel_job
            )
            self._client(own, f"user{number}")
        if self.options.bounds:
            self._client(SimDivider, "divider")
        if self.options.gateways or not self.options.crash_free:
            grace_s = SOON_S if self.options.gateways else SWEEP_GRACE_S
            self._client(partial(SimSweeper, grace_s=grace_s), "sweeper")
        if self.options.drops:
            self._drop_later()
        self.switch_faults(on=True)

    def _drop_later(self) -> None:
        after_s = self.options.busy_s * self.world.random()
        delete = self.world.chance(0.5)
        dropping = self.owner.drop_table(self.tables[-1], after_s, delete_files=delete)
        self.operator.start(dropping)

    def _start_callers(self) -> None:
        for number in range(self.options.creators):
            self.start_creator(f"maker{number}")
        if not self.options.gateways:
            return
        self.gateways.start(self.options.gateways)
        for number in range(self.options.callers):
            made = SimScanner if number == 0 else SimCaller
            own = partial(made, network=self.network, followed=self.gateways.followed)
            self._client(own, f"caller{number}")

    def _new_gateway(self, name: str) -> SimGateway:
        store_of = partial(sim_store, self.server, self.options.gateway_tries)
        return SimGateway(name, self.world, store_of, settings_of(self.settings), self.truth)

    def _client(self, make: type[SimClient] | partial[Any], name: str) -> None:
        process: SimLoop = self.world.process(name)
        client = make(name, process, self.store(), self.truth)
        self.clients.append(client)
        process.start(client.run(self.tables, self.options.busy_s))  # type: ignore[union-attr]  # all run

    async def _cancel_job(self, user: SimUser, attempt: str) -> None:
        leader = self.coordinator
        if leader.process.alive and leader.led:
            leader.process.call_soon(lambda: leader.process.start(leader.cancel_safely(attempt)))

    def switch_faults(self, *, on: bool) -> None:
        options, faults = self.options, self.faults
        faults.lost_look = faults.lost_exec = options.store_lost if on else 0.0
        faults.late_exec = options.store_late if on else 0.0
        self.network.lost = options.lose if on else 0.0
        self.network.doubled = options.double if on else 0.0
        self.truth.disk.late_deletes = options.late_deletes if on else 0.0
        self.traits.fails = options.fails if on else 0.0
        self.traits.hangs = HANG_SHARE * self.traits.fails

    def _create_tables(self) -> None:
        store = self.store()
        ends = SPLITS[: self.options.tablets - 1]

        async def create() -> None:
            for table in self.tables:
                await store.apply(CreateTable(table=table, splits=ends))

        self.operator.start(create())
        self.world.run_until(EPOCH_S + 5.0)
        for table in self.tables:
            assert len(self.truth.tablets(table.id)) == len(ends) + 1

    # Rest.

    def come_to_rest(self) -> None:
        """Stop all faults and assert that everything comes to its end, and stays there."""
        self.switch_faults(on=False)
        for tablet in self.truth.views:
            lifted = on.QuarantineLifted(table=tablet.table, tablet=tablet)
            self.coordinator.process.start(self.coordinator.tell(lifted))
        self._wait_for_rest()
        for _ in range(SWEEPS_MAX):
            if not self._sweep():
                break
            self._wait_for_rest()
        assert not self._sweep(), "the listing sweep goes on finding files"
        before = self._versions()
        self.world.run_until(self.world.now_s() + QUIET_S)
        after = self._versions()
        assert before == after, f"changes go round in circles: {before} {after}"

    def _wait_for_rest(self) -> None:
        until_s = self.world.now_s() + REST_MAX_S
        while restless := self._restless():
            assert self.world.now_s() < until_s, f"no rest: {restless}"
            self.world.run_until(self.world.now_s() + 2.0)

    def _sweep(self) -> list[str]:
        """Sweep all tables; where nobody crashed there is nothing to find."""
        found: list[str] = []

        async def sweep() -> None:
            for table in self.tables:
                if not self.truth.drops(table.id):
                    found.extend(await self.sweeper.sweep(table, 0.0))

        task = self.operator.start(sweep())
        while not task.done():
            self.world.run_until(self.world.now_s() + 5.0)
        # An append that is cut anew, because tablets have moved, leaves the files of its last try.
        leaked = [path for path in found if not path.startswith(f"{APPEND_FOLDER}/")]
        assert not (self.options.leak_free and leaked), f"orphans, though nobody died: {leaked}"
        return found

    def _versions(self) -> dict[TabletId, bytes]:
        values = self.truth.memory.values
        prefix = "neve:{%s}:tablet:%s:record"
        return {
            tablet: values.hash(prefix % (tablet.table, tablet.text)).get(b"v", b"")
            for tablet, view in self.truth.views.items()
            if view.bounds is not None
        }

    def _restless(self) -> str:
        """Return what is still going on, or nothing."""
        waiting = [client.name for client in self.clients if not client.done]
        if waiting:
            return f"{waiting} wait"
        if self.gateways.busy:
            return "gateways answer calls"
        leader = self.coordinator
        if not leader.at_rest():
            return f"{leader.name} is not at rest"
        if owed := leader.backlogs():
            return f"{leader.name} tells a backlog, though nothing is to be done: {owed}"
        for table in self.tables:
            gone = self.truth.drops(table.id)
            problem = self._restless_drop(table) if gone else self._restless_table(table)
            if problem:
                return f"{table.id}: {problem}"
        return self.truth.unnamed() if self.options.creators else ""

    def _restless_drop(self, table: Table) -> str:
        """Return what is left of a dropped table; marks of calls, attempts and drops expire."""
        own = f"neve:{{{table.id}}}:"
        marks = (own + "outcome:", own + "call:", own + "dropped")
        keys = self.truth.memory.values.keys()
        left = [key for key in keys if key.startswith(own) and not key.startswith(marks)]
        return f"keys are left: {left}" if left else ""

    def _restless_table(self, table: Table) -> str:
        for tablet, view in self.truth.tablets(table.id).items():
            held = (view.running, view.selection, view.waiting, view.done, view.operation)
            if any(held):
                return f"{tablet}: held by {held}"
            if problem := self._restless_tablet(tablet):
                return f"{tablet} {problem}"
        requests = [item for item in self.truth.requests.items() if item[0][0] == table.id]
        if unfinished := [name for name, request in requests if not request.state.ended]:
            return f"requests have not ended: {unfinished}"
        values = self.truth.memory.values
        own = f"neve:{{{table.id}}}:"
        if segments := [name for name in values.hash(own + "rows") if name.startswith(b"s")]:
            return f"rows are buffered: {sorted(segments)}"
        if values.members(own + "open-requests"):
            return "requests are not closed"
        garbage = values.hash(own + "garbage")
        return f"garbage is left: {sorted(garbage)}" if garbage else ""

    def _restless_tablet(self, tablet: TabletId) -> str:
        """Return what a planner or scan still has to say, or nothing."""
        parts = self.coordinator.parts
        assert parts is not None
        table = parts.scanner.tables.get(tablet.table)
        if table is None or table.state is not TableState.LIVE:
            return "has a table that is not live"
        if parts.state.queued_ids(tablet):
            return "has jobs"
        looks = needs_look(self.truth.record(tablet), table, self.world.now_s())
        return "is looked at by every scan" if looks else ""

    def seen(self) -> Counter[str]:
        """Return what has happened, counted."""
        seen = self.truth.seen + self.server.seen
        seen["coordinators"] += len(self.coordinators)
        seen["compactors"] += self._births
        return seen


def _table(number: int, options: Options) -> Table:
    planner = {"planner": "leveled", "planner_options": LEVELS} if options.levels else {}
    settings = TableSettings(
        **planner,  # type: ignore[arg-type]  # both by name
        hold_expiry_s=options.hold_expiry_s,
        selector=options.selector,
        selector_options=SELECTOR_OPTIONS[options.selector],
        tombstone_retention_s=RETENTION_S,
    )
    table = Table(
        id=f"t{number}",
        name=f"table{number}",
        location=f"file:///sim/table{number}",
        schema=(
            *(Column(name, "int64") for name in ("k", "v", "row")),
            *((Column(DEAD, "bool"),) if options.dead_rows else ()),
        ),
        tombstone_column=DEAD if options.dead_rows else None,
        key=("k",),
        version_column="v",
    )
    return replace(table, settings=settings)
