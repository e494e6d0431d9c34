"""Lake tables: the mirror, marks of publishing, the end of attempts; unknown outcomes."""

from __future__ import annotations

import pytest

from common.errors import BrokenValueError
from common.metadata.changes import (
    DropTable,
    EndLakeAttempt,
    ForgetOutputs,
    MarkPublishing,
    MirrorFiles,
    NoteMirrorProblem,
    Outcome,
    ReleaseAttempt,
    Unknown,
)
from common.metadata.codec.layout import unpack
from common.metadata.codec.table import SPEC
from common.metadata.keys import TableKeys
from common.metadata.keyspace import hget
from common.metadata.store_values import Mirror
from common.model.file import DataFile, MirroredFiles
from common.model.outcome import AttemptEnd, RowCounts
from common.model.table import LakeTable, Table
from common.model.tablet import PLUS_INFINITY, TabletId
from common.primitives import PUBLISH_LIFE_S
from tests.contract.test_unknown import AT_EXEC, always, once
from tests.support.flaky import Fault
from tests.support.predictable import ManualClock
from tests.support.requests import select, submitted, tablet_of
from tests.support.store_harness import Harness, applied, refused, reserve

pytestmark = pytest.mark.anyio

LAKE = LakeTable(format="delta", uri="file:///data/sales", table_id="7f1c")


def data(path: str, rows: int = 10, **fields: object) -> DataFile:
    """Return a file of a lake table."""
    plain: dict[str, object] = {"size_bytes": 100, "rows": rows}
    return DataFile(path=path, **(plain | fields))  # type: ignore[arg-type]  # any field


async def lake_table(harness: Harness) -> tuple[Table, TabletId]:
    """Make a lake table without partitions."""
    table = await harness.table(splits=(), key=(), version_column=None, lake=LAKE)
    return table, TabletId(table.id, PLUS_INFINITY)


async def mirror(
    harness: Harness,
    tablet: TabletId,
    *,
    after: str,
    token: str,
    version: int,
    came: tuple[DataFile, ...] = (),
    went: tuple[str, ...] = (),
    partition: str | None = None,
) -> Outcome:
    """Move the mirror of a tablet on."""
    files = MirroredFiles(came=came, went=went, partition=partition)
    return await harness.apply(
        MirrorFiles(
            table=tablet.table,
            after=after,
            token=token,
            version=version,
            files={tablet.end: files},
        )
    )


async def head_of(harness: Harness, tablet: TabletId) -> Mirror:
    """Return the state of a mirror."""
    (state,) = await harness.store.mirrors([tablet.table])
    return state


async def mirrored(harness: Harness) -> TabletId:
    """Make a lake table that is mirrored at version 3, with the files `a` and `b`."""
    _, tablet = await lake_table(harness)
    files = (data("a"), data("b", tombstones=2))
    applied(await mirror(harness, tablet, after="", token="t1", version=3, came=files))
    return tablet


async def mark(harness: Harness, tablet: TabletId, attempt: str = "x1", base: int = 3) -> Outcome:
    """Mark an attempt as publishing."""
    return await harness.apply(
        MarkPublishing(
            tablet=tablet, attempt=attempt, planned=3, base=base, outputs=("o-0.parquet",)
        )
    )


async def end(
    harness: Harness, tablet: TabletId, how: AttemptEnd = AttemptEnd.COMMITTED, **fields: object
) -> Outcome:
    """End the attempt x1; a commit has one output."""
    plain: dict[str, object] = {"cause": "" if how is AttemptEnd.COMMITTED else "a reason"}
    if how is AttemptEnd.COMMITTED:
        reservation = (await tablet_of(harness, tablet)).running.get("x1")
        outputs = reservation.output_paths if reservation else ()
        plain = {
            "version": 4,
            "outputs": tuple(data(path, 9) for path in outputs),
            "inputs": (data("a"), data("b")),
            "counts": RowCounts(rows_in=20, rows_out=18, tombstones_dropped=2),
        }
    change = EndLakeAttempt(tablet=tablet, attempt="x1", end=how, **(plain | fields))  # type: ignore[arg-type]
    return await harness.apply(change)


