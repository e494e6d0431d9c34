"""The publication of outputs in the log of a Delta table, beside other writers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from common.control_settings import CatalogSettings
from common.errors import UnavailableError
from common.lake.mirror import mirrored_file
from common.lake.open import open_source
from common.lake.source import Answer, Commit, TableSource
from common.metadata.changes import CommitAttempt, MirrorFiles, ReleaseAttempt
from common.model.file import MirroredFiles
from common.model.outcome import AttemptEnd, RefusalCode
from common.model.table import Table
from common.model.tablet import PLUS_INFINITY, TabletId
from compactor.core import CommitApplied, CommitRefused
from compactor.lake_commit import LakePublisher
from compactor.service import TableStorage
from tests.support.delta_tables import DeltaTable
from tests.support.lake_attempts import (
    Rewritten,
    assignment_of,
    rewrite,
    service_table,
    snapshot_of,
)
from tests.support.memory_store import MemoryKeyspace
from tests.support.predictable import ManualClock
from tests.support.requests import tablet_of
from tests.support.store_harness import Harness, applied, reserve

pytestmark = pytest.mark.anyio

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Interposed:
    """A Delta source with something that happens around its sends."""

    inner: TableSource
    before: Callable[[], None] = lambda: None
    after: Callable[[Answer], Answer] = lambda answer: answer
    sends: list[Commit] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def send(self, commit: Commit) -> Answer:
        self.sends.append(commit)
        self.before()
        return self.after(self.inner.send(commit))


class Stage:
    """A Delta table of 30 rows in three files, mirrored, with a reserved job over all of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.delta = DeltaTable.create(folder / "sales", SCHEMA)
        self.paths = [self.append(n * 10, 10) for n in range(3)]
        clock = ManualClock()
        self.harness = Harness("memory", MemoryKeyspace(clock), clock)
        self.clock = clock
        self.notes: list[str] = []
        self.source = Interposed(open_source("delta", self.delta.folder.as_uri(), {}))
        self.publisher = self.new_publisher()
        self.table: Table
        self.tablet: TabletId

    def new_publisher(self) -> LakePublisher:
        """Return one of another process."""
        return LakePublisher(
            store=self.harness.store,
            files=TableStorage(self.harness.store.store_id, self.clock),
            clock=self.clock,
            log=lambda event, **_: self.notes.append(event),
            catalog=CatalogSettings(),
            sources=lambda *_: self.source,  # type: ignore[arg-type, return-value]  # by attributes
        )

    def append(self, first: int, count: int) -> str:
        """Append a file of rows."""
        ids = pa.array(range(first, first + count))
        return self.delta.append(pa.table({"id": ids, "text": [f"row {n}" for n in ids]}))

    async def begin(self) -> None:
        """Attach and mirror the table."""
        made = service_table(self.delta)
        self.table = await self.harness.table(
            splits=(),
            key=(),
            version_column=None,
            lake=made.lake,
            location=made.location,
            schema=made.schema,
        )
        self.tablet = TabletId(self.table.id, PLUS_INFINITY)
        head = snapshot_of(self.delta)
        came = tuple(map(mirrored_file, head.files.values()))
        applied(
            await self.harness.apply(
                MirrorFiles(
                    table=self.table.id,
                    after="",
                    token="t1",
                    version=head.version,
                    files={self.tablet.end: MirroredFiles(came=came, went=())},
                )
            )
        )

    async def rewritten(
        self, attempt: str = "att-1", paths: Iterable[str] = (), outputs: int = 1
    ) -> tuple[Any, CommitAttempt, Rewritten]:
        """Reserve files, and rewrite them."""
        paths = sorted(paths or self.paths)
        change = replace(
            reserve(self.tablet, attempt, *paths),
            output_prefix=f"neve-{attempt}",
            outputs_max=outputs,
        )
        reservation = applied(await self.harness.apply(change)).reservation
        assert reservation is not None
        made = assignment_of(self.delta, paths, attempt=attempt, outputs=outputs, table=self.table)
        assignment = replace(made, reservation=reservation)
        result = rewrite(assignment, self.folder / attempt)
        commit = CommitAttempt(
            tablet=self.tablet, attempt=attempt, outputs=result.files, counts=result.counts
        )
        return assignment, commit, result

    async def publish(
        self, work: tuple[Any, CommitAttempt, Rewritten]
    ) -> CommitApplied | CommitRefused:
        """Publish a rewrite."""
        assignment, commit, result = work
        return await self.publisher.publish(assignment, commit, result.packed)

    @property
    def ids(self) -> list[int]:
        """The ids of all rows of the head."""
        return [row["id"] for row in self.delta.rows()]

    async def end_of(self, attempt: str = "att-1") -> AttemptEnd | None:
        """Return how an attempt ended, according to the store."""
        mark = await self.harness.store.outcome(self.table.id, attempt)
        return None if mark is None else mark.end


@pytest.fixture
async def stage(tmp_path: Path) -> Stage:
    made = Stage(tmp_path)
    await made.begin()
    return made


