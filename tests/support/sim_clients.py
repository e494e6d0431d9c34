"""Clients in a simulation: appenders that repeat their calls, readers that pin."""

from __future__ import annotations

from collections.abc import Sequence

from common.errors import MetadataError, UnavailableError
from common.metadata.changes import AddFiles, Applied, Refused
from common.metadata.store import KeyspaceStore
from common.metadata.upkeep_changes import Pin, Unpin
from common.model.file import DataFile
from common.model.table import Table
from common.model.tablet import TabletId
from tests.support.sim_tasks import Process, Tasks
from tests.support.sim_truth import ROW_BYTES, Truth

ROWS = (1, 1, 1, 2, 3, 10, 40)
LEASE_S = 60.0


class SimAppender:
    """Writes files and adds them; an unanswered call is repeated under its id."""

    def __init__(
        self,
        name: str,
        tasks: Tasks,
        store: KeyspaceStore,
        truth: Truth,
        tablets: Sequence[TabletId],
    ) -> None:
        self.name = name
        self.process = Process(name)
        self.done = False
        self._tasks = tasks
        self._store = store
        self._truth = truth
        self._tablets = tablets
        self._number = int(name.removeprefix("app"))
        self._files = 0
        self._rows = self._number * 1_000_000

    async def run(self, busy_s: float) -> None:
        until_s = self._tasks.now_s() + busy_s
        while self._tasks.now_s() < until_s:
            await self._add()
            await self._tasks.sleep(self._tasks.dice.random() * 3.0)
        self.done = True

    async def _add(self) -> None:
        tablet = self._tasks.dice.choice(self._tablets)
        count = self._tasks.dice.choice((1, 1, 2, 5))
        files = tuple(self._write(tablet) for _ in range(count))
        ledger = self._truth.ledgers[tablet]
        rows = [row for file in files for row in sorted(self._truth.disk.read(file.path))]
        ledger.offered.update(dict.fromkeys(rows))
        change = AddFiles(table=tablet.table, call=self._call_id(), files={tablet.end: files})
        while True:
            try:
                outcome = await self._store.apply(change)
            except (MetadataError, UnavailableError):
                outcome = None
            if isinstance(outcome, Applied):
                ledger.acknowledged.update(dict.fromkeys(rows))
                self._truth.check(tablet)
                return
            assert not isinstance(outcome, Refused), outcome
            await self._tasks.sleep(self._tasks.dice.random() * 2.0)

    def _write(self, tablet: TabletId) -> DataFile:
        count = self._tasks.dice.choice(ROWS)
        self._files += 1
        rows = frozenset(range(self._rows, self._rows + count))
        self._rows += count
        path = f"{tablet.table}-{tablet.text}/{self.name}-{self._files:04d}.parquet"
        self._truth.disk.write(path, rows)
        key = b"\x10" if tablet.end == b"\x40" else b"\x50" if tablet.end == b"\x80" else b"\x90"
        return DataFile(
            path=path,
            size_bytes=ROW_BYTES * count,
            rows=count,
            key_min=key,
            key_max=key,
            clean=True,
        )

    def _call_id(self) -> str:
        """Return a UUIDv7 of simulated time."""
        millis = int(self._tasks.now_s() * 1000)
        text = f"{millis:012x}7{self._number:03x}8{self._files:015x}"
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


class SimReader:
    """Pins, lists, reads for a while, lets go."""

    def __init__(self, name: str, tasks: Tasks, store: KeyspaceStore, truth: Truth) -> None:
        self.name = name
        self.process = Process(name)
        self._tasks = tasks
        self._store = store
        self._truth = truth

    async def run(self, tables: Sequence[Table], busy_s: float) -> None:
        until_s = self._tasks.now_s() + busy_s
        number = 0
        while self._tasks.now_s() < until_s:
            number += 1
            try:
                await self._read(self._tasks.dice.choice(tables), f"{self.name}-{number}")
            except (MetadataError, UnavailableError):
                self._truth.pinned.pop(f"{self.name}-{number}", None)
            await self._tasks.sleep(self._tasks.dice.random() * 5.0)

    async def _read(self, table: Table, pin: str) -> None:
        pinned = await self._store.apply(Pin(table=table.id, pin=pin, lease_s=LEASE_S))
        if not isinstance(pinned, Applied):
            return
        tablets = await self._store.read_range(table.id)
        paths = tuple(path for tablet in tablets for path in tablet.files)
        self._truth.pinned[pin] = paths
        self._truth.check_readers()
        await self._tasks.sleep(self._tasks.dice.random() * 20.0)
        del self._truth.pinned[pin]
        await self._store.apply(Unpin(table=table.id, pin=pin))
