"""What holds of the budgeted planner for every tablet."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from common.model.job import Kind
from common.spi.planner import PlanParameters, RequestFacts
from coordinator.plugins.planners.budgeted import MIB, BudgetedPlanner
from tests.property.planners.test_bin_pack import tablets
from tests.support.plan_loop import SHRINKS, Shrink, live

SCALE = MIB // 50


@given(asked=tablets(), shrink=st.sampled_from(SHRINKS))
@settings(max_examples=50, deadline=None, print_blob=True)
def test_planning_and_committing_comes_to_rest(asked: PlanParameters, shrink: Shrink) -> None:
    files = {
        path: replace(file, size_bytes=file.size_bytes * SCALE)
        for path, file in asked.files.items()
    }
    user = asked.kind is Kind.USER
    asked = replace(
        asked,
        files=files,
        candidates=tuple(files.values()),
        options={"budget": "8MB"},
        request=RequestFacts(request="r1") if user else None,
        groups=asked.groups[1:] or asked.groups,
    )
    life = live("budgeted", BudgetedPlanner(), asked, shrink=shrink, jobs_max=len(files) - 1 + user)
    if user:
        assert [file.request for file in life.files.values()] == ["r1"]


@given(data=st.data())
@settings(max_examples=50, deadline=None, print_blob=True)
def test_the_same_files_in_another_order_have_the_same_plan(data: st.DataObject) -> None:
    asked = replace(data.draw(tablets()), kind=Kind.SYSTEM, request=None, options={})
    shuffled = data.draw(st.permutations(asked.candidates))
    found = BudgetedPlanner().plan(asked)
    again = BudgetedPlanner().plan(replace(asked, candidates=tuple(shuffled)))
    assert found.jobs == again.jobs
