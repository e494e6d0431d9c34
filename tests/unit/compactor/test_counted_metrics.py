"""The metrics of a compactor: what is counted, and how heartbeats have it."""

from __future__ import annotations

import asyncio
import os

import pytest

from common.model.outcome import AttemptEnd, RowCounts
from common.telemetry import METRICS
from common.wire import MetricValue
from compactor import actor
from compactor.actor import REWRITE_BUCKETS_S, CountedMetrics


def values(metrics: CountedMetrics) -> dict[tuple[str, ...], float]:
    found = metrics.values(slots=2, busy=1)
    return {
        (value.metric.removeprefix("neve_compactor_"), *value.labels): value.value
        for value in found
    }


def test_attempts_are_counted_by_their_end() -> None:
    metrics = CountedMetrics()
    for end, waited_s in ((AttemptEnd.COMMITTED, 0.5), (AttemptEnd.COMMITTED, 0.25)):
        metrics.attempt_ended(end, read_bytes=100, written_bytes=40, waited_s=waited_s)
    metrics.attempt_ended(AttemptEnd.FAILED, read_bytes=0, written_bytes=0, waited_s=0.0)
    metrics.rows_dropped(RowCounts(rows_in=9, rows_out=6, superseded=2, expired_dropped=1))

    found = values(metrics)

    assert found["attempts_total", "committed"] == 2
    assert found["attempts_total", "failed"] == 1
    assert (found["read_bytes_total",], found["written_bytes_total",]) == (200, 80)
    assert found["throttled_seconds_total",] == 0.75
    assert found["rows_dropped_total", "superseded"] == 2
    assert found["rows_dropped_total", "expired"] == 1
    assert (found["slots",], found["slots_busy",]) == (2, 1)


def test_the_buckets_of_rewrites_count_all_that_are_not_above_them() -> None:
    metrics = CountedMetrics()
    for elapsed_s in (0.1, 0.2, 20.0, 1e6):
        metrics.rewrite_ended(elapsed_s)

    found = values(metrics)

    counts = [found["rewrite_seconds", str(bound)] for bound in REWRITE_BUCKETS_S]
    assert counts == [1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3]
    assert found["rewrite_seconds", "+Inf"] == 4
    assert found["rewrite_seconds", "sum"] == 0.1 + 0.2 + 20.0 + 1e6


def test_memory_and_restarts_are_sampled() -> None:
    async def sampled(starts: int) -> CountedMetrics:
        metrics = CountedMetrics()
        sampling = asyncio.create_task(
            metrics.sample_forever(os.getpid, lambda: starts, lambda: False)
        )
        while "memory_bytes" not in {name for name, *_ in values(metrics)}:
            await asyncio.sleep(0.01)
        sampling.cancel()
        return metrics

    found = values(asyncio.run(sampled(3)))
    assert found["memory_bytes",] > 1024**2
    assert found["spark_restarts_total",] == 2, "the first start is no restart"
    assert values(asyncio.run(sampled(1)))["spark_restarts_total",] == 0


@pytest.mark.parametrize(("has_attempts", "measured"), [(True, 13), (False, 3)])
def test_memory_is_measured_less_often_at_rest(
    monkeypatch: pytest.MonkeyPatch, has_attempts: bool, measured: int
) -> None:
    monkeypatch.setattr(actor, "SAMPLE_INTERVAL_S", 0.0)
    pids: list[int] = []

    async def sampled() -> None:
        rounds = 0
        ended = asyncio.Event()

        def starts() -> int:
            nonlocal rounds
            rounds += 1
            if rounds == 13:
                ended.set()
            return 1

        def engine_pid() -> None:
            if rounds < 13:
                pids.append(rounds)

        sampling = asyncio.create_task(
            CountedMetrics().sample_forever(engine_pid, starts, lambda: has_attempts)
        )
        await ended.wait()
        sampling.cancel()

    asyncio.run(sampled())
    assert len(pids) == measured


def test_every_value_belongs_to_a_metric_of_the_table() -> None:
    metrics = CountedMetrics()
    metrics.attempt_ended(AttemptEnd.LOST, read_bytes=1, written_bytes=1, waited_s=1.0)
    metrics.rows_dropped(RowCounts())
    labels = {metric.name: metric.labels for metric in METRICS}

    for value in metrics.values(1, 0):
        assert isinstance(value, MetricValue)
        own = labels[value.metric]
        is_histogram = value.metric.endswith("rewrite_seconds")
        assert own[:2] == ("group", "compactor")
        assert len(value.labels) == len(own) - 2 + is_histogram
