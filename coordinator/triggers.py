"""Fires triggers: `periodic` when it is due, and `admin` for operators.

Operators request analyses in the same way. `core.triggers` has the rules. A trigger is first
written to the store, so that it survives this process. Then the scanner reads and plans the
tablets like changed ones.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from common.errors import (
    CompactionError,
    MetadataError,
    RefusedError,
    UnavailableError,
    UnknownTableError,
)
from common.metadata.changes import (
    Applied,
    Outcome,
    Refused,
    TriggerTable,
    WriteAnalyses,
    WriteAnalysis,
)
from common.model.table import Table
from common.model.tablet import Analysis, TabletId
from coordinator.context import ShellContext
from coordinator.core.scans import ANALYSES_AT_ONCE
from coordinator.core.state import CoordinatorState
from coordinator.core.triggers import ADMIN, PERIODIC, PeriodicTriggers, why_not_triggered
from coordinator.scan.scanner import BATCH_TABLETS, Scanner
from neve import api

REPORTED_MAX = 1000
"""Tablets of a table that are planned while the operator waits; the others follow later."""
ANSWER_MAX_S = 3.0
"""Time after which no further batch is planned, because the operator's call has a deadline."""
TRIGGERS_AT_ONCE = 20
"""Maximum number of tables whose periodic trigger fires in one step."""


