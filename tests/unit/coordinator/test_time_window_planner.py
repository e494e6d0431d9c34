"""The time-window planner: which window a file is of, when it is over, and what has expired."""

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
from common.spi.planner import PlanParameters, RequestFacts, RunningJob, check_table
from coordinator.plugins.planners.time_window import KEPT, TimeWindowPlanner, window_start
from tests.support.planning import parameters

MIB, HOUR_S, DAY_S = 1024**2, 3600.0, 86_400.0
NOW_S = 100 * DAY_S
TODAY_S = NOW_S - DAY_S
"""Start of the newest window in most tests: its end is now."""
CASES = json.loads(
    (Path(__file__).parents[2] / "data" / "windows_and_levels.json").read_text("utf-8")
)["twcs"]


def timed(name: str, time_s: float, size: int = 100 * MIB, **given: Any) -> DataFile:
    return DataFile(
        path=name, size_bytes=size, rows=10, time_min_s=time_s - 1, time_max_s=time_s, **given
    )


def asked(*files: DataFile, **given: Any) -> PlanParameters:
    options, keyed = given.pop("options", {}), given.pop("keyed", False)
    now_s, is_timed = given.pop("now_s", NOW_S - 1), given.pop("is_timed", True)
    named = {file.path: file for file in files}
    found = parameters(named, **{"max_files": 32, "file_limit": 0} | given)
    return replace(found, options=options, now_s=now_s, keyed=keyed, timed=is_timed)


def planned(given: PlanParameters) -> Plan:
    return TimeWindowPlanner().plan(given)


def sets(plan: Plan) -> list[list[str]]:
    return [sorted(job.files) for job in plan.jobs]


# ------------------------------------------------------------------------------------------ Windows


@pytest.mark.parametrize("case", CASES["lower_bounds"], ids=lambda case: str(case["window_s"]))
def test_windows_begin_where_the_family_has_them(case: dict[str, Any]) -> None:
    start_s = window_start(case["ts_us"] / 1e6, case["window_s"])
    assert start_s == case["bound_us"] / 1e6


def test_files_of_the_sum_example_are_in_the_windows_of_the_family() -> None:
    example = CASES["sum_example"]
    files = [timed(name, float(at), size) for name, size, at in example["files"]]
    plan = planned(asked(*files, options={"window": f"{example['window_s']}s"}, now_s=9000.0))
    assert sets(plan) == [["e", "f"], ["a", "b", "c", "d"]]
    assert [job.output_tags for job in plan.jobs] == [(("window", "3600"),), (("window", "0"),)]
    assert plan.left["g"] == (
        "no other file is of similar size (7.8 KiB), in the newest 1h window from "
        "1970-01-01 02:00 UTC"
    )


@pytest.mark.parametrize(
    ("options", "together"),
    [
        ({}, True),
        ({"window_unit": "days", "window_size": 2}, True),
        ({"window_unit": "hours", "window_size": "6"}, False),
        ({"window": "6h"}, False),
        ({"window_unit": "minutes", "window_size": 1000}, True),
    ],
)
def test_a_window_has_a_unit_and_a_size(options: dict[str, object], together: bool) -> None:
    # Five hours and 55 minutes, and ten minutes later: neighbours of a multiple of six hours.
    files = [timed("a", 5.9 * HOUR_S), timed("b", 6.1 * HOUR_S), timed("new", TODAY_S)]
    assert (sets(planned(asked(*files, options=options))) == [["a", "b"]]) is together


def test_the_newest_window_is_size_tiered() -> None:
    files = [timed(name, TODAY_S + at) for at, name in enumerate("abc")]
    few = planned(asked(*files))
    assert few.jobs == ()
    assert "a tier is merged from 4 files on, in the newest 1d window from" in few.left["a"]
    four = [*files, timed("d", TODAY_S + 9), timed("large", TODAY_S + 10, 900 * MIB)]
    plan = planned(asked(*four))
    assert sets(plan) == [[*"abcd"]]
    assert plan.jobs[0].output_tags == ()
    assert "4 files of similar size" in plan.jobs[0].reason


