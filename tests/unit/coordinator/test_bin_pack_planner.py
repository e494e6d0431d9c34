"""The bin-pack planner, rule by rule, and the arithmetic of AutoComp."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError
from common.model.file import DataFile
from common.model.group import Group
from common.model.job import Kind, Plan, PriorityClass, class_of
from common.spi.planner import RequestFacts
from coordinator.plugins.planners.bin_pack import CUT, PURGED, BinPackPlanner
from coordinator.plugins.planners.packing import (
    SORTED_AT_ONCE,
    autocomp_choice,
    autocomp_scores,
    cost_gb_hours,
    files_gained,
    first_fit_decreasing,
    parts_of,
    size_skew,
    small_bytes_below,
)
from tests.support.planning import files_of, parameters

CASES = json.loads((Path(__file__).parents[2] / "data" / "autocomp.json").read_text("utf-8"))
MIB = 1024**2
HOUR_S = 3600.0


def plan(sizes: dict[str, int], **given: Any) -> Plan:
    """Plan files of so many MiB with a target of 100 MiB."""
    options, keyed = given.pop("options", {}), given.pop("keyed", True)
    files = {
        name: replace(file, rows=1000)
        for name, file in files_of({name: size * MIB for name, size in sizes.items()}).items()
    }
    asked = parameters(files, target_bytes=100 * MIB, **given)
    return BinPackPlanner().plan(replace(asked, options=options, keyed=keyed))


def jobs(found: Plan) -> set[frozenset[str]]:
    return {frozenset(job.files) for job in found.jobs}


@pytest.mark.parametrize("case", CASES["gain"], ids=lambda case: str(case["file_sizes_mib"]))
def test_gain_cost_and_skew_are_those_of_autocomp(case: dict[str, Any]) -> None:
    sizes, target = case["file_sizes_mib"], case["target_mib"]
    assert small_bytes_below(target) == case["small_below_mib"]
    assert files_gained(sizes, target) == case["gain"]
    small = sum(size for size in sizes if size < small_bytes_below(target))
    assert cost_gb_hours(small * MIB) == pytest.approx(case["cost_gbhr"])
    assert size_skew(sizes, target) == pytest.approx(case["entropy_mib2"])


def test_scores_are_those_of_autocomp() -> None:
    candidates = [(case["gain"], case["cost"]) for case in CASES["score"]]
    assert autocomp_scores(candidates) == pytest.approx([case["score"] for case in CASES["score"]])
    assert autocomp_scores([(3, 4)]) == [0.0]


@pytest.mark.parametrize("case", CASES["choice"], ids=lambda case: str(case["budget"]))
def test_the_best_run_while_the_budget_is_not_spent(case: dict[str, Any]) -> None:
    candidates = [(each["gain"], each["cost"]) for each in CASES["score"]]
    chosen = autocomp_choice(candidates, case["budget"], case["count_max"])
    assert [candidates[place][1] for place in chosen] == case["costs"]


THREE_BINS = {"a": 60, "b": 39, "c": 60, "d": 38, "e": 60, "f": 37}
"""A job costs a little more than half a GB-hour, the less the smaller its files are."""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["ab", "cd", "ef"]),
        ({"jobs_max": 1}, ["ef"]),
        ({"budget_gb_hours": 0.5}, ["ef"]),
        ({"budget_gb_hours": 0.6}, ["cd", "ef"]),
        ({"budget_gb_hours": 0.6, "jobs_max": 1}, ["ef"]),
    ],
)
def test_jobs_of_a_tablet_keep_within_their_budget(
    options: dict[str, object], expected: list[str]
) -> None:
    found = plan(THREE_BINS, options=options)
    assert jobs(found) == {frozenset(each) for each in expected}
    waits = set(THREE_BINS) - set("".join(expected))
    assert {path for path, why in found.left.items() if "jobs_max" in why} == waits


def test_jobs_under_way_count_in_the_budget() -> None:
    sizes = {"a": 60, "b": 39, "c": 60, "d": 38, "busy": 99}
    asked = parameters(
        files_of({name: size * MIB for name, size in sizes.items()}),
        candidates="abcd",
        running=[(Kind.SYSTEM, ["busy"])],
        target_bytes=100 * MIB,
    )

    def planned(**options: object) -> int:
        return len(BinPackPlanner().plan(replace(asked, options=options)).jobs)

    assert planned() == 2
    assert planned(budget_gb_hours=0.5) == planned(jobs_max=1) == 0
    assert planned(budget_gb_hours=0.6) == planned(jobs_max=2) == 1


def test_a_bin_that_is_full_needs_two_files() -> None:
    assert jobs(plan({"a": 40, "b": 40})) == {frozenset("ab")}


def test_a_bin_holds_no_more_than_the_target() -> None:
    found = plan({"a": 60, "b": 60, "c": 39, "d": 39})
    assert jobs(found) == {frozenset("ac"), frozenset("bd")}


def test_files_near_the_target_are_left() -> None:
    found = plan({"low": 75, "high": 180, "over": 181})
    assert not found.jobs
    assert found.left["low"].startswith("is 75.0 MiB, between 75.0 MiB and 180.0 MiB")
    assert found.left["high"].startswith("is 180.0 MiB, between")
    assert found.left["over"] == (
        "is 181.0 MiB, above 180.0 MiB, and is not cut: no metadata shows which keys would divide "
        "it"
    )


@pytest.mark.parametrize(
    ("size", "parts"),
    [(50, 1), (100, 1), (109, 1), (111, 2), (200, 2), (218, 2), (221, 3), (276, 3), (1001, 10)],
)
def test_a_file_is_cut_into_as_many_as_iceberg_cuts_it(size: int, parts: int) -> None:
    assert parts_of(size, 100) == parts


def test_the_largest_part_lies_half_the_way_to_what_is_too_large() -> None:
    assert parts_of(109, 100, upper_share=1.1) == 2
    assert parts_of(104, 100, upper_share=1.1) == 1


def test_a_file_above_the_upper_share_is_cut_where_there_is_no_key() -> None:
    found = plan({"over": 401, "near": 100}, keyed=False)
    (job,) = found.jobs
    assert (job.files, job.outputs_expected, job.cuts) == (("over",), 4, ())
    assert job.output_tags == (CUT,)
    assert job.reason.startswith("above 180.0 MiB: cut into 4 files; 1 file of 401.0 MiB")
    assert "over" not in found.left


def test_a_part_that_came_out_large_is_not_cut_again() -> None:
    files = {
        "part": DataFile(path="part", size_bytes=400 * MIB, rows=9, tags=(CUT,)),
        "row": DataFile(path="row", size_bytes=400 * MIB, rows=1),
    }
    asked = replace(parameters(files, target_bytes=100 * MIB), keyed=False)
    found = BinPackPlanner().plan(asked)
    assert not found.jobs
    assert found.left["part"].endswith("and is not cut: it was cut before")
    assert found.left["row"].endswith("and is not cut: it has one row")


def test_a_file_that_no_group_takes_is_not_cut() -> None:
    found = plan({"over": 400}, keyed=False, groups=[Group(name="small", max_bytes=MIB)])
    assert not found.jobs
    assert found.left["over"].endswith("not cut: more than any group accepts (1.0 MiB)")


def test_a_request_cuts_what_is_too_large() -> None:
    asked = parameters(
        {
            "over": DataFile(path="over", size_bytes=400 * MIB, rows=40),
            "result": DataFile(path="result", size_bytes=400 * MIB, rows=40, request="r1"),
        },
        kind=Kind.USER,
        target_bytes=100 * MIB,
    )
    asked = replace(asked, keyed=False, request=RequestFacts(request="r1"))
    found = BinPackPlanner().plan(asked)
    assert [(job.files, job.outputs_expected) for job in found.jobs] == [(("over",), 4)]


def test_few_files_wait_and_many_do_not() -> None:
    assert not plan(dict.fromkeys("abcd", 1)).jobs
    assert jobs(plan(dict.fromkeys("abcde", 1))) == {frozenset("abcde")}


def test_what_has_gathered_is_not_rewritten_with_every_few_files() -> None:
    assert not plan({"gathered": 20} | dict.fromkeys("abcd", 1)).jobs
    found = plan({"gathered": 20} | dict.fromkeys("abcde", 1))
    assert jobs(found) == {frozenset("abcde")}
    assert found.left == {"gathered": "is left for a later merge with the output of 5 smaller"}


def test_two_files_are_enough_when_they_have_waited() -> None:
    files = {
        name: DataFile(path=name, size_bytes=10, rows=1, added_at_s=at)
        for name, at in (("a", 100.0), ("b", 400.0))
    }
    asked = parameters(files)
    found = BinPackPlanner().plan(replace(asked, now_s=400.0 + HOUR_S - 1))
    assert found.due_at_s == 400.0 + HOUR_S
    assert found.left["a"] == (
        "is one of 2 small files of 20 B, which are fewer than min_input_files 5; two are enough "
        "after 1 h 00 m"
    )
    later = BinPackPlanner().plan(replace(asked, now_s=400.0 + HOUR_S))
    assert jobs(later) == {frozenset("ab")}
    assert later.due_at_s is None


def test_the_wait_is_longer_where_much_is_rewritten_for_little() -> None:
    found = plan({"gathered": 50, "new": 1})
    assert found.due_at_s == 5 * HOUR_S


def test_too_many_small_files_do_not_wait() -> None:
    sizes = {"a": 1, "b": 2, "c": 4, "d": 8}
    assert not plan(sizes, file_limit=4).jobs
    found = plan(sizes, file_limit=3)
    assert jobs(found) == {frozenset("abcd")}
    assert class_of(found.jobs[0].priority) is PriorityClass.OVER_LIMIT


def test_files_of_the_target_size_are_no_reason_to_hurry() -> None:
    found = plan(dict.fromkeys("abcde", 1) | {f"x{n:02}": 100 for n in range(50)}, file_limit=15)
    assert [class_of(job.priority) for job in found.jobs] == [PriorityClass.SYSTEM]


def test_only_the_smallest_are_merged_before_one_merge_can_hold_the_rest() -> None:
    found = plan({f"f{number:02}": 1 + number for number in range(11)}, max_files=10)
    assert jobs(found) == {frozenset({"f00", "f01"})}
    assert found.left["f05"] == "is merged in a later step, after earlier jobs"


def test_many_files_of_a_bin_are_merged_at_once_as_full_jobs() -> None:
    found = plan({f"f{number:02}": 1 + number for number in range(11)}, max_files=2)
    pairs = [(f"f{at:02}", f"f{at + 1:02}") for at in range(0, 10, 2)]
    assert jobs(found) == {frozenset(pair) for pair in pairs}
    assert found.left == {"f10": "is merged in a later step, after earlier jobs"}


def test_outputs_to_come_take_part() -> None:
    sizes = {f"f{number:02}": 1 for number in range(12)}
    running = [(Kind.SYSTEM, [f"f{number:02}" for number in range(8)])]
    found = plan(sizes, candidates=["f08", "f09", "f10", "f11"], running=running)
    assert not found.jobs
    assert "waits for the output of a running job" in found.left["f08"]


def test_the_job_that_gains_most_per_cost_comes_first() -> None:
    found = plan({"a": 50, "b": 48, "x": 90} | {f"s{n}": 9 for n in range(6)}, max_files=10)
    gains = [len(job.files) for job in found.jobs]
    assert gains == sorted(gains, reverse=True)
    assert len({job.priority for job in found.jobs}) == len(found.jobs) == 2


def test_neighbours_in_key_range_share_a_bin() -> None:
    files = {
        name: DataFile(path=name, size_bytes=45 * MIB, rows=1, key_min=key, key_max=key)
        for name, key in (("a", b"1"), ("b", b"9"), ("c", b"2"), ("d", b"8"))
    }
    found = BinPackPlanner().plan(parameters(files, target_bytes=100 * MIB))
    assert jobs(found) == {frozenset("ac"), frozenset("bd")}


def test_no_job_is_larger_than_any_group_takes() -> None:
    groups = [Group(name="small", max_bytes=50 * MIB)]
    found = plan({"a": 24, "b": 24, "c": 24, "d": 60}, groups=groups, options={"max_wait": 0})
    assert all(len(job.files) == 2 for job in found.jobs)
    assert found.left["d"] == "is 60.0 MiB, more than any group accepts (50.0 MiB)"


def test_a_request_rewrites_what_is_no_result_of_it() -> None:
    files = {
        "done": DataFile(path="done", size_bytes=90 * MIB, rows=1, request="r1"),
        "large": DataFile(path="large", size_bytes=999 * MIB, rows=1),
        "other": DataFile(path="other", size_bytes=90 * MIB, rows=1, request="r0"),
    }
    asked = parameters(files, kind=Kind.USER, target_bytes=100 * MIB)
    found = BinPackPlanner().plan(replace(asked, request=RequestFacts(request="r1")))
    assert jobs(found) == {frozenset({"large"}), frozenset({"other"})}
    assert "is a result of the request" in found.left["done"]


def test_a_request_merges_files_that_fit_into_one_bin() -> None:
    asked = parameters(
        files_of({"a": 50 * MIB, "b": 40 * MIB, "c": 30 * MIB}),
        kind=Kind.USER,
        target_bytes=100 * MIB,
    )
    found = BinPackPlanner().plan(replace(asked, request=RequestFacts(request="r1")))
    assert jobs(found) == {frozenset("ab"), frozenset("c")}


def running_request(running_bytes: int) -> Plan:
    """Plan a request of two files, one of which is an input of a running job."""
    asked = parameters(
        files_of({"busy": running_bytes, "free": 30 * MIB}),
        kind=Kind.USER,
        candidates=["free"],
        running=[(Kind.USER, ["busy"])],
        target_bytes=100 * MIB,
    )
    return BinPackPlanner().plan(replace(asked, keyed=False, request=RequestFacts(request="r1")))


def test_a_request_waits_for_the_output_of_a_running_job_that_shares_its_bin() -> None:
    found = running_request(running_bytes=60 * MIB)
    assert not found.jobs
    assert found.left == {"free": "waits for the output of a running job, to be merged with it"}


def test_a_request_does_not_cut_the_output_of_a_running_job() -> None:
    found = running_request(running_bytes=400 * MIB)
    assert jobs(found) == {frozenset({"free"})}, "the large output does not exist yet"


# ---------------------------------------------------------------------------------------- Dead rows


def dead(path: str, **given: Any) -> DataFile:
    facts: dict[str, Any] = {
        "size_bytes": 90 * MIB, "rows": 10, "tombstones": 5, "tombstones_since_s": 1000.0,
        "key_min": b"a", "key_max": b"m",
    }  # fmt: skip
    return DataFile(path=path, **(facts | given))


def purge(*files: DataFile, now_s: float, **given: Any) -> Plan:
    own = {"tombstone_retention_s": 100.0, "target_bytes": 100 * MIB, **given}
    asked = parameters({file.path: file for file in files}, **own)
    return BinPackPlanner().plan(replace(asked, now_s=now_s, timed=True))


def test_a_file_of_old_tombstones_is_rewritten_with_all_that_overlap_it() -> None:
    files = (
        dead("a"),
        dead("b", tombstones=0, key_min=b"m", key_max=b"p"),
        dead("c", tombstones=0, key_min=b"n", key_max=b"z"),
    )
    (job,) = purge(*files, now_s=1101.0).jobs
    assert job.files == ("a", "b")
    assert job.output_tags == (PURGED,)
    assert job.reason.startswith("50% of its rows are tombstones that may be dropped")


def test_young_tombstones_wait() -> None:
    found = purge(dead("a"), now_s=1100.0)
    assert not found.jobs
    assert found.due_at_s == 1101.0


def test_tombstones_that_were_not_dropped_are_not_tried_again() -> None:
    assert not purge(dead("a", tags=(PURGED,)), now_s=5000.0).jobs


def test_tombstones_are_left_where_what_overlaps_is_in_use() -> None:
    asked = parameters(
        {"a": dead("a"), "b": dead("b", tombstones=0)}, candidates=["a"], target_bytes=100 * MIB
    )
    found = BinPackPlanner().plan(replace(asked, now_s=1e9))
    assert not found.jobs
    assert found.left["a"].endswith("but a file that overlaps it is in use")


def test_tombstones_are_left_where_one_job_cannot_have_all_that_overlaps() -> None:
    files = {"a": dead("a"), "b": dead("b", tombstones=0), "c": dead("c", tombstones=0)}
    asked = parameters(files, target_bytes=100 * MIB)
    found = BinPackPlanner().plan(replace(asked, now_s=1e9, options={"max_files": 2}))
    assert not found.jobs
    assert found.left["a"].endswith("a job has 3, max_files is 2")
    small = BinPackPlanner().plan(replace(asked, now_s=1e9))
    assert small.left["a"].endswith("a job has 270.0 MiB")


def test_a_file_is_rewritten_when_half_of_it_has_expired() -> None:
    file = dead("a", tombstones=0, time_min_s=0.0, time_max_s=1000.0)
    before = purge(file, now_s=800.0, ttl_s=200.0)
    assert not before.jobs
    assert before.due_at_s == 801.0  # Half of it, the TTL, the retention, and a second.
    (job,) = purge(file, now_s=801.0, ttl_s=200.0).jobs
    assert job.reason.startswith("about 50% of its rows have expired")
    again = replace(file, tags=(PURGED,), added_at_s=801.0)
    assert not purge(again, now_s=801.0, ttl_s=200.0).jobs
    none_left = replace(file, tags=(PURGED,), added_at_s=1301.0)
    assert not purge(none_left, now_s=1e6, ttl_s=200.0).jobs


def test_expired_rows_of_a_table_without_a_key_are_dropped_from_their_file_alone() -> None:
    old = dead("old", tombstones=0, time_min_s=0.0, time_max_s=1000.0)
    files = {"old": old, "new": replace(old, path="new", time_min_s=9000.0, time_max_s=9900.0)}
    asked = parameters(files, target_bytes=100 * MIB, ttl_s=200.0)
    (job,) = BinPackPlanner().plan(replace(asked, now_s=1000.0, timed=True, keyed=False)).jobs
    assert (job.files, job.output_tags) == (("old",), (PURGED,))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_input_files": 1}, "min_input_files is 1, expected at least 2"),
        ({"lower_share": 1.1}, "lower_share is 1.1, expected above 0 and at most 1"),
        ({"upper_share": "0.9"}, "upper_share is 0.9, expected at least 1"),
        ({"max_files": 1}, "max_files is 1, expected at least 2"),
        ({"min_growth": 0.5}, "min_growth is 0.5, expected at least 1"),
        ({"max_wait": "soon"}, "max_wait_s"),
        ({"ratio": 3}, "option 'ratio' is unknown"),
    ],
)
def test_options_are_checked(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BinPackPlanner().check(options)


def test_a_file_with_many_delete_files_is_rewritten_alone() -> None:
    own = {"tombstones": 0, "key_min": b"a", "key_max": b"b", "tags": (("delete-files", "10"),)}
    other = {"tombstones": 0, "key_min": b"m", "key_max": b"z", "tags": (("delete-files", "9"),)}
    found = purge(dead("many", **own), dead("few", **other), now_s=1e9)
    (job,) = found.jobs
    assert job.files == ("many",)
    assert job.reason.startswith("readers apply 10 files of deletes to it")


@pytest.mark.parametrize("seed", range(60))
def test_bins_are_those_of_first_fit(seed: int) -> None:
    draw = random.Random(seed)
    capacity = draw.choice([1, 7, 100, 1000.0])
    largest = int(capacity * draw.choice([0.2, 0.5, 0.8, 1.3]))
    sizes = {str(number): draw.randint(0, largest) for number in range(draw.randint(0, 80))}
    files = list(files_of(sizes).values())
    bins, rooms = list[list[DataFile]](), list[float]()
    for file in sorted(files, key=lambda file: (-file.size_bytes, file.path)):
        fits = (index for index, room in enumerate(rooms) if file.size_bytes <= room)
        index = next(fits, len(bins))
        if index == len(bins):
            bins.append([])
            rooms.append(capacity)
        bins[index].append(file)
        rooms[index] -= file.size_bytes
    assert first_fit_decreasing(files, capacity) == bins


def test_many_files_are_packed_in_the_order_of_their_sizes() -> None:
    draw = random.Random(1)
    sizes = {f"f{draw.random()}": draw.randint(2, 100) for _ in range(2 * SORTED_AT_ONCE + 1)}
    files = list(files_of(sizes).values())
    bins = first_fit_decreasing(files, 1.0)
    assert [file for (file,) in bins] == sorted(
        files, key=lambda file: (-file.size_bytes, file.path)
    )


def _calls(count: int, size_bytes: int, tombstones: int) -> int:
    """Return how many calls of functions it takes to plan so many files."""
    files = files_of({f"f{number:05}": size_bytes for number in range(count)})
    files = {
        path: replace(file, rows=100, tombstones=tombstones, tombstones_since_s=0.0)
        for path, file in files.items()
    }
    asked = replace(parameters(files, target_bytes=100 * MIB), keyed=False, now_s=1e9)
    calls = 0

    def counted(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        BinPackPlanner().plan(asked)
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize(("size_bytes", "tombstones"), [(10 * MIB, 0), (10_000, 0), (90 * MIB, 50)])
def test_a_plan_of_more_files_takes_steps_in_proportion(size_bytes: int, tombstones: int) -> None:
    few, many = (_calls(count, size_bytes, tombstones) for count in (400, 1600))
    assert many < 5.5 * few
