"""What holds of the ratio planner for every tablet."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from common.model.file import DataFile
from common.model.group import Group
from common.model.job import Kind
from common.spi.planner import PlanParameters
from coordinator.core.planning import checked_jobs
from coordinator.plugins.planners.ratio import RatioPlanner
from tests.property.planners.ratio_reference import Asked, F, plan
from tests.support.planning import files_of, parameters

DRAWS = 500


def draw_sizes(chance: random.Random, count: int) -> list[int]:
    match chance.randrange(5):
        case 0:
            return [chance.choice([0, 1, 10, 10, 100]) for _ in range(count)]
        case 1:
            return [chance.randint(1, 60) for _ in range(count)]
        case 2:
            return [int(1.5**number) + chance.randint(0, 3) for number in range(count)]
        case 3:
            return [int(10 ** chance.uniform(0, 9)) for _ in range(count)]
        case _:
            return [chance.choice([4, 16, 64]) * chance.choice([1, 1, 3]) for _ in range(count)]


def draw(chance: random.Random) -> PlanParameters:
    files = files_of(
        (f"f{number:03}", size)
        for number, size in enumerate(draw_sizes(chance, chance.choice([1, 3, 9, 20, 45])))
    )
    names = list(files)
    chance.shuffle(names)
    running = []
    for _ in range(chance.choice([0, 0, 0, 1, 2])):
        if len(names) > 3:
            taken = [names.pop() for _ in range(chance.randint(1, 3))]
            running.append((chance.choice([*Kind]), taken))
    if chance.random() < 0.2:
        del names[: chance.randint(0, 2)]
    groups = [Group(name="small", max_bytes=chance.choice([50, 5000]))]
    if chance.random() < 0.7:
        groups.append(Group(name="large"))
    return parameters(
        files,
        kind=chance.choice([*Kind]),
        candidates=names,
        running=running,
        groups=groups,
        ratio=chance.choice([1.0, 1.1, 1.5, 2.0, 3.0, 5.0]),
        max_files=chance.choice([2, 3, 5, 10, 100]),
        lowest_ratio=chance.choice([1.0, 1.1, 1.5]),
        file_limit=chance.choice([0, 1, 5, 15]),
    )


def asked_of(given: PlanParameters) -> Asked:
    cap = given.groups[-1].max_bytes
    return Asked(
        user=given.kind is Kind.USER,
        ratio=given.settings.ratio,
        max_files=given.settings.max_files,
        lowest_ratio=given.settings.lowest_ratio,
        file_limit=given.settings.file_limit,
        cap=float("inf") if cap is None else cap,
        everything=len(given.files),
        candidates=frozenset(F(file.size_bytes, file.path) for file in given.candidates),
        running=tuple((job.kind is Kind.USER, job.size_bytes) for job in given.running),
    )


@pytest.mark.parametrize("seed", range(10))
def test_the_planner_plans_what_its_pseudo_code_plans(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(DRAWS):
        given = draw(chance)
        found = RatioPlanner().plan(given)
        expected = plan(asked_of(given))
        assert [list(job.files) for job in found.jobs] == [
            [file.path for file in files] for files in expected
        ], given
        # Sound in the eyes of the coordinator, and nothing is left without a word.
        checked_jobs("ratio", found, given)
        planned = {path for job in found.jobs for path in job.files}
        assert found.left.keys() == {file.path for file in given.candidates} - planned
        assert RatioPlanner().plan(given) == found


Shrink = Callable[[int], int]


@pytest.mark.parametrize(
    "shrink",
    [
        pytest.param(lambda size: size, id="outputs as large as inputs"),
        pytest.param(lambda size: size * 2 // 5, id="outputs compress"),
        pytest.param(lambda size: size * 6 // 5, id="outputs grow"),
        pytest.param(lambda _: 0, id="outputs empty"),
    ],
)
@pytest.mark.parametrize("kind", [*Kind])
@pytest.mark.parametrize("seed", range(6))
def test_planning_and_committing_comes_to_rest(seed: int, kind: Kind, shrink: Shrink) -> None:
    chance = random.Random(seed)
    for _ in range(40):
        given = replace(draw(chance), kind=kind, running=())
        given = replace(given, candidates=tuple(given.files.values()))
        jobs = live(given, shrink)
        # One more than there are steps to one file: a request rewrites a file on its own.
        bound = len(given.files) - (kind is Kind.SYSTEM)
        assert jobs <= bound, given


def live(given: PlanParameters, shrink: Shrink) -> int:
    """Plan and commit until nothing is planned; return how many jobs it took."""
    done = 0
    files = dict(given.files)
    while True:
        found = RatioPlanner().plan(replace(given, files=files, candidates=tuple(files.values())))
        for job in found.jobs:
            size = shrink(sum(files.pop(path).size_bytes for path in job.files))
            files |= {f"out{done:04}": DataFile(path=f"out{done:04}", size_bytes=size, rows=1)}
            done += 1
        # One result ends a request; the coordinator asks no more.
        if not found.jobs or (given.kind is Kind.USER and len(files) == 1):
            if given.kind is Kind.USER:
                assert len(files) == 1
            return done


NUMBERS_TO_BEAT = [
    # files per round, ratio, max_files, rounds, write amplification of Accumulo's planner
    (1, 3.0, 10, 1000, 4.51),
    (2, 3.0, 10, 1000, 5.056),
    (3, 3.0, 10, 1000, 5.056),
    (5, 3.0, 10, 1000, 5.51),
    (9, 3.0, 10, 1000, 5.51),
    (10, 3.0, 10, 1000, 5.51),
    (15, 3.0, 10, 1000, 6.408),
    (20, 3.0, 10, 1000, 6.056),
    (5, 1.5, 10, 1000, 7.783),
    (5, 2.0, 10, 1000, 7.632),
    (5, 4.0, 10, 1000, 4.544),
    (5, 5.0, 10, 1000, 3.559),
    (20, 3.0, 5, 500, 6.506),
    (20, 3.0, 10, 500, 5.456),
    (20, 3.0, 15, 500, 5.24),
    (20, 3.0, 30, 500, 5.506),
]


@pytest.mark.parametrize(("arriving", "ratio", "max_files", "rounds", "accumulo"), NUMBERS_TO_BEAT)
def test_no_more_is_rewritten_than_by_accumulo(
    arriving: int, ratio: float, max_files: int, rounds: int, accumulo: float
) -> None:
    added, rewritten = rewrite(arriving, ratio, max_files, rounds)
    assert rewritten / added <= accumulo + 0.0005


def rewrite(arriving: int, ratio: float, max_files: int, rounds: int) -> tuple[int, int]:
    """Return bytes added and rewritten when so many files of 1,000 bytes come per round."""
    sizes: dict[str, int] = {}
    made = rewritten = 0
    for number in range(rounds):
        sizes |= {f"r{number:04}-{index:02}": 1000 for index in range(arriving)}
        while jobs := merge_once(sizes, ratio, max_files):
            for paths in jobs:
                total = sum(sizes.pop(path) for path in paths)
                made += 1
                rewritten += total
                sizes[f"z{made:06}"] = total
    return rounds * arriving * 1000, rewritten


def merge_once(sizes: dict[str, int], ratio: float, max_files: int) -> list[Sequence[str]]:
    given = parameters(files_of(sizes), ratio=ratio, max_files=max_files, file_limit=15)
    return [job.files for job in RatioPlanner().plan(given).jobs]
