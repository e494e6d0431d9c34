"""Who uses a simulated lake: writers, readers of two kinds, and an operator who keeps it tidy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import pyarrow.parquet as pq

from common.errors import ConflictError, RefusedError, RequestError, UnavailableError
from common.metadata.store import TabletStore
from common.model.request import RequestState
from common.model.table import Table
from common.parquet.location import open_location
from neve import api
from neve.recovery.rebuild.live_files import PublishedManifest
from neve.recovery.rebuild.table_rebuild import read_published_manifest
from neve.recovery.repair import RepairOptions
from neve.recovery.scope import FindingCode
from tests.support.sim_callers import GatewayLink, body_of
from tests.support.sim_clients import SimClient, call_id_of
from tests.support.sim_compactor import Network
from tests.support.sim_lake_parts import LakeGateway, LakeTruth, rows_of
from tests.support.sim_lake_rows import PARTS, Deletion, Ledger, Row, Sowing, table_of
from tests.support.sim_loop import SimLoop
from tests.support.sim_options import Options

SCAN_MAX_S = 120.0
WORK_MAX_S = 120.0
HELD_MAX_S = 3.0
"""How long an engine goes on with a manifest: shorter than the grace."""
HARMLESS = frozenset(
    {
        FindingCode.UNKNOWN,
        FindingCode.FOREIGN,
        FindingCode.ORPHANED,
        FindingCode.STALE_PIN,
        FindingCode.STALE_RESERVATION,
        # A request is done before its marks are removed.
        FindingCode.STALE_MARKS,
    }
)
"""What a check may find while things happen."""


class Lake(Protocol):
    """What users know of it."""

    tables: list[Table]
    ledger: Ledger
    sowing: Sowing
    options: Options
    network: Network

    def gateway_of(self, caller: str) -> LakeGateway:
        """Return a gateway."""
        ...


class LakeUser(SimClient):
    """Calls gateways, and asks again until it is answered."""

    def __init__(
        self, name: str, process: SimLoop, store: TabletStore, truth: LakeTruth, *, lake: Lake
    ) -> None:
        super().__init__(name, process, store, truth)
        self.lake = lake
        self.link = GatewayLink(name, process, lake.network, lake.gateway_of)  # type: ignore[arg-type]  # as for coordinators
        self._calls = 0

    @property
    def table(self) -> Table | None:
        """The one that there is now."""
        return self.lake.tables[0] if self.lake.tables else None

    async def run(self, busy_s: float) -> None:
        until_s = self.world.now_s() + busy_s
        while self.world.now_s() < until_s:
            if (table := self.table) is not None:
                await self.work(table)
            await self.pause(4.0)
        self.done = True

    async def work(self, table: Table) -> None:
        """Do one thing with a table; operators do nothing by themselves."""

    async def answer(self, method: str, *values: object, within_s: float = WORK_MAX_S) -> Any:
        """Make a call until somebody answers; return the answer, or the refusal."""
        while True:
            try:
                return await self.link.call(method, *values, within_s=within_s)
            except (UnavailableError, ConflictError):
                await self.pause(3.0)
            except (RequestError, RefusedError) as error:
                return error

    def call_id(self) -> str:
        """Return a UUIDv7 of simulated time."""
        self._calls += 1
        number = sum(map(ord, self.name)) % 4096
        return call_id_of(self.world.now_s(), number, self._calls)


class LakeWriter(LakeUser):
    """Appends rows, buffers them, and adds files of its own."""

    async def work(self, table: Table) -> None:
        if self.world.chance(0.35):
            await self._buffer(table)
            return
        ledger, adds = self.lake.ledger, self.world.chance(0.3)
        rows = self.lake.sowing.rows(near=adds or self.world.chance(0.5))
        ledger.offer(rows)
        content: Any = [self._write(table, rows)] if adds else body_of(table_of(rows))
        method = "add" if adds else "append"
        answered = await self.answer(method, table.name, content, self.call_id(), within_s=8.0)
        if isinstance(answered, RequestError | RefusedError):
            self.truth.seen[f"{method}s refused"] += 1
            if adds:  # Else a rebuild would take it for one that was added.
                (place_of(table) / content[0]).unlink(missing_ok=True)
            return
        if self.table is table:
            assert answered.rows == len(rows), f"{answered} of {len(rows)} rows"
            ledger.promise(rows, self.world.now_s())
            self.truth.seen[f"{method}s answered"] += 1

    async def _buffer(self, table: Table) -> None:
        ledger, rows = self.lake.ledger, self.lake.sowing.rows(near=self.world.chance(0.5))
        ledger.offer(rows)
        answered = await self.answer("buffer", table.name, rows, self.call_id(), within_s=8.0)
        if isinstance(answered, RequestError | RefusedError):
            self.truth.seen["buffered calls refused"] += 1
        elif self.table is table:
            ledger.promise(rows, self.world.now_s(), buffered=True)
            self.truth.seen["buffered calls answered"] += 1

    def _write(self, table: Table, rows: Sequence[Row]) -> str:
        folder = f"mine/part={rows[0].part}" if self.lake.ledger.kind.parted else "mine"
        name = f"{folder}/{self.name}-{self.call_id()}.parquet"
        (place_of(table) / folder).mkdir(parents=True, exist_ok=True)
        pq.write_table(table_of(rows), place_of(table) / name)
        self.world.after_work()
        return name


def place_of(table: Table) -> Path:
    """Return the folder of a table."""
    return Path(urlsplit(table.location).path)


class LakeReader(LakeUser):
    """Scans by a gateway, or reads what the manifest names."""

    async def work(self, table: Table) -> None:
        await (self._scan if self.world.chance(0.5) else self._read_manifest)(table)

    async def _scan(self, table: Table) -> None:
        ledger, since_s = self.lake.ledger, self.world.now_s()
        known = ledger.known(since_s)
        found = await self.answer("scan", table.name, within_s=SCAN_MAX_S)
        if isinstance(found, RequestError | RefusedError):
            assert self.table is not table or self.truth.sleeps, f"a scan fails: {found}"
        elif isinstance(found, list):
            ledger.check(f"scan by {self.name}", found, known, since_s, self.world.now_s())
            self.truth.seen["scans"] += 1

    async def _read_manifest(self, table: Table) -> None:
        loop = asyncio.get_running_loop()
        location, ledger = open_location(table.location), self.lake.ledger
        try:
            published = await loop.run_in_executor(None, read_published_manifest, location)
        except UnavailableError:
            return
        if published is None or published.table != table.id:
            return
        known = ledger.known(published.begun_s, in_files=True)
        await self.pause(HELD_MAX_S)
        read = partial(read_files, table, published)
        rows = await loop.run_in_executor(None, read)
        now_s = self.world.now_s()
        who = f"{self.name}, by {published.name}"
        visible = ledger.visible(rows, now_s)
        ledger.check(who, visible, known, now_s, now_s, published.begun_s)
        self.truth.seen["manifests read"] += 1


def read_files(table: Table, published: PublishedManifest) -> list[Row]:
    """Return the rows of all files that a manifest names."""
    place = place_of(table)
    return [row for path in published.files for row in rows_of(pq.read_table(place / path))]


class LakeDeleter(LakeUser):
    """Deletes rows by requests: all that were acknowledged before, buffered or in files."""

    async def work(self, table: Table) -> None:
        await self.pause(12.0)
        ledger, now_s = self.lake.ledger, self.world.now_s()
        if ledger.kind.keyed and not ledger.kind.deletes:
            return  # Refused: rows of such a table cannot be deleted.
        version_max = max(
            (row.v for rows in ledger.offered.values() for row in rows.values()), default=0
        )
        deletion = Deletion(self.world.dice.randrange(PARTS), version_max, now_s)
        ledger.deletions.append(deletion)
        body = api.NewRequest(delete_where=f"part = {deletion.part} and v <= {version_max}")
        request = await self.answer("compact", table.name, body, self.call_id())
        state = request if isinstance(request, Exception) else RequestState.ACTIVE
        while isinstance(state, RequestState) and not state.ended:
            await self.pause(4.0)
            state = await self.answer("request", table.name, request)
        if state is RequestState.DONE and self.table is table:
            self.truth.seen["deletions done"] += 1
            # A fail-over may forget that it was done, and do it once more.
            if not self.lake.options.fail_over:
                deletion.done_s = self.world.now_s()


class LakeKeeper(LakeUser):
    """Sweeps and checks, while everything goes on."""

    async def work(self, table: Table) -> None:
        await self.pause(8.0)
        if self.world.chance(0.5):
            done = await self.answer("gc", table.name)
            if not isinstance(done, Exception):
                self.truth.seen["sweeps"] += 1
                self.truth.seen["orphans given"] += done.given
            return
        report = await self.answer("fsck", table.name, RepairOptions())
        if not isinstance(report, Exception) and self.table is table:
            self.truth.seen["checks"] += 1
            found = report.checked.findings
            # What cannot be read once is told, and mended by nobody.
            fine = HARMLESS | ({FindingCode.CORRUPT} if self.truth.storage_fails else frozenset())
            bad = [each for each in found if each.code not in fine]
            assert not bad or self.truth.sleeps, f"a check finds damage: {bad}"
