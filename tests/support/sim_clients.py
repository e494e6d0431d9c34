"""Clients in a simulation: appenders that repeat their calls, readers that pin, a listing sweep."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from common.errors import MetadataError, UnavailableError
from common.metadata.changes import (
    AddFiles,
    Applied,
    Change,
    DiscardFiles,
    Outcome,
    PinFiles,
    Refused,
    UnpinFiles,
)
from common.metadata.store import TabletStore
from common.model.file import DataFile
from common.model.table import Table
from common.model.tablet import PLUS_INFINITY
from neve.recovery.gc import _known_paths
from tests.support.sim_disk import LAST_KEY, key_bytes, key_number
from tests.support.sim_loop import SimLoop, World
from tests.support.sim_truth import Truth

ROWS = (1, 1, 1, 2, 3, 10, 40)
LEASE_S = 60.0
SWEEP_GRACE_S = 20.0


def call_id_of(at_s: float, caller: int, number: int) -> str:
    """Return the id of a caller's call: a UUIDv7 of simulated time."""
    text = f"{int(at_s * 1000):012x}7{caller:03x}8{number:015x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


class SimClient:
    """What all clients have: a process, a store, and patience."""

    def __init__(self, name: str, process: SimLoop, store: TabletStore, truth: Truth) -> None:
        self.name = name
        self.process = process
        self.done = False
        self.world: World = process.world
        self.store = store
        self.truth = truth

    async def pause(self, longest_s: float) -> None:
        await asyncio.sleep(self.world.random() * longest_s)

    async def repeat(self, change: Change) -> Outcome:
        """Apply a change again and again, until the store has said yes or no."""
        while True:
            outcome = await self.attempt(change)
            if isinstance(outcome, Applied | Refused):
                return outcome
            await self.pause(2.0)

    async def attempt(self, change: Change) -> Outcome | None:
        """Apply a change once; None: nobody knows."""
        try:
            return await self.store.apply(change)
        except (MetadataError, UnavailableError):
            return None


class SimAppender(SimClient):
    """Writes files and adds them; an unanswered call is repeated under its id."""

    def __init__(self, name: str, process: SimLoop, store: TabletStore, truth: Truth) -> None:
        super().__init__(name, process, store, truth)
        self._number = int(name.removeprefix("app"))
        self._files = 0
        self._rows = self._number * 1_000_000
        self._ends: dict[str, list[bytes]] = {}

    async def run(self, tables: Sequence[Table], busy_s: float) -> None:
        until_s = self.world.now_s() + busy_s
        while self.world.now_s() < until_s:
            await self._add(self.world.dice.choice(tables))
            await self.pause(3.0)
        self.done = True

    async def _add(self, table: Table) -> None:
        """Add some files to one or two tablets, routed by an index that may be stale."""
        dice = self.world.dice
        if table.id not in self._ends or self.world.chance(0.2):
            await self._look_up(table.id)
        if not self._ends.get(table.id):
            return
        counts = dice.choice(((1,), (1,), (2,), (1, 2)))
        files = [file for count in counts for file in self._write_some(table.id, count)]
        rows = [row for file in files for row in self.truth.disk.files[file.path]]
        self.truth.offered.setdefault(table.id, {}).update(dict.fromkeys(rows))
        call = call_id_of(self.world.now_s(), self._number, self._files)
        while (routed := self._routed(table.id, files)) is not None:
            outcome = await self.repeat(AddFiles(table=table.id, call=call, files=routed))
            if isinstance(outcome, Applied):
                self.truth.promise(table.id, rows)
                self.truth.seen["adds"] += 1
                self.truth.seen["rows"] += len(rows)
                return
            assert isinstance(outcome, Refused), outcome
            self.truth.seen["adds refused"] += 1
            # Paths are never used twice, so a call may only meet its own files.
            own = outcome.code in {"exists", "replaced", "retired", "call-content"}
            assert not own, f"{self.name}: refused because of itself: {outcome}"
            if outcome.code in {"table", "purged"}:
                return
            await self.pause(1.0)
            await self._look_up(table.id)

    async def _look_up(self, table: str) -> None:
        try:
            self._ends[table] = [tablet_id.end for tablet_id in await self.store.tablet_ids(table)]
        except (MetadataError, UnavailableError):
            return

    def _write_some(self, table: str, count: int) -> list[DataFile]:
        """Write files with keys of one tablet."""
        ends = self._ends[table]
        at = self.world.dice.randrange(len(ends))
        first = key_number(ends[at - 1]) + 1 if at else 0
        last = LAST_KEY if ends[at] == PLUS_INFINITY else key_number(ends[at])
        return [self._write(table, first, last) for _ in range(count)]

    def _write(self, table: str, first: int, last: int) -> DataFile:
        dice, disk = self.world.dice, self.truth.disk
        count = dice.choice(ROWS)
        self._files += 1
        rows = range(self._rows, self._rows + count)
        self._rows += count
        low, high = sorted((dice.randint(first, last), dice.randint(first, last)))
        for row in rows:
            disk.key_of[row] = dice.randint(low, high)
        path = f"{table}/{self.name}-{self._files:04d}.parquet"
        return disk.write(path, dict.fromkeys(rows, ()), self.world.now_s())

    def _routed(
        self, table: str, files: Sequence[DataFile]
    ) -> dict[bytes, tuple[DataFile, ...]] | None:
        """Return which tablet takes which file; None: one lies in two of them by now."""
        ends, found = self._ends[table], dict[bytes, tuple[DataFile, ...]]()
        for file in files:
            assert file.key_min is not None, file
            assert file.key_max is not None, file
            at = bisect_left(ends, file.key_min)
            if at == len(ends) or file.key_max > ends[at]:
                return None
            found[ends[at]] = (*found.get(ends[at], ()), file)
        return found


