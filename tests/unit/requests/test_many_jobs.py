"""One request and many jobs, many files, many other requests; through the shell over memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from common.model.job import Kind
from common.model.outcome import AttemptEnd
from common.model.request import KeyRange, RequestState, TabletProgress
from common.model.table import TableSettings
from common.model.tablet import PLUS_INFINITY, TabletId
from tests.support.request_shell import (
    SPLITS,
    TABLE,
    Cluster,
    Shell,
    cancelling,
    ended,
    filled,
    run,
    until,
)

pytestmark = pytest.mark.unit

LAST = TabletId(TABLE.id, PLUS_INFINITY)


def names(count: int, stem: str = "f") -> list[str]:
    return [f"{stem}{number}" for number in range(count)]


async def selected(count: int, **settings: object) -> Cluster:
    """Return a cluster with one tablet of so many files, of which a request wants all."""
    cluster = Cluster()
    table = replace(TABLE, settings=TableSettings(**settings))  # type: ignore[arg-type]  # by name
    await cluster.create(table, splits=())
    await cluster.add(PLUS_INFINITY, *names(count))
    await cluster.submit("r1")
    return cluster


def test_five_jobs_of_one_tablet_run_at_the_same_time() -> None:
    async def story() -> None:
        cluster = await selected(50, max_files=10)
        async with cluster.coordinator() as it:
            await until(lambda: queued(it, 5))
            jobs = [await it.take() for _ in range(5)]
            assert await it.take(wait_max_s=0.05) is None
            running = (await cluster.tablet()).running.values()
            assert {(entry.kind, entry.request) for entry in running} == {(Kind.USER, "r1")}
            inputs = Counter(path for entry in running for path in entry.inputs)
            assert inputs == Counter(f"{name}.parquet" for name in names(50))
            for job in reversed(jobs):
                assert job is not None
                await it.commit(job)
            assert await it.finish("r1") is RequestState.DONE
            ends = Counter(entry.end for entry in await cluster.store.history("t1"))
            assert ends["committed"] == 6

    run(story())


async def queued(it: Shell, count: int) -> bool:
    kinds = [each.job.kind for each in it.parts.state.queued(None, 100, 0.0)]
    return kinds == [Kind.USER] * count


def test_jobs_are_planned_until_all_of_172_files_are_processed() -> None:
    async def story() -> None:
        cluster = await selected(172, max_files=10)
        async with cluster.coordinator() as it:
            await until(cluster.selected)
            assert await it.finish("r1") is RequestState.DONE
        (file,) = (await cluster.tablet()).files.values()
        assert (file.request, file.rows) == ("r1", 1720)
        done = await cluster.store.history("t1", 1000)
        history = [entry for entry in done if entry.end == "committed"]
        assert max(len(entry.inputs) for entry in history) == 10
        merged = Counter(path for entry in history for path in entry.inputs)
        assert {merged[f"{name}.parquet"] for name in names(172)} == {1}

    run(story())


def test_a_request_ends_though_files_never_stop_coming() -> None:
    async def story() -> None:
        cluster = await selected(30, max_files=10)
        come = 0
        own = {f"{name}.parquet" for name in names(30)}
        async with cluster.coordinator() as it:
            await until(cluster.selected)
            while not (await cluster.request("r1")).state.ended:
                # Three files for every job: more than are merged.
                await cluster.add(PLUS_INFINITY, *names(3, f"new{come}-"))
                come += 3
                taken = await it.take(wait_max_s=0.05)
                if taken is None:
                    continue
                if taken.job.kind is Kind.USER:
                    assert own.issuperset(taken.job.inputs)
                    own.add(taken.reservation.output_path(0))
                await it.commit(taken)
            assert await ended(cluster, "r1") is RequestState.DONE
        files = (await cluster.tablet()).files.values()
        assert sum(file.rows for file in files) == 10 * (30 + come)
        assert [file.rows for file in files if file.request == "r1"] in ([300], [])

    run(story())


def test_three_requests_at_once_over_overlapping_ranges_are_each_their_own() -> None:
    async def story() -> None:
        cluster = await filled()
        wanted = {
            "r1": KeyRange(until=SPLITS[1]),
            "r2": KeyRange(SPLITS[0] + b"\x01"),
            "r3": KeyRange(),
        }
        async with cluster.coordinator() as it:
            for request, keys in wanted.items():
                await cluster.submit(request, range=keys)
                cluster.clock.advance(1)
            await until(cluster.selected)
            owners = [tablet.selection for tablet in await cluster.tablets()]
            assert [owner and owner.request for owner in owners] == ["r1", "r1", "r2"]
            assert {each.reason for each in await cluster.progress("r3")} == {
                "request r1 has precedence here",
                "request r2 has precedence here",
            }
            await it.work("r1", "r2", "r3")
            for request in wanted:
                assert await ended(cluster, request) is RequestState.DONE

        history = await cluster.store.history("t1", 1000)
        commits = Counter(entry.tablet for entry in history if entry.end == "committed")
        assert [count for _, count in sorted(commits.items())] == [2, 3, 2]
        files = [file for tablet in await cluster.tablets() for file in tablet.files.values()]
        assert {file.request for file in files} == {"r3"}

    run(story())


def test_a_request_that_is_cancelled_leaves_the_others_alone() -> None:
    async def story() -> None:
        cluster = await filled()
        async with cluster.coordinator() as it:
            for request in ("r1", "r2", "r3"):
                await cluster.submit(request)
                cluster.clock.advance(1)
            await until(cluster.selected)
            assert await it.take() is not None
            await cluster.apply(cancelling("r1"))
            it.held.clear()
            await until(lambda: over(cluster))
            await it.work("r2", "r3")
            states = [(await cluster.request(each)).state for each in ("r1", "r2", "r3")]
            done = RequestState.DONE
            assert states == [RequestState.CANCELLED, done, done]
            last = await cluster.progress("r3")
            assert [here.state for here in last] == [TabletProgress.DONE] * 3

    async def over(cluster: Cluster) -> bool:
        return (await cluster.request("r1")).state.ended

    run(story())


def test_explain_names_files_held_by_the_table_s_own_selector() -> None:
    async def story() -> None:
        cluster = Cluster()
        settings = TableSettings(selector="all")
        await cluster.create(replace(TABLE, settings=settings), splits=())
        await cluster.add(PLUS_INFINITY, "a", "b")
        async with cluster.coordinator() as it:
            await until(cluster.selected)
            (request,) = await cluster.store.requests("t1")
            says = (
                f"request {request.id} (made by the table's selector) holds 2 files, "
                "0 of them made by its 0 completed jobs"
            )

            async def told() -> bool:
                now_s = cluster.clock.now_s()
                return says in it.parts.state.explain(LAST, now_s).sentences

            await until(told)
            assert await it.finish(request.id) is RequestState.DONE

    run(story())


def test_a_job_that_fails_three_times_is_tried_again_until_the_request_is_done() -> None:
    async def story() -> None:
        cluster = await selected(30, max_files=40)
        async with cluster.coordinator() as it:
            for _ in range(3):
                failed = await it.take()
                assert failed is not None
                it.report(failed, AttemptEnd.FAILED, "no luck")
                assert await it.take(wait_max_s=0.02) is None, "it is tried again at once"
                cluster.clock.advance(20)
            assert await it.finish("r1") is RequestState.DONE
        tablet = await cluster.tablet()
        ends = Counter(entry.end for entry in await cluster.store.history("t1"))
        assert (ends["failed"], ends["committed"]) == (3, 1)
        assert not tablet.running
        assert [file.rows for file in tablet.files.values()] == [300]

    run(story())
