"""What every change watches: exactly the protocol's table, for a wider watch starves somebody."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from common.metadata import changes as asked
from common.metadata import changes as on
from common.metadata import changes as repair
from common.metadata import changes as upkeep
from common.metadata.codec.tablet import RESERVATION
from common.metadata.mutation import transaction_for
from common.metadata.mutation.transaction import MADE, More, Seen, Transaction
from common.model.file import DataFile
from common.model.group import LimitScope
from common.model.job import Kind
from common.model.outcome import AttemptEnd, DroppedRows, RowCounts
from common.model.request import KeyRange, Request, RequestState
from common.model.table import Table
from common.model.tablet import Analysis, OperationKind, OperationStep, Reservation, TabletId

T = TabletId("t1", b"m")
FILE = DataFile(path="f", size_bytes=1, rows=1)
PREFIX = "neve:{t1}:"
TABLET = PREFIX + "tablet:6d:"
RESERVE = on.ReserveFiles(
    tablet=T,
    attempt="a1",
    job="j",
    kind=Kind.SYSTEM,
    inputs=("f",),
    output_prefix="o",
    outputs_max=1,
    group="g",
    compactor="c",
)
COMMIT = on.CommitAttempt(tablet=T, attempt="a1", outputs=(), counts=RowCounts())
DROPPED = DroppedRows(spans=((b"a", b"b"),), version_max=b"5")

EVERYTHING = ("bounds", "operation", "running", "files", "selection", "waiting", "done", "purge")
WATCHES: list[tuple[on.Change, str]] = [
    (RESERVE, "table operation running selection waiting"),
    (
        replace(RESERVE, kind=Kind.USER, request="r1"),
        "table operation running selection",
    ),
    (COMMIT, "running"),
    (replace(COMMIT, inputs=("f",)), "running"),
    (replace(COMMIT, dropped=DROPPED), "running files purge"),
    (
        on.ReleaseAttempt(tablet=T, attempt="a1", end=AttemptEnd.LOST, cause="", coordinator="c"),
        "running",
    ),
    (on.DropHold(tablet=T), "running selection"),
    (
        on.AddFiles(table="t1", call="c1", files={b"m": ()}),
        "table call:c1 bounds operation files purge",
    ),
    (
        upkeep.WriteAnalysis(tablet=T, analysis=Analysis.EMPTY, version=1, settings_version=1),
        "table bounds",
    ),
    (
        upkeep.WriteAnalyses(
            table="t1",
            notes=(
                upkeep.WriteAnalysis(
                    tablet=T, analysis=Analysis.EMPTY, version=1, settings_version=1
                ),
            ),
        ),
        "table bounds",
    ),
    (on.CreateTable(table=Table(id="t1", name="n", location="l", schema=())), "table"),
    (on.ChangeTable(table="t1", settings_version=1), "table"),
    (on.DropTable(table="t1"), "table"),
    (upkeep.StampGarbage(table="t1", paths=("p",)), "garbage"),
    (upkeep.KeepGarbage(table="t1", path="p"), "garbage"),
    (upkeep.ForgetGarbage(table="t1", paths=("p",)), ""),
    (upkeep.PinFiles(table="t1", pin="p", lease_s=1), "table pins"),
    (upkeep.UnpinFiles(table="t1", pin="p"), "pins"),
    (upkeep.BumpGeneration(table="t1"), "table generation"),
    (upkeep.PublishManifest(table="t1", number=1, path="p", begun_s=0), "table manifest"),
    (asked.SubmitRequest(request=Request(id="r1", table="t1")), "table request:r1"),
    (
        asked.SubmitRequest(request=Request(id="r1", table="t1"), call="c1"),
        "table request:r1 call:c1",
    ),
    (
        asked.MarkWaiting(tablet=T, request="r1"),
        "table request:r1 operation selection done waiting",
    ),
    (
        asked.SelectFiles(tablet=T, request="r1", chosen=(), shown=()),
        "table request:r1 operation running selection done waiting",
    ),
    (asked.CompleteHere(tablet=T, request="r1", files=()), "running selection"),
    (
        asked.CancelHere(tablet=T, request="r1"),
        "request:r1 operation running selection waiting done",
    ),
    (asked.FinishHere(tablet=T, request="r1"), "done"),
    *(
        (asked.MoveRequest(table="t1", request="r1", state=state), "table request:r1")
        for state in RequestState
        if state is not RequestState.ACTIVE
    ),
    (asked.CancelRange(table="t1", request="r1", range=KeyRange()), "table request:r1"),
    (asked.CloseRequest(table="t1", request="r1"), "table request:r1"),
    (
        asked.BeginOperation(kind=OperationKind.SPLIT, tablets=(T,), operation="op", at=b"c"),
        "table operation selection waiting done",
    ),
    (
        asked.StepOperation(tablets=(T,), operation="op", step=OperationStep.DRAIN),
        "table operation",
    ),
    (asked.EndOperation(tablets=(T,), operation="op"), "table operation running files bounds"),
    (asked.AbandonOperation(tablets=(T,), operation="op"), "table operation"),
    (repair.DiscardFiles(tablet=T, files={"f": None}), "table bounds files running"),
    (repair.ForgetFiles(tablet=T, paths=("f",)), "table running selection files"),
    (
        repair.CorrectFile(tablet=T, before=FILE, after=FILE),
        "table running selection files bounds operation files purge",
    ),
    (
        repair.MoveFile(tablet=T, target=T, path="f"),
        "table running selection files operation bounds operation files purge",
    ),
    (repair.RescueFile(tablet=T, path="f"), "files garbage"),
    (
        repair.RecountRecord(tablet=T),
        "table bounds files running selection waiting done operation purge",
    ),
    (repair.EndReservation(tablet=T, attempt="a1"), "running"),
    (
        repair.ClearMarks(tablet=T, requests=("r1",)),
        "table selection waiting done request:r1",
    ),
    (repair.FillHole(tablet=T, start=None), "table bounds index"),
    (
        repair.DropDuplicate(tablet=T, holder=TabletId("t1", b"z"), path="f"),
        "table running selection files tablet:7a:bounds tablet:7a:files",
    ),
    (
        repair.TrimTablet(tablet=T, before=None, start=b"c"),
        "table bounds files operation tablet:63:bounds",
    ),
    (
        repair.JoinTablets(left=T, right=TabletId("t1", b"z")),
        " ".join(["table", *EVERYTHING, *(f"tablet:7a:{each}" for each in EVERYTHING)]),
    ),
    (repair.RestoreFiles(tablet=T, files=()), "table bounds operation files purge files"),
    (repair.AcceptGeneration(table="t1", generation=1), "table generation loss manifest"),
    (repair.LowerWatermark(tablet=T, to=None), "table bounds purge"),
]
OF_THE_TABLE = {
    "call:c1",
    "garbage",
    "generation",
    "index",
    "loss",
    "manifest",
    "pins",
    "request:r1",
    "table",
}


LIMIT = upkeep.SetLimit(scope=LimitScope.parse("group:g"), bytes_s=0)


@pytest.mark.parametrize(("change", "words"), WATCHES, ids=lambda each: type(each).__name__)
def test_each_change_watches_only_what_it_requires(change: on.Change, words: str) -> None:
    watched = sorted(transaction_for(change).needs.watch)
    others = OF_THE_TABLE | {word for word in words.split() if word.startswith("tablet:")}
    wanted = [(PREFIX if word in others else TABLET) + word for word in words.split()]
    assert watched == sorted(wanted)


def test_to_require_a_generation_watches_no_more() -> None:
    """While a connection lives its server does not go back; the counter never rests."""
    for change, _ in WATCHES:
        if isinstance(change, upkeep.Guarded):
            needs = transaction_for(replace(change, generation=7)).needs
            assert needs.watch == transaction_for(change).needs.watch
            assert ("GET", PREFIX + "generation") in needs.reads.values()


def test_the_coordinator_s_id_and_limits_live_outside_all_tables() -> None:
    needs = transaction_for(upkeep.ClaimCoordination(coordinator="c")).needs
    assert needs.watch == ("neve:coordinator",)
    assert transaction_for(LIMIT).needs.watch == ("neve:limits",)


def test_a_commit_that_looks_for_its_inputs_watches_no_more() -> None:
    entry = Reservation(
        attempt="a1",
        job="j",
        kind=Kind.SYSTEM,
        inputs=("f",),
        output_prefix="o",
        outputs_max=1,
        group="g",
        compactor="c",
        since_s=0,
        now_s=0,
    )
    replies = {"entry": RESERVATION.pack(entry), "outcome": None, "selection": None, "purge": None}
    more = transaction_for(COMMIT).decide(Seen(replies, 1.0))
    assert isinstance(more, More)
    assert more.needs.watch == ()
    assert more.needs.reads == {"some": ("HMGET", TABLET + "files", "f")}


def test_every_change_has_a_transaction() -> None:
    tried = {type(change) for change, _ in WATCHES} | {upkeep.ClaimCoordination, upkeep.SetLimit}
    assert tried == {*get_args(on.Change)}
    assert all(isinstance(transaction_for(change), Transaction) for change, _ in WATCHES)
    assert on.Applied() == MADE
