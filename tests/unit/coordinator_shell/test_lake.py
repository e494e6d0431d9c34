"""The follower of lake tables: mirror, attempts whose inputs left, own waste, silent logs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from common.control_settings import CatalogSettings
from common.errors import MetadataError
from common.lake import mirror
from common.lake.mirror import mirrored_file
from common.lake.source import Snapshot
from common.metadata.changes import (
    Change,
    CreateTable,
    DropTable,
    EndLakeAttempt,
    MarkPublishing,
    MirrorFiles,
    Outcome,
    ReserveFiles,
)
from common.metadata.store_values import Mirror
from common.model.file import DataFile
from common.model.job import Kind
from common.model.outcome import AttemptEnd
from common.model.table import LakeTable, Table, TableState
from common.model.tablet import PLUS_INFINITY, Tablet, TabletId
from coordinator.context import Generations, ShellContext
from coordinator.core import actions as do
from coordinator.core import events as on
from coordinator.lake import END_GRACE_S, LakeFollower, LakeRules
from coordinator.service import StoreActions
from tests.support.lake_log import COLUMNS, LakeLog, lake_file
from tests.support.memory_store import MemoryStore
from tests.support.planning import job
from tests.support.predictable import CountedIds, ManualClock
from tests.support.store_harness import applied

pytestmark = pytest.mark.unit

GRACE_S = 600.0


@dataclass
class Life:
    """A store with one lake table, its log, and a follower."""

    log: LakeLog = field(default_factory=LakeLog)
    partition_by: tuple[str, ...] = ()
    clock: ManualClock = field(default_factory=ManualClock)
    logged: list[str] = field(default_factory=list)
    events: list[on.Event] = field(default_factory=list)

    async def start(self) -> Life:
        self.store = MemoryStore(self.clock)
        self.table = Table(
            id="t1",
            name="sales",
            location="file:///data/sales",
            schema=COLUMNS,
            partition_by=self.partition_by,
            lake=LakeTable(format="delta", uri="file:///data/sales", table_id="uid-1"),
        )
        applied(await self.store.apply(CreateTable(table=self.table)))
        self.tablet = TabletId("t1", PLUS_INFINITY)
        self.follower = self.another()
        return self

    def another(self) -> LakeFollower:
        """Return a follower that remembers nothing, as a new coordinator has."""

        def note(event: str, **fields: object) -> None:
            self.logged.append(f"{event} {fields}")

        ids = CountedIds(f"f{len(self.logged)}-{self.log.loads}")
        generations = Generations(self.store, note)
        context = ShellContext(self.store, self.clock, ids, note, "coord-1", generations)
        rules = LakeRules(catalog=CatalogSettings(poll_s=10.0), grace_s=GRACE_S, sweep_s=10.0)
        self.context = context

        def submit(event: on.Event) -> None:
            self.events.append(event)

        return LakeFollower(context, rules, lambda: [self.table], submit, self.log.opened)

    async def poll(self) -> None:
        self.clock.advance(11)
        stored = await self.store.table("t1")
        if stored is not None:
            self.table = stored
        await self.follower.poll(self.table)

    async def mirror(self) -> Mirror:
        (state,) = await self.store.mirrors(["t1"])
        return state

    async def read(self) -> Tablet:
        found = await self.store.tablet(self.tablet)
        assert found is not None
        return found

    async def reserve(self, *inputs: str, outputs: int = 1) -> tuple[str, ...]:
        """Reserve files for the attempt `x1`; return the paths of its outputs."""
        change = ReserveFiles(
            tablet=self.tablet,
            attempt="x1",
            job="j1",
            kind=Kind.SYSTEM,
            inputs=inputs,
            output_prefix="neve-j1-x1",
            outputs_max=outputs,
            group="default",
            compactor="c1",
        )
        reservation = applied(await self.store.apply(change)).reservation
        assert reservation is not None
        return reservation.output_paths

    async def begin(self) -> str:
        """Reserve the files `a` and `b` of the mirror for the attempt `x1`; return its output."""
        self.log.write(lake_file("a"), lake_file("b"))
        await self.poll()
        (output,) = await self.reserve("a", "b")
        return output

    async def mark(self, outputs: tuple[str, ...]) -> None:
        head = self.log.head.version
        change = MarkPublishing(
            tablet=self.tablet, attempt="x1", planned=head, base=head, outputs=outputs
        )
        applied(await self.store.apply(change))

    async def end(self, how: AttemptEnd, **fields: object) -> None:
        change = EndLakeAttempt(tablet=self.tablet, attempt="x1", end=how, **fields)  # type: ignore[arg-type]
        applied(await self.store.apply(change))

    async def suspect(self) -> None:
        """Let the follower see the tablet, as the scanner reads it, and wait for the grace."""
        self.follower.tablet_read(await self.read(), self.table)
        self.clock.advance(END_GRACE_S)


def story(tell: Callable[[Life], Awaitable[None]], **fields: object) -> None:
    async def run() -> None:
        life = await Life(**fields).start()  # type: ignore[arg-type]  # any field
        await tell(life)

    asyncio.run(run())


def test_the_mirror_follows_the_log() -> None:
    async def tell(life: Life) -> None:
        life.log.write(lake_file("a"), lake_file("b", deleted_rows=4, deletes="v1"))
        await life.poll()
        files = (await life.read()).files
        assert sorted(files) == ["a", "b"]
        assert (files["b"].tombstones, files["b"].live_bytes) == (4, 600)
        life.log.write(lake_file("b", deleted_rows=5, deletes="v2"), lake_file("c"), went=["a"])
        await life.poll()
        files = (await life.read()).files
        assert sorted(files) == ["b", "c"]
        assert files["b"].tombstones == 5
        head = (await life.mirror()).head
        assert head is not None
        assert head.version == 2
        assert not await life.store.garbage("t1")

    story(tell)


def test_no_compactor_gets_a_job_whose_input_left_after_the_reservation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer of the reservation is lost, and the next try reads a tablet without the input."""

    async def tell(life: Life) -> None:
        life.log.write(lake_file("a"), lake_file("b"))
        await life.poll()
        apply, answers = life.store.apply, list[on.Event]()

        async def slow(change: Change, **options: Any) -> Outcome:
            outcome = await apply(change, **options)
            if isinstance(change, ReserveFiles):
                life.log.write(went=["b"])
                await life.poll()
                outcome = await apply(change, **options)
            return outcome

        monkeypatch.setattr(life.store, "apply", slow)
        wanted = job("j1", inputs=("a", "b"), tablet=life.tablet)
        actions = StoreActions(life.context, answers.append, {"t1": life.table})
        await actions.perform(do.Reserve(take="x", job=wanted, compactor="c1"))
        (answer,) = answers
        assert isinstance(answer, on.JobReserveUnknown)
        assert answer.attempt in (await life.read()).running  # Released later, by this event.
        assert not life.context.faults.sentences("t1")

    story(tell)


