"""Asks the selectors that tables have, and makes requests of their answers.

The scanner shows every tablet that it reads; one whose files or selector have changed
since it was asked last is asked about, off the event loop. A selector that fails is
asked again when the tablet changes or is planned anew; nothing waits for it.
"""

import asyncio
from functools import partial

from common.errors import CompactionError, MetadataError, UnavailableError
from common.metadata.changes import Applied, Outcome, SubmitRequest, Unknown, WriteAnalysis
from common.model.request import SelectorSpec
from common.model.table import Table
from common.model.tablet import Analysis, Tablet, TabletId
from coordinator.core.automatic import (
    asks_again_s,
    automatic_request,
    selector_hash,
    spec_of,
    wants_answer,
)
from coordinator.core.request_facts import closed_files
from coordinator.performing import Context
from coordinator.selecting import Selectors

ASKED_AT_ONCE = 4


class Automatic:
    """Watches the scanner for tablets whose table has a selector."""

    def __init__(self, context: Context, selectors: Selectors) -> None:
        """Ask about nothing yet."""
        self._context = context
        self._selectors = selectors
        self._waiting: dict[TabletId, tuple[Tablet, Table]] = {}
        self._news = asyncio.Event()

    def table_changed(self, table: str) -> None:
        """Pass by: the tablets of a table that changed are read again."""

    def tablet_changed(self, tablet: TabletId) -> None:
        """Pass by: a tablet that changed is read again."""

    def tablet_read(self, tablet: Tablet, table: Table) -> None:
        """Ask about a tablet if its files, or what chooses among them, have changed."""
        spec = spec_of(table)
        if spec is not None and wants_answer(tablet, table, spec, self._context.clock.now_s()):
            self._waiting[tablet.id] = (tablet, table)
            self._news.set()

    async def run_forever(self) -> None:
        """Ask, about several tablets at a time."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(ASKED_AT_ONCE):
                tasks.create_task(self._ask_forever())

    async def _ask_forever(self) -> None:
        while True:
            await self._news.wait()
            if not self._waiting:
                self._news.clear()
                continue
            tablet, table = self._waiting.pop(next(iter(self._waiting)))
            spec = spec_of(table)
            if spec is not None:
                work = partial(self._ask, spec, tablet, table)
                await self._context.faults.run("asking the selector", table.id, work)

    async def _ask(self, spec: SelectorSpec, tablet: Tablet, table: Table) -> None:
        now_s = self._context.clock.now_s()
        files = closed_files(tablet)
        try:
            chosen = await self._selectors.choose(spec, table, tablet.id, files, now_s)
        except CompactionError as error:
            self._log("selector of a table failed", tablet, cause=str(error))
            return
        request = automatic_request(tablet, table, spec, chosen, now_s)
        if request is not None:
            outcome = await self._apply(SubmitRequest(request=request))
            if not isinstance(outcome, Applied):
                self._log("automatic request not made", tablet, cause=outcome.reason)
                return
            self._log("automatic request made", tablet, request=request.id, reason=chosen.reason)
        await self._apply(
            WriteAnalysis(
                tablet=tablet.id,
                analysis=Analysis.UNKNOWN,
                version=-1,
                settings_version=-1,
                selector_hash=selector_hash(tablet, table, spec),
                selector_due_s=asks_again_s(chosen, now_s),
            )
        )

    async def _apply(self, change: SubmitRequest | WriteAnalysis) -> Outcome:
        try:
            return await self._context.apply(change)
        except (MetadataError, UnavailableError) as error:
            return Unknown(reason=str(error))

    def _log(self, event: str, tablet: Tablet, **fields: str) -> None:
        self._context.log(event, tablet=str(tablet.id), **fields)
