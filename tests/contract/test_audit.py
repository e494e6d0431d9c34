"""The audit in the store: appended, bounded, read newest first, and refused out loud."""

from __future__ import annotations

import pytest

from common.errors import UnavailableError
from tests.support.flaky import Fault, FlakyKeyspace, Point
from tests.support.store_harness import Harness

pytestmark = pytest.mark.anyio


async def test_the_newest_lines_come_first(harness: Harness) -> None:
    await harness.store.note_audit([b"first", b"second"], 1000)
    await harness.store.note_audit([b"third \xff"], 1000)

    assert await harness.store.audit(2) == [b"third \xff", b"second"]


async def test_the_audit_is_bounded(harness: Harness) -> None:
    for number in range(30):
        await harness.store.note_audit([b"%d-%d" % (number, index) for index in range(100)], 100)
    kept = await harness.store.audit(10_000)

    # Redis cuts whole nodes of a stream off, of a hundred entries each.
    assert 100 <= len(kept) <= 300
    assert kept[0] == b"29-99"


async def test_a_lost_connection_is_an_error(harness: Harness) -> None:
    async def lost(point: Point) -> Fault:
        return Fault.LOST if point is Point.EXEC else Fault.NONE

    store = harness.another(FlakyKeyspace(harness.keyspace, lost))
    with pytest.raises(UnavailableError, match="refuses audit entries"):
        await store.note_audit([b"lost"], 1000)
    assert b"lost" not in await harness.store.audit(10)
