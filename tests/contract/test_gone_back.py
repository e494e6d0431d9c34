"""A store that has gone back in time: what changes require, what a reader's pin is then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.metadata.changes import (
    AcceptGeneration,
    AddFiles,
    BeginOperation,
    BumpGeneration,
    CancelHere,
    Change,
    ClaimCoordination,
    DiscardFiles,
    DropTable,
    EndReservation,
    ForgetFiles,
    PinFiles,
    PublishManifest,
    StampGarbage,
    SubmitRequest,
)
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.store_values import AcceptedLoss
from common.model.request import Request, RequestState
from common.model.tablet import OperationKind, TabletId
from common.runtime import call_id
from tests.support.requests import move, submitted, wait
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


async def generation(harness: Harness, table: str, number: int) -> None:
    for _ in range(number):
        applied(await harness.apply(BumpGeneration(table=table)))


def _guarded(tablet: TabletId, call: str) -> dict[str, Change]:
    """Return one change of each kind, all of them possible now."""
    table = tablet.table
    return {
        "add": AddFiles(table=table, call=call, files={tablet.end: (file("new"),)}),
        "reserve": reserve(tablet, "t2", "b"),
        "release": release(tablet, "t1"),
        "discard": DiscardFiles(tablet=tablet, files={"_neve/x": None}),
        "forget": ForgetFiles(tablet=tablet, paths=("b",)),
        "submit": SubmitRequest(request=Request(id="r2", table=table)),
        "cancel": CancelHere(tablet=tablet, request="r1"),
        "publish": PublishManifest(table=table, number=1, path="m", begun_s=1.0),
        "stamp": StampGarbage(table=table, paths=("waste",)),
        "split": BeginOperation(
            kind=OperationKind.SPLIT, tablets=(tablet,), operation="op", at=b"c"
        ),
    }


async def test_a_generation_is_not_counted_up_long_after_the_look(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    now_s = await harness.store.now_s()
    late = BumpGeneration(table=tablet.table, until_s=now_s - 0.001)
    refused(await harness.apply(late), "generation")
    applied(await harness.apply(replace(late, until_s=now_s + 60.0)))


@pytest.mark.parametrize("name", [*_guarded(TabletId("t", MIDDLE), "")])
async def test_a_change_requires_the_generation_that_was_seen(harness: Harness, name: str) -> None:
    tablet = await harness.tablet_with("a", "b")
    applied(await harness.apply(DiscardFiles(tablet=tablet, files={"waste": None})))
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    if name == "cancel":
        await submitted(harness, tablet.table)
        applied(await harness.apply(wait(tablet)))
        applied(await harness.apply(move(tablet.table, RequestState.CANCELLING)))
    await generation(harness, tablet.table, 2)
    change = _guarded(tablet, call_id(harness.clock))[name]
    keys = await harness.keys(tablet.table)

    gone_back = replace(change, generation=3)  # type: ignore[call-arg]  # all are guarded
    refused(await harness.apply(gone_back), "generation")
    assert await harness.keys(tablet.table) == keys
    applied(await harness.apply(replace(change, generation=2)))  # type: ignore[call-arg]  # as above


async def test_a_table_that_is_gone_is_told_as_such(harness: Harness) -> None:
    call = call_id(harness.clock)
    nowhere = AddFiles(table="none", call=call, files={MIDDLE: (file("a"),)}, generation=4)
    refused(await harness.apply(nowhere), "table")


async def test_attempts_that_end_without_a_commit_stay_in_the_history(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b", "c", "d")
    await submitted(harness, tablet.table)
    keys = TabletKeys.of(tablet)
    for attempt, path in (("t1", "a"), ("t2", "b"), ("t3", "c"), ("t4", "d")):
        applied(await harness.apply(reserve(tablet, attempt, path)))
    applied(await harness.apply(release(tablet, "t1")))
    applied(await harness.apply(commit(tablet, "t2")))
    entry = await harness.read(("HGET", keys.running, "t3"))
    applied(await harness.apply(release(tablet, "t3")))
    # As a store that went back shows it: ended, but reserved.
    await harness.write(("HSET", keys.running, "t3", entry))
    applied(await harness.apply(EndReservation(tablet=tablet, attempt="t3")))

    found = await harness.store.uncommitted(tablet.table)
    assert {each.attempt: each.inputs for each in found} == {"t1": ("a",), "t3": ("c",)}
    waste = ("out/t1-0.parquet", "out/t1-1.parquet")
    applied(
        await harness.apply(StampGarbage(table=tablet.table, paths=waste, settled=("t1", "none")))
    )
    assert [each.attempt for each in await harness.store.uncommitted(tablet.table)] == ["t3"]
    applied(await harness.apply(DropTable(table=tablet.table)))
    found = await harness.store.uncommitted(tablet.table)
    assert {each.attempt: each.inputs for each in found} == {"t3": ("c",), "t4": ("d",)}


async def test_the_time_of_lost_changes_is_remembered(harness: Harness) -> None:
    table = (await harness.table()).id
    applied(await harness.apply(AcceptGeneration(table=table, generation=3)))
    assert await harness.store.generation(table) == 3
    assert await harness.store.loss(table) is None
    tail = await harness.store.tail(table)
    done = applied(await harness.apply(AcceptGeneration(table=table, generation=5, lost=True)))
    found = await harness.store.loss(table)
    assert found is not None
    assert (found.since_s, found.until_s) == (0.0, pytest.approx(done.now_s))
    assert await harness.store.tail(table) != tail, "who waits for it hears of it"


async def test_a_table_has_one_loss_from_the_last_manifest_on_that_was_known(
    harness: Harness,
) -> None:
    table = (await harness.table()).id
    for number, begun_s in ((1, 1000.0), (2, 2000.0)):
        publish = PublishManifest(table=table, number=number, path=f"m{number}", begun_s=begun_s)
        applied(await harness.apply(publish))
        accept = AcceptGeneration(table=table, generation=number, lost=True)
        done = applied(await harness.apply(accept))
        found = await harness.store.loss(table)
        assert found == AcceptedLoss(since_s=1000.0, until_s=pytest.approx(done.now_s))


async def test_a_claim_is_later_than_the_one_that_it_replaces(harness: Harness) -> None:
    applied(await harness.apply(ClaimCoordination(coordinator="c1")))
    first = await harness.store.claim()
    applied(await harness.apply(ClaimCoordination(coordinator="c2")))
    second = await harness.store.claim()
    assert first is not None
    assert second is not None
    assert (first.coordinator, second.coordinator) == ("c1", "c2")
    assert second.since_s > first.since_s


async def test_the_claim_of_an_earlier_release_is_the_oldest(harness: Harness) -> None:
    await harness.write(("SET", "neve:coordinator", "coord-1"))
    found = await harness.store.claim()
    assert found is not None
    assert (found.coordinator, found.since_s) == ("coord-1", 0.0)
    applied(await harness.apply(ClaimCoordination(coordinator="coord-2")))
    found = await harness.store.claim()
    assert found is not None
    assert found.coordinator == "coord-2"


async def test_a_pin_that_the_store_has_forgotten_is_not_renewed(harness: Harness) -> None:
    table = (await harness.table()).id
    renewal = PinFiles(table=table, pin="p1", lease_s=60.0, renews=True)
    refused(await harness.apply(renewal), "pin")
    assert await harness.store.pins(table) == []
    applied(await harness.apply(replace(renewal, renews=False)))
    (begun,) = await harness.store.pins(table)
    await harness.pass_time(0.01)
    applied(await harness.apply(renewal))
    (renewed,) = await harness.store.pins(table)
    assert renewed.since_s == begun.since_s
    assert renewed.until_s > begun.until_s
    await harness.write(("DEL", TableKeys(table).pins))
    refused(await harness.apply(renewal), "pin")