class Steps:
    """Notes the changes of a mirror, and whether planning was held meanwhile; one may fail."""

    def __init__(self, life: Life, lost_after: int | None) -> None:
        self.sent: list[tuple[int, int, bool]] = []
        """Files, version, whether planning was held."""
        self.is_held, self._lost_after, self._apply = False, lost_after, life.store.apply
        life.follower.planning_held = self.holding

    @contextmanager
    def holding(self, table: str) -> Iterator[None]:
        assert table == "t1"
        self.is_held = True
        try:
            yield
        finally:
            self.is_held = False

    async def apply(self, change: Change, **options: Any) -> Outcome:
        if isinstance(change, MirrorFiles):
            count = sum(len(files.came) + len(files.went) for files in change.files.values())
            self.sent.append((count, change.version, self.is_held))
            if len(self.sent) - 1 == self._lost_after:
                raise MetadataError("the store is gone")
        return await self._apply(change, **options)


@pytest.mark.parametrize("lost_after", [None, 1, 2])
def test_a_large_difference_is_mirrored_in_bounded_changes(
    monkeypatch: pytest.MonkeyPatch, lost_after: int | None
) -> None:
    monkeypatch.setattr(mirror, "MIRRORED_MAX", 3)

    async def tell(life: Life) -> None:
        steps = Steps(life, lost_after)
        monkeypatch.setattr(life.store, "apply", steps.apply)
        life.log.write(*(lake_file(f"f{number}") for number in range(8)))
        await life.poll()
        if lost_after is None:
            assert steps.sent == [(3, -1, True), (3, -1, True), (2, 1, True)]
        else:
            head = (await life.mirror()).head
            assert head is not None
            assert head.version == -1
            assert len((await life.read()).files) == 3 * lost_after
            life.follower = life.another()
            await life.poll()
        assert sorted((await life.read()).files) == [f"f{number}" for number in range(8)]
        head = (await life.mirror()).head
        assert head is not None
        assert head.version == 1
        assert not steps.is_held
        steps.sent.clear()
        life.log.write(lake_file("g"), went=["f0"])
        await life.poll()
        assert steps.sent == [(2, 2, False)], "a small difference holds nothing up"

    story(tell)


