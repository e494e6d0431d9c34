"""Requests that are cancelled, or fail, or lose their hold: nothing is left behind."""

import asyncio
from dataclasses import replace

import pytest

from common.metadata.changes import CancelRange
from common.model.job import Kind
from common.model.outcome import AttemptEnd
from common.model.request import KeyRange, RequestState, SelectorSpec
from common.model.tablet import PLUS_INFINITY, Selection
from coordinator.core import actions as do
from coordinator.core import events as on
from coordinator.scan.scanner import read_request_facts
from coordinator.service import StoreActions
from tests.support.patience import PATIENCE_S
from tests.support.planning import TABLET, job
from tests.support.request_shell import (
    SPLITS,
    Cluster,
    cancelling,
    ended,
    filled,
    run,
    until,
)

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("when", ["submitted", "waiting", "selected", "running", "half"])
def test_a_request_that_is_cancelled_leaves_nothing(when: str) -> None:
    async def story() -> None:
        cluster = await filled(count=4 if when == "waiting" else 2)
        async with cluster.coordinator() as it:
            held = await it.take() if when == "waiting" else None
            await cluster.submit("r1")
            if when != "submitted":
                await until(lambda: reached(cluster, when))
            if when in {"running", "half"}:
                held = await it.take()
                assert held is not None
            if when == "half":
                assert held is not None
                await it.commit(held)
            await cluster.apply(cancelling())
            assert await ended(cluster, "r1") is RequestState.CANCELLED
            assert (await cluster.request("r1")).cause == "enough of it"
            tablets = await cluster.tablets()
            kinds = {entry.kind for tablet in tablets for entry in tablet.running.values()}
            assert kinds <= {Kind.SYSTEM}

    async def reached(cluster: Cluster, when: str) -> bool:
        tablets = await cluster.tablets()
        if when == "waiting":
            return any(tablet.waiting for tablet in tablets)
        return all(tablet.selection for tablet in tablets)

    run(story())


def test_a_compactor_is_told_of_a_job_whose_request_was_cancelled() -> None:
    async def story() -> None:
        cluster = await filled()
        async with cluster.coordinator() as it:
            await cluster.submit("r1")
            taken = await it.take()
            assert taken is not None
            attempt = taken.reservation.attempt
            assert await it.beat(attempt) == ()
            await cluster.apply(cancelling())
            await ended(cluster, "r1")
            assert await it.beat(attempt) == (attempt,)

    run(story())


def test_no_job_is_planned_for_a_request_that_is_being_cancelled() -> None:
    async def story() -> None:
        cluster = await filled()
        await cluster.submit("r1")
        seen = await cluster.tablet()
        held = replace(seen, selection=Selection(request="r1", files=tuple(seen.files)))
        assert (await read_request_facts(cluster.store, held)).keys() == {"r1"}
        assert await read_request_facts(cluster.store, seen) == {}
        await cluster.apply(cancelling())
        assert await read_request_facts(cluster.store, held) == {}

    run(story())


def test_a_part_that_is_cancelled_is_left_alone_and_the_rest_is_done() -> None:
    async def story() -> None:
        cluster = await filled()
        async with cluster.coordinator() as it:
            await cluster.submit("r1")
            part = KeyRange(SPLITS[0] + b"\x00", SPLITS[1] + b"\x00")
            await cluster.apply(CancelRange(table="t1", request="r1", range=part))
            assert await it.finish("r1") is RequestState.DONE_IN_PART
            assert [len(tablet.files) for tablet in await cluster.tablets()] == [1, 2, 1]

    run(story())


def test_cancelling_a_job_takes_its_tablet_out_of_the_request() -> None:
    async def story() -> None:
        cluster = await filled()
        async with cluster.coordinator() as it:
            await cluster.submit("r1")
            taken = await it.take()
            assert taken is not None
            await it.parts.requests.cancel_here(taken.job.tablet, taken.reservation.attempt)
            assert await it.finish("r1") is RequestState.DONE_IN_PART
            counts = {tablet.id: len(tablet.files) for tablet in await cluster.tablets()}
            assert counts.pop(taken.job.tablet) == 2
            assert set(counts.values()) == {1}

    run(story())


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        (SelectorSpec(name="gone"), "'gone' is not installed"),
        (SelectorSpec(name="size"), "selector size: give at least one of"),
    ],
)
def test_a_selector_that_fails_fails_the_request(spec: SelectorSpec, cause: str) -> None:
    async def story() -> None:
        cluster = await filled()
        async with cluster.coordinator():
            await cluster.submit("r1", selector=spec)
            assert await ended(cluster, "r1") is RequestState.FAILED
            assert cause in (await cluster.request("r1")).cause

    run(story())


