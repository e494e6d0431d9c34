"""What contract tests of the metadata store need: stores, and short words for changes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from common.metadata.changes import (
    AddFiles,
    Applied,
    Change,
    CommitAttempt,
    CreateTable,
    Outcome,
    Refused,
    ReleaseAttempt,
    ReserveFiles,
)
from common.metadata.executor import RetryLimits
from common.metadata.keyspace import Command, Keyspace, Reply
from common.metadata.store import TabletStore
from common.model.file import DataFile
from common.model.job import Kind
from common.model.outcome import AttemptEnd, RowCounts
from common.model.table import Column, Filling, Table, TableState
from common.model.tablet import PLUS_INFINITY, TabletId
from common.runtime import Clock, RandomIds, call_id
from tests.support.flaky import FlakyKeyspace
from tests.support.predictable import CountedIds, ManualClock

MIDDLE = b"m"


def file(path: str, key_min: bytes = b"a", key_max: bytes = b"b", **fields: object) -> DataFile:
    """Return a file of a keyed table."""
    plain: dict[str, object] = {
        "size_bytes": 100,
        "rows": 10,
        "key_min": key_min,
        "key_max": key_max,
        "version_min": b"5",
        "version_max": b"6",
    }
    return DataFile(path=path, **(plain | fields))  # type: ignore[arg-type]  # any field


def applied(outcome: Outcome) -> Applied:
    """Return the outcome of a change that must have been made."""
    assert isinstance(outcome, Applied), outcome
    return outcome


def refused(outcome: Outcome, code: str) -> Refused:
    """Return the outcome of a change that must have been refused, for this reason."""
    assert isinstance(outcome, Refused), outcome
    assert outcome.code == code, outcome
    return outcome


@dataclass
class Harness:
    """One adapter under test. Tables are new in every test; the keyspace may be shared."""

    name: str
    keyspace: Keyspace
    clock: Clock
    tries_max: int = 16
    admin: Keyspace | None = None
    """The same keys for somebody who may do everything; None: `keyspace` may."""
    ids: RandomIds = field(default_factory=RandomIds)

    def __post_init__(self) -> None:
        self.store = self.another()

    @property
    def is_real(self) -> bool:
        """Whether servers hold the keys."""
        return self.name in {"redis", "cluster"}

    def another(self, keyspace: Keyspace | None = None) -> TabletStore:
        """Return one more store over the same keys, as another process would have."""

        async def sleep(seconds: float) -> None:
            await asyncio.sleep(min(seconds, 0.02) if self.is_real else 0)

        ids = CountedIds(self.ids.next("s"))
        return TabletStore(
            keyspace or self.keyspace,
            patience=RetryLimits(tries_max=self.tries_max),
            sleep=sleep,
            chance=lambda: 0.5,
            new_store_id=lambda: ids.next("store"),
        )

    def flaky(self) -> tuple[TabletStore, FlakyKeyspace]:
        """Return a store with a scripted connection to the same keys."""
        keyspace = FlakyKeyspace(self.keyspace)
        return self.another(keyspace), keyspace

    async def pass_time(self, seconds: float) -> None:
        """Let the store's time go on."""
        if isinstance(self.clock, ManualClock):
            self.clock.advance(seconds)
        else:
            await asyncio.sleep(seconds)

    async def read(self, command: Command) -> Reply:
        """Read a key as it is."""
        return (await (self.admin or self.keyspace).fetch([[command]]))[0][0]

    async def write(self, *effects: Command) -> None:
        """Write keys as they are, past every rule."""
        async with self.keyspace.session() as session:
            assert await session.execute(effects)

    async def keys(self, table: str) -> list[str]:
        """Return all keys of a table that do not expire."""
        if self.is_real:
            found = await self.read(("KEYS", f"neve:{{{table}}}:*"))
            lives = [await self.read(("PTTL", key)) for key in found]
            return sorted(
                key.decode() for key, life in zip(found, lives, strict=True) if life == -1
            )
        keyspace = self.keyspace
        while isinstance(keyspace, FlakyKeyspace):
            keyspace = keyspace._inner
        values = keyspace.values  # type: ignore[attr-defined]  # the memory keyspace
        every = values.keys()
        mine = (key for key in every if key.startswith(f"neve:{{{table}}}:"))
        return [key for key in mine if values.life_s(key) is None]

    async def table(self, *, splits: tuple[bytes, ...] = (MIDDLE,), **fields: object) -> Table:
        """Make a table; its first tablet ends at `MIDDLE`."""
        table = self.new_table(**fields)
        applied(await self.store.apply(CreateTable(table=table, splits=splits)))
        return table

    async def filling_table(self, **fields: object) -> Table:
        """Make a table that the run `r1` fills; its first tablet ends at `MIDDLE`."""
        filling = Filling(run="r1", verb="rebuild", files=2)
        return await self.table(**{"state": TableState.FILLING, "filling": filling} | fields)

    def new_table(self, **fields: object) -> Table:
        """Return a keyed table with a name and a location of its own."""
        table = self.ids.next("tbl")
        plain: dict[str, object] = {
            "id": table,
            "name": table,
            "location": f"file:///data/{table}",
            "schema": (Column("k", "int64"), Column("v", "int64")),
            "key": ("k",),
            "version_column": "v",
        }
        return Table(**(plain | fields))  # type: ignore[arg-type]  # any field

    async def add(self, tablet: TabletId, *files: DataFile, call: str | None = None) -> Outcome:
        """Add files to a tablet."""
        change = AddFiles(
            table=tablet.table, call=call or call_id(self.clock), files={tablet.end: files}
        )
        return await self.store.apply(change)

    async def tablet_with(self, *paths: str, **fields: object) -> TabletId:
        """Make a table and put files into its first tablet."""
        table = await self.table(**fields)
        tablet = TabletId(table.id, MIDDLE if fields.get("splits") != () else PLUS_INFINITY)
        if paths:
            applied(await self.add(tablet, *(file(path) for path in paths)))
        return tablet

    async def apply(self, change: Change) -> Outcome:
        """Apply a change."""
        return await self.store.apply(change)


def reserve(
    tablet: TabletId, attempt: str, *inputs: str, request: str | None = None
) -> ReserveFiles:
    """Return a reservation with one output `out/<attempt>-0.parquet` (or one more)."""
    return ReserveFiles(
        tablet=tablet,
        attempt=attempt,
        job="job-1",
        kind=Kind.USER if request else Kind.SYSTEM,
        inputs=inputs,
        output_prefix=f"out/{attempt}",
        outputs_max=2,
        group="default",
        compactor="c1",
        request=request,
    )


def commit(
    tablet: TabletId, attempt: str, *, outputs: int = 1, inputs: Sequence[str] = ()
) -> CommitAttempt:
    """Return a commit with so many outputs."""
    made = tuple(file(f"out/{attempt}-{number}.parquet") for number in range(outputs))
    counts = RowCounts(rows_in=20, rows_out=10 * outputs)
    return CommitAttempt(
        tablet=tablet, attempt=attempt, outputs=made, counts=counts, inputs=tuple(inputs)
    )


def release(
    tablet: TabletId, attempt: str, end: AttemptEnd = AttemptEnd.FAILED, **fields: str
) -> ReleaseAttempt:
    """Return a release."""
    return ReleaseAttempt(tablet=tablet, attempt=attempt, end=end, cause="out of luck", **fields)