def test_steps_of_a_difference_have_each_file_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "MIRRORED_MAX", 7)

    def tablet(*names: str) -> mirror.MirroredTablet:
        return mirror.MirroredTablet("p", {name: lake_file(name) for name in names})

    ends = [bytes([number]) for number in range(5)]
    before = {end: tablet(*(f"{end.hex()}-{n}" for n in range(10))) for end in ends}
    mirrored = mirror.difference({}, before).mirrored
    after = {end: tablet(*(f"{end.hex()}-{n}" for n in range(5, 12))) for end in ends[1:]}
    after[ends[0]] = tablet("01-0", "00-3")
    change = mirror.difference(mirrored, after)
    came, went = Counter[tuple[bytes, str]](), Counter[tuple[bytes, str]]()
    for step in change.steps:
        assert sum(len(files.came) + len(files.went) for files in step.values()) <= 7
        for end, files in step.items():
            came.update((end, file.path) for file in files.came)
            went.update((end, path) for path in files.went)
    old = {(end, path) for path, (end, _) in mirrored.items()}
    new = {(end, path) for end, files in after.items() for path in files.files}
    assert (came, went) == (Counter(new - old), Counter(old - new))
    assert change.went == {
        end: frozenset(path for of, path in old - new if of == end) for end in ends
    }
    assert change.mirrored.keys() == {path for _, path in new}


def test_a_poll_without_news_writes_nothing() -> None:
    async def tell(life: Life) -> None:
        life.log.write(lake_file("a"))
        await life.poll()
        before = (await life.mirror()).head
        await life.poll()
        assert (await life.mirror()).head == before
        assert life.follower.moves == 1

    story(tell)


def test_a_new_coordinator_compares_the_mirror_as_a_whole() -> None:
    async def tell(life: Life) -> None:
        life.log.write(lake_file("a"), lake_file("b"))
        await life.poll()
        life.log.write(lake_file("c"), went=["b"])
        life.follower = life.another()
        await life.poll()
        assert sorted((await life.read()).files) == ["a", "c"]
        assert (await life.read()).record.files == 2

    story(tell)


def test_a_mirror_that_another_coordinator_moved_is_read_again() -> None:
    async def tell(life: Life) -> None:
        life.log.write(lake_file("a"))
        await life.poll()
        head = (await life.mirror()).head
        assert head is not None
        other = MirrorFiles(table="t1", after=head.token, token="other", version=1)
        applied(await life.store.apply(other))
        life.log.write(lake_file("b"))
        await life.poll()
        assert sorted((await life.read()).files) == ["a", "b"]

    story(tell)


def test_partitions_become_tablets() -> None:
    async def tell(life: Life) -> None:
        days = [(("day", "2026-01-01"),), (("day", None),)]
        life.log.versions = [Snapshot(0, "uid-1", COLUMNS, partition_columns=("day",))]
        life.log.write(lake_file("x/a", partition=days[0]), lake_file("b", partition=days[1]))
        await life.poll()
        tablets = await life.store.tablets(await life.store.tablet_ids("t1"))
        found = {tablet.bounds.partition: sorted(tablet.files) for tablet in tablets if tablet}
        assert found == {
            "day=2026-01-01": ["x/a"],
            "day=__HIVE_DEFAULT_PARTITION__": ["b"],
        }

    story(tell, partition_by=("day",))


def test_new_columns_of_the_log_become_those_of_the_table() -> None:
    async def tell(life: Life) -> None:
        wider = (
            COLUMNS[0],
            COLUMNS[1].__class__("amount", "double"),
            COLUMNS[1].__class__("x", "int64"),
        )
        life.log.write(lake_file("a"), columns=wider)
        await life.poll()
        table = await life.store.table("t1")
        assert table is not None
        assert [(column.name, column.type, column.since) for column in table.schema] == [
            ("day", "date32[day]", 0),
            ("amount", "double", 1),
            ("x", "int64", 1),
        ]

    story(tell)