class TriggerDriver:
    """Fires triggers. The planners make all decisions."""

    def __init__(self, context: ShellContext, scanner: Scanner, state: CoordinatorState) -> None:
        """Create a driver that has fired no triggers."""
        self._context = context
        self._scanner = scanner
        self._state = state
        self._periodic = PeriodicTriggers()

    async def run_forever(self, interval_s: float) -> None:
        """Check every `interval_s` for tables whose trigger `periodic` is due."""
        while True:
            await self.ask_due()
            await asyncio.sleep(interval_s)

    async def ask_due(self) -> None:
        """Fire the trigger `periodic` for the tables for which it is due.

        A trigger that cannot be written to the store stays due.
        """
        now_s = self._context.clock.now_s()
        for table in self._periodic.due(self._scanner.tables.values(), now_s)[:TRIGGERS_AT_ONCE]:
            try:
                await self._note(table, PERIODIC)
            except (CompactionError, MetadataError, UnavailableError) as error:
                self._context.log("trigger waits", table=table.name, cause=str(error))
                continue
            self._periodic.done(table, now_s)
            self._context.log("trigger asks", table=table.name, trigger=PERIODIC)
            await self._see_soon(table)

    async def _see_soon(self, table: Table) -> None:
        """Refresh the scanner's tables now; after a failure, its own refresh follows soon."""
        try:
            await self._scanner.refresh_tables()
        except (MetadataError, UnavailableError) as error:
            self._context.log("trigger is seen later", table=table.name, cause=str(error))

    async def ask(self, table_id: str, tablet: TabletId | None = None) -> api.Trigger:
        """Fire the trigger `admin` for an operator; return the decision for each tablet.

        Args:
            table_id: Id of the table.
            tablet: Fire it for this tablet only; None: for the table.

        Raises:
            RefusedError: The table is not live, or does not have the trigger `admin`.
            UnknownTableError: The table is gone.
            MetadataError: The store did not answer as it should.
            UnavailableError: The store did not answer.
        """
        await self._scanner.refresh_tables()
        table = self._table(table_id)
        if (why := why_not_triggered(table, ADMIN)) is not None:
            self._state.trigger_refused(table, ADMIN, why, self._context.clock.now_s())
            raise RefusedError(why)
        if tablet is not None:
            return await self._ask_tablet(table, tablet)
        await self._note(table, ADMIN)
        self._context.log("trigger asks", table=table.name, trigger=ADMIN)
        await self._scanner.refresh_tables()
        return await self._report(self._table(table_id))

    async def _ask_tablet(self, table: Table, tablet: TabletId) -> api.Trigger:
        """Open a trigger in the record of a tablet, and plan the tablet."""
        outcome = await self._context.apply(replace(_wish(tablet, None), triggers=True))
        _require_applied(outcome, f"trigger of tablet {tablet}")
        self._context.log("trigger asks", table=table.name, tablet=tablet.text, trigger=ADMIN)
        (record,) = await self._context.store.records([tablet])
        triggered_at_s = 0.0 if record is None else record.triggered_s
        await self._scanner.plan_batch([tablet])
        return api.Trigger(
            table=table.name,
            trigger=ADMIN,
            triggered_at_s=triggered_at_s,
            tablets=(self._answer(tablet, triggered_at_s),),
        )

    async def ask_analyses(self, table_id: str, tablets: Sequence[TabletId], group: str) -> None:
        """Request analyses of tablets in the store, so that they survive this coordinator.

        Args:
            table_id: Id of the table.
            tablets: Tablets of the table; those that no longer exist are skipped.
            group: Group whose compactors run the analyses.

        Raises:
            RefusedError: The table is being dropped.
            UnavailableError: The store gave no clear answer.
            MetadataError: The store did not answer as it should.
        """
        for first in range(0, len(tablets), ANALYSES_AT_ONCE):
            batch = tablets[first : first + ANALYSES_AT_ONCE]
            notes = tuple(_wish(tablet, group) for tablet in batch)
            outcome = await self._context.apply(WriteAnalyses(table=table_id, notes=notes))
            _require_applied(outcome, f"analyses of table {table_id}")
            for tablet in batch:
                self._scanner.ask(tablet)

    def _table(self, table_id: str) -> Table:
        table = self._scanner.tables.get(table_id)
        if table is None:
            raise UnknownTableError(f"table {table_id} is gone")
        return table

    async def _note(self, table: Table, trigger: str) -> None:
        outcome = await self._context.apply(TriggerTable(table=table.id, trigger=trigger))
        _require_applied(outcome, f"trigger of table {table.name}")

    async def _report(self, table: Table) -> api.Trigger:
        """Plan the first tablets at once, ahead of waiting ones; the full scan plans the others."""
        answers: list[api.TabletTrigger] = []
        end_s, after = asyncio.get_running_loop().time() + ANSWER_MAX_S, None
        report = api.Trigger(table=table.name, trigger=ADMIN, triggered_at_s=table.triggered_at_s)
        while ids := await self._context.store.tablet_ids(table.id, after, BATCH_TABLETS):
            if len(answers) >= REPORTED_MAX or asyncio.get_running_loop().time() >= end_s:
                left = await self._count(table.id, after)
                return replace(report, tablets=tuple(answers), left=left)
            await self._scanner.plan_batch(ids)
            answers += [self._answer(id_, table.triggered_at_s) for id_ in ids]
            after = ids[-1].end
        return replace(report, tablets=tuple(answers))

    async def _count(self, table: str, after: bytes | None) -> int:
        count = 0
        while ids := await self._context.store.tablet_ids(table, after):
            count, after = count + len(ids), ids[-1].end
        return count

    def _answer(self, tablet: TabletId, triggered_at_s: float) -> api.TabletTrigger:
        decision = self._state.trigger_decision(tablet)
        if decision is None or decision.triggered_at_s < triggered_at_s:
            # The tablet could not be read or is gone; `neve explain` shows the reason.
            return api.TabletTrigger(tablet=tablet.text, verdict=api.TriggerVerdict.FAILED.value)
        return api.TabletTrigger(
            tablet=tablet.text,
            verdict=decision.verdict.value,
            jobs=decision.jobs,
            files=decision.files,
            reason=decision.reason,
        )


def _wish(tablet: TabletId, group: str | None) -> WriteAnalysis:
    """Return a note that leaves the plan's verdict, and requests an analysis if it has a group."""
    return WriteAnalysis(
        tablet=tablet,
        analysis=Analysis.UNKNOWN,
        version=-1,
        settings_version=-1,
        analysis_group=group,
    )


def _require_applied(outcome: Outcome, what: str) -> None:
    """Raise an error unless the store has applied the change."""
    if isinstance(outcome, Refused):
        raise RefusedError(outcome.reason, outcome.code)
    if not isinstance(outcome, Applied):
        raise UnavailableError(f"{what}: {outcome.reason}")
