"""Runs the coordinator's own maintenance, and lists the operations of a table.

`core.maintenance` decides which operation runs next, and creates the rows of the listing. Listing
begins and changes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from common.compactor_needs import tasks_memory_bytes
from common.errors import CompactionError, UnknownTableError
from common.metadata.store_values import UnreadableTablet
from common.model.job import Job, TabletPlan
from common.model.table import Table
from common.model.tablet import Tablet, TabletId
from common.settings import Settings
from common.units import exact_duration
from coordinator.context import ShellContext
from coordinator.core.maintenance import (
    GarbageCounts,
    JobNeeds,
    KindRules,
    OperationName,
    OperationStatistics,
    OwnDecision,
    OwnOperations,
    TabletFacts,
    ranked,
    tablet_operations,
)
from coordinator.core.state import CoordinatorState
from coordinator.ports import PlanTablet
from coordinator.scan.scanner import read_request_facts
from coordinator.storage.flushes import BufferFlusher
from coordinator.storage.garbage_collector import GarbageCollector
from coordinator.storage.manifests import ManifestPublisher, publishes
from neve import api

# ----------------------------------------------------------------- The coordinator's own operations


REFRESH_S = 1.0
"""Interval between looks at the list of tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnKind:
    """A kind of operations that run in the coordinator, one table at a time."""

    part: str
    """Its name in the faults of a table."""
    rules: KindRules
    tables: Callable[[], Collection[Table]]
    """Returns the tables on which it may run."""
    run: Callable[[Table], Awaitable[OperationStatistics | None]]
    """Runs it on a table; returns the work that is left, if it can be done at once."""


class OwnMaintenance:
    """Runs each operation that `OwnOperations` starts, until it ends or fails."""

    def __init__(self, context: ShellContext, slots: int, used_pct: Callable[[], float]) -> None:
        """Create an instance without kinds.

        Args:
            context: Shared dependencies of the shell.
            slots: Operations that run concurrently.
            used_pct: Returns the used percentage of the metadata store's memory.
        """
        self.schedule = OwnOperations(slots)
        self._faults = context.faults
        self._used_pct = used_pct
        self._kinds: dict[str, OwnKind] = {}
        self._tables: dict[str, dict[str, Table]] = {}
        self._news = asyncio.Event()

    def add(self, name: str, kind: OwnKind) -> None:
        """Add a kind; its tables are visited from the next refresh on."""
        self._kinds[name], self._tables[name] = kind, {}
        self.schedule.add_kind(name, kind.rules)

    def ask(self, kind: str, operation: OperationStatistics) -> None:
        """Note the known work of a kind on a table."""
        self.schedule.ask(kind, operation, self.now_s())
        self._news.set()

    def now_s(self) -> float:
        """Return the time of the schedule, which is that of the event loop."""
        return asyncio.get_running_loop().time()

    async def run_forever(self) -> None:
        """Run what the schedule starts."""
        refresh_s = self.now_s()
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._news.clear()
                if self.now_s() >= refresh_s:
                    self._refresh()
                    refresh_s = self.now_s() + REFRESH_S
                while (decision := self.schedule.next(self.now_s(), self._used_pct())) is not None:
                    tasks.create_task(self._run(decision))
                due_s = self.schedule.next_due_s(self.now_s())
                wake_s = refresh_s if due_s is None else min(refresh_s, due_s)
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(wake_s):
                        await self._news.wait()

    def _refresh(self) -> None:
        for name, kind in self._kinds.items():
            self._tables[name] = {table.id: table for table in kind.tables()}
            self.schedule.set_tables(name, self._tables[name], self.now_s())

    async def _run(self, decision: OwnDecision) -> None:
        kind, left = self._kinds[decision.kind], None
        table = self._tables[decision.kind].get(decision.table)
        if table is None:  # It is newer than the last refresh.
            table = next((each for each in kind.tables() if each.id == decision.table), None)
        try:
            if table is not None:
                left = await self._faults.run(kind.part, table.id, partial(kind.run, table))
        finally:
            self.schedule.ended(decision, self.now_s())
            if left is not None:
                self.schedule.ask(decision.kind, left, self.now_s())
            self._news.set()


# -------------------------------------------------------------------------------------- The listing


TABLETS_MAX = 100
"""Maximum number of tablets in a listing."""
DECISIONS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class _Moment:
    """Values shared by all tablets of a listing."""

    table: Table
    now_s: float
    garbage: Mapping[bytes | None, GarbageCounts]


