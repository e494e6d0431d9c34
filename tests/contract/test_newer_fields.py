"""Two releases at the same time: what the newer one has added to a value outlives the older one.

The tests put fields into stored values as a newer release would, let this release change
the values, and look at the bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from common.errors import MetadataError
from common.metadata.changes import (
    BeginOperation,
    CancelRange,
    ChangeTable,
    CorrectFile,
    EndOperation,
    KeepGarbage,
    PinFiles,
    StampGarbage,
    StepOperation,
)
from common.metadata.codec.layout import (
    PackedLayout,
    pack,
    unpack,
)
from common.metadata.codec.table import (
    _SELECTOR,
    GARBAGE,
    PIN,
    REQUEST,
    SETTINGS,
    SPEC,
    VALUE,
)
from common.metadata.codec.tablet import (
    BOUNDS,
    FILE,
    OPERATION,
    RESERVATION,
    SELECTION,
)
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.keyspace import Reply, get, hget, hset, set_string
from common.metadata.store_values import UnreadableTablet
from common.model.outcome import AttemptEnd
from common.model.request import KeyRange
from common.model.table import Column, TableSettings
from common.model.tablet import PLUS_INFINITY, OperationKind, OperationStep, TabletId
from tests.support.requests import select, submitted, tablet_of
from tests.support.store_harness import (
    MIDDLE,
    Harness,
    applied,
    commit,
    file,
    release,
    reserve,
)

pytestmark = pytest.mark.anyio

NEWER = ("newer", 7, (b"\x00", {"deep": (1.5, None)}))
"""Fields behind the known ones."""


async def extend(harness: Harness, layout: PackedLayout[Any], key: str, field: str = "") -> None:
    """Add fields to a value of a hash, or to a string if `field` is empty."""
    await put(harness, extended(layout, unpack(key, await stored(harness, key, field))), key, field)


def extended(layout: PackedLayout[Any], row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return all known fields, defaults at the end too, and the newer ones behind them."""
    return (*row, *layout.plain_defaults[len(row) :], *NEWER)


async def put(harness: Harness, row: tuple[Any, ...], key: str, field: str) -> None:
    await harness.write(hset(key, {field: pack(row)}) if field else set_string(key, pack(row)))


async def stored(harness: Harness, key: str, field: str = "") -> bytes:
    reply: Reply = await harness.read(hget(key, field) if field else get(key))
    assert isinstance(reply, bytes), (key, field)
    return reply


async def tail(harness: Harness, key: str, field: str = "") -> tuple[Any, ...]:
    """Return the last fields of a value."""
    row: tuple[Any, ...] = unpack(key, await stored(harness, key, field))
    return row[-len(NEWER) :]


async def newer_file(harness: Harness, tablet: TabletId, path: str, low: bytes = b"a") -> None:
    """Add a file, and have a newer release add fields to it."""
    applied(await harness.add(tablet, file(path, low, low + b"z")))
    await extend(harness, FILE, TabletKeys.of(tablet).files, path)


