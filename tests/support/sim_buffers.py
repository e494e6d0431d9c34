"""Writers, flushes, compactions, splits and readers on one table, step by step from a seed.

Every round trip to the store waits for its turn, which the seed gives. Connections break, flushes
and writers die at any step, late `EXEC`s arrive at the end. A ledger knows what was acknowledged.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from common.errors import CompactionError
from common.metadata.changes import (
    AbandonOperation,
    Applied,
    BeginOperation,
    CommitAttempt,
    CreateTable,
    EndOperation,
    Refused,
    ReserveFiles,
    StepOperation,
)
from common.metadata.executor import RetryLimits
from common.metadata.store import TabletStore
from common.model.job import Kind
from common.model.key_values import KeyType
from common.model.keys import encode_key
from common.model.outcome import DroppedRows, RowCounts
from common.model.table import Column, Table, TableSettings
from common.model.tablet import OperationKind, OperationStep, TabletId
from common.parquet.buffered import FlushPorts, flush_table, is_buffered, read_buffer
from common.parquet.file_inspection import FileFacts
from common.rows.key_encoding import encode_column
from common.rows.row_facts import RowTally
from common.rows.rules import RowRules
from common.runtime import call_id
from tests.support.buffers import buffer_rows
from tests.support.flaky import Fault, FlakyKeyspace, Point
from tests.support.memory_store import MemoryKeyspace
from tests.support.predictable import CountedIds, ManualClock

SCHEMA = (
    Column("id", "int64"),
    Column("v", "int64"),
    Column("gone", "bool"),
    Column("row", "int64"),
)
KEYS = 12
CALL_TRIES_MAX = 6


class InlineThreads:
    """Runs storage work at once: the order of steps comes from the seed alone."""

    async def run(self, _location: str, work: Callable[..., Any], *args: Any) -> Any:
        return work(*args)


@dataclass
class Turns:
    """Gives the next step to one of those who wait for it."""

    dice: random.Random
    faults: float = 0.0
    waiting: list[asyncio.Future[None]] = field(default_factory=list)

    async def script(self, point: Point) -> Fault:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        await turn
        drawn = self.dice.random()
        if drawn >= self.faults:
            return Fault.NONE
        if point is not Point.EXEC:
            return Fault.LOST
        return self.dice.choice((Fault.LOST, Fault.APPLIED, Fault.LATE))

    async def pause(self, steps_max: int) -> None:
        """Wait for some turns, without a fault."""
        for _ in range(self.dice.randrange(steps_max)):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiting.append(turn)
            await turn

    def give(self) -> bool:
        """Let one go on; return whether there was one."""
        self.waiting = [turn for turn in self.waiting if not turn.done()]
        if not self.waiting:
            return False
        self.waiting.pop(self.dice.randrange(len(self.waiting))).set_result(None)
        return True


@dataclass
class Ledger:
    """What became of each row: its number is its identity."""

    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)


class BufferWorld:
    """One table and everybody who works on it."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.keyed = self.dice.random() < 0.7
        self.clock = ManualClock(1_700_000_000.0)
        self.shared = MemoryKeyspace(self.clock)
        self.turns = Turns(self.dice)
        self.ids = CountedIds(f"s{seed}")
        self.ledger = Ledger()
        self.files: dict[str, list[dict[str, Any]]] = {}
        self.flaky: list[FlakyKeyspace] = []
        self.seen: Counter[str] = Counter()
        self.version = 0
        self.table = Table(
            id="tbl-1",
            name="events",
            location="file:///nowhere",
            schema=SCHEMA,
            key=("id",) if self.keyed else (),
            version_column="v" if self.keyed else None,
            tombstone_column="gone" if self.keyed else None,
            settings=TableSettings(tombstone_retention_s=0.0, allow_late_data=False),
        )

    def store(self) -> TabletStore:
        """Return a store of one process, with a connection of its own."""
        keyspace = FlakyKeyspace(self.shared, self.turns.script)
        self.flaky.append(keyspace)

        async def sleep(_seconds: float) -> None:
            await asyncio.sleep(0)

        return TabletStore(
            keyspace,
            patience=RetryLimits(tries_max=5),
            sleep=sleep,
            chance=self.dice.random,
            new_store_id=lambda: "store-1",
        )

    def ports(self, store: TabletStore) -> FlushPorts:
        return FlushPorts(
            store=store,
            ids=self.ids,
            threads=InlineThreads(),  # type: ignore[arg-type]  # runs the same work
            write=self.write,
            look_max_s=1e6,
        )

    def write(self, table: Table, path: str, rows: pa.Table) -> FileFacts:
        tally = RowTally(RowRules.of(table))
        if table.key:
            rows = rows.sort_by([("id", "ascending"), ("v", "descending")])
        tally.see(rows, path)
        assert path not in self.files
        self.files[path] = rows.to_pylist()
        return FileFacts(
            path=path,
            size_bytes=100 * rows.num_rows,
            schema=rows.schema,
            rows=tally.facts(),
            key_types=RowRules.of(table).key_types,
            row_groups=1,
        )

    # ------------------------------------------------------------------------------ Who is there

    async def writer(self) -> None:
        """Write calls of some rows; a call without an answer is made again under its id."""
        store = self.store()
        for _ in range(self.dice.randint(2, 8)):
            await self.turns.pause(8)
            rows = [self.new_row() for _ in range(self.dice.randint(1, 4))]
            numbers = {row["row"] for row in rows}
            call, sent = call_id(self.clock), False
            for _ in range(CALL_TRIES_MAX):
                try:
                    outcome = await buffer_rows(
                        store, self.clock, self.table, rows, call=call, segment_bytes_max=300
                    )
                except CompactionError:
                    sent = True
                    continue
                if isinstance(outcome, Applied):
                    self.ledger.acknowledged |= numbers
                    self.seen["repeated calls"] += outcome.repeated
                    break
                sent |= not isinstance(outcome, Refused) or outcome.sent
                if isinstance(outcome, Refused) and outcome.code == "purged":
                    self.seen["late rows"] += 1
                    if not sent:
                        self.ledger.refused |= numbers
                    break

    def new_row(self) -> dict[str, Any]:
        self.version += 1
        number = len(self.ledger.rows)
        late = self.dice.random() < 0.2
        row = {
            "id": self.dice.randrange(KEYS),
            "v": self.dice.randrange(self.version) if late else self.version,
            "gone": self.keyed and self.dice.random() < 0.3,
            "row": number,
        }
        self.ledger.rows[number] = row
        return row

    async def flusher(self) -> None:
        store = self.store()
        for _ in range(6):
            await self.turns.pause(12)
            try:
                done = await flush_table(self.ports(store), self.table, 0)
                self.seen["flushes"] += done.segments
            except CompactionError:
                self.seen["flushes failed"] += 1

    async def compactor(self) -> None:
        """Replace all files of a tablet by one; drop the tombstones among its rows."""
        store = self.store()
        for number in range(6):
            await self.turns.pause(16)
            try:
                await self.compact(store, f"attempt-{self.ids.next('a')}-{number}")
            except CompactionError:
                self.seen["compactions failed"] += 1

    async def compact(self, store: TabletStore, attempt: str) -> None:
        tablets = await store.read_range(self.table.id)
        tablet = self.dice.choice(list(tablets))
        paths = tuple(sorted(tablet.files))
        if not paths:
            return
        reserve = ReserveFiles(
            tablet=tablet.id,
            attempt=attempt,
            job="job",
            kind=Kind.SYSTEM,
            inputs=paths,
            output_prefix=f"out/{attempt}",
            outputs_max=2,
            group="default",
            compactor="c",
        )
        if not isinstance(await store.apply(reserve), Applied):
            return
        rows = [row for path in paths for row in self.files[path]]
        kept, dropped = self.merged(rows) if self.keyed else (rows, [])
        outputs = []
        if kept:
            facts = self.write(
                self.table,
                f"out/{attempt}-0.parquet",
                pa.Table.from_pylist(kept, schema=ARROW),
            )
            outputs = [facts.data_file(added_at_s=self.clock.now_s())]
        commit = CommitAttempt(
            tablet=tablet.id,
            attempt=attempt,
            outputs=tuple(outputs),
            counts=RowCounts(rows_in=len(rows), rows_out=len(kept)),
            dropped=dropped_of(dropped),
            outside=(),
        )
        outcome = await store.apply(commit)
        if isinstance(outcome, Applied):
            self.seen["compactions"] += 1
            self.seen["drops"] += bool(dropped)
        elif isinstance(outcome, Refused):
            self.seen[f"commit refused: {outcome.code}"] += 1

    def merged(
        self, rows: list[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        newest = newest_rows(rows)
        dead = [row for row in newest.values() if row["gone"]]
        return [row for row in newest.values() if not row["gone"]], dead

    async def splitter(self) -> None:
        """Split and merge tablets, as far as files allow it; otherwise give up."""
        store = self.store()
        for _ in range(3):
            await self.turns.pause(16)
            try:
                await self.split_or_merge(store)
            except CompactionError:
                self.seen["operations failed"] += 1

    async def split_or_merge(self, store: TabletStore) -> None:
        tablets = sorted(await store.read_range(self.table.id), key=lambda tablet: tablet.id.end)
        operation = self.ids.next("op")
        if len(tablets) > 1 and self.dice.random() < 0.5:
            pair = (tablets[0].id, tablets[1].id)
            begin = BeginOperation(tablets=pair, kind=OperationKind.MERGE, operation=operation)
        else:
            at = encode_key((self.dice.randrange(1, KEYS),), (KeyType.INT,))
            tablet = next(tablet for tablet in tablets if tablet.id.end >= at)
            begin = BeginOperation(
                tablets=(tablet.id,), kind=OperationKind.SPLIT, operation=operation, at=at
            )
        if not isinstance(await store.apply(begin), Applied):
            return
        made = True
        for step in (OperationStep.DRAIN, OperationStep.CLOSE):
            change = StepOperation(tablets=begin.tablets, operation=operation, step=step)
            made = made and isinstance(await store.apply(change), Applied)
        end = EndOperation(tablets=begin.tablets, operation=operation)
        if made and isinstance(await store.apply(end), Applied):
            self.seen[begin.kind.value] += 1
        else:
            await store.apply(AbandonOperation(tablets=begin.tablets, operation=operation))

    async def reader(self) -> None:
        store = self.store()
        for _ in range(4):
            await self.turns.pause(12)
            before = set(self.ledger.acknowledged)
            try:
                rows = await self.read(store)
            except CompactionError:
                continue
            self.seen["reads"] += 1
            self.check(rows, before)

    async def read(self, store: TabletStore) -> list[dict[str, Any]]:
        """Return all rows, as a scan reads them."""
        while True:
            buffered = await read_buffer(store, self.table, InlineThreads())  # type: ignore[arg-type]  # the same
            tablets = await store.read_range(self.table.id)
            files = [row for tablet in tablets for path in tablet.files for row in self.files[path]]
            if await is_buffered(store, self.table, buffered):
                return [*files, *(row for rows in buffered.rows for row in rows.to_pylist())]
            self.seen["reads begun again"] += 1

    # ----------------------------------------------------------------------------------- Checks

    def check(self, rows: list[dict[str, Any]], acknowledged: set[int]) -> None:
        """Check what a reader that began when these rows were acknowledged has read."""
        numbers = Counter(row["row"] for row in rows)
        assert not [number for number, count in numbers.items() if count > 1], "doubled"
        assert not numbers.keys() & self.ledger.refused, "a refused row"
        if not self.keyed:
            lost = acknowledged - numbers.keys()
            assert not lost, f"lost: {lost}"
            return
        expected = newest_rows([self.ledger.rows[number] for number in acknowledged])
        visible = newest_rows(rows)
        for key, row in expected.items():
            newest = visible.get(key)
            if newest is None:  # Perhaps deleted meanwhile, and the delete dropped.
                assert any(
                    other["id"] == key and other["gone"] and other["v"] >= row["v"]
                    for other in self.ledger.rows.values()
                ), f"lost: {row}"
            else:  # A row that was written meanwhile may be newer.
                older = (newest["v"], newest["gone"]) < (row["v"], row["gone"])
                assert not older, f"{newest} has come back: {row} is newer"

    # ------------------------------------------------------------------------------------- Life

    async def live(self) -> Counter[str]:
        """Live until everybody is done, then come to rest; return what was met."""
        made = CreateTable(table=self.table, splits=())
        await self.by_itself(self.store().apply(made))
        stored = await self.by_itself(self.store().table(self.table.id))
        assert stored is not None
        self.table = stored
        self.turns.faults = self.dice.choice((0.0, 0.03, 0.1))
        kinds = [self.writer] * 3 + [self.flusher] * 2 + [self.reader]
        kinds += [self.compactor] + [self.splitter] * self.keyed
        tasks = [asyncio.ensure_future(kind()) for kind in kinds]
        mortal = tasks[:5]
        while not all(task.done() for task in tasks):
            await settled()
            if self.dice.random() < 0.004:
                self.seen["deaths"] += self.dice.choice(mortal).cancel()
            if self.dice.random() < 0.05:
                self.clock.advance(1)
            if not self.turns.give():
                await asyncio.sleep(0)
        for task in tasks:
            if not task.cancelled():
                task.result()
        await self.come_to_rest()
        return self.seen

    async def by_itself(self, work: Awaitable[Any]) -> Any:
        task = asyncio.ensure_future(work)  # type: ignore[arg-type]  # a coroutine
        while not task.done():
            await settled()
            self.turns.give()
        return task.result()

    async def come_to_rest(self) -> None:
        """Without faults, every late EXEC arrives and the buffer ends flushed."""
        self.turns.faults = 0.0
        for keyspace in self.flaky:
            await keyspace.deliver()
        store = self.store()
        rows = await self.by_itself(self.read(store))
        self.check(rows, self.ledger.acknowledged)
        operations: dict[str, list[TabletId]] = {}
        for tablet in await self.by_itself(store.read_range(self.table.id)):
            if tablet.operation is not None:
                operations.setdefault(tablet.operation.operation_id, []).append(tablet.id)
        for operation, tablets in operations.items():
            abandon = AbandonOperation(tablets=tuple(tablets), operation=operation)
            await self.by_itself(store.apply(abandon))
        await self.by_itself(flush_table(self.ports(store), self.table, 0))
        (buffer,) = await self.by_itself(store.buffers([self.table.id]))
        assert not buffer.segments
        rows = await self.by_itself(self.read(store))
        self.check(rows, self.ledger.acknowledged)
        names = [key for key in sorted(self.shared.values.keys()) if ":rows" in key]
        assert names in ([], ["neve:{tbl-1}:rows"]), names


ARROW = pa.schema(
    [("id", pa.int64()), ("v", pa.int64()), ("gone", pa.bool_()), ("row", pa.int64())]
)


def newest_rows(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return key → the row that wins; a tombstone wins over a row of the same version."""
    newest: dict[int, dict[str, Any]] = {}
    for row in rows:
        present = newest.get(row["id"])
        if present is None or (row["v"], row["gone"]) > (present["v"], present["gone"]):
            newest[row["id"]] = row
    return newest


def dropped_of(rows: list[dict[str, Any]]) -> DroppedRows | None:
    """Return what a commit reports of dropped tombstones."""
    if not rows:
        return None
    keys = sorted(encode_key((row["id"],), (KeyType.INT,)) for row in rows)
    versions = encode_column(pa.array([row["v"] for row in rows]), KeyType.INT)
    return DroppedRows(
        spans=tuple((key, key) for key in keys), version_max=max(versions.to_pylist())
    )


async def settled() -> None:
    """Let everybody reach the next round trip."""
    for _ in range(12):
        await asyncio.sleep(0)


def lived(seeds: Iterable[int]) -> Counter[str]:
    """Live lives one after the other; return what was met.

    Raises:
        AssertionError: One failed; its seed is in the message.
    """
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            seen += asyncio.run(BufferWorld(seed).live())
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
    return seen
