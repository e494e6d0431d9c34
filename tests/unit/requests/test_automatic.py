"""Requests that the service makes by itself for a selector that a table has."""

import asyncio
from dataclasses import replace

import pytest

from common.metadata.changes import Applied, ChangeTable
from common.model.request import Request, SelectorSpec, covers, key_range_of
from common.model.table import Table, TableSettings
from common.model.tablet import PLUS_INFINITY, Bounds, Record, Tablet, TabletId
from common.spi.planner import Chosen
from coordinator.core.requests import (
    automatic_request,
    meets_tablet,
    must_ask_selector,
    selector_hash,
    table_selector,
)
from tests.support.patience import PATIENCE_S
from tests.support.planning import TABLET, files_of
from tests.support.request_shell import TABLE, Cluster, ended, run, until

pytestmark = pytest.mark.unit
NOW_S = 1_000.0
SETTINGS = TableSettings(selector="name", selector_options={"pattern": "*.parquet"})
WITH_SELECTOR = replace(TABLE, settings=SETTINGS)


def tablet(files: str = "ab", **given: object) -> Tablet:
    return Tablet(
        id=TABLET,
        bounds=Bounds(None, TABLET.end),
        files=files_of(dict.fromkeys(files, 10)),
        **given,  # type: ignore[arg-type]  # facts by name
    )


def made_for(
    seen: Tablet, spec: SelectorSpec, chosen: Chosen, now_s: float = NOW_S
) -> Request | None:
    return automatic_request(seen, TABLE, spec, chosen, now_s)


def test_a_selector_is_asked_again_when_files_or_settings_have_changed() -> None:
    spec, other = (
        table_selector(WITH_SELECTOR),
        table_selector(replace(TABLE, settings=TableSettings(selector="all"))),
    )
    assert spec is not None
    assert other is not None
    assert table_selector(TABLE) is None
    asked = tablet(record=Record(selector_hash=selector_hash(tablet(), TABLE, spec)))
    assert must_ask_selector(tablet(), TABLE, spec, NOW_S)
    assert not must_ask_selector(asked, TABLE, spec, NOW_S)
    assert must_ask_selector(asked, TABLE, other, NOW_S)
    assert must_ask_selector(replace(tablet("abc"), record=asked.record), TABLE, spec, NOW_S)


def test_the_same_choice_is_the_same_request_and_what_it_made_is_no_news() -> None:
    spec = table_selector(WITH_SELECTOR)
    assert spec is not None
    first = made_for(tablet(), spec, Chosen(files=("a",), reason="it fits"))
    again = made_for(tablet(), spec, Chosen(files=("a", "b"), reason="they fit"))
    assert first is not None
    assert first == again
    assert first.automatic
    assert made_for(tablet(), spec, Chosen(reason="none fits")) is None
    made = {path: replace(file, request=first.id) for path, file in tablet().files.items()}
    chosen = Chosen(files=("a", "b"), reason="they fit")
    assert made_for(replace(tablet(), files=made), spec, chosen) is None
    made["b"] = replace(made["b"], request=None)
    assert made_for(replace(tablet(), files=made), spec, chosen) is not None


@pytest.mark.parametrize(
    ("own", "others"),
    [
        (Bounds(b"m", b"p"), [Bounds(None, b"m"), Bounds(b"p", b"\xff")]),
        (Bounds(None, b"m"), [Bounds(b"m", b"p")]),
        (Bounds(b"p", b"\xff"), [Bounds(b"m", b"p")]),
        (Bounds(None, b"m", "d=1"), [Bounds(None, b"p", "d=2"), Bounds(None, b"k", "d=0")]),
    ],
)
def test_its_range_is_that_of_one_tablet(own: Bounds, others: list[Bounds]) -> None:
    spec = table_selector(WITH_SELECTOR)
    assert spec is not None
    here = Tablet(id=TabletId("t1", own.end), bounds=own, files=files_of({"a": 1}))
    request = made_for(here, spec, Chosen(files=("a",), reason="it fits"))
    assert request is not None
    assert request.range == key_range_of(own)
    assert covers(request.range, own)
    assert not any(covers(request.range, each) for each in others)
    every = sorted([own, *others], key=lambda each: each.end)
    assert all(covers(key_range_of(every[0], every[-1]), each) for each in every)
    assert [meets_tablet(request, each) for each in [own, *others]] == [True] + [False] * len(
        others
    )


async def with_selector(table: Table = WITH_SELECTOR) -> Cluster:
    cluster = Cluster()
    await cluster.create(table, splits=())
    await cluster.add(PLUS_INFINITY, "a", "b")
    return cluster


def test_a_table_with_a_selector_is_compacted_until_it_chooses_nothing_new() -> None:
    async def story() -> None:
        cluster = await with_selector()
        async with cluster.coordinator() as it:
            (first,) = await submitted(cluster, 1)
            await it.finish(first)
            (file,) = (await cluster.tablet()).files.values()
            assert file.request == first
            await until(lambda: asked_of_all(cluster))
            cluster.clock.advance(1)
            await cluster.add(PLUS_INFINITY, "c")
            second = (await submitted(cluster, 2))[0]
            await it.finish(second)
            await until(lambda: asked_of_all(cluster))
            assert len(await cluster.store.requests("t1")) == 2

    run(story())


def test_a_selector_that_is_set_later_is_asked_about_what_is_there() -> None:
    async def story() -> None:
        cluster = await with_selector(TABLE)
        async with cluster.coordinator() as it:
            assert await it.take(wait_max_s=0.05) is None
            change = ChangeTable(table="t1", settings_version=1, settings=SETTINGS)
            assert isinstance(await cluster.store.apply(change), Applied)
            (request,) = await submitted(cluster, 1)
            await it.finish(request)
            await ended(cluster, request)

    run(story())


async def submitted(cluster: Cluster, count: int) -> list[str]:
    """Wait for requests; return the newest first."""
    async with asyncio.timeout(PATIENCE_S):
        while len(requests := await cluster.store.requests("t1")) < count:
            await asyncio.sleep(0.005)
    assert all(request.automatic for request in requests)
    return [request.id for request in requests]


async def asked_of_all(cluster: Cluster) -> bool:
    """Return whether the selector has been asked about the files as they are."""
    spec = table_selector(WITH_SELECTOR)
    assert spec is not None
    return not must_ask_selector(await cluster.tablet(), WITH_SELECTOR, spec, cluster.clock.now_s())
