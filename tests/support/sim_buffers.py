"""Writers, flushes, compactions, splits and readers on one table, step by step from a seed.

Every round trip to the store waits for its turn, which the seed gives. Connections break, flushes
and writers die at any step, late `EXEC`s arrive at the end. Some lives have requests, pauses, a
drop, or a store that goes back in time (`sim_buffer_users`). A ledger knows what was acknowledged.

    python -m tests.support.sim_buffers 17 0-9999
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
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
from common.metadata.keys import TableKeys
from common.metadata.keyspace import Keyspace
from common.metadata.store import TabletStore
from common.model.file import DataFile
from common.model.job import Kind
from common.model.key_values import KeyType
from common.model.keys import encode_key
from common.model.outcome import DroppedRows, RowCounts
from common.model.table import Column, Table, TableSettings, TableState
from common.model.tablet import OperationKind, OperationStep, TabletId
from common.parquet import buffered
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
from tests.support.sim_buffer_users import (
    LOCATION,
    STORE_ID,
    Moment,
    Wish,
    accept,
    ask,
    count_up,
    drop,
    drop_rest,
    go_back,
    pause,
)
from tests.support.sim_run import seeds as seeds_of
from tests.support.sim_run import set_to

SCHEMA = (
    Column("id", "int64"),
    Column("v", "int64"),
    Column("gone", "bool"),
    Column("row", "int64"),
)
KEYS = 12
CALL_TRIES_MAX = 6
GENERATION_READ_SHARE = 0.3
"""How often a process looks at the generation of the location before its next step."""
BACK_AFTER_MAX, BACK_MAX = 250, 80
"""Turns before a store goes back in time, and those that it goes back, at most."""


class InlineThreads:
    """Runs storage work at once: the order of steps comes from the seed alone."""

    def with_threads(self, _threads: int) -> InlineThreads:
        return self

    def within(self, _deadline_s: float) -> InlineThreads:
        return self

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
    wishes: list[Wish] = field(default_factory=list)

    def may_be_deleted(self, row: dict[str, Any]) -> bool:
        """Return whether a request may have deleted a row."""
        return any(wish.may_delete(row) for wish in self.wishes)


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
        self.keys = KEYS
        self.threads = InlineThreads()
        self.generation = 0
        """Generation that was written to the location."""
        self.travels = 0
        """How often the store went back in time."""
        self.kept: list[dict[str, Any]] | None = None
        """The rows of the files of a table that is being dropped."""
        self.table = Table(
            id="tbl-1",
            name="events",
            location=LOCATION,
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
        return self._store_on(keyspace)

    def _store_on(self, keyspace: Keyspace) -> TabletStore:
        async def sleep(_seconds: float) -> None:
            await asyncio.sleep(0)

        return TabletStore(
            keyspace,
            patience=RetryLimits(tries_max=5),
            sleep=sleep,
            chance=self.dice.random,
            new_store_id=lambda: STORE_ID,
        )

    def ports(self, store: TabletStore) -> FlushPorts:
        return FlushPorts(
            store=store,
            ids=self.ids,
            threads=self.threads,  # type: ignore[arg-type]  # runs the same work
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
        store, generation = self.store(), self.generation
        for _ in range(self.dice.randint(2, 8)):
            await self.turns.pause(8)
            if self.dice.random() < GENERATION_READ_SHARE:
                generation = self.generation
            rows = [self.new_row() for _ in range(self.dice.randint(1, 4))]
            numbers = {row["row"] for row in rows}
            call, sent = call_id(self.clock), False
            for _ in range(CALL_TRIES_MAX):
                try:
                    outcome = await buffer_rows(
                        store,
                        self.clock,
                        self.table,
                        rows,
                        call=call,
                        generation=generation,
                        segment_bytes_max=300,
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
        store, generation = self.store(), self.generation
        for _ in range(6):
            await self.turns.pause(12)
            if self.dice.random() < GENERATION_READ_SHARE:
                generation = self.generation
            try:
                done = await flush_table(self.ports(store), self.table, generation)
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
        if not tablets:
            return
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
        commit = CommitAttempt(
            tablet=tablet.id,
            attempt=attempt,
            outputs=(self.output(attempt, kept),) if kept else (),
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

    def output(self, attempt: str, rows: list[dict[str, Any]]) -> DataFile:
        """Write the output of an attempt."""
        arrow = pa.Table.from_pylist(rows, schema=ARROW)
        facts = self.write(self.table, f"out/{attempt}-0.parquet", arrow)
        return facts.data_file(added_at_s=self.clock.now_s())

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
        if not tablets:
            return
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
            before, travels = set(self.ledger.acknowledged), self.travels
            done = [wish for wish in self.ledger.wishes if wish.done]
            try:
                rows = await self.read(store)
            except CompactionError:
                continue
            if travels == self.travels and self.kept is None:
                self.seen["reads"] += 1
                self.check(rows, before, done)

    async def read(self, store: TabletStore) -> list[dict[str, Any]]:
        """Return all rows, as a scan reads them."""
        while True:
            present = await read_buffer(store, self.table, self.threads)  # type: ignore[arg-type]  # the same
            tablets = await store.read_range(self.table.id)
            files = [row for tablet in tablets for path in tablet.files for row in self.files[path]]
            if await is_buffered(store, self.table, present):
                return [*files, *(row for rows in present.rows for row in rows.to_pylist())]
            self.seen["reads begun again"] += 1

    # ----------------------------------------------------------------------------------- Checks

    def check(
        self, rows: list[dict[str, Any]], acknowledged: set[int], done: Collection[Wish]
    ) -> None:
        """Check what a reader has read.

        Args:
            rows: The rows of all files, and those that are buffered.
            acknowledged: The rows that were acknowledged when it began.
            done: The requests that were done then.
        """
        numbers = Counter(row["row"] for row in rows)
        assert not [number for number, count in numbers.items() if count > 1], "doubled"
        assert not numbers.keys() & self.ledger.refused, "a refused row"
        visible = newest_rows(rows).values() if self.keyed else rows
        for row in visible:
            kept = not row["gone"] and any(wish.must_delete(row) for wish in done)
            assert not kept, f"not deleted by a request: {row}"
        expected = [self.ledger.rows[number] for number in acknowledged]
        if not self.keyed:
            missing = [row for row in expected if row["row"] not in numbers]
            lost = [row for row in missing if not self.ledger.may_be_deleted(row)]
            assert not lost, f"lost: {lost}"
            return
        present = {row["id"]: row for row in visible}
        for key, row in newest_rows(expected).items():
            newest = present.get(key)
            if newest is None:  # Perhaps deleted meanwhile, and the delete dropped.
                assert any(self._may_end(other, row) for other in self.ledger.rows.values()), (
                    f"lost: {row}"
                )
            else:  # A row that was written meanwhile may be newer.
                older = (newest["v"], newest["gone"]) < (row["v"], row["gone"])
                assert not older, f"{newest} has come back: {row} is newer"

    def _may_end(self, other: dict[str, Any], row: dict[str, Any]) -> bool:
        """Return whether a row may be, or may have become, a tombstone of another one's key."""
        is_dead = other["gone"] or self.ledger.may_be_deleted(other)
        return other["id"] == row["id"] and other["v"] >= row["v"] and is_dead

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
        tasks: list[asyncio.Future[None]] = [asyncio.ensure_future(kind()) for kind in kinds]
        mortal = tasks[:5]
        plan = self.dice.choice((self._plain, *(self._drops,) * 2, *(self._goes_back,) * 3))
        for who, share in ((ask, 0.4), (pause, 0.3)):
            if self.dice.random() < share:
                tasks.append(asyncio.ensure_future(who(self)))
        turns = plan(tasks)
        while not all(task.done() for task in tasks):
            await settled()
            if self.dice.random() < 0.004:
                self.seen["deaths"] += self.dice.choice(mortal).cancel()
            # No two changes of the store are made at the same time.
            self.clock.advance(1 if self.dice.random() < 0.05 else 0.001)
            next(turns, None)
            if not self.turns.give():
                await asyncio.sleep(0)
            await self._keep_dropped()
        for task in tasks:
            if not task.cancelled():
                task.result()
        await self.come_to_rest()
        return self.seen

    def _plain(self, _tasks: list[asyncio.Future[None]]) -> Iterator[None]:
        """Let nothing else happen."""
        yield from ()

    def _drops(self, tasks: list[asyncio.Future[None]]) -> Iterator[None]:
        """Let an operator drop the table."""
        tasks.append(asyncio.ensure_future(drop(self)))
        yield from ()

    def _goes_back(self, tasks: list[asyncio.Future[None]]) -> Iterator[None]:
        """Let the store go back in time, twice; that may be noticed, and is accepted then."""
        for _ in range(2):
            yield from (None for _ in range(self.dice.randrange(BACK_AFTER_MAX)))
            moment, is_noticed = Moment.now(self), self.dice.random() < 0.5
            if is_noticed:
                count_up(self)
            yield from (None for _ in range(self.dice.randrange(BACK_MAX)))
            go_back(self, moment)
            self.seen["stores that went back"] += 1
            if is_noticed:
                tasks.append(asyncio.ensure_future(accept(self)))

    async def _keep_dropped(self) -> None:
        """Note the rows in files when the table begins to be dropped: those are to be kept."""
        state = self.shared.values.hash(TableKeys(self.table.id).table).get(b"state")
        if self.kept is None and state == TableState.GOING.value.encode():
            tablets = await self._store_on(self.shared).read_range(self.table.id)
            self.kept = [row for one in tablets for path in one.files for row in self.files[path]]

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
        if self.kept is not None:
            self.check(self.kept, self.ledger.acknowledged, ())
            await self.by_itself(drop_rest(self, store))
            left = sorted(filter(is_of_buffer, self.shared.values.keys()))
            assert not left, left
            return
        if self.travels:
            await self.by_itself(accept(self))
        done = [wish for wish in self.ledger.wishes if wish.done]
        rows = await self.by_itself(self.read(store))
        self.check(rows, self.ledger.acknowledged, done)
        operations: dict[str, list[TabletId]] = {}
        for tablet in await self.by_itself(store.read_range(self.table.id)):
            if tablet.operation is not None:
                operations.setdefault(tablet.operation.operation_id, []).append(tablet.id)
        for operation, tablets in operations.items():
            abandon = AbandonOperation(tablets=tuple(tablets), operation=operation)
            await self.by_itself(store.apply(abandon))
        await self.by_itself(flush_table(self.ports(store), self.table, self.generation))
        (buffer,) = await self.by_itself(store.buffers([self.table.id]))
        assert not buffer.segments
        rows = await self.by_itself(self.read(store))
        self.check(rows, self.ledger.acknowledged, done)
        names = sorted(filter(is_of_buffer, self.shared.values.keys()))
        assert names in ([], ["neve:{tbl-1}:rows"]), names


