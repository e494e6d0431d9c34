"""Create, change and drop tables; the store's own id."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest

from common.errors import MetadataError
from common.metadata.changes import (
    Applied,
    BumpGeneration,
    ChangeTable,
    CreateTable,
    DropTable,
    ForgetGarbage,
    PinFiles,
    PublishManifest,
    WriteAnalysis,
)
from common.metadata.changes.tables import TABLETS_AT_ONCE
from common.metadata.changes.upkeep import MANIFESTS_MAX
from common.metadata.codec.layout import pack
from common.metadata.keys import STORE, TABLES, TableKeys
from common.metadata.keyspace import hset
from common.metadata.store_values import Manifest
from common.model.location_identity import DELETED_WITH_TABLE, LocationIdentity, identity_of_uri
from common.model.table import Column, Table, TableSettings, TableState
from common.model.tablet import PLUS_INFINITY, Analysis, Bounds, TabletId
from tests.support.flaky import Fault, Point
from tests.support.store_harness import (
    MIDDLE,
    Harness,
    applied,
    commit,
    file,
    refused,
    release,
    reserve,
)

pytestmark = pytest.mark.anyio


async def test_a_table_with_its_tablets(harness: Harness) -> None:
    table = await harness.table(splits=(b"g", MIDDLE), settings=TableSettings(ratio=2.0))
    assert await harness.store.table(table.id) == table
    assert await harness.store.table_named(table.name) == table
    assert await harness.store.tables() == [table]
    assert await harness.store.names() == {table.name: table.id}
    assert await harness.store.table_ids() == [table.id]
    ids = await harness.store.tablet_ids(table.id)
    assert [id_.end for id_ in ids] == [b"g", MIDDLE, PLUS_INFINITY]
    bounds = [tablet.bounds for tablet in await harness.store.tablets(ids) if tablet]
    assert bounds == [Bounds(None, b"g"), Bounds(b"g", MIDDLE), Bounds(MIDDLE, PLUS_INFINITY)]
    assert await harness.store.table("tbl-none") is None
    assert await harness.store.table_named("none") is None


async def test_a_repeat_with_the_same_id_changes_nothing(harness: Harness) -> None:
    table = await harness.table()
    tablet = TabletId(table.id, MIDDLE)
    applied(await harness.add(tablet, file("a")))
    applied(await harness.apply(CreateTable(table=table, splits=(MIDDLE,))))
    found = await harness.store.tablet(tablet)
    assert found is not None
    assert sorted(found.files) == ["a"]
    other = replace(table, location="file:///elsewhere")
    refused(await harness.apply(CreateTable(table=other)), "exists")


@pytest.mark.parametrize(
    ("location", "code"),
    [
        ("file:///data/x", "exists"),
        ("file:///data", "location"),
        ("file:///data/t/sub", "location"),
        ("file:///data/t", "location"),
        ("file:///data/t/", "location"),
        ("file:///data/table", ""),
    ],
)
async def test_names_and_locations_are_taken_once(
    harness: Harness, location: str, code: str
) -> None:
    first = await harness.table(name="t", location="file:///data/t")
    name = "t" if code == "exists" else "other"
    table = harness.new_table(name=name, location=location)
    outcome = await harness.apply(CreateTable(table=table))
    if not code:
        applied(outcome)
        return
    refused(outcome, code)
    assert await harness.keys(table.id) == []
    assert await harness.store.tables() == [first]


async def test_an_imported_table_begins_paused(harness: Harness) -> None:
    table = await harness.table(state=TableState.PAUSED)
    found = await harness.store.table(table.id)
    assert found is not None
    assert found.state is TableState.PAUSED


async def test_of_two_creators_of_one_name_one_wins_and_the_other_leaves_nothing(
    harness: Harness,
) -> None:
    tables = [harness.new_table(name="t", location=f"file:///data/{n}") for n in range(4)]
    stores = [harness.another() for _ in tables]
    outcomes = await asyncio.gather(
        *(
            store.apply(CreateTable(table=table))
            for store, table in zip(stores, tables, strict=True)
        )
    )
    winners = [
        table for table, each in zip(tables, outcomes, strict=True) if isinstance(each, Applied)
    ]
    assert await harness.store.tables() == winners
    for table in tables:
        assert bool(await harness.keys(table.id)) == (table in winners)


@pytest.mark.parametrize("look", [2, 3])
async def test_a_name_taken_while_a_table_is_made(harness: Harness, look: int) -> None:
    """Look 2 watches the names; 3 is when the table goes live, which is too late to take it."""
    store, keyspace = harness.flaky()
    await store.store_id()
    slow = harness.new_table(name="t", location="file:///data/1")
    fast = harness.new_table(name="t", location="file:///data/2")
    looks = [0]

    async def script(point: Point) -> Fault:
        looks[0] += point is Point.LOOKED
        if point is Point.LOOKED and looks[0] == look:
            outcome = await harness.apply(CreateTable(table=fast))
            assert isinstance(outcome, Applied) is (look == 2)
        return Fault.NONE

    keyspace.script = script
    outcome = await store.apply(CreateTable(table=slow))
    if look == 2:
        assert not refused(outcome, "exists").sent
    winner, loser = (fast, slow) if look == 2 else (slow, fast)
    assert await harness.store.tables() == [winner]
    assert await harness.keys(loser.id) == []


ENDS = tuple(number.to_bytes(2, "big") for number in range(1, 3 * TABLETS_AT_ONCE))


@pytest.mark.parametrize("fault", [Fault.NONE, Fault.LOST, Fault.APPLIED, Fault.LATE])
@pytest.mark.parametrize("splits", [TABLETS_AT_ONCE - 1, TABLETS_AT_ONCE, len(ENDS)])
async def test_no_transaction_creates_many_tablets(
    harness: Harness, splits: int, fault: Fault
) -> None:
    """Every write is tried twice if its connection fails, and a late one arrives after all."""
    store, keyspace = harness.flaky()
    await store.store_id()
    table = harness.new_table()
    counts, writes = [0], 0

    async def script(point: Point) -> Fault:
        nonlocal writes
        if point is not Point.EXEC:
            return Fault.NONE
        counts.append(len(await harness.store.tablet_ids(table.id, count=10_000)))
        writes += 1
        return fault if writes % 2 else Fault.NONE

    keyspace.script = script
    applied(await store.apply(CreateTable(table=table, splits=ENDS[:splits])))
    assert not any(await keyspace.deliver())
    ids = await harness.store.tablet_ids(table.id, count=10_000)
    assert [tablet.end for tablet in ids] == [*ENDS[:splits], PLUS_INFINITY]
    bounds = [tablet.bounds for tablet in await harness.store.tablets(ids) if tablet]
    starts = [None, *ENDS[:splits]]
    assert bounds == [Bounds(*each) for each in zip(starts, [id_.end for id_ in ids], strict=True)]
    grown = [after - before for before, after in pairwise([*counts, len(ids)])]
    assert max(grown) <= TABLETS_AT_ONCE, grown
    assert sum(bool(count) for count in grown) == -(-len(ids) // TABLETS_AT_ONCE)


async def test_a_creation_that_another_try_of_it_overtakes_ends_well(harness: Harness) -> None:
    store, keyspace = harness.flaky()
    await store.store_id()
    table, seen = harness.new_table(), 0

    async def script(point: Point) -> Fault:
        nonlocal seen
        seen += point is Point.EXEC
        if point is Point.EXEC and seen == 2:
            applied(await harness.apply(CreateTable(table=table, splits=ENDS)))
        return Fault.NONE

    keyspace.script = script
    applied(await store.apply(CreateTable(table=table, splits=ENDS)))
    assert [found.id for found in await harness.store.tables()] == [table.id]
    assert len(await harness.store.tablet_ids(table.id, count=10_000)) == len(ENDS) + 1


@pytest.mark.parametrize("writes", [1, 2, 3, 4])
async def test_a_table_that_is_dropped_between_its_tablets_leaves_nothing(
    harness: Harness, writes: int
) -> None:
    store, keyspace = harness.flaky()
    await store.store_id()
    table, seen = harness.new_table(), 0

    async def script(point: Point) -> Fault:
        nonlocal seen
        seen += point is Point.EXEC
        if point is Point.EXEC and seen == writes + 1:
            applied(await harness.apply(DropTable(table=table.id, unfinished=True)))
        return Fault.NONE

    keyspace.script = script
    refused(await store.apply(CreateTable(table=table, splits=ENDS)), "table")
    assert await harness.keys(table.id) == []
    assert await harness.store.names() == {}


async def test_settings_are_versioned(harness: Harness) -> None:
    table = await harness.table()
    change = ChangeTable(table=table.id, settings_version=1, settings=TableSettings(ratio=2.0))
    applied(await harness.apply(change))
    applied(await harness.apply(change))  # The mark: these settings are there.
    found = await harness.store.table(table.id)
    assert found is not None
    assert (found.settings.ratio, found.settings_version) == (2.0, 2)
    late = ChangeTable(table=table.id, settings_version=1, settings=TableSettings(ratio=4.0))
    refused(await harness.apply(late), "version")
    pause = ChangeTable(table=table.id, settings_version=2, state=TableState.PAUSED)
    applied(await harness.apply(pause))
    found = await harness.store.table(table.id)
    assert found is not None
    assert (found.state, found.settings_version) == (TableState.PAUSED, 2)
    refused(await harness.apply(replace(pause, table="tbl-none")), "table")


async def garbage_emptied(harness: Harness, table: Table) -> list[str]:
    """Forget all garbage of a table; return the paths."""
    paths = [entry.path for entry in await harness.store.garbage(table.id)]
    for path in paths:
        applied(await harness.apply(ForgetGarbage(table=table.id, paths=(path,))))
    return paths


@pytest.mark.parametrize("delete_files", [False, True])
async def test_a_dropped_table_leaves_no_key(harness: Harness, delete_files: bool) -> None:
    table = await harness.table()
    tablet = TabletId(table.id, MIDDLE)
    applied(await harness.add(tablet, file("a"), file("b"), file("c")))
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    applied(await harness.apply(PinFiles(table=table.id, pin="p", lease_s=60)))
    applied(await harness.apply(BumpGeneration(table=table.id)))

    going = applied(await harness.apply(DropTable(table=table.id, delete_files=delete_files)))
    assert not going.complete
    found = await harness.store.table_named(table.name)
    assert found is not None
    assert found.state is TableState.GOING
    assert await harness.store.tablet_ids(table.id) == []
    taken = harness.new_table(location=table.location)
    refused(await harness.apply(CreateTable(table=taken)), "location")
    refused(await harness.apply(commit(tablet, "t1")), "released")
    refused(await harness.apply(release(tablet, "t1")), "released")
    refused(await harness.add(tablet, file("d")), "table")
    refused(await harness.apply(PinFiles(table=table.id, pin="q", lease_s=60)), "table")

    paths = await garbage_emptied(harness, table)
    outputs = ["out/t1-0.parquet", "out/t1-1.parquet"]
    own = list(DELETED_WITH_TABLE)
    assert sorted(paths) == sorted(["a", "b", "c", *outputs, *own] if delete_files else outputs)
    assert applied(await harness.apply(DropTable(table=table.id))).complete
    assert await harness.keys(table.id) == []
    assert await harness.store.names() == {}
    assert applied(await harness.apply(DropTable(table=table.id))).complete
    analysis = WriteAnalysis(tablet=tablet, analysis=Analysis.EMPTY, version=1, settings_version=1)
    refused(await harness.apply(analysis), "table")
    assert await harness.keys(table.id) == []
    applied(await harness.apply(CreateTable(table=taken)))


async def test_anybody_goes_on_with_a_drop(harness: Harness) -> None:
    table = await harness.table(splits=tuple(bytes([n]) for n in range(1, 20)))
    await asyncio.gather(*(harness.another().apply(DropTable(table=table.id)) for _ in range(3)))
    assert await harness.keys(table.id) == []
    assert await harness.store.names() == {}


async def test_a_drop_remembers_what_was_asked_first(harness: Harness) -> None:
    table = await harness.table()
    tablet = TabletId(table.id, MIDDLE)
    applied(await harness.add(tablet, file("a")))
    state = {"state": "going", "deletes": 1}  # As if its first step alone had been made.
    await harness.write(hset(TableKeys(table.id).table, state))
    applied(await harness.apply(DropTable(table=table.id)))
    assert await garbage_emptied(harness, table) == ["a"]


async def test_an_analysis_is_written_only_for_the_version_that_was_read(harness: Harness) -> None:
    table = await harness.table()
    tablet = TabletId(table.id, MIDDLE)
    applied(await harness.add(tablet, file("a")))
    (record,) = await harness.store.records([tablet])
    assert record is not None
    note = WriteAnalysis(
        tablet=tablet,
        analysis=Analysis.STABLE,
        version=record.version,
        settings_version=1,
        settled=((1.5, b"v1"), (2.5, b"v2")),
    )
    applied(await harness.apply(note))
    (noted,) = await harness.store.records([tablet])
    assert noted == replace(
        record,
        analysis=Analysis.STABLE,
        analysis_version=record.version,
        analysis_settings=1,
        settled=((1.5, b"v1"), (2.5, b"v2")),
    )
    refused(await harness.apply(replace(note, version=record.version - 1)), "version")
    refused(await harness.apply(replace(note, tablet=TabletId(table.id, b"q"))), "tablet")

    assert await harness.store.generation(table.id) == 0
    assert applied(await harness.apply(BumpGeneration(table=table.id))).generation == 1
    assert applied(await harness.apply(BumpGeneration(table=table.id))).generation == 2
    assert await harness.store.generation(table.id) == 2

    assert await harness.store.manifest(table.id) is None
    publish = PublishManifest(table=table.id, number=3, path="m/3", begun_s=1.0)
    applied(await harness.apply(publish))
    applied(await harness.apply(publish))
    first = await harness.store.manifest(table.id)
    assert first is not None
    assert first == Manifest(number=3, path="m/3", begun_s=1.0, published_s=first.published_s)
    assert abs(first.published_s - await harness.store.now_s()) < 60
    refused(await harness.apply(replace(publish, path="m/x")), "version")


async def test_earlier_manifests_are_remembered_until_they_are_deleted(harness: Harness) -> None:
    table = await harness.table()

    async def publish(number: int, *deleted: str) -> Manifest:
        change = PublishManifest(
            table=table.id, number=number, path=f"m/{number}", begun_s=number, deleted=deleted
        )
        applied(await harness.apply(change))
        applied(await harness.apply(change))
        found = await harness.store.manifest(table.id)
        assert found is not None
        return found

    one, two = await publish(1), await publish(2)
    three = await publish(3, "m/1")
    assert (one.earlier, two.earlier) == ((), ((1, "m/1", 1, one.published_s),))
    assert three.earlier == ((2, "m/2", 2, two.published_s),)
    assert three.outdated(three.published_s + 9, 10) == ()
    assert three.outdated(three.published_s + 10, 10) == ("m/2",)
    assert three.covered_s(two.published_s + 9, 10) is None
    later_s = max(three.published_s, two.published_s) + 10
    assert three.covered_s(later_s, 10) == 3
    for number in range(4, MANIFESTS_MAX + 3):
        await publish(number)
    full = PublishManifest(table=table.id, number=99, path="m/99", begun_s=99.0)
    refused(await harness.apply(full), "manifests")
    refused(await harness.apply(replace(full, table="none")), "table")


async def test_a_store_has_one_id(harness: Harness) -> None:
    ids = await asyncio.gather(*(harness.another().store_id() for _ in range(4)))
    assert len(set(ids)) == 1
    await harness.write(hset(STORE, {"format": 9}))
    with pytest.raises(MetadataError, match=r"neve:store: the store has format 9"):
        await harness.another().apply(DropTable(table="tbl-1"))


async def test_a_schema_grows_and_counts_as_another_version_of_the_settings(
    harness: Harness,
) -> None:
    table = await harness.table()
    grown = (*table.schema, Column("price", "double", True, 1))
    change = ChangeTable(table=table.id, settings_version=1, schema=grown)
    applied(await harness.apply(change))
    seen = await harness.store.table(table.id)
    assert seen is not None
    assert (seen.schema, seen.schema_id, seen.settings_version) == (grown, 1, 2)
    assert (seen.settings, seen.key, seen.location) == (table.settings, table.key, table.location)
    applied(await harness.apply(change))  # The same again is done already.
    other = ChangeTable(table=table.id, settings_version=1, schema=table.schema)
    refused(await harness.apply(other), "version")
    assert await harness.store.table(table.id) == seen


BOUND = LocationIdentity(("file:/mnt/t", "mount 8:1:/data/t"), ("inode 8:1:2:/mnt/t",))


async def test_two_tables_do_not_share_files_by_other_names(harness: Harness) -> None:
    first = harness.new_table(name="t", location="file:///data/t")
    own = LocationIdentity(("file:/data/t", "mount 8:1:/data/t"))
    applied(await harness.apply(CreateTable(table=first, identity=own)))
    bound = harness.new_table(name="u", location="file:///mnt/t")
    outcome = await harness.apply(CreateTable(table=bound, identity=BOUND))
    refused(outcome, "location")
    assert "overlaps file:///data/t of table 't'" in outcome.reason
    assert await harness.keys(bound.id) == [], "it left nothing behind"
    [named] = await harness.store.named_tables()
    assert (named.name, named.id, named.location, named.identity) == (
        "t",
        first.id,
        "file:///data/t",
        own,
    )


async def test_a_given_location_of_another_table_overrides_the_stored_one(
    harness: Harness,
) -> None:
    first = harness.new_table(location="file:///data/t")
    applied(await harness.apply(CreateTable(table=first, identity=BOUND)))
    table = harness.new_table(location="file:///data/u")
    moved = {first.id: LocationIdentity(("file:/elsewhere",))}
    own = LocationIdentity(("file:/data/u", "mount 8:1:/data/t"))
    refused(await harness.apply(CreateTable(table=table, identity=own)), "location")
    applied(await harness.apply(CreateTable(table=table, identity=own, others=moved)))


async def test_an_entry_of_an_earlier_release_counts_by_its_uri(harness: Harness) -> None:
    table = await harness.table(location="s3://lake/t")
    await harness.write(hset(TABLES, {table.name: pack([table.id, table.location])}))
    [named] = await harness.store.named_tables()
    assert named.identity == identity_of_uri("s3://lake/t")
    other = harness.new_table(location="s3a://Lake/t/x")
    refused(await harness.apply(CreateTable(table=other)), "location")
    assert await harness.store.table_named(table.name) == table
    applied(await harness.apply(DropTable(table=table.id)))


@pytest.mark.parametrize(
    "entry", [["t"], ["t", 1], ["t", "x", ["y", 1]], ["t", "x", []], ["t", "x", 1]]
)
async def test_an_entry_that_is_none_is_said(harness: Harness, entry: list[object]) -> None:
    await harness.write(hset(TABLES, {"t": pack(entry)}))
    with pytest.raises(MetadataError, match="neve:tables b't'"):
        await harness.store.named_tables()


@pytest.mark.parametrize("name", ["a/b", "", "A", "x" * 64, "..", "a\nb"])
async def test_a_name_that_no_door_lets_in_is_refused(harness: Harness, name: str) -> None:
    table = harness.new_table(name=name)
    refused(await harness.apply(CreateTable(table=table)), "name")
    assert await harness.keys(table.id) == []


async def test_a_table_begins_above_the_generation_that_lies_there(harness: Harness) -> None:
    table = harness.new_table()
    applied(await harness.apply(CreateTable(table=table, generation=7)))
    assert await harness.store.generation(table.id) == 7
    applied(await harness.apply(BumpGeneration(table=table.id)))
    assert await harness.store.generation(table.id) == 8
