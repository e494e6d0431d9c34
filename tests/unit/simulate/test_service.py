"""From a running service to a specification."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from common.errors import RequestError
from neve.api import Column, Compactor, Group, GroupScaling, Table
from neve.simulate.recording import described, job_speed
from neve.simulate.specification import read_specifications
from tests.unit.simulate.test_recording import file, finished

NOW_S = 1_800_000_000.0
TABLE = Table(
    id="t1",
    name="events",
    location="file:///events",
    state="live",
    schema=(Column(name="k", type="int64"),),
    key=("k",),
    settings={"ratio": 4.0, "planner": "", "planner_options": {}, "ttl_s": 60.0, "volume": "v"},
    created_at_s=NOW_S - 7200,
    tablets=3,
)
FILES = [file(f"f{at}", NOW_S - 60 * at, key_min="1", key_max="9") for at in range(20)]
GROUP = Group(
    group="default",
    queued=0,
    queued_bytes=0,
    queued_cost_bytes=0,
    running=0,
    compactors=2,
    waiting_takes=0,
    accepted=0,
    rejected=0,
    evicted=0,
    oldest_age_s=0.0,
)
SCALED = GroupScaling(
    least=1, most=8, set_to=None, desired=2, starting=0, draining=0, reason="work"
)
COMPACTORS = [
    Compactor(
        compactor=f"default-{at}", group="default", node="n", slots=3, busy=0, heard_ago_s=0.0
    )
    for at in range(2)
]


def made(
    planners: list[str], settings: dict[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    given: dict[str, Any] = {"files": FILES, "history": [], "groups": [GROUP]} | more
    return described(
        more.get("table", TABLE),
        given["files"],
        given["history"],
        given["groups"],
        COMPACTORS,
        planners=planners,
        settings=settings or {},
        now_s=NOW_S,
    )


def test_the_present_planner_comes_first_and_is_as_it_is() -> None:
    document = made(["size-tiered"], {"min_threshold": "6"})
    present, other = read_specifications(document, lambda name: name)

    assert [present.variant, other.variant] == [
        "ratio (as it is)",
        "size-tiered min_threshold=6",
    ]
    assert present.tables[0].settings.ratio == 4.0
    assert present.tables[0].settings.ttl_s is None, "simulated for tables without a key only"
    assert other.tables[0].options == {"min_threshold": 6}
    assert other.tables[0].tablets == 3
    assert present.begin_s == NOW_S


def test_settings_alone_are_set_beside_the_present_ones() -> None:
    document = made([], {"ratio": "2"})
    present, other = read_specifications(document, lambda name: name)

    assert [each.tables[0].settings.ratio for each in (present, other)] == [4.0, 2.0]
    assert len(read_specifications(made([]), lambda name: name)) == 1


def test_a_size_of_segments_is_fixed_for_the_present_and_not_for_what_it_is_compared_with() -> None:
    given = {**TABLE.settings, "planner": "log-segment", "log_segment_bytes": 1024**3}
    document = made([], {"segment": "2GB"}, table=replace(TABLE, settings=given))
    present, other = read_specifications(document, lambda name: name)

    assert present.tables[0].settings.log_segment_bytes == 1024**3
    assert other.tables[0].settings.log_segment_bytes == 0
    assert other.tables[0].options == {"segment": "2GB"}


def test_what_has_come_lately_comes_again() -> None:
    (specification,) = read_specifications(made([]), lambda name: name)
    recording = specification.tables[0].arrivals.recording

    assert recording is not None
    assert recording.length_s == 7200.0, "since the table was created"
    assert len(recording.arrivals) == 20
    assert len(specification.tables[0].files) == 20


def test_a_table_to_which_nothing_comes_is_simulated_all_the_same() -> None:
    old = [replace(each, added_at_s=NOW_S - 1e6) for each in FILES]
    (specification,) = read_specifications(made([], files=old), lambda name: name)

    assert specification.tables[0].arrivals.flushes_s < 1e-6


def test_a_full_history_does_not_reach_further_back_than_it_does() -> None:
    history = [finished(f"{at}", ("gone",), NOW_S - 600) for at in range(10_000)]
    (specification,) = read_specifications(made([], history=history), lambda name: name)
    recording = specification.tables[0].arrivals.recording

    assert recording is not None
    assert recording.length_s == 600.0


def test_compactors_of_all_groups_are_those_of_one() -> None:
    groups = [replace(GROUP, scaling=SCALED), replace(GROUP, group="large", scaling=SCALED)]
    (specification,) = read_specifications(made([], groups=groups), lambda name: name)
    (group,) = specification.cluster.groups

    assert (group.slots, group.count_min, group.count_max) == (3, 2, 16)


def test_a_table_without_files_says_so() -> None:
    with pytest.raises(RequestError, match="table events has no files"):
        made([], files=[])


def test_the_speed_of_jobs_is_that_of_past_ones() -> None:
    base = finished("1", ("a",), 0.0)
    jobs = [
        replace(base, bytes_in=size, ended_s=base.started_s + 0.7 + size / 10e6)
        for size in (1_000_000, 20_000_000, 50_000_000)
    ]
    overhead_s, slot_bytes_s = job_speed(jobs)

    assert overhead_s == pytest.approx(0.7, abs=0.01)
    assert slot_bytes_s == pytest.approx(10e6, rel=0.01)
    assert job_speed([]) == (0.5, 50e6)
    assert job_speed([replace(job, ended_s=job.started_s + 2.0) for job in jobs])[0] == 2.0
