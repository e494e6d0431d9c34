"""Jobs that rewrite nothing, moves and drops, told again and again: somebody dies at each change.

A compactor that dies at its own change has made it and is not heard; one that dies at the change
before has not made it. So each change of a story is once the last before a death and once the
first after it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from common.metadata.changes import AddFiles, Applied, CommitAttempt, RetagFiles
from common.metadata.store_values import HistoryEntry
from common.model.file import DataFile
from common.model.job import JobAction
from common.model.outcome import RowCounts
from common.model.table import Column, Table, TableSettings
from common.model.tablet import PLUS_INFINITY, Tablet
from common.runtime import call_id
from common.wire import Assignment
from tests.support.fast_and_slow import first_fast
from tests.support.mortal import COMPACTOR, COORDINATOR, MortalCluster
from tests.support.patience import PATIENCE_S
from tests.support.request_shell import TABLE, commit_of

pytestmark = pytest.mark.sim

VICTIMS = first_fast(1, [(COORDINATOR, COMPACTOR), (COORDINATOR,), (COMPACTOR,)])
CHANGES_MAX = 60
"""More than a story has."""
ROWS = 10
"""Of each file that comes."""


@dataclass
class Story(MortalCluster):
    """A table whose files come in steps; after each step something is waited for."""

    rows: int = 0
    """Of all files that came."""

    def ending_of(self, held: Assignment) -> CommitAttempt | RetagFiles:
        """Return the end of a move, of a drop, or of a rewrite whose output has its tags."""
        tablet, attempt = held.job.tablet, held.reservation.attempt
        if held.job.action == JobAction.MOVE:
            return RetagFiles(
                tablet=tablet,
                attempt=attempt,
                inputs=held.job.inputs,
                tags=held.job.output_tags,
            )
        if held.job.action == JobAction.DROP:
            rows = sum(file.rows for file in held.inputs)
            counts = RowCounts(rows_in=rows, expired_dropped=rows)
            return CommitAttempt(
                tablet=tablet,
                attempt=attempt,
                outputs=(),
                counts=counts,
                inputs=held.reservation.inputs,
            )
        commit = commit_of(held)
        (output,) = commit.outputs
        return replace(commit, outputs=(replace(output, tags=held.job.output_tags),))

    async def come(self, **files: DataFile) -> None:
        """Add files in one call."""
        named = tuple(
            replace(file, path=f"{name}.parquet", added_at_s=self.clock.now_s())
            for name, file in files.items()
        )
        self.rows += sum(file.rows for file in named)
        change = AddFiles(table=TABLE.id, call=call_id(self.clock), files={PLUS_INFINITY: named})
        outcome = await self.store.apply(change)
        assert isinstance(outcome, Applied), outcome

    async def tell(
        self,
        table: Table,
        check: Callable[[Tablet], None],
        *steps: tuple[dict[str, DataFile], Callable[[Tablet], bool]],
    ) -> list[HistoryEntry]:
        """Tell the story to its end; return the attempts that have committed."""
        await self.create(table, splits=())
        async with self.living(), asyncio.timeout(PATIENCE_S):
            for files, goal in steps:
                await self.come(**files)
                while not goal(await self.tablet()) or self.held:
                    await self._look(check)
            while (await self.tablet()).running:
                await self._look(check)
        history = await self.store.history(TABLE.id, 1000)
        return [entry for entry in history if entry.end == "committed"]

    async def _look(self, check: Callable[[Tablet], None]) -> None:
        """Go on a little; no visible file may be garbage, and the check must hold."""
        await self.pulse()
        tablet = await self.tablet()
        gone = {entry.path for entry in await self.store.garbage(TABLE.id)}
        assert gone.isdisjoint(tablet.files), "what was moved is no garbage"
        check(tablet)


def at_each_change(tell: Callable[[Story], Awaitable[None]], victims: tuple[str, ...]) -> int:
    """Tell a story once for each of its changes, at which somebody dies; return their number."""

    async def told(at: int) -> bool:
        story = Story(deaths={at: victims})
        await asyncio.wait_for(tell(story), 2 * PATIENCE_S)
        assert story.taken_back == 0, "nobody's job was taken away"
        return story.changes >= at

    at = 1
    while asyncio.run(told(at)):
        at += 1
        assert at < CHANGES_MAX
    return at


# -------------------------------------------------------------------- Moves: files of a level


LEVELS = replace(
    TABLE,
    version_column="v",
    schema=(Column("x", "int64"), Column("v", "int64")),
    settings=TableSettings(planner="leveled", planner_options={"min_file": "0", "max_file": "100"}),
)


def keyed(first: int, last: int, version: int) -> DataFile:
    """Return a file of keys from one byte to another."""
    return DataFile(
        path="-",
        size_bytes=100,
        rows=ROWS,
        key_min=bytes([first]),
        key_max=bytes([last]),
        version_min=bytes([version]),
        version_max=bytes([version]),
    )


def levels_of(tablet: Tablet) -> list[str]:
    """Return the level of each file, in order."""
    return sorted(dict(file.tags).get("level", "") for file in tablet.files.values())


async def tell_of_levels(story: Story) -> None:
    """Two files move down a level; a third that overlaps both is merged with them there."""

    def check(tablet: Tablet) -> None:
        assert sum(file.rows for file in tablet.files.values()) == story.rows
        assert set(levels_of(tablet)) <= {"", "1"}
        sunk = sorted(
            (file.key_min, file.key_max)
            for file in tablet.files.values()
            if ("level", "1") in file.tags
        )
        assert all((left[1] or b"") < (right[0] or b"") for left, right in pairwise(sunk)), sunk

    committed = await story.tell(
        LEVELS,
        check,
        ({"a": keyed(0x10, 0x20, 1)}, lambda tablet: levels_of(tablet) == ["1"]),
        ({"b": keyed(0x40, 0x50, 1)}, lambda tablet: levels_of(tablet) == ["1", "1"]),
        ({"c": keyed(0x18, 0x48, 2)}, lambda tablet: levels_of(tablet) == ["1"]),
    )
    moves = Counter(path for entry in committed for path in entry.inputs if _is_move(entry))
    assert moves == Counter({"a.parquet": 1, "b.parquet": 1}), "each file moved once"
    (merge,) = [entry for entry in committed if not _is_move(entry)]
    assert merge.inputs == ("a.parquet", "b.parquet", "c.parquet")


def _is_move(entry: HistoryEntry) -> bool:
    return entry.inputs == entry.outputs


@pytest.mark.parametrize("victims", VICTIMS)
def test_files_move_once_whoever_dies_at_any_change(victims: tuple[str, ...]) -> None:
    assert at_each_change(tell_of_levels, victims) > 9


# ------------------------------------------------------------------ Drops: files that have expired


TTL_S = 600.0
SERIES = replace(
    TABLE,
    schema=(Column("n", "int64"),),
    key=(),
    time_column="n",
    settings=TableSettings(planner="time-window", planner_options={"window": "100s"}, ttl_s=TTL_S),
)


async def tell_of_expiry(story: Story) -> None:
    """Of five files three have expired; they go, and two of another window become one."""
    now_s = story.clock.now_s()

    def timed(age_s: float) -> DataFile:
        return DataFile(
            path="-", size_bytes=100, rows=ROWS, time_min_s=now_s - age_s, time_max_s=now_s - age_s
        )

    def check(tablet: Tablet) -> None:
        young = [each for each in tablet.files.values() if (each.time_max_s or 0) > now_s - TTL_S]
        assert sum(file.rows for file in young) == 2 * ROWS, "only what has expired goes"

    def rests(tablet: Tablet) -> bool:
        return len(tablet.files) == 2 and not tablet.running

    files = {f"old{number}": timed(5000.0 + number) for number in range(3)}
    files |= {"young0": timed(20.0), "young1": timed(20.0)}
    committed = await story.tell(SERIES, check, (files, rests))
    dropped = Counter(path for entry in committed for path in entry.inputs if not entry.outputs)
    assert dropped == Counter({f"old{number}.parquet": 1 for number in range(3)})
    assert sum(entry.expired_dropped for entry in committed) == 3 * ROWS


@pytest.mark.parametrize("victims", VICTIMS)
def test_what_has_expired_goes_once_whoever_dies_at_any_change(victims: tuple[str, ...]) -> None:
    assert at_each_change(tell_of_expiry, victims) > 3
