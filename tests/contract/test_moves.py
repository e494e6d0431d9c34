"""A job that only changes tags of files: what it requires, what it leaves, who may not."""

from __future__ import annotations

import pytest

from common.metadata.changes import CommitAttempt, RetagFiles
from common.metadata.codec.tablet import SELECTION
from common.metadata.keys import TabletKeys
from common.metadata.keyspace import hdel, hset, set_string
from common.model.file import DataFile
from common.model.outcome import AttemptEnd, RowCounts
from common.model.tablet import Selection, TabletId
from tests.support.flaky import Fault, Point
from tests.support.store_harness import (
    Harness,
    applied,
    commit,
    file,
    refused,
    release,
    reserve,
)

pytestmark = pytest.mark.anyio


def retag(tablet: TabletId, attempt: str, *inputs: str, level: int = 2) -> RetagFiles:
    return RetagFiles(
        tablet=tablet,
        attempt=attempt,
        tags=(("level", str(level)),),
        inputs=inputs,
        reason="to the next level",
    )


async def files_of(harness: Harness, tablet: TabletId) -> dict[str, DataFile]:
    found = await harness.store.tablet(tablet)
    assert found is not None
    assert found.record.files == len(found.files)
    assert found.record.size_bytes == sum(each.size_bytes for each in found.files.values())
    assert found.record.running == len(found.running)
    return dict(found.files)


async def tablet_with_a_tagged_file(harness: Harness) -> TabletId:
    """Return a tablet of files a, b and one that a job has written, with tags."""
    tablet = await harness.tablet_with("a", "b", "old")
    applied(await harness.apply(reserve(tablet, "t0", "old")))
    tagged = file("out/t0-0.parquet", tags=(("level", "1"), ("purge", "done")))
    counts = RowCounts(rows_in=10, rows_out=10)
    made = CommitAttempt(tablet=tablet, attempt="t0", outputs=(tagged,), counts=counts)
    applied(await harness.apply(made))
    return tablet


async def test_files_get_tags_and_stay_what_they_are(harness: Harness) -> None:
    tablet = await tablet_with_a_tagged_file(harness)
    inputs = ("a", "out/t0-0.parquet")
    before, garbage = await files_of(harness, tablet), await harness.store.garbage(tablet.table)
    applied(await harness.apply(reserve(tablet, "t1", *inputs)))
    applied(await harness.apply(retag(tablet, "t1", *inputs)))

    after = await files_of(harness, tablet)
    assert after.keys() == before.keys()
    assert after["b"] == before["b"]
    assert after["a"].tags == (("level", "2"),)
    assert after["out/t0-0.parquet"].tags == (("purge", "done"), ("level", "2"))
    for path in inputs:
        assert after[path].added_at_s == before[path].added_at_s
        assert (after[path].job, after[path].size_bytes) == (
            before[path].job,
            before[path].size_bytes,
        )
    (record,) = await harness.store.records((tablet,))
    assert record is not None
    assert record.compactions == 2, "the job that made out/t0-0.parquet, and the move"
    assert await harness.store.garbage(tablet.table) == garbage, "a moved file is no garbage"
    outcome = await harness.store.outcome(tablet.table, "t1")
    assert outcome is not None
    assert outcome.end is AttemptEnd.COMMITTED
    history = await harness.store.history(tablet.table)
    (entry,) = (each for each in history if each.attempt == "t1")
    assert (entry.inputs, entry.outputs, entry.reason) == (inputs, inputs, "to the next level")
    assert (entry.bytes_in, entry.bytes_out) == (0, 0)


async def test_a_move_is_made_once_and_known_again(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    applied(await harness.apply(retag(tablet, "t1", "a")))
    applied(await harness.apply(reserve(tablet, "t2", "a")))
    applied(await harness.apply(retag(tablet, "t2", "a", level=3)))
    again = await harness.apply(retag(tablet, "t1", "a"))
    assert applied(again)
    assert (await files_of(harness, tablet))["a"].tags == (("level", "3"),)


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.APPLIED, Fault.LATE])
async def test_a_move_of_unknown_outcome_is_made_once(harness: Harness, fault: Fault) -> None:
    tablet = await harness.tablet_with("a", "b")
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    store, keyspace = harness.flaky()
    await store.store_id()
    left = [fault]

    async def script(point: Point) -> Fault:
        return left.pop() if left and point is Point.EXEC else Fault.NONE

    keyspace.script = script
    applied(await store.apply(retag(tablet, "t1", "a")))
    assert not any(await keyspace.deliver())
    assert (await files_of(harness, tablet))["a"].tags == (("level", "2"),)
    assert len(await harness.store.history(tablet.table)) == 1


async def test_only_the_holder_of_a_reservation_moves_its_inputs(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    before = await files_of(harness, tablet)
    refused(await harness.apply(retag(tablet, "t1", "a")), "released")
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    refused(await harness.apply(retag(tablet, "t1", "b")), "outputs")
    refused(await harness.apply(retag(tablet, "t1")), "outputs")
    refused(await harness.apply(retag(tablet, "t1", "a", "b")), "outputs")
    applied(await harness.apply(release(tablet, "t1", AttemptEnd.LOST)))
    refused(await harness.apply(retag(tablet, "t1", "a")), "lost")
    assert await files_of(harness, tablet) == before


async def test_a_file_that_the_store_has_lost_is_not_moved(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    applied(await harness.apply(reserve(tablet, "t1", "a", "b")))
    await harness.write(hdel(TabletKeys.of(tablet).files, "a"))
    outcome = await harness.apply(retag(tablet, "t1", "a", "b"))
    assert refused(outcome, "files").reason == "files are gone: a"


async def test_a_move_and_a_commit_of_one_attempt_exclude_each_other(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    applied(await harness.apply(commit(tablet, "t1")))
    applied(await harness.apply(retag(tablet, "t1", "a")))  # It has ended as it should.
    assert list(await files_of(harness, tablet)) == ["out/t1-0.parquet"]


async def test_files_of_a_request_are_not_moved(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    keys = TabletKeys.of(tablet)
    chosen = Selection(request="r1", files=("a",), since_s=1.0)
    await harness.write(set_string(keys.selection, SELECTION.pack(chosen)))
    await harness.write(hset(keys.record, {"s": 1}))
    applied(await harness.apply(reserve(tablet, "t1", "a", request="r1")))
    refused(await harness.apply(retag(tablet, "t1", "a")), "outputs")


async def test_appends_do_not_disturb_a_move(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    store, keyspace = harness.flaky()
    await store.store_id()
    left = [True]

    async def script(point: Point) -> Fault:
        if left and point is Point.LOOKED:
            left.clear()
            applied(await harness.add(tablet, file("late")))
        return Fault.NONE

    keyspace.script = script
    assert applied(await store.apply(retag(tablet, "t1", "a"))).conflicts == 0
    assert sorted(await files_of(harness, tablet)) == ["a", "late"]
