"""What holds of the time-window planner for every tablet."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from common.model.file import DataFile
from common.model.group import Group
from common.model.job import Kind
from common.spi.planner import PlanParameters, RequestFacts
from coordinator.plugins.planners.time_window import TimeWindowPlanner, window_start
from tests.support.plan_loop import SHRINKS, Shrink, check_busy_files_are_left, live
from tests.support.planning import parameters

HOUR_S, DAY_S = 3600.0, 86_400.0
LATEST_S = 40 * DAY_S


@st.composite
def tablets(draw: st.DrawFn) -> PlanParameters:
    files = {}
    for number in range(draw(st.integers(1, 30))):
        low, rows = draw(st.integers(0, 200)), draw(st.integers(1, 20))
        dead = draw(st.sampled_from([0, 0, 0, rows]))
        at_s = draw(st.one_of(st.none(), st.floats(-DAY_S, LATEST_S), st.just(39.5 * DAY_S)))
        start_s = 0 if at_s is None else window_start(at_s, 6 * HOUR_S)
        files[f"f{number:03}"] = DataFile(
            path=f"f{number:03}",
            size_bytes=draw(st.one_of(st.integers(0, 60), st.integers(0, 2500))),
            rows=rows,
            key_min=bytes([low]),
            key_max=bytes([min(255, low + draw(st.integers(0, 60)))]),
            version_min=bytes([draw(st.integers(0, 9))]) if draw(st.booleans()) else None,
            version_max=bytes([9]),
            time_min_s=at_s,
            time_max_s=at_s,
            tombstones=dead,
            tombstones_since_s=1.0 if dead else None,
            added_at_s=draw(st.sampled_from([0.0, 39 * DAY_S, LATEST_S])),
            job=draw(st.sampled_from([None, "j"])),
            tags=draw(st.sampled_from([(), (), (("window", f"{start_s:.0f}"),)])),
        )
    asked = parameters(
        files,
        kind=draw(st.sampled_from([*Kind])),
        groups=[Group(name="small", max_bytes=draw(st.sampled_from([700, 10_000, None])))],
        max_files=draw(st.sampled_from([2, 3, 10, 100])),
        ttl_s=draw(st.sampled_from([None, DAY_S, 30 * DAY_S])),
    )
    options = draw(
        st.sampled_from([
            {"window": "6h"}, {"window_unit": "days", "min_file": 0, "min_threshold": 2},
            {"window": "6h", "enforce_min_threshold": False}, {"tombstone_compaction": True},
        ])
    )  # fmt: skip
    return replace(
        asked,
        options=options,
        request=RequestFacts(request="r1") if asked.kind is Kind.USER else None,
        keyed=draw(st.booleans()),
        timed=draw(st.sampled_from([True, True, True, False])),
        now_s=LATEST_S + draw(st.floats(0, DAY_S)),
    )


@given(asked=tablets(), shrink=st.sampled_from(SHRINKS), right=st.booleans())
@settings(max_examples=50, deadline=None, print_blob=True)
def test_planning_and_committing_comes_to_rest(
    asked: PlanParameters, shrink: Shrink, right: bool
) -> None:
    life = live(
        "time-window",
        TimeWindowPlanner(),
        asked,
        shrink=shrink,
        jobs_max=3 * len(asked.files),
        drops_prove_right=right,
    )
    if asked.kind is Kind.USER:
        length_s = 6 * HOUR_S if "window" in asked.options else DAY_S
        times = [file.time_max_s for file in life.files.values()]
        windows = [None if at is None else window_start(at, length_s) for at in times]
        assert len(set(windows)) == len(windows) if asked.timed else len(windows) == 1


@given(asked=tablets())
@settings(max_examples=50, deadline=None, print_blob=True)
def test_it_rests_while_time_passes_and_what_has_expired_goes(asked: PlanParameters) -> None:
    # Tombstones that are never dropped would be tried again every day.
    asked = replace(asked, kind=Kind.SYSTEM, request=None, options={"window": "6h"})
    until_s = asked.now_s + 400 * DAY_S
    life = live(
        "time-window",
        TimeWindowPlanner(),
        asked,
        jobs_max=3 * len(asked.files),
        until_s=until_s,
        drops_prove_right=True,
    )
    if asked.timed and asked.settings.ttl_s is not None and not asked.keyed:
        assert all(file.time_max_s is None for file in life.files.values())


@given(asked=tablets(), taken=st.sets(st.integers(0, 29), max_size=12))
@settings(max_examples=50, deadline=None, print_blob=True)
def test_files_of_jobs_under_way_are_in_no_other(asked: PlanParameters, taken: set[int]) -> None:
    busy = [f"f{number:03}" for number in sorted(taken)]
    check_busy_files_are_left("time-window", TimeWindowPlanner(), asked, busy)
