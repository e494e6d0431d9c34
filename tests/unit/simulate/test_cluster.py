"""Compactors, slots and volumes: shared bytes beside a simulation in small steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.model.group import Group
from common.model.job import Job, Kind
from common.model.tablet import PLUS_INFINITY, TabletId
from coordinator.core.autoscaling import AutoscalerRules, GroupLoad
from neve.simulate.cluster import Lane, SimulatedAttempt, SimulatedCompactor, SimulatedGroup, Volume
from neve.simulate.specification import GroupRule
from tests.support.simulated import document, world

MIB = 1024**2


def job(number: int, size_bytes: int) -> Job:
    return Job(
        id=f"job-{number}",
        tablet=TabletId("t", PLUS_INFINITY),
        table_name="t",
        kind=Kind.SYSTEM,
        inputs=(f"{number}",),
        input_bytes=size_bytes,
        group="default",
        priority=1,
        reason="test",
    )


TABLET = next(world(document()).tablets())


def attempt(number: int, size_bytes: int) -> SimulatedAttempt:
    return SimulatedAttempt(job(number, size_bytes), TABLET, SimulatedCompactor("c", 9), 0.0)


def ends(volume: Volume, starts: list[tuple[float, Lane, SimulatedAttempt]]) -> dict[str, float]:
    """Return when each job ends, as the world has it."""
    found: dict[str, float] = {}
    waiting = sorted(starts, key=lambda each: each[0])
    while len(found) < len(starts):
        foreseen = [
            (end_s, lane) for lane in volume.lanes if (end_s := lane.next_end_s()) is not None
        ]
        end_s, lane = min(foreseen, key=lambda each: each[0], default=(float("inf"), None))
        if waiting and waiting[0][0] <= end_s:
            at_s, entered, each = waiting.pop(0)
            volume.moving += 1
            entered.enter(each, at_s)
            volume.set_rates(at_s)
            continue
        assert lane is not None
        done = lane.pop_ended(end_s)
        volume.moving -= len(done)
        volume.set_rates(end_s)
        found.update((each.job.id, end_s) for each in done)
    return found


def stepped(
    limit: float, jobs: list[tuple[float, float, int]], step_s: float = 0.01
) -> list[float]:
    """Return when jobs (start, slot's bytes per second, bytes) end, in small steps of time."""
    left, end_s, now_s = [float(size) for _, _, size in jobs], [0.0] * len(jobs), 0.0
    while any(each > 0 for each in left):
        moving = [at for at, each in enumerate(jobs) if each[0] <= now_s and left[at] > 0]
        for at in moving:
            left[at] -= min(jobs[at][1], limit / len(moving)) * step_s
            end_s[at] = now_s + step_s
        now_s += step_s
    return end_s


@given(
    jobs=st.lists(
        st.tuples(st.integers(0, 20), st.sampled_from([10, 40]), st.integers(1, 200)),
        min_size=1,
        max_size=6,
    )
)
def test_a_volume_is_shared_as_it_is_step_by_step(jobs: list[tuple[int, int, int]]) -> None:
    volume = Volume(limit_bytes_s=60.0)
    lanes = {speed: Lane(float(speed), volume) for speed in (10, 40)}
    volume.lanes = list(lanes.values())
    starts = [
        (float(at_s), lanes[speed], attempt(number, size))
        for number, (at_s, speed, size) in enumerate(jobs)
    ]
    found = ends(volume, starts)
    expected = stepped(60.0, [(float(at_s), float(speed), size) for at_s, speed, size in jobs])

    for number, end_s in enumerate(expected):
        assert found[f"job-{number}"] == pytest.approx(end_s, abs=0.2)
    assert volume.moving == 0


def group(**rule: int) -> SimulatedGroup:
    return SimulatedGroup(GroupRule(group=Group(name="default"), **rule), AutoscalerRules())


def test_a_group_never_runs_more_jobs_than_it_has_slots() -> None:
    made = group(slots=2, count_min=1, count_max=1)
    for number in range(2):
        compactor = made.free_slot()
        assert compactor is not None
        made.begin(SimulatedAttempt(job(number, 1), TABLET, compactor, 0.0), 0.0)
    assert made.free_slot() is None

    made.end(next(iter(made.running)), 1.0)
    assert made.free_slot() is not None


def test_time_of_compactors_and_of_slots_is_counted() -> None:
    made = group(slots=4, count_min=2, count_max=2)
    compactor = made.free_slot()
    assert compactor is not None
    one = SimulatedAttempt(job(1, 1), TABLET, compactor, 10.0)
    made.begin(one, 10.0)
    made.end(one, 25.0)
    made.note_time(100.0)

    assert made.compactor_s == 200.0
    assert made.busy_s == 15.0


def test_compactors_start_for_work_and_leave_when_it_is_done() -> None:
    made = group(slots=1, count_min=0, count_max=3)
    assert made.count == 0
    waiting = GroupLoad(
        group="default", count_min=0, count_max=3, slots=1, queued_jobs=30, queued_bytes=30 * MIB
    )
    now_s, counts = 0.0, []
    for _ in range(20):
        now_s += 5.0
        for name in made.scale(waiting, now_s):
            made.ready(name, now_s)
        counts.append(made.count)
    assert max(counts) == 3

    idle = GroupLoad(group="default", count_min=0, count_max=3, slots=1)
    for _ in range(400):
        now_s += 5.0
        assert not made.scale(idle, now_s)
    assert made.count == 0
    assert made.free_slot() is None


def test_a_compactor_that_was_drained_while_it_started_does_not_come_up() -> None:
    made = group(slots=1, count_min=0, count_max=1)
    made.starting["default-1"] = 0.0
    made.starting.pop("default-1")
    made.ready("default-1", 30.0)

    assert made.count == 0