async def test_a_lake_table_is_read_back_but_not_by_releases_that_know_none(
    harness: Harness,
) -> None:
    table, _ = await lake_table(harness)
    stored = await harness.store.table(table.id)
    assert stored is not None
    assert stored.lake == LAKE
    spec = await harness.read(hget(TableKeys(table.id).table, SPEC))
    with pytest.raises(BrokenValueError, match="format version 2, this release reads 1"):
        unpack("a table", spec)


async def test_a_mirror_moves_from_where_it_was_read(harness: Harness) -> None:
    tablet = await mirrored(harness)
    present = await tablet_of(harness, tablet)
    assert sorted(present.files) == ["a", "b"]
    assert present.files["b"].tombstones == 2
    assert (present.record.files, present.record.size_bytes) == (2, 200)
    state = await head_of(harness, tablet)
    assert state.head is not None
    assert (state.head.version, state.committed, state.is_behind) == (3, -1, False)
    refused(await mirror(harness, tablet, after="", token="t2", version=4), "mirror")
    changed = data("b", tombstones=5, size_bytes=110)
    step = await mirror(
        harness, tablet, after="t1", token="t2", version=-1, came=(changed,), went=("a", "gone")
    )
    applied(step)
    state = await head_of(harness, tablet)
    assert state.head is not None
    assert (state.head.version, state.head.token) == (3, "t2")
    present = await tablet_of(harness, tablet)
    assert present.files == {"b": changed}
    assert (present.record.files, present.record.size_bytes) == (1, 110)
    garbage = await harness.store.garbage(tablet.table)
    assert not garbage


async def test_a_new_partition_gets_a_tablet(harness: Harness) -> None:
    await mirrored(harness)
    table = await harness.table(
        splits=(), key=(), version_column=None, partition_by=("day",), lake=LAKE,
        location="file:///data/other",
    )  # fmt: skip
    tablet = TabletId(table.id, b"\x01")
    step = await mirror(harness, tablet, after="", token="t1", version=0, came=(data("day=1/a"),))
    refused(step, "tablet")
    applied(
        await mirror(
            harness, tablet, after="", token="t1", version=0, came=(data("day=1/a"),),
            partition="day=1",
        )
    )  # fmt: skip
    assert (await tablet_of(harness, tablet)).bounds.partition == "day=1"


@pytest.mark.parametrize("fault", AT_EXEC)
async def test_a_lost_answer_moves_a_mirror_once(harness: Harness, fault: Fault) -> None:
    tablet = await mirrored(harness)
    store, keyspace = harness.flaky()
    await store.store_id()
    keyspace.script = once(fault)
    change = MirrorFiles(
        table=tablet.table, after="t1", token="t2", version=4,
        files={tablet.end: MirroredFiles(came=(data("c"),), went=("a",))},
    )  # fmt: skip
    applied(await store.apply(change))
    assert (await tablet_of(harness, tablet)).record.files == 2
    applied(await store.apply(change))
    assert (await tablet_of(harness, tablet)).record.files == 2


async def test_the_mirror_of_a_dropped_table_does_not_move(harness: Harness) -> None:
    tablet = await mirrored(harness)
    applied(await harness.apply(DropTable(table=tablet.table)))
    refused(await mirror(harness, tablet, after="t1", token="t2", version=4), "table")
    problem = NoteMirrorProblem(table=tablet.table, problem="the log is gone")
    refused(await harness.apply(problem), "table")


async def test_files_that_vanish_leave_the_selection_and_end_it(harness: Harness) -> None:
    tablet = await mirrored(harness)
    await submitted(harness, tablet.table)
    applied(await harness.apply(select(tablet, "a", "b")))
    applied(await mirror(harness, tablet, after="t1", token="t2", version=4, went=("a",)))
    selection = (await tablet_of(harness, tablet)).selection
    assert selection is not None
    assert selection.files == ("b",)
    applied(await mirror(harness, tablet, after="t2", token="t3", version=5, went=("b",)))
    present = await tablet_of(harness, tablet)
    assert present.selection is None
    assert present.done == {"r1"}
    assert not present.record.selected


