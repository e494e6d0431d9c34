"""What the coordinator counts of requests, selectors and scans."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from common.metadata.changes import Applied
from common.model.outcome import AttemptEnd, RowCounts
from common.model.request import RequestState, SelectorSpec, TransformKind, TransformSpec
from common.telemetry import METRICS
from common.wire import AttemptReport
from tests.support.request_shell import Shell, cancelling, commit_of, ended, filled, run, until

pytestmark = pytest.mark.unit
LABELS = {metric.name: metric.labels for metric in METRICS}


def figures(it: Shell) -> dict[str, float]:
    told = it.parts.status().figures
    assert all(len(figure.labels) == len(LABELS[figure.metric]) for figure in told)
    return {" ".join((figure.metric, *figure.labels)): figure.value for figure in told}


async def state_is(it: Shell, name: str, value: float) -> None:
    async def reached() -> bool:
        return figures(it)[name] == value

    await until(reached)


def test_requests_are_counted_from_their_beginning_to_their_end() -> None:
    async def story() -> None:
        cluster = await filled()
        async with cluster.coordinator() as it:
            assert figures(it)["neve_requests active"] == 0
            await cluster.submit("r1", submitted_at_s=cluster.clock.now_s())
            await state_is(it, "neve_requests active", 1)
            cluster.clock.advance(7.0)
            assert figures(it)["neve_requests_oldest_seconds"] == 7.0
            assert await it.finish("r1")
            await state_is(it, "neve_requests active", 0)
            await cluster.submit("r2")
            await until(cluster.selected)
            await cluster.apply(cancelling("r2"))
            await ended(cluster, "r2")
            told = figures(it)
            assert told["neve_requests_ended_total done"] == 1
            assert told["neve_requests_ended_total cancelled"] == 1
            assert told["neve_requests_ended_total failed"] == 0
            assert told["neve_selector_calls_total"] == 6
            assert told["neve_selector_failures_total"] == 0
            assert told["neve_tablets_planned_total"] > 0
            ends = {
                (one.table, one.state): (one.count, one.request)
                for one in it.parts.notices(0).request_ends
            }
            name = next(iter(it.parts.scanner.tables.values())).name
            assert ends == {(name, "done"): (1, "r1"), (name, "cancelled"): (1, "r2")}

    run(story())


def test_a_selector_that_fails_is_counted() -> None:
    async def story() -> None:
        cluster = await filled()
        async with cluster.coordinator() as it:
            await cluster.submit("r1", selector=SelectorSpec(name="none-such"))
            await ended(cluster, "r1")
            told = figures(it)
            assert told["neve_selector_failures_total"] >= 1
            assert told["neve_requests_ended_total failed"] == 1

    run(story())


def test_tablets_that_wait_for_running_jobs_are_counted() -> None:
    async def story() -> None:
        cluster = await filled(5)
        async with cluster.coordinator() as it:
            taken = await it.take()
            assert taken is not None
            await cluster.submit("r1")
            await state_is(it, "neve_requests_waiting_tablets", 1)
            await it.commit(taken)
            await it.finish("r1")
            await state_is(it, "neve_requests_waiting_tablets", 0)

    run(story())


@pytest.mark.parametrize("told_first", ["feed", "report"])
def test_rows_that_a_transform_has_seen_are_counted_once(told_first: str) -> None:
    async def story() -> None:
        cluster = await filled()
        transform = TransformSpec(kind=TransformKind.SET, text="x = 1")
        async with cluster.coordinator() as it:
            await cluster.submit("r1", transform=transform)
            taken = await it.take()
            assert taken is not None
            report = AttemptReport(
                compactor="c1",
                attempt=taken.reservation.attempt,
                end=AttemptEnd.COMMITTED,
                counts=RowCounts(rows_in=20, rows_out=20),
            )
            if told_first == "report":
                it.parts.service.report(report)
            assert isinstance(await cluster.store.apply(commit_of(taken)), Applied)
            await until(lambda: _settled(it))
            it.parts.service.report(report)
            it.parts.service.report(report)
            assert figures(it)["neve_requests_rows_transformed_total"] == 20

    run(story())


def test_a_request_that_deletes_rows_is_audited_with_their_number_at_its_end() -> None:
    async def story() -> None:
        cluster = await filled()
        transform = TransformSpec(kind=TransformKind.DELETE_WHERE, text="x = 1")
        async with cluster.coordinator() as it:
            await cluster.submit("r1", transform=transform)
            while await cluster.store.open_requests("t1"):
                taken = await it.take()
                if taken is None:
                    break
                counts = replace(commit_of(taken).counts, deleted=5)
                made = replace(commit_of(taken), counts=counts)
                assert isinstance(await cluster.store.apply(made), Applied)
                it.parts.service.report(
                    AttemptReport(
                        compactor="c1",
                        attempt=taken.reservation.attempt,
                        end=AttemptEnd.COMMITTED,
                        counts=counts,
                    )
                )
                await asyncio.sleep(0.05)
            assert await ended(cluster, "r1") is RequestState.DONE
            (line,) = await cluster.store.audit(10, "deletes")
        done = sum(each.rows_deleted for each in await cluster.store.history("t1"))
        assert done > 0
        assert json.loads(line)["details"] == f"request=r1 deleted_rows={done} changed_rows=0"

    run(story())


async def _settled(it: Shell) -> bool:
    """Return whether the coordinator knows of no attempt that is not over."""
    return not it.parts.state.running(it.cluster.clock.now_s())
