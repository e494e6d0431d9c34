"""Callers of gateways in a simulation: they add, append and scan, and ask again unanswered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from common.errors import RefusedError, RequestError, UnavailableError
from common.metadata.store import TabletStore
from common.model.outcome import RefusalCode
from common.model.table import Table
from neve import api
from tests.support.sim_clients import ROWS, SimClient, call_id_of
from tests.support.sim_compactor import Link, Network
from tests.support.sim_disk import LAST_KEY
from tests.support.sim_gateway import SimGateway, rows_table
from tests.support.sim_loop import SimLoop
from tests.support.sim_truth import Truth

CALL_MAX_S = 5.0
SCAN_MAX_S = 120.0
ASKED_AGAIN_MAX_S = 60.0
"""How much later somebody asks again what he was answered before."""
OLD_S = 25 * 3600.0
"""Age of a call that nobody can answer for."""
NAMES_MAX = 5
"""How many of the files that were deleted last have names that somebody likes to use again."""
NAME_TRIES_MAX = 10
SPREAD = 0x400
"""Keys of one file lie so close together, mostly: a file belongs to one tablet."""


def body_of(rows: pa.Table) -> bytes:
    """Return rows as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    body: bytes = sink.getvalue().to_pybytes()
    return body


class GatewayLink(Link):
    """A gateway as one caller sees it: another one with every call."""

    async def call(self, method: str, *values: object, within_s: float = CALL_MAX_S) -> Any:
        """Call a method of a gateway.

        Raises:
            RequestError: The gateway says so.
            RefusedError: The same.
            UnavailableError: Nobody knows what became of it.
        """
        return await self._call(method, *values, within_s=within_s)


