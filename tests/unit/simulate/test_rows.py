"""Expected numbers of rows, beside rows that are drawn one by one."""

from __future__ import annotations

import random
from math import expm1

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.simulate.rows import Content, KeyPopulation, merged, rows_in


def drawn(keys: int, draws: int, times: int) -> float:
    """Return how many different keys so many draws hit, on average of some times."""
    chance = random.Random(1)
    hits = [len({chance.randrange(keys) for _ in range(draws)}) for _ in range(times)]
    return sum(hits) / times


def test_keys_are_hit_as_often_as_if_they_were_drawn() -> None:
    assert KeyPopulation(500).hit(700, 500) == pytest.approx(drawn(500, 700, 50), rel=0.01)


@pytest.mark.parametrize("skew", [0.5, 1.0, 1.5, 2.5])
@pytest.mark.parametrize("draws", [100, 2_000, 200_000])
def test_classes_of_keys_come_to_the_sum_over_all_keys(skew: float, draws: int) -> None:
    keys = 2_000
    weights = [rank**-skew for rank in range(1, keys + 1)]
    total = sum(weights)
    exact = sum(-expm1(-draws * weight / total) for weight in weights)

    assert KeyPopulation(keys, skew).hit(draws, keys) == pytest.approx(exact, rel=0.005)


def test_the_formula_is_that_of_cardenas() -> None:
    assert KeyPopulation(10).hit(5, 10) == pytest.approx(10 * (1 - 0.9**5))


@given(
    keys=st.integers(1, 10**6),
    draws=st.floats(1, 1e8),
    skew=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    more=st.floats(1, 3),
)
def test_no_more_keys_are_hit_than_there_are_or_than_were_drawn(
    keys: int, draws: float, skew: float, more: float
) -> None:
    population, now = KeyPopulation(keys, skew), keys * more
    hit = population.hit(draws, now)

    assert 0 <= hit <= min(draws, now) * (1 + 1e-9) + 1e-6
    assert hit <= population.hit(draws * 2, now) + 1e-6


contents = st.builds(
    Content,
    inserts=st.floats(1, 1e5),
    draws=st.floats(1, 1e5),
    first=st.just(1),
    last=st.just(1),
)


@given(files=st.lists(contents, min_size=3, max_size=6), skew=st.sampled_from([0.0, 1.0]))
def test_the_order_of_merges_changes_nothing(files: list[Content], skew: float) -> None:
    population, keys = KeyPopulation(1_000_000, skew), 1_600_000.0

    def merge(some: list[Content]) -> tuple[Content, float]:
        whole = merged(some, keys, population)
        return (whole[0][0], whole[0][1]) if whole else (Content(0.0), 0.0)

    at_once = merge(files)[1]
    step, _ = merge(files[:2])

    assert merge([step, *files[2:]])[1] == pytest.approx(at_once, rel=1e-9, abs=1e-3)


def test_updates_of_every_key_leave_one_row_of_each() -> None:
    base, updates = Content(inserts=1_000), Content(0, draws=20_000)
    ((_, rows, dead),) = merged([base, updates], 1_000, KeyPopulation(1_000))

    assert rows == pytest.approx(1_000)
    assert dead == 0


def test_tombstones_go_with_the_rows_they_delete_where_nothing_older_lies_outside() -> None:
    base = Content(inserts=1_000)
    deletes = Content(0, draws=200, deletes=200)
    population = KeyPopulation(1_000)
    hit = population.hit(200, 1_000)

    ((kept, rows, dead),) = merged([base, deletes], 1_000, population)
    assert (rows, dead) == (pytest.approx(1_000), pytest.approx(hit))
    assert (kept.inserts, kept.deletes) == (1_000, 200)

    ((content, rows, dead),) = merged([base, deletes], 1_000, population, purged=1.0)
    assert rows == pytest.approx(1_000 - hit)
    assert dead == 0
    assert (content.draws, content.deletes) == (0, 0)


def test_outputs_are_cut_between_keys_and_lose_nothing() -> None:
    wide = Content(inserts=900, start=0.0, end=1.0)
    narrow = Content(inserts=100, start=0.5, end=1.0)
    outputs = merged([wide, narrow], 2_000, KeyPopulation(2_000), cuts=[0.25, 0.5, 2.0])

    assert [(each.start, each.end) for each, _, _ in outputs] == [(0, 0.25), (0.25, 0.5), (0.5, 1)]
    assert [rows for _, rows, _ in outputs] == [225, 225, 550]


def test_rows_without_updates_are_the_inserts() -> None:
    assert rows_in(123.0, 0.0, 0.0, 1e6, KeyPopulation(1_000_000)) == (123.0, 0.0)
