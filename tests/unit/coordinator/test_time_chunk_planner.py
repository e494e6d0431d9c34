"""The time-chunk planner, rule by rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from common.errors import ConfigError
from common.model.file import DataFile
from common.model.group import Group
from common.model.job import JobAction, Kind, Plan, PriorityClass, class_of, time_outputs_max
from common.spi.planner import PlanParameters, RequestFacts
from coordinator.core.planning import checked_jobs
from coordinator.plugins.planners.chunks import RULES, ChunkState, Contents, Score, read_intervals
from coordinator.plugins.planners.time_chunk import TimeChunkPlanner
from tests.support.planning import parameters

HOUR = 3600.0
NOW_S = 1000 * HOUR
OPTIONS = {
    "granularity": "1h",
    "target": 500,
    "small_cost": 0,
    "max_cost": 10_000,
    "skip_offset": 0,
}


def file(path: str, start_h: float, end_h: float, size: int = 100, **given: Any) -> DataFile:
    """Return a file with rows from an hour to before another, a row per byte."""
    return DataFile(
        path=path,
        size_bytes=size,
        rows=given.pop("rows", size),
        time_min_s=start_h * HOUR,
        time_max_s=end_h * HOUR - 1,
        **given,
    )


def asked(*files: DataFile, **given: Any) -> PlanParameters:
    options = {**OPTIONS, **given.pop("options", {})}
    user = given.get("kind") is Kind.USER
    made = parameters({each.path: each for each in files}, **given)
    request = RequestFacts(request="r1") if user else None
    return replace(made, options=options, keyed=False, timed=True, now_s=NOW_S, request=request)


def plan(*files: DataFile, planner: TimeChunkPlanner | None = None, **given: Any) -> Plan:
    question = asked(*files, **given)
    found = (planner or TimeChunkPlanner()).plan(question)
    checked_jobs("time-chunk", found, question)
    planned = {path for job in found.jobs for path in job.files}
    assert found.left.keys() == {candidate.path for candidate in question.candidates} - planned
    return found


def sets(found: Plan) -> list[str]:
    return ["".join(job.files) for job in found.jobs]


def hours(*times_s: float) -> list[float]:
    return [at / HOUR for at in times_s]


# -------------------------------------------------------------------------------- What is rewritten


def test_files_of_a_chunk_become_as_few_as_the_target_allows() -> None:
    found = plan(file("a", 0, 0.5), file("b", 0.5, 1), file("c", 1, 2), file("d", 3, 4, 900))
    assert sets(found) == ["d", "ab"]
    first, second = found.jobs
    assert (first.outputs_expected, second.outputs_expected) == (2, 1)
    assert first.cuts_at_s == second.cuts_at_s == ()
    assert dict(second.output_tags) == {"chunk": "500:3600:0:3600"}
    assert (
        second.reason == "1 chunk of 1h from 1970-01-01 00:00 UTC: 2 files of 200 B, priority 0.50"
    )
    assert found.left == {
        "c": "its chunk from 1970-01-01 01:00 UTC has 1 file of at most 500 B, and no smaller "
        "number would do"
    }


def test_a_file_that_spans_chunks_is_cut_at_their_ends() -> None:
    found = plan(file("a", 0, 0.5), file("b", 0.25, 2.5, 300), file("c", 2, 3, 250))
    (job,) = found.jobs
    assert job.files == ("a", "b", "c")
    assert hours(*job.cuts_at_s) == [1, 2]
    assert job.output_rows_max == 500
    assert job.outputs_expected == time_outputs_max(2, 650, 500)


def test_what_sticks_out_of_a_task_is_cut_off() -> None:
    """The chunk after it is in shape, so only its share of the file is written apart."""
    found = plan(file("a", 1, 2), file("b", 1.5, 2.5, 50), file("c", 2, 3, 499))
    (job,) = found.jobs
    assert job.files == ("a", "b", "c")
    alone = plan(file("a", 1, 1.5), file("b", 1.5, 2.5, 50))
    (job,) = alone.jobs
    assert hours(*job.cuts_at_s) == [2]
    assert dict(job.output_tags)["chunk"] == "500:3600:3600:10800"


def test_a_file_that_spans_chunks_alone_has_nobody_who_needs_it_cut() -> None:
    found = plan(file("a", 0, 2, 500))
    assert not found.jobs
    assert "one that spans chunks: no neighbour needs it" in found.left["a"]


def test_a_last_row_at_the_end_of_a_chunk_is_in_the_next_one() -> None:
    at_end = replace(file("a", 0, 1), time_max_s=HOUR)
    assert hours(*plan(at_end, file("b", 0, 1)).jobs[0].cuts_at_s) == [1]
    before = replace(file("a", 0, 1), time_max_s=HOUR - 1e-6)
    assert plan(before, file("b", 0, 1)).jobs[0].cuts_at_s == ()


def test_small_tasks_are_one_job_and_large_ones_several() -> None:
    pairs = [file(f"{at}{half}", at, at + 1, 50) for at in (0, 2, 4) for half in "xy"]
    joined = plan(*pairs, options={"small_cost": 200})
    assert sets(joined) == ["0x0y2x2y4x4y"]
    assert hours(*joined.jobs[0].cuts_at_s) == [1, 2, 3, 4]
    chain = [file(f"{at}", at, at + 1.5, 60) for at in range(5)]
    parts = plan(*chain, options={"max_cost": 120})
    assert sets(parts) == ["23", "01", "12", "34"]
    assert [job.depends_on for job in parts.jobs] == [(), (), (0, 1), (0,)]
    serial = plan(*chain, options={"max_cost": 120, "dependencies": "simple"})
    assert sets(serial) == ["01", "12", "23", "34"]
    assert [job.depends_on for job in serial.jobs] == [(), (0,), (1,), (2,)]


def test_a_chunk_above_the_largest_cost_says_so() -> None:
    found = plan(*(file(name, 0, 1, 200) for name in "abc"), options={"max_cost": 400})
    assert found.jobs[0].reason.endswith("priority 0.33 (more bytes than max_cost, in one chunk)")


def test_a_full_file_is_left_and_one_above_the_target_is_cut_once() -> None:
    assert not plan(file("a", 0, 1, 500)).jobs
    (job,) = plan(file("a", 0, 1, 501)).jobs
    assert job.outputs_expected == 2
    stubborn = file("a", 0, 1, 501, tags=job.output_tags, job="j")
    assert not plan(stubborn).jobs
    (other,) = plan(stubborn, options={"target": 400}).jobs
    assert other.outputs_expected == 2


def test_rows_without_a_time_have_a_place_of_their_own() -> None:
    bare = [replace(file(name, 0, 1, 200), time_min_s=None, time_max_s=None) for name in ("n", "m")]
    found = plan(file("a", 0, 1), *bare)
    assert sets(found) == ["mn"]
    assert found.jobs[0].outputs_expected == 1
    assert found.jobs[0].reason == "2 files of 400 B (no times)"
    assert plan(bare[0]).left["n"].startswith("has no times, and no smaller number")


def test_a_rule_of_ones_own_comes_first_and_does_not_run_in_circles() -> None:
    def always(contents: Contents) -> Score | None:
        return Score(ChunkState.COMPACT, 1.0) if contents.segments else None

    planner = TimeChunkPlanner((always, *RULES))
    (job,) = plan(file("a", 0, 1), planner=planner).jobs
    again = plan(file("b", 0, 1, tags=job.output_tags, job="j"), planner=planner)
    assert not again.jobs
    assert again.left["b"] == "is as the last job left it: another would do the same"


PAIR_AND_ONE = (file("a", 0, 1), file("b", 0, 1), file("c", 1, 2))


@pytest.mark.parametrize(
    ("rules", "jobs"),
    [
        ("", ["ab"]),
        (" ; ", ["ab"]),
        ("stable if files <= 2", []),
        ("stable if files < 2", ["ab"]),
        ("no_opinion if files > 1", []),
        ("compact if files = 1; stable if bytes >= 1", ["c"]),
        ("stable if bytes >= 1; compact if files = 1", []),
        ("compact  0.2  if  files=1  and  overlap=no", ["ab", "c"]),
        ("compact 0.9 if files = 1 and largest <= 100", ["c", "ab"]),
        ("stable if mean > 100", ["ab"]),
        ("stable if excess >= 1", []),
        ("compact if files = 1 and overlap = yes", ["ab"]),
    ],
)
def test_rules_of_the_option_come_before_those_of_the_notes(rules: str, jobs: list[str]) -> None:
    found = plan(*PAIR_AND_ONE, options={"rules": rules, "order": "priority"})
    assert sets(found) == jobs


def test_a_rule_of_the_option_is_the_reason() -> None:
    found = plan(*PAIR_AND_ONE, options={"rules": "stable if files = 2; compact 0.5 if files = 1"})
    assert (
        found.left["a"]
        == "its chunk from 1970-01-01 00:00 UTC has 2 files: rule 'stable if files = 2'"
    )
    (job,) = found.jobs
    assert job.reason == (
        "1 chunk of 1h from 1970-01-01 01:00 UTC: 1 file of 100 B, priority 0.50"
        " (rule 'compact 0.5 if files = 1')"
    )
    assert [interval.reason for interval in found.intervals] == [found.left["a"], job.reason]


def test_what_a_rule_wanted_is_done_once() -> None:
    rules = {"rules": "compact if files >= 1"}
    one, other = PAIR_AND_ONE[0], PAIR_AND_ONE[2]
    jobs = {job.files: job for job in plan(one, other, options=rules).jobs}
    done = [
        replace(each, tags=jobs[each.path,].output_tags, job=f"j{each.path}")
        for each in (one, other)
    ]
    assert not plan(*done, options=rules).jobs
    assert sets(plan(*done, file("late", 1, 2), options=rules)) == ["clate"]
    request = plan(one, options={"rules": "stable if files >= 1"}, kind=Kind.USER)
    assert sets(request) == ["a"], "what a user asks for is done"
    bare = replace(one, time_min_s=None, time_max_s=None)
    assert sets(plan(bare, options=rules)) == ["a"]
    assert not plan(options=rules).jobs


# ------------------------------------------------------------------------------ Which, and in order


def test_the_newest_chunks_are_left_alone() -> None:
    pairs = [file(f"{at}{half}", at, at + 1) for at in range(5) for half in "xy"]
    found = plan(*pairs, options={"skip_offset": "1h"})
    assert sets(found) == ["2x2y", "1x1y", "0x0y"]
    assert found.left["4y"] == "is in an interval that is skipped (skip_offset, skip_intervals)"
    future = replace(file("f", 0, 1), time_min_s=NOW_S + HOUR, time_max_s=NOW_S + 2 * HOUR)
    assert sets(plan(*pairs, future, options={"skip_offset": "1h"})) == sets(found)


def test_intervals_may_be_skipped_or_put_in_order() -> None:
    pairs = [file(f"{at}{half}", at, at + 1) for at in range(5) for half in "xy"]
    skip = "1970-01-01T01:00/1970-01-01T03:00 1970-01-01T04:00/1970-01-02"
    assert sets(plan(*pairs, options={"skip_intervals": skip})) == ["3x3y", "0x0y"]
    fixed = "1970-01-01T02:00/1970-01-01T03:00 1970-01-01T00:00/1970-01-01T02:00"
    found = plan(*pairs, options={"order": "fixed", "intervals": fixed})
    assert sets(found) == ["2x2y", "0x0y", "1x1y"]
    assert found.left["3x"] == "is in no interval of the fixed order"


def test_orders() -> None:
    few = [file(f"a{at}", 0, 1, 100) for at in range(2)]
    many = [file(f"b{at}", 2, 3, 50) for at in range(8)]
    tiny = [file(f"c{at}", 1, 2, 1) for at in range(3)]

    def first(order: str) -> list[str]:
        found = plan(*few, *many, *tiny, options={"order": order})
        assert [job.priority for job in found.jobs] == sorted(
            (job.priority for job in found.jobs), reverse=True
        )
        return [job.files[0][0] for job in found.jobs]

    assert first("newest") == ["b", "c", "a"]
    assert first("priority") == ["b", "c", "a"]
    assert first("fragmented") == ["c", "b", "a"]
    assert {class_of(job.priority) for job in plan(*few, *tiny).jobs} == {PriorityClass.SYSTEM}
    over = plan(*few, *many, *tiny, options={"file_limit": 10})
    assert {class_of(job.priority) for job in over.jobs} == {PriorityClass.OVER_LIMIT}


def test_few_new_files_wait_or_are_compacted_alone() -> None:
    old = file("old", 0, 1, 480, tags=(("chunk", "500:3600:0:3600"),), job="j")
    new = [file(name, 0, 1, 5) for name in "ab"]
    assert sets(plan(old, *new)) == ["aboldn"[:2] + "old"]
    assert sets(plan(old, *new, options={"minor_bytes_percent": 10})) == ["ab"]
    assert sets(plan(old, *new, options={"minor_rows_percent": 10})) == ["ab"]
    assert sets(plan(old, *new, options={"minor_bytes_percent": 1})) == ["abold"]
    waits = plan(old, *new, options={"min_count": 3})
    assert waits.left["a"] == (
        "its chunk has 2 files that no job has compacted, of 10 B: too few or too little "
        "(NONE:count)"
    )
    assert not plan(old, *new, options={"min_uncompacted": 11}).jobs
    assert not plan(old, *new, options={"max_average": 4}).jobs
    alone = plan(old, new[0], options={"minor_bytes_percent": 10})
    assert not alone.jobs, "one file alone would only be written again"


def test_a_minor_compaction_rests_until_more_has_come() -> None:
    tag = (("chunk", "500:3600:0:3600"),)
    old = [file("x", 0, 1, 480, tags=tag, job="j"), file("y", 0, 1, 10, tags=tag, job="k")]
    assert sets(plan(*old)) == ["xy"]
    assert not plan(*old, options={"minor_bytes_percent": 10}).jobs
    other = [replace(each, tags=(("chunk", "400:3600:0:3600"),)) for each in old]
    assert sets(plan(*other, options={"minor_bytes_percent": 10})) == ["xy"]


# --------------------------------------------------------------------------- What becomes of chunks


def states_of(found: Plan) -> dict[float, tuple[str, str]]:
    """Return the state and the reason of each interval, by the hour at which it begins."""
    return {
        interval.start_s / HOUR: (interval.state.value, interval.reason)
        for interval in found.intervals
    }


def test_each_interval_has_a_state_and_the_reason_of_the_first_check_that_decides() -> None:
    files = [file(f"{at}{half}", at, at + 1) for at in range(6) for half in "xy"]
    # Its hour is skipped, too, and its two files would be too few: what runs comes first.
    running = [(Kind.SYSTEM, ["5x"])]
    found = plan(
        *files[:6],
        file("full", 3, 4, 400),
        *files[8:],
        candidates=["0x", "0y", "1x", "1y", "2x", "2y", "full", "4x", "4y", "5y"],
        running=running,
        options={"skip_offset": "1h", "skip_intervals": "1970-01-01T01:00/1970-01-01T02:00"},
    )
    assert sets(found) == ["2x2y", "0x0y"]
    states = states_of(found)
    assert {at: state for at, (state, _) in states.items()} == {
        0: "pending",
        1: "skipped",
        2: "pending",
        3: "complete",
        4: "skipped",
        5: "running",
    }
    assert states[2][1] == next(job.reason for job in found.jobs if "2x" in job.files)
    assert states[1][1] == found.left["1x"]
    assert states[3][1] == found.left["full"]
    interval = found.intervals[1]
    assert (interval.end_s, interval.files, interval.size_bytes) == (2 * HOUR, 2, 200)


def test_a_policy_excludes_intervals_that_might_be_compacted() -> None:
    files = [file(f"{at}{half}", at, at + 1) for at in range(2) for half in "xy"]
    few = plan(*files, options={"min_count": 3})
    assert states_of(few)[0] == ("policy-excluded", few.left["0x"])
    fixed = plan(
        *files,
        options={"order": "fixed", "intervals": "1970-01-01T01:00/1970-01-01T02:00"},
    )
    assert states_of(fixed)[0] == ("policy-excluded", "is in no interval of the fixed order")
    assert states_of(fixed)[1][0] == "pending"
    held = plan(*files, candidates=["0x", "1x", "1y"], options={"min_count": 3})
    assert states_of(held)[0] == ("skipped", "waits for a file of its chunk that is in use")
    assert states_of(held)[1][0] == "policy-excluded"


def test_a_plan_without_files_tells_of_no_interval() -> None:
    assert plan().intervals == ()


# ------------------------------------------------------------------------------------- Files in use


def test_chunks_with_a_file_in_use_wait() -> None:
    files = [
        file("a", 0, 1),
        file("b", 0, 1),
        file("c", 0.5, 1.5),
        file("d", 1, 2),
        file("e", 3, 4),
    ]
    more = [file("f", 3, 4)]
    found = plan(*files, *more, candidates="abdef", running=[(Kind.SYSTEM, "c")])
    assert sets(found) == ["ef"]
    assert found.left["a"] == found.left["d"] == "waits for a file of its chunk that is in use"
    held = plan(*files, *more, candidates="abdef")
    assert sets(held) == ["ef"], "somebody holds it, or it is still being written"


def test_a_request_rewrites_all_that_is_no_result_whatever_is_skipped() -> None:
    options = {"skip_offset": "9d", "min_count": 9}
    found = plan(
        file("a", 0, 1), file("b", 1, 2, request="r1"), file("c", 5, 6), kind=Kind.USER,
        options=options,
    )  # fmt: skip
    assert sets(found) == ["c", "a"]
    assert found.jobs[0].kind is Kind.USER
    busy = plan(
        file("a", 0, 1), file("b", 0, 1), kind=Kind.USER, candidates="a",
        running=[(Kind.USER, "b")],
    )  # fmt: skip
    assert not busy.jobs
    tag = (("chunk", "500:3600:0:3600"),)
    full = [file(name, 0, 1, 500, tags=tag, job="j1") for name in "ab"]
    assert not plan(*full, options={"rules": "compact 1 if files > 1"}).jobs
    assert sets(plan(*full, kind=Kind.USER)) == ["ab"], "as the last job left them"
    beside = plan(file("a", 0, 1), file("b", 0, 1), kind=Kind.USER, candidates="a")
    assert sets(beside) == ["a"], "the other file is not selected"


# ----------------------------------------------------------------------------- Steps of large tasks


def test_many_files_of_a_chunk_are_merged_in_steps() -> None:
    files = [file(f"{at:02}", 0, 1, 10 + at) for at in range(12)]
    found = plan(*files, max_files=5)
    assert [len(job.files) for job in found.jobs] == [5, 5, 2]
    assert {dict(job.output_tags).get("chunk-step") for job in found.jobs} == {"500:3600"}
    assert found.jobs[0].reason.endswith("(the smallest files of a chunk with many)")


def test_merges_that_save_no_file_are_left() -> None:
    files = [file(f"{at:02}", 0, 1, 460) for at in range(25)]
    few = plan(*files, max_files=5)
    assert not few.jobs
    assert "no merge of so few would save a file" in few.left["00"]
    assert plan(*files, max_files=50).jobs[0].outputs_expected == 23
    large = plan(*files, file("big", 0, 1, 700), max_files=5)
    assert sets(large) == ["big"]
    assert large.jobs[0].outputs_expected == 2


def test_files_that_span_chunks_are_cut_before_many_are_merged() -> None:
    inside = [file(f"i{at}", 0, 1, 10) for at in range(6)]
    spanning = [file(f"s{at}", 0.5, 1.5, 10) for at in range(3)]
    found = plan(*inside, *spanning, max_files=2)
    assert sorted(sets(found)) == ["s0s1", "s2"]
    assert {hours(*job.cuts_at_s)[0] for job in found.jobs} == {1.0}
    assert found.left["i0"] == ("is merged in a later step, when files that span chunks are cut")


def test_no_job_is_larger_than_any_group_takes() -> None:
    files = [file(f"{at}", 0, 1, 90) for at in range(4)]
    groups = [Group(name="only", max_bytes=200)]
    assert sets(plan(*files, groups=groups)) == ["01", "23"]
    huge = plan(file("a", 0, 1, 900), file("b", 0, 1, 5), groups=groups)
    assert not huge.jobs
    assert huge.left["a"] == "is more than any group accepts (200 B)"
    spanning = plan(file("a", 0.5, 1.5, 900), file("b", 0, 1, 5), groups=groups)
    assert not spanning.jobs
    assert spanning.left["a"] == "is more than any group accepts (200 B)"


def test_a_file_over_very_many_chunks_is_cut_into_pieces_first() -> None:
    wide, other = file("w", 0, 1000, 90), file("o", 500, 501, 90)
    found = plan(wide, other)
    (job,) = found.jobs
    assert job.files == ("w",)
    assert len(job.cuts_at_s) == 31
    assert hours(*job.cuts_at_s[:2]) == [32, 64]
    assert job.reason.endswith("(a file that spans very many chunks is cut into pieces)")
    alone = plan(wide)
    assert not alone.jobs
    assert alone.left["w"] == "spans 1000 chunks, and there is no other file"
    assert plan(replace(wide, size_bytes=900)).jobs
    assert plan(wide, kind=Kind.USER).jobs
    small = plan(wide, other, groups=[Group(name="only", max_bytes=50)])
    assert small.left["w"] == "is more than any group accepts (50 B)"


# ------------------------------------------------------------------------------- Expiry and options


def test_files_whose_rows_have_all_expired_are_dropped() -> None:
    old = [file(f"{at}", at, at + 0.5) for at in range(3)]
    new = [file("x", 990, 991), file("y", 990, 991)]
    found = plan(*old, *new, ttl_s=20 * HOUR, max_files=2)
    assert sets(found) == ["01", "2", "xy"]
    assert [job.action for job in found.jobs] == [JobAction.DROP] * 2 + [JobAction.REWRITE]
    assert found.jobs[0].reason == "all rows have expired: 2 files"
    assert found.due_at_s == 991 * HOUR - 1 + 20 * HOUR + 2
    assert plan(*new, ttl_s=20 * HOUR, kind=Kind.USER).due_at_s is None
    at_limit = replace(file("l", 0, 1), time_max_s=NOW_S - 20 * HOUR - 2)
    assert plan(at_limit, ttl_s=20 * HOUR).jobs
    assert not plan(replace(at_limit, time_max_s=NOW_S - 20 * HOUR - 1), ttl_s=20 * HOUR).jobs


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"keyed": True}, "time-chunk needs a table without a key: with a key, outputs are cut at"),
        ({"timed": False}, "time-chunk needs a table with a time column"),
    ],
)
def test_other_tables_are_left(changes: dict[str, Any], why: str) -> None:
    question = replace(asked(file("a", 0, 1), file("b", 0, 1)), **changes)
    found = TimeChunkPlanner().plan(question)
    assert not found.jobs
    assert found.left["a"].startswith(why)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"granularity": "0.5s"}, "granularity_s is 0.5 s, expected at least 1 s"),
        ({"granularity": "1.5s"}, r"granularity_s is 1\.5, expected whole seconds"),
        ({"order": "best"}, "order is 'best', expected one of newest, priority, fragmented, fixed"),
        ({"order": "fixed"}, "intervals is '' and order is fixed; expected intervals with order"),
        ({"intervals": "2024-01-01/2024-01-02"}, "and order is newest; expected intervals with"),
        (
            {"skip_intervals": "2024-01-02/2024-01-01"},
            "skip_intervals has '2024-01-02/2024-01-01', expected two dates or times, the later",
        ),
        ({"skip_intervals": "yesterday"}, "skip_intervals has 'yesterday', expected two dates"),
        ({"minor_bytes_percent": 101}, "minor_bytes_percent is 101, expected 0 to 100"),
        ({"grain": 1}, "option 'grain' is unknown"),
        ({"rules": "best if files > 1"}, "outcome 'best' is unknown; known: compact, no_opinion"),
        ({"rules": "stables if files > 1"}, "outcome 'stables' is unknown; did you mean 'stable'"),
        ({"rules": "stable 1 if files > 1"}, "has '1', expected `stable if …`"),
        ({"rules": "compact 2 if files > 1"}, "files > 1' is 2, expected 0 to 1"),
        ({"rules": "compact x if files > 1"}, "is 'x', expected a number of 0 to 1"),
        ({"rules": "stable"}, "has the condition '', expected a measure, a comparison"),
        ({"rules": "stable if files ~ 1"}, "has the condition 'files ~ 1', expected a measure"),
        (
            {"rules": "stable if files > 1 and"},
            "has the condition 'files > 1 and', expected a meas",
        ),
        ({"rules": "stable if file > 1"}, "measure 'file' is unknown; did you mean 'files'"),
        ({"rules": "stable if files > -1"}, "files is -1, expected at least 0"),
        ({"rules": "stable if mean > 1XB"}, "mean '1XB' is not a size"),
        ({"rules": "stable if overlap = 2"}, "overlap is '2', expected true or false"),
        (
            {"rules": "stable if files > 1;" * 200},
            "rules is '.*, expected at most 2,000 characters",
        ),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=f"planner time-chunk: .*{message}"):
        TimeChunkPlanner().check(options)


def test_intervals_are_dates_or_times_in_utc() -> None:
    assert read_intervals("x", "1970-01-02/1970-01-03T00:00:00+00:00") == [(86_400.0, 172_800.0)]
    assert read_intervals("x", "  ") == []
