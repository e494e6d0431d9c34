"""A cluster of `request_shell` whose files have rows, for splits and merges.

Rows are (key, number); a job's outputs have all rows of its inputs, cut where it cuts. So
a test can tell that every row that was ever added is in exactly one visible file.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from common.metadata.changes import (
    AddFiles,
    Applied,
    BeginOperation,
    Change,
    CommitAttempt,
    Outcome,
    Refused,
)
from common.model.file import DataFile
from common.model.outcome import AttemptEnd, RowCounts
from common.model.table import TableSettings
from common.model.tablet import OperationKind, Tablet, TabletId
from common.runtime import call_id
from common.wire import Assignment
from tests.support.patience import PATIENCE_S
from tests.support.request_shell import TABLE, Cluster, Shell

Row = tuple[bytes, int]


def key(number: int) -> bytes:
    """Return a key: one byte above zero and below the end of the last tablet."""
    return bytes([number])


@dataclass
class Land(Cluster):
    """A cluster with one table of one tablet, and the rows of every file ever written."""

    rows: dict[str, tuple[Row, ...]] = field(default_factory=dict)
    added: int = 0
    files_added: int = 0

    async def found(self, splits: tuple[bytes, ...] = (), **settings: object) -> None:
        """Make the table."""
        chosen = TableSettings(**settings)  # type: ignore[arg-type]  # settings by name
        await self.create(replace(TABLE, settings=chosen), splits)

    async def append(self, *keys: int, size_bytes: int = 100) -> bool:
        """Add one file per tablet with rows of these keys; return whether it was taken."""
        for _ in range(20):
            cuts = await self.cuts()
            parts: dict[tuple[bytes, bytes], list[Row]] = {}
            for number, value in enumerate(sorted(keys)):
                place = next(cut for cut in cuts if key(value) <= cut[0])
                parts.setdefault(place, []).append((key(value), self.added + number))
            files: dict[bytes, tuple[DataFile, ...]] = {}
            for (_, end), rows in parts.items():
                made = self.file(f"added-{self.files_added}", rows, size_bytes)
                self.files_added += 1
                files[end] = (*files.get(end, ()), made)
            change = AddFiles(table="t1", call=call_id(self.clock), files=files)
            outcome = await self.store.apply(change)
            if isinstance(outcome, Applied):
                self.added += len(keys)
                return True
            assert isinstance(outcome, Refused), outcome
            assert outcome.code in {"operation", "bounds", "tablet", "crosses"}, outcome
            await asyncio.sleep(0)
        return False

    async def cuts(self) -> list[tuple[bytes, bytes]]:
        """Return up to which keys files may reach, each with the end of its tablet."""
        found: list[tuple[bytes, bytes]] = []
        for tablet in await self.tablets():
            operation = tablet.operation
            if operation is not None and operation.kind is OperationKind.SPLIT:
                assert operation.at is not None
                found.append((operation.at, tablet.id.end))
            found.append((tablet.id.end, tablet.id.end))
        return found

    def file(self, name: str, rows: list[Row], size_bytes: int) -> DataFile:
        """Return a file that is known to have these rows."""
        path = name if name.endswith(".parquet") else f"{name}.parquet"
        self.rows[path] = tuple(sorted(rows))
        return DataFile(
            path=path,
            size_bytes=size_bytes,
            rows=len(rows),
            key_min=min(rows)[0],
            key_max=max(rows)[0],
            added_at_s=self.clock.now_s(),
        )

    def commit_of(self, taken: Assignment) -> CommitAttempt:
        """Return the commit of a job: all rows of its inputs, cut where the job cuts."""
        reservation, cuts = taken.reservation, taken.job.cuts
        rows = [row for path in reservation.inputs for row in self.rows[path]]
        size = sum(file.size_bytes for file in taken.inputs)
        parts: list[list[Row]] = [[] for _ in range(len(cuts) + 1)]
        for row in rows:
            parts[sum(row[0] > cut for cut in cuts)].append(row)
        outputs = tuple(
            replace(
                self.file(reservation.output_path(number), part, size * len(part) // len(rows)),
                job=reservation.job,
                request=reservation.request,
            )
            for number, part in enumerate(parts)
            if part
        )
        counts = RowCounts(rows_in=len(rows), rows_out=len(rows))
        return CommitAttempt(
            tablet=taken.job.tablet, attempt=reservation.attempt, outputs=outputs, counts=counts
        )

    async def check(self) -> None:
        """Assert that every row is in exactly one visible file, which is in its tablet."""
        seen: Counter[int] = Counter()
        for tablet in await self.tablets():
            for file in tablet.files.values():
                seen.update(number for _, number in self.rows[file.path])
                assert file.key_min is not None
                assert file.key_max is not None
                assert tablet.bounds.holds(file.key_min, file.key_max), (tablet.bounds, file)
        assert seen == Counter(range(self.added))

    async def begin_split(self, at: int, end: bytes, name: str = "op1") -> Outcome:
        """Ask for a split, as a user does."""
        return await self.store.apply(
            BeginOperation(
                kind=OperationKind.SPLIT,
                tablets=(TabletId("t1", end),),
                operation=name,
                at=key(at),
                reason="a user asked for it",
            )
        )

    async def begin_merge(self, left: bytes, right: bytes, name: str = "op1") -> Outcome:
        """Ask for a merge, as a user does."""
        tablets = (TabletId("t1", left), TabletId("t1", right))
        change = BeginOperation(kind=OperationKind.MERGE, tablets=tablets, operation=name)
        return await self.store.apply(change)

    async def operating(self) -> list[Tablet]:
        """Return the tablets with an operation."""
        return [tablet for tablet in await self.tablets() if tablet.operation is not None]

    async def ends(self) -> list[bytes]:
        """Return the ends of all tablets."""
        return [tablet.id.end for tablet in await self.tablets()]

    async def is_free(self) -> bool:
        """Return whether no split or merge is under way."""
        return not await self.operating()


async def work(land: Land, it: Shell, done: Callable[[], Awaitable[bool]]) -> None:
    """Take and commit jobs until something is so."""
    async with asyncio.timeout(PATIENCE_S):
        while not await done():
            taken = await it.take(wait_max_s=0.02)
            if taken is not None:
                await finish(land, it, taken)


async def finish(land: Land, it: Shell, taken: Assignment) -> bool:
    """Commit a job that was taken, and report it; return whether the store took it."""
    outcome = await land.store.apply(land.commit_of(taken))
    committed = isinstance(outcome, Applied)
    it.report(taken, AttemptEnd.COMMITTED if committed else AttemptEnd.LOST)
    return committed


async def fail(it: Shell, taken: Assignment) -> None:
    """Let a job fail."""
    it.report(taken, AttemptEnd.FAILED, "a.parquet is no Parquet file")


def hangs_at(
    land: Land, kind: type[Change], number: int, *, applied: bool
) -> tuple[asyncio.Event, Callable[[], None]]:
    """Let whoever makes a change of a kind hang there, before or after it was made.

    Args:
        land: Whose store.
        kind: Of the change.
        number: Which of them, from 0.
        applied: Whether it is made first.

    Returns:
        What is set when somebody hangs, and what ends the spell.
    """
    there, plain, count = asyncio.Event(), land.store.apply, [0]

    async def apply(change: Change) -> Outcome:
        if not isinstance(change, kind):
            return await plain(change)
        count[0] += 1
        if count[0] != number + 1:
            return await plain(change)
        if applied:
            await plain(change)
        there.set()
        await asyncio.Event().wait()
        raise AssertionError("it is killed there")

    land.store.apply = apply  # type: ignore[method-assign]  # only until the spell ends

    def heal() -> None:
        land.store.apply = plain  # type: ignore[method-assign]  # as it was

    return there, heal
