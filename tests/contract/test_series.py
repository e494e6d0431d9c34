"""The snapshot of recorded values, in every store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.metadata.changes import SaveSeries, upkeep
from common.metadata.keys import SERIES
from common.metadata.keyspace import delete
from common.model.table import TableSettings
from coordinator.context import ShellContext
from coordinator.core import events as on
from coordinator.core.series import SeriesSample, SeriesStore
from coordinator.core.windows import Scope, WindowUsage, packed_usages, unpacked_usages
from coordinator.store_watch import WINDOWS_PART, SeriesKeeper, WindowUsageKeeper
from tests.support.predictable import ManualClock
from tests.support.store_harness import Harness, applied, refused
from tests.support.task_manager import TABLE, TaskManager


def sample(size_bytes: float) -> SeriesSample:
    return SeriesSample(tables={"backlog_bytes": {"a": size_bytes}}, groups={}, total={})


def context_of(harness: Harness, logged: list[str]) -> ShellContext:
    """Return a context that appends the names of its log events to a list."""
    return ShellContext(
        store=harness.store,
        clock=harness.clock,
        ids=harness.ids,
        log=lambda event, **_fields: logged.append(event),
        coordinator="c",
    )


async def test_a_part_is_stored_and_replaced(harness: Harness) -> None:
    await harness.write(delete(SERIES))  # Of the whole store, which tests share.
    assert await harness.store.series() == {}
    applied(await harness.apply(SaveSeries(part="tables:0", values=b"\x00one")))
    applied(await harness.apply(SaveSeries(part="total:0", values=b"two")))
    applied(await harness.apply(SaveSeries(part="tables:0", values=b"\xffthree")))
    assert await harness.store.series() == {"tables:0": b"\xffthree", "total:0": b"two"}


async def test_parts_are_bounded(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    await harness.write(delete(SERIES))
    large = b"x" * (upkeep.SERIES_PART_BYTES_MAX + 1)
    refused(await harness.apply(SaveSeries(part="tables:0", values=large)), "limits")
    monkeypatch.setattr(upkeep, "SERIES_PARTS_MAX", 0)
    applied(await harness.apply(SaveSeries(part="tables:0", values=b"x")))
    refused(await harness.apply(SaveSeries(part="tables:1", values=b"x")), "limits")


async def test_a_new_coordinator_begins_with_the_snapshot(harness: Harness) -> None:
    await harness.write(delete(SERIES))
    logged: list[str] = []
    context = context_of(harness, logged)
    before = SeriesStore()
    before.note(sample(7.0), harness.clock.now_s() - 100)
    snapshots = SeriesKeeper(context, before)
    for part in before.parts():
        await snapshots.write(part)
    await harness.apply(SaveSeries(part="tables:1", values=b"no part"))
    await harness.apply(SaveSeries(part=WINDOWS_PART, values=b"not of the series"))

    after = SeriesStore()
    started = SeriesKeeper(context, after)
    await started.load()

    assert after.tables.rows == before.tables.rows
    assert started.size_bytes == snapshots.size_bytes > 0
    assert logged == ["series not read"], "the damaged part"


async def test_a_new_coordinator_goes_on_with_the_budgets_of_windows(harness: Harness) -> None:
    await harness.write(delete(SERIES))
    logged: list[str] = []
    heard: list[on.Event] = []
    manager = TaskManager()
    context = replace(context_of(harness, logged), clock=ManualClock(manager.now_s))
    settings = TableSettings(windows="0 0 * * * for 1h", window_input_bytes=100)
    manager._tell(on.TableSeen(table=replace(TABLE, settings=settings)))
    manager.offer("a", 1, cost_bytes=60)
    assert manager.ask(1) == ["a"]
    keeper = WindowUsageKeeper(context, manager.state, heard.append)
    await keeper.load()
    assert heard == [], "nothing is stored"

    await keeper.write()
    packed = await harness.store.series_part(WINDOWS_PART)
    assert packed is not None
    (usage,) = unpacked_usages(packed).items()
    assert (usage[0], usage[1].input_bytes) == (Scope("table", "t"), 60)
    await harness.write(delete(SERIES))
    await keeper.write()
    assert await harness.store.series_part(WINDOWS_PART) is None, "nothing has changed since"

    packed = packed_usages({Scope("table", "t"): WindowUsage(0.0, 60)})
    applied(await harness.apply(SaveSeries(part=WINDOWS_PART, values=packed)))
    await keeper.load()
    applied(await harness.apply(SaveSeries(part=WINDOWS_PART, values=b"damaged")))
    await keeper.load()
    assert heard == [on.WindowUsesSeen(packed=packed)]
    assert logged == ["windows not read"]
