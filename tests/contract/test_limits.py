"""Limits of groups and volumes, in every store."""

from __future__ import annotations

import pytest

from common.errors import MetadataError
from common.metadata.changes import SetLimit, upkeep
from common.metadata.keys import LIMITS
from common.metadata.keyspace import delete, hset
from common.model.group import LimitScope
from tests.support.store_harness import Harness, applied, refused

GROUP, VOLUME = LimitScope.parse("group:default"), LimitScope.parse("volume:fast")


async def test_a_limit_is_set_changed_and_taken_back(harness: Harness) -> None:
    await harness.write(delete(LIMITS))  # Of the whole store, which tests share.
    assert await harness.store.limits() == {}
    applied(await harness.apply(SetLimit(scope=GROUP, bytes_s=50 << 20)))
    applied(await harness.apply(SetLimit(scope=VOLUME, bytes_s=0)))
    assert await harness.store.limits() == {GROUP: 50 << 20, VOLUME: 0}

    applied(await harness.apply(SetLimit(scope=GROUP, bytes_s=1 << 20)))
    applied(await harness.apply(SetLimit(scope=VOLUME, bytes_s=None)))
    applied(await harness.apply(SetLimit(scope=VOLUME, bytes_s=None)))
    assert await harness.store.limits() == {GROUP: 1 << 20}


async def test_no_more_limits_than_are_looked_at(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "LIMITS_MAX", 1)
    await harness.write(delete(LIMITS))
    applied(await harness.apply(SetLimit(scope=GROUP, bytes_s=1 << 20)))
    refused(await harness.apply(SetLimit(scope=VOLUME, bytes_s=1 << 20)), "limits")
    applied(await harness.apply(SetLimit(scope=GROUP, bytes_s=2 << 20)))
    assert await harness.store.limits() == {GROUP: 2 << 20}


async def test_a_damaged_limit_is_an_error_and_not_no_limit(harness: Harness) -> None:
    await harness.write(hset(LIMITS, {GROUP.text: "much"}))
    with pytest.raises(MetadataError, match=r"neve:limits group:.* cannot be decoded: .*much"):
        await harness.store.limits()
    await harness.write(delete(LIMITS))


async def test_a_limit_with_a_damaged_name_limits_nothing(harness: Harness) -> None:
    for name in ("shelf:a", "group:A/b", b"\xff", ""):
        await harness.write(hset(LIMITS, {name: 5}))
    await harness.write(hset(LIMITS, {GROUP.text: 1 << 20}))
    assert await harness.store.limits() == {GROUP: 1 << 20}
