"""Results of jobs correct the estimates of the next ones; a shadow planner follows the table."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from common.metadata.changes import ChangeTable, CommitAttempt
from common.model.outcome import AttemptEnd
from common.model.table import TableSettings
from common.model.tablet import PLUS_INFINITY
from common.wire import Assignment
from tests.support.request_shell import TABLE, Cluster, Shell, commit_of, run, until

pytestmark = pytest.mark.unit
T = TypeVar("T")


def with_estimates(taken: Assignment, size_bytes: int) -> CommitAttempt:
    """Return the commit of a job as a compactor sends it, with an output of this size."""
    commit, job = commit_of(taken), taken.job
    (output,) = commit.outputs
    return replace(
        commit,
        outputs=(replace(output, size_bytes=size_bytes),),
        expected_bytes=job.expected_bytes or job.input_bytes,
        expected_files=job.outputs_expected,
        expected_s=job.expected_s,
    )


async def merge_four(it: Shell, stem: str) -> Assignment:
    """Add four files and merge them to a quarter of their size, in two seconds."""
    cluster = it.cluster
    await cluster.add(PLUS_INFINITY, *(f"{stem}{number}" for number in range(4)))
    taken = await it.take()
    assert taken is not None
    cluster.clock.advance(2.0)
    await cluster.apply(with_estimates(taken, taken.job.input_bytes // 4))
    it.report(taken, AttemptEnd.COMMITTED)
    return taken


def test_what_jobs_wrote_corrects_the_estimates_of_the_next() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.create(splits=())
        async with cluster.coordinator() as it:
            first = await merge_four(it, "f")
            assert (first.job.expected_bytes, first.job.expected_s) == (0, 0.0)
            assert first.job.cost_bytes == 2 * first.job.input_bytes
            (entry,) = await cluster.store.history(TABLE.id)
            assert (entry.expected_bytes, entry.bytes_out) == (400, 100)
            assert (entry.expected_files, entry.expected_gain, entry.gain) == (1, 3, 3)
            await it.parts.corrections.read(TABLE.id)
            second = await merge_four(it, "g")
            share = 1 - 0.75 / 8
            assert second.job.expected_bytes == round(second.job.input_bytes * share)
            assert second.job.expected_s == pytest.approx(second.job.input_bytes / 200)
            assert second.job.cost_bytes == second.job.input_bytes + second.job.expected_bytes
            newest = (await cluster.store.history(TABLE.id))[0]
            assert newest.expected_s == second.job.expected_s
            await it.parts.corrections.read(TABLE.id)
            last = it.parts.explain((await cluster.tablet()).id, cluster.clock.now_s())
            assert any("bytes written 0.82" in sentence for sentence in last.sentences), last

    run(story())


def slowly(read: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
    """Return a read that other work overtakes."""

    async def read_later(*given: object) -> T:
        await asyncio.sleep(0.2)
        return await read(*given)

    return read_later


def test_another_coordinator_corrects_its_first_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.create(splits=())
        async with cluster.coordinator() as it:
            await merge_four(it, "f")
        await cluster.add(PLUS_INFINITY, *(f"g{number}" for number in range(4)))
        monkeypatch.setattr(cluster.store, "history", slowly(cluster.store.history))
        async with cluster.coordinator() as it:
            taken = await it.take()
            assert taken is not None
            assert taken.job.expected_bytes == round(taken.job.input_bytes * (1 - 0.75 / 8))
            assert taken.job.expected_s > 0
            explained = it.parts.explain(taken.job.tablet, cluster.clock.now_s())
            assert "bytes written 0.91" in explained.sentences[-1]

    run(story())


def test_a_commit_makes_the_history_be_read_again() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.create(splits=())
        async with cluster.coordinator() as it:
            asked: list[str] = []
            it.parts.scanner.on_committed.append(asked.append)
            await merge_four(it, "f")

            async def heard() -> bool:
                return asked == [TABLE.id]

            await until(heard)

    run(story())


def test_a_shadow_planner_starts_no_job_and_is_compared_from_when_it_was_set() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.create(splits=())
        await cluster.add(PLUS_INFINITY, "old")
        async with cluster.coordinator() as it:
            settings = TableSettings(
                ratio=50,
                file_limit=0,
                shadow_planner="ratio",
                shadow_planner_options={"ratio": "1.5"},
            )
            change = ChangeTable(table=TABLE.id, settings_version=1, settings=settings)
            await cluster.apply(change)

            async def begun() -> bool:
                return it.parts.shadow_plan(TABLE.id).begin_files == 1

            await until(begun)
            await cluster.add(PLUS_INFINITY, "new")

            async def planned() -> bool:
                return it.parts.shadow_plan(TABLE.id).shadow.jobs == 1

            await until(planned)
            found = it.parts.shadow_plan(TABLE.id)
            assert (found.first.jobs, found.first.files_left, found.files) == (0, 2, 2)
            assert (found.shadow.files_left, found.shadow.read_bytes) == (1, 200)
            assert await it.take(wait_max_s=0.05) is None

    run(story())
