"""How often a table's own selector is called: once for the same files and settings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from common.metadata.changes import Applied, ChangeTable
from common.model.table import TableSettings
from common.model.tablet import PLUS_INFINITY, TabletId
from common.spi.planner import Chosen, SelectorParameters
from coordinator.core.requests import must_ask_selector, table_selector
from coordinator.plugins.selectors import ByName
from coordinator.requests import KEPT_MAX, SelectorCalls
from tests.support.request_shell import TABLE, Cluster, Shell, run, until

pytestmark = pytest.mark.unit

PATTERN = "only this test asks for it"
SETTINGS = TableSettings(selector="name", selector_options={"pattern": PATTERN}, ratio=50)
WITH_SELECTOR = replace(TABLE, settings=SETTINGS)
POSITIVE = f"{PATTERN}: all files"
OTHERS = replace(SETTINGS, selector_options={"pattern": f"{PATTERN}, too"})


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many files the selector was shown, call by call; only `POSITIVE` chooses any."""
    noted: list[int] = []
    select = ByName.select

    def and_note(self: ByName, parameters: SelectorParameters) -> Chosen:
        if parameters.options["pattern"].startswith(PATTERN):
            noted.append(len(parameters.files))
        chosen = select(self, parameters)
        if parameters.options["pattern"] == POSITIVE:
            chosen = Chosen(files=tuple(file.path for file in parameters.files), reason="all")
        return chosen

    monkeypatch.setattr(ByName, "select", and_note)
    return noted


def asked(cluster: Cluster) -> Callable[[], Awaitable[bool]]:
    """Return whether it is noted that the selector was asked about the files as they are."""
    spec = table_selector(WITH_SELECTOR)
    assert spec is not None

    async def known() -> bool:
        seen = await cluster.tablet()
        return not must_ask_selector(seen, WITH_SELECTOR, spec, cluster.clock.now_s())

    return known


async def look_again(it: Shell) -> None:
    """Have the tablet read and planned ten times more."""
    for _ in range(10):
        planned = it.parts.scanner.planned
        it.parts.scanner.ask(TabletId("t1", PLUS_INFINITY))
        while it.parts.scanner.planned == planned:
            await asyncio.sleep(0)
    await asyncio.sleep(0.01)


def test_a_selector_is_called_when_files_or_settings_changed(calls: list[int]) -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.create(WITH_SELECTOR, splits=())
        await cluster.add(PLUS_INFINITY, "a", "b")
        async with cluster.coordinator() as it:
            await until(asked(cluster))
            await look_again(it)
            assert calls == [2]
            await cluster.add(PLUS_INFINITY, "c")
            await until(asked(cluster))
            await look_again(it)
            assert calls == [2, 3]
        # A new coordinator knows: it is noted in the store.
        async with cluster.coordinator() as it:
            await look_again(it)
            assert calls == [2, 3]
            change = ChangeTable(table="t1", settings_version=1, settings=OTHERS)
            assert isinstance(await cluster.store.apply(change), Applied)
            await until(lambda: again(3))
            await look_again(it)
            assert calls == [2, 3, 3]
        assert not await cluster.store.requests("t1")

    async def again(times: int) -> bool:
        return len(calls) >= times

    run(story())


def test_a_positive_answer_calls_the_selector_once_and_new_files_again(calls: list[int]) -> None:
    """The request takes the answer that caused it, unless the tablet has changed since."""

    async def story() -> None:
        cluster = Cluster()
        positive = replace(SETTINGS, selector_options={"pattern": POSITIVE})
        await cluster.create(replace(TABLE, settings=positive), splits=())
        await cluster.add(PLUS_INFINITY, "a", "b")
        async with cluster.coordinator() as it:
            await until(cluster.selected)
            assert calls == [2]
            (request,) = await cluster.store.requests("t1")
            assert request.automatic
            await it.finish(request.id)
            await until(lambda: again(2))
            assert calls[:2] == [2, 1], "it is called for what the request has written"

    async def again(times: int) -> bool:
        return len(calls) >= times

    run(story())


def test_a_kept_answer_is_for_the_same_files_and_taken_once() -> None:
    selectors = SelectorCalls()
    chosen = Chosen(files=("a",), reason="it fits")
    selectors.keep("r1", "digest", chosen)
    assert selectors.take_kept("r1", "another") is None
    assert selectors.take_kept("r1", "digest") is None
    for number in range(KEPT_MAX + 1):
        selectors.keep(f"r{number}", "digest", chosen)
    assert selectors.take_kept("r0", "digest") is None
    assert selectors.take_kept("r1", "digest") == chosen
    assert selectors.take_kept("r1", "digest") is None