async def test_only_an_attempt_that_holds_its_reservation_may_publish(harness: Harness) -> None:
    tablet = await mirrored(harness)
    refused(await mark(harness, tablet), "released")
    applied(await harness.apply(reserve(tablet, "x1", "a", "b")))
    applied(await mark(harness, tablet))
    applied(await mark(harness, tablet, base=7))
    (publishing,) = await harness.store.publishing(tablet.table)
    assert (publishing.attempt, publishing.planned, publishing.base) == ("x1", 3, 7)
    assert (publishing.tablet_end, publishing.outputs) == (tablet.end, ("o-0.parquet",))


async def test_an_attempt_may_not_publish_after_a_day(harness: Harness) -> None:
    if not isinstance(harness.clock, ManualClock):
        pytest.skip("a server's clock cannot be moved")
    tablet = await mirrored(harness)
    applied(await harness.apply(reserve(tablet, "x1", "a", "b")))
    await harness.pass_time(PUBLISH_LIFE_S)
    applied(await mark(harness, tablet))
    await harness.pass_time(1.0)
    refused(await mark(harness, tablet), "overdue")


async def test_a_mark_whose_answer_is_lost_for_good_is_unknown(harness: Harness) -> None:
    tablet = await mirrored(harness)
    applied(await harness.apply(reserve(tablet, "x1", "a", "b")))
    store, keyspace = harness.flaky()
    await store.store_id()
    keyspace.script = always(Fault.APPLIED)
    change = MarkPublishing(tablet=tablet, attempt="x1", planned=3, base=3, outputs=())
    assert isinstance(await store.apply(change), Unknown)
    assert len(await harness.store.publishing(tablet.table)) == 1


async def test_a_commit_ends_the_attempt_and_leaves_the_files_to_the_mirror(
    harness: Harness,
) -> None:
    tablet = await mirrored(harness)
    applied(await harness.apply(reserve(tablet, "x1", "a", "b")))
    applied(await mark(harness, tablet))
    applied(await end(harness, tablet))
    present = await tablet_of(harness, tablet)
    assert not present.running
    assert sorted(present.files) == ["a", "b"]
    assert (present.record.running, present.record.compactions) == (0, 1)
    assert not await harness.store.garbage(tablet.table)
    assert not await harness.store.publishing(tablet.table)
    (entry,) = await harness.store.history(tablet.table)
    assert (entry.end, entry.rows_in, entry.rows_out) == ("committed", 20, 18)
    assert (entry.bytes_in, entry.bytes_out) == (200, 200)
    state = await head_of(harness, tablet)
    assert (state.committed, state.is_behind) == (4, True)
    refused(await harness.apply(reserve(tablet, "x2", "a", "b")), "mirror")
    applied(await mirror(harness, tablet, after="t1", token="t2", version=4, went=("a",)))
    applied(await harness.apply(reserve(tablet, "x2", "b")))
    # A later look at the same attempt finds its mark.
    applied(await end(harness, tablet))
    refused(await end(harness, tablet, AttemptEnd.FAILED), "committed")


async def test_outputs_that_the_log_does_not_name_become_garbage_and_inputs_never(
    harness: Harness,
) -> None:
    tablet = await mirrored(harness)
    applied(await harness.apply(reserve(tablet, "x1", "a", "b")))
    outputs = (await tablet_of(harness, tablet)).running["x1"].output_paths
    applied(await mark(harness, tablet))
    applied(await end(harness, tablet, outputs=(data(outputs[1]),), further=("v.bin",)))
    garbage = {entry.path for entry in await harness.store.garbage(tablet.table)}
    assert garbage == {outputs[0], "v.bin"}
    assert [entry.attempt for entry in await harness.store.publishing(tablet.table)] == ["x1"]
    forget = ForgetOutputs(table=tablet.table, paths=tuple(garbage), attempts=("x1",))
    applied(await harness.apply(forget))
    applied(await harness.apply(forget))
    assert not await harness.store.garbage(tablet.table)
    assert not await harness.store.publishing(tablet.table)


