"""A whole cluster from one seed: store, coordinators, compactors, appenders, readers, faults."""

from __future__ import annotations

from functools import partial
from typing import Any

from common.errors import UnavailableError
from common.metadata.changes import CreateTable
from common.metadata.memory_keyspace import MemoryKeyspace
from common.metadata.store import KeyspaceStore
from common.model.group import Group, Service
from common.model.table import Column, Table
from common.model.tablet import PLUS_INFINITY, TabletId
from coordinator.collector import Collector, CollectorRules
from coordinator.core import events as on
from coordinator.core.planning import plan_tablet
from coordinator.core.scan_rules import needs_look
from coordinator.plugins.planners.ratio import RatioPlanner
from tests.support.sim_clients import SimAppender, SimReader
from tests.support.sim_compactor import TAKE_WAIT_MAX_S, CompactorTraits, SimCompactor
from tests.support.sim_coordinator import Pace, SimCoordinator
from tests.support.sim_options import Options, sim_limits
from tests.support.sim_store import SimKeyspace, StoreFaults, sim_store
from tests.support.sim_tasks import EPOCH_S, Process, Promise, Tasks
from tests.support.sim_truth import ROW_BYTES, Truth

SPLITS = (b"\x40", b"\x80")
GARBAGE_GRACE_S = 6.0
REST_MAX_S = 400.0
SERVICE = Service(groups=(Group(name="small", max_bytes=60 * ROW_BYTES), Group(name="large")))
CALL_MAX_S = 3.0


