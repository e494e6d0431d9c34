"""Has planners asked: by the trigger `periodic` when it is due, by `admin` when operators ask.

Operators ask for analyses the same way.
`core.triggers` has the rules. What is asked is noted in the store first, so that it outlives this
process; then the scanner reads and plans the tablets like any that have changed.
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
from coordinator.core.scan_rules import ANALYSES_AT_ONCE
from coordinator.core.state import CoordinatorState
from coordinator.core.triggers import ADMIN, PERIODIC, PeriodicTriggers, why_not_triggered
from coordinator.scan.scanner import BATCH_TABLETS, Scanner
from neve import api

REPORTED_MAX = 1000
"""Tablets of a table whose planner is asked while the operator waits; others follow."""
ANSWER_MAX_S = 3.0
"""No further batch is asked after so long: the operator's call has a deadline."""
TRIGGERS_AT_ONCE = 20
"""Tables that are asked about in one step, the others in the next."""


class TriggerDriver:
    """Asks planners on behalf of triggers. All decisions are the planners'."""

    def __init__(self, context: ShellContext, scanner: Scanner, state: CoordinatorState) -> None:
        """Ask nobody yet."""
        self._context = context
        self._scanner = scanner
        self._state = state
        self._periodic = PeriodicTriggers()

    async def run_forever(self, interval_s: float) -> None:
        """Look each `interval_s` whether the trigger `periodic` is due somewhere."""
        while True:
            await self.ask_due()
            await asyncio.sleep(interval_s)

    async def ask_due(self) -> None:
        """Have the planners asked of the tables for which `periodic` is due.

        One that cannot be noted now stays due.
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
        """Have the scanner look now; what fails here it does itself, a little later."""
        try:
            await self._scanner.refresh_tables()
        except (MetadataError, UnavailableError) as error:
            self._context.log("trigger is seen later", table=table.name, cause=str(error))

    async def ask(self, table_id: str) -> api.Trigger:
        """Have a planner asked now by an operator; return what it decides for each tablet.

        Args:
            table_id: Id of the table.

        Raises:
            RefusedError: The table is not live, or does not have the trigger `admin`.
            UnknownTableError: It is gone.
            MetadataError: The store did not answer as it should.
            UnavailableError: It did not answer.
        """
        await self._scanner.refresh_tables()
        table = self._table(table_id)
        if (why := why_not_triggered(table, ADMIN)) is not None:
            self._state.trigger_refused(table, ADMIN, why, self._context.clock.now_s())
            raise RefusedError(why)
        await self._note(table, ADMIN)
        self._context.log("trigger asks", table=table.name, trigger=ADMIN)
        await self._scanner.refresh_tables()
        return await self._report(self._table(table_id))

    async def ask_analyses(self, table_id: str, tablets: Sequence[TabletId], group: str) -> None:
        """Have the live bytes of tablets counted, also by the coordinators that come after.

        Args:
            table_id: Id of the table.
            tablets: Of the table; one that has gone meanwhile is passed over.
            group: Whose compactors count.

        Raises:
            RefusedError: The table is being dropped.
            UnavailableError: The store gave no clear answer.
            MetadataError: The store did not answer as it should.
        """
        for first in range(0, len(tablets), ANALYSES_AT_ONCE):
            some = tablets[first : first + ANALYSES_AT_ONCE]
            notes = tuple(_wish(tablet, group) for tablet in some)
            outcome = await self._context.apply(WriteAnalyses(table=table_id, notes=notes))
            _require_applied(outcome, f"analyses of table {table_id}")
            for tablet in some:
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
        """Plan the first tablets at once, before all that waits; the full scan plans the others."""
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
            # It could not be read, or has gone; `neve explain` knows.
            return api.TabletTrigger(tablet=tablet.text, verdict=api.TriggerVerdict.FAILED.value)
        return api.TabletTrigger(
            tablet=tablet.text,
            verdict=decision.verdict.value,
            jobs=decision.jobs,
            files=decision.files,
            reason=decision.reason,
        )


def _wish(tablet: TabletId, group: str) -> WriteAnalysis:
    """Return the note that somebody wants a tablet's live bytes counted, and nothing else."""
    return WriteAnalysis(
        tablet=tablet,
        analysis=Analysis.UNKNOWN,
        version=-1,
        settings_version=-1,
        analysis_group=group,
    )


def _require_applied(outcome: Outcome, what: str) -> None:
    """Raise what the store has said, unless it has done it."""
    if isinstance(outcome, Refused):
        raise RefusedError(outcome.reason, outcome.code)
    if not isinstance(outcome, Applied):
        raise UnavailableError(f"{what}: {outcome.reason}")
