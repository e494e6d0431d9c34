"""What holds of the log-segment planner for every tablet."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from common.model.job import Kind
from common.spi.planner import PlanParameters
from coordinator.plugins.planners.log_segment import LogSegmentPlanner
from coordinator.plugins.planners.segments import best_range, ranges, segments_needed
from tests.property.planners.test_bin_pack import tablets
from tests.support.plan_loop import SHRINKS, Shrink, check_busy_files_are_left, live

LATE_S = 1e6
PERIOD_S = 86_400.0
POLICIES = ("stats-based", "compact-all", "hybrid")


@st.composite
def logs(draw: st.DrawFn) -> PlanParameters:
    """Draw a tablet of measured files, some of them in segments of several, and options."""
    asked = draw(tablets())
    files = {}
    for path, file in asked.files.items():
        share = draw(st.sampled_from([None, 0.0, 0.1, 0.5, 1.0]))
        tags = [("segment", str(draw(st.integers(0, 9))))] if draw(st.booleans()) else []
        if draw(st.integers(0, 5)) == 0:
            tags.append(("reclaim", "done"))
        files[path] = replace(
            file,
            live_bytes=None if share is None else int(share * file.size_bytes),
            tags=tuple(tags),
            version_min=file.key_min,
            version_max=file.key_max,
        )
    options = {
        "segment_bytes": draw(st.sampled_from([100, 1000])),
        "header_bytes": draw(st.sampled_from([0, 30])),
        "policy": draw(st.sampled_from(POLICIES)),
        "weight_on_benefit": draw(st.booleans()),
        "close_after_s": draw(st.sampled_from([None, 0, 3600])),
        "middle_every_s": draw(st.sampled_from([None, PERIOD_S])),
        "min_reclaim_segments": draw(st.sampled_from([1, 1, 3])),
        "skip_live_ends": draw(st.booleans()),
    }
    user = asked.kind is Kind.USER
    return replace(
        asked,
        files=files,
        candidates=tuple(files.values()),
        options=options,
        request=asked.request if user else None,
        now_s=asked.now_s + LATE_S,
    )


@given(asked=logs(), shrink=st.sampled_from(SHRINKS))
@settings(max_examples=50, deadline=None, print_blob=True, phases=(Phase.generate,))
def test_planning_and_committing_comes_to_rest(asked: PlanParameters, shrink: Shrink) -> None:
    # A file is rewritten once in a period, and at most twice for its statistics: see the module.
    life = live(
        "log-segment",
        LogSegmentPlanner(),
        asked,
        shrink=shrink,
        jobs_max=4 * len(asked.files) + 1,
    )
    if asked.kind is Kind.USER:
        assert [file.request for file in life.files.values()] == ["r1"]


@given(asked=logs(), periods=st.integers(1, 3))
@settings(max_examples=60, deadline=None, print_blob=True, phases=(Phase.generate,))
def test_each_period_costs_one_rewrite_of_a_file(asked: PlanParameters, periods: int) -> None:
    asked = replace(asked, kind=Kind.SYSTEM, request=None)
    options = {**asked.options, "check_every_s": PERIOD_S, "full_every_s": PERIOD_S}
    count = len(asked.files)
    live(
        "log-segment",
        LogSegmentPlanner(),
        replace(asked, options=options),
        jobs_max=(4 + 2 * (periods + 1)) * count,
        until_s=asked.now_s + periods * PERIOD_S,
    )


@given(asked=logs(), taken=st.sets(st.integers(0, 39), max_size=12))
@settings(max_examples=50, deadline=None, print_blob=True, phases=(Phase.generate,))
def test_files_of_jobs_under_way_are_in_no_other(asked: PlanParameters, taken: set[int]) -> None:
    busy = [f"f{number:03}" for number in sorted(taken)]
    check_busy_files_are_left("log-segment", LogSegmentPlanner(), asked, busy)


@given(
    live_bytes=st.lists(st.integers(0, 1000), max_size=12),
    usable=st.integers(700, 1000),
    floor=st.sampled_from([0, 60]),
)
@settings(max_examples=50, deadline=None, print_blob=True, phases=(Phase.generate,))
def test_no_range_is_better_than_the_best(live_bytes: list[int], usable: int, floor: int) -> None:
    best = best_range(live_bytes, usable, floor_bytes=floor)
    every = [
        (sum(max(live, floor) for live in inside) / benefit, -benefit)
        for first in range(len(live_bytes))
        for last in range(first, len(live_bytes))
        if (inside := live_bytes[first : last + 1])
        and (benefit := len(inside) - segments_needed(sum(inside), usable)) >= 1
    ]
    assert (None if best is None else (best.ratio, -best.benefit)) == min(every, default=None)
    assert len(list(ranges(live_bytes, usable, floor_bytes=floor))) == len(every)
