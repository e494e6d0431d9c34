"""The small structures of the core: bounds, order, and repetition that changes nothing."""

from __future__ import annotations

import pytest

from common.model.job import Kind
from common.model.tablet import TabletId
from common.primitives import BoundedMap
from common.settings import CoordinatorSettings
from coordinator.core.attempts import (
    NEXT_STATES,
    Attempt,
    Attempts,
    AttemptState,
)
from coordinator.core.limits import Limits
from coordinator.core.queue import Capacity
from coordinator.core.retry import (
    ERROR_CLASSES_MAX,
    STALE_ENTRIES_MAX,
    Deferrals,
    Failure,
    ReplanTimers,
    Retry,
)


def tablet(number: int) -> TabletId:
    return TabletId("t", b"%04d" % number)


def attempt(state: AttemptState = AttemptState.RUNNING) -> Attempt:
    return Attempt(
        id="a1",
        tablet=tablet(1),
        table_name="trips",
        job_id="j1",
        kind=Kind.SYSTEM,
        group="small",
        inputs=("f1",),
        compactor="c1",
        since_s=0.0,
        state=state,
        state_since_s=0.0,
    )


def test_a_bounded_map_forgets_what_was_put_first() -> None:
    memory: BoundedMap[str, int] = BoundedMap(2)
    for name in ("a", "b", "a", "c"):
        memory.put(name, len(name))

    assert [name for name, _ in memory] == ["a", "c"]
    assert len(memory) == 2


def test_a_slot_is_counted_once_and_freed_once() -> None:
    capacity = Capacity(Limits(running_max=2))
    capacity.enter("a", "small", 10)
    capacity.enter("a", "small", 10)
    capacity.enter("b", "small", 5)
    assert capacity.full("small") is not None

    capacity.leave("a")
    capacity.leave("a")
    assert capacity.full("small") is None
    assert (capacity.jobs("small"), capacity.input_bytes("small")) == (1, 5)
    capacity.leave("b")
    capacity.check()


def test_an_alarm_rings_once_at_the_earliest_of_its_times() -> None:
    alarms = ReplanTimers()
    alarms.set(tablet(1), 20.0)
    alarms.set(tablet(1), 10.0)
    alarms.set(tablet(1), 30.0)
    alarms.set(tablet(2), 10.0)
    alarms.discard(tablet(2))

    assert alarms.due(9.0, 10) == []
    assert alarms.due(50.0, 10) == [tablet(1)]
    assert alarms.due(50.0, 10) == []


def test_alarms_taken_back_do_not_pile_up() -> None:
    alarms = ReplanTimers()
    for number in range(10 * STALE_ENTRIES_MAX):
        alarms.set(tablet(number), float(number))
        alarms.discard(tablet(number))

    assert len(alarms._heap) <= STALE_ENTRIES_MAX + 1


def test_deferred_tablets_keep_their_age_when_they_move() -> None:
    deferrals = Deferrals(10)
    deferrals.defer(tablet(1), "small", 5.0)
    deferrals.defer(tablet(2), "large", 6.0)
    deferrals.defer(tablet(1), "large", 9.0)

    assert deferrals.since_s(tablet(1)) == 5.0
    assert deferrals.wait_queues() == ["large"]
    assert deferrals.pop("large", 10, before_s=5.0) == [tablet(1)]
    assert deferrals.pop("large", 10) == [tablet(2)]


def test_an_attempt_that_is_being_released_never_runs_again() -> None:
    attempts = Attempts(10)
    attempts.add(attempt())

    with pytest.raises(AssertionError):
        attempts.add(attempt())
    with pytest.raises(AssertionError):
        attempts.update(attempt(AttemptState.FOUND))
    assert NEXT_STATES[AttemptState.RELEASING] == ()


def test_error_classes_of_a_table_are_bounded() -> None:
    retry = Retry(Limits())
    for number in range(3 * ERROR_CLASSES_MAX):
        failure = Failure(
            compactor="c1",
            tablet=tablet(number),
            inputs=("f1",),
            error_class=f"Error{number}",
            cause="boom",
        )
        retry.note_failure(failure, 0.0)

    assert len(retry._classes.get("t") or {}) == ERROR_CLASSES_MAX


def test_other_settings_lift_the_pauses_of_their_table_only() -> None:
    retry = Retry(Limits(quarantine_failures=1))
    for table in ("t", "u"):
        where = TabletId(table, b"a")
        failure = Failure(
            compactor="c1", tablet=where, inputs=("f1",), error_class="Error", cause="boom"
        )
        retry.note_failure(failure, 0.0)

    retry.lift_table("t")
    assert list(retry.quarantined()) == [TabletId("u", b"a")]


def test_limits_follow_the_operators_settings() -> None:
    settings = CoordinatorSettings(
        silence_max_s=40.0,
        lost_answer_beats=4,
        queue_count_max=7,
        queue_bytes_max=80_000,
        running_max=9,
        running_bytes_max=10,
        ageing_per_s=0.5,
        deferral_max_s=50.0,
        backoff_base_s=60.0,
    )
    limits = Limits.of(settings, beat_interval_s=3.0)

    assert limits.silence_max_s == 40.0
    assert (limits.queue_count_max, limits.queue_bytes_max) == (7, 80_000)
    assert (limits.running_max, limits.running_bytes_max) == (9, 10)
    assert (limits.ageing_per_s, limits.deferral_max_s) == (0.5, 50.0)
    assert limits.backoff_base_s == 60.0
    assert limits.lost_answer_beats == 4
    assert limits.unlisted_max_s == pytest.approx(10.5)
