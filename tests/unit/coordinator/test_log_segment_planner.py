"""The log-segment planner, rule by rule, and the arithmetic of Ambry."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError
from common.model.file import DataFile
from common.model.job import Kind, Plan
from common.model.table import TableSettings
from common.model.tablet import PLUS_INFINITY, TabletId
from common.spi.planner import RequestFacts, RunningJob
from coordinator.plugins.planners.log_segment import (
    POSITION,
    RECLAIMED,
    SIZE,
    LogSegmentPlanner,
    read_segment_options,
    retention_s,
)
from coordinator.plugins.planners.segments import (
    SegmentRange,
    best_range,
    divisors_near,
    live_bytes_of,
    middle_range,
    next_wait_ms,
    period_start_s,
    segments_needed,
    throttle_sleep_ms,
    usable_bytes,
)
from tests.support.planning import parameters

CASES = json.loads((Path(__file__).parents[2] / "data" / "ambry_segments.json").read_text("utf-8"))
SEGMENT = 1000
DAY_S = 86_400.0
NOW_S = 100 * DAY_S
GIB = 1024**3

# ------------------------------------------------------------------------------ Ambry's arithmetic


def said(found: SegmentRange | None, *names: str) -> dict[str, Any] | None:
    return None if found is None else {name: getattr(found, name) for name in names}


@pytest.mark.parametrize("case", CASES["ranges"], ids=lambda case: str(case["name"]))
def test_ranges_are_those_of_ambry(case: dict[str, Any]) -> None:
    segment = case["segment"]
    usable = usable_bytes(segment, case["header"], case["max_blob"])
    assert usable == case["usable"]
    live = live_bytes_of(case["valid_pct"], segment)
    best = best_range(live, usable)
    assert said(best, "first", "last", "benefit", "cost", "ratio") == case["best"]
    middle = middle_range(live, segment, usable)
    assert said(middle, "first", "last", "benefit", "cost") == case["middle"]


@pytest.mark.parametrize("case", CASES["sleep"], ids=lambda case: str(case["observed_rate"]))
def test_a_copy_that_is_too_fast_sleeps(case: dict[str, Any]) -> None:
    assert throttle_sleep_ms(case["observed_rate"], case["desired"]) == case["sleep_ms"]


def test_a_sleep_has_a_bound() -> None:
    assert throttle_sleep_ms(10**9, 1) == 10_000


@pytest.mark.parametrize("case", CASES["wait"], ids=lambda case: str(case["not_compacted"]))
def test_the_next_round_comes_earlier_where_little_was_done(case: dict[str, Any]) -> None:
    found = next_wait_ms(case["wait_ms"], case["not_compacted"], case["stores"])
    assert found == case["next_wait_ms"]


def test_equal_ratios_take_the_greater_benefit_then_the_older_range() -> None:
    assert said(best_range([0, 900, 0, 0, 900], 1000), "first", "last") == {"first": 2, "last": 3}
    assert said(best_range([0, 900, 0], 1000), "first", "last") == {"first": 0, "last": 0}


def test_an_almost_empty_segment_does_not_win_by_its_small_cost_with_a_floor() -> None:
    live = [10, 900, 900, 20, 20, 20]
    assert said(best_range(live, 1000), "first", "last") == {"first": 3, "last": 5}
    assert said(best_range(live, 1000, min_reclaim=4), "first", "last") == {"first": 0, "last": 5}
    assert best_range(live, 1000, min_reclaim=5) is None
    empty = [0, 0, 999, 20, 20, 20, 20, 20]
    assert said(best_range(empty, 1000), "first", "last") == {"first": 0, "last": 1}
    floor = best_range(empty, 1000, floor_bytes=60)
    assert said(floor, "first", "last", "ratio") == {"first": 0, "last": 1, "ratio": 60.0}
    empty[1] = 999
    assert said(best_range(empty, 1000), "first", "last") == {"first": 0, "last": 0}
    floor = best_range(empty, 1000, floor_bytes=100)
    assert said(floor, "first", "last", "ratio") == {"first": 0, "last": 0, "ratio": 100.0}


def test_a_single_live_byte_keeps_a_segment() -> None:
    assert segments_needed(0, 1000) == 0
    assert segments_needed(1, 1000) == 1
    assert best_range([1], 1000) is None
    assert said(best_range([1, 1, 1], 1000), "benefit") == {"benefit": 2}


@pytest.mark.parametrize("end", [b"a", b"b", PLUS_INFINITY])
def test_a_period_begins_once_in_each_period_and_differs_by_tablet(end: bytes) -> None:
    tablet = TabletId("t1", end)
    began = period_start_s(NOW_S, DAY_S, tablet)
    assert began <= NOW_S < began + DAY_S
    assert period_start_s(began, DAY_S, tablet) == began
    assert period_start_s(began - 1, DAY_S, tablet) == pytest.approx(began - DAY_S)
    assert began != period_start_s(NOW_S, DAY_S, TabletId("t2", end))


# -------------------------------------------------------------------------------------- The planner


def log(
    *live: float | None, size: int = SEGMENT, added_s: float = 0.0, **given: Any
) -> list[DataFile]:
    """Return a log of full segments, so much of each live (None: not measured), oldest first."""
    return [
        DataFile(
            path=f"s{number}",
            size_bytes=size,
            rows=10,
            live_bytes=None if share is None else int(share * size),
            added_at_s=added_s + number + 1,
            **given,
        )
        for number, share in enumerate(live)
    ]


def plan(files: Sequence[DataFile], *, keyed: bool = False, **given: Any) -> Plan:
    """Plan a log of segments of 1000 bytes."""
    settings = {name: given.pop(name) for name in ("max_files",) if name in given}
    named = {name: given.pop(name) for name in ("kind", "running", "candidates") if name in given}
    now_s = given.pop("now_s", NOW_S)
    asked = parameters({file.path: file for file in files}, **named, **settings)
    options = {"segment_bytes": SEGMENT, **given}
    return LogSegmentPlanner().plan(replace(asked, options=options, now_s=now_s, keyed=keyed))


def jobs(found: Plan) -> list[list[str]]:
    return [list(job.files) for job in found.jobs]


def test_the_range_with_the_least_cost_per_segment_freed_is_compacted() -> None:
    found = plan(log(0.9, 0.8, 0.3, 0.3, 0.2, 0.9, 1.0))
    assert jobs(found) == [["s2", "s3", "s4"]]
    (job,) = found.jobs
    assert job.reason == (
        "segments 3 to 5 of 7 have the least cost per segment freed (400 B); 3 files of 2.9 KiB, "
        "800 B live: 3 segments become 1, 2 freed"
    )
    assert dict(job.output_tags) == {
        POSITION: "3.000",
        SIZE: "1000",
        RECLAIMED[0]: RECLAIMED[1],
    }
    assert found.left["s0"].startswith("segment 1 is live in 900 B of 1000 B; no range with it")
    assert found.left["s6"] == "segment 7 is the active segment, the last of the log"


def test_live_bytes_make_as_many_outputs_as_segments_of_a_table_without_a_key() -> None:
    (job,) = plan(log(0.5, 0.7, 0.4, 0.9), max_files=4).jobs
    assert (job.files, job.outputs_expected, job.cuts) == (("s0", "s1", "s2"), 2, ())


def test_outputs_of_a_table_with_a_key_are_cut_where_key_ranges_end() -> None:
    files = [
        replace(file, key_min=bytes([at * 10]), key_max=bytes([at * 10 + 5]))
        for at, file in enumerate(log(0.5, 0.5, 0.5, 0.5, 0.9))
    ]
    (job,) = plan(files, keyed=True).jobs
    assert job.files == ("s0", "s1", "s2", "s3")
    assert (job.outputs_expected, job.cuts) == (2, (bytes([15]),))
    over = [replace(file, key_max=b"\x7f") for file in files]
    (job,) = plan(over, keyed=True).jobs
    assert (job.outputs_expected, job.cuts) == (1, ())


def test_open_and_journal_segments_are_never_compacted() -> None:
    files = log(0.1, 0.1, 0.1, 0.1, 0.1)
    opened = [replace(files[0], open=True), *files[1:]]
    assert jobs(plan(opened, candidates=["s1", "s2", "s3", "s4"])) == [["s1", "s2", "s3"]]
    journal = [replace(file, tags=(("journal", "yes"),)) for file in files[:3]] + files[3:]
    found = plan(journal)
    assert not found.jobs
    assert found.left["s1"] == "segment 2 has entries in the journal (tag journal)"
    recent = plan(log(0.1, 0.1, 0.1, added_s=NOW_S - 10), journal_s=3600)
    assert not recent.jobs
    assert recent.left["s0"].startswith("segment 1 is in the journal until 1970-04-11 00:59 UTC")
    assert recent.due_at_s == NOW_S - 10 + 1 + 3600
    assert jobs(plan(log(0.1, 0.1, 0.1), journal_s=3600)) == [["s0", "s1"]]


def test_the_active_segment_is_closed_when_the_option_says_so() -> None:
    files = log(0.1, 0.1)
    assert not plan(files).jobs
    waiting = plan(files, close_after_s=3600, now_s=2000.0)
    assert waiting.left["s1"].startswith("segment 2 is the active segment, which closes at")
    assert waiting.due_at_s == 3602.0
    assert jobs(plan(files, close_after_s=3600)) == [["s0", "s1"]]


def test_a_range_ends_at_a_segment_that_is_not_eligible() -> None:
    running = [(Kind.SYSTEM, ["s1"])]
    files = log(0.1, 0.1, 0.1, 0.5, 0.5, 0.9)
    found = plan(files, candidates=["s0", "s2", "s3", "s4", "s5"], running=running)
    assert jobs(found) == [["s2", "s3"]]


def test_the_log_must_be_full_enough() -> None:
    half = log(*[0.1] * 5)
    assert not plan(half, capacity=11 * SEGMENT).jobs
    low = plan(log(*[0.1] * 499), capacity=1000 * SEGMENT)
    assert set(low.left.values()) == {
        "the log uses 499 of 1000 segments (49.9 %), below min_used_percent 50"
    }
    assert jobs(plan(log(*[0.1] * 500), capacity=1000 * SEGMENT)) == [
        [f"s{number}" for number in range(10)]
    ]
    assert plan(half, capacity=11 * SEGMENT, min_used_percent=0).jobs


def test_used_segments_are_whole_ones() -> None:
    found = plan(log(1.0, 1.0, 1.0, size=1), capacity=8 * SEGMENT)
    assert found.left["s0"].startswith("the log uses 3 of 8 segments (37.5 %)")
    assert "uses 4 of 8" not in str(found.left)
    large = plan([*log(None, None, size=2500)], capacity=20 * SEGMENT)
    assert large.left["s0"].startswith("the log uses 6 of 20")


def test_a_log_of_one_segment_cannot_be_compacted() -> None:
    found = plan(log(0.1, 0.1, 0.1), capacity=SEGMENT)
    assert not found.jobs
    assert found.left["s0"].startswith("is not segmented: segment_bytes is capacity_bytes")


def test_a_minimum_to_reclaim_binds_the_statistics_alone() -> None:
    files = log(0.6, 0.3, 0.9, 0.9)
    assert jobs(plan(files, min_reclaim_segments=1)) == [["s0", "s1"]]
    strict = plan(files, min_reclaim_segments=2)
    assert not strict.jobs
    assert "no range with it frees 2 segments" in strict.left["s0"]
    every = plan(files, min_reclaim_segments=2, policy="compact-all")
    assert jobs(every) == [["s0", "s1", "s2"]]


def test_without_statistics_a_file_is_all_live_and_the_reason_says_what_to_do() -> None:
    found = plan(log(None, None, None, None))
    assert not found.jobs
    assert found.left["s0"] == (
        "segment 1 has no count of live bytes and is assumed to be all live; count them with `neve "
        "analyze`; no range with it frees 1 segment with less to copy"
    )
    assert jobs(plan(log(None, None, None, size=10))) == [["s0", "s1"]], "small ones fit into one"


def test_files_of_one_tag_are_one_segment_and_stand_in_its_place() -> None:
    def tagged(path: str, segment: int, live: int) -> DataFile:
        return DataFile(
            path=path, size_bytes=500, rows=1, live_bytes=live, tags=(("segment", str(segment)),)
        )

    files = [tagged("a", 7, 400), tagged("b", 7, 10), tagged("c", 5, 50), tagged("d", 5, 30)]
    found = plan([*files, tagged("e", 11, 500)])
    assert jobs(found) == [["c", "d", "a", "b"]]
    assert dict(found.jobs[0].output_tags)[POSITION] == "5.000"
    busy = plan([*files, tagged("e", 11, 500)], candidates=["a", "b", "c", "e"])
    assert not busy.jobs
    assert busy.left["c"] == "segment 1 is in a segment with d, which is in use"


def test_an_output_keeps_the_place_of_its_first_input() -> None:
    files = log(0.9, 0.9, 0.9)
    moved = DataFile(
        path="out", size_bytes=1000, rows=1, added_at_s=NOW_S, tags=((POSITION, "1.500"),)
    )
    found = plan([*files, moved])
    assert found.left["out"].startswith("segment 2 has no count of live bytes")
    assert found.left["s2"] == "segment 4 is the active segment, the last of the log"


def test_a_fixed_size_of_segments_is_kept_whatever_is_configured_later() -> None:
    files = log(0.3, 0.3, 0.9)
    asked = parameters({file.path: file for file in files}, log_segment_bytes=1000)
    for options in ({"segment": 400}, {"segment": 700, "capacity": 3000, "min_used_percent": 0}):
        found = LogSegmentPlanner().plan(replace(asked, options=options, now_s=NOW_S, keyed=False))
        assert found.jobs[0].reason.endswith("2 segments become 1, 1 freed")
        assert dict(found.jobs[0].output_tags)[SIZE] == "1000"
    tagged = {file.path: replace(file, tags=((SIZE, "2000"),)) for file in files}
    found = LogSegmentPlanner().plan(
        replace(asked, files=tagged, candidates=tuple(tagged.values()), now_s=NOW_S, keyed=False)
    )
    assert dict(found.jobs[0].output_tags)[SIZE] == "2000", "a tablet that is older than the table"


def test_a_fixed_size_without_room_is_not_used() -> None:
    files = {file.path: replace(file, tags=((SIZE, "10"),)) for file in log(0.3, 0.3, 0.9)}
    options = {"segment": 1000, "header": 20}
    asked = replace(parameters(files), options=options, now_s=NOW_S, keyed=False)
    assert dict(LogSegmentPlanner().plan(asked).jobs[0].output_tags)[SIZE] == "1000"


def test_the_size_of_segments_is_that_of_the_first_compaction() -> None:
    files = log(0.3, 0.3, 0.9)
    kept = replace(files[2], tags=((SIZE, "1000"),))
    small = plan(files, segment_bytes=400)
    assert "segment 1" in small.left.get("s0", "") or small.jobs
    found = plan([*files[:2], kept], segment_bytes=400)
    assert dict(found.jobs[0].output_tags)[SIZE] == "1000"
    assert found.jobs[0].reason.endswith("2 segments become 1, 1 freed")


# ----------------------------------------------------------------------- Tables with a key


def keyed(path: str, live: float, versions: tuple[int, int], **given: Any) -> DataFile:
    low, high = versions
    facts: dict[str, Any] = {"key_min": b"a", "key_max": b"m"} | given
    return DataFile(
        path=path,
        size_bytes=SEGMENT,
        rows=10,
        live_bytes=int(live * SEGMENT),
        version_min=bytes([low]),
        version_max=bytes([high]),
        added_at_s=float(high),
        **facts,
    )


def test_files_that_may_hide_rows_of_the_range_are_in_its_job() -> None:
    files = [
        keyed("old", 0.1, (1, 1)),
        keyed("apart", 1.0, (2, 2), key_min=b"x", key_max=b"z"),
        keyed("update", 1.0, (3, 3)),
        keyed("last", 1.0, (4, 4), key_min=b"x", key_max=b"z"),
    ]
    found = plan(files, keyed=True, close_after_s=0)
    assert not found.jobs, "as many segments as before"
    cheap = [replace(files[0], live_bytes=0), *files[1:]]
    found = plan(cheap, keyed=True)
    assert jobs(found) == [["old", "update"]]
    assert "1 more may hide rows of them" in found.jobs[0].reason
    assert jobs(plan(cheap)) == [["old"]], "rows of a table without a key hide none"


def test_a_range_that_frees_nothing_with_the_files_that_hide_its_rows_stays() -> None:
    """With headers, two segments of 450 live bytes and a full one need as many segments again."""
    files = [
        keyed("a", 0.45, (1, 1)),
        keyed("b", 0.45, (2, 2)),
        keyed("update", 1.0, (3, 3)),
        keyed("last", 1.0, (4, 4), key_min=b"x", key_max=b"z"),
    ]
    assert jobs(plan(files, keyed=True)) == [["a", "b", "update"]]
    assert not plan(files, keyed=True, header_bytes=100).jobs


def test_older_rows_that_tombstones_hide_are_in_their_job() -> None:
    files = [
        keyed("old", 1.0, (1, 1)),
        keyed("deletes", 0.0, (2, 2), tombstones=10, tombstones_since_s=0.0),
        keyed("last", 1.0, (3, 3), key_min=b"x", key_max=b"z"),
    ]
    assert jobs(plan(files, keyed=True)) == [["deletes", "old"]]
    assert jobs(plan([files[0], replace(files[1], tombstones=0), files[2]], keyed=True)) == [
        ["deletes"]
    ]


def test_what_stayed_dead_in_a_rewrite_waits_for_the_files_that_hide_it() -> None:
    files = [keyed("old", 0.0, (1, 1)), keyed("active", 1.0, (2, 2))]
    assert jobs(plan(files, keyed=True)) == [["old"]], "once, although rows of the active hide it"
    again = [replace(files[0], tags=(RECLAIMED,)), files[1]]
    found = plan(again, keyed=True)
    assert not found.jobs
    assert found.left["old"].endswith(
        "was rewritten before, and active, which may hide its rows, is not free"
    )
    assert jobs(plan(again, keyed=True, close_after_s=0)) == [["old", "active"]]


def test_a_row_stays_while_its_delete_is_inside_the_retention() -> None:
    files = [
        keyed("old", 0.2, (1, 1)),
        keyed("deletes", 0.0, (2, 2), tombstones=10, tombstones_since_s=NOW_S - 3 * DAY_S),
        keyed("last", 1.0, (3, 3), key_min=b"x", key_max=b"z"),
    ]
    for young in ({"deleted_retention_days": 7}, {"deleted_retention_hours": 168}):
        found = plan(files, keyed=True, **young)
        assert not any("deletes" in job.files for job in found.jobs)
        assert found.left["deletes"] == (
            "segment 2 holds deletes that are inside their retention until 1970-04-15 00:00 UTC, "
            "and its table does not keep deleted rows so long"
        )
        assert found.due_at_s == NOW_S + 4 * DAY_S
    assert jobs(plan(files, keyed=True, deleted_retention_days=2)) == [["deletes", "old"]]
    assert jobs(plan(files, keyed=True)) == [["deletes", "old"]]


@pytest.mark.parametrize(("days", "planned"), [(7, True), (6, False)])
def test_young_deletes_are_in_jobs_of_a_table_that_keeps_deleted_rows(
    days: int, planned: bool
) -> None:
    """With deletes all the time, each segment has young ones."""
    files = {
        file.path: replace(file, tombstones=1, tombstones_since_s=NOW_S - DAY_S)
        for file in log(0.3, 0.3, 0.2, 0.9)
    }
    asked = parameters(files, keep_deleted_rows=True, tombstone_retention_s=days * DAY_S)
    options = {"segment_bytes": SEGMENT, "deleted_retention_days": 7}
    found = LogSegmentPlanner().plan(replace(asked, options=options, now_s=NOW_S, keyed=True))
    assert bool(found.jobs) == planned


# -------------------------------------------------------------------------- Policies with periods


def test_everything_is_compacted_once_in_a_period() -> None:
    files = log(1.0, 1.0, 0.1, 1.0)
    found = plan(files, policy="compact-all")
    assert jobs(found) == [["s0", "s1", "s2"]]
    assert found.due_at_s is not None
    assert NOW_S < found.due_at_s <= NOW_S + 7 * DAY_S + 1
    after = plan(log(1.0, 1.0, 0.1, 1.0, added_s=NOW_S - 10), policy="compact-all")
    assert not after.jobs
    assert after.left["s0"] == "segment 1 is compacted when its period is over"
    assert after.due_at_s == found.due_at_s
    later = plan(
        log(1.0, 1.0, 0.1, 1.0, added_s=NOW_S - 10), policy="compact-all", now_s=found.due_at_s
    )
    assert jobs(later) == [["s0", "s1", "s2"]]


def test_live_ends_are_skipped_where_asked() -> None:
    files = log(1.0, 1.0, 0.1, 1.0, 0.2, 1.0, 1.0)
    found = plan(files, policy="compact-all", skip_live_ends=True)
    assert jobs(found) == [["s2", "s3", "s4"]]
    assert found.left["s0"] == "is all live, at an end of what is compacted"
    assert not plan(log(1.0, 1.0, 1.0), policy="compact-all", skip_live_ends=True).jobs


def test_a_job_has_no_more_files_and_bytes_than_it_may() -> None:
    found = plan(log(*[1.0] * 8), policy="compact-all", max_files=3)
    assert jobs(found) == [["s0", "s1", "s2"], ["s3", "s4", "s5"], ["s6"]]
    assert jobs(plan(log(*[0.1] * 8), max_files=3)) == [["s0", "s1", "s2"]]


def segment_of(name: str, number: int, files: int, live: float) -> list[DataFile]:
    """Return the files of a segment of 1000 bytes."""
    return [
        DataFile(
            path=f"{name}{at}",
            size_bytes=SEGMENT // files,
            rows=10,
            live_bytes=int(live * SEGMENT / files),
            added_at_s=1.0,
            tags=(("segment", str(number)),),
        )
        for at in range(files)
    ]


@pytest.mark.parametrize(
    "policy", [{"policy": "compact-all"}, {"middle_every_s": DAY_S, "middle_live_share": 0.3}]
)
def test_a_segment_of_more_files_than_a_job_may_have_stays(policy: dict[str, Any]) -> None:
    """The others are compacted, also those of a later run of segments."""
    files = [
        *segment_of("many", 1, 4, 0.3),
        *segment_of("more", 2, 4, 0.3),
        *segment_of("most", 3, 4, 0.3),
        *segment_of("busy", 4, 1, 0.1),
        *segment_of("c", 5, 1, 0.3),
        *segment_of("d", 6, 1, 0.3),
        *segment_of("e", 7, 1, 0.3),
        *segment_of("last", 8, 1, 1.0),
    ]
    free = [file.path for file in files if file.path != "busy0"]
    found = plan(files, max_files=3, candidates=free, **policy)
    assert jobs(found) == [["c0", "d0", "e0"]]
    assert found.left["many0"] == (
        "has 4 files of 1000 B in its segment, more than a job may have (max_files 3)"
    )


def test_hybrid_goes_by_statistics_between_two_compactions_of_everything() -> None:
    old, fresh = log(0.9, 0.1, 0.2, 0.9), log(0.9, 0.1, 0.2, 0.9, added_s=NOW_S - 10)
    assert jobs(plan(old, policy="hybrid")) == [["s0", "s1", "s2"]]
    assert jobs(plan(fresh, policy="hybrid")) == [["s1", "s2"]]


def test_the_middle_range_comes_once_in_a_period() -> None:
    shares = (0.9, 0.3, 0.9, 0.9, 0.3, 0.3, 1.0)
    found = plan(log(*shares), middle_every_s=DAY_S)
    assert jobs(found) == [["s1", "s2", "s3", "s4", "s5"]]
    assert found.jobs[0].reason.startswith("middle range: from the first to the last segment with")
    after = plan(log(*shares, added_s=NOW_S - 10), middle_every_s=DAY_S)
    assert jobs(after) == [["s4", "s5"]], "the statistics decide again"
    one = plan(log(0.9, 0.3, 0.3, 0.2, 1.0), middle_every_s=DAY_S, min_reclaim_segments=2)
    assert jobs(one) == [["s1", "s2", "s3"]], "a range that frees two segments"
    few = plan(log(0.9, 0.3, 0.3, 0.9, 1.0), middle_every_s=DAY_S)
    assert few.jobs[0].reason.startswith("segments 2 to 3 of 5"), "one that frees one is none"


def test_a_request_brings_all_files_to_one() -> None:
    asked = parameters({file.path: file for file in log(1.0, 0.1, None)}, kind=Kind.USER)
    asked = replace(asked, request=RequestFacts(request="r1"))
    found = LogSegmentPlanner().plan(replace(asked, options={"segment_bytes": SEGMENT}))
    assert jobs(found) == [["s0", "s1", "s2"]]
    busy = replace(asked, running=(RunningJob(kind=Kind.USER, files=(asked.files["s0"],)),))
    later = LogSegmentPlanner().plan(replace(busy, options={"segment_bytes": SEGMENT}))
    assert not later.jobs
    assert later.left["s1"] == "waits for the running jobs of the request"


# ------------------------------------------------------------------------------------------ Options


DIVISORS = (1, 2, 4, 5, 8, 10, 16, 20, 32, 40, 80)


@pytest.mark.parametrize("size", DIVISORS)
def test_sizes_that_divide_the_capacity_are_accepted(size: int) -> None:
    options = read_segment_options({"segment_bytes": f"{size}GB", "capacity": "160GB"})
    assert options.segment_bytes == size * GIB


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"segment": "12GB", "capacity": "160GB"},
            "option segment_bytes is 12884901888 (12.0 GiB), expected a size that divides "
            "capacity_bytes 171798691840 (160.0 GiB); near it: 4294967296 (4.0 GiB), "
            "5368709120 (5.0 GiB), 8589934592 (8.0 GiB), 10737418240 (10.0 GiB), 17179869184 (16.0",
        ),
        ({"policy": "some"}, "option policy is 'some', expected one of compact-all, stats-based"),
        ({"min_used_percent": 101}, "option min_used_percent is 101, expected 0 to 100"),
        ({"min_reclaim_segments": 0}, "option min_reclaim_segments is 0, expected at least 1"),
        ({"segment": 100, "header": 60, "largest_record": 40}, "leave no room in a segment of 100"),
        (
            {"deleted_retention_hours": 24, "deleted_retention_days": 2},
            "deleted_retention_hours is 24 and deleted_retention_days is 2, expected one of them",
        ),
    ],
)
def test_options_by_which_no_plan_can_be_made_are_refused(
    options: dict[str, object], expected: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        LogSegmentPlanner().check(options)
    assert expected in str(refused.value)


def test_the_divisors_that_are_listed_are_few_and_near() -> None:
    sizes = [divisors_near(size * GIB, 160 * GIB, 1) for size in (3, 9, 25, 100)]
    assert sizes == [[5 * GIB // 2, 4 * GIB], [8 * GIB, 10 * GIB], [20 * GIB, 32 * GIB], [80 * GIB]]
    assert len(divisors_near(3 * GIB, 160 * GIB)) == 8
    assert divisors_near(3 * 1024**2, 160 * GIB, 1) == [5 * 1024**2 // 2, 4 * 1024**2]
    assert divisors_near(7, 10) == [1, 2, 5]
    assert divisors_near(1000, 2 * 999_983) == [1, 2, 999_983]
    assert divisors_near(1000, 999_983) == [1], "a prime number"


def test_all_divisors_are_found_whose_factors_are_small() -> None:
    for capacity in range(2, 400):
        every = [size for size in range(1, capacity) if capacity % size == 0]
        assert divisors_near(20, capacity, 400) == every


def test_a_capacity_is_held_against_the_size_of_the_table_when_that_is_known() -> None:
    LogSegmentPlanner().check({"capacity": "3GB"})
    asked = replace(parameters({}, target_bytes=2 * GIB), options={"capacity": "3GB"})
    with pytest.raises(ConfigError, match="expected a size that divides capacity_bytes"):
        LogSegmentPlanner().plan(asked)


def test_a_retention_in_days_is_one_in_hours() -> None:
    assert retention_s(days=7) == retention_s(hours=168) == 7 * DAY_S
    assert retention_s(hours=48, days=2) == 2 * DAY_S
    assert retention_s() is None
    assert read_segment_options({"deleted_retention_days": "7"}).retention_s == 7 * DAY_S


def test_a_table_keeps_its_size_of_segments_and_deleted_rows_for_the_retention() -> None:
    planner, given = LogSegmentPlanner(), {"segment_bytes": 1000, "deleted_retention_days": 7}
    fixed = {"keep_deleted_rows": True, "tombstone_retention_s": 7 * DAY_S}
    new = TableSettings(tombstone_retention_s=DAY_S)
    assert planner.fixed_settings(given, new) == {"log_segment_bytes": 1000, **fixed}
    kept = replace(new, log_segment_bytes=1000)
    assert planner.fixed_settings({**given, "segment_bytes": 400}, kept) == fixed, "of the service"
    other = replace(kept, planner_options={"segment_bytes": "400B"})
    with pytest.raises(ConfigError, match=r"segment_bytes is 400, expected 1000 .* for another"):
        planner.fixed_settings({}, other)