class DiskStorage:
    """The collector's view of the simulated disk."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth

    async def delete(self, location: str, path: str) -> bool:
        deleted = self._truth.disk.delete(path)
        self._truth.check_readers()
        return deleted

    async def store_id(self, location: str) -> str | None:
        return None


class Cluster:
    """Everything of one run. `live` runs it; an assertion fails where an invariant breaks."""

    def __init__(self, seed: int, options: Options) -> None:
        self.tasks = Tasks(seed)
        self.options = options
        self.shared = MemoryKeyspace(self.tasks)
        self.faults = StoreFaults(latency_max_s=options.latency_max_s / 4)
        self.messages_lost = self.messages_doubled = 0.0
        self.tables = [_table(number) for number in range(options.tables)]
        ends = [*SPLITS[: options.tablets - 1], PLUS_INFINITY]
        self.tablets = [TabletId(table.id, end) for table in self.tables for end in ends]
        self.truth = Truth(self.shared, self.tablets)
        self.coordinators: list[SimCoordinator] = []
        self.compactors: dict[str, SimCompactor] = {}
        self.followed: dict[str, SimCoordinator] = {}
        """Compactor → the coordinator that it talks to."""
        self.clients: list[SimAppender] = []
        self._births = 0
        self._names = 10
        self._operator = Process("operator")
        self._plan = partial(_plan, planner=RatioPlanner())

    # Parts.

    def store(self) -> KeyspaceStore:
        """Return a new client of the store."""
        keyspace = SimKeyspace(self.shared, self.tasks, self.faults, self.truth.written)
        return sim_store(keyspace, self.options.store_tries)

    @property
    def coordinator(self) -> SimCoordinator:
        """The coordinator that was started last."""
        return self.coordinators[-1]

    def start_coordinator(self) -> None:
        name = f"coord{len(self.coordinators)}"
        self.tasks.tell(f"{name} starts")
        store = self.store()
        coordinator = SimCoordinator(
            name,
            self.tasks,
            store,
            self._plan,
            sim_limits(self.options),
            Pace(feed_s=self.options.feed_s, lead_s=self.options.lead_s),
        )
        rules = CollectorRules(grace_s=GARBAGE_GRACE_S, clock_skew_max_s=0.5)
        coordinator.start(Collector(store, DiskStorage(self.truth), rules, _silent))
        self.coordinators.append(coordinator)

    def start_compactor(self, name: str) -> None:
        self._births += 1
        number = int(name.removeprefix("comp"))
        traits = CompactorTraits(
            group="large" if number % 2 else "small",
            slots=self.options.slots,
            rewrite_max_s=self.options.rewrite_max_s,
            fails=self.options.fails if self.faults_on else 0.0,
        )
        call = partial(self.call, name)
        compactor = SimCompactor(
            name, self._births, self.tasks, self.store(), self.truth, traits, call
        )
        self.tasks.tell(f"{compactor.incarnation} starts")
        self.compactors[name] = compactor
        compactor.left = partial(self._restart, name)
        compactor.start()

    def replace_compactor(self, name: str) -> None:
        """Start another compactor of the same group; nobody comes back under this name."""
        del self.compactors[name]
        self._names += 2
        number = int(name.removeprefix("comp")) % 2 + self._names
        self.start_compactor(f"comp{number}")

    def _restart(self, name: str) -> None:
        """Start a compactor again that has drained and left."""
        at_s = self.tasks.now_s() + 2.0
        self.tasks.call_at(at_s, self._operator, lambda: self.start_compactor(name))

    # Life.

    faults_on = True

    def live(self) -> None:
        """Build up, be busy under faults, come to rest."""
        self._create_tables()
        self.start_coordinator()
        for number in range(max(2, self.options.compactors)):
            self.start_compactor(f"comp{number}")
        self.clients = [
            SimAppender(f"app{number}", self.tasks, self.store(), self.truth, self.tablets)
            for number in range(self.options.appenders)
        ]
        for client in self.clients:
            self.tasks.spawn(client.process, client.run(self.options.busy_s))
        for number in range(self.options.readers):
            reader = SimReader(f"reader{number}", self.tasks, self.store(), self.truth)
            self.tasks.spawn(reader.process, reader.run(self.tables, self.options.busy_s))
        self.switch_faults(on=True)

    def switch_faults(self, *, on: bool) -> None:
        options, faults = self.options, self.faults
        self.faults_on = on
        faults.lost_look = faults.lost_exec = options.store_lost if on else 0.0
        faults.late_exec = options.store_late if on else 0.0
        self.messages_lost = options.lose if on else 0.0
        self.messages_doubled = options.double if on else 0.0
        for compactor in self.compactors.values():
            compactor.traits.fails = options.fails if on else 0.0

    def _create_tables(self) -> None:
        store = self.store()
        ends = SPLITS[: self.options.tablets - 1]

        async def create() -> None:
            for table in self.tables:
                await store.apply(CreateTable(table=table, splits=ends))

        self.tasks.spawn(self._operator, create())
        self.tasks.run_until(EPOCH_S + 5.0)
        assert len(self.truth.ledgers) == len(self.tablets)

    # Network.

    async def call(self, compactor: str, process: Process, method: str, event: Any) -> Any:
        """Call the coordinator that a compactor follows; raise if no answer comes."""
        target = self.followed.get(compactor, self.coordinator)
        if not target.process.alive:
            target = self.followed[compactor] = self.coordinator
        await self._hop()
        if self.tasks.chance(self.messages_lost):
            await self.tasks.sleep(0.5)
            raise UnavailableError("simulated: message lost")
        if not target.led:
            await self.tasks.sleep(0.5)
            raise UnavailableError("simulated: not ready")
        answer = self._deliver(target, method, event, 0.0)
        if self.tasks.chance(self.messages_doubled):
            self._deliver(target, method, event, 3.0 * self.tasks.dice.random())
        longest_s = TAKE_WAIT_MAX_S if method == "take" else CALL_MAX_S
        reply = await self.tasks.wait(answer, process, longest_s)
        if reply is None and method == "take":
            self._deliver(target, "submit", on.TakeLeft(take=event.take), 0.0)
        await self._hop()
        if reply is None or self.tasks.chance(self.messages_lost):
            raise UnavailableError("simulated: no answer")
        return reply[1] if method == "take" else reply

    def _deliver(self, target: SimCoordinator, method: str, event: Any, delay_s: float) -> Promise:
        answer = self.tasks.promise()
        at_s = self.tasks.now_s() + delay_s

        def arrive() -> None:
            if method == "submit":
                target.submit(event)
            else:
                getattr(target, method)(event, answer)

        self.tasks.call_at(at_s, target.process, arrive)
        return answer

    async def _hop(self) -> None:
        await self.tasks.sleep(self.tasks.dice.random() * self.options.latency_max_s)

    # Rest.

    def come_to_rest(self) -> None:
        """Stop all faults and assert that everything comes to its end."""
        self.switch_faults(on=False)
        for tablet in self.tablets:
            self.coordinator.submit(on.QuarantineLifted(tablet=tablet))
        until_s = self.tasks.now_s() + REST_MAX_S
        while not self._rests():
            assert self.tasks.now_s() < until_s, f"no rest: {self._restless()}"
            self.tasks.run_until(self.tasks.now_s() + 2.0)
        for tablet in self.tablets:
            self.truth.check(tablet)

    def _rests(self) -> bool:
        return not self._restless()

    def _restless(self) -> str:
        """Return what is still going on, or nothing."""
        if not all(client.done for client in self.clients):
            return "an appender waits"
        leader = self.coordinator
        if not leader.led or not leader.at_rest():
            return f"{leader.name} is not at rest"
        for tablet in self.tablets:
            if problem := self._restless_tablet(tablet):
                return f"{tablet} {problem}"
        held = {path for tablet in self.tablets for path in self.truth.read(tablet).files}
        strays = [path for path in self.truth.disk.files if path.startswith("_neve/")]
        left = [path for path in strays if path not in held]
        return f"files were left behind: {left}" if left else ""

    def _restless_tablet(self, tablet: TabletId) -> str:
        """Return what is held, or a planner or scan still has to say, or nothing."""
        seen = self.truth.read(tablet)
        table = next(table for table in self.tables if table.id == tablet.table)
        if seen.running:
            return f"is reserved by {sorted(seen.running)}"
        if self._plan(seen, table, self.tasks.now_s()).jobs:
            return "has jobs"
        return "is looked at by every scan" if needs_look(seen.record, table) else ""


def _table(number: int) -> Table:
    return Table(
        id=f"t{number}",
        name=f"table{number}",
        location=f"file:///sim/table{number}",
        schema=(Column("k", "binary"),),
        key=("k",),
        version_column=None,
    )


def _plan(tablet: Any, table: Table, now_s: float, planner: RatioPlanner) -> Any:
    return plan_tablet(tablet, table, {"default": SERVICE}, {"ratio": planner}, now_s)


def _silent(_event: str, **_fields: Any) -> None:
    return
