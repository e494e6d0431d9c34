"""Numbers of compactors that operators set, in every store."""

from __future__ import annotations

import pytest

from common.errors import MetadataError
from common.metadata.changes import SetScale, upkeep
from common.metadata.keys import SCALES
from common.metadata.keyspace import delete, hset
from tests.support.store_harness import Harness, applied, refused


async def test_a_number_is_set_changed_and_taken_back(harness: Harness) -> None:
    await harness.write(delete(SCALES))  # Of the whole store, which tests share.
    assert await harness.store.scales() == {}
    applied(await harness.apply(SetScale(group="small", count=5)))
    applied(await harness.apply(SetScale(group="large", count=0)))
    assert await harness.store.scales() == {"large": 0, "small": 5}

    applied(await harness.apply(SetScale(group="small", count=2)))
    applied(await harness.apply(SetScale(group="large", count=None)))
    applied(await harness.apply(SetScale(group="large", count=None)))
    assert await harness.store.scales() == {"small": 2}


async def test_the_groups_that_are_set_are_bounded(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "SCALES_MAX", 1)
    await harness.write(delete(SCALES))
    applied(await harness.apply(SetScale(group="small", count=1)))
    refused(await harness.apply(SetScale(group="large", count=1)), "limits")
    applied(await harness.apply(SetScale(group="small", count=3)))
    assert await harness.store.scales() == {"small": 3}


async def test_a_number_that_is_none_is_said(harness: Harness) -> None:
    await harness.write(delete(SCALES))
    await harness.write(hset(SCALES, {"small": "many"}))
    with pytest.raises(MetadataError, match="neve:scales cannot be decoded"):
        await harness.store.scales()
    await harness.write(delete(SCALES))
