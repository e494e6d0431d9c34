"""What every change watches: exactly the protocol's table, for a wider watch starves somebody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from common.metadata import changes
from common.metadata.changes import transaction_for
from common.metadata.changes.protocol import MADE, More, Seen, Transaction, transaction_of
from common.metadata.codec.tablet import RESERVATION
from common.model.file import DataFile, MirroredFiles
from common.model.group import LimitScope
from common.model.job import Kind
from common.model.outcome import AttemptEnd, DroppedRows, RowCounts
from common.model.request import KeyRange, Request, RequestState
from common.model.table import Table, TableState
from common.model.tablet import Analysis, OperationKind, OperationStep, Reservation, TabletId

T = TabletId("t1", b"m")
FILE = DataFile(path="f", size_bytes=1, rows=1)
PREFIX = "neve:{t1}:"
TABLET = PREFIX + "tablet:6d:"
RESERVE = changes.ReserveFiles(
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
COMMIT = changes.CommitAttempt(tablet=T, attempt="a1", outputs=(), counts=RowCounts())
DROPPED = DroppedRows(spans=((b"a", b"b"),), version_max=b"5")


def append_rows(spans: Mapping[bytes, changes.RowSpan] = {}) -> changes.AppendRows:
    """Return a call that buffers rows."""
    return changes.AppendRows(
        table="t1",
        call="c1",
        content="",
        message=b"",
        rows=1,
        size_bytes=1,
        schema_id=0,
        schema=b"",
        spans=spans,
        flush="c2",
        segment_bytes_max=1,
        table_bytes_max=1,
    )


EVERYTHING = ("bounds", "operation", "running", "files", "selection", "waiting", "done", "purge")
WATCHES: list[tuple[changes.Change, str]] = [
    (RESERVE, "table operation running selection waiting"),
    (
        replace(RESERVE, kind=Kind.USER, request="r1"),
        "table operation running selection",
    ),
    (COMMIT, "running"),
    (replace(COMMIT, inputs=("f",)), "running"),
    (replace(COMMIT, dropped=DROPPED), "running files purge rows"),
    (changes.RetagFiles(tablet=T, attempt="a1", tags=(), inputs=("f",)), "running"),
    (
        changes.ReleaseAttempt(
            tablet=T, attempt="a1", end=AttemptEnd.LOST, cause="", coordinator="c"
        ),
        "running",
    ),
    (
        changes.MirrorFiles(
            table="t1", after="", token="m1", version=1, files={b"m": MirroredFiles()}
        ),
        "table mirror bounds files selection",
    ),
    (changes.NoteMirrorProblem(table="t1", problem="silent"), "table mirror"),
    (
        changes.MarkPublishing(tablet=T, attempt="a1", planned=1, base=1, outputs=("o",)),
        "running",
    ),
    (changes.EndLakeAttempt(tablet=T, attempt="a1", end=AttemptEnd.FAILED), "running"),
    (
        changes.EndLakeAttempt(tablet=T, attempt="a1", end=AttemptEnd.COMMITTED, version=2),
        "running mirror selection",
    ),
    (changes.ForgetOutputs(table="t1", paths=("o",), attempts=()), ""),
    (changes.DropHold(tablet=T), "running selection"),
    (
        changes.AddFiles(table="t1", call="c1", files={b"m": ()}),
        "table call:c1 bounds operation files purge",
    ),
    (
        changes.AddFiles(
            table="t1", call="c1", files={b"m": ()}, window=changes.Window(0.0, 1.0, 1)
        ),
        "table call:c1 bounds operation files purge running selection waiting rows",
    ),
    (
        changes.AddFiles(table="t1", call="c1", files={b"m": ()}, segment=7, segment_calls=1),
        "table call:c1 bounds operation files purge rows rows:7",
    ),
    (append_rows(), "table call:c1 rows"),
    (
        append_rows({b"m": changes.RowSpan(key_min=b"a", key_max=b"b")}),
        "table call:c1 rows bounds purge",
    ),
    (
        changes.AppendGroup(
            table="t1",
            calls=(
                append_rows(),
                replace(
                    append_rows({b"m": changes.RowSpan(key_min=b"a", key_max=b"b")}), call="c3"
                ),
            ),
        ),
        "table call:c1 call:c3 rows bounds purge",
    ),
    (changes.CloseSegment(table="t1", number=7), "rows"),
    (
        changes.WriteAnalysis(tablet=T, analysis=Analysis.EMPTY, version=1, settings_version=1),
        "table bounds",
    ),
    (
        changes.WriteAnalyses(
            table="t1",
            notes=(
                changes.WriteAnalysis(
                    tablet=T, analysis=Analysis.EMPTY, version=1, settings_version=1
                ),
            ),
        ),
        "table bounds",
    ),
    (changes.CreateTable(table=Table(id="t1", name="n", location="l", schema=())), "dropped table"),
    (changes.ChangeTable(table="t1", settings_version=1), "table"),
    (changes.TriggerTable(table="t1", trigger="admin"), "table"),
    (changes.DropTable(table="t1"), "table rows"),
    (changes.RestoreName(table="t1"), ""),
    (changes.StampGarbage(table="t1", paths=("p",)), "garbage"),
    (changes.KeepGarbage(table="t1", path="p"), "garbage"),
    (changes.ForgetGarbage(table="t1", paths=("p",)), ""),
    (changes.PinFiles(table="t1", pin="p", lease_s=1), "table pins"),
    (changes.UnpinFiles(table="t1", pin="p"), "pins"),
    (changes.BumpGeneration(table="t1"), "table generation"),
    (changes.PublishManifest(table="t1", number=1, path="p", begun_s=0), "table manifest"),
    (changes.SubmitRequest(request=Request(id="r1", table="t1")), "table request:r1"),
    (
        changes.SubmitRequest(request=Request(id="r1", table="t1"), call="c1"),
        "table request:r1 call:c1",
    ),
    (
        changes.MarkWaiting(tablet=T, request="r1"),
        "table request:r1 operation selection done waiting",
    ),
    (
        changes.SelectFiles(tablet=T, request="r1", chosen=(), shown=()),
        "table request:r1 operation running selection done waiting",
    ),
    (changes.CompleteHere(tablet=T, request="r1", files=()), "running selection"),
    (
        changes.CancelHere(tablet=T, request="r1"),
        "request:r1 operation running selection waiting done",
    ),
    (changes.FinishHere(tablet=T, request="r1"), "done"),
    *(
        (changes.MoveRequest(table="t1", request="r1", state=state), "table request:r1")
        for state in RequestState
        if state is not RequestState.ACTIVE
    ),
    (changes.CancelRange(table="t1", request="r1", range=KeyRange()), "table request:r1"),
    (changes.CloseRequest(table="t1", request="r1"), "table request:r1"),
    (
        changes.BeginOperation(kind=OperationKind.SPLIT, tablets=(T,), operation="op", at=b"c"),
        "table operation selection waiting done",
    ),
    (
        changes.StepOperation(tablets=(T,), operation="op", step=OperationStep.DRAIN),
        "table operation",
    ),
    (changes.EndOperation(tablets=(T,), operation="op"), "table operation running files bounds"),
    (changes.AbandonOperation(tablets=(T,), operation="op"), "table operation"),
    (changes.DiscardFiles(tablet=T, files={"f": None}), "table bounds files running"),
    (changes.ForgetFiles(tablet=T, paths=("f",)), "table running selection files"),
    (
        changes.CorrectFile(tablet=T, before=FILE, after=FILE),
        "table running selection files bounds operation files purge",
    ),
    (
        changes.MoveFile(tablet=T, target=T, path="f"),
        "table running selection files operation bounds operation files purge",
    ),
    (changes.RescueFile(tablet=T, path="f"), "files garbage"),
    (
        changes.RecountRecord(tablet=T),
        "table bounds files running selection waiting done operation purge",
    ),
    (changes.EndReservation(tablet=T, attempt="a1"), "running"),
    (
        changes.ClearMarks(tablet=T, requests=("r1",)),
        "table selection waiting done request:r1",
    ),
    (changes.FillHole(tablet=T, start=None), "table bounds index"),
    (
        changes.DropDuplicate(tablet=T, holder=TabletId("t1", b"z"), path="f"),
        "table running selection files tablet:7a:bounds tablet:7a:files",
    ),
    (
        changes.TrimTablet(tablet=T, before=None, start=b"c"),
        "table bounds files operation tablet:63:bounds",
    ),
    (
        changes.JoinTablets(left=T, right=TabletId("t1", b"z")),
        " ".join(["table", *EVERYTHING, *(f"tablet:7a:{each}" for each in EVERYTHING)]),
    ),
    (changes.ResumeFilling(table="t1", run="r", verb="import", files=0), "table"),
    (
        changes.FinishFilling(table="t1", run="r", files=0, state=TableState.LIVE),
        "table",
    ),
    (changes.RestoreFiles(tablet=T, files=(), run="r"), "table bounds operation files purge files"),
    (changes.AcceptGeneration(table="t1", generation=1), "table generation loss manifest rows"),
    (changes.LowerWatermark(tablet=T, to=None), "table bounds purge"),
    (
        changes.StoreDays(table="t1", before="0-0", sums=changes.DailySums(position="1-0")),
        "table days",
    ),
]
OF_THE_TABLE = {
    "call:c1",
    "days",
    "call:c3",
    "dropped",
    "garbage",
    "generation",
    "index",
    "loss",
    "manifest",
    "pins",
    "request:r1",
    "rows",
    "mirror",
    "rows:7",
    "table",
}


LIMIT = changes.SetLimit(scope=LimitScope.parse("group:g"), bytes_s=0)
SCALE = changes.SetScale(group="g", count=2)


@pytest.mark.parametrize(("change", "words"), WATCHES, ids=lambda each: type(each).__name__)
def test_each_change_watches_only_what_it_requires(change: changes.Change, words: str) -> None:
    watched = sorted(transaction_for(change).needs.watch)
    others = OF_THE_TABLE | {word for word in words.split() if word.startswith("tablet:")}
    wanted = [(PREFIX if word in others else TABLET) + word for word in words.split()]
    assert watched == sorted(wanted)


def test_to_require_a_generation_watches_no_more() -> None:
    """While a connection lives its server does not go back; the counter never rests."""
    for change, _ in WATCHES:
        if isinstance(change, changes.Guarded):
            needs = transaction_for(replace(change, generation=7)).needs
            assert needs.watch == transaction_for(change).needs.watch
            assert ("GET", PREFIX + "generation") in needs.reads.values()


def test_the_coordinator_s_id_limits_and_scales_live_outside_all_tables() -> None:
    needs = transaction_for(changes.ClaimCoordination(coordinator="c")).needs
    assert needs.watch == ("neve:coordinator",)
    assert transaction_for(LIMIT).needs.watch == ("neve:limits",)
    assert transaction_for(SCALE).needs.watch == ("neve:scales",)
    series = changes.SaveSeries(part="tables:0", values=b"")
    assert transaction_for(series).needs.watch == (), "the last write wins"


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
    outside = {
        changes.ClaimCoordination,
        changes.SaveSeries,
        changes.SetLimit,
        changes.SetScale,
    }
    tried = {type(change) for change, _ in WATCHES} | outside
    assert tried == transaction_of.registry.keys() - {object}
    assert all(isinstance(transaction_for(change), Transaction) for change, _ in WATCHES)
    assert changes.Applied() == MADE
