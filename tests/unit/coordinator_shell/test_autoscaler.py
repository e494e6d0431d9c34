"""The autoscaler's shell: what it sees of groups and actors, and what it does about them.

Coordinator and store are the real ones; only Ray is scripted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from common.errors import RequestError, UnavailableError, UnknownGroupError
from common.model.job import Job, Kind, TabletPlan, job_id
from common.model.tablet import Record, TabletId
from common.settings import AutoscalerSettings, CompactorCount, GroupSettings, Settings
from common.wire import Heartbeat
from coordinator.context import ShellContext
from coordinator.core import events as on
from coordinator.ports import Lack
from coordinator.wiring import CoordinatorParts, assemble
from neve import api
from tests.support.memory_store import MemoryStore
from tests.support.predictable import CountedIds, ManualClock

pytestmark = pytest.mark.anyio

SETTINGS = Settings(
    groups={"small": GroupSettings(compactors=CompactorCount(min=0, max=3), slots=1)},
    autoscaler=AutoscalerSettings(
        grow_after_s=4.0, grow_interval_s=4.0, shrink_after_s=20.0, shrink_interval_s=4.0
    ),
)


@dataclass
class ScriptedRay:
    """Actors that exist or not, as a test says."""

    existing: set[str] = field(default_factory=set)
    shut_downs: list[tuple[str, float | None]] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    answers: bool = True
    edition: str = ""
    lacks: str = ""

    async def names(self) -> frozenset[str]:
        if not self.answers:
            raise UnavailableError("Ray's head is gone")
        return frozenset(self.existing)

    async def start(self, group: str, name: str) -> None:
        assert name.startswith(f"{group}-")
        self.existing.add(name)

    async def shut_down(self, name: str, wait_max_s: float | None) -> None:
        self.shut_downs.append((name, wait_max_s))

    async def kill(self, name: str) -> None:
        self.killed.append(name)
        self.existing.discard(name)

    async def why_gone(self, name: str) -> str:
        return f"{name} ran out of memory"

    async def lack(self, group: str, *, asked: bool) -> Lack:
        assert group == "small"
        return Lack(self.lacks, final=not asked)


def planned(tablet: TabletId) -> on.TabletPlanned:
    paths = (f"f{tablet.text}",)
    job = Job(
        id=job_id(tablet, Kind.SYSTEM, None, paths),
        tablet=tablet,
        table_name="users",
        kind=Kind.SYSTEM,
        inputs=paths,
        input_bytes=1 << 20,
        group="small",
        priority=1,
        reason="because",
    )
    return on.TabletPlanned(
        tablet=tablet, plan=TabletPlan(jobs=(job,)), record=Record(version=1), settings_version=1
    )


class Stage:
    """A coordinator with one group, and the compactors that a test lets answer."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.clock = ManualClock()
        self.ray = ScriptedRay()
        self.logged: list[str] = []
        self.answering: dict[str, bool] = {}
        """Compactor → whether its engine is up."""
        self.edition = self.start_problem = ""
        store = MemoryStore(self.clock)
        context = ShellContext(store, self.clock, CountedIds("a"), self._log, "coord-1")
        self.parts: CoordinatorParts = assemble(settings, context, lever=self.ray)

    def _log(self, event: str, **_: object) -> None:
        self.logged.append(event)

    def queue(self, jobs: int) -> None:
        """Let the last plans of so many tablets want a job each."""
        for number in range(jobs):
            tablet = TabletId("t1", b"%04d" % number)
            self.parts.service.submit(planned(tablet))

    async def rounds(self, seconds: float) -> api.GroupScaling:
        for _ in range(int(seconds / 2)):
            self.clock.advance(2.0)
            for name, ready in self.answering.items():
                beat = Heartbeat(
                    compactor=name,
                    incarnation="i",
                    group="small",
                    node="n",
                    slots=1,
                    ready=ready,
                    edition=self.edition,
                    start_problem=self.start_problem,
                )
                self.parts.service.submit(on.CompactorHeard(beat=beat))
            await self.parts.autoscaler.round()
        return self.scaling()

    def scaling(self) -> api.GroupScaling:
        (group,) = (each for each in self.parts.status().groups if each.group == "small")
        assert group.scaling is not None
        return group.scaling


async def test_without_work_a_group_from_zero_has_nobody() -> None:
    stage = Stage()
    scaling = await stage.rounds(60.0)
    assert (scaling.desired, scaling.starting, stage.ray.existing) == (0, 0, set())
    assert scaling.reason == "no work"


