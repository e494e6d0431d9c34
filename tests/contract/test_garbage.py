"""Garbage stamps and readers' pins."""

from __future__ import annotations

import pytest

from common.metadata.changes import (
    ForgetGarbage,
    KeepGarbage,
    PinFiles,
    StampGarbage,
    UnpinFiles,
)
from common.metadata.changes.protocol import into_garbage
from common.metadata.keys import TableKeys
from tests.support.store_harness import Harness, applied, commit, refused, reserve

pytestmark = pytest.mark.anyio


async def test_stamped_kept_stamped_again_forgotten(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    table = tablet.table
    applied(await harness.apply(reserve(tablet, "t1", "a", "b")))
    applied(await harness.apply(commit(tablet, "t1")))

    async def stamps() -> dict[str, float]:
        return {each.path: each.stamped_s for each in await harness.store.garbage(table)}

    assert await stamps() == {"a": 0, "b": 0}
    stamp = StampGarbage(table=table, paths=("a", "none"))
    first = applied(await harness.apply(stamp))
    assert await stamps() == {"a": first.now_s, "b": 0}
    await harness.pass_time(0.01)
    applied(await harness.apply(stamp))  # A stamp stays; no entry is made.
    assert await stamps() == {"a": first.now_s, "b": 0}
    applied(await harness.apply(KeepGarbage(table=table, path="a")))
    applied(await harness.apply(KeepGarbage(table=table, path="none")))
    assert await stamps() == {"a": 0, "b": 0}
    again = applied(await harness.apply(stamp))
    assert again.now_s > first.now_s
    applied(await harness.apply(ForgetGarbage(table=table, paths=("a",))))
    applied(await harness.apply(ForgetGarbage(table=table, paths=("a",))))
    assert await stamps() == {"b": 0}


async def test_a_pin_is_renewed_until_its_lease_ends(harness: Harness) -> None:
    table = (await harness.table()).id
    # Long enough for a busy machine, on which a moment takes its time.
    lease_s = 1.5
    pin = PinFiles(table=table, pin="p1", lease_s=lease_s)
    begun = applied(await harness.apply(pin))
    await harness.pass_time(0.05)
    renewed = applied(await harness.apply(pin))
    (entry,) = await harness.store.pins(table)
    assert (entry.pin, entry.since_s) == ("p1", begun.now_s)
    assert entry.until_s == pytest.approx(renewed.now_s + lease_s)
    await harness.pass_time(lease_s + 0.05)
    refused(await harness.apply(pin), "pin")
    applied(await harness.apply(UnpinFiles(table=table, pin="p1")))
    applied(await harness.apply(UnpinFiles(table=table, pin="p1")))
    assert await harness.store.pins(table) == []
    applied(await harness.apply(pin))


async def test_all_garbage_of_a_large_hash_is_seen(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    paths = [f"f{number:04}" for number in range(3000)]
    await harness.write(
        *into_garbage(TableKeys(tablet.table), tablet.end, dict.fromkeys(paths, b"k"))
    )
    assert [each.path for each in await harness.store.garbage(tablet.table)] == paths