def test_a_window_before_the_newest_becomes_one_file_whatever_the_sizes() -> None:
    old = [timed("a", 100.0, MIB), timed("b", 200.0, 5000 * MIB)]
    plan = planned(asked(*old, timed("new", TODAY_S)))
    assert sets(plan) == [["a", "b"]]
    assert plan.jobs[0].reason == (
        "the 1d window from 1970-01-01 00:00 UTC is over: 2 files of 4.9 GiB, which are all of it"
    )
    alone = planned(asked(old[0], timed("new", TODAY_S)))
    assert alone.jobs == ()
    assert alone.left["a"].startswith("is the only usable file in the 1d window")


def test_the_newest_window_is_over_when_its_time_is_and_nothing_came_for_a_while() -> None:
    files = [timed(name, TODAY_S + 5, added_at_s=TODAY_S + 10) for name in "ab"]
    before = planned(asked(*files, now_s=NOW_S - 1))
    assert (before.jobs, before.due_at_s) == ((), NOW_S)
    assert sets(planned(asked(*files, now_s=NOW_S))) == [["a", "b"]]
    recent = [replace(files[0], added_at_s=NOW_S - 100), files[1]]
    waits = planned(asked(*recent, now_s=NOW_S))
    assert (waits.jobs, waits.due_at_s) == ((), NOW_S - 100 + HOUR_S)
    unknown = [replace(file, added_at_s=0.0) for file in files]
    assert planned(asked(*unknown, now_s=NOW_S)).jobs == ()


def test_files_that_come_late_are_gathered_before_a_window_is_merged_again() -> None:
    whole = timed("whole", 500.0, 800 * MIB, tags=(("window", "0"),), job="j")
    late = timed("late", 600.0, added_at_s=NOW_S - 100)
    new = timed("new", TODAY_S, added_at_s=NOW_S - 100)
    plan = planned(asked(whole, late, new))
    assert (plan.jobs, plan.due_at_s) == ((), NOW_S - 100 + HOUR_S)
    assert plan.left["whole"] == (
        "is the 1d window from 1970-01-01 00:00 UTC; 1 file arrived late, and all files are merged "
        "at 1970-04-11 00:58 UTC"
    )
    later = planned(asked(whole, late, new, now_s=NOW_S - 100 + HOUR_S))
    assert sets(later) == [["late", "whole"]]
    four = [replace(late, path=name) for name in "abcd"]
    assert sets(planned(asked(whole, *four, new))) == [[*"abcd"]]
    huge = replace(whole, size_bytes=100 * 800 * MIB)
    patient = planned(asked(huge, late, new, now_s=NOW_S + HOUR_S))
    assert (patient.jobs, patient.due_at_s) == ((), NOW_S - 100 + 80 * HOUR_S)


def test_a_large_window_is_merged_in_steps() -> None:
    old = [timed(f"{at:02}", 100.0, (at + 1) * MIB) for at in range(12)]
    plan = planned(asked(*old, timed("new", TODAY_S), max_files=10))
    assert sets(plan) == [["00", "01", "02"]]
    assert plan.jobs[0].output_tags == ()
    assert "3 files of 6.0 MiB, the smallest first" in plan.jobs[0].reason
    groups = [Group(name="small", max_bytes=2 * MIB)]
    capped = planned(asked(*old, timed("new", TODAY_S), groups=groups))
    assert capped.jobs == ()
    assert "more than any group accepts (2.0 MiB)" in capped.left["00"]


def test_a_window_with_a_job_under_way_waits() -> None:
    old = [timed(name, 100.0) for name in "abcd"]
    other = [timed(name, DAY_S + 100.0) for name in "xy"]
    given = asked(*old, *other, timed("new", TODAY_S), candidates=["a", "b", "x", "y", "new"])
    running = RunningJob(kind=Kind.SYSTEM, files=tuple(old[2:]))
    plan = planned(replace(given, running=(running,)))
    assert sets(plan) == [["x", "y"]]
    assert plan.left["a"].startswith("waits for the running job in the 1d window")


