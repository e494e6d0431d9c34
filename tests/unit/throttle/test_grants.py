"""Grants: fair, never more than the limit, whoever dies and whatever is lost on the way."""

from __future__ import annotations

import pytest

from common.model.group import LimitScope
from common.settings import CoordinatorSettings
from coordinator.core.throttle import BLIND_BYTES_S
from tests.support.throttle_world import UNLIMITED, World

pytestmark = pytest.mark.unit

MB = 10**6
DEFAULT = LimitScope.parse("group:default")


def world(seed: int = 0, *, jobs: int = 0, **settings: int) -> World:
    """Return a world with a table, and compactors of two slots with so many jobs."""
    made = World(seed, CoordinatorSettings(**settings))  # type: ignore[arg-type]  # by name
    made.table("t", "default")
    for number in range(-(-jobs // 2)):
        made.compactor(f"c{number}")
    for number in range(jobs):
        made.start(made.compactors[f"c{number // 2}"], "t")
    return made


def grants(made: World) -> dict[str, float]:
    return {
        attempt: running.applied
        for compactor in made.compactors.values()
        for attempt, running in compactor.held.items()
    }


def test_without_a_limit_nothing_is_granted_and_nothing_is_told() -> None:
    made = world(jobs=3)
    assert set(grants(made).values()) == {UNLIMITED}
    made.pass_time(10)
    assert set(grants(made).values()) == {UNLIMITED}


def test_a_job_never_begins_without_its_limit() -> None:
    made = world()
    made.limit("group:default", 100 * MB)
    compactor = made.compactor("c0", slots=3)
    assert made.start(compactor, "t").applied == 98 * MB
    # What the first may be using is not free yet.
    assert made.start(compactor, "t").applied == pytest.approx(1 * MB)
    assert made.start(compactor, "t").applied == pytest.approx(0.5 * MB)
    made.pass_time(8)
    assert list(grants(made).values()) == pytest.approx([98 * MB / 3] * 3, rel=0.02)


def test_an_attempt_on_its_way_to_its_compactor_keeps_its_part() -> None:
    made = world()
    made.limit("group:default", 100 * MB)
    compactor = made.compactor("c0")
    on_its_way = made.start(compactor, "t")
    del compactor.held[on_its_way.attempt]
    made.beat(compactor)
    compactor.held[on_its_way.attempt] = on_its_way
    assert made.start(compactor, "t").applied == pytest.approx(1 * MB)


@pytest.mark.parametrize("jobs", [1, 2, 4, 7])
def test_equal_jobs_get_even_grants_that_use_the_limit(jobs: int) -> None:
    made = world(jobs, jobs=jobs)
    made.limit("group:default", 50 * MB)
    made.pass_time(20)
    assert list(grants(made).values()) == pytest.approx([49 * MB / jobs] * jobs, rel=0.02)

    before = made.moved[DEFAULT]
    made.pass_time(60)
    assert (made.moved[DEFAULT] - before) / 60 == pytest.approx(49 * MB, rel=0.02)


def test_an_unused_grant_goes_to_the_others() -> None:
    made = world(jobs=2)
    made.able = 5.0 * MB
    made.start(made.compactor("slow"), "t")
    made.limit("group:default", 98 * MB)
    made.pass_time(20)
    *fast, slow = grants(made).values()
    assert slow >= 5 * MB
    assert sum(fast) >= 85 * MB
    before = made.moved[DEFAULT]
    made.pass_time(60)
    assert (made.moved[DEFAULT] - before) / 60 >= 0.95 * 98 * MB


def test_a_job_that_speeds_up_gets_its_share_back() -> None:
    made = world(jobs=2)
    one, other = (each for each in made.compactors["c0"].held.values())
    one.able = 1.0 * MB
    made.limit("group:default", 100 * MB)
    made.pass_time(20)
    assert other.applied > 90 * MB
    one.able = 1e9
    made.pass_time(10)
    assert [one.applied, other.applied] == pytest.approx([49 * MB] * 2, rel=0.02)


def test_the_tighter_of_group_and_volume_counts() -> None:
    made = world(jobs=2)
    made.table("u", "slow")
    made.limit("group:default", 100 * MB)
    made.limit("volume:slow", 10 * MB)
    slow = made.start(made.compactor("d"), "u", "slow")
    made.pass_time(20)
    assert slow.applied == pytest.approx(9.8 * MB, rel=0.02)
    assert sum(grants(made).values()) == pytest.approx(98 * MB, rel=0.02)


def test_a_limit_that_is_lowered_holds_after_two_heartbeats_and_one_taken_away_at_once() -> None:
    made = world(jobs=4)
    made.limit("group:default", 100 * MB)
    made.pass_time(20)
    made.limit("group:default", 10 * MB)
    made.pass_time(5)
    assert sum(grants(made).values()) <= 10 * MB
    made.limit("group:default", 0)
    made.pass_time(3)
    assert set(grants(made).values()) == {UNLIMITED}


def test_defaults_hold_until_somebody_says_something_else() -> None:
    made = world(jobs=1, group_limit_bytes_s=20 * MB, volume_limit_bytes_s=10 * MB)
    assert list(grants(made).values()) == [9.8 * MB]
    made.limit("volume:default", 0)
    made.pass_time(5)
    assert list(grants(made).values()) == pytest.approx([19.6 * MB])


def test_a_slow_volume_gets_less_and_more_again_when_it_recovers() -> None:
    made = world(jobs=2, volume_limit_bytes_s=100 * MB, volume_least_bytes_s=10 * MB)
    made.latency_s = 0.01
    made.pass_time(20)
    assert sum(grants(made).values()) == pytest.approx(98 * MB, rel=0.02)
    made.latency_s = 0.08
    made.pass_time(10)
    slow = 10 * MB + 90 * MB / 4
    assert sum(grants(made).values()) == pytest.approx(0.98 * slow, rel=0.02)
    told = {scope.kind: scope for scope in made.state.status(made.now_s).scopes}
    assert (told["volume"].limit_bytes_s, told["volume"].rate_bytes_s) == (100 * MB, int(slow))
    made.latency_s = 0.01
    made.pass_time(4)
    assert sum(grants(made).values()) < 70 * MB
    made.pass_time(30)
    assert sum(grants(made).values()) == pytest.approx(98 * MB, rel=0.02)


def test_the_part_of_a_dead_compactor_goes_to_the_others_and_a_silent_one_keeps_its_own() -> None:
    made = world(jobs=4)
    made.limit("group:default", 100 * MB)
    made.pass_time(20)
    made.die(made.compactors["c0"])
    made.compactors["c0"].alive = False  # Nobody comes after it.
    made.pass_time(5)
    assert sum(grants(made).values()) == pytest.approx(98 * MB, rel=0.02)

    silent = made.compactor("c2")
    for _ in range(2):
        made.start(silent, "t")
    made.pass_time(10)
    silent.cut_off = True
    living = made.compactors["c1"]
    made.pass_time(20)
    assert sum(each.applied for each in living.held.values()) <= 51 * MB
    made.pass_time(20)  # It counts as dead now; whatever it still does, it does beside them.
    assert sum(each.applied for each in living.held.values()) == pytest.approx(98 * MB, rel=0.02)


def test_a_new_coordinator_learns_what_is_applied_and_is_careful_until_it_knows() -> None:
    made = world(jobs=4)
    made.limit("group:default", 100 * MB)
    made.pass_time(20)
    made.restart_coordinator()
    assert made.state.running(made.now_s)
    late = made.start(made.compactor("late"), "t")
    assert late.applied == BLIND_BYTES_S
    made.limits, limits = {}, made.limits  # For so much the limit may be exceeded.
    made.pass_time(3)
    made.limits = limits
    made.pass_time(10)
    assert sum(grants(made).values()) == pytest.approx(98 * MB, rel=0.03)
    assert late.applied == pytest.approx(98 * MB / 5, rel=0.05)


def test_a_coordinator_that_has_just_begun_has_not_heard_of_all_that_runs() -> None:
    made = world(jobs=2)
    made.limit("group:default", 100 * MB)
    made.pass_time(20)
    made.begin_anew()
    late = made.start(made.compactor("late"), "t")
    assert late.applied == BLIND_BYTES_S
    made.pass_time(10)
    assert late.applied == pytest.approx(98 * MB / 3, rel=0.05)


def test_jobs_that_follow_each_other_are_counted_to_their_last_byte() -> None:
    made = world()
    made.limit("group:default", 10 * MB)
    made.job_bytes = 5.0 * MB
    compactor = made.compactor("c0")
    for _ in range(10):
        made.start(compactor, "t")
        made.pass_time(1)
    status = {(each.kind, each.name): each for each in made.state.status(made.now_s).scopes}
    for scope in (("group", "default"), ("volume", "default")):
        assert status[scope].moved_bytes == 50 * MB
    assert status["group", "default"].limit_bytes_s == 10 * MB
    assert status["volume", "default"].limit_bytes_s is None


def test_a_throttled_job_says_so() -> None:
    made = world(jobs=1)
    made.limit("group:default", 1 << 20)
    made.pass_time(10)
    (running,) = made.state.running(made.now_s)
    assert running.throttled
    (held,) = made.compactors["c0"].held.values()
    # `explain` takes what `jobs` prints.
    assert running.tablet == held.tablet.text
    explained = made.state.explain(held.tablet, made.now_s)
    assert (explained.running, explained.inputs) == ((running.attempt,), (running.files,))
    assert len(running.files) == running.inputs > 0
    told = explained.sentences
    assert "the job is throttled to 1003.5 KiB/s: group default may move 1.0 MiB/s" in told


@pytest.mark.parametrize("seed", range(20))
def test_grants_stay_within_limits_over_long_lives(seed: int) -> None:
    """Jobs begin and end, compactors die, replies get lost, limits change: `World.check`."""
    made = World(seed)
    chance = made.chance
    for volume in ("fast", "slow"):
        made.table(volume, volume)
    for number in range(chance.randrange(1, 5)):
        made.compactor(f"c{number}", chance.choice(["default", "large"]), chance.randrange(1, 4))
    for scope in ("group:default", "volume:slow", "volume:fast"):
        made.limit(scope, chance.choice([0, 1, 10, 100]) * MB)
    made.lost_replies = chance.choice([0.0, 0.0, 0.2])
    for _ in range(60):
        happens(made)
        made.pass_time(chance.choice([0.1, 0.5, 3.0]))
    made.lost_replies = 0.0
    made.pass_time(10)
    assert all(each.applied > 0 for one in made.compactors.values() for each in one.held.values())


@pytest.mark.parametrize("seed", range(20))
def test_no_life_leaves_a_scope_that_starves_its_jobs(seed: int) -> None:
    """Whatever happened before, a limit is used up, and a new job gets its part of it."""
    made = World(seed)
    chance = made.chance
    for volume in ("fast", "slow"):
        made.table(volume, volume)
    for number in range(3):
        made.compactor(f"c{number}", slots=3)
    made.limit("volume:slow", chance.choice([64_000, MB]))
    made.lost_replies = chance.choice([0.0, 0.3])
    for _ in range(40):
        happens(made)
        made.pass_time(chance.choice([0.1, 0.5, 3.0]))
        if chance.random() < 0.05 and not made.lost_replies:
            made.restart_coordinator()
            for volume in ("fast", "slow"):
                made.table(volume, volume)
    made.lost_replies = 0.0
    made.limit("group:default", 0)
    free = next((each for each in made.compactors.values() if len(each.held) < each.slots), None)
    late = None if free is None else made.start(free, "slow", "slow")
    held = [each for one in made.compactors.values() for each in one.held.values()]
    for running in held:
        running.able, running.left = 1e9, 1e15
    slow = [running for running in held if running.volume == "slow"]
    limit = made.limits[LimitScope.parse("volume:slow")]
    if late is not None:
        assert late.applied > 0
    made.pass_time(60)
    assert not slow or sum(running.applied for running in slow) > 0.9 * limit
    assert all(running.applied > limit / len(slow) / 2 for running in slow)


def happens(made: World) -> None:
    """Let one thing happen."""
    chance = made.chance
    made.able, made.job_bytes = chance.uniform(0.1, 200) * MB, chance.uniform(0.1, 2000) * MB
    compactor = chance.choice(list(made.compactors.values()))
    what = chance.random()
    if what < 0.6 and len(compactor.held) < compactor.slots:
        volume = chance.choice(["fast", "slow"])
        made.start(compactor, volume, volume)
    elif what < 0.65:
        made.die(compactor)
    elif what < 0.7 and made.lost_replies == 0:
        # If replies got lost, it would be heard later: nobody's fault.
        made.limit("group:default", chance.choice([0, 5, 50]) * MB)
