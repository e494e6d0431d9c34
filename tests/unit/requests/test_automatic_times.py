"""Selectors whose answers depend on time: asked when the time has come, and not before."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from common.model.file import DataFile
from common.model.request import SelectorSpec
from common.model.table import TableSettings
from common.model.tablet import PLUS_INFINITY, Bounds, Record, Tablet
from common.plugins import load_selector
from common.spi.planner import Chosen, Selector, SelectorParameters
from coordinator.core.requests import (
    ask_again_at_s,
    automatic_request,
    must_ask_selector,
    selector_hash,
    table_selector,
)
from coordinator.plugins.selectors import ByAge, ExpiredRatio, TooManyDeletes
from tests.support.patience import PATIENCE_S
from tests.support.planning import TABLET
from tests.support.request_shell import TABLE, Cluster, Shell, run, until

pytestmark = pytest.mark.unit
DAY_S = 86_400.0
SPEC = SelectorSpec(name="expired")


def answer(
    selector: Selector, now_s: float, *files: DataFile, ttl_s: float | None = None, **options: str
) -> Chosen:
    table = replace(TABLE, settings=TableSettings(ttl_s=ttl_s))
    return selector.select(
        SelectorParameters(tablet=TABLET, table=table, files=files, options=options, now_s=now_s)
    )


def file(path: str, **facts: object) -> DataFile:
    plain: dict[str, object] = {"size_bytes": 10, "rows": 10}
    return DataFile(path=path, **(plain | facts))  # type: ignore[arg-type]  # facts by name


def follow(selector: Selector, *files: DataFile, **given: object) -> list[tuple[float, int]]:
    """Return the times at which a selector asks to be asked, and how many it chooses then."""
    told, now_s = [], 0.0
    for _ in range(10):
        chosen = answer(selector, now_s, *files, **given)  # type: ignore[arg-type]  # options
        told.append((round(now_s, 2), len(chosen.files)))
        again_s = ask_again_at_s(chosen, now_s)
        if again_s is None:
            return told
        assert again_s >= now_s
        now_s = again_s + 0.0005
    raise AssertionError(told)


def test_each_file_is_asked_about_once_when_enough_of_it_has_expired() -> None:
    files = [
        file("a", time_min_s=0.0, time_max_s=100.0),
        file("b", time_min_s=100.0, time_max_s=100.0),
        file("c"),
    ]
    told = follow(ExpiredRatio(), *files, ttl_s=1000.0, ratio="0.5")
    assert told == [(0.0, 0), (1050.0, 1), (1100.0, 2)]
    assert follow(ExpiredRatio(), *files) == [(0.0, 0)]
    few = follow(ExpiredRatio(), *files, ttl_s=1000.0, min_files="2")
    assert few == [(0.0, 0), (1050.0, 0), (1100.0, 2)]


def test_age_comes_by_itself_and_only_from_below() -> None:
    files = [file("a", added_at_s=10.0), file("b", added_at_s=20.0)]
    assert follow(ByAge(), *files, older_than="60s") == [(0.0, 0), (70.0, 1), (80.0, 2)]
    assert follow(ByAge(), *files, younger_than="60s") == [(0.0, 2)]
    assert follow(ByAge(), *files, older_than="60s", younger_than="50s") == [(0.0, 0)]


def test_tombstones_are_asked_about_again_when_they_may_be_dropped() -> None:
    dead = file("a", tombstones=5, tombstones_since_s=100.0)
    told = follow(TooManyDeletes(), dead, file("b"))
    assert told == [(0.0, 2), (100.0 + 1.25 * DAY_S, 2)]
    few = file("a", tombstones=1, tombstones_since_s=100.0)
    assert follow(TooManyDeletes(), few, file("b")) == [(0.0, 0)]


def tablet(*files: DataFile, **record: object) -> Tablet:
    return Tablet(
        id=TABLET,
        bounds=Bounds(None, TABLET.end),
        files={each.path: each for each in files},
        record=Record(**record),  # type: ignore[arg-type]  # facts by name
    )


def test_the_hash_stays_until_the_time_has_come() -> None:
    known = selector_hash(tablet(file("a")), TABLE, SPEC)
    quiet = tablet(file("a"), selector_hash=known, selector_due_s=50.0)
    assert not must_ask_selector(quiet, TABLE, SPEC, 49.0)
    assert must_ask_selector(quiet, TABLE, SPEC, 50.0)
    assert not must_ask_selector(tablet(file("a"), selector_hash=known), TABLE, SPEC, 1e9)
    other_ttl = replace(TABLE, settings=TableSettings(ttl_s=5.0))
    assert must_ask_selector(quiet, other_ttl, SPEC, 0.0)


def test_a_result_is_news_again_if_time_has_chosen_it_since_it_was_made() -> None:
    first = automatic_request(
        tablet(file("a")), TABLE, SPEC, Chosen(files=("a",), reason="old"), 10.0
    )
    assert first is not None
    made = file("out", request=first.id, added_at_s=20.0)

    def asked(came_s: float | None, now_s: float) -> bool:
        times_s = {} if came_s is None else {"out": came_s}
        chosen = Chosen(files=("out",), reason="old", times_s=times_s)
        return automatic_request(tablet(made), TABLE, SPEC, chosen, now_s) is not None

    assert not asked(None, 100.0)
    assert not asked(15.0, 100.0)
    assert asked(30.0, 100.0)
    assert not asked(130.0, 100.0)


def test_a_choice_due_by_time_is_a_new_request() -> None:
    known = selector_hash(tablet(file("a"), file("b")), TABLE, SPEC)
    chosen = Chosen(files=("a",), reason="old")
    before = automatic_request(tablet(file("a"), file("b")), TABLE, SPEC, chosen, 10.0)
    due = tablet(file("a"), file("b"), selector_hash=known, selector_due_s=50.0)
    after = automatic_request(due, TABLE, SPEC, chosen, 50.0)
    again = automatic_request(due, TABLE, SPEC, chosen, 51.0)
    assert before is not None
    assert after is not None
    assert before.id != after.id
    assert after == again


def test_a_quiet_tablet_is_compacted_when_its_files_are_old_enough() -> None:
    settings = TableSettings(selector="age", selector_options={"older_than": "1h"})

    async def story() -> None:
        cluster = Cluster()
        await cluster.create(replace(TABLE, settings=settings), splits=())
        await cluster.add(PLUS_INFINITY, "a", "b")
        async with cluster.coordinator() as it:
            await until(lambda: asked(cluster))
            due_s = (await cluster.tablet()).record.selector_due_s
            assert due_s == pytest.approx(cluster.clock.now_s() + 3600.0, abs=0.01)
            calls = it.parts.selectors.calls
            for _ in range(3):
                await scanned(it)
            assert it.parts.selectors.calls == calls
            assert await cluster.store.requests("t1") == []
            cluster.clock.advance(3601.0)
            await scanned(it)
            await until(lambda: made(cluster, 1))
            (request,) = await cluster.store.requests("t1")
            await it.finish(request.id)
            await until(lambda: asked(cluster))
            for _ in range(3):
                await scanned(it)
            assert len(await cluster.store.requests("t1")) == 1

    async def asked(cluster: Cluster) -> bool:
        seen = await cluster.tablet()
        table = await cluster.store.table("t1")
        assert table is not None
        spec = table_selector(table)
        assert spec is not None
        return not must_ask_selector(seen, table, spec, cluster.clock.now_s())

    async def made(cluster: Cluster, count: int) -> bool:
        return len(await cluster.store.requests("t1")) == count

    run(story())


async def scanned(it: Shell) -> None:
    """Scan the table and let what is found be planned."""
    before = it.parts.full_scan.counts.scans
    it.parts.full_scan.look("t1", fresh=False)
    async with asyncio.timeout(PATIENCE_S):
        while it.parts.full_scan.counts.scans == before or it.parts.scanner.waiting:
            await asyncio.sleep(0.005)


def test_selectors_tell_times_of_files_that_they_were_shown() -> None:
    for name in ("age", "expired", "deletes"):
        options = {"older_than": "1h"} if name == "age" else {}
        shown = [file("a", time_min_s=1.0, time_max_s=2.0, tombstones=9, tombstones_since_s=3.0)]
        chosen = answer(load_selector(name), 0.0, *shown, ttl_s=60.0, **options)
        assert list(chosen.times_s) == ["a"]
