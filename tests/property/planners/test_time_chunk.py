"""The time-chunk planner comes to rest, whatever comes in and however much outputs weigh."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from common.model.group import Group
from common.model.job import Kind
from common.spi.planner import PlanParameters, RequestFacts
from coordinator.plugins.planners.chunks import ChunkState, Segment, chunk_numbers, occupied_chunks
from coordinator.plugins.planners.time_chunk import TimeChunkPlanner
from tests.support.fast_and_slow import first_fast
from tests.support.plan_loop import check_busy_files_are_left
from tests.support.planning import parameters
from tests.support.timed_files import Row, TimedTablet, Weigh

HOUR = 3600.0
ROW_BYTES = 10
PLANNER = TimeChunkPlanner()


def uniform(rows: Sequence[Row]) -> int:
    return ROW_BYTES * len(rows)


def uneven(chance: random.Random) -> Weigh:
    """Return weights that differ from hour to hour, and from file to file for no reason at all."""
    density = [chance.choice([1, 5, 10, 40]) for _ in range(1000)]

    def weigh(rows: Sequence[Row]) -> int:
        total = sum(density[0 if at is None else int(at // HOUR) % 1000] for at in rows)
        return int(total * chance.choice([0.5, 1, 1, 1, 1.5]))

    return weigh


def drawn(chance: random.Random, weigh: Weigh, hours: int) -> TimedTablet:
    """Return a tablet of files that lie in one hour, span some, or have rows without a time."""
    tablet = TimedTablet(weigh)
    for _ in range(chance.randint(1, 25)):
        start = chance.uniform(0, hours * HOUR)
        length = chance.choice([60.0, 600.0, HOUR, 5 * HOUR, 5 * HOUR, hours * HOUR])
        rows: list[Row] = [
            start + chance.choice([chance.uniform(0, length), length, 0.0])
            for _ in range(chance.randint(1, 40))
        ]
        if chance.random() < 0.15:
            rows += [None] * chance.randint(1, 5)
        if chance.random() < 0.05:
            rows = [None] * len(rows)
        tablet.add(rows)
    return tablet


def asked(chance: random.Random, **options: object) -> PlanParameters:
    """Return a question with drawn options."""
    given: dict[str, object] = {
        "granularity_s": HOUR,
        "target_bytes": chance.choice([60, 200, 1000]),
        "small_cost_bytes": chance.choice([0, 300, 2000]),
        "max_cost_bytes": chance.choice([500, 2000, 10**9]),
        "skip_offset_s": 0,
        "dependencies": chance.choice(["multi", "simple"]),
        "order": chance.choice(["newest", "priority", "fragmented"]),
        "max_files": chance.choice([2, 4, 100]),
    }
    groups = chance.choice([(Group(name="default"),), (Group(name="small", max_bytes=1500),)])
    made = parameters({}, groups=groups)
    return replace(made, options=given | options, keyed=False, timed=True, now_s=10**7)


def jobs_max(tablet: TimedTablet, hours: int) -> int:
    rows = sum(map(len, tablet.rows.values()))
    return 20 * (len(tablet.files) + hours) + 2 * rows


def sorted_rows(tablet: TimedTablet) -> list[tuple[bool, float]]:
    return sorted((at is None, at or 0.0) for rows in tablet.rows.values() for at in rows)


def states(tablet: TimedTablet, target_bytes: int) -> set[ChunkState]:
    """Return the states of all chunks, as the notes see them."""
    segments = [
        Segment(
            id=file.path,
            start=file.time_min_s,
            end=(file.time_max_s or 0.0) + 1e-6,
            size=file.size_bytes,
            settled=bool(file.tags),
        )
        for file in tablet.files.values()
        if file.time_min_s is not None
    ]
    return {chunk.state for chunk in occupied_chunks(segments, HOUR, target_bytes)}


@pytest.mark.parametrize("seed", first_fast(40, range(500), slow=100))
def test_after_a_cycle_nothing_is_left_to_do(seed: int) -> None:
    """The notes' promise: every chunk is ideal. Nothing else is asked of the limits here."""
    chance = random.Random(seed)
    tablet = drawn(chance, uniform, 12)
    rows = sorted_rows(tablet)
    given = asked(chance, max_files=100)
    given = replace(given, groups=(Group(name="default"),))
    tablet.rest(PLANNER, given, jobs_max(tablet, 12))
    assert sorted_rows(tablet) == rows
    assert states(tablet, int(str(given.options["target_bytes"]))) <= {
        ChunkState.STABLE,
        ChunkState.NO_OPINION,
    }


@pytest.mark.parametrize("seed", first_fast(40, range(200), slow=100))
def test_it_rests_whatever_outputs_weigh_and_however_little_a_job_may_have(seed: int) -> None:
    chance = random.Random(seed)
    hours = chance.choice([3, 12, 300])
    tablet = drawn(chance, chance.choice([uniform, uneven(chance)]), hours)
    rows = sorted_rows(tablet)
    given = asked(chance)
    tablet.rest(PLANNER, given, jobs_max(tablet, hours))
    assert sorted_rows(tablet) == rows