async def test_queued_jobs_start_compactors_up_to_the_most() -> None:
    stage = Stage()
    stage.queue(40)
    scaling = await stage.rounds(20.0)
    assert stage.ray.existing == {"small-1", "small-2", "small-3"}
    assert (scaling.desired, scaling.starting) == (3, 3)
    assert "at the maximum of 3 compactors" in scaling.blocked
    assert stage.logged.count("group scaled") == len(scaling.decisions)
    started = [name for decision in scaling.decisions for name in decision.started]
    assert sorted(started) == ["small-1", "small-2", "small-3"]


async def test_the_work_done_they_are_drained_one_by_one() -> None:
    stage = Stage()
    stage.queue(8)
    await stage.rounds(20.0)
    stage.answering = dict.fromkeys(stage.ray.existing, True)
    for number in range(8):
        gone = on.TabletGone(tablet=TabletId("t1", b"%04d" % number))
        stage.parts.service.submit(gone)
    busy = len(stage.ray.existing)
    for left in reversed(range(busy)):
        await stage.rounds(40.0)
        name, wait_max_s = stage.ray.shut_downs[-1]
        assert (len(stage.ray.shut_downs), wait_max_s) == (busy - left, None)
        del stage.answering[name]
        stage.ray.existing.discard(name)
        gone_for_good = on.CompactorGone(compactor=name, cause="drained", incarnation="i")
        stage.parts.service.submit(gone_for_good)
    scaling = await stage.rounds(60.0)
    assert (scaling.desired, scaling.starting, scaling.draining) == (0, 0, 0)
    assert scaling.starts_failed == 0


async def test_a_compactor_whose_engine_does_not_come_up_is_starting() -> None:
    stage = Stage()
    stage.queue(1)
    await stage.rounds(10.0)
    stage.answering = {"small-1": False}
    scaling = await stage.rounds(10.0)
    assert (scaling.starting, stage.ray.existing) == (1, {"small-1"})
    stage.answering = {"small-1": True}
    assert (await stage.rounds(4.0)).starting == 0


async def test_one_that_dies_on_its_way_is_counted_and_explained() -> None:
    stage = Stage()
    stage.queue(1)
    await stage.rounds(8.0)
    stage.ray.existing.clear()
    scaling = await stage.rounds(2.0)
    assert scaling.starts_failed == 1
    assert scaling.blocked.startswith("1 start failed")
    assert "small-1 ran out of memory" in scaling.blocked
    assert (await stage.rounds(20.0)).starting == 1


async def test_one_that_stays_silent_is_given_up_and_tried_again() -> None:
    stage = Stage()
    stage.queue(1)
    timeout_s = SETTINGS.autoscaler.start_timeout_s
    scaling = await stage.rounds(timeout_s + 20.0)
    assert stage.ray.killed == ["small-1"]
    assert "compactor does not come up" in stage.logged
    assert scaling.starts_failed == 1
    given_up = [name for decision in scaling.decisions for name in decision.given_up]
    assert given_up == ["small-1"]
    assert (await stage.rounds(60.0)).starting == 1


async def test_what_no_node_has_is_said_of_a_start_that_lasts_and_of_one_that_was_given_up() -> (
    None
):
    stage = Stage()
    stage.queue(1)
    stage.ray.lacks = "no node has the Ray resource 'r'"
    scaling = await stage.rounds(20.0)
    assert scaling.reason.endswith("s: no node has the Ray resource 'r'")
    scaling = await stage.rounds(600.0)
    (late,) = (decision for decision in scaling.decisions if decision.given_up)
    assert late.reason.endswith("no heartbeat within 600 s: no node has the Ray resource 'r'")


async def test_what_no_node_has_is_said_of_a_group_without_work_unless_it_is_to_have_no_compactor():
    stage = Stage()
    stage.ray.lacks = "no node has the Ray resource 'r'"
    scaling = await stage.rounds(4.0)
    assert (scaling.missing, scaling.unobtainable) == (stage.ray.lacks, True)
    await stage.parts.autoscaler.scale("small", 0)
    scaling = await stage.rounds(4.0)
    assert (scaling.missing, scaling.unobtainable) == ("", False)