def test_a_table_without_times_is_one_window() -> None:
    files = [replace(timed(name, 100.0), time_min_s=None, time_max_s=None) for name in "abcd"]
    plan = planned(asked(*files, timed("new", TODAY_S), is_timed=False))
    assert sets(plan) == [["a", "b", "c", "d", "new"]]
    assert plan.jobs[0].reason.endswith(
        ", in the table, which has no time column and therefore forms one window"
    )
    some = planned(asked(*files, timed("new", TODAY_S)))
    assert sets(some) == [["a", "b", "c", "d"]]
    assert some.jobs[0].reason.endswith(", in the files without a time, which form one window")


# ------------------------------------------------------------------------------------ Expired files


def test_files_are_dropped_when_all_of_their_rows_have_expired() -> None:
    files = [timed("a", 100.0), timed("b", 200.0), timed("new", TODAY_S)]
    given = asked(*files, ttl_s=DAY_S)
    before = planned(replace(given, now_s=DAY_S + 100.0))
    assert sets(before) == [["a", "b"]]
    assert before.jobs[0].action is JobAction.REWRITE
    plan = planned(replace(given, now_s=DAY_S + 201.0))
    assert sets(plan) == [["a", "b"]]
    assert (plan.jobs[0].action, plan.jobs[0].outputs_expected) == (JobAction.DROP, 0)
    assert plan.jobs[0].reason == (
        "all rows of 2 files of 200.0 MiB have expired: the latest is of 1970-01-01 00:03 UTC, "
        "and ttl is 1d"
    )
    many = [timed(f"{at:02}", 100.0) for at in range(7)]
    assert [len(files) for files in sets(planned(asked(*many, ttl_s=DAY_S, max_files=3)))] == [
        *(3, 3, 1)
    ]


def test_the_planner_is_asked_again_when_files_expire_a_few_minutes_of_them_at_once() -> None:
    given = asked(timed("a", 100.0), timed("b", 130.0), ttl_s=DAY_S, now_s=1000.0)
    assert planned(given).due_at_s == DAY_S + 600
    assert planned(replace(given, options={"expired_check": "50s"})).due_at_s == DAY_S + 150


def test_a_file_that_a_drop_has_kept_is_not_dropped_again_at_once() -> None:
    kept = timed("a", 100.0, added_at_s=NOW_S - 10, job="j", tags=(KEPT,))
    plan = planned(asked(kept, ttl_s=DAY_S))
    assert (plan.jobs, plan.due_at_s) == ((), NOW_S + DAY_S)
    (job,) = planned(asked(kept, ttl_s=DAY_S, now_s=NOW_S + DAY_S)).jobs
    assert (job.files, job.action, job.output_tags) == (("a",), JobAction.DROP, (KEPT,))


def test_what_was_merged_before_the_table_had_a_ttl_is_dropped_at_once() -> None:
    merged = timed("a", 100.0, added_at_s=NOW_S - 10, job="j")
    assert sets(planned(asked(merged, ttl_s=DAY_S))) == [["a"]]


def keyed(name: str, version: int, *, old: bool, **given: Any) -> DataFile:
    facts: dict[str, Any] = {
        "key_min": b"a", "key_max": b"m", "version_min": bytes([version]),
        "version_max": bytes([version + 5]),
    }  # fmt: skip
    return timed(name, 100.0 if old else TODAY_S, **facts | given)


def drops(*files: DataFile, **given: Any) -> list[list[str]]:
    plan = planned(asked(*files, keyed=True, ttl_s=DAY_S, **given))
    return [sorted(job.files) for job in plan.jobs if job.action is JobAction.DROP]


def test_a_table_with_a_key_keeps_expired_rows_as_long_as_tombstones() -> None:
    file = keyed("a", 1, old=True)
    safe_s = 100 + DAY_S + 1 + 1.25 * 7 * DAY_S
    assert drops(file, tombstone_retention_s=7 * DAY_S, now_s=safe_s - 1) == []
    assert drops(file, tombstone_retention_s=7 * DAY_S, now_s=safe_s) == [["a"]]


