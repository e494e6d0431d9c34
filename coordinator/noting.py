"""Notes of analyses on their way to the store: many at once, and never in anybody's way.

A note only spares a later look, so it may be late, or be lost with the coordinator. What
is written together costs a fraction of what each would cost by itself; a later note of a
tablet takes the place of one that still waits.
"""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from common.errors import MetadataError, UnavailableError
from common.metadata.changes import Applied, WriteAnalyses, WriteAnalysis
from common.metadata.ports import TabletStore
from common.model.tablet import TabletId
from coordinator.core import actions as do
from coordinator.ports import Log
from coordinator.table_faults import TableFaults

NOTES_AT_ONCE = 64
WAITING_MAX = 20_000
"""Beyond that the oldest are dropped: a silent store must not fill our memory."""


class Noting:
    """Writes notes in the background, as long as there are some."""

    def __init__(
        self,
        store: TabletStore,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        log: Log,
        faults: TableFaults | None = None,
    ) -> None:
        """Write by tasks that `spawn` starts."""
        self._faults = faults or TableFaults(log)
        self._store = store
        self._spawn = spawn
        self._log = log
        self._waiting: dict[TabletId, do.NoteAnalysis] = {}
        self._writing = False
        self.conflicts = 0

    def put(self, note: do.NoteAnalysis) -> None:
        """Write a note soon."""
        self._waiting.pop(note.tablet, None)
        self._waiting[note.tablet] = note
        if len(self._waiting) > WAITING_MAX:
            del self._waiting[next(iter(self._waiting))]
        if not self._writing:
            self._writing = True
            self._spawn(self._write_all())

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                notes = self._next()
                work = partial(self._write, notes)
                await self._faults.run("noting analyses", notes[0].tablet.table, work)
        finally:
            self._writing = False

    def _next(self) -> list[do.NoteAnalysis]:
        """Take out the oldest, and others of the same table."""
        table = next(iter(self._waiting)).table
        tablets: list[TabletId] = []
        for tablet in self._waiting:
            if tablet.table == table:
                tablets.append(tablet)
            if len(tablets) == NOTES_AT_ONCE:
                break
        return [self._waiting.pop(tablet) for tablet in tablets]

    async def _write(self, notes: list[do.NoteAnalysis]) -> None:
        table = notes[0].tablet.table
        change = WriteAnalyses(table=table, notes=tuple(_change_of(note) for note in notes))
        try:
            outcome = await self._store.apply(change)
        except (MetadataError, UnavailableError) as error:
            self._log("analyses not written", table=table, tablets=len(notes), cause=str(error))
            return
        if isinstance(outcome, Applied):
            self.conflicts += outcome.conflicts


def _change_of(note: do.NoteAnalysis) -> WriteAnalysis:
    return WriteAnalysis(
        tablet=note.tablet,
        analysis=note.analysis,
        version=note.version,
        settings_version=note.settings_version,
        due_at_s=note.due_at_s,
    )
