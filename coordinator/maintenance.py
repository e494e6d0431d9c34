"""Lists the maintenance operations of a table: reads its tablets, and collects their facts.

`core.maintenance.operations` creates the rows. Listing begins and changes nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from common.compactor_needs import tasks_memory_bytes
from common.errors import CompactionError, UnknownTableError
from common.metadata.store_values import UnreadableTablet
from common.model.job import Job, TabletPlan
from common.model.table import Table
from common.model.tablet import Tablet, TabletId
from common.settings import Settings
from coordinator.context import ShellContext
from coordinator.core.maintenance import (
    GarbageCounts,
    JobNeeds,
    TabletFacts,
    ranked,
    tablet_operations,
)
from coordinator.core.state import CoordinatorState
from coordinator.ports import PlanTablet
from coordinator.scan.scanner import read_request_facts
from coordinator.storage.garbage_collector import GarbageCollector
from neve import api

TABLETS_MAX = 100
"""Maximum number of tablets in a listing."""


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
        collector: GarbageCollector,
        *,
        slot_rate: Callable[[str], float | None],
    ) -> None:
        """Create a listing from these parts; `slot_rate` returns the measured rate of a group."""
        self._settings = settings
        self._context = context
        self._plan = plan
        self._state = state
        self._collector = collector
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
        return api.TableMaintenance(
            table=table.name,
            operations=ranked(rows, table.settings.maintenance_priority),
            rates=self._rates(ids[:count]),
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