async def test_outputs_replace_inputs_in_the_log(stage: Stage) -> None:
    stage.delta.delete([3, 11])
    work = await stage.rewritten()
    version = stage.delta.version
    answer = await stage.publish(work)
    assert isinstance(answer, CommitApplied), answer
    assert list(stage.delta.live()) == ["neve-att-1-0.parquet"]
    assert stage.ids == [row for row in range(30) if row not in {3, 11}]
    assert stage.delta.version == version + 1
    (mirror,) = await stage.harness.store.mirrors([stage.table.id])
    assert mirror.committed == version + 1
    assert await stage.end_of() is AttemptEnd.COMMITTED
    assert not (await tablet_of(stage.harness, stage.tablet)).running
    # Older versions still name the inputs.
    assert len(stage.delta.rows(version)) == 28
    assert await stage.harness.store.garbage(stage.table.id) == []


async def test_rows_deleted_meanwhile_stay_deleted(stage: Stage) -> None:
    stage.delta.delete([3])
    work = await stage.rewritten()
    stage.delta.delete([0, 3, 4, 29])
    stage.append(100, 5)
    assert isinstance(await stage.publish(work), CommitApplied)
    gone = {0, 3, 4, 29}
    assert stage.ids == [*(row for row in range(30) if row not in gone), *range(100, 105)]
    assert len(stage.delta.live()) == 2


async def test_an_output_whose_input_was_rewritten_is_dropped_and_the_other_commits(
    stage: Stage,
) -> None:
    work = await stage.rewritten(outputs=2)
    first, second = work[2].result.outputs
    rows = {path: n for n, path in enumerate(stage.paths)}
    stage.delta.delete_by_copy([10 * rows[first.inputs[0]]])
    answer = await stage.publish(work)
    assert isinstance(answer, CommitApplied), answer
    assert [file.path for file in answer.outputs or ()] == [second.path]
    assert second.path in stage.delta.live()
    assert first.path not in stage.delta.live()
    assert stage.ids == [row for row in range(30) if row != 10 * rows[first.inputs[0]]]
    assert [entry.path for entry in await stage.harness.store.garbage(stage.table.id)] == [
        first.path
    ]


async def test_nothing_is_sent_when_every_input_was_rewritten(stage: Stage) -> None:
    work = await stage.rewritten()
    stage.delta.delete_by_copy([0, 10, 20])
    answer = await stage.publish(work)
    assert isinstance(answer, CommitRefused), answer
    assert (answer.code, answer.sent) == (RefusalCode.CONFLICTED, False)
    assert stage.source.sends == []
    assert stage.ids == [row for row in range(30) if row not in {0, 10, 20}]


async def test_an_attempt_without_reservation_does_not_send(stage: Stage) -> None:
    work = await stage.rewritten()
    applied(
        await stage.harness.apply(
            ReleaseAttempt(
                tablet=stage.tablet, attempt="att-1", end=AttemptEnd.LOST, cause="it was silent"
            )
        )
    )
    answer = await stage.publish(work)
    assert isinstance(answer, CommitRefused), answer
    assert (answer.code, answer.sent) == (RefusalCode.RELEASED, False)
    assert stage.source.sends == []


async def test_an_attempt_without_its_outputs_does_not_send(stage: Stage) -> None:
    work = await stage.rewritten()
    (stage.delta.folder / "neve-att-1-0.parquet").unlink()
    assert isinstance(await stage.publish(work), CommitRefused)
    assert stage.source.sends == []


async def test_an_old_attempt_does_not_send(stage: Stage) -> None:
    work = await stage.rewritten()
    stage.clock.advance(25 * 3600)
    assert isinstance(await stage.publish(work), CommitRefused)
    assert stage.source.sends == []


async def test_a_lost_answer_is_looked_up(stage: Stage) -> None:
    work = await stage.rewritten()

    def lost(_answer: Answer) -> Answer:
        raise UnavailableError("the answer is lost")

    stage.source.after = lost
    answer = await stage.publish(work)
    assert isinstance(answer, CommitApplied), answer
    assert len(stage.source.sends) == 1
    assert stage.ids == list(range(30))


async def test_another_writer_is_faster(stage: Stage) -> None:
    work = await stage.rewritten()
    news = iter(range(100, 103))

    def other_writer() -> None:
        for row in news:
            stage.append(row, 1)
            return

    stage.source.before = other_writer
    assert isinstance(await stage.publish(work), CommitApplied)
    assert len(stage.source.sends) == 4
    assert stage.ids == [*range(30), 100, 101, 102]


async def test_two_attempts_of_one_table_both_commit(stage: Stage) -> None:
    first = await stage.rewritten("att-1", stage.paths[:2])
    second = await stage.rewritten("att-2", stage.paths[2:])
    other = stage.new_publisher()
    answers = await asyncio.gather(
        stage.publish(first), other.publish(second[0], second[1], second[2].packed)
    )
    assert all(isinstance(answer, CommitApplied) for answer in answers), answers
    assert stage.ids == list(range(30))
    assert set(stage.delta.live()) == {"neve-att-1-0.parquet", "neve-att-2-0.parquet"}


async def test_an_attempt_is_published_once(stage: Stage) -> None:
    work = await stage.rewritten()
    assert isinstance(await stage.publish(work), CommitApplied)
    again = await stage.new_publisher().publish(work[0], work[1], work[2].packed)
    assert isinstance(again, CommitRefused)
    assert len(stage.source.sends) == 1
    assert stage.ids == list(range(30))


async def test_inputs_without_live_rows_are_removed(stage: Stage) -> None:
    stage.delta.delete(range(30))
    work = await stage.rewritten()
    assert work[1].outputs == ()
    assert isinstance(await stage.publish(work), CommitApplied)
    assert stage.delta.live() == {}
