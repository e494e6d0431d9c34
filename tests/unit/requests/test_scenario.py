"""The scenario of Accumulo's design, told again and again: somebody dies at each change."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from common.model.job import Kind
from common.model.request import RequestState
from common.model.tablet import Tablet
from tests.support.request_shell import run
from tests.support.scenario import HELD_BACK, merged, numbered
from tests.support.scenario_tale import OLD, SCENARIO, Tale, job_of
from tests.support.scripted import install, span_of
from tests.unit.requests.test_lives import broken

pytestmark = pytest.mark.property

CHANGES_MAX = 200
"""More than the story has."""


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def whole(tale: Tale, tablet: Tablet) -> None:
    """Assert what must hold at every beat: no row is lost or doubled, no hold is broken."""
    assert broken(tablet) is None, broken(tablet)
    found = sorted(span_of([file]) for file in tablet.files.values())
    assert sum(file.rows for file in tablet.files.values()) == tale.rows
    assert all(left[1] < right[0] for left, right in pairwise(found)), found
    if tablet.waiting:
        since_s = min(tablet.waiting.values())
        kinds = {each.kind for each in tablet.running.values() if each.since_s > since_s}
        assert Kind.SYSTEM not in kinds, "a system job has begun behind a marker"


async def told(**deaths: Any) -> Tale:
    """Tell the story; assert what every end has in common."""
    tale = Tale(**deaths)
    tale.check = lambda tablet: whole(tale, tablet)
    await tale.tell()
    assert (await tale.request("r1")).state is RequestState.DONE
    assert tale.rows == 240
    history = await tale.store.history("t1", 1000)
    committed = [entry for entry in history if entry.end == "committed"]
    inputs = Counter(path for entry in committed for path in entry.inputs)
    assert set(inputs.values()) == {1}, "a file went twice"
    assert len([entry for entry in committed if entry.kind == Kind.USER]) == 6
    return tale


def test_the_scenario_without_deaths_runs_each_job_once() -> None:
    async def story() -> None:
        tale = await told()
        history = await tale.store.history("t1", 1000)
        sizes = sorted(len(entry.inputs) for entry in history if entry.end == "committed")
        assert sizes == [2, 5, 20, 21, 30, 31, 35, 35, 35, 35]
        assert set(tale.handed.values()) == {1}

    run(story())


def test_without_a_request_the_next_system_job_runs() -> None:
    """The job that the hold prevents in step 5: without the hold it would run."""

    async def story() -> None:
        tale = Tale()
        await tale.create(SCENARIO, splits=())
        await tale.come(numbered(1, 200))
        async with tale.coordinator() as it:
            first = await it.take()
            assert first is not None
            await it.commit(first)
            second = await it.take()
            assert second is not None
            assert job_of(first) == OLD
            assert job_of(second) == ("SYSTEM", merged(HELD_BACK))

    run(story())


VICTIMS = (("coordinator",), ("compactor",), ("coordinator", "compactor"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victims", "first", "step"),
    [
        # Some process dies at each change; with `make long`, each does.
        *((victims, first, len(VICTIMS)) for first, victims in enumerate(VICTIMS, 1)),
        *(pytest.param(victims, 1, 1, marks=pytest.mark.long) for victims in VICTIMS),
    ],
)
def test_the_scenario_ends_the_same_after_a_death_at_any_change(
    victims: tuple[str, ...], first: int, step: int
) -> None:
    """Whichever process dies, and when: the end is the same, and no job is done a second time."""

    async def story(at: int) -> bool:
        tale = await told(deaths={at: victims})
        # A coordinator's death takes nothing back, and a compactor's only what it held.
        assert tale.taken_back == 0
        assert set((tale.handed - tale.dropped).values()) == {1}
        return tale.changes >= at

    at = first
    while asyncio.run(story(at)):
        at += step
    assert 30 < at < CHANGES_MAX
