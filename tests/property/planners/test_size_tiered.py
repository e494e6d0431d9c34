"""What holds of the size-tiered planner for every tablet."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from common.model.file import DataFile
from common.model.group import Group
from common.model.job import Kind
from common.spi.planner import PlanParameters, RequestFacts
from coordinator.plugins.planners.size_tiered import SizeTieredPlanner
from tests.support.plan_loop import SHRINKS, Shrink, check_busy_files_are_left, live
from tests.support.planning import parameters

DAY_S = 86_400.0


@st.composite
def tablets(draw: st.DrawFn) -> PlanParameters:
    files = {}
    for number in range(draw(st.integers(1, 40))):
        low, rows = draw(st.integers(0, 200)), draw(st.integers(1, 20))
        dead = draw(st.sampled_from([0, 0, 1, rows]))
        files[f"f{number:03}"] = DataFile(
            path=f"f{number:03}",
            size_bytes=draw(st.one_of(st.integers(0, 60), st.integers(0, 2500))),
            rows=rows,
            key_min=bytes([low]),
            key_max=bytes([min(255, low + draw(st.integers(0, 60)))]),
            version_min=bytes([draw(st.integers(0, 9))]) if draw(st.booleans()) else None,
            version_max=bytes([9]),
            tombstones=dead,
            tombstones_since_s=1.0 if dead else None,
            added_at_s=draw(st.sampled_from([0.0, DAY_S, 3 * DAY_S])),
        )
    asked = parameters(
        files,
        kind=draw(st.sampled_from([*Kind])),
        groups=[Group(name="small", max_bytes=draw(st.sampled_from([700, 10_000, None])))],
        max_files=draw(st.sampled_from([2, 3, 10, 100])),
    )
    options = draw(
        st.sampled_from([
            {"min_file": 50}, {"min_file": 0, "min_threshold": 2, "max_threshold": 2},
            {"enforce_min_threshold": True}, {"unchecked_tombstone_compaction": True},
        ])
    )  # fmt: skip
    return replace(
        asked, options=options, request=RequestFacts(request="r1"), now_s=draw(st.floats(0, 1e7))
    )


@given(asked=tablets(), shrink=st.sampled_from(SHRINKS))
@settings(max_examples=50, deadline=None, print_blob=True)
def test_planning_and_committing_comes_to_rest(asked: PlanParameters, shrink: Shrink) -> None:
    if asked.kind is Kind.SYSTEM:
        asked = replace(asked, request=None)
    count = len(asked.files)
    life = live("size-tiered", SizeTieredPlanner(), asked, shrink=shrink, jobs_max=2 * count)
    if asked.kind is Kind.USER:
        assert len(life.files) == 1


@given(asked=tablets(), taken=st.sets(st.integers(0, 39), max_size=12))
@settings(max_examples=50, deadline=None, print_blob=True)
def test_files_of_jobs_under_way_are_in_no_other(asked: PlanParameters, taken: set[int]) -> None:
    busy = [f"f{number:03}" for number in sorted(taken)]
    check_busy_files_are_left("size-tiered", SizeTieredPlanner(), asked, busy)
