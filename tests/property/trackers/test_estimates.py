"""How well backlogs tell what is rewritten: planners are asked until they want nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from random import Random

import pytest

from common.model.file import DataFile
from common.model.table import TableSettings
from common.plugins import load_planner, load_tracker
from common.spi.controller import WorkUnderWay
from tests.support.plan_loop import live
from tests.support.planning import parameters

NOW_S = 1e6
FAN_IN = 4
"""What the logarithm of the size-tiered backlog supposes."""
SCENARIOS = 60
trackers_of, planner_of = cache(load_tracker), cache(load_planner)
"""Loading reads a file of every installed package."""


def files_of(seed: int) -> dict[str, DataFile]:
    """Return files of one size, of tiers that grow by four, or of any size."""
    chance = Random(seed)
    count, size = chance.randint(4, 64), 10**6
    shapes = (
        lambda: size,
        lambda: size * FAN_IN ** chance.randint(0, 3),
        lambda: int(chance.lognormvariate(14, 1)),
    )
    shape = shapes[seed % len(shapes)]
    names = [f"f{number:03}" for number in range(count)]
    return {
        name: DataFile(path=name, size_bytes=shape(), rows=100, key_min=b"\0", key_max=b"\xff")
        for name in names
    }


def owed(strategy: str, files: Mapping[str, DataFile], **options: object) -> float:
    made = trackers_of(strategy).tracker(TableSettings(), options)
    for file in files.values():
        made.add(file)
    return made.backlog_bytes(WorkUnderWay(now_s=NOW_S))


def rewritten(strategy: str, files: Mapping[str, DataFile], **options: object) -> int:
    asked = replace(parameters(files, file_limit=0, max_files=32), options=options)
    return live(strategy, planner_of(strategy), asked, jobs_max=500).rewritten_bytes


@pytest.mark.parametrize("seed", range(SCENARIOS))
def test_the_size_tiered_backlog_is_within_a_factor_of_two_of_what_is_rewritten(seed: int) -> None:
    files = files_of(seed)
    work = rewritten("size-tiered", files, max_threshold=FAN_IN)
    assert 0.5 <= owed("size-tiered", files, backlog_mode="seed") / work <= 2.0


@pytest.mark.parametrize("strategy", ["size-tiered", "leveled", "time-window", "ratio"])
def test_more_work_is_a_larger_backlog(strategy: str) -> None:
    """In nine of ten pairs of tablets, of which one takes half as much again or more."""
    agree, pairs = 0, 0
    for seed in range(0, 2 * SCENARIOS, 2):
        one, other = files_of(seed), files_of(seed + 1)
        work = rewritten(strategy, one), rewritten(strategy, other)
        if max(work) < 1.5 * min(work):
            continue
        pairs += 1
        agree += (owed(strategy, one) < owed(strategy, other)) == (work[0] < work[1])
    assert pairs >= 20
    assert agree >= 0.9 * pairs