def test_columns_that_change_without_a_version_become_those_of_the_table() -> None:
    async def tell(life: Life) -> None:
        life.log.write(lake_file("a"))
        await life.poll()
        more = (*COLUMNS, COLUMNS[1].__class__("x", "int64"))
        changed = replace(life.log.head, columns=more)
        life.log.load = lambda known=None: changed  # type: ignore[method-assign]
        await life.poll()
        table = await life.store.table("t1")
        assert table is not None
        assert [column.name for column in table.schema] == ["day", "amount", "x"]

    story(tell)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"table_id": "uid-2"}, "created anew"),
        ({"refusal": "column mapping is not supported"}, "column mapping is not supported"),
        ({"partition_columns": ("day",)}, "other partition columns"),
    ],
)
def test_a_refused_version_is_not_mirrored_and_shown(change: dict[str, object], says: str) -> None:
    async def tell(life: Life) -> None:
        life.log.write(lake_file("a"))
        await life.poll()
        life.log.write(lake_file("b"), **change)
        await life.poll()
        head = (await life.mirror()).head
        assert head is not None
        assert says in head.problem
        assert head.version == 1
        assert sorted((await life.read()).files) == ["a"]
        assert says in " ".join(life.context.faults.notices)

    story(tell)


def test_a_silent_log_is_shown_until_it_answers() -> None:
    async def tell(life: Life) -> None:
        life.log.write(lake_file("a"))
        await life.poll()
        life.log.silence = "the bucket is gone"
        await life.poll()
        await life.poll()
        head = (await life.mirror()).head
        assert head is not None
        assert "its log does not answer: the bucket is gone" in head.problem
        assert life.context.faults.notices
        life.log.silence = ""
        await life.poll()
        head = (await life.mirror()).head
        assert head is not None
        assert head.problem == ""
        assert not life.context.faults.notices

    story(tell)


def test_an_attempt_that_lost_an_input_is_cancelled() -> None:
    async def tell(life: Life) -> None:
        await life.mark((await life.begin(),))
        life.log.write(went=["a"])
        await life.poll()
        await life.suspect()
        await life.poll()
        (event,) = life.events
        assert isinstance(event, on.AttemptCancelAsked)
        assert (event.attempt, event.lost_input) == ("x1", True)

    story(tell)


def test_an_attempt_in_the_log_is_ended_though_its_compactor_is_dead() -> None:
    async def tell(life: Life) -> None:
        output = await life.begin()
        await life.mark((output,))
        life.log.write(lake_file(output, 20), went=["a", "b"], attempt="x1")
        await life.poll()
        await life.suspect()
        await life.poll()
        assert not life.events
        assert not (await life.read()).running
        (entry,) = await life.store.history("t1")
        assert (entry.end, entry.outputs) == ("committed", (output,))
        assert not await life.store.garbage("t1")
        assert sorted((await life.read()).files) == [output]

    story(tell)


def test_a_release_looks_for_the_attempt_first() -> None:
    async def tell(life: Life) -> None:
        output = await life.begin()
        assert not await life.follower.finish(life.table, life.tablet, "x1")
        await life.mark((output,))
        assert not await life.follower.finish(life.table, life.tablet, "x1")
        life.log.write(lake_file(output, 20), went=["a", "b"], attempt="x1")
        assert await life.follower.finish(life.table, life.tablet, "x1")
        outcome = await life.store.outcome("t1", "x1")
        assert outcome is not None
        assert outcome.end is AttemptEnd.COMMITTED
        life.log.silence = "away"
        assert not await life.follower.finish(life.table, life.tablet, "x1")

    story(tell)


def test_outputs_of_an_attempt_that_sent_nothing_are_deleted_after_the_grace() -> None:
    async def tell(life: Life) -> None:
        output = await life.begin()
        await life.end(AttemptEnd.FAILED, cause="out of memory")
        await life.poll()
        assert not life.log.deleted
        life.clock.advance(GRACE_S)
        await life.poll()
        assert life.log.deleted == [output]
        assert not await life.store.garbage("t1")

    story(tell)


def test_outputs_that_may_have_been_sent_wait_until_the_version_has_grown() -> None:
    async def tell(life: Life) -> None:
        output = await life.begin()
        await life.mark((output,))
        await life.end(AttemptEnd.FAILED, cause="the answer was lost")
        await life.poll()
        life.clock.advance(GRACE_S)
        for _ in range(3):
            await life.poll()
        assert not life.log.deleted
        life.log.write(lake_file("c"))
        await life.poll()
        assert life.log.deleted == [output]
        assert not await life.store.garbage("t1")
        await life.poll()
        assert not await life.store.publishing("t1")

    story(tell)