class SimReader(SimClient):
    """Pins, lists by the tile rule, reads for a while, lets go."""

    async def run(self, tables: Sequence[Table], busy_s: float) -> None:
        until_s = self.world.now_s() + busy_s
        number = 0
        while self.world.now_s() < until_s:
            number += 1
            pin = f"{self.name}-{number}"
            try:
                await self._read(self.world.dice.choice(tables), pin)
            except (MetadataError, UnavailableError):
                self.truth.pinned.pop(pin, None)
            await self.pause(5.0)
        self.done = True

    async def _read(self, table: Table, pin: str) -> None:
        outcome = await self.store.apply(PinFiles(table=table.id, pin=pin, lease_s=LEASE_S))
        if not isinstance(outcome, Applied):
            return
        wanted = [*self.truth.acknowledged.get(table.id, ())]
        tablets = await self.store.read_range(table.id)
        if self.truth.drops(table.id):
            return
        paths = tuple(path for tablet in tablets for path in tablet.files)
        self.truth.pin(pin, paths)
        rows = [row for path in paths for row in self.truth.disk.files[path]]
        found = set(rows)
        assert len(rows) == len(found), f"reader {pin} of {table.id} sees rows twice"
        lost = [row for row in wanted if row not in found]
        assert not lost, f"reader {pin} of {table.id} does not see {lost}"
        self.truth.seen["scans"] += 1
        await self.pause(20.0)
        del self.truth.pinned[pin]
        await self.store.apply(UnpinFiles(table=table.id, pin=pin))


class SimSweeper(SimClient):
    """The listing sweep: files of ours that no key knows go to garbage."""

    def __init__(
        self,
        name: str,
        process: SimLoop,
        store: TabletStore,
        truth: Truth,
        *,
        grace_s: float = SWEEP_GRACE_S,
    ) -> None:
        super().__init__(name, process, store, truth)
        self._grace_s = grace_s

    async def run(self, tables: Sequence[Table], busy_s: float) -> None:
        until_s = self.world.now_s() + busy_s
        while self.world.now_s() < until_s:
            await self.pause(self._grace_s)
            for table in tables:
                if self.truth.drops(table.id):
                    continue
                try:
                    await self.sweep(table, self._grace_s)
                except (MetadataError, UnavailableError):
                    continue
        self.done = True

    async def sweep(self, table: Table, grace_s: float) -> list[str]:
        """Hand what no key knows to the collector, in the production sweep's order.

        Raises:
            MetadataError: The store did not answer as it should.
        """
        disk, folder = self.truth.disk, "_neve/"
        until_s = self.world.now_s() - grace_s
        listed = [path for path in disk.files if path.startswith(folder)]
        tell: Callable[[str], None] = lambda _what: None  # noqa: E731  # nobody listens
        scope: Any = SimpleNamespace(store=self.store, table=table, on_progress=tell)
        known = await _known_paths(scope)
        first = await self.store.tablet_ids(table.id, None, 1)
        found = []
        for path in listed:
            row = next(iter(disk.ever(path)))
            ours = row in self.truth.offered.get(table.id, {})
            if not ours or known.has(path) or disk.written_s[path] >= until_s or not first:
                continue
            key = key_bytes(min(disk.key_of[each] for each in disk.ever(path)))
            tablet = await self.store.locate(table.id, key)
            if tablet is not None:
                await self.attempt(DiscardFiles(tablet=tablet, files={path: key}))
                found.append(path)
        self.truth.seen["orphans swept"] += len(found)
        return found
