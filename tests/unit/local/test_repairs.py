"""Which parts of a stack are started again, and when."""

from __future__ import annotations

import pytest

from neve.local.supervisor import (
    NEEDS,
    PAUSES_S,
    SILENCE_MAX_S,
    WELL_S,
    PartSight,
    Repairs,
    RestartPauses,
)

pytestmark = pytest.mark.unit

WELL = dict.fromkeys(NEEDS, PartSight())
DEAD, SILENT = PartSight(ended="ended"), PartSight(answers=False)


def test_pauses_grow_and_end() -> None:
    pauses, now_s = RestartPauses(), 100.0
    for pause_s in (*PAUSES_S[1:], PAUSES_S[-1]):
        assert pauses.may_try("redis", now_s)
        pauses.tried("redis", now_s, "no")
        assert not pauses.may_try("redis", now_s + pause_s - 0.1)
        now_s += pause_s
    assert pauses.notes(now_s)["redis"].startswith(f"down for {now_s - 100:.0f} s, started 7 times")
    assert pauses.may_try("ray", now_s), "each part has its own"

    # Well for a moment only: it goes on where it was.
    pauses.tried("redis", now_s)
    pauses.well("redis", now_s)
    assert "redis" not in pauses.notes(now_s)
    assert not pauses.may_try("redis", now_s + 1)
    pauses.well("redis", now_s + 2)
    pauses.well("redis", now_s + 2 + WELL_S)
    assert pauses.may_try("redis", now_s + 3 + WELL_S)


def test_what_is_well_is_left_alone() -> None:
    assert Repairs().due(WELL, 0.0) == {}


def test_redis_is_started_while_ray_and_its_actors_start() -> None:
    """A raylet dies, actors take minutes, and Redis dies meanwhile: all of Ray is started once."""
    repairs = Repairs()
    assert repairs.due(WELL | {"ray": DEAD}, 0.0) == {"ray": "ended"}
    owed = WELL | {"gateway": DEAD, "coordinator": DEAD}
    assert repairs.due(owed | {"ray": DEAD}, 20.0) == {}, "they need Ray, which is being started"
    repairs.ended("ray", 30.0)
    assert list(repairs.due(owed, 31.0)) == ["gateway", "coordinator"]
    assert repairs.due(owed | {"redis": DEAD}, 60.0) == {"redis": "ended"}, "it waits for no actor"
    repairs.ended("redis", 61.0)
    repairs.ended("gateway", 82.0)
    for now_s in range(83, 483):
        assert repairs.due(WELL | {"coordinator": DEAD}, now_s) == {}
    assert repairs.pauses.notes(483.0).keys() == {"coordinator"}


def test_an_actor_that_does_not_start_delays_no_other_part_and_not_ray() -> None:
    repairs, started = Repairs(), []
    for now_s in range(600):
        for part in repairs.due(WELL | {"coordinator": DEAD}, now_s):
            started.append(part)
            repairs.ended(part, now_s, "no room")
    assert set(started) == {"coordinator"}
    assert 10 < len(started) < 20, "with longer and longer pauses"
    assert repairs.due(WELL | {"coordinator": DEAD, "gateway": DEAD}, 600.0)["gateway"] == "ended"


@pytest.mark.parametrize("part", SILENCE_MAX_S)
def test_a_part_is_started_when_it_is_silent_for_long(part: str) -> None:
    repairs, limit_s = Repairs(), SILENCE_MAX_S[part]
    assert repairs.due(WELL | {part: SILENT}, 0.0) == {}
    assert repairs.due(WELL | {part: SILENT}, limit_s - 1) == {}
    assert repairs.due(WELL, limit_s) == {}, "one answer is enough"
    assert repairs.due(WELL | {part: SILENT}, 2 * limit_s - 1) == {}
    found = repairs.due(WELL | {part: SILENT}, 2 * limit_s)
    assert found == {part: f"no answer for {limit_s:.0f} s"}
    repairs.ended(part, 2 * limit_s + 5)
    assert repairs.due(WELL | {part: SILENT}, 3 * limit_s + 4) == {}, "it is waited for once more"


def test_silence_without_what_a_part_needs_is_not_its_own() -> None:
    repairs = Repairs()
    for now_s in range(1000):
        sights = WELL | {"redis": DEAD, "coordinator": SILENT}
        assert repairs.due(sights, now_s).keys() <= {"redis"}
    repairs.ended("redis", 1000.0)
    assert repairs.due(WELL | {"coordinator": SILENT}, 1001.0) == {}
    unknown = WELL | {"coordinator": PartSight(answers=None)}
    assert all(repairs.due(unknown, now_s) == {} for now_s in range(1001, 2000))