class SimCaller(SimClient):
    """Adds files and appends rows through gateways."""

    def __init__(
        self,
        name: str,
        process: SimLoop,
        store: TabletStore,
        truth: Truth,
        *,
        network: Network,
        followed: Callable[[str], SimGateway],
    ) -> None:
        super().__init__(name, process, store, truth)
        self._link = GatewayLink(name, process, network, followed)  # type: ignore[arg-type]  # as coordinators have, so it has processes and callers
        self._number = int(name.removeprefix("caller"))
        self._calls = 0
        self._rows = (500 + self._number) * 1_000_000
        self._asking = 0
        """How many calls are going to be asked again."""
        self._names = 0

    async def run(self, tables: Sequence[Table], busy_s: float) -> None:
        until_s = self.world.now_s() + busy_s
        kinds = (self._append, self._append, self._add, self._add, self._add_by_name)
        while self.world.now_s() < until_s:
            await self.world.dice.choice(kinds)(self.world.dice.choice(tables))
            await self.pause(3.0)
        while self._asking:
            await self.pause(5.0)
        self.done = True

    # What is called.

    async def _append(self, table: Table) -> None:
        rows = self._new_rows(table, close=self.world.chance(0.5))
        content = rows_table([(self.truth.disk.key_of[row], row) for row in rows])
        await self._bring("append", table, body_of(content), rows)

    async def _add(self, table: Table) -> None:
        rows, paths = list[int](), list[str]()
        for number in range(self.world.dice.choice((1, 1, 2))):
            mine = self._new_rows(table, close=True)
            paths.append(f"{table.id}/{self.name}-{self._calls:04d}-{number}.parquet")
            self._write(paths[-1], mine)
            rows += mine
        await self._bring("add", table, paths, rows)

    async def _add_by_name(self, table: Table) -> None:
        """Add a file under a name that was used before: its file has been deleted since."""
        # Callers' own names stay as they are: their calls may be asked again.
        users = (f"{table.id}/app", f"{table.id}/again-")
        disk = self.truth.disk
        free = [
            path for path in disk.deleted if path.startswith(users) and path not in disk.retaken
        ]
        self._names += 1
        path = f"{table.id}/again-{self.name}-{self._names}.parquet"
        if free and self.world.chance(0.8):
            path = self.world.dice.choice(free[-NAMES_MAX:])
            disk.retaken[path] = None
            self.truth.seen["names used again"] += 1
        rows = self._new_rows(table, close=True)
        self._write(path, rows)
        before: list[str] = []
        for _ in range(NAME_TRIES_MAX):
            refused = await self._bring("add", table, [path], rows, again=False, before=before)
            if refused not in {RefusalCode.RETIRED, RefusalCode.REPLACED}:
                return
            await self.pause(4.0)

    def _write(self, path: str, rows: Sequence[int]) -> None:
        disk = self.truth.disk
        disk.deleted.pop(path, None)
        disk.write(path, dict.fromkeys(rows, ()), self.world.now_s())

    def _new_rows(self, table: Table, *, close: bool) -> list[int]:
        dice, disk = self.world.dice, self.truth.disk
        rows = list(range(self._rows, self._rows + dice.choice(ROWS)))
        self._rows += len(rows)
        first = dice.randint(0, LAST_KEY)
        low, high = (first, min(first + SPREAD, LAST_KEY)) if close else (0, LAST_KEY)
        for row in rows:
            disk.key_of[row] = dice.randint(low, high)
        self.truth.offered.setdefault(table.id, {}).update(dict.fromkeys(rows))
        return rows

    # How it is called.

    async def _bring(
        self,
        method: str,
        table: Table,
        content: object,
        rows: Sequence[int],
        *,
        again: bool = True,
        before: list[str] | None = None,
    ) -> str:
        """Make a call until it is answered; return the code of a refusal.

        Calls of the same files `before` were refused; this one becomes the last of them.
        """
        old = self.world.chance(0.03)
        call = self._call_id(OLD_S if old else 0.0)
        before = [] if before is None else before
        added = await self._answer(method, table, content, call)
        if isinstance(added, str):
            # What was refused may have arrived once more later, and have been accepted.
            others = added == "exists" and await self._accepted(table, before)
            itself = added in {"exists", "call-content"} and not others
            assert not itself, f"{call}: refused because of itself: {added}"
            before.append(call)
            self.truth.seen[f"calls refused: {added}"] += 1
            return added
        assert added.rows == len(rows), f"{call}: {added.rows} rows are told, {len(rows)} were sent"
        self.truth.promise(table.id, rows)
        self.truth.seen[f"calls answered: {method}"] += 1
        self.truth.seen["rows"] += len(rows)
        if again and self.world.chance(0.3):
            self._asking += 1
            self.process.start(self._ask_again(method, table, content, call))
        return ""

    async def _accepted(self, table: Table, calls: Sequence[str]) -> bool:
        """Return whether one of these calls has been accepted."""
        return any([await self.store.call(table.id, call) is not None for call in calls])

    async def _ask_again(self, method: str, table: Table, content: object, call: str) -> None:
        """Ask again what was answered: it is answered the same, whatever has happened since."""
        await self.pause(ASKED_AGAIN_MAX_S)
        added = await self._answer(method, table, content, call)
        if not self.truth.drops(table.id):
            same = isinstance(added, api.Added) and added.repeated
            assert same, f"{call} of {table.id} was accepted, and then answered by {added!r}"
            self.truth.seen["calls asked again"] += 1
        self._asking -= 1

    async def _answer(
        self, method: str, table: Table, content: object, call: str
    ) -> api.Added | str:
        """Make one call, until somebody answers; return the answer or the code of a refusal."""
        while True:
            try:
                added: api.Added = await self._link.call(method, table.name, content, call)
            except UnavailableError:
                self.truth.seen["calls unanswered"] += 1
                await self.pause(2.0 if self.world.chance(0.7) else ASKED_AGAIN_MAX_S / 2)
            except (RequestError, RefusedError) as error:
                return str(getattr(error, "code", "")) or type(error).__name__
            else:
                return added

    def _call_id(self, age_s: float) -> str:
        self._calls += 1
        return call_id_of(self.world.now_s() - age_s, 500 + self._number, self._calls)


class SimScanner(SimCaller):
    """Scans tables through gateways: every acknowledged row is there, once."""

    async def run(self, tables: Sequence[Table], busy_s: float) -> None:
        until_s = self.world.now_s() + busy_s
        while self.world.now_s() < until_s:
            table = self.world.dice.choice(tables)
            wanted = [*self.truth.acknowledged.get(table.id, ())]
            try:
                found = await self._link.call("scan", table.name, within_s=SCAN_MAX_S)
            except UnavailableError:
                found = "nobody answers"
            except (RequestError, RefusedError) as error:
                found = str(error)
                self.truth.require_drop(table.id, f"a scan of {table.id} fails: {error}")
            self._check(table, wanted, found)
            await self.pause(5.0)
        self.done = True

    def _check(self, table: Table, wanted: Sequence[int], found: Sequence[int] | str) -> None:
        if isinstance(found, str):
            self.truth.seen["scans broken off"] += 1
            return
        known = set(found)
        assert len(known) == len(found), f"a scan of {table.id} sees rows twice"
        lost = [row for row in wanted if row not in known]
        assert not lost or self.truth.drops(table.id), f"a scan of {table.id} misses {lost}"
        self.truth.seen["scans through gateways"] += 1
