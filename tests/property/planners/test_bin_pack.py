"""What holds of the bin-pack planner for every tablet."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from common.model.file import DataFile
from common.model.group import Group
from common.model.job import Kind
from common.model.table import TableSettings
from common.spi.planner import PlanParameters, RequestFacts
from coordinator.plugins.planners.bin_pack import BinPackPlanner
from coordinator.plugins.planners.packing import first_merges, parts_of
from tests.support.plan_loop import SHRINKS, Shrink, check_busy_files_are_left, live
from tests.support.planning import files_of, parameters

HOUR_S = 3600.0
TARGET = 1000


@st.composite
def data_files(draw: st.DrawFn, number: int) -> DataFile:
    low, wide = draw(st.integers(0, 200)), draw(st.integers(0, 60))
    rows = draw(st.integers(1, 20))
    dead = draw(st.sampled_from([0, 0, 0, 1, rows // 2, rows]))
    keys = draw(st.booleans())
    return DataFile(
        path=f"f{number:03}",
        size_bytes=draw(st.one_of(st.integers(0, 60), st.integers(0, 2500))),
        rows=rows,
        key_min=bytes([low]) if keys else None,
        key_max=bytes([min(255, low + wide)]) if keys else None,
        time_min_s=float(low),
        time_max_s=float(low + wide),
        tombstones=dead,
        tombstones_since_s=float(low) if dead else None,
        added_at_s=float(draw(st.integers(0, 300))),
    )


@st.composite
def tablets(draw: st.DrawFn) -> PlanParameters:
    count = draw(st.integers(1, 40))
    files = {file.path: file for file in (draw(data_files(number)) for number in range(count))}
    groups = [Group(name="small", max_bytes=draw(st.sampled_from([50, 700, 5000])))]
    if draw(st.booleans()):
        groups.append(Group(name="large"))
    return PlanParameters(
        tablet=parameters({}).tablet,
        table_name="events",
        kind=draw(st.sampled_from([*Kind])),
        settings=TableSettings(
            target_bytes=TARGET,
            max_files=draw(st.sampled_from([2, 3, 10, 100])),
            file_limit=draw(st.sampled_from([0, 4, 15])),
            ttl_s=draw(st.sampled_from([None, 100.0])),
            tombstone_retention_s=50.0,
        ),
        options=draw(st.sampled_from([{}, {"min_input_files": 2}, {"max_wait": "3d"}])),
        files=files,
        candidates=tuple(files.values()),
        groups=tuple(groups),
        request=RequestFacts(request="r1"),
        now_s=float(draw(st.integers(0, 10_000))),
        keyed=draw(st.booleans()),
        timed=draw(st.booleans()),
    )


@given(asked=tablets(), shrink=st.sampled_from(SHRINKS))
@settings(max_examples=50, deadline=None, print_blob=True)
def test_planning_and_committing_comes_to_rest(asked: PlanParameters, shrink: Shrink) -> None:
    if asked.kind is Kind.SYSTEM:
        asked = replace(asked, request=None)
    # Time passes, too: nothing else changes what an old tablet is.
    # Here no rewrite drops a row, so what has expired is found again at each half of its time.
    # A file that is too large is cut once, and each part counts as a file then.
    parts = sum(parts_of(file.size_bytes, TARGET) for file in asked.files.values())
    halves = 10 if asked.settings.ttl_s is not None and asked.timed else 0
    # Outputs that grew with each of these rewrites would become too large, and be cut anew.
    assume(not halves or shrink(1000) <= 1000)
    life = live(
        "bin-pack",
        BinPackPlanner(),
        asked,
        shrink=shrink,
        jobs_max=(3 + halves) * max(parts, len(asked.files)),
        until_s=asked.now_s + 1000 * HOUR_S,
    )
    if asked.kind is Kind.USER:
        assert all(file.request == "r1" for file in life.files.values())


@given(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=30), width=st.integers(2, 12))
@settings(max_examples=50, deadline=None, print_blob=True)
def test_a_request_ends_in_one_file_where_all_fits_into_one(sizes: list[int], width: int) -> None:
    asked = parameters(
        files_of((f"f{number:02}", size) for number, size in enumerate(sizes)),
        kind=Kind.USER,
        target_bytes=TARGET,
        max_files=width,
    )
    asked = replace(asked, request=RequestFacts(request="r1"))
    life = live("bin-pack", BinPackPlanner(), asked, jobs_max=len(sizes))
    assert len(life.files) == 1


@given(count=st.integers(1, 400), width=st.integers(2, 20))
@example(count=3, width=2)
@settings(max_examples=50, deadline=None, print_blob=True)
def test_the_first_merges_lead_to_one_file_in_as_few_jobs_as_can_be(count: int, width: int) -> None:
    names = itertools.count()
    files = [DataFile(path=f"f{next(names)}", size_bytes=1, rows=1) for _ in range(count)]
    jobs = 0
    while len(files) > 1:
        merges = first_merges(files, width)
        assert all(2 <= len(merge) <= width for merge in merges)
        gone = {file.path for merge in merges for file in merge}
        outputs = [
            DataFile(path=f"f{next(names)}", size_bytes=len(merge), rows=1) for merge in merges
        ]
        files = [file for file in files if file.path not in gone] + outputs
        jobs += len(merges)
    assert jobs == -(-(count - 1) // (width - 1))


@given(asked=tablets(), taken=st.sets(st.integers(0, 39), max_size=12))
@settings(max_examples=50, deadline=None, print_blob=True)
def test_files_of_jobs_under_way_are_in_no_other(asked: PlanParameters, taken: set[int]) -> None:
    busy = [f"f{number:03}" for number in sorted(taken)]
    check_busy_files_are_left("bin-pack", BinPackPlanner(), asked, busy)
