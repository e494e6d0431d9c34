"""Runs the coordinator's own maintenance, and lists the operations of a table.

Operations of lake tables are here, too. `core.maintenance` decides which operation runs next, and
creates the rows of the listing. Listing begins and changes nothing.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from common.compactor_needs import tasks_memory_bytes
from common.errors import (
    CompactionError,
    RefusedError,
    UnavailableError,
    UnknownTableError,
    redacted,
)
from common.lake.source import Freed, LakeSurvey, MaintenanceRules
from common.metadata.store_values import UnreadableTablet
from common.model.job import Job, TabletPlan
from common.model.table import LAKE_OPERATIONS, OPERATIONS_OF_LAKES, Table, TableState
from common.model.tablet import Tablet, TabletId
from common.primitives import PUBLISH_LIFE_S
from common.settings import Settings
from common.units import exact_duration
from common.wire import MetricValue
from coordinator.context import ShellContext
from coordinator.core.assignment import LAKE_OUTPUT
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
from coordinator.lake import LakeFollower
from coordinator.ports import PlanTablet
from coordinator.scan.scanner import read_request_facts
from coordinator.storage.flushes import BufferFlusher
from coordinator.storage.garbage_collector import GarbageCollector
from coordinator.storage.manifests import ManifestPublisher, publishes
from neve import api

T = TypeVar("T")

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


# ----------------------------------------------------------------------- Operations of lake tables
#     survey → nothing to do
#            → something to write, or versions to delete → carry out
#            → versions to remove by a commit → carry out, then their files:
#            → files to delete → grace → the newest version, what attempts need → carry out
#
# Before each batch of files the newest version and the needs of attempts are read again. What is
# remembered can be lost, and two coordinators may do the same: every step may be repeated.

LAKE_LOOK_S = 60.0
"""Interval at which a table with an operation is looked at."""
LAKE_RETRY_S = 600.0
LAKE_STEP_MAX_S = 1800.0
"""Longest survey or batch."""
LAKE_BATCH = 500
LAKE_PATHS_SHOWN = 20
LAKE_OPERATIONS_AT_ONCE = 2
"""Lake tables on which an operation of one kind runs at a time."""
Order = api.LakeOrder | None


@dataclass(slots=True)
class _LakeTask:
    """An operation on one table."""

    due_s: float = 0.0
    """When it is looked at again, by the coordinator's clock."""
    survey: LakeSurvey | None = None
    """A survey whose files wait for the grace."""
    asked: api.LakeOrder | None = None
    """An operator asks for a run."""
    result: api.LakeRun | None = None
    failure: str = ""
    """Why the last run failed; empty: it did not."""
    after: str = ""
    """Path after which the next run goes on with its listing; empty: it begins one."""
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a run has ended or waits."""


class LakeMaintenance:
    """Runs the operations of lake tables that their settings or an operator ask for."""

    def __init__(
        self,
        context: ShellContext,
        lake: LakeFollower,
        grace_s: float,
        tables: Callable[[], Collection[Table]],
        read_tables: Callable[[], Awaitable[None]],
    ) -> None:
        """Create an instance that has run nothing.

        Args:
            context: Shared dependencies of the shell.
            lake: Reads the logs.
            grace_s: Lies between a survey and the deletion of files.
            tables: Returns the tables that the coordinator has read.
            read_tables: Reads the list of tables again.
        """
        self._context, self._lake, self._grace_s = context, lake, grace_s
        self._tables, self._read_tables = tables, read_tables
        self._tasks: dict[tuple[str, str], _LakeTask] = {}
        self._runs, self._files, self._bytes = (Counter[tuple[str, ...]]() for _ in range(3))
        self.own: OwnMaintenance | None = None

    def add_to(self, own: OwnMaintenance) -> None:
        """Let the scheduler of maintenance run the operations."""
        self.own = own
        rules = KindRules(tables_max=LAKE_OPERATIONS_AT_ONCE, wait_max_s=LAKE_LOOK_S)
        for name in LAKE_OPERATIONS:
            tables, run = partial(self.tables, name), partial(self.run, name)
            own.add(name, OwnKind(part=f"the {name}", rules=rules, tables=tables, run=run))

    def tables(self, name: str) -> list[Table]:
        """Return the tables on which an operation may run."""
        every = (table for table in self._tables() if table.lake is not None)
        live = [table for table in every if table.state is TableState.LIVE]
        ids = {table.id for table in live}
        for key in [key for key in self._tasks if key[1] == name and key[0] not in ids]:
            del self._tasks[key]
        return [
            table
            for table in live
            if name in table.settings.lake_maintenance or self._task(table, name).asked is not None
        ]

    def _task(self, table: Table, name: str) -> _LakeTask:
        return self._tasks.setdefault((table.id, name), _LakeTask())

    # ---------------------------------------------------------------------------------------- Runs

    async def run(self, name: str, table: Table) -> OperationStatistics | None:
        """Do the next step of an operation, if it is due; return what is left at once."""
        task, now_s = self._task(table, name), self._context.clock.now_s()
        if now_s < task.due_s:
            return None
        try:
            left = await self._step(name, table, task)
        except CompactionError as error:
            self._failed(name, table, task, error)
            left = None
        task.looked.set()
        return left

    def _failed(self, name: str, table: Table, task: _LakeTask, error: CompactionError) -> None:
        task.failure, task.survey, task.asked = redacted(str(error)), None, None
        task.due_s = self._context.clock.now_s() + LAKE_RETRY_S
        self._runs[name, "failed"] += 1
        named = {"table": table.name, "operation": name, "cause": task.failure}
        self._context.log("lake table not maintained", **named)

    async def _step(self, name: str, table: Table, task: _LakeTask) -> OperationStatistics | None:
        survey, order = task.survey, task.asked
        if survey is None:
            survey = await self.survey(name, table, order)
            if not survey.has_work:
                self._ended(table, task, _run_of(table, survey, api.LakeRunState.NOTHING))
                return self._rest(table, task, replace(survey, more=0), order)
            if survey.versions and survey.files:
                first = await self._carry_out(table, replace(survey, files=()), order)
                survey = replace(survey, versions=(), creates=first.created)
            if survey.files and survey.floor < 0:
                task.survey = survey
                task.due_s = self._context.clock.now_s() + self._grace_s
                grace = exact_duration(self._grace_s)
                why = f"files are deleted after {grace}, unless a version names them by then"
                waiting = _run_of(table, survey, api.LakeRunState.WAITING)
                task.result = replace(waiting, why=why)
                return None
        freed = await self._carry_out(table, survey, order)
        run = replace(
            _run_of(table, survey, api.LakeRunState.DONE),
            files=freed.files,
            size_bytes=freed.size_bytes,
            created=survey.creates if task.survey is not None else freed.created,
            spared={**survey.spared, **freed.spared},
        )
        self._runs[name, "done"] += 1
        self._files[name,] += freed.files
        self._bytes[name,] += freed.size_bytes
        counts = {"files": freed.files, "bytes": freed.size_bytes, "created": run.created}
        self._context.log("lake table maintained", table=table.name, operation=name, **counts)
        self._ended(table, task, run)
        return self._rest(table, task, survey, order)

    def _rest(
        self, table: Table, task: _LakeTask, survey: LakeSurvey, order: Order
    ) -> OperationStatistics | None:
        """Return what a run has left to the next one, which follows at once."""
        task.after = survey.after
        if order is not None or not survey.rest:
            return None
        task.due_s = 0.0
        return OperationStatistics(
            name=table.id, why=survey.rest, data_retained_bytes=survey.more or 1
        )

    def _ended(self, table: Table, task: _LakeTask, run: api.LakeRun) -> None:
        task.survey, task.asked, task.failure, task.result = None, None, "", run
        is_frequent = run.operation == OperationName.CHECKPOINT
        pause_s = LAKE_LOOK_S if is_frequent else table.settings.lake_maintenance_interval_s
        task.due_s = self._context.clock.now_s() + pause_s

    async def survey(self, name: str, table: Table, order: Order) -> LakeSurvey:
        """Return what an operation would do; change nothing.

        Raises:
            RefusedError: The table cannot be maintained so.
            UnavailableError: The log, the storage or the store does not answer.
        """
        source, snapshot = await self._lake.head(table)
        if name not in source.operations:
            raise RefusedError(f"table {table.name} has no operation {name}")
        rules = await self._rules(name, table, order)
        return await self._call(table, source.survey, name, snapshot, rules)

    async def _carry_out(self, table: Table, survey: LakeSurvey, order: Order) -> Freed:
        """Do what a survey says, batch by batch."""
        done, batches = Freed(), range(0, max(1, len(survey.files)), LAKE_BATCH)
        for first in batches:
            source, snapshot = await self._lake.head(table)
            rules = await self._rules(survey.operation, table, order)
            some = replace(survey, files=survey.files[first : first + LAKE_BATCH])
            freed = await self._call(table, source.carry_out, some, snapshot, rules)
            done = Freed(
                files=done.files + freed.files,
                size_bytes=done.size_bytes + freed.size_bytes,
                created=freed.created or done.created,
                spared=Counter(done.spared) + Counter(freed.spared),
            )
        return done

    async def _call(self, table: Table, call: Callable[..., T], *args: object) -> T:
        threads = self._context.threads.within(LAKE_STEP_MAX_S)
        return await threads.run(table.location, call, *args)

    async def _rules(self, name: str, table: Table, order: Order) -> MaintenanceRules:
        """Return what must be kept now. Of two clocks the one that is behind counts."""
        kept, since = frozenset[str](), None
        if name != OperationName.CHECKPOINT:  # It deletes nothing, and is looked for each minute.
            kept, since = await self._lake.attempt_needs(table.id)
        files = table.settings.lake_maintenance_files
        others = self._tables() if name == OperationName.ORPHAN_FILES else ()
        return MaintenanceRules(
            now_s=min(self._context.clock.now_s(), await self._context.store.now_s()),
            keep_s=PUBLISH_LIFE_S + self._grace_s,
            files_max=files if order is None or order.files is None else order.files,
            since=since,
            kept=kept,
            own_name=f"{LAKE_OUTPUT}-",
            is_asked=order is not None,
            after=self._task(table, name).after,
            orphan_age_s=table.settings.lake_orphan_age_s,
            manifests_min=table.settings.lake_manifests_min,
            others=tuple((one.name, one.location) for one in others if one.id != table.id),
        )

    # ----------------------------------------------------------------------------------- Operators

    async def ask(self, table_id: str, order: api.LakeOrder) -> api.LakeRun:
        """Show what an operation would do, or run it once, whatever the settings are.

        Raises:
            UnknownTableError: The table is gone.
            RefusedError: It is no live lake table, or cannot be maintained so.
            UnavailableError: The log, the storage or the store does not answer.
        """
        table = await self._context.store.table(table_id)
        if table is None:
            raise UnknownTableError(f"table {table_id} is gone")
        if table.state is not TableState.LIVE:
            raise RefusedError(f"table {table.name!r} is {table.state.value}, expected a live one")
        if order.dry_run:
            survey = await self.survey(order.operation, table, order)
            return _run_of(table, survey, api.LakeRunState.DRY_RUN)
        await self._require_listed(table)
        task = self._task(table, order.operation)
        if task.survey is not None and task.result is not None:
            return task.result
        task.asked, task.due_s, task.failure = order, 0.0, ""
        task.looked = asyncio.Event()
        assert self.own is not None, "it was not added to the scheduler"
        why = "an operator asks for it"
        self.own.ask(order.operation, OperationStatistics(name=table.id, why=why, perf=1e6))
        with suppress(TimeoutError):
            async with asyncio.timeout(order.wait_max_s):
                await task.looked.wait()
        if task.failure:
            raise RefusedError(f"{order.operation} of table {table.name!r} failed: {task.failure}")
        if task.looked.is_set() and task.result is not None:
            return task.result
        survey = LakeSurvey(operation=order.operation, version=-1, why="it goes on in the service")
        return _run_of(table, survey, api.LakeRunState.RUNNING)

    async def _require_listed(self, table: Table) -> None:
        """Read the tables again if one is missing: the scheduler would forget its work."""
        if not self._is_listed(table):
            await self._read_tables()
        if not self._is_listed(table):
            raise UnavailableError(f"the coordinator has not read {table.name!r} yet")

    def _is_listed(self, table: Table) -> bool:
        return any(listed.id == table.id for listed in self._tables())

    def rows(self, table: Table) -> list[api.MaintenanceOperation]:
        """Return a row for each operation that the table may have."""
        names = OPERATIONS_OF_LAKES[table.lake.format] if table.lake else LAKE_OPERATIONS
        return [self._row(table, name) for name in names]

    def _row(self, table: Table, name: str) -> api.MaintenanceOperation:
        row = api.MaintenanceOperation(tablet="", kind=name)
        if table.lake is None:
            why = "it is no lake table"
            return replace(row, state=api.MaintenanceState.NOT_APPLICABLE.value, why=why)
        task, is_on = self._task(table, name), name in table.settings.lake_maintenance
        waiting = replace(row, state=api.MaintenanceState.WAITING.value)
        if task.failure:
            return replace(waiting, why=task.failure)
        if task.survey is not None and task.result is not None:
            files, freed_bytes = len(task.survey.files), task.survey.size_bytes
            row = replace(waiting, files=files, gain=float(files), gain_unit="files fewer")
            return replace(row, why=task.result.why, freed_bytes=freed_bytes)
        last = f"; {task.result.text}" if task.result is not None else ""
        if not is_on:
            wanted = {*table.settings.lake_maintenance, name}
            names = ",".join(one for one in LAKE_OPERATIONS if one in wanted)
            why = f"off: `neve table set {table.name} lake_maintenance={names}` turns it on{last}"
            return replace(row, why=why)
        if task.result is None:
            return replace(waiting, why="not looked at so far")
        return replace(row, why=task.result.text)

    def sentences(self, table: str) -> tuple[str, ...]:
        """Return why an operation of a table is not done, for `neve explain`."""
        return tuple(
            f"{name} of the lake table is not done: {task.failure}"
            for (table_id, name), task in self._tasks.items()
            if table_id == table and task.failure
        )

    def figures(self) -> list[MetricValue]:
        """Return the metrics of maintenance."""
        counts = {"runs": self._runs, "files": self._files, "bytes": self._bytes}
        return [
            MetricValue(f"neve_lake_maintenance_{name}_total", count, labels)
            for name, counted in counts.items()
            for labels, count in sorted(counted.items())
        ]


def _run_of(table: Table, survey: LakeSurvey, state: api.LakeRunState) -> api.LakeRun:
    return api.LakeRun(
        table=table.name,
        operation=survey.operation,
        state=state.value,
        why=survey.why,
        files=len(survey.files),
        size_bytes=survey.size_bytes,
        more=survey.more,
        created=survey.creates,
        spared=dict(survey.spared),
        paths=tuple(file.path for file in survey.files[:LAKE_PATHS_SHOWN]),
    )


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
        lake: LakeMaintenance,
        stored: tuple[GarbageCollector, ManifestPublisher, BufferFlusher],
        slot_rate: Callable[[str], float | None],
    ) -> None:
        """Create a listing of these parts; `slot_rate` returns the measured rate of a group."""
        self._settings = settings
        self._context = context
        self._plan = plan
        self._state = state
        self._own, self._lake = own, lake
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
        rows += self._lake.rows(table)
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
