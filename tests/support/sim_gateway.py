"""Gateways in a simulation: the production add, append and scan over simulated store and storage.

Each gateway is a process of its own, which may die or stand still between any two steps of a
call. Its callers, in `sim_callers`, know it by a network that loses their messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa

from common.errors import CompactionError, ConflictError, RequestError, UnavailableError
from common.metadata.store import TabletStore
from common.model.table import Table
from common.model.tablet import Tablet
from common.parquet.file_inspection import FileFacts
from common.parquet.service_files import LocationOwner
from common.rows.row_facts import RowFacts
from common.rows.rules import RowRules
from common.rows.schema import arrow_schema
from common.settings import GatewaySettings, Settings
from neve import api
from neve.gateway.rows.add import add_files
from neve.gateway.rows.ingestion import append_rows
from neve.gateway.rows.scan import ScanOptions, open_scan
from neve.gateway.services import Services
from neve.gateway.store_watch import StoreWatch
from neve.gateway.table_files import StoredFiles
from tests.support.predictable import CountedIds
from tests.support.sim_disk import ROW_BYTES, Rows, key_number
from tests.support.sim_loop import SimLoop, World
from tests.support.sim_store import STORE_ID
from tests.support.sim_truth import Truth

FREEZE_MAX_S = 60.0
RESTART_MAX_S = 4.0
PIECE_PAUSE_MAX_S = 12.0
"""How long a reader takes for the rows of one file."""
SLOW_MAX_S = 60.0
"""How long a reader takes his time: longer than a pin lasts that nobody renews."""
KEY, VERSION, ROW = "k", "v", "row"
"""Columns of simulated tables."""


StoreOf = Callable[[Callable[[], None]], TabletStore]
"""Return a client of the store that calls back when it has read something."""


class SimFiles:
    """The simulated disk as gateways see it: the methods of `table_files.StoredFiles`."""

    def __init__(self, world: World, truth: Truth, wrote: Callable[[], None]) -> None:
        """Call `wrote` whenever a file was written."""
        self._world = world
        self._disk = truth.disk
        self._wrote = wrote

    def owner(self, table: Table) -> LocationOwner | None:
        return LocationOwner(store=STORE_ID, table=table.id)

    def generation(self, table: Table) -> int:
        return 0

    def sizes(self, table: Table, paths: Sequence[str]) -> dict[str, int]:
        files = self._disk.files
        return {path: ROW_BYTES * len(files[path]) for path in paths if path in files}

    def inspect(self, table: Table, paths: Sequence[str]) -> list[FileFacts | CompactionError]:
        return [self._inspected(table, path) for path in paths]

    def _inspected(self, table: Table, path: str) -> FileFacts | CompactionError:
        try:
            self._rows(path)
            return self._facts(table, path)
        except RequestError as error:
            return error

    def write(self, table: Table, path: str, rows: pa.Table) -> FileFacts:
        numbers = rows.column(ROW).to_pylist()
        self._disk.key_of.update(zip(numbers, rows.column(KEY).to_pylist(), strict=True))
        self._disk.write(path, dict.fromkeys(numbers, ()), self._world.now_s())
        self._wrote()
        self._rows(path)
        return self._facts(table, path)

    def reader(
        self, table: Table, now_s: float, columns: Sequence[str], **_more: object
    ) -> SimRowReader:
        return SimRowReader(self._rows, self._disk.key_of)

    def _rows(self, path: str) -> Rows:
        if path not in self._disk.files:
            raise RequestError(f"simulated: file {path} does not exist")
        return self._disk.files[path]

    def _facts(self, table: Table, path: str) -> FileFacts:
        file = self._disk.described(path)
        return FileFacts(
            path=path,
            size_bytes=file.size_bytes,
            schema=arrow_schema(table.schema),
            rows=RowFacts(
                rows=file.rows,
                key_min=file.key_min,
                key_max=file.key_max,
                version_min=file.version_min,
                version_max=file.version_max,
                clean=True,
            ),
            key_types=RowRules.of(table).key_types,
            row_groups=1,
        )


class SimRowReader:
    """Reads the files of tablets one after the other, each when it is asked for."""

    read_bytes = 0

    def __init__(self, rows_of: Callable[[str], Rows], key_of: Mapping[int, int]) -> None:
        self._rows_of = rows_of
        self._key_of = key_of

    def read(self, tablet: Tablet, start: bytes | None, end: bytes | None) -> Iterator[pa.Table]:
        low = 0 if start is None else key_number(start) + 1
        for path in sorted(tablet.files):
            rows = [row for row in self._rows_of(path) if self._key_of[row] >= low]
            yield rows_table([(self._key_of[row], row) for row in rows])

    def counts(self, tablet: Tablet, start: bytes | None, end: bytes | None) -> Iterator[int]:
        yield from (rows.num_rows for rows in self.read(tablet, start, end))


def rows_table(rows: Sequence[tuple[int, int]]) -> pa.Table:
    """Return rows, each a key and a number, as Arrow has them."""
    keys, numbers = [key for key, _ in rows], [number for _, number in rows]
    columns = {KEY: keys, VERSION: [1] * len(rows), ROW: numbers}
    return pa.table({name: pa.array(each, pa.int64()) for name, each in columns.items()})


class UnreachableCoordinator:
    """The coordinator as gateways see it: the simulation has no network between them."""

    async def note_scans(self, table: str, scans: Mapping[str, int]) -> None:
        raise UnavailableError("simulated: no gateway reaches the coordinator")


class SimGateway:
    """One incarnation of a gateway; it dies with its process."""

    columns = (KEY, ROW)
    """What scans ask for."""

    def __init__(
        self, name: str, world: World, store_of: StoreOf, settings: Settings, truth: Truth
    ) -> None:
        self.name = name
        self.process: SimLoop = world.process(name)
        self.waiting: dict[asyncio.Future[Any], None] = {}
        """Callers that wait for an answer; they hear of its death."""
        self.stood_still = 0
        """How often it was frozen."""
        self.meant_s = 0.0
        """How long it will stand still when it has written a file, and then has read something
        of the store: it is about to add the file."""
        self.soon_s = 0.0
        self.answering = 0
        """Calls under way, perhaps of callers who have left."""
        self._world = world
        self._truth = truth
        coordinator: Any = UnreachableCoordinator()
        unused: Any = None
        store = store_of(self._freeze_if_soon)
        self._services = Services(
            store=store,
            store_watch=StoreWatch(store, world, self._log),
            coordinator=coordinator,
            plan=unused,
            settings=settings,
            clock=world,
            ids=CountedIds(f"{name}-"),
            log=self._log,
            files=self._files(),
        )

    def _log(self, event: str, **facts: object) -> None:
        self._world.tell(self.name, event, **facts)
        if event == "background work failed":
            self._world.fail(AssertionError(f"{self.name}: {event}: {facts}"))

    def _files(self) -> StoredFiles:
        return SimFiles(self._world, self._truth, self._freeze_if_meant)

    def _told(self, piece: pa.Table) -> list[Any]:
        """Return what a caller is told of some rows."""
        return piece.column(ROW).to_pylist()  # type: ignore[no-any-return]  # Arrow does not say

    async def add(self, table: str, paths: Sequence[str], call: str) -> api.Added:
        """Do what the route of `add` does."""
        with self._answering():
            return await add_files(self._services, await self._services.table(table), paths, call)

    async def append(self, table: str, body: bytes, call: str) -> api.Added:
        """Do what the route of `append` does."""
        with self._answering():
            return await append_rows(self._services, await self._services.table(table), body, call)

    async def scan(self, name: str) -> list[Any] | str:
        """Return the rows of a whole scan, or why it could not go on.

        Raises:
            RequestError: A file is missing, or the table.
        """
        table, still = await self._services.table(name), self.stood_still
        rows: list[Any] = []
        refusals = self._truth.seen["refusals"]
        slow_until_s = self._world.now_s() + SLOW_MAX_S
        try:
            async with open_scan(
                self._services, table, ScanOptions(columns=self.columns)
            ) as pieces:
                async for piece in pieces:
                    rows += self._told(piece)
                    if self._world.now_s() < slow_until_s:
                        await asyncio.sleep(self._world.random() * PIECE_PAUSE_MAX_S)
        except ConflictError as error:
            broken = str(error)
        else:
            return rows
        # Its pin is renewed whatever fails meanwhile, if only somebody runs to do it, and the
        # store takes it.
        begun = "no longer protected" in broken
        excused = not begun or self.stood_still > still or self._truth.drops(table.id)
        excused |= self._truth.seen["refusals"] > refusals or self._truth.sleeps
        assert excused, f"{self.name}: a scan is broken off: {broken}"
        return broken

    @contextmanager
    def _answering(self) -> Iterator[None]:
        self.answering += 1
        try:
            yield
        finally:
            self.answering -= 1

    def freeze(self, seconds: float) -> None:
        """Stand still; what happens then is not noticed."""
        self.stood_still += 1
        self._world.tell(self.name, "freezes", seconds=seconds)
        self.process.frozen_until_s = self._world.now_s() + seconds

    def _freeze_if_meant(self) -> None:
        if self.meant_s:
            self.soon_s, self.meant_s = self.meant_s, 0.0

    def _freeze_if_soon(self) -> None:
        # Not at once: what was seen is looked at once more, if that was long ago.
        if self.soon_s and self._world.chance(0.7):
            seconds, self.soon_s = self.soon_s, 0.0
            self.freeze(seconds)

    def die(self) -> None:
        """Stop at once; callers hear of it as of a broken connection."""
        self.process.alive = False
        for answer in self.waiting:
            answer.get_loop().call_later(self._world.random(), partial(_break, answer))


def _break(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(ConnectionError("simulated: the gateway has died"))


class SimGateways:
    """The gateways of a cluster, and what befalls them."""

    def __init__(self, world: World, start: Callable[[str], SimGateway]) -> None:
        self._world = world
        self._start = start
        self._births = 0
        self._serving: dict[int, SimGateway] = {}

    def start(self, count: int) -> None:
        """Start so many."""
        for place in range(count):
            self._place(place)

    def followed(self, _caller: str) -> SimGateway:
        """Return one of them, for a call."""
        return self._world.dice.choice([*self._serving.values()])

    @property
    def busy(self) -> bool:
        """Whether one of them may still write something."""
        return any(each.process.alive and each.answering for each in self._serving.values())

    def freeze(self) -> None:
        """Let one stand still, perhaps longer than everything that is waited for."""
        gateway = self.followed("")
        seconds = self._world.random() * FREEZE_MAX_S
        if gateway.process.frozen_until_s > self._world.now_s():
            return
        if self._world.chance(0.7):
            gateway.meant_s = seconds
        else:
            gateway.freeze(seconds)

    def kill(self) -> None:
        """Let one die; another one takes its place."""
        place = self._world.dice.choice([*self._serving])
        gateway = self._serving[place]
        if gateway.process.alive:
            self._world.tell(gateway.name, "dies")
            gateway.die()
            later_s = self._world.random() * RESTART_MAX_S
            self._world.process("starter").call_later(later_s, self._place, place)

    def _place(self, place: int) -> None:
        self._births += 1
        self._serving[place] = self._start(f"gate{self._births}")


def settings_of(settings: Settings) -> Settings:
    """Return settings of gateways in the cluster of these settings of a coordinator."""
    return Settings(
        coordinator=settings.coordinator, gateway=GatewaySettings(locations=("file:///sim",))
    )