async def test_a_selection_moves_on(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b", "c")
    keys = TabletKeys.of(tablet)
    await submitted(harness, tablet.table)
    applied(await harness.apply(select(tablet, "a", "b", "c")))
    await extend(harness, SELECTION, keys.selection)
    applied(await harness.apply(reserve(tablet, "u1", "a", "b", request="r1")))
    applied(await harness.apply(commit(tablet, "u1")))
    found = await tablet_of(harness, tablet)
    assert found.selection is not None
    assert found.selection.files == ("c", "out/u1-0.parquet")
    assert await tail(harness, keys.selection) == NEWER


async def test_an_attempt_over_newer_values_commits(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    keys = TabletKeys.of(tablet)
    for path in ("a", "b", "c"):
        await newer_file(harness, tablet, path)
    applied(await harness.apply(reserve(tablet, "t1", "a", "b")))
    await extend(harness, RESERVATION, keys.running, "t1")
    applied(await harness.apply(commit(tablet, "t1")))
    found = await tablet_of(harness, tablet)
    assert sorted(found.files) == ["c", "out/t1-0.parquet"]
    assert await tail(harness, keys.files, "c") == NEWER


async def test_a_reservation_that_ends_uncommitted(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    await extend(harness, RESERVATION, TabletKeys.of(tablet).running, "t1")
    applied(await harness.apply(release(tablet, "t1", AttemptEnd.FAILED)))
    assert await tail(harness, TableKeys(tablet.table).uncommitted, "t1") == NEWER
    (entry,) = await harness.store.uncommitted(tablet.table)
    assert (entry.attempt, entry.inputs) == ("t1", ("a",))


async def test_a_split_moves_files_bounds_and_its_own_steps(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    left, keys = TabletId(tablet.table, b"c"), TabletKeys.of(tablet)
    await newer_file(harness, tablet, "l")
    await newer_file(harness, tablet, "r", b"d")
    await extend(harness, BOUNDS, keys.bounds)
    begin = BeginOperation(kind=OperationKind.SPLIT, tablets=(tablet,), operation="o", at=b"c")
    applied(await harness.apply(begin))
    await extend(harness, OPERATION, keys.operation)
    for step in (OperationStep.DRAIN, OperationStep.CLOSE):
        change = StepOperation(tablets=(tablet,), operation="o", step=step)
        applied(await harness.apply(change))
        assert await tail(harness, keys.operation) == NEWER
    applied(await harness.apply(EndOperation(tablets=(tablet,), operation="o")))
    for half, path in ((left, "l"), (tablet, "r")):
        assert sorted((await tablet_of(harness, half)).files) == [path]
        assert await tail(harness, TabletKeys.of(half).files, path) == NEWER
        assert await tail(harness, TabletKeys.of(half).bounds) == NEWER


async def test_a_merge_moves_files_and_bounds(harness: Harness) -> None:
    table = await harness.table()
    left, right = TabletId(table.id, MIDDLE), TabletId(table.id, PLUS_INFINITY)
    await newer_file(harness, left, "l")
    await extend(harness, BOUNDS, TabletKeys.of(right).bounds)
    both = (left, right)
    begin = BeginOperation(kind=OperationKind.MERGE, tablets=both, operation="o")
    applied(await harness.apply(begin))
    for step in (OperationStep.DRAIN, OperationStep.CLOSE):
        applied(await harness.apply(StepOperation(tablets=both, operation="o", step=step)))
    applied(await harness.apply(EndOperation(tablets=both, operation="o")))
    keys = TabletKeys.of(right)
    assert await tail(harness, keys.files, "l") == NEWER
    assert await tail(harness, keys.bounds) == NEWER


async def test_a_file_is_restated(harness: Harness) -> None:
    tablet = await harness.tablet_with()
    await newer_file(harness, tablet, "a")
    before = (await tablet_of(harness, tablet)).files["a"]
    after = file("a", b"a", b"az", rows=9, added_at_s=before.added_at_s)
    applied(await harness.apply(CorrectFile(tablet=tablet, before=before, after=after)))
    assert (await tablet_of(harness, tablet)).files["a"].rows == 9
    assert await tail(harness, TabletKeys.of(tablet).files, "a") == NEWER


async def test_a_request_moves_on(harness: Harness) -> None:
    table = await harness.table()
    key = TableKeys(table.id).request("r1")
    await submitted(harness, table.id)
    selector, *others = unpack(key, await stored(harness, key, VALUE))
    row = (extended(_SELECTOR, selector), *others)
    await put(harness, extended(REQUEST, row), key, VALUE)
    part = KeyRange(b"c", b"d")
    applied(await harness.apply(CancelRange(table=table.id, request="r1", range=part)))
    found = await harness.store.request(table.id, "r1")
    assert found is not None
    assert found.cancelled_ranges == (part,)
    assert await tail(harness, key, VALUE) == NEWER
    selector = unpack(key, await stored(harness, key, VALUE))[0]
    assert selector[-len(NEWER) :] == NEWER


async def test_settings_and_schema_are_changed(harness: Harness) -> None:
    table = await harness.table()
    key = TableKeys(table.id).table
    newer = {"newer": 7, "deep": {"a": (1, None)}}
    spec = unpack(key, await stored(harness, key, SPEC))
    column = (*spec["schema"][0], 0, "newer")
    spec |= newer | {"schema": (column, *spec["schema"][1:])}
    await harness.write(hset(key, {SPEC: pack(spec), SETTINGS: pack({"ratio": 4.0} | newer)}))
    assert await harness.store.table(table.id) == replace(table, settings=TableSettings(ratio=4.0))
    wanted = TableSettings(ratio=2.0)
    change = ChangeTable(table=table.id, settings_version=1, settings=wanted)
    applied(await harness.apply(change))
    assert unpack(key, await stored(harness, key, SETTINGS)) == {"ratio": 2.0} | newer
    found = await harness.store.table(table.id)
    assert found is not None
    assert found.settings == wanted
    grown = (*found.schema, Column("price", "double", True, 1))
    applied(await harness.apply(ChangeTable(table=table.id, settings_version=2, schema=grown)))
    written = unpack(key, await stored(harness, key, SPEC))
    assert {name: written[name] for name in newer} == newer
    assert written["schema"] == (column, *spec["schema"][1:], ("price", "double", True, 1))


async def test_garbage_is_stamped_and_a_pin_renewed(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    keys = TableKeys(tablet.table)
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    applied(await harness.apply(commit(tablet, "t1")))
    await extend(harness, GARBAGE, keys.garbage, "a")
    applied(await harness.apply(StampGarbage(table=tablet.table, paths=("a",))))
    assert await tail(harness, keys.garbage, "a") == NEWER
    applied(await harness.apply(KeepGarbage(table=tablet.table, path="a")))
    assert await tail(harness, keys.garbage, "a") == NEWER
    pin = PinFiles(table=tablet.table, pin="p1", lease_s=60.0)
    applied(await harness.apply(pin))
    await extend(harness, PIN, keys.pins, "p1")
    applied(await harness.apply(pin))
    assert await tail(harness, keys.pins, "p1") == NEWER


@pytest.mark.parametrize("part", ["files", "running", "selection"])
async def test_a_newer_version_is_quarantined(harness: Harness, part: str) -> None:
    tablet = await harness.tablet_with("a", "b")
    keys = TabletKeys.of(tablet)
    await submitted(harness, tablet.table)
    applied(await harness.apply(select(tablet, "a")))
    applied(await harness.apply(reserve(tablet, "t1", "b")))
    key = getattr(keys, part)
    field = {"files": "a", "running": "t1"}.get(part, "")
    value = b"\x02" + (await stored(harness, key, field))[1:]
    await harness.write(hset(key, {field: value}) if field else set_string(key, value))
    with pytest.raises(MetadataError, match="has format version 2, this release reads 1"):
        await harness.store.tablet(tablet)
    (found,) = await harness.store.readable([tablet])
    assert isinstance(found, UnreadableTablet)
    assert "format version 2" in found.cause
