"""The snapshot of recorded values, in every store."""

from __future__ import annotations

import pytest

from common.metadata.changes import SaveSeries, upkeep
from common.metadata.keys import SERIES
from common.metadata.keyspace import delete
from coordinator.context import ShellContext
from coordinator.core.series import SeriesSample, SeriesStore
from coordinator.store_watch import SeriesKeeper
from tests.support.store_harness import Harness, applied, refused


def sample(size_bytes: float) -> SeriesSample:
    return SeriesSample(tables={"backlog_bytes": {"a": size_bytes}}, groups={}, total={})


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
    context = ShellContext(
        store=harness.store,
        clock=harness.clock,
        ids=harness.ids,
        log=lambda event, **_fields: logged.append(event),
        coordinator="c",
    )
    before = SeriesStore()
    before.note(sample(7.0), harness.clock.now_s() - 100)
    snapshots = SeriesKeeper(context, before)
    for part in before.parts():
        await snapshots.write(part)
    await harness.apply(SaveSeries(part="tables:1", values=b"no part"))

    after = SeriesStore()
    started = SeriesKeeper(context, after)
    await started.load()

    assert after.tables.rows == before.tables.rows
    assert started.size_bytes == snapshots.size_bytes > 0
    assert logged == ["series not read"], "the damaged part"