class Maintenance:
    """Lists operations. Stateless."""

    def __init__(
        self,
        settings: Settings,
        context: ShellContext,
        plan: PlanTablet,
        state: CoordinatorState,
        *,
        own: OwnMaintenance,
        stored: tuple[GarbageCollector, ManifestPublisher, BufferFlusher],
        slot_rate: Callable[[str], float | None],
    ) -> None:
        """Create a listing of these parts; `slot_rate` returns the measured rate of a group."""
        self._settings = settings
        self._context = context
        self._plan = plan
        self._state = state
        self._own = own
        self._collector, self._manifests, self._flusher = stored
        self._slot_rate = slot_rate

    async def operations(self, table_id: str, tablet: TabletId | None) -> api.TableMaintenance:
        """Return the operations of a tablet, or of the first tablets of a table.

        Args:
            table_id: Id of the table.
            tablet: The tablet; None means the first `TABLETS_MAX` tablets.

        Raises:
            UnknownTableError: The table is gone.
            MetadataError: The store did not answer as it should.
            UnavailableError: The store did not answer.
        """
        store = self._context.store
        table = await store.table(table_id)
        if table is None:
            raise UnknownTableError(f"table {table_id} is gone")
        # Read one more tablet than listed, because a tablet is merged with its right neighbour.
        if tablet is None:
            ids = list(await store.tablet_ids(table_id, None, TABLETS_MAX + 1))
        else:
            ids = [tablet, *await store.tablet_ids(table_id, tablet.end, 1)]
        count = TABLETS_MAX if tablet is None else 1
        tablets = await store.readable(ids)
        garbage = await self._collector.counts(table)
        moment = _Moment(table, await store.now_s(), garbage)
        rows: list[api.MaintenanceOperation] = []
        for left, right in zip(tablets[:count], [*tablets[1:], None], strict=False):
            if left is not None and not isinstance(left, UnreadableTablet):
                rows += tablet_operations(await self._facts(left, right, moment))
        rates = self._rates(ids[:count])
        scans_s = sum(rate.scans_s for rate in rates)
        rows += [await self._manifest(table), await self._flusher.row(table, scans_s)]
        return api.TableMaintenance(
            table=table.name,
            operations=ranked([self._with_wait(row, table.id) for row in rows]),
            rates=rates,
            decisions=self._decisions(table.id),
            more=tablet is None and len(ids) > TABLETS_MAX,
        )

    async def _facts(
        self, tablet: Tablet, right: Tablet | UnreadableTablet | None, moment: _Moment
    ) -> TabletFacts:
        clock, failure = self._context.clock, ""
        try:
            requests = await read_request_facts(self._context.store, tablet)
            plan = self._plan(tablet, moment.table, moment.now_s, requests)
        except CompactionError as error:  # The affected rows show the error.
            plan, failure = TabletPlan(), str(error)

        def why_held(job: Job) -> str | None:
            return self._state.why_held(job, clock.now_s())

        return TabletFacts(
            tablet=tablet,
            table=moment.table,
            plan=plan,
            failure=failure,
            right=None if isinstance(right, UnreadableTablet) else right,
            now_s=moment.now_s,
            rest_s=self._settings.coordinator.operation_max_s,
            garbage=moment.garbage.get(tablet.id.end, GarbageCounts()),
            heat=self._state.heat(tablet.id, clock.now_s()),
            why_held=why_held,
            needs=self._needs,
        )

    async def _manifest(self, table: Table) -> api.MaintenanceOperation:
        """Return the row of the table's manifest."""
        state, score = api.MaintenanceState.IDLE, 0.0
        interval_s = table.settings.manifest_interval_s
        if interval_s is None:
            state, why = api.MaintenanceState.NOT_APPLICABLE, "manifest_interval_s is not set"
        elif not publishes(table):
            why = f"the table is {table.state.value}"
        elif await self._manifests.is_due(table):
            state, score = api.MaintenanceState.RUNNABLE, 1.0
            why = "the table has changed, or replaced files wait for the next manifest"
        else:
            why = (
                f"nothing to publish; a table that changes has one per {exact_duration(interval_s)}"
            )
        return api.MaintenanceOperation(
            tablet="",
            kind=OperationName.MANIFEST.value,
            state=state.value,
            why=why,
            gain=score,
            gain_unit="manifests",
            score=score,
            adjusted=score,
        )

    def _with_wait(self, row: api.MaintenanceOperation, table: str) -> api.MaintenanceOperation:
        """Return a row with the longest wait of its kind, if the coordinator runs it."""
        due_s = self._own.schedule.due_s(row.kind, table)
        if due_s is None or row.state == api.MaintenanceState.NOT_APPLICABLE:
            return row
        return replace(row, due_s=max(0.0, due_s - self._own.now_s()))

    def _decisions(self, table: str) -> tuple[api.MaintenanceDecision, ...]:
        now_s = self._own.now_s()
        return tuple(
            api.MaintenanceDecision(
                kind=decision.kind,
                step=decision.step,
                why=decision.why,
                ago_s=now_s - decision.begun_s,
                took_s=None if decision.ended_s is None else decision.ended_s - decision.begun_s,
            )
            for decision in self._own.schedule.of_table(table)[:DECISIONS_SHOWN]
        )

    def _needs(self, group: str) -> JobNeeds:
        memory_bytes = tasks_memory_bytes(self._settings.compactor_of(group))
        return JobNeeds(memory_bytes=memory_bytes, slot_bytes_s=self._slot_rate(group))

    def _rates(self, tablets: Sequence[TabletId]) -> tuple[api.TabletRates, ...]:
        now_s = self._context.clock.now_s()
        heats = [(tablet.text, self._state.heat(tablet, now_s)) for tablet in tablets]
        return tuple(
            api.TabletRates(tablet=text, scans_s=heat.scans_s, rows_s=heat.rows_s)
            for text, heat in heats
        )
