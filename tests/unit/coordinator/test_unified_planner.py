"""The unified planner and its tracker: Cassandra's examples, and models that count in their way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from common.errors import ConfigError
from common.model.file import DataFile
from common.model.group import Group
from common.model.job import JobAction, Kind, Plan
from common.model.key_values import KeyType
from common.model.keys import decode_key, encode_key
from common.model.table import TableSettings
from common.plugins import load_planner, load_tracker
from common.spi.controller import WorkUnderWay
from common.spi.planner import PlanParameters, RequestFacts, RunningJob
from coordinator.plugins.planners.unified import (
    Piece,
    UnifiedOptions,
    UnifiedPlanner,
    UnifiedTrackers,
    buckets_of,
    fan_out_of,
    levels_of,
    pieces_of,
    scaling_of,
    section_count,
    threshold_of,
)
from tests.support.plan_loop import live
from tests.support.planning import parameters

INT = (KeyType.INT,)
MIB, GIB = 1024**2, 1024**3
DAY_S = 86_400.0


def file(path: str, size: int, low: int = 0, high: int = 1000, **facts: Any) -> DataFile:
    low_key, high_key = encode_key([low], INT), encode_key([high], INT)
    return DataFile(path=path, size_bytes=size, rows=10, key_min=low_key, key_max=high_key, **facts)


def asked(files: Sequence[DataFile], options: dict[str, object], **settings: Any) -> PlanParameters:
    by_path = {each.path: each for each in files}
    return replace(parameters(by_path, **settings), options=options, key_types=INT)


def plan(files: Sequence[DataFile], options: dict[str, object], **settings: Any) -> Plan:
    return UnifiedPlanner().plan(asked(files, options, **settings))


def names(sets: Sequence[Sequence[Piece]]) -> list[str]:
    return ["".join(sorted(piece.files[0].path for piece in set_)) for set_ in sets]


# ------------------------------------------------------------------------- Cassandra's own examples


@pytest.mark.parametrize(
    ("text", "w", "fan_out", "threshold"),
    [("T4", 2, 4, 4), ("L10", -8, 10, 2), ("N", 0, 2, 2), ("T2", 0, 2, 2), ("l4", -2, 4, 2),
     ("L2", 0, 2, 2), ("-8", -8, 10, 2), ("2", 2, 4, 4)],
)  # fmt: skip
def test_a_scaling_parameter_is_a_fan_out_and_a_threshold(
    text: str, w: int, fan_out: int, threshold: int
) -> None:
    assert scaling_of(text) == (w,)
    assert (fan_out_of(w), threshold_of(w)) == (fan_out, threshold)


def test_a_bucket_and_its_overlap_are_those_of_the_example() -> None:
    """Four files cover 0-3, 2-7, 6-9 and 1-8: PQS and QRS overlap, in one bucket."""
    spans = {"P": (0, 3), "Q": (2, 7), "R": (6, 9), "S": (1, 8)}
    (bucket,) = buckets_of(pieces_of(file(name, 100, *span) for name, span in spans.items()))
    assert names([bucket.pieces, bucket.most]) == ["PQRS", "PQS"]
    later = {"P": (0, 1), "Q": (2, 7), "R": (6, 9), "S": (1, 8)}
    (bucket,) = buckets_of(pieces_of(file(name, 100, *span) for name, span in later.items()))
    assert names([bucket.pieces, bucket.most]) == ["PQRS", "QRS"]
    apart = pieces_of([file("P", 100, 0, 3), file("Q", 100, 4, 7)])
    assert [names([bucket.pieces]) for bucket in buckets_of(apart)] == [["P"], ["Q"]]


def overlap_of(files: Iterable[DataFile]) -> int:
    return max(len(bucket.most) for bucket in buckets_of(pieces_of(files)))


@pytest.mark.parametrize(
    ("density", "options", "sections"),
    [
        # 200 MiB at a target of 100 MiB and 4 base sections; then 6 files of 50 MiB of one of them.
        (200 * MIB, {"base_section_count": 4, "target_file_bytes": 100 * MIB}, 4),
        (1200 * MIB, {"base_section_count": 4, "target_file_bytes": 100 * MIB}, 16),
        # 1 TiB with growth 0, 0.5 and 1; then with 4 base sections.
        (1024 * GIB, {"base_section_count": 1}, 1024),
        (1024 * GIB, {"base_section_count": 1, "file_growth": 0.5}, 32),
        (1024 * GIB, {"base_section_count": 1, "file_growth": 1.0}, 1),
        (1024 * GIB, {"base_section_count": 4, "file_growth": 0.5}, 64),
        (1024 * GIB, {"base_section_count": 4, "file_growth": 1.0}, 4),
        # Fewer than the base sections while files would be smaller than the minimum.
        (50 * MIB, {"base_section_count": 8, "min_file_bytes": 100 * MIB}, 1),
        (450 * MIB, {"base_section_count": 8, "min_file_bytes": 100 * MIB}, 4),
    ],
)
def test_sections_are_those_of_the_examples(
    density: float, options: dict[str, Any], sections: int
) -> None:
    given = {"file_growth": 0.0, "min_file_bytes": 0, "target_file_bytes": GIB}
    assert section_count(density, UnifiedOptions(**(given | options))) == sections


def test_levels_grow_by_the_fan_out_of_each() -> None:
    """Level n starts at the product of the fan-outs below it; the base is less than a flush."""
    options = UnifiedOptions(scaling_parameters="T8 L4", flush_size_bytes=1000)
    base = 1000 * (1 - 0.9 / 8)
    sizes = [1, 1000, int(base * 8) + 1, int(base * 31), int(base * 33), int(base * 129)]
    one_at_a_time = [levels_of(pieces_of([file("a", size)]), options)[-1].number for size in sizes]
    assert one_at_a_time == [0, 0, 1, 1, 2, 3]


def test_a_file_of_a_section_is_as_dense_as_a_file_of_all() -> None:
    """Four files of a quarter each are in the level of one file of all of their bytes."""
    parts = [file(f"p{at}", 1000, at * 250, at * 250 + 249) for at in range(4)]
    for piece in pieces_of([*parts, file("all", 4000, 0, 999)]):
        assert piece.density == pytest.approx(4000, rel=0.01)


# --------------------------------------------------------------------- Arrivals, and what they cost


def next_key(key: bytes | None) -> bytes:
    """Return a key for the first row after a cut, where `live` has the cut and a zero byte."""
    assert key is not None
    whole = encode_key([0], INT)
    (value,) = decode_key(key[: len(whole)], INT)
    assert isinstance(value, int)
    return encode_key([value + (len(key) > len(whole))], INT)


def arrive(count: int, scaling: str, **options: object) -> tuple[list[list[int]], float]:
    """Let flushes of 1000 bytes arrive; return the sizes after each, and the bytes rewritten."""
    given: dict[str, object] = {"scaling_parameters": scaling, "flush_size": 1000, **options}
    files: dict[str, DataFile] = {}
    rewritten, sizes = 0, list[list[int]]()
    for number in range(count):
        new = file(f"new-{number}", 1000, version_min=number.to_bytes(4, "big"))
        life = live(
            "unified",
            UnifiedPlanner(),
            asked([*files.values(), new], given, max_files=200),
            jobs_max=20,
        )
        files = {
            f"{number}-{at}": replace(each, path=f"{number}-{at}", key_min=next_key(each.key_min))
            for at, each in enumerate(life.files.values())
        }
        rewritten += life.rewritten_bytes
        sizes.append(sorted(each.size_bytes // 1000 for each in files.values()))
    return sizes, rewritten / (1000 * count)


def tiered(count: int, fan_out: int) -> tuple[list[list[int]], float]:
    """Count as an odometer does: `fan_out` files of a size become one."""
    digits, cost, sizes = [0] * 20, 0, list[list[int]]()
    for _ in range(count):
        digits[0] += 1
        for level in range(19):
            if digits[level] == fan_out:
                digits[level], digits[level + 1] = 0, digits[level + 1] + 1
                cost += fan_out ** (level + 1)
        sizes.append([fan_out**at for at, digit in enumerate(digits) for _ in range(digit)])
    return sizes, cost / count


def leveled(count: int, fan_out: int) -> tuple[list[list[int]], float]:
    """Keep one file per level: it takes in what arrives, and moves on when the level is full."""
    held, cost, sizes = [0] * 20, 0, list[list[int]]()
    for _ in range(count):
        coming = 1
        for level in range(20):
            if held[level]:
                coming += held[level]
                cost += coming
            held[level] = 0
            if coming < fan_out ** (level + 1):
                held[level] = coming
                break
        sizes.append(sorted(filter(None, held)))
    return sizes, cost / count


MODELS: list[tuple[str, Callable[[int, int], tuple[list[list[int]], float]], int, int]] = [
    ("T4", tiered, 4, 130),
    ("T8", tiered, 8, 130),
    ("L10", leveled, 10, 130),
    ("L4", leveled, 4, 70),
    ("N", tiered, 2, 70),
    ("N", leveled, 2, 70),
]


@pytest.mark.parametrize(("scaling", "model", "fan_out", "count"), MODELS)
def test_arrivals_leave_and_cost_what_the_model_of_the_strategy_does(
    scaling: str,
    model: Callable[[int, int], tuple[list[list[int]], float]],
    fan_out: int,
    count: int,
) -> None:
    """T is size-tiered with that threshold, L is leveled with that fan-out, N is both."""
    sizes, amplification = arrive(count, scaling, target_file=GIB)
    expected, cost = model(count, fan_out)
    assert sizes == expected
    assert amplification == pytest.approx(cost)


def test_a_list_of_parameters_is_tiered_below_and_leveled_above() -> None:
    sizes, _ = arrive(130, "T4 L4", target_file=GIB)
    for held in sizes:
        assert sum(size < 4 for size in held) < 4
        assert sum(4 <= size < 16 for size in held) <= 1


def test_sections_bound_files_and_readers_and_not_the_cost() -> None:
    """Outputs are cut at sections: small files, as few at one key, the same bytes written."""
    whole, whole_cost = arrive(130, "T4", target_file=GIB)
    cut, cost = arrive(130, "T4", target_file=4000, file_growth=0)
    assert max(map(max, whole)) == 64
    assert max(map(max, cut)) <= 6
    assert cost == pytest.approx(whole_cost, rel=0.1)
    depth = max(len(held) for held in whole)
    files = [file(f"f{number}", 1000) for number in range(256)]
    life = live(
        "unified",
        UnifiedPlanner(),
        asked(files, {"flush_size": 1000, "target_file": 4000, "file_growth": 0},
              max_files=200),
        jobs_max=400,
    )  # fmt: skip
    assert overlap_of(life.files.values()) <= depth


# ---------------------------------------------------------------------------------------- Decisions


FLUSHES = {"flush_size": 1000}


def test_only_overlapping_files_of_one_level_are_merged() -> None:
    apart = [file(f"a{at}", 1000, at * 10, at * 10 + 9) for at in range(8)]
    assert plan(apart, FLUSHES).jobs == ()
    assert set(plan(apart, FLUSHES).left.values()) == {
        "is in level 1 (T4, density below 12.1 KiB), and no other file of the level overlaps it"
    }
    together = [file(f"b{at}", 1000) for at in range(4)]
    large = file("large", 100_000)
    found = plan([*together, large], FLUSHES)
    assert [job.files for job in found.jobs] == [("b0", "b1", "b2", "b3")]
    assert found.jobs[0].reason == (
        "up to 4 files of level 0 overlap at one key (T4 merges from 4 on): 4 files of 3.9 KiB"
        " are merged"
    )
    assert found.left == {
        "large": "is in level 3 (T4, density below 193.8 KiB), and no other file of the level"
        " overlaps it"
    }
    fewer = plan(together[:3], FLUSHES)
    assert set(fewer.left.values()) == {
        "is in level 0 (T4, density below 3.0 KiB), and at most 3 files overlap at one key;"
        " they are merged from 4 on"
    }


def test_the_largest_overlap_comes_first_and_has_the_highest_priority() -> None:
    low = [file(f"low{at}", 1000, 0, 499) for at in range(4)]
    high = [file(f"high{at}", 1000, 500, 999) for at in range(6)]
    jobs = plan([*low, *high], FLUSHES).jobs
    assert [len(job.files) for job in jobs] == [6, 4]
    assert jobs[0].priority > jobs[1].priority


def test_a_bucket_of_too_many_files_is_merged_in_parts_oldest_rows_first() -> None:
    files = [file(f"f{at:02}", 1000, version_min=bytes([90 - at])) for at in range(23)]
    jobs = plan(files, FLUSHES, max_files=10).jobs
    assert [len(job.files) for job in jobs] == [10, 10]
    assert set(jobs[0].files) == {f"f{at:02}" for at in range(13, 23)}
    narrow = plan(files, {**FLUSHES, "max_files_to_compact": 6}, max_files=10).jobs
    assert [len(job.files) for job in narrow] == [6, 6, 6, 5]


def test_parts_of_a_bucket_are_no_larger_than_a_group_accepts() -> None:
    files = [file(f"f{at}", 1000, version_min=bytes([at])) for at in range(6)]
    four, three = ([Group(name="small", max_bytes=size)] for size in (4500, 3500))
    found = plan(files, FLUSHES, groups=four)
    assert [job.files for job in found.jobs] == [("f0", "f1", "f2", "f3")]
    fewer = plan(files, FLUSHES, groups=three)
    assert fewer.jobs == (), "three files do not reach the threshold of four"
    assert fewer.left["f0"].endswith("or they are more than any group accepts")


def test_ends_of_files_that_are_close_to_each_other_make_one_cut() -> None:
    spaced = [file(f"n{at:02}", 6000, at * 50, at * 50 + 49) for at in range(10)]
    close = [file(f"n{at:02}", 600, 450 + at * 5, 454 + at * 5) for at in range(10, 20)]
    wide = file("wide", 100_000, 0, 999, version_min=b"1")
    options = {"scaling_parameters": "L10", "flush_size": 1000, "file_growth": 0}
    (job,) = plan([*spaced, *close, wide], options, max_files=10).jobs
    assert list(job.cuts) == [
        *(spaced[at].key_max for at in (3, 7)),
        *(close[at].key_max for at in (1, 9)),
    ], "there is none at the sixteenth end"


def test_a_wide_file_that_overlaps_too_many_is_cut_where_they_end() -> None:
    """It is written twice, and one other file; otherwise it would grow from job to job."""
    narrow = [file(f"n{at:02}", 6000, at * 50, at * 50 + 49) for at in range(20)]
    wide = file("wide", 100_000, 0, 999, version_min=b"1")
    options = {"scaling_parameters": "L10", "flush_size": 1000, "file_growth": 0}
    (job,) = plan([*narrow, wide], options, max_files=10).jobs
    assert (len(job.files), job.outputs_expected) == (2, 5)
    assert list(job.cuts) == [narrow[at].key_max for at in (3, 7, 11, 15)]
    given = asked([*narrow, wide], options, max_files=10)
    life = live("unified", UnifiedPlanner(), given, jobs_max=40)
    whole = sum(each.size_bytes for each in given.files.values())
    assert life.rewritten_bytes <= whole + 106_000
    assert overlap_of(life.files.values()) == 1
    made = UnifiedTrackers().tracker(given.settings, options)
    for data_file in given.files.values():
        made.add(data_file)
    assert made.backlog_bytes(WorkUnderWay()) == pytest.approx(life.rewritten_bytes, rel=0.1)


def test_a_table_without_a_key_has_one_output_per_job() -> None:
    files = [replace(file(f"f{at}", 1000), key_min=None, key_max=None) for at in range(4)]
    given = replace(asked(files, {**FLUSHES, "target_file": 500}), keyed=False)
    (job,) = UnifiedPlanner().plan(given).jobs
    assert (len(job.files), job.outputs_expected, job.cuts) == (4, 1, ())


def test_expired_files_are_dropped_alone() -> None:
    times = {"time_min_s": 0.0, "time_max_s": 1.0}
    files = [file(f"f{at}", 1000, **times) for at in range(2)] + [file("new", 1000)]
    given = replace(asked(files, FLUSHES, ttl_s=60.0), keyed=False, timed=True, now_s=9 * DAY_S)
    (job,) = UnifiedPlanner().plan(given).jobs
    assert (job.action, job.files) == (JobAction.DROP, ("f0", "f1"))


def test_an_expired_file_that_hides_older_rows_stays_and_the_reason_says_so() -> None:
    old = file("old", 1000, time_min_s=0.0, time_max_s=1.0, version_min=b"3", version_max=b"4")
    other = file("other", 1000, version_min=b"1", version_max=b"2")
    given = replace(asked([old, other], FLUSHES, ttl_s=60.0), timed=True, now_s=900 * DAY_S)
    found = UnifiedPlanner().plan(given)
    assert found.jobs == ()
    assert found.left["old"].endswith("has expired, and other may hold older rows of its keys")
    assert not UnifiedPlanner().plan(replace(given, explains=False)).left


def test_a_request_ends_in_files_that_do_not_overlap_cut_at_sections() -> None:
    files = [file(f"f{at}", 4000) for at in range(3)] + [file("far", 100, 2000, 2001)]
    given = asked(files, {"target_file": 3000, "file_growth": 0})
    jobs = UnifiedPlanner().plan(replace(given, kind=Kind.USER)).jobs
    assert [job.files for job in jobs] == [("f0", "f1", "f2"), ("far",)]
    assert [len(job.cuts) for job in jobs] == [3, 0]
    results = [replace(file("done", 100, 3000, 3001), request="r1"), files[3]]
    request = replace(asked(results, {}), kind=Kind.USER, request=RequestFacts(request="r1"))
    found = UnifiedPlanner().plan(request)
    assert [job.files for job in found.jobs] == [("far",)]
    assert found.left["done"] == "is a result of the request, and overlaps no other file"
    busy = replace(request, running=(RunningJob(kind=Kind.USER, files=(files[0],)),))
    assert UnifiedPlanner().plan(busy).left["far"] == "waits for the running jobs of the request"


def test_a_request_merges_many_files_at_once_in_full_jobs() -> None:
    files = [file(f"f{at}", 100 + at) for at in range(6)]
    jobs = UnifiedPlanner().plan(replace(asked(files, {}, max_files=2), kind=Kind.USER)).jobs
    assert [job.files for job in jobs] == [("f0", "f1"), ("f2", "f3")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scaling_parameters": "X4"}, "option scaling_parameters is 'X4', expected T<n> or L<n>"),
        ({"scaling_parameters": "T1"}, "option scaling_parameters is 'T1'"),
        ({"scaling_parameters": "T4 L101"}, "with n from 2 to 100, N, or whole"),
        ({"scaling_parameters": ""}, "option scaling_parameters is ''"),
        ({"scaling_parameters": "-"}, "option scaling_parameters is '-'"),
        ({"file_growth": 2}, "option file_growth is 2, expected 0 to 1"),
        ({"base_section_count": 0}, "option base_section_count is 0, expected 1 to 1024"),
        ({"max_files_to_compact": 1}, "max_files_to_compact is 1, expected at least"),
        ({"target_fiel": 1}, "did you mean 'target_file"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        UnifiedPlanner().check(options)


# -------------------------------------------------------------------------------------- The tracker


def owed(files: Sequence[DataFile], work: WorkUnderWay, **options: object) -> float:
    made = load_tracker("unified").tracker(TableSettings(max_files=200), options)
    for data_file in files:
        made.add(data_file)
    return made.backlog_bytes(work)


@pytest.mark.parametrize("scaling", ["T4", "L10", "N", "T4 L4"])
@pytest.mark.parametrize("count", [3, 16, 64, 150])
def test_the_backlog_is_what_the_planner_rewrites_and_0_at_rest(scaling: str, count: int) -> None:
    options = {"scaling_parameters": scaling, "flush_size": 1000, "target_file": GIB}
    files = [file(f"f{at}", 500 + 977 * at % 3000) for at in range(count)]
    given = asked(files, options, max_files=200)
    life = live("unified", load_planner("unified"), given, jobs_max=count)
    assert owed(files, WorkUnderWay(), **options) == life.rewritten_bytes
    assert owed([*life.files.values()], WorkUnderWay(), **options) == 0


def test_a_file_of_one_key_is_owed_again_with_the_part_of_a_cut_that_holds_its_key() -> None:
    narrow = [file(f"n{at:02}", 6000, at * 25, at * 25 + 24) for at in range(1, 20)]
    one_key = file("one", 40_000, 0, 0)
    files = [one_key, *narrow, file("wide", 100_000, 0, 999, version_min=b"1")]
    options = {"scaling_parameters": "L10", "flush_size": 1000, "file_growth": 0}
    given = asked(files, options, max_files=10)
    life = live("unified", UnifiedPlanner(), given, jobs_max=40)
    made = UnifiedTrackers().tracker(given.settings, options)
    for data_file in files:
        made.add(data_file)
    assert made.backlog_bytes(WorkUnderWay()) == pytest.approx(life.rewritten_bytes, rel=0.01)


def test_what_running_jobs_have_read_is_owed_no_more() -> None:
    files = [file(f"f{at}", 1000) for at in range(4)] + [file("large", 10**6)]
    left = [({}, 4000), ({"f0": 400}, 3600), ({"f0": 10**9}, 3000), ({"large": 9}, 4000)]
    for read_bytes, owed_bytes in left:
        assert owed(files, WorkUnderWay(read_bytes=read_bytes), flush_size=1000) == owed_bytes
