"""The leveled planner: which files go to the next level, with what, and what stays."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError
from common.model.file import DataFile
from common.model.group import Group
from common.model.job import JobAction, Kind, Plan
from common.model.key_values import KeyType
from common.model.keys import decode_key, encode_key
from common.spi.planner import PlanParameters, RequestFacts, RunningJob, check_table
from coordinator.plugins.planners.leveled import LeveledPlanner, level_of, levels_of
from tests.support.planning import parameters

MIB, DAY_S = 1024**2, 86_400.0
NOW_S = 100 * DAY_S
INT = (KeyType.INT,)
CASES = json.loads(
    (Path(__file__).parents[2] / "data" / "windows_and_levels.json").read_text("utf-8")
)["lcs"]


def file(
    name: str, low: int, high: int, level: int = 0, size: int = 100 * MIB, **given: Any
) -> DataFile:
    return DataFile(
        path=name,
        size_bytes=size,
        rows=10,
        key_min=encode_key([low], INT),
        key_max=encode_key([high], INT),
        tags=(("level", str(level)),) if level else (),
        **{"added_at_s": 1.0} | given,
    )


def asked(*files: DataFile, **given: Any) -> PlanParameters:
    options = {"min_file": 0, "starvation": "1000d"} | given.pop("options", {})
    settings = {"max_files": 32, "file_limit": 0, "target_bytes": 100 * MIB}
    found = parameters({each.path: each for each in files}, **settings | given)
    return replace(found, options=options, now_s=NOW_S, key_types=INT)


def planned(given: PlanParameters) -> Plan:
    return LeveledPlanner().plan(given)


def jobs(plan: Plan) -> list[tuple[list[str], int]]:
    """Return inputs and the level of the outputs."""
    return [(sorted(job.files), int(dict(job.output_tags).get("level", 0))) for job in plan.jobs]


def row_of(prefix: str, count: int, level: int, width: int = 10, **given: Any) -> list[DataFile]:
    """Return neighbours of one level."""
    return [
        file(f"{prefix}{at:02}", at * width, at * width + width - 1, level, **given)
        for at in range(count)
    ]


# ------------------------------------------------------------------------------------------- Levels


def test_files_without_a_tag_are_level_0_and_those_that_overlap_their_level_too() -> None:
    files = [
        file("new", 0, 99),
        file("a", 0, 9, 1),
        file("wide", 5, 40, 1),
        file("b", 20, 29, 1),
        file("deep", 0, 99, 99),
        replace(file("odd", 0, 1), tags=(("level", "-2"),)),
        replace(file("unknown", 0, 1, 2), key_min=None),
    ]
    levels = levels_of(files)
    assert [each.path for each in levels[1].files] == ["a", "b"]
    assert {each.path for each in levels[0].files} == {"new", "odd", "unknown", "wide"}
    assert level_of(files[4]) == 8
    assert [each.path for each in levels[8].files] == ["deep"]
    pair = levels_of([file("a", 0, 9, 1), file("b", 9, 20, 1)])
    assert [each.path for each in pair[1].files] == ["a"], "they share the key 9"
    (job, *_) = planned(asked(*files, target_bytes=1000 * MIB)).jobs
    assert (sorted(job.files), job.action) == (["unknown", "wide"], JobAction.MOVE)
    assert job.output_tags == (("level", "0"),)
    assert job.reason == (
        "2 files of level 1 and 2 to level 0, because other files there overlap them"
    )


@pytest.mark.parametrize(
    ("name", "levels"),
    [("only_L0", {1}), ("L1_and_L2_excess", {2, 3}), ("next_level_nearly_empty", {2})],
)
def test_levels_that_have_a_backlog_get_jobs(name: str, levels: set[int]) -> None:
    (case,) = (each for each in CASES if each["name"] == name)
    files, size = [], case["max_sstable"]
    for level, total in case["level_bytes"].items():
        files += row_of(f"{level}-", total // size, int(level), size=size)
    plan = planned(asked(*files, target_bytes=size, max_files=100))
    assert {level for _, level in jobs(plan)} == levels


# ------------------------------------------------------------------------------------------ Level 0


def test_level_0_is_size_tiered_until_it_is_as_large_as_a_file() -> None:
    few = [file(name, 0, 99, size=10 * MIB) for name in "abc"]
    plan = planned(asked(*few))
    assert plan.jobs == ()
    assert plan.left["a"] == (
        "is in a tier of 3 files of about 10.0 MiB; a tier is merged from 4 files on, in level 0"
    )
    four = [*few, file("d", 0, 99, size=10 * MIB)]
    assert jobs(planned(asked(*four))) == [(["a", "b", "c", "d"], 0)]


def test_level_0_goes_to_level_1_with_all_that_it_overlaps() -> None:
    new = [file(name, 15, 30, size=60 * MIB) for name in "ab"]
    plan = planned(asked(*new, *row_of("one", 6, 1)))
    assert jobs(plan) == [(["a", "b", "one01", "one02", "one03"], 1)]
    assert plan.jobs[0].reason == (
        "level 0 holds 120.0 MiB, at least 100.0 MiB: 2 files of 120.0 MiB to level 1, onto "
        "3 files of 300.0 MiB there"
    )
    assert plan.left["one00"] == "is in level 1, which holds 600.0 MiB of 1000.0 MiB"


def test_outputs_are_cut_to_the_size_of_a_file() -> None:
    new = [file(name, 0, 59, size=60 * MIB) for name in "ab"]
    (job,) = planned(asked(*new, *row_of("one", 6, 1))).jobs
    assert job.outputs_expected == 8
    cuts = [int(str(decode_key(cut, INT)[0])) for cut in job.cuts]
    assert len(cuts) == 7
    steps = [after - before for before, after in zip([-1, *cuts], [*cuts, 59], strict=True)]
    assert all(5 <= step <= 10 for step in steps), cuts


def test_only_a_part_of_level_0_goes_where_the_rest_is_in_use() -> None:
    left, right = file("left", 0, 19), file("right", 50, 69)
    given = asked(left, right, *row_of("one", 8, 1))
    both = [(["left", "one00", "one01"], 1), (["one05", "one06", "right"], 1)]
    assert jobs(planned(given)) == both
    running = RunningJob(kind=Kind.SYSTEM, files=(given.files["one05"],))
    free = tuple(candidate for candidate in given.candidates if candidate.path != "one05")
    busy = planned(replace(given, candidates=free, running=(running,)))
    assert jobs(busy) == [(["left", "one00", "one01"], 1)]


def test_files_of_level_0_that_are_small_for_what_they_overlap_are_merged_first() -> None:
    new = [file(f"n{at}", 0, 99, size=12 * MIB) for at in range(9)]
    ones = row_of("one", 9, 1, width=11, size=400 * MIB)
    plan = planned(
        asked(*new, *ones, max_files=10, target_bytes=100 * MIB, options={"fan_out": 50})
    )
    assert jobs(plan) == [(sorted(each.path for each in new), 0)]
    assert "are merged before they go to level 1" in plan.jobs[0].reason


def test_a_file_that_overlaps_more_than_one_job_takes_is_cut_first() -> None:
    wide = file("wide", 0, 99, size=100 * MIB)
    plan = planned(asked(wide, *row_of("one", 9, 1, width=11), max_files=5))
    assert jobs(plan) == [(["wide"], 0)]
    assert [decode_key(cut, INT)[0] for cut in plan.jobs[0].cuts] == [43, 87]
    assert plan.jobs[0].reason == (
        "1 file of level 0 overlap 9 files of level 1, more than one job accepts: cut into 3"
    )
    two = [file(name, 0, 99, size=100 * MIB) for name in ("w1", "w2")]
    small = [Group(name="small", max_bytes=150 * MIB)]
    one_by_one = planned(asked(*two, *row_of("one", 9, 1, width=11, size=20 * MIB), groups=small))
    assert jobs(one_by_one) == [(["w1"], 0)]
    one = file("one", 0, 99, 1, size=2000 * MIB)
    second = planned(asked(one, *row_of("two", 9, 2, width=11), max_files=5))
    assert jobs(second) == [(["one"], 1)]


def test_with_too_many_files_level_0_comes_before_all_others() -> None:
    new = [file(f"n{at}", at, at) for at in range(6)]
    over = row_of("one", 12, 1)
    assert (["n0", "n1", "n2", "n3", "n4", "n5"], 0) not in jobs(planned(asked(*new, *over)))
    plan = planned(asked(*new, *over, options={"level0_files_max": 5}))
    assert jobs(plan) == [([f"n{at}" for at in range(6)], 0)]
    assert "in level 0, which has 6 files" in plan.jobs[0].reason


def test_files_that_were_cut_for_level_1_are_not_merged_again_however_many_they_are() -> None:
    cut = [replace(part, tags=(("level", "0"),)) for part in row_of("part", 6, 0, size=60 * MIB)]
    ones = row_of("one", 6, 1)
    plan = planned(asked(*cut, *ones, options={"level0_files_max": 5}))
    assert {level for _, level in jobs(plan)} == {1}


def test_a_file_that_cannot_be_merged_goes_to_level_1_at_any_cost() -> None:
    new = [file(name, 0, 99, size=60 * MIB) for name in "ab"]
    one = file("one", 0, 99, 1, size=990 * MIB)
    groups = [Group(name="large", max_bytes=1060 * MIB)]
    plan = planned(asked(*new, one, groups=groups))
    assert jobs(plan) == [(["a", "one"], 1)]
    assert plan.jobs[0].reason.endswith("to level 1, onto 1 file of 990.0 MiB there")


# ------------------------------------------------------------------------------------ Higher levels


def test_of_a_level_that_is_too_large_those_go_that_overlap_least() -> None:
    ones = row_of("one", 11, 1)
    twos = [file("two", 0, 94, 2, size=50 * MIB)]
    plan = planned(asked(*ones, *twos))
    assert jobs(plan) == [(["one10"], 2)]
    assert plan.jobs[0].reason == (
        "level 1 holds 1.1 GiB, 1.10 times its target: 1 file of 100.0 MiB to level 2, which has "
        "no files at its keys"
    )
    assert plan.jobs[0].action is JobAction.MOVE


def test_files_move_only_where_they_need_no_rewrite() -> None:
    (large,) = planned(asked(file("one", 0, 1000, 1, size=1200 * MIB))).jobs
    assert (large.action, large.outputs_expected) == (JobAction.REWRITE, 12)
    (alone,) = planned(asked(file("a", 0, 99, size=110 * MIB))).jobs
    assert (alone.action, jobs(Plan(jobs=(alone,)))) == (JobAction.MOVE, [(["a"], 1)])
    small = [file(f"n{at}", at, at, size=40 * MIB) for at in range(3)]
    (merged,) = planned(asked(*small)).jobs
    assert (merged.action, len(merged.files)) == (JobAction.REWRITE, 3)


def test_neighbours_go_along_for_nothing() -> None:
    ones = row_of("one", 13, 1)
    plan = planned(asked(*ones, file("two", 0, 129, 2, size=900 * MIB)))
    ((inputs, level),) = jobs(plan)
    assert level == 2
    assert set(inputs) == {"two", *(one.path for one in ones)}


def test_a_file_that_has_waited_too_long_goes_first() -> None:
    ones = row_of("one", 11, 1)
    ones[3] = replace(ones[3], added_at_s=NOW_S - 2 * DAY_S)
    twos = [file("two", 25, 45, 2, size=300 * MIB)]
    options = {"starvation": "1d"}
    young = [replace(one, added_at_s=NOW_S) if one.path != "one03" else one for one in ones]
    assert jobs(planned(asked(*young, *twos, options=options))) == [(["one03", "two"], 2)]
    assert "two" in planned(asked(*young, *twos)).left


def test_all_levels_that_are_too_large_get_jobs_at_once() -> None:
    ones = row_of("one", 12, 1)
    twos = row_of("two", 24, 2, size=500 * MIB)
    plan = planned(asked(*ones, *twos))
    assert {level for _, level in jobs(plan)} == {2, 3}


def test_nothing_is_written_where_a_job_under_way_writes() -> None:
    ones = row_of("one", 12, 1)
    given = asked(*ones, file("gone", 0, 200, 1))
    running = RunningJob(kind=Kind.SYSTEM, files=(given.files["gone"],))
    free = tuple(candidate for candidate in given.candidates if candidate.path != "gone")
    plan = planned(replace(given, candidates=free, running=(running,)))
    assert plan.jobs == ()
    assert "it and the files that it overlaps are in use" in plan.left["one00"]


def test_a_job_under_way_may_write_anywhere_between_its_inputs() -> None:
    ones = row_of("one", 12, 1, added_at_s=5.0)
    ends = [file("low", 0, 5, 2), file("high", 110, 115, 2)]
    given = asked(*ones, *ends)
    running = RunningJob(kind=Kind.SYSTEM, files=tuple(ends))
    busy = planned(replace(given, candidates=tuple(ones), running=(running,)))
    assert busy.jobs == ()
    alone = RunningJob(kind=Kind.SYSTEM, files=(ends[0],))
    candidates = (*ones, ends[1])
    found = planned(replace(given, candidates=candidates, running=(alone,)))
    assert {level for _, level in jobs(found)} == {2}


def test_the_last_level_may_hold_anything() -> None:
    assert planned(asked(*row_of("deep", 30, 8), options={"fan_out": 2})).jobs == ()


def test_jobs_fit_into_groups() -> None:
    groups = [Group(name="small", max_bytes=250 * MIB)]
    plan = planned(asked(file("a", 0, 99), *row_of("one", 3, 1, width=30), groups=groups))
    assert jobs(plan) == [(["a"], 0)]
    assert len(plan.jobs[0].cuts) == 2
    small = [Group(name="small", max_bytes=150 * MIB)]
    stuck = planned(asked(file("a", 0, 99), file("one", 0, 99, 1), groups=small))
    assert stuck.jobs == ()
    assert "or more than a job accepts" in stuck.left["a"]


def test_the_levels_of_a_tablet_count_towards_its_limit_and_not_their_files() -> None:
    quiet = [file(name, 0, 99, size=10 * MIB) for name in "abcd"]
    plan = planned(asked(*quiet, *row_of("one", 9, 1), *row_of("two", 60, 2), file_limit=15))
    assert plan.jobs[0].priority < 10_000
    crowd = [file(f"{at:02}", 0, 99, size=MIB) for at in range(20)]
    assert planned(asked(*crowd, file_limit=15)).jobs[0].priority > 20_000


# -------------------------------------------------------------------------- Tombstones and requests


def test_a_file_of_tombstones_stays_in_its_level() -> None:
    dead = file("a", 0, 9, 2, tombstones=8, tombstones_since_s=1.0, version_max=b"9")
    plan = planned(asked(dead))
    assert jobs(plan) == [(["a"], 2)]


def test_a_request_ends_in_files_that_do_not_overlap() -> None:
    files = [file("a", 0, 50), file("b", 40, 90), file("c", 200, 220), file("d", 50, 60, 1)]
    given = replace(asked(*files, kind=Kind.USER), request=RequestFacts(request="r"))
    assert jobs(planned(given)) == [(["a", "b", "d"], 1), (["c"], 1)]
    assert len(planned(given).jobs[0].cuts) == 2
    steps = planned(replace(given, settings=replace(given.settings, max_files=2)))
    assert jobs(steps) == [(["a", "b"], 0), (["c"], 1)]
    results = [file("x", 0, 40, 1, request="r"), file("y", 41, 90, 1, request="r")]
    done = replace(given, files={}, candidates=tuple(results))
    assert planned(done).jobs == ()
    assert set(planned(done).left.values()) == {
        "is a result of the request, and overlaps no other file"
    }
    busy = replace(given, running=(RunningJob(kind=Kind.USER, files=(files[0],)),))
    assert planned(busy).jobs == ()


# ----------------------------------------------------------------------------------------- Refusals


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fan_out": 1}, "fan_out is 1, expected 2 to 100"),
        ({"max_file": 0}, "max_file_bytes is 0 B, expected at least 1 B"),
        ({"min_threshold": 40}, "min_threshold is 40, expected at most max_threshold"),
        ({"fanout": 3}, "option 'fanout' is unknown; did you mean 'fan_out'"),
    ],
)
def test_options_are_checked(options: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        LeveledPlanner().check(options)


def test_a_table_without_a_key_is_refused() -> None:
    check_table("leveled", LeveledPlanner(), keyed=True, timed=False)
    with pytest.raises(
        ConfigError, match="needs a table with a key; choose bin-pack, size-tiered or t"
    ):
        check_table("leveled", LeveledPlanner(), keyed=False, timed=True)
    bag = planned(replace(asked(file("a", 0, 9)), keyed=False))
    assert bag.left == {"a": "has no key, which planner leveled needs"}
