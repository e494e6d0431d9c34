"""Requests from submit to the end, through the shell over the memory store."""

import asyncio

import pytest

from common.errors import UnavailableError
from common.metadata.changes import Change, MoveRequest, Outcome, SelectFiles
from common.model.job import BOOST_MAX, Kind
from common.model.request import KeyRange, RequestState, SelectorSpec, TabletProgress
from common.model.tablet import PLUS_INFINITY, TabletId
from tests.support.request_shell import ENDS, SPLITS, Cluster, ended, filled, run, until

pytestmark = pytest.mark.unit


def test_a_request_over_three_tablets_is_done() -> None:
    async def story() -> None:
        cluster = await filled()
        async with cluster.coordinator() as it:
            await cluster.submit("r1")
            assert await it.finish("r1") is RequestState.DONE
            for tablet in await cluster.tablets():
                (file,) = tablet.files.values()
                assert (file.request, file.size_bytes) == ("r1", 200)

    run(story())


def test_a_request_takes_the_tablets_of_its_range_only() -> None:
    async def story() -> None:
        cluster = await filled()
        async with cluster.coordinator() as it:
            await cluster.submit("r1", range=KeyRange(SPLITS[0] + b"\x05", SPLITS[1]))
            assert await it.finish("r1") is RequestState.DONE
            counts = [len(tablet.files) for tablet in await cluster.tablets()]
            assert counts == [2, 1, 2]

    run(story())


def test_a_request_waits_for_a_running_system_job() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.create(splits=())
        await cluster.add(PLUS_INFINITY, "a", "b", "c", "d")
        async with cluster.coordinator() as it:
            system = await it.take()
            assert system is not None
            assert system.job.kind is Kind.SYSTEM
            await cluster.submit("r1")

            async def waits() -> bool:
                return "r1" in (await cluster.tablet()).waiting

            await until(waits)
            await cluster.add(PLUS_INFINITY, "e", "f", "g", "h")
            assert await it.take(wait_max_s=0.1) is None
            await it.commit(system)
            await until(cluster.selected)
            seen = await cluster.tablet()
            assert seen.selection is not None
            assert set(seen.selection.files) == seen.files.keys()
            assert not seen.waiting
            assert await it.finish("r1") is RequestState.DONE

    run(story())


def test_files_that_come_later_never_join() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.create(splits=())
        await cluster.add(PLUS_INFINITY, "a", "b", "c")
        async with cluster.coordinator() as it:
            await cluster.submit("r1")
            user = await it.take()
            assert user is not None
            assert (user.job.kind, user.job.request) == (Kind.USER, "r1")
            assert user.request is not None
            await cluster.add(PLUS_INFINITY, "d", "e")
            await it.commit(user)
            assert await it.finish("r1") is RequestState.DONE
            assert set((await cluster.tablet()).files) == {
                user.reservation.output_path(0), "d.parquet", "e.parquet"
            }  # fmt: skip

    run(story())


def test_two_requests_over_the_same_files_take_turns_by_age() -> None:
    async def story() -> None:
        cluster = await filled()
        async with cluster.coordinator() as it:
            await cluster.submit("r1")
            cluster.clock.advance(1)
            await cluster.submit("r2")
            assert await it.finish("r2") is RequestState.DONE
            assert (await cluster.request("r1")).state is RequestState.DONE
            entries = reversed(await cluster.store.history("t1"))
            by_tablet: dict[TabletId, list[str]] = {}
            for entry in entries:
                (output,) = entry.outputs
                by_tablet.setdefault(entry.tablet, []).append(output)
            assert [len(outputs) for outputs in by_tablet.values()] == [2, 2, 2]
            for tablet in await cluster.tablets():
                assert {file.request for file in tablet.files.values()} == {"r2"}

    run(story())


def test_a_coordinator_that_dies_between_any_two_steps_is_followed_by_another() -> None:
    async def story() -> None:
        cluster = await filled(count=4)
        await cluster.submit("r1")
        for lives in range(100):
            async with cluster.coordinator() as it:
                await asyncio.sleep(0.002 * (lives % 5))
                # Longer and longer, so that on a busy machine, too, some life gets somewhere.
                taken = await it.take(wait_max_s=0.01 * (1 + lives // 10))
                if taken is not None:
                    await it.commit(taken)
            if (await cluster.request("r1")).state.ended and await cluster.is_clean():
                break
        assert (await cluster.request("r1")).state is RequestState.DONE
        assert await cluster.is_clean()

    run(story())


def test_a_store_that_is_silent_for_a_step_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        cluster = await filled()
        apply, silent = cluster.store.apply, {SelectFiles, MoveRequest}
        monkeypatch.setattr("coordinator.requests.RETRY_S", 0.01)
        monkeypatch.setattr("coordinator.requests.RETRY_S", 0.01)

        async def sometimes(change: Change) -> Outcome:
            if type(change) in silent:
                silent.remove(type(change))
                raise UnavailableError("no answer")
            return await apply(change)

        monkeypatch.setattr(cluster.store, "apply", sometimes)
        async with cluster.coordinator() as it:
            await cluster.submit("r1")
            assert await it.finish("r1") is RequestState.DONE
            assert not silent

    run(story())


def test_where_nothing_is_chosen_it_is_done() -> None:
    async def story() -> None:
        cluster = await filled()
        async with cluster.coordinator():
            spec = SelectorSpec(name="name", options={"pattern": "none*"})
            await cluster.submit("r1", selector=spec)
            assert await ended(cluster, "r1") is RequestState.DONE

    run(story())


def test_progress_is_told_from_the_store() -> None:
    async def story() -> None:
        cluster = await filled()
        async with cluster.coordinator() as it:
            await cluster.submit("r1")
            await until(cluster.selected)
            taken = await it.take()
            assert taken is not None
            progress = await cluster.progress("r1")
            assert [here.state for here in progress] == [TabletProgress.SELECTED] * 3
            assert sum(here.bytes_left for here in progress) == 600
            assert sum(len(here.running) for here in progress) == 1
            await it.commit(taken)
            later = await cluster.progress("r1")
            assert [here.state for here in later].count(TabletProgress.DONE) == 1

    run(story())


def test_jobs_of_a_request_go_before_queued_system_jobs() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.create()
        await cluster.add(ENDS[0], *(f"many-{index}" for index in range(40)))
        await cluster.add(ENDS[1], *(f"five-{index}" for index in range(5)))
        await cluster.add(ENDS[2], "a", "b")
        async with cluster.coordinator() as it:

            def queue() -> list[tuple[Kind, bytes]]:
                now_s = cluster.clock.now_s()
                jobs = [each.job for each in it.parts.state.queued("default", 100, now_s)]
                return [(job.kind, job.tablet.end) for job in jobs]

            async def queued() -> bool:
                return {(Kind.SYSTEM, ENDS[0]), (Kind.SYSTEM, ENDS[1])} == {*queue()}

            await until(queued)
            last = KeyRange(start=SPLITS[-1] + b"\x00")
            await cluster.submit("r1", range=last, boost=BOOST_MAX)

            async def asked_for() -> bool:
                return queue()[0] == (Kind.USER, ENDS[2])

            await until(asked_for)
            taken = await it.take()
            assert taken is not None
            assert (taken.job.request, taken.job.tablet.end) == ("r1", ENDS[2])

    run(story())