def test_outputs_of_a_late_commit_are_never_deleted() -> None:
    async def tell(life: Life) -> None:
        output = await life.begin()
        await life.mark((output,))
        await life.end(AttemptEnd.LOST, cause="silent")
        await life.poll()
        life.log.write(lake_file(output, 20), went=["a", "b"], attempt="x1")
        life.log.write(lake_file("c"))
        life.clock.advance(GRACE_S)
        for _ in range(3):
            await life.poll()
        assert not life.log.deleted
        assert sorted((await life.read()).files) == ["c", output]
        assert not await life.store.garbage("t1")

    story(tell)


def test_an_output_that_a_commit_left_out_is_deleted() -> None:
    async def tell(life: Life) -> None:
        life.log.write(lake_file("a"), lake_file("b"))
        await life.poll()
        first, second = await life.reserve("a", "b", outputs=2)
        await life.mark((first, second))
        life.log.write(lake_file(first), went=["a"], attempt="x1")
        await life.end(AttemptEnd.COMMITTED, version=2, outputs=())
        await life.poll()
        life.clock.advance(GRACE_S)
        await life.poll()
        life.log.write(lake_file("c"), went=[first])
        await life.poll()
        assert life.log.deleted == [second]
        assert not await life.store.garbage("t1")

    story(tell)


@pytest.mark.parametrize("case", ["removed-again", "history-missing"])
def test_outputs_that_a_version_had_are_left_to_the_vacuum(case: str) -> None:
    async def tell(life: Life) -> None:
        output = await life.begin()
        await life.mark((output,))
        await life.end(AttemptEnd.LOST, cause="silent")
        await life.poll()
        life.clock.advance(GRACE_S)
        await life.poll()
        if case == "removed-again":
            life.log.write(lake_file(output, 20), went=["a", "b"])
            life.log.write(went=[output])
        else:
            life.log.write(lake_file("c"))
            life.log.forgotten = life.log.head.version + 1
        await life.poll()
        assert not life.log.deleted
        assert not await life.store.garbage("t1")
        assert any("left to the vacuum" in line for line in life.logged)

    story(tell)


def test_the_mark_of_a_running_attempt_stays() -> None:
    async def tell(life: Life) -> None:
        await life.mark((await life.begin(),))
        for _ in range(3):
            life.clock.advance(GRACE_S)
            await life.poll()
        assert len(await life.store.publishing("t1")) == 1

    story(tell)


def test_a_detached_table_leaves_the_store_and_its_files_stay() -> None:
    async def tell(life: Life) -> None:
        output = await life.begin()
        applied(await life.store.apply(DropTable(table="t1")))
        life.table = (await life.store.table("t1")) or life.table
        assert life.table.state is TableState.GOING
        await life.poll()
        assert not life.log.deleted
        life.clock.advance(GRACE_S)
        await life.poll()
        assert life.log.deleted == [output]
        await life.poll()
        assert await life.store.table("t1") is None
        assert sorted(life.log.head.files) == ["a", "b"]

    story(tell)


def test_a_detached_table_with_a_marked_attempt_does_not_wait_for_versions() -> None:
    async def tell(life: Life) -> None:
        await life.mark((await life.begin(),))
        applied(await life.store.apply(DropTable(table="t1")))
        await life.poll()
        await life.poll()
        assert await life.store.table("t1") is None
        assert not life.log.deleted

    story(tell)


def test_one_silent_table_delays_no_other() -> None:
    async def tell(life: Life) -> None:
        life.log.silence = "away"
        life.follower.start_due()
        life.follower.start_due()
        await asyncio.sleep(0.05)
        assert life.follower.polls == 1
        life.log.silence = ""
        life.log.write(lake_file("a"))
        life.follower.start_due()
        assert life.follower.polls == 1
        life.follower.poke("t1")
        life.follower.start_due()
        async with asyncio.timeout(10):
            while not (await life.read()).files:
                await asyncio.sleep(0.01)

    story(tell)


def test_a_file_of_the_mirror_has_its_deletes_as_a_tag() -> None:
    file = mirrored_file(lake_file("a", 10, deleted_rows=10, deletes="v"))
    assert file == DataFile(
        path="a", size_bytes=1000, rows=10, tombstones=10, live_bytes=0, tags=(("deletes", "v"),)
    )
