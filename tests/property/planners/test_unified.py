"""What holds of the unified planner for every tablet."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from common.model.file import DataFile
from common.model.group import Group
from common.model.job import Kind
from common.spi.controller import WorkUnderWay
from common.spi.planner import PlanParameters
from coordinator.plugins.planners.leveled import overlap, span_of
from coordinator.plugins.planners.unified import UnifiedPlanner, UnifiedTrackers
from tests.property.planners.test_leveled import LITTLE_GROWTH, tablets
from tests.support.plan_loop import Shrink, check_busy_files_are_left, live

OPTIONS: list[dict[str, object]] = [
    {"flush_size": 50, "min_file": 0},
    {"flush_size": 10, "scaling_parameters": "L4", "file_growth": 0, "min_file": 0},
    {"flush_size": 10, "scaling_parameters": "T3 N", "base_section_count": 4},
    {"scaling_parameters": "L10", "max_files_to_compact": 2},
]


@st.composite
def asked_of(draw: st.DrawFn) -> PlanParameters:
    """Return the tablets of planner leveled, whose tags mean nothing here."""
    asked = replace(draw(tablets()), options=draw(st.sampled_from(OPTIONS)))
    return replace(asked, keyed=draw(st.sampled_from([True, True, True, False])))


def jobs_max(count: int) -> int:
    """Return a bound on the jobs until rest.

    A job ends at least one overlap of two files between two neighbouring bounds of files. With two
    files per job it may be no more than that, so the bound is quadratic.
    """
    return 40 * count + 4 * count**2


def at_one_key(files: list[DataFile]) -> int:
    """Return the largest number of files with a key in common, counted key by key."""
    spans = [span_of([file]) for file in files]
    return max(sum(low <= key <= high for low, high in spans) for key, _ in spans)


@given(asked=asked_of(), shrink=st.sampled_from(LITTLE_GROWTH))
@settings(max_examples=50, deadline=None, print_blob=True)
def test_planning_and_committing_comes_to_rest(asked: PlanParameters, shrink: Shrink) -> None:
    before = at_one_key([*asked.files.values()])
    count = len(asked.files)
    life = live("unified", UnifiedPlanner(), asked, shrink=shrink, jobs_max=jobs_max(count))
    files = [*life.files.values()]
    assert at_one_key(files) <= max(before, 1)
    if asked.kind is Kind.USER and asked.keyed:
        assert all(file.request == "r1" for file in files)
        spans = sorted(span_of([file]) for file in files)
        assert not any(overlap(one, other) for one, other in pairwise(spans)), spans


@given(asked=asked_of())
@settings(max_examples=50, deadline=None, print_blob=True)
def test_a_plan_merges_files_that_form_one_range_and_rest_owes_nothing(
    asked: PlanParameters,
) -> None:
    asked = replace(asked, kind=Kind.SYSTEM, request=None, groups=(Group(name="any"),), keyed=True)
    for job in UnifiedPlanner().plan(asked).jobs:
        spans = sorted(span_of([asked.files[path]]) for path in job.files)
        end = spans[0][1]
        for low, high in spans[1:]:
            assert low <= end, "the inputs leave a gap"
            end = max(end, high)
    life = live("unified", UnifiedPlanner(), asked, jobs_max=jobs_max(len(asked.files)))
    tracker = UnifiedTrackers().tracker(asked.settings, asked.options)
    for file in life.files.values():
        tracker.add(file)
    assert tracker.backlog_bytes(WorkUnderWay()) == 0


@given(asked=asked_of(), taken=st.sets(st.integers(0, 24), max_size=12))
@settings(max_examples=50, deadline=None, print_blob=True)
def test_files_of_jobs_under_way_are_in_no_other(asked: PlanParameters, taken: set[int]) -> None:
    busy = [f"f{number:03}" for number in sorted(taken)]
    check_busy_files_are_left("unified", UnifiedPlanner(), asked, busy)
