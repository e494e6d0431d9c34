"""Buffered rows when the store goes back in time between two steps of a process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.metadata.changes import SubmitRequest
from common.metadata.keys import TableKeys
from common.metadata.keyspace import delete
from common.metadata.store_values import BufferSegment
from common.model.request import Request
from common.model.tablet import TabletId
from tests.contract.test_buffers import append, buffer_of, close, flush
from tests.support.store_harness import Harness, applied, file, refused

pytestmark = pytest.mark.anyio


async def only_segment(harness: Harness, tablet: TabletId) -> BufferSegment:
    """Return the only segment of a table."""
    (segment,) = (await buffer_of(harness, tablet)).segments
    return segment


async def go_back(harness: Harness, tablet: TabletId, closed: BufferSegment) -> None:
    """Let the store forget the rows of a segment, and that it was closed."""
    keys = TableKeys(tablet.table)
    await harness.write(
        delete(keys.rows), delete(keys.segment(closed.number)), delete(keys.row_counts)
    )
    applied(await append(harness, tablet, flush=closed.flush))


async def test_a_flush_of_rows_that_the_store_has_forgotten_is_refused(harness: Harness) -> None:
    """It would remove a segment that has as many calls, but other ones."""
    tablet = await harness.tablet_with()
    for _ in range(2):
        applied(await append(harness, tablet))
    await close(harness, tablet)
    change = await flush(harness, tablet, calls=2)
    await go_back(harness, tablet, await only_segment(harness, tablet))
    applied(await append(harness, tablet))
    await harness.pass_time(0.01)
    await close(harness, tablet)
    present = await only_segment(harness, tablet)
    assert present.flush == change.call
    assert present.closed_s != change.segment_closed_s
    refused(await harness.apply(change), "buffered")
    assert (await buffer_of(harness, tablet)).counts[1].calls == 2
    again = await flush(harness, tablet, file("g", rows=4), calls=2)
    applied(await harness.apply(again))


async def test_a_request_is_refused_while_rows_of_before_its_flush_are_buffered(
    harness: Harness,
) -> None:
    tablet = await harness.tablet_with()
    applied(await append(harness, tablet))
    opened_s = (await only_segment(harness, tablet)).opened_s
    submit = SubmitRequest(request=Request(id="r1", table=tablet.table), flushed_s=opened_s + 0.01)
    refused(await harness.apply(submit), "buffered")
    assert await harness.store.request(tablet.table, "r1") is None
    applied(await harness.apply(replace(submit, flushed_s=opened_s)))
    # A repetition is not checked again: rows that came since are not its concern.
    assert applied(await harness.apply(submit)).repeated
