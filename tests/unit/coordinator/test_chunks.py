"""Chunks of a timeline: the notes' own cases, and what the notes leave open."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from common.errors import RequestError
from coordinator.plugins.planners.chunks import (
    RULES,
    Chunks,
    ChunkState,
    Colour,
    Contents,
    Extent,
    Score,
    Segment,
    TaskLimits,
    Thresholds,
    candidates_of,
    chunks_of,
    compaction_slots,
    depend_on_neighbours,
    depend_on_previous,
    eligibility,
    fixed_place,
    fragmentation_index,
    hidden,
    join_small,
    merge_intervals,
    occupied_chunks,
    overlapped,
    plan_timeline,
    read_timeline,
    score_sizes,
    search_intervals,
    skip_interval,
    spans_of,
    split_large,
    visible,
)
from tests.support.fast_and_slow import first_fast

CASES: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "data/druid_chunks.json").read_text("utf-8")
)
BASIC, CHAIN = CASES["plan_basic"], CASES["plan_chain"]


def seg(name: str, start: float, end: float, size: int = 100, **given: Any) -> Segment:
    return Segment(id=name, start=start, end=end, size=size, **given)


def limits_of(case: Mapping[str, Any], dependencies: str = "multi") -> TaskLimits:
    return TaskLimits(
        small_cost=case["small_cost"], max_cost=case["max_cost"], dependencies=dependencies
    )


# ------------------------------------------------------------------------------------- The timeline


def test_gaps_divide_spans_and_touching_joins() -> None:
    assert spans_of(read_timeline(BASIC["segments"])) == [tuple(each) for each in BASIC["spans"]]
    assert spans_of([seg("b", 24, 48), seg("a", 0, 24)]) == [(0, 48)]
    assert spans_of([seg("a", 0, 24), seg("b", 25, 48)]) == [(0, 24), (25, 48)]
    assert spans_of([seg("a", 0, 90), seg("b", 10, 20), seg("c", 80, 91)]) == [(0, 91)]
    assert spans_of([]) == []


def test_a_list_of_chunks_gives_the_same_timeline_as_a_list_of_segments() -> None:
    chunks = [
        {
            "start": at,
            "segments": [
                each for each in BASIC["segments"] if each["start"] < at + 24 and each["end"] > at
            ],
        }
        for at in range(0, 192, 24)
    ]
    random.Random(1).shuffle(chunks)
    assert read_timeline(chunks) == read_timeline(BASIC["segments"])
    assert read_timeline([*reversed(BASIC["segments"])]) == read_timeline(BASIC["segments"])


def test_one_id_has_one_range() -> None:
    first = {"id": "a", "start": 0, "end": 5, "size": 1}
    with pytest.raises(RequestError, match="segment a is listed with two ranges or sizes"):
        read_timeline([first, first | {"end": 6}])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((5, 5), "segment a: range is 5 to 5, expected two finite times, the second one later"),
        ((5, 4), "range is 5 to 4"),
        ((float("-inf"), 4), "range is -inf to 4"),
        ((0, float("nan")), "range is 0 to nan"),
    ],
)
def test_a_range_that_is_none_is_refused(given: tuple[float, float], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        seg("a", *given)
    with pytest.raises(RequestError, match="segment b: size is -1, expected at least 0"):
        seg("b", 0, 1, -1)


def test_greater_versions_hide_what_they_cover() -> None:
    def seen(*segments: Segment) -> list[str]:
        return [each.id for each in visible(segments)]

    old = seg("old", 0, 24)
    assert seen(old, seg("new", 0, 24, version=1)) == ["new"]
    assert seen(old, seg("part", 0, 12, version=1)) == ["part", "old"]
    both = (seg("left", 0, 12, version=1), seg("right", 12, 30, version=2))
    assert seen(old, *both) == ["left", "right"]
    assert seen(old, seg("left", 0, 12, version=1), seg("apart", 13, 24, version=1)) == [
        "left",
        "old",
        "apart",
    ]
    assert seen(old, seg("same", 0, 24)) == ["old", "same"]


def test_a_minor_version_replaces_what_it_was_made_of() -> None:
    parts = [seg(f"p{at}", 0, 24, partitions=(at, at + 1)) for at in range(3)]
    minor = seg("minor", 0, 24, minor_version=1, partitions=(0, 2))
    assert [each.id for each in visible([*parts, minor])] == ["minor", "p2"]
    elsewhere = seg("other", 24, 48, minor_version=1, partitions=(0, 3))
    assert len(visible([*parts, elsewhere])) == 4


def is_hidden(segment: Segment, others: list[Segment]) -> bool:
    """Return what the definition of `hidden` says, moment by moment."""
    greater = [each for each in others if each.version > segment.version]
    moments = range(int(segment.start), int(segment.end))
    return all(any(each.start <= at < each.end for each in greater) for at in moments) or any(
        (each.version, each.start, each.end) == (segment.version, segment.start, segment.end)
        and each.minor_version > segment.minor_version
        and each.partitions[0] <= segment.partitions[0]
        and segment.partitions[1] <= each.partitions[1]
        for each in others
    )


@pytest.mark.parametrize("seed", range(30))
def test_what_is_hidden_follows_the_definition(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(30):
        segments: list[Segment] = []
        for number in range(chance.randint(1, 25)):
            start, first = chance.randrange(4 + seed), chance.randrange(4)
            one = seg(
                str(number),
                start,
                start + chance.randint(1, 4),
                version=chance.randrange(3),
                minor_version=chance.randrange(3),
                partitions=(first, first + chance.randint(1, 3)),
            )
            segments.append(one)
        found = hidden(segments)
        assert set(found) == {each.id for each in segments if is_hidden(each, segments)}


# ------------------------------------------------------------------------------- Chunks and scores


@pytest.mark.parametrize("case", CASES["score"], ids=lambda case: str(case["sizes"]))
def test_scores(case: dict[str, Any]) -> None:
    sizes = case["sizes"]
    if isinstance(sizes, dict):
        sizes = [sizes["size"]] * sizes["repeat"]
    found = score_sizes(sizes, case["max_size"], overlap=case["overlap"])
    assert found.state == case["state"]
    assert found.priority == pytest.approx(case["priority"], rel=1e-9)


@pytest.mark.parametrize(
    ("sizes", "overlap", "state"),
    [
        ([100], False, "stable"),
        ([500, 500, 1], False, "stable"),
        ([501], False, "compact"),
        ([900, 50], False, "compact"),
        ([300, 300], True, "no_opinion"),
        ([0, 0], False, "compact"),
    ],
)
def test_more_scores(sizes: list[int], overlap: bool, state: str) -> None:
    assert score_sizes(sizes, 500, overlap=overlap).state == state


@pytest.mark.parametrize("seed", range(50))
def test_priorities_are_between_0_and_1(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.randrange(0, 2000) for _ in range(chance.randint(1, 20))]
    found = score_sizes(sizes, 500)
    assert 0 <= found.priority <= 1
    assert found.priority > 0 or found.state is not ChunkState.COMPACT


def test_a_rule_before_the_others_wins() -> None:
    def few(contents: Contents) -> Score | None:
        return Score(ChunkState.STABLE) if len(contents.segments) < 4 else None

    assert score_sizes([10] * 3, 500, rules=(few, *RULES)).state is ChunkState.STABLE
    assert score_sizes([10] * 4, 500, rules=(few, *RULES)).state is ChunkState.COMPACT
    assert score_sizes([10] * 4, 500, rules=(few,)).state is ChunkState.NO_OPINION
    with pytest.raises(RequestError, match=r"priority of a chunk is 1\.5, expected 0 to 1"):
        Score(ChunkState.COMPACT, 1.5)


def test_a_segment_that_is_as_small_as_it_can_be_is_not_cut_again() -> None:
    assert occupied_chunks([seg("a", 0, 5, 900)], 24, 500)[0].state is ChunkState.COMPACT
    settled = [seg("a", 0, 5, 900, settled=True), seg("b", 0, 5, 499, settled=True)]
    assert occupied_chunks(settled[:1], 24, 500)[0].state is ChunkState.STABLE
    assert occupied_chunks(settled, 24, 500)[0].state is ChunkState.STABLE


def test_chunks_know_their_place_and_what_spans_them() -> None:
    segments = read_timeline(BASIC["segments"])
    found = chunks_of(segments, BASIC["granularity"], BASIC["max_size"])
    told = [
        {
            "start": each.start,
            "ids": each.ids,
            "prior": each.prior,
            "later": each.later,
            "state": each.state,
            "priority": each.score.priority,
        }
        for each in found
    ]
    assert told == BASIC["chunks"]
    assert [each.index for each in found] == list(range(8))
    weeks = chunks_of(segments, 7 * 24, BASIC["max_size"])
    assert [(week.start, len(week.ids)) for week in weeks] == [(0, 8), (168, 0)]


def test_chunks_may_begin_elsewhere_and_before_zero() -> None:
    found = chunks_of([seg("a", -30, -24), seg("b", -24, 1)], 24, 500)
    assert [(each.start, each.ids) for each in found] == [(-48, ["a"]), (-24, ["b"]), (0, ["b"])]
    shifted = occupied_chunks([seg("a", 6, 30)], 24, 500, origin=6)
    assert [(each.start, each.end, each.prior, each.later) for each in shifted] == [
        (6, 30, False, False)
    ]


def test_an_empty_timeline_has_nothing() -> None:
    found = plan_timeline([], 24, 500)
    assert (found.spans, found.chunks, found.tasks) == ([], [], [])


# -------------------------------------------------------------------------------------------- Tasks


def test_tasks_of_the_basic_case() -> None:
    found = plan_timeline(
        read_timeline(BASIC["segments"]), BASIC["granularity"], BASIC["max_size"], limits_of(BASIC)
    )
    told = [
        {
            "name": task.name,
            "chunks": task.starts,
            "segments": task.segments,
            "cost": task.cost,
            "priority": task.priority,
            "color": task.color,
            "deps": list(task.depends_on),
            "oversize": task.oversize,
        }
        for task in found.tasks
    ]
    assert told == BASIC["tasks"]
    assert found.spans == [tuple(each) for each in BASIC["spans"]]


@pytest.mark.parametrize("dependencies", ["simple", "multi"])
def test_tasks_of_a_chain_wait_for_each_other(dependencies: str) -> None:
    segments = read_timeline(CHAIN["segments"])
    found = plan_timeline(
        segments, CHAIN["granularity"], CHAIN["max_size"], limits_of(CHAIN, dependencies)
    )
    told = [
        {"name": task.name, "color": task.color, "deps": list(task.depends_on)}
        for task in found.tasks
    ]
    wanted = CHAIN[dependencies]
    assert told == [{name: each[name] for name in ("name", "color", "deps")} for each in wanted]
    if dependencies == "simple":
        assert [(task.starts, task.cost) for task in found.tasks] == [
            (each["chunks"], each["cost"]) for each in wanted
        ]


@pytest.mark.parametrize(
    ("costs", "small", "groups"),
    [
        ((100, 100), 250, [[0, 48]]),
        ((200, 210), 200, [[0], [48]]),
        ((100, 100, 100), 250, [[0, 48, 96]]),
        ((100, 100, 100, 100), 250, [[0, 48, 96], [144]]),
        ((210, 100), 200, [[0], [48]]),
    ],
)
def test_small_tasks_join_the_one_before(
    costs: tuple[int, ...], small: int, groups: list[list[int]]
) -> None:
    halves = [
        seg(f"{at}{half}", 48 * at, 48 * at + 24, cost // 2)
        for at, cost in enumerate(costs)
        for half in "ab"
    ]
    found = candidates_of(chunks_of(halves, 24, 500))
    joined = join_small(found, small)
    assert [[chunk.start for chunk in run] for run in joined] == groups


def test_a_chunk_over_the_limit_is_a_task_of_its_own() -> None:
    segments = [seg(f"a{at}", 0, 24, 300) for at in range(3)] + [seg("b", 10, 48, 50)]
    found = plan_timeline(segments, 24, 500, TaskLimits(max_cost=600)).tasks
    assert [(each.starts, each.cost, each.oversize) for each in found] == [
        ([0], 950, True),
        ([24], 50, False),
    ]
    wide = plan_timeline(segments, 24, 500, TaskLimits(max_cost=950)).tasks
    assert [(each.starts, each.oversize) for each in wide] == [([0, 24], False)]


def test_a_candidate_has_a_chunk_that_is_to_be_compacted() -> None:
    """Neighbours without an opinion are rewritten with it, but not for themselves."""
    quiet = [seg("a", 0, 30, 300), seg("b", 30, 48, 300)]
    assert plan_timeline(quiet, 24, 500).tasks == []
    tail = [seg("x", 0, 24, 100), seg("y", 0, 24, 100), seg("z", 20, 60, 600, settled=True)]
    chunks = chunks_of(tail, 24, 500)
    assert [chunk.state for chunk in chunks] == ["compact", "no_opinion", "no_opinion"]
    assert [len(run) for run in candidates_of(chunks)] == [3]
    assert [len(run) for run in split_large(candidates_of(chunks), 799)] == [1, 2]


@pytest.mark.parametrize("at", [-100, 100, 250])
def test_a_chunk_without_an_opinion_leaves_the_candidates_as_they_are(at: int) -> None:
    """One segment over two chunks, before, between and behind those of the basic case."""
    known = read_timeline(BASIC["segments"])
    lone = seg("lone", at, at + 25, 300)
    among = chunks_of([*known, lone], BASIC["granularity"], BASIC["max_size"])
    own = [each for each in among if lone in each.segments]
    assert [each.state for each in own] == ["no_opinion"] * 2

    alone = chunks_of(known, BASIC["granularity"], BASIC["max_size"])
    assert names_of(candidates_of(among)) == names_of(candidates_of(alone)) != []


def names_of(candidates: Iterable[Chunks]) -> list[list[tuple[float, list[str]]]]:
    """Return the chunks of each candidate, by their begin and their segments."""
    return [
        [(chunk.start, [segment.id for segment in chunk.segments]) for chunk in run]
        for run in candidates
    ]


def test_most_chunks_of_a_task() -> None:
    segments = [seg(f"{at}{half}", 24 * at, 24 * at + 30, 9) for at in range(5) for half in "ab"]
    runs = candidates_of(chunks_of(segments, 24, 500))
    found = split_large(runs, 10**9, chunks_max=2)
    assert [[chunk.index for chunk in run] for run in found] == [[0, 1], [2, 3], [4, 5]]


def drawn(chance: random.Random) -> list[frozenset[str]]:
    """Return tasks in order of time; segments span some neighbours."""
    tasks = [set[str]() for _ in range(chance.randint(1, 12))]
    for number in range(chance.randint(1, 20)):
        first = chance.randrange(len(tasks))
        for at in range(first, min(len(tasks), first + chance.randint(1, 4))):
            tasks[at].add(f"s{number}")
    return [frozenset(task) for task in tasks]


@pytest.mark.parametrize("seed", first_fast(40, range(400), slow=100))
def test_tasks_that_share_a_segment_never_run_together_and_all_run(seed: int) -> None:
    chance = random.Random(seed)
    tasks = drawn(chance)
    for depend in (depend_on_previous, depend_on_neighbours):
        waits = depend(tasks)
        done: set[int] = set()
        while len(done) < len(tasks):
            left = [at for at in range(len(tasks)) if at not in done]
            ready = [at for at in left if done.issuperset(waits[at])]
            assert ready, "nothing can run"
            used = [segment for at in ready for segment in tasks[at]]
            assert len(used) == len(set(used)), "two tasks rewrite one segment at a time"
            done.update(ready)


def test_fifty_overlapping_chunks_run_one_by_one() -> None:
    tasks = [frozenset({f"s{at}", f"s{at + 1}"}) for at in range(50)]
    assert depend_on_previous(tasks) == [(), *((at,) for at in range(49))]
    multi = depend_on_neighbours(tasks)
    assert [bool(waits) for waits in multi] == [at % 2 == 1 for at in range(50)]


def test_colours() -> None:
    chain = plan_timeline(read_timeline(CHAIN["segments"]), 24, 500, limits_of(CHAIN)).tasks
    assert chain[0].color is Colour.RED
    assert all(each.color is (Colour.BLACK if each.depends_on else Colour.RED) for each in chain)


# ------------------------------------------------------------------------------------ Druid's rules


@pytest.mark.parametrize("case", CASES["druid_slots"])
def test_slots(case: dict[str, Any]) -> None:
    assert compaction_slots(case["workers"], case["ratio"], case["cap"]) == case["slots"]


@pytest.mark.parametrize("case", CASES["druid_fragmentation"])
def test_fragmentation(case: dict[str, Any]) -> None:
    found = fragmentation_index(case["count"], case["bytes"], case["min_count"], case["max_avg"])
    assert found == pytest.approx(case["index"], rel=1e-12)


@pytest.mark.parametrize("case", CASES["druid_eligibility"])
def test_eligibility(case: dict[str, Any]) -> None:
    known = case["uncompacted"]
    uncompacted = None if known is None else Extent(**known)
    found = eligibility(uncompacted, Extent(**case["compacted"]), Thresholds(**case["options"]))
    assert found == case["verdict"]


def test_other_verdicts() -> None:
    def verdict(count: int, size: int, min_count: int = 2) -> str:
        known = Thresholds(min_count=min_count, min_bytes=10, max_avg=100)
        return eligibility(Extent(count=count, bytes=size, rows=1), Extent(), known)

    assert verdict(0, 0, min_count=0) == "NONE:count"
    assert verdict(2, 9) == "NONE:bytes"
    assert verdict(2, 10) == "FULL"
    assert verdict(2, 202) == "NONE:avg"
    assert verdict(2, 201) == "FULL"


def test_the_newest_chunks_are_skipped() -> None:
    assert skip_interval(100, 24, 24) == (72, 100)
    assert skip_interval(96, 24, 24) == (72, 96)
    assert skip_interval(100, 1, 24) == (96, 100)
    assert skip_interval(100, 24, 24, origin=4) == (76, 100)
    assert skip_interval(100, 0, 24) is None


def test_intervals_are_merged_and_left_out() -> None:
    skipped = merge_intervals([(50, 60), (10, 20), (15, 30), (30, 40)])
    assert skipped == [(10, 40), (50, 60)]
    assert search_intervals((0, 100), skipped) == [(0, 10), (40, 50), (60, 100)]
    assert search_intervals((0, 55), skipped) == [(0, 10), (40, 50)]
    assert search_intervals((12, 38), skipped) == []
    assert overlapped(39, 50, skipped) == (10, 40)
    assert overlapped(40, 50, skipped) is None
    assert overlapped(0, 100, skipped) == (50, 60)
    assert overlapped(0, 100, []) is None


def test_places_in_a_fixed_order() -> None:
    order = [(48.0, 72.0), (0.0, 48.0)]
    assert [fixed_place(at, at + 24, order) for at in (0, 24, 48, 72, 36)] == [1, 1, 0, None, None]