async def test_a_failure_counts_and_keeps_the_mark(harness: Harness) -> None:
    tablet = await mirrored(harness)
    applied(await harness.apply(reserve(tablet, "x1", "a", "b")))
    applied(await mark(harness, tablet))
    applied(await end(harness, tablet, AttemptEnd.FAILED))
    applied(await end(harness, tablet, AttemptEnd.FAILED))
    present = await tablet_of(harness, tablet)
    assert (present.record.failures, present.record.failure) == (1, "a reason")
    assert await harness.store.garbage(tablet.table)
    assert await harness.store.publishing(tablet.table)
    applied(await harness.apply(reserve(tablet, "x2", "a", "b")))


async def test_a_release_keeps_the_mark_and_stops_the_attempt(harness: Harness) -> None:
    tablet = await mirrored(harness)
    applied(await harness.apply(reserve(tablet, "x1", "a", "b")))
    applied(await mark(harness, tablet))
    lost = ReleaseAttempt(tablet=tablet, attempt="x1", end=AttemptEnd.LOST, cause="silent")
    applied(await harness.apply(lost))
    refused(await mark(harness, tablet), "released")
    assert await harness.store.publishing(tablet.table)


@pytest.mark.parametrize("fault", AT_EXEC)
async def test_a_lost_answer_ends_an_attempt_once(harness: Harness, fault: Fault) -> None:
    tablet = await mirrored(harness)
    applied(await harness.apply(reserve(tablet, "x1", "a", "b")))
    store, keyspace = harness.flaky()
    await store.store_id()
    keyspace.script = once(fault)
    change = EndLakeAttempt(tablet=tablet, attempt="x1", end=AttemptEnd.FAILED, cause="a reason")
    applied(await store.apply(change))
    present = await tablet_of(harness, tablet)
    assert (present.record.failures, present.record.running) == (1, 0)
    assert len(await harness.store.history(tablet.table)) == 1


async def test_a_commit_of_a_request_counts_in_its_hold(harness: Harness) -> None:
    tablet = await mirrored(harness)
    await submitted(harness, tablet.table)
    applied(await harness.apply(select(tablet, "a", "b")))
    applied(await harness.apply(reserve(tablet, "x1", "a", "b", request="r1")))
    applied(await end(harness, tablet))
    selection = (await tablet_of(harness, tablet)).selection
    assert selection is not None
    assert (selection.files, selection.completed_jobs) == (("a", "b"), 1)


async def test_no_file_is_reserved_while_the_log_has_a_problem(harness: Harness) -> None:
    tablet = await mirrored(harness)
    problem = NoteMirrorProblem(table=tablet.table, problem="the log does not answer")
    applied(await harness.apply(problem))
    applied(await harness.apply(problem))
    refusal = refused(await harness.apply(reserve(tablet, "x1", "a", "b")), "mirror")
    assert "the log does not answer" in refusal.reason
    state = await head_of(harness, tablet)
    assert state.head is not None
    assert state.head.version == 3
    applied(await mirror(harness, tablet, after="t1", token="t2", version=3))
    applied(await harness.apply(reserve(tablet, "x1", "a", "b")))


async def test_a_drop_leaves_no_key_and_never_takes_files(harness: Harness) -> None:
    tablet = await mirrored(harness)
    refused(await harness.apply(DropTable(table=tablet.table, delete_files=True)), "state")
    applied(await harness.apply(reserve(tablet, "x1", "a", "b")))
    outputs = (await tablet_of(harness, tablet)).running["x1"].output_paths
    applied(await mark(harness, tablet))
    outcome = applied(await harness.apply(DropTable(table=tablet.table)))
    assert not outcome.complete
    assert [entry.path for entry in await harness.store.garbage(tablet.table)] == [*outputs]
    refused(await mark(harness, tablet), "released")
    applied(await harness.apply(ForgetOutputs(table=tablet.table, paths=outputs, attempts=("x1",))))
    assert applied(await harness.apply(DropTable(table=tablet.table))).complete
    assert await harness.keys(tablet.table) == []