def drawn_rules(chance: random.Random) -> str:
    """Return rules of an option, at random."""
    conditions = ["files >= 1", "files <= 3", "bytes > 100", "mean < 50", "overlap = yes"]
    outcomes = ["compact", "compact 0.9", "stable", "no_opinion"]
    rules = [
        f"{chance.choice(outcomes)} if {' and '.join(chance.sample(conditions, 2))}"
        for _ in range(3)
    ]
    return "; ".join(rules + ["compact if files >= 1"] * chance.randrange(2))


@pytest.mark.parametrize("seed", first_fast(40, range(300), slow=100))
def test_it_rests_whatever_rules_an_operator_sets(seed: int) -> None:
    chance = random.Random(seed)
    tablet = drawn(chance, chance.choice([uniform, uneven(chance)]), 12)
    rows = sorted_rows(tablet)
    given = asked(chance, rules=drawn_rules(chance))
    tablet.rest(PLANNER, given, jobs_max(tablet, 12))
    assert sorted_rows(tablet) == rows


@pytest.mark.parametrize("seed", first_fast(20, range(200), slow=100))
def test_a_request_rewrites_everything_and_rests(seed: int) -> None:
    chance = random.Random(seed)
    tablet = drawn(chance, chance.choice([uniform, uneven(chance)]), 12)
    given = replace(
        asked(chance, skip_offset_s=10**6, order="newest"),
        kind=Kind.USER,
        request=RequestFacts(request="r1"),
        groups=(Group(name="default"),),
    )
    tablet.rest(PLANNER, given, jobs_max(tablet, 12))
    assert all(file.request == "r1" for file in tablet.files.values())
    assert states(tablet, int(str(given.options["target_bytes"]))) <= {
        ChunkState.STABLE,
        ChunkState.NO_OPINION,
        *([ChunkState.COMPACT] if int(str(given.options["max_files"])) < 100 else []),
    }


@pytest.mark.parametrize("seed", first_fast(40, range(500), slow=100))
def test_after_a_crash_no_finished_chunk_is_planned(seed: int) -> None:
    """Jobs run until a crash; then the plan has chunks of the first plan that are not done."""
    chance = random.Random(seed)
    tablet = drawn(chance, uniform, 12)
    for path in [path for path, rows in tablet.rows.items() if None in rows]:
        del tablet.rows[path], tablet.files[path]
    given = asked(chance, max_files=100, small_cost_bytes=0)
    given = replace(given, groups=(Group(name="default"),))
    jobs, _ = tablet.plan(PLANNER, given)
    begun = [job for job in jobs if not job.depends_on]
    wanted = {at for job in jobs for at in chunks_of_tag(dict(job.output_tags)["chunk"])}
    done: set[int] = set()
    for job in begun[: chance.randint(0, len(begun))]:
        done |= chunks_of_tag(dict(job.output_tags)["chunk"])
        tablet.commit(job)
    again, _ = tablet.plan(PLANNER, given)
    found = {at for job in again for at in chunks_of_tag(dict(job.output_tags)["chunk"])}
    assert not found & done
    assert found <= wanted - done


def chunks_of_tag(value: str) -> set[int]:
    """Return the chunks that a job brings into shape, by the tag of its outputs."""
    _, _, start, end = value.split(":")
    range_ = Segment(id="range", start=float(start), end=float(end), size=0)
    return set(chunk_numbers(range_, HOUR))


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("seed", range(20))
def test_files_of_running_jobs_are_in_no_other(seed: int, kind: Kind) -> None:
    chance = random.Random(seed)
    tablet = drawn(chance, uniform, 12)
    given = replace(asked(chance), kind=kind)
    if kind is Kind.USER:
        given = replace(given, request=RequestFacts(request="r1"))
    busy = chance.sample(sorted(tablet.files), min(3, len(tablet.files)))
    check_busy_files_are_left("time-chunk", PLANNER, tablet.asked(given), busy)


def test_fifty_overlapping_chunks_are_done_one_after_the_other() -> None:
    tablet = TimedTablet(uniform)
    for hour in range(50):
        tablet.add(hour * HOUR + minute * 60 for minute in range(0, 90, 3))
    given = asked(
        random.Random(1),
        dependencies="simple",
        target_bytes=1000,
        max_cost_bytes=600,
        max_files=100,
    )
    rows, rounds = sorted_rows(tablet), 0
    given = replace(given, groups=(Group(name="default"),))
    while (jobs := tablet.plan(PLANNER, given)[0]) and rounds < 200:
        begun = [job for job in jobs if not job.depends_on]
        assert len(begun) == 1, "the others wait"
        tablet.commit(begun[0])
        rounds += 1
    assert rounds == 49, "51 chunks; the first task has two, and so has the last"
    assert sorted_rows(tablet) == rows
    assert states(tablet, 1000) == {ChunkState.STABLE}
