"""What holds of the delta planner for every tablet."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from common.model.file import DataFile
from common.model.group import Group
from common.model.job import Kind
from common.model.key_values import KeyType
from common.model.keys import encode_key
from common.spi.deltas import delta_sets, span_of
from common.spi.planner import Heat, PlanParameters, RequestFacts
from coordinator.plugins.planners.delta import DeltaPlanner
from tests.support.plan_loop import SHRINKS, Shrink, check_busy_files_are_left, live
from tests.support.planning import parameters

INT = (KeyType.INT,)


@st.composite
def tablets(draw: st.DrawFn) -> PlanParameters:
    files = {}
    for number in range(draw(st.integers(1, 25))):
        low, rows = draw(st.integers(0, 300)), draw(st.integers(0, 200))
        high = low + draw(st.one_of(st.integers(0, 20), st.integers(0, 300)))
        dead = draw(st.sampled_from([0, 0, 0, rows]))
        known = draw(st.sampled_from([True] * 9 + [False]))
        size = draw(st.one_of(st.integers(0, 60), st.integers(0, 2500)))
        files[f"f{number:03}"] = DataFile(
            path=f"f{number:03}",
            size_bytes=size,
            rows=rows,
            key_min=encode_key([low], INT) if known else None,
            key_max=encode_key([high], INT) if known else None,
            version_max=bytes([9]),
            tombstones=dead,
            tombstones_since_s=1.0 if dead else None,
            live_bytes=draw(st.sampled_from([None, None, size // 2])),
            added_at_s=float(draw(st.integers(0, 9))),
        )
    asked = parameters(
        files,
        kind=draw(st.sampled_from([*Kind])),
        groups=[Group(name="only", max_bytes=draw(st.sampled_from([1500, 10_000, None, None])))],
        max_files=draw(st.sampled_from([2, 3, 10, 100])),
        target_bytes=draw(st.sampled_from([1024, 5000])),
    )
    return replace(
        asked,
        options=draw(
            st.sampled_from([{}, {"minor_files": 2}, {"major_ratio": 1.5}, {"major_ratio": 1e-9}])
        ),
        heat=Heat(scans_s=draw(st.sampled_from([0.0, 0.5, 7.0]))),
        request=RequestFacts(request="r1") if asked.kind is Kind.USER else None,
        now_s=draw(st.floats(0, 1e6)),
        key_types=draw(st.sampled_from([INT, ()])),
    )


@given(asked=tablets(), shrink=st.sampled_from(SHRINKS))
@settings(max_examples=50, deadline=None, print_blob=True)
def test_planning_and_committing_comes_to_rest(asked: PlanParameters, shrink: Shrink) -> None:
    life = live("delta", DeltaPlanner(), asked, shrink=shrink, jobs_max=20 * len(asked.files))
    files = [*life.files.values()]
    if asked.kind is Kind.USER:
        (only,) = files
        assert only.request == "r1"


@given(asked=tablets())
@settings(max_examples=50, deadline=None, print_blob=True)
def test_at_rest_few_rows_are_updated_and_deltas_are_few(asked: PlanParameters) -> None:
    asked = replace(asked, kind=Kind.SYSTEM, request=None, groups=(Group(name="any"),))
    life = live("delta", DeltaPlanner(), asked, jobs_max=20 * len(asked.files))
    planner_options = asked.options
    ratio = float(str(planner_options.get("major_ratio", 0.1)))
    least = ratio / (1 + min(1.0, asked.heat.scans_s))
    minor = min(int(str(planner_options.get("minor_files", 4))), asked.settings.max_files)
    for delta_set in delta_sets(life.files.values()):
        if not delta_set.base:
            continue
        many = len(delta_set.base) + 1 > asked.settings.max_files
        assert delta_set.updated_share() < least or many, life.left
        assert len(delta_set.deltas) < minor, life.left


@given(asked=tablets())
@settings(max_examples=50, deadline=None, print_blob=True)
def test_each_file_is_base_or_delta_and_base_files_are_apart(asked: PlanParameters) -> None:
    sets = delta_sets(asked.files.values())
    paths = [file.path for set_ in sets for file in set_.files]
    assert sorted(paths) == sorted(asked.files)
    base = [span_of([file]) for set_ in sets for file in set_.base]
    assert all(one[1] < other[0] for one, other in pairwise(base))
    spans = [span_of(set_.files) for set_ in sets]
    assert all(one[1] < other[0] for one, other in pairwise(spans)), "sets do not touch"
    for set_ in sets:
        for delta in set_.deltas:
            known = delta.key_min is not None
            if known and set_.base:
                low, high = span_of([delta])
                over = [
                    f for f in set_.base if (f.key_min or b"") <= high and low <= (f.key_max or b"")
                ]
                assert any(f.size_bytes >= delta.size_bytes for f in over)


@given(asked=tablets(), taken=st.sets(st.integers(0, 24), max_size=12))
@settings(max_examples=50, deadline=None, print_blob=True)
def test_files_of_jobs_under_way_are_in_no_other(asked: PlanParameters, taken: set[int]) -> None:
    busy = [f"f{number:03}" for number in sorted(taken)]
    check_busy_files_are_left("delta", DeltaPlanner(), asked, busy)
