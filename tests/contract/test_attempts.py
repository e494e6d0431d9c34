"""Reserve, commit, release: requirements, effects, marks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.metadata.changes import (
    ChangeTable,
    ClaimCoordination,
    CommitAttempt,
    DropHold,
)
from common.metadata.codec.tablet import OPERATION, SELECTION
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.keyspace import get, hset, set_string
from common.model.outcome import AttemptEnd, DroppedRows, Refusal, RefusalCode
from common.model.table import TableSettings, TableState
from common.model.tablet import (
    Operation,
    OperationKind,
    OperationStep,
    Selection,
    Tablet,
    TabletId,
)
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


async def present(harness: Harness, tablet: TabletId) -> Tablet:
    """Return a tablet that must be there, and its record must be true."""
    found = await harness.store.tablet(tablet)
    assert found is not None
    record = found.record
    assert record.files == len(found.files)
    assert record.size_bytes == sum(each.size_bytes for each in found.files.values())
    assert record.running == len(found.running)
    assert record.selected == (found.selection is not None)
    return found


async def test_a_change_is_confirmed_in_each_try_after_everything_is_watched(
    harness: Harness,
) -> None:
    tablet = await harness.tablet_with("a", "b")
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    asked: list[str] = []

    async def meanwhile() -> Refusal | None:
        asked.append("?")
        if len(asked) == 1:  # What the commit watches changes under its eyes.
            applied(await harness.apply(reserve(tablet, "t2", "b")))
        return None

    done = applied(await harness.store.apply(commit(tablet, "t1"), confirm=meanwhile))
    assert len(asked) > 1
    assert done.conflicts

    async def no() -> Refusal | None:
        return Refusal(RefusalCode.LOST, "it is gone")

    outcome = await harness.store.apply(commit(tablet, "t2"), confirm=no)
    assert refused(outcome, RefusalCode.LOST).reason == "it is gone"
    assert "t2" in (await present(harness, tablet)).running


async def test_a_job_from_reservation_to_history(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b", "c")
    before = await present(harness, tablet)

    reserved = applied(await harness.apply(reserve(tablet, "t1", "a", "b")))
    assert reserved.reservation is not None
    assert reserved.tablet is not None
    assert reserved.reservation.since_s == reserved.reservation.now_s == reserved.now_s
    assert sorted(reserved.tablet.files) == ["a", "b", "c"]
    during = await present(harness, tablet)
    assert during.running == {"t1": reserved.reservation}

    applied(await harness.apply(commit(tablet, "t1")))
    after = await present(harness, tablet)
    assert sorted(after.files) == ["c", "out/t1-0.parquet"]
    assert after.running == {}
    assert before.record.version < during.record.version < after.record.version
    made = after.files["out/t1-0.parquet"]
    assert (made.job, made.request) == ("job-1", None)

    garbage = await harness.store.garbage(tablet.table)
    assert [(each.path, each.stamped_s, each.key_min) for each in garbage] == [
        ("a", 0, b"a"),
        ("b", 0, b"a"),
    ]
    assert {each.tablet_end for each in garbage} == {MIDDLE}
    outcome = await harness.store.outcome(tablet.table, "t1")
    assert outcome is not None
    assert (outcome.end, outcome.cause) == (AttemptEnd.COMMITTED, "")
    assert len(await harness.read(get(TableKeys(tablet.table).outcome("t1")))) == 12
    (entry,) = await harness.store.history(tablet.table)
    assert (entry.attempt, entry.end, entry.tablet) == ("t1", "committed", tablet)
    assert (entry.bytes_in, entry.bytes_out, entry.rows_in, entry.rows_out) == (200, 100, 20, 10)


@pytest.mark.parametrize("inputs", [(), ("a", "b"), ("b", "a"), ("x",)])
async def test_the_input_list_of_a_commit_is_only_a_hint(
    harness: Harness, inputs: tuple[str, ...]
) -> None:
    tablet = await harness.tablet_with("a", "b")
    applied(await harness.apply(reserve(tablet, "t1", "a", "b")))
    applied(await harness.apply(commit(tablet, "t1", outputs=0, inputs=inputs)))
    assert (await present(harness, tablet)).files == {}


async def test_a_second_reservation_of_a_file_is_refused(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b", "c")
    applied(await harness.apply(reserve(tablet, "t1", "a", "b")))
    refused(await harness.apply(reserve(tablet, "t2", "b", "c")), "reserved")
    applied(await harness.apply(reserve(tablet, "t3", "c")))
    assert sorted((await present(harness, tablet)).running) == ["t1", "t3"]


async def test_each_condition_of_a_reservation_is_enforced(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    table = await harness.store.table(tablet.table)
    assert table is not None
    keys = TabletKeys.of(tablet)
    refused(await harness.apply(reserve(tablet, "t1", "a", "gone")), "gone")
    refused(await harness.apply(reserve(TabletId(tablet.table, b"q"), "t1", "a")), "tablet")
    refused(await harness.apply(reserve(TabletId("tbl-none", b"q"), "t1", "a")), "tablet")

    pause = ChangeTable(table=table.id, settings_version=1, state=TableState.PAUSED)
    applied(await harness.apply(pause))
    refused(await harness.apply(reserve(tablet, "t1", "a")), "paused")
    applied(await harness.apply(replace(pause, state=TableState.LIVE)))

    await harness.write(hset(keys.waiting, {"r1": 1.0}), hset(keys.record, {"w": 1}))
    refused(await harness.apply(reserve(tablet, "t1", "a")), "waiting")
    await harness.write(("DEL", keys.waiting), hset(keys.record, {"w": 0}))

    for step, cuts_at in (
        (OperationStep.CUT, None),
        (OperationStep.CUT, b"c"),
        (OperationStep.DRAIN, b"b"),
    ):
        operation = Operation(OperationKind.SPLIT, "op1", step, b"b")
        await harness.write(set_string(keys.operation, OPERATION.pack(operation)))
        change = replace(reserve(tablet, "t1", "a"), cuts_at=cuts_at)
        refused(await harness.apply(change), "operation")
    operation = Operation(OperationKind.SPLIT, "op1", OperationStep.CUT, b"b")
    await harness.write(set_string(keys.operation, OPERATION.pack(operation)))
    applied(await harness.apply(replace(reserve(tablet, "t1", "a"), cuts_at=b"b")))


async def select(harness: Harness, tablet: TabletId, selection: Selection) -> None:
    """Write a selection past the rules: the change that does it comes later."""
    keys = TabletKeys.of(tablet)
    await harness.write(
        set_string(keys.selection, SELECTION.pack(selection)), hset(keys.record, {"s": 1})
    )


async def test_a_request_from_selection_to_done(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b", "c", "d")
    await select(harness, tablet, Selection(request="r1", files=("a", "b", "c"), since_s=1.0))

    refused(await harness.apply(reserve(tablet, "t1", "c", "d")), "selected")
    refused(await harness.apply(reserve(tablet, "t1", "a", request="r2")), "selected")
    refused(await harness.apply(reserve(tablet, "t1", "a", "d", request="r1")), "selected")
    applied(await harness.apply(reserve(tablet, "t1", "a", "b", request="r1")))
    applied(await harness.apply(reserve(tablet, "t2", "d")))
    applied(await harness.apply(commit(tablet, "t2", outputs=0)))

    applied(await harness.apply(commit(tablet, "t1")))
    after = await present(harness, tablet)
    assert after.selection == Selection(
        request="r1",
        files=("c", "out/t1-0.parquet"),
        results=("out/t1-0.parquet",),
        completed_jobs=1,
        since_s=1.0,
    )
    assert after.files["out/t1-0.parquet"].request == "r1"

    applied(await harness.apply(reserve(tablet, "t3", "c", "out/t1-0.parquet", request="r1")))
    applied(await harness.apply(commit(tablet, "t3")))
    done = await present(harness, tablet)
    assert (done.selection, done.done) == (None, {"r1"})
    assert sorted(done.files) == ["out/t3-0.parquet"]


async def test_a_selection_whose_rows_all_went_is_done(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    await select(harness, tablet, Selection(request="r1", files=("a",)))
    applied(await harness.apply(reserve(tablet, "t1", "a", request="r1")))
    applied(await harness.apply(commit(tablet, "t1", outputs=0)))
    after = await present(harness, tablet)
    assert (after.selection, after.done, sorted(after.files)) == (None, {"r1"}, ["b"])


async def test_a_hold_is_dropped_only_when_it_has_run_out(harness: Harness) -> None:
    settings = TableSettings(hold_expiry_s=1.5)
    tablet = await harness.tablet_with("a", "b", settings=settings)
    now_s = await harness.store.now_s()
    selection = Selection(request="r1", files=("a", "b"), since_s=now_s)
    await select(harness, tablet, selection)
    refused(await harness.apply(DropHold(tablet=tablet)), "hold")
    await harness.pass_time(1.55)
    applied(await harness.apply(reserve(tablet, "t1", "a", request="r1")))
    refused(await harness.apply(DropHold(tablet=tablet)), "hold")
    applied(await harness.apply(release(tablet, "t1")))
    applied(await harness.apply(DropHold(tablet=tablet)))
    assert (await present(harness, tablet)).selection is None
    applied(await harness.apply(DropHold(tablet=tablet)))
    await select(harness, tablet, replace(selection, completed_jobs=1))
    refused(await harness.apply(DropHold(tablet=tablet)), "hold")


async def test_a_commit_without_reservation_is_refused(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    outcome = refused(await harness.apply(commit(tablet, "t1")), "released")
    assert not outcome.sent
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    applied(await harness.apply(release(tablet, "t1", AttemptEnd.LOST)))
    applied(await harness.apply(reserve(tablet, "t2", "a")))
    refused(await harness.apply(commit(tablet, "t1")), "lost")
    assert sorted((await present(harness, tablet)).running) == ["t2"]


async def test_a_commit_may_only_bring_outputs_that_it_reserved(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    refused(await harness.apply(commit(tablet, "t1", outputs=3)), "outputs")
    applied(await harness.apply(commit(tablet, "t1", outputs=2)))


async def test_broken_invariants_are_refused_at_commit(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    keys = TabletKeys.of(tablet)
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    stored = await harness.read(("HGET", keys.files, "a"))
    await harness.write(("HDEL", keys.files, "a"))
    refused(await harness.apply(commit(tablet, "t1")), "gone")
    await harness.write(hset(keys.files, {"a": stored}))
    applied(await harness.apply(commit(tablet, "t1")))
    await select(harness, tablet, Selection(request="r1", files=("b",)))
    applied(await harness.apply(reserve(tablet, "t2", "b", request="r1")))
    await select(harness, tablet, Selection(request="r2", files=("b",)))
    refused(await harness.apply(commit(tablet, "t2")), "selected")


async def test_a_release_hands_the_outputs_to_the_collector(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    applied(await harness.apply(reserve(tablet, "t1", "a", "b")))
    applied(await harness.apply(release(tablet, "t1")))
    after = await present(harness, tablet)
    assert sorted(after.files) == ["a", "b"]
    assert (after.record.failures, after.record.failure) == (1, "out of luck")
    paths = [each.path for each in await harness.store.garbage(tablet.table)]
    assert paths == ["out/t1-0.parquet", "out/t1-1.parquet"]
    outcome = await harness.store.outcome(tablet.table, "t1")
    assert outcome is not None
    assert (outcome.end, outcome.cause) == (AttemptEnd.FAILED, "out of luck")
    applied(await harness.apply(release(tablet, "t1")))
    refused(await harness.apply(release(tablet, "t1", AttemptEnd.DRAINED)), "failed")
    refused(await harness.apply(commit(tablet, "t1")), "failed")


async def test_a_job_that_ran_out_of_memory_is_told_so_at_its_next_reservation(
    harness: Harness,
) -> None:
    tablet = await harness.tablet_with("a", "b")
    applied(await harness.apply(reserve(tablet, "t1", "a", "b")))
    applied(await harness.apply(replace(release(tablet, "t1"), halvings=2)))
    again = applied(await harness.apply(reserve(tablet, "t2", "a", "b")))
    assert again.tablet is not None
    assert (again.tablet.record.halved_job, again.tablet.record.halvings) == ("job-1", 2)
    applied(await harness.apply(release(tablet, "t2")))
    assert (await present(harness, tablet)).record.halvings == 2


async def test_only_a_failure_counts_as_one_and_a_commit_forgets_it(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    for attempt, end in (("t1", AttemptEnd.DRAINED), ("t2", AttemptEnd.FAILED)):
        applied(await harness.apply(reserve(tablet, attempt, "a")))
        applied(await harness.apply(release(tablet, attempt, end)))
    assert (await present(harness, tablet)).record.failures == 1
    applied(await harness.apply(reserve(tablet, "t3", "a")))
    applied(await harness.apply(commit(tablet, "t3")))
    record = (await present(harness, tablet)).record
    assert (record.failures, record.failure) == (0, "")
    refused(await harness.apply(release(tablet, "t3")), "committed")


async def test_only_the_coordinator_releases_for_silence(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    applied(await harness.apply(ClaimCoordination(coordinator="new")))
    claim = await harness.store.claim()
    assert claim is not None
    assert claim.coordinator == "new"
    ghost = release(tablet, "t1", AttemptEnd.LOST, coordinator="old")
    refused(await harness.apply(ghost), "coordinator")
    applied(await harness.apply(replace(ghost, coordinator="new")))


def dropping(tablet: TabletId, attempt: str, *outside: str) -> CommitAttempt:
    """Return a commit that dropped dead rows of keys a to c up to version 7."""
    dropped = DroppedRows(spans=((b"a", b"c"),), version_max=b"7")
    return replace(commit(tablet, attempt), dropped=dropped, outside=outside)


async def test_dropped_rows_raise_the_watermark_and_add_keeps_it(harness: Harness) -> None:
    tablet = await harness.tablet_with("a", "b")
    applied(await harness.apply(reserve(tablet, "t1", "a", "b")))
    applied(await harness.apply(dropping(tablet, "t1")))
    assert (await present(harness, tablet)).purge == b"7"
    refused(await harness.add(tablet, file("old", version_min=b"7")), "purged")
    refused(await harness.add(tablet, file("none", version_min=None)), "purged")
    applied(await harness.add(tablet, file("new", version_min=b"8")))
    lower = DroppedRows(spans=((b"a", b"c"),), version_max=b"3")
    applied(await harness.apply(reserve(tablet, "t2", "out/t1-0.parquet")))
    applied(await harness.apply(replace(dropping(tablet, "t2"), dropped=lower)))
    assert await harness.read(get(TabletKeys.of(tablet).purge)) == b"7"


async def test_a_file_that_came_meanwhile_stops_a_commit_that_dropped_rows(
    harness: Harness,
) -> None:
    tablet = await harness.tablet_with("a", "b", "c")
    applied(await harness.apply(reserve(tablet, "t1", "a", "b")))
    refused(await harness.apply(dropping(tablet, "t1")), "resurface")
    applied(await harness.add(tablet, file("far", b"d", b"e"), file("young", version_min=b"8")))
    assert (await present(harness, tablet)).purge is None
    applied(await harness.add(tablet, file("late", b"c", b"d")))
    refused(await harness.apply(dropping(tablet, "t1", "c")), "resurface")
    applied(await harness.apply(dropping(tablet, "t1", "c", "late")))


async def test_a_file_between_the_dropped_keys_stops_no_commit(harness: Harness) -> None:
    tablet = await harness.tablet_with("a")
    applied(await harness.apply(reserve(tablet, "t1", "a")))
    apart = DroppedRows(spans=((b"a", b"c"), (b"m", b"n")), version_max=b"7")
    applied(await harness.add(tablet, file("between", b"d", b"l")))
    applied(await harness.apply(replace(dropping(tablet, "t1"), dropped=apart)))