async def test_why_spark_does_not_start_is_said_of_a_compactor_and_of_one_that_was_given_up():
    stage = Stage()
    stage.queue(1)
    await stage.rounds(20.0)
    stage.answering, stage.start_problem = {"small-1": False}, "no Java on node n1"
    scaling = await stage.rounds(4.0)
    assert scaling.reason.endswith("s: no Java on node n1")
    warnings = stage.parts.status().warnings
    assert "compactor small-1 of group small cannot start: no Java on node n1" in warnings
    scaling = await stage.rounds(600.0)
    (late,) = (decision for decision in scaling.decisions if decision.given_up)
    assert late.reason.endswith("no heartbeat within 600 s: no Java on node n1")


async def test_an_operator_sets_the_number_and_takes_it_back() -> None:
    stage = Stage()
    await stage.parts.autoscaler.scale("small", 5)
    scaling = await stage.rounds(4.0)
    assert len(stage.ray.existing) == 5
    assert (scaling.set_to, scaling.least, scaling.most) == (5, 5, 5)
    await stage.parts.autoscaler.scale("small", None)
    scaling = await stage.rounds(4.0)
    assert (scaling.set_to, scaling.least, scaling.most) == (None, 0, 3)


async def test_the_number_survives_a_restart_of_the_coordinator() -> None:
    stage = Stage()
    await stage.parts.autoscaler.scale("small", 2)
    again = assemble(SETTINGS, stage.parts.context, lever=stage.ray)
    await again.autoscaler.round()
    assert len(stage.ray.existing) == 2


@pytest.mark.parametrize(
    ("group", "count", "error", "says"),
    [
        (
            "large",
            1,
            UnknownGroupError,
            "group 'large' does not exist or has no compactors, expected",
        ),
        ("small", -1, RequestError, "number of compactors is -1, expected 0 to 1000"),
        ("small", 1001, RequestError, "number of compactors is 1001"),
    ],
)
async def test_a_number_that_is_none_is_refused(
    group: str, count: int, error: type[Exception], says: str
) -> None:
    stage = Stage()
    with pytest.raises(error, match=says):
        await stage.parts.autoscaler.scale(group, count)
    assert await stage.parts.store.scales() == {}


async def test_a_stopped_compactor_is_neither_counted_nor_failed() -> None:
    stage = Stage()
    await stage.parts.autoscaler.scale("small", 1)
    await stage.rounds(2.0)
    stage.answering = {"small-1": True}
    await stage.rounds(4.0)
    await stage.parts.autoscaler.shut_down("small-1", 30.0)
    assert stage.ray.shut_downs == [("small-1", 30.0)]
    scaling = await stage.rounds(4.0)
    assert stage.ray.existing == {"small-1", "small-2"}  # Another takes its place meanwhile.
    assert (scaling.starting, scaling.draining) == (1, 1)
    stage.answering.clear()
    stage.ray.existing.discard("small-1")
    assert (await stage.rounds(4.0)).starts_failed == 0


async def test_ray_s_silence_ends_the_round_and_not_the_coordinator() -> None:
    stage = Stage()
    stage.queue(1)
    stage.ray.answers = False
    with pytest.raises(UnavailableError):
        await stage.rounds(2.0)
    stage.ray.answers = True
    assert (await stage.rounds(20.0)).starting == 1


async def test_a_service_that_is_taken_down_starts_nobody() -> None:
    stage = Stage()
    stage.parts.autoscaler.stop()
    stage.queue(5)
    await stage.rounds(60.0)
    assert stage.ray.existing == set()


async def test_compactors_of_other_settings_are_replaced_one_at_a_time() -> None:
    stage = Stage()
    await stage.parts.autoscaler.scale("small", 2)
    await stage.rounds(4.0)
    stage.answering = dict.fromkeys(stage.ray.existing, True)
    await stage.rounds(10.0)
    assert stage.ray.shut_downs == []
    stage.ray.edition = "newer"
    await stage.rounds(20.0)
    assert stage.ray.shut_downs == [("small-1", None)]
    assert stage.ray.existing == {"small-1", "small-2", "small-3"}
    assert stage.scaling().decisions[-1].started == ("small-3",)


async def test_a_compactor_that_somebody_started_by_hand_is_left_alone() -> None:
    stage = Stage()
    await stage.parts.autoscaler.scale("small", 1)
    stage.ray.existing = {"mine", "second-1"}
    stage.answering = {"mine": True, "second-1": True}
    await stage.rounds(40.0)
    assert stage.ray.existing == {"mine", "second-1", "small-1"}
    assert stage.ray.shut_downs == []