def test_expired_rows_that_hide_older_ones_stay_or_go_with_them() -> None:
    file, older = keyed("a", 5, old=True), keyed("b", 2, old=False)
    plan = planned(asked(file, older, keyed=True, ttl_s=DAY_S))
    assert plan.jobs == ()
    assert plan.left["a"].endswith("has expired, and b may hold older rows of its keys")
    assert drops(file, replace(older, version_min=b"\x20")) == [["a"]]
    assert drops(file, replace(older, key_min=b"n", key_max=b"z")) == [["a"]]
    both = keyed("b", 2, old=True)
    assert drops(file, both) == [["a", "b"]]
    apart = keyed("c", 2, old=True, key_min=b"x", key_max=b"z")
    assert drops(file, both, apart) == [["a", "b", "c"]]
    assert drops(file, both, apart, max_files=2) == [["a", "b"], ["c"]]
    three = [file, both, keyed("c", 1, old=True)]
    assert drops(*three, max_files=2) == []


# -------------------------------------------------------------------------- Requests and tombstones


def test_a_request_ends_in_one_file_per_window() -> None:
    files = [timed(name, at * DAY_S + 5) for at, name in enumerate("aabbc")]
    files = [replace(file, path=f"{file.path}{at}") for at, file in enumerate(files)]
    same = [replace(file, time_max_s=5.0 if file.path[0] == "a" else 9e5) for file in files[:4]]
    given = replace(
        asked(*same, files[4], kind=Kind.USER), request=RequestFacts(request="r"), now_s=NOW_S
    )
    plan = planned(given)
    assert sorted(sets(plan)) == [["a0", "a1"], ["b2", "b3"], ["c4"]]
    assert {job.output_tags[0][0] for job in plan.jobs} == {"window"}
    results = {f"r{at}": replace(same[at], path=f"r{at}", request="r") for at in (0, 2)}
    done = planned(replace(given, files=results, candidates=tuple(results.values())))
    assert done.jobs == ()
    assert set(done.left.values()) == {"is the result of the request"}
    busy = replace(given, running=(RunningJob(kind=Kind.USER, files=(same[1],)),))
    busy = replace(busy, candidates=tuple(file for file in busy.candidates if file != same[1]))
    assert sorted(sets(planned(busy))) == [["b2", "b3"], ["c4"]]


def test_files_are_rewritten_for_tombstones_only_if_it_is_asked_for() -> None:
    dead = keyed(
        "a", 1, old=True, tombstones=8, tombstones_since_s=1.0, added_at_s=1.0,
        tags=(("window", "0"),),
    )  # fmt: skip
    assert planned(asked(dead, keyed=True)).jobs == ()
    plan = planned(asked(dead, keyed=True, options={"tombstone_compaction": "on"}))
    assert sets(plan) == [["a"]]
    assert plan.jobs[0].output_tags == (("window", "0"),)


# ----------------------------------------------------------------------------------------- Refusals


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"window_unit": "weeks"}, "window_unit is 'weeks', expected one of minutes, hours, days"),
        ({"window_size": 0}, "window_size is 0, expected 1 to 1000"),
        ({"window": "0.5s"}, "window_s is 0.5 s, expected 1 s to 86400000 s"),
        ({"window": "6h", "window_size": 2}, "options window_size and window_s are both given"),
        ({"min_threshold": 40}, "min_threshold is 40, expected at most max_threshold"),
    ],
)
def test_options_are_checked(options: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        TimeWindowPlanner().check(options)


def test_a_table_without_a_time_column_is_refused() -> None:
    check_table("time-window", TimeWindowPlanner(), keyed=True, timed=True)
    with pytest.raises(ConfigError, match="and the table has none; choose size-tiered or ratio"):
        check_table("time-window", TimeWindowPlanner(), keyed=True, timed=False)
    with pytest.raises(ConfigError, match="choose bin-pack or size-tiered"):
        check_table("time-window", TimeWindowPlanner(), keyed=False, timed=False)