ARROW = pa.schema(
    [("id", pa.int64()), ("v", pa.int64()), ("gone", pa.bool_()), ("row", pa.int64())]
)


def is_of_buffer(key: str) -> bool:
    """Return whether a key belongs to a buffer."""
    return ":rows" in key


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
    """Let everybody reach the next round trip, or their end."""
    loop: Any = asyncio.get_running_loop()
    while loop._ready:
        await asyncio.sleep(0)


def lived(seeds: Iterable[int]) -> Counter[str]:
    """Live lives one after the other; return what was met.

    Raises:
        AssertionError: One failed; its seed is in the message.
    """
    seen: Counter[str] = Counter()
    # Only the seed decides how long a flush waits for the end of a split.
    with set_to([(buffered, "WAIT_S", 0)]):
        for seed in seeds:
            try:
                seen += asyncio.run(BufferWorld(seed).live())
            except Exception as error:
                raise AssertionError(f"seed {seed}: {error!r}") from error
    return seen


def main(texts: Sequence[str]) -> int:
    """Live lives on this core, print what was met, and return 1 if one failed."""
    seen: Counter[str] = Counter()
    failed: list[str] = []
    for seed in (seed for text in texts for seed in seeds_of(text)):
        try:
            seen += lived([seed])
        except AssertionError as error:
            failed.append(str(error))
        seen["lives"] += 1
    for what, count in sorted(seen.items()):
        print(f"{count:10d} {what}")
    for text in failed:
        print(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
