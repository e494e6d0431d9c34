"""What holds of the leveled planner for every tablet."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.model.file import DataFile
from common.model.group import Group
from common.model.job import Kind
from common.model.key_values import KeyType
from common.model.keys import encode_key
from common.spi.planner import PlanParameters, RequestFacts
from coordinator.plugins.planners.leveled import (
    LeveledPlanner,
    level_of,
    levels_of,
    overlap,
    span_of,
)
from tests.support.plan_loop import SHRINKS, Shrink, check_busy_files_are_left, live
from tests.support.planning import parameters

DAY_S = 86_400.0
INT = (KeyType.INT,)
LITTLE_GROWTH = SHRINKS[:4]
"""What triples with every job has no end of bytes, and no number of levels holds it."""


@st.composite
def tablets(draw: st.DrawFn) -> PlanParameters:
    files = {}
    for number in range(draw(st.integers(1, 25))):
        low, rows = draw(st.integers(0, 300)), draw(st.integers(1, 20))
        high = low + draw(st.one_of(st.integers(0, 20), st.integers(0, 300)))
        dead = draw(st.sampled_from([0, 0, 0, rows]))
        known = draw(st.sampled_from([True] * 9 + [False]))
        level = draw(st.sampled_from([0, 0, 1, 1, 2, 8]))
        files[f"f{number:03}"] = DataFile(
            path=f"f{number:03}",
            size_bytes=draw(st.one_of(st.integers(0, 60), st.integers(0, 2500))),
            rows=rows,
            key_min=encode_key([low], INT) if known else None,
            key_max=encode_key([high], INT) if known else None,
            version_max=bytes([9]),
            tombstones=dead,
            tombstones_since_s=1.0 if dead else None,
            added_at_s=draw(st.sampled_from([0.0, DAY_S, 3 * DAY_S])),
            tags=(("level", str(level)),) if level else (),
        )
    asked = parameters(
        files,
        kind=draw(st.sampled_from([*Kind])),
        groups=[Group(name="small", max_bytes=draw(st.sampled_from([1500, 10_000, None, None])))],
        max_files=draw(st.sampled_from([2, 3, 10, 100])),
        target_bytes=draw(st.sampled_from([300, 1000])),
    )
    options = draw(
        st.sampled_from([
            {}, {"fan_out": 2}, {"fan_out": 3, "level0_files_max": 4, "min_file": 0},
            {"enforce_min_threshold": False, "min_file": 0},
        ])
    )  # fmt: skip
    return replace(
        asked,
        options=options,
        request=RequestFacts(request="r1") if asked.kind is Kind.USER else None,
        now_s=draw(st.floats(0, 1e6)),
        key_types=draw(st.sampled_from([INT, ()])),
    )


def cut_already() -> PlanParameters:
    """Return files of level 0 that overlap one file of level 1 each, more than one job takes."""
    files = {}
    for number in range(3):
        for level, size_bytes in ((0, 400), (1, 1400)):
            path = f"f{number}-{level}"
            files[path] = DataFile(
                path=path,
                size_bytes=size_bytes,
                rows=10,
                key_min=encode_key([10 * number], INT),
                key_max=encode_key([10 * number + 9], INT),
                tags=(("level", "1"),) if level else (),
            )
    groups = [Group(name="small", max_bytes=1500)]
    asked = parameters(files, groups=groups, max_files=100, target_bytes=1000)
    return replace(asked, options={"min_file": 0}, key_types=INT)


def overlaps(files: list[DataFile]) -> int:
    """Return how many files of level 1 and higher overlap another one of their level."""
    return len([f for f in levels_of(files)[0].files if level_of(f) and f.key_min is not None])


@example(asked=cut_already(), shrink=LITTLE_GROWTH[0], older=False)
@given(asked=tablets(), shrink=st.sampled_from(LITTLE_GROWTH), older=st.booleans())
@settings(max_examples=50, deadline=None, print_blob=True)
def test_planning_and_committing_comes_to_rest(
    asked: PlanParameters, shrink: Shrink, older: bool
) -> None:
    before = overlaps([*asked.files.values()])
    life = live(
        "leveled",
        LeveledPlanner(),
        asked,
        shrink=shrink,
        jobs_max=40 * len(asked.files),
        moves_are_rewrites=older,
    )
    files = [*life.files.values()]
    assert overlaps(files) <= before, "jobs have made files of one level overlap"
    if asked.kind is Kind.SYSTEM:
        assert overlaps(files) == 0, "what overlaps others of its level becomes level 0"
    if asked.kind is Kind.USER:
        assert all(file.request == "r1" for file in files)
        spans = sorted(span_of([file]) for file in files)
        assert not any(overlap(one, other) for one, other in pairwise(spans)), spans


@given(asked=tablets())
@settings(max_examples=50, deadline=None, print_blob=True)
def test_at_rest_no_level_holds_more_than_it_may(asked: PlanParameters) -> None:
    asked = replace(asked, kind=Kind.SYSTEM, request=None, groups=(Group(name="any"),))
    life = live("leveled", LeveledPlanner(), asked, jobs_max=40 * len(asked.files))
    fan_out, target = asked.options.get("fan_out", 10), asked.settings.target_bytes
    assert isinstance(fan_out, int)
    levels = levels_of(life.files.values())
    for number, level in enumerate(levels[1:-1], 1):
        assert level.size_bytes / (target * fan_out**number) <= 1.001
    assert levels[0].size_bytes < target


@given(asked=tablets(), taken=st.sets(st.integers(0, 24), max_size=12))
@settings(max_examples=50, deadline=None, print_blob=True)
def test_files_of_jobs_under_way_are_in_no_other(asked: PlanParameters, taken: set[int]) -> None:
    busy = [f"f{number:03}" for number in sorted(taken)]
    check_busy_files_are_left("leveled", LeveledPlanner(), asked, busy)
