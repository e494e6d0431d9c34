"""The budgeted planner on Kudu's cases, and its own rules."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError
from common.model.file import DataFile
from common.model.group import Group
from common.model.job import Kind, Plan
from common.spi.planner import RequestFacts
from coordinator.plugins.planners.budgeted import (
    MIB,
    BudgetedOptions,
    BudgetedPlanner,
    RowSet,
    average_height,
    best_choice,
    row_sets,
)
from tests.support.planning import parameters

CASES = json.loads((Path(__file__).parents[2] / "data" / "kudu_policy.json").read_text("utf-8"))


def options_of(case: dict[str, Any]) -> BudgetedOptions:
    given = dict(case["options"])
    return BudgetedOptions(
        budget_bytes=case["budget_mb"] * MIB,
        width_penalty=given.pop("adj", 1.003),
        max_files=1000,
        **given,
    )


def key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def files_of(*rows: tuple[str, int, int, int]) -> dict[str, DataFile]:
    return {
        name: DataFile(
            path=name, size_bytes=size, rows=1, key_min=key(low), key_max=key(high)
        )
        for name, low, high, size in rows
    }  # fmt: skip


@pytest.mark.parametrize(
    "case", CASES["average_height"], ids=lambda case: "-".join(case["rowsets"])
)
def test_the_average_height_is_kudus(case: dict[str, Any]) -> None:
    sets = row_sets(
        [(name, name[:1].encode(), name[1:].encode(), 1000) for name in case["rowsets"]]
    )
    assert average_height(sets) == pytest.approx(case["height"])


@pytest.mark.parametrize("case", CASES["policy"], ids=lambda case: case["name"])
def test_the_choice_is_kudus(case: dict[str, Any]) -> None:
    sets = row_sets(
        [
            (f"r{at}", key(low), key(high), size)
            for at, (low, high, size) in enumerate(case["rowsets"])
        ]
    )
    found = best_choice(sets, options_of(case))
    assert found.names == tuple(case["picked"])
    assert found.quality == pytest.approx(case["quality"], abs=1e-9)
    assert found.stage == case["stage"]


@pytest.mark.parametrize("case", CASES["chains"], ids=lambda case: case["name"])
def test_a_chain_of_files_is_merged_where_it_overlaps_enough(case: dict[str, Any]) -> None:
    def encoded(number: int) -> bytes:
        return f"{number:0{case['digits']}d}".encode() if "digits" in case else key(number)

    step, length = case["step"], case["length"]
    sets = row_sets(
        [(f"r{n}", encoded(n * step), encoded(n * step + length), case["size"])
         for n in range(case["count"])]
    )  # fmt: skip
    found = best_choice(sets, options_of(case))
    assert len(found.names) == case["picked"]
    if case["quality"] is not None:
        assert found.quality == pytest.approx(case["quality"], abs=1e-9)


@pytest.mark.parametrize("seed", range(60))
def test_the_exact_choice_is_the_best_of_all_sets(seed: int) -> None:
    chance = random.Random(seed)
    options = BudgetedOptions(budget_bytes=100 * MIB, approximation=1.0, max_files=100)
    drawn = []
    for number in range(chance.randint(2, 9)):
        low = chance.randint(0, 40)
        high = low + chance.randint(0, 40)
        drawn.append((f"r{number}", key(low), key(high), chance.randint(0, 70 * MIB)))
    sets = row_sets(drawn)
    best = max(
        (quality(some, options) for count in range(2, len(sets) + 1)
         for some in itertools.combinations(sets, count)
         if sum(max(1, each.size_bytes // MIB) for each in some) <= 100),
        default=0.0,
    )  # fmt: skip
    found = best_choice(sets, options)
    if best > options.min_quality:
        assert found.quality == pytest.approx(best, abs=1e-9)
    else:
        assert not found.names


def quality(some: tuple[RowSet, ...], options: BudgetedOptions) -> float:
    value = sum(
        each.width + options.gamma * max(0, 1 - each.size_bytes / options.target_file_bytes)
        for each in some
    )
    union = max(each.end for each in some) - min(each.start for each in some)
    return value - union * (1 if value <= union else options.width_penalty)


# -------------------------------------------------------------------------------------- The planner


def plan(files: dict[str, DataFile], **given: Any) -> Plan:
    options = given.pop("options", {})
    return BudgetedPlanner().plan(replace(parameters(files, **given), options=options))


def test_the_order_of_files_does_not_move_them_on_the_line() -> None:
    """Not by the last bit of a number: it would decide between sets that are worth alike."""
    dice = random.Random(1)
    drawn = []
    for number in range(40):
        low, high = sorted(dice.sample(range(2**32), 2))
        name, size_bytes = f"f{number}", dice.randrange(1, 10**9)
        drawn.append((name, low.to_bytes(4), high.to_bytes(4), size_bytes))
    assert row_sets(drawn) == row_sets(drawn[::-1])


def test_the_reason_tells_the_quality() -> None:
    files = files_of(("a", 0, 10, MIB), ("b", 0, 10, MIB), ("c", 50, 60, 2 * MIB))
    (job,) = plan(files, options={"budget": "2MB"}).jobs
    assert job.files == ("a", "b")
    assert job.reason == (
        "quality 0.515938, approx: reduces average height 1.5 by that; 2 files of 2.0 MiB"
    )


def test_files_side_by_side_are_left_with_the_quality_of_the_best_set() -> None:
    found = plan(files_of(("a", 0, 10, 40 * MIB), ("b", 20, 30, 40 * MIB)))
    assert not found.jobs
    assert "not above min_quality 0.01; average height 1" in found.left["a"]


def test_a_file_without_a_range_of_keys_is_left() -> None:
    found = plan({"a": DataFile(path="a", size_bytes=1, rows=1)})
    assert found.left == {"a": "has no range of keys, which this planner needs"}


def test_no_set_has_more_than_max_files() -> None:
    files = files_of(*((f"r{number:02}", 0, 10, MIB) for number in range(30)))
    (job,) = plan(files, max_files=4).jobs
    assert len(job.files) == 4


def test_the_order_of_the_files_has_no_say() -> None:
    """Summed in another order, bytes differ in their last digit, and so did plans."""
    files = files_of(("a", 0, 0, 0), ("b", 0, 1, 8), ("c", 0, 23, 1), ("d", 0, 34, 2))
    given = parameters(files, groups=[Group(name="small", max_bytes=50)], max_files=2)
    plans = {
        repr(BudgetedPlanner().plan(replace(given, candidates=order)).jobs)
        for order in itertools.permutations(given.candidates)
    }
    assert len(plans) == 1


def test_no_job_is_larger_than_any_group_takes() -> None:
    files = files_of(*((f"r{number}", 0, 10, 1000) for number in range(6)))
    (job,) = plan(files, groups=[Group(name="small", max_bytes=3999)]).jobs
    assert len(job.files) == 3


def test_a_request_ends_in_one_file() -> None:
    files = files_of(("a", 0, 1, 9), ("b", 5, 6, 9), ("c", 8, 9, 9))
    asked = replace(parameters(files, kind=Kind.USER), request=RequestFacts(request="r1"))
    (job,) = BudgetedPlanner().plan(asked).jobs
    assert job.files == ("a", "b", "c")
    done = {"d": replace(files["a"], path="d", request="r1")}
    asked = replace(parameters(done, kind=Kind.USER), request=asked.request)
    assert BudgetedPlanner().plan(asked).left == {"d": "is the result of the request"}


def test_a_small_file_alone_must_not_be_worth_a_rewrite() -> None:
    with pytest.raises(ConfigError, match=r"gamma is 0.02, expected below min_quality 0.01"):
        BudgetedPlanner().check({"gamma": 0.02})
    with pytest.raises(ConfigError, match=r"budget_bytes is 1.0 KiB, expected at least"):
        BudgetedPlanner().check({"budget": "1KB"})