def test_a_deadline_that_passes_fails_the_request() -> None:
    async def story() -> None:
        cluster = await filled()
        async with cluster.coordinator() as it:
            await cluster.submit("r1", deadline_s=cluster.clock.now_s() + 60)
            assert await it.take() is not None
            cluster.clock.advance(61)
            assert await ended(cluster, "r1") is RequestState.FAILED
            assert (await cluster.request("r1")).cause == "its deadline has passed"

    run(story())


def test_a_request_that_selects_more_than_can_be_held_fails_and_leaves_nothing() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.create(splits=())
        await cluster.add(PLUS_INFINITY, *(f"{number}-{'n' * 2000}" for number in range(9000)))
        async with cluster.coordinator() as it:
            held = await it.take()
            assert held is not None
            await cluster.submit("r1")
            await until(lambda: waits(cluster))
            await it.commit(held)
            assert await ended(cluster, "r1") is RequestState.FAILED
            cause = (await cluster.request("r1")).cause
            assert "files that request r1 selects have 18," in cause, cause
            assert "at most 16,777,216 can be held" in cause
            await until(cluster.is_clean)
            taken = await it.take()
            assert taken is not None
            assert taken.job.kind is Kind.SYSTEM, "the marker bars nobody any more"

    async def waits(cluster: Cluster) -> bool:
        return bool((await cluster.tablet()).waiting)

    run(story())


def test_a_job_that_is_quarantined_fails_its_request() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.create(splits=())
        await cluster.add(PLUS_INFINITY, "a", "b")
        async with cluster.coordinator() as it:
            await cluster.submit("r1")
            async with asyncio.timeout(PATIENCE_S):
                while not (await cluster.request("r1")).state.ended:
                    taken = await it.take(wait_max_s=0.02)
                    if taken is not None:
                        it.report(taken, AttemptEnd.FAILED, "a.parquet is no Parquet file")
                    cluster.clock.advance(20)
            assert await ended(cluster, "r1") is RequestState.FAILED
            assert "quarantined, failed 5 times" in (await cluster.request("r1")).cause

    run(story())


def test_an_expression_that_fails_ends_its_request_at_the_first_try() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.create(splits=())
        await cluster.add(PLUS_INFINITY, "a", "b")
        async with cluster.coordinator() as it:
            await cluster.submit("r1")
            taken = await it.take()
            assert taken is not None
            cause = "set x = 1 / v: failed for a row: [DIVIDE_BY_ZERO]"
            it.report(taken, AttemptEnd.FAILED, cause, "TransformError")
            assert await ended(cluster, "r1") is RequestState.FAILED
            assert (await cluster.request("r1")).cause == cause
            await cluster.submit("r2")
            assert await it.take() is not None, "the same files of another request wait"

    run(story())


@pytest.mark.parametrize(("waited_s", "taken"), [(119, False), (121, True)])
def test_a_system_job_drops_a_hold_that_has_expired_before_it_reserves(
    waited_s: int, taken: bool
) -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.create(splits=())
        await cluster.add(PLUS_INFINITY, "a", "b", "c")
        async with cluster.coordinator() as it:
            await cluster.submit("r1")
            await until(cluster.selected)
            cluster.clock.advance(waited_s)
            answers: list[on.Event] = []

            async def waits() -> bool:
                return "r1" in (await cluster.tablet()).waiting

            actions = StoreActions(it.parts.context, answers.append, {})
            wanted = job("j1", inputs=("a.parquet", "b.parquet"), tablet=TABLET)
            await actions.perform(do.Reserve(take="x", job=wanted, compactor="c1"))
            (answer,) = answers
            assert isinstance(answer, on.JobReserved if taken else on.JobRefused)
            seen = await cluster.tablet()
            assert (seen.selection is None) is taken
            if isinstance(answer, on.JobReserved):
                await until(waits)
                release = do.Release(
                    tablet=TABLET,
                    attempt=answer.assignment.reservation.attempt,
                    end=AttemptEnd.LOST,
                    cause="enough",
                    for_silence=False,
                )
                await actions.perform(release)
            assert await it.finish("r1") is RequestState.DONE

    run(story())
