"""The compactor's shell against fakes: taking, beating, committing, draining, stopping."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from common.errors import (
    CompactionError,
    ConfigError,
    ConflictError,
    EngineDiedError,
    InputError,
    MetadataError,
    UnavailableError,
    UnknownOutcomeError,
)
from common.metadata.changes import Refused, Unknown
from common.metadata.store import TabletStore
from common.metadata.store_values import AttemptOutcome
from common.model.group import RateGrant
from common.model.outcome import AttemptEnd, RefusalCode, RowCounts
from common.runtime import SystemClock
from common.settings import CompactorSettings
from common.wire import AttemptReport, HeartbeatReply
from compactor import service
from compactor.service import CompactorService
from tests.support.assignments import an_assignment
from tests.support.compactor_fakes import (
    FakeCoordinator,
    FakeEngine,
    FakeFiles,
    FakeMetrics,
    FakeSpans,
    FakeStore,
)
from tests.support.patience import PATIENCE_S
from tests.support.predictable import CountedIds


@dataclass
class World:
    coordinator: FakeCoordinator = field(default_factory=FakeCoordinator)
    engine: FakeEngine = field(default_factory=FakeEngine)
    store: FakeStore = field(default_factory=FakeStore)
    files: FakeFiles = field(default_factory=FakeFiles)
    metrics: FakeMetrics = field(default_factory=FakeMetrics)
    spans: FakeSpans = field(default_factory=FakeSpans)
    events: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    settings: CompactorSettings = field(
        default_factory=lambda: CompactorSettings(
            slots=2, beat_interval_s=0.01, take_wait_max_s=0.02, drain_timeout_s=5.0
        )
    )

    def service(self) -> CompactorService:
        return CompactorService(
            "c-1",
            self.settings,
            node="node-1",
            coordinator=self.coordinator,
            engine=self.engine,
            store=cast(TabletStore, self.store),
            files=self.files,
            metrics=self.metrics,
            spans=self.spans,
            ids=CountedIds(),
            clock=SystemClock(),
            log=lambda event, **fields: self.events.append((event, fields)),
        )


Script = Callable[[World, CompactorService], Awaitable[None]]


def play(script: Script, setup: Callable[[World], None] = lambda _: None) -> World:
    """Run a service while the script acts on its world, then drain it."""

    async def main() -> World:
        world = World()
        setup(world)
        service = world.service()
        running = asyncio.create_task(service.run())
        async with asyncio.timeout(PATIENCE_S):
            await script(world, service)
            service.drain()
            await running
        return world

    return asyncio.run(main())


async def until(true: Callable[[], object]) -> None:
    while not true():
        await asyncio.sleep(0.002)


def reported(count: int) -> Script:
    async def script(world: World, _: CompactorService) -> None:
        await until(lambda: len(world.coordinator.reports) >= count)

    return script


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_jobs_are_run_committed_and_reported_with_all_slots(slots: int) -> None:
    def setup(world: World) -> None:
        world.settings = replace(world.settings, slots=slots)
        world.coordinator.jobs.extend(an_assignment(attempt=f"a{n}") for n in range(5))

    world = play(reported(5), setup)
    assert {report.attempt for report in world.coordinator.reports} == {f"a{n}" for n in range(5)}
    assert {report.end for report in world.coordinator.reports} == {AttemptEnd.COMMITTED}
    assert len(world.store.commits) == 5
    assert world.engine.most_at_once == slots
    assert world.coordinator.left == [("c-1", "drained")]
    assert world.engine.stopped
    assert world.files.deleted == []


def test_heartbeats_tell_what_is_held_and_how_far_it_is() -> None:
    async def script(world: World, service: CompactorService) -> None:
        await until(lambda: any(beat.attempts for beat in world.coordinator.beats))
        (progress,) = next(beat.attempts for beat in world.coordinator.beats if beat.attempts)
        assert (progress.attempt, progress.fraction, progress.bytes_done) == ("a", 0.5, 10)
        service.drain()
        await until(lambda: world.coordinator.beats[-1].draining)
        world.engine.gate.set()

    def setup(world: World) -> None:
        world.engine.gate.clear()
        world.coordinator.jobs.append(an_assignment(attempt="a"))

    world = play(script, setup)
    first = world.coordinator.beats[0]
    assert (first.compactor, first.node, first.slots, first.engine_pid) == (
        "c-1",
        "node-1",
        2,
        4711,
    )
    assert [report.end for report in world.coordinator.reports] == [AttemptEnd.COMMITTED]


STALL_S = 0.1


def stalling(world: World, **attempts: str) -> None:
    """Have attempts run that never end; of some there is progress all the while."""
    slots = max(1, len(attempts))
    world.settings = replace(world.settings, attempt_stall_s=STALL_S, slots=slots)
    world.engine.gate.clear()
    world.engine.lively = {name for name, how in attempts.items() if how == "lively"}
    world.coordinator.jobs.extend(an_assignment(attempt=name) for name in attempts)


def test_an_attempt_that_stands_still_is_given_up_with_the_engine() -> None:
    world = play(reported(2), lambda world: stalling(world, a="still", b="lively"))
    (cause,) = world.engine.restarts
    assert cause.startswith("no progress for")
    ends = {
        report.attempt: (report.end, report.error_class) for report in world.coordinator.reports
    }
    assert ends == {
        "a": (AttemptEnd.FAILED, "AttemptStalledError"),
        # It was merely in the same engine.
        "b": (AttemptEnd.LOST, "EngineRestartedError"),
    }
    assert len(world.files.deleted) == 2, "no commit was sent: the outputs are their own"
    assert not world.store.commits
    (said,) = [fields for event, fields in world.events if event == "engine restarted"]
    assert (said["stalled"], said["cause"]) == (["a"], cause)


def test_an_attempt_with_progress_is_never_given_up() -> None:
    async def script(world: World, _: CompactorService) -> None:
        await until(lambda: world.engine.running)
        await asyncio.sleep(4 * STALL_S)
        world.engine.gate.set()
        await until(lambda: world.coordinator.reports)

    world = play(script, lambda world: stalling(world, a="lively"))
    assert [report.end for report in world.coordinator.reports] == [AttemptEnd.COMMITTED]
    assert not world.engine.restarts


def test_an_attempt_that_never_reaches_the_engine_is_given_up_too() -> None:
    """Its storage hangs: restarting the engine alone would not end it."""

    def setup(world: World) -> None:
        stalling(world, a="still")
        world.files.gate.clear()

    world = play(reported(1), setup)
    (report,) = world.coordinator.reports
    assert (report.end, report.error_class) == (AttemptEnd.FAILED, "AttemptStalledError")
    assert not world.engine.assigned


def test_a_silent_engine_is_restarted_while_it_is_idle() -> None:
    async def script(world: World, _: CompactorService) -> None:
        world.engine.silent = True
        await until(lambda: world.engine.restarts)

    world = play(script, stalling)
    assert "no life sign" in world.engine.restarts[0]


def test_heartbeats_tell_how_long_ago_there_was_progress() -> None:
    async def script(world: World, _: CompactorService) -> None:
        def quiet_s() -> float:
            listed = world.coordinator.beats[-1].attempts if world.coordinator.beats else ()
            return max((each.quiet_s for each in listed), default=0.0)

        await until(lambda: quiet_s() > 0.02)
        world.engine.gate.set()

    play(script, lambda world: stalling(world, a="still"))


def test_an_unanswered_take_is_repeated_under_the_same_id() -> None:
    async def script(world: World, _: CompactorService) -> None:
        await until(lambda: len(world.coordinator.takes) >= 4)
        world.coordinator.away = False
        await until(lambda: world.coordinator.reports)

    def setup(world: World) -> None:
        world.coordinator.away = True
        world.coordinator.jobs.append(an_assignment())

    world = play(script, setup)
    per_slot = {take.take for take in world.coordinator.takes[:4]}
    assert len(per_slot) == 2, "two slots, each with one id until it is answered"


def test_a_job_commits_while_the_coordinator_is_away_and_is_reported_later() -> None:
    async def script(world: World, service: CompactorService) -> None:
        await until(lambda: world.engine.running)
        world.coordinator.away = True
        world.engine.gate.set()
        await until(lambda: world.store.commits)
        assert [held.attempt for held in service.status().attempts] == ["attempt-1"]
        assert world.coordinator.reports == []
        await asyncio.sleep(0.05)
        world.coordinator.away = False
        await until(lambda: world.coordinator.reports)

    def setup(world: World) -> None:
        world.engine.gate.clear()
        world.coordinator.jobs.append(an_assignment())

    world = play(script, setup)
    assert [report.end for report in world.coordinator.reports] == [AttemptEnd.COMMITTED]


def test_a_cancel_in_a_heartbeat_ends_the_attempt() -> None:
    async def script(world: World, _: CompactorService) -> None:
        await until(lambda: world.engine.running)
        cancel = ("attempt-1", "never-heard-of")
        world.coordinator.reply = HeartbeatReply(coordinator="coordinator-1", cancel=cancel)
        await until(lambda: world.coordinator.reports)

    def setup(world: World) -> None:
        world.engine.gate.clear()
        world.coordinator.jobs.append(an_assignment())

    world = play(script, setup)
    (report,) = world.coordinator.reports
    assert (report.end, report.cause) == (AttemptEnd.CANCELLED, "the coordinator took the job back")
    assert world.store.commits == []
    assert world.files.deleted == [an_assignment().reservation.output_paths]


def test_grants_reach_the_engine_and_heartbeats_say_what_is_applied() -> None:
    async def script(world: World, service: CompactorService) -> None:
        await until(lambda: world.engine.running)
        assert world.engine.assigned[0].grant_bytes_s == 2e6
        assert applied(service) == 2e6
        grants = (
            RateGrant(attempt="attempt-1", bytes_s=5e5),
            RateGrant(attempt="unknown", bytes_s=1.0),
        )
        world.coordinator.reply = HeartbeatReply(coordinator="coordinator-1", grants=grants)
        await until(lambda: world.engine.granted)
        assert applied(service) == 5e5
        world.coordinator.reply = HeartbeatReply(coordinator="coordinator-1")
        world.engine.gate.set()
        await until(lambda: world.coordinator.reports)

    def applied(service: CompactorService) -> float | None:
        (held,) = service.status().attempts
        return held.granted_bytes_s

    def setup(world: World) -> None:
        world.engine.gate.clear()
        world.coordinator.jobs.append(replace(an_assignment(), grant_bytes_s=2e6))

    world = play(script, setup)
    assert set(world.engine.granted) == {("attempt-1", 5e5)}
    (report,) = world.coordinator.reports
    assert (report.end, report.moved_bytes, report.waited_s) == (AttemptEnd.COMMITTED, 70, 1.5)


def test_a_grant_that_comes_before_the_engine_has_the_job_is_not_lost() -> None:
    async def script(world: World, service: CompactorService) -> None:
        await until(lambda: service.status().attempts)
        grants = (RateGrant(attempt="attempt-1", bytes_s=5e5),)
        world.coordinator.reply = HeartbeatReply(coordinator="coordinator-1", grants=grants)
        await until(lambda: world.engine.granted)
        world.files.gate.set()
        await until(lambda: world.coordinator.reports)

    def setup(world: World) -> None:
        world.files.gate.clear()
        world.coordinator.jobs.append(replace(an_assignment(), grant_bytes_s=2e6))

    world = play(script, setup)
    assert world.engine.assigned[0].grant_bytes_s == 5e5


def test_a_drain_in_a_heartbeat_ends_the_service() -> None:
    async def script(world: World, service: CompactorService) -> None:
        world.coordinator.reply = HeartbeatReply(coordinator="coordinator-1", drain=True)
        await until(lambda: service.status().draining)
        await until(lambda: world.coordinator.left)

    play(script)


@pytest.mark.parametrize(
    "error", [InputError("file a is missing"), EngineDiedError("killed"), CompactionError("odd")]
)
def test_a_failed_rewrite_is_reported_with_its_class(error: CompactionError) -> None:
    def setup(world: World) -> None:
        world.engine.error = error
        world.coordinator.jobs.append(an_assignment())

    world = play(reported(1), setup)
    (report,) = world.coordinator.reports
    assert (report.end, report.error_class) == (AttemptEnd.FAILED, type(error).__name__)
    assert report.cause == str(error)
    assert len(world.files.deleted) == 1


def test_no_file_is_blamed_when_its_whole_location_is_gone() -> None:
    def setup(world: World) -> None:
        world.engine.error = InputError("file a is missing")
        world.files.error_again = UnavailableError("location has lost its mark; is it mounted?")
        world.coordinator.jobs.append(an_assignment())

    world = play(reported(1), setup)
    (report,) = world.coordinator.reports
    assert report.error_class == "UnavailableError"
    assert "is it mounted" in report.cause


def test_a_foreign_location_fails_the_job_before_the_engine_sees_it() -> None:
    def setup(world: World) -> None:
        world.files.error = InputError("location belongs to another store")
        world.engine.error = AssertionError("must not run")
        world.coordinator.jobs.append(an_assignment())

    world = play(reported(1), setup)
    assert world.coordinator.reports[0].error_class == "InputError"


def test_an_engine_that_dies_at_its_start_takes_no_job_until_it_lives() -> None:
    def setup(world: World) -> None:
        world.engine.dies_at_start = 2
        world.coordinator.jobs.append(an_assignment())

    world = play(reported(1), setup)
    assert world.engine.starts >= 3
    assert [report.end for report in world.coordinator.reports] == [AttemptEnd.COMMITTED]


def test_a_machine_that_cannot_run_the_engine_says_why_and_is_tried_again() -> None:
    said: list[str] = []

    def setup(world: World) -> None:
        start = world.engine.start

        async def start_without_java() -> None:
            said.extend(beat.start_problem for beat in world.coordinator.beats)
            if not any("no Java" in each for each in said):
                raise ConfigError("Spark does not start: no Java on node n1")
            await start()

        world.engine.start = start_without_java  # type: ignore[method-assign]  # a fake, for one test
        world.coordinator.jobs.append(an_assignment())

    world = play(reported(1), setup)
    assert "Spark does not start: no Java on node n1" in said
    assert [report.end for report in world.coordinator.reports] == [AttemptEnd.COMMITTED]


def committed(setup: Callable[[World], None]) -> tuple[World, AttemptReport]:
    def both(world: World) -> None:
        world.coordinator.jobs.append(an_assignment())
        setup(world)

    world = play(reported(1), both)
    return world, world.coordinator.reports[0]


def test_a_refused_commit_deletes_own_outputs() -> None:
    world, report = committed(
        lambda world: world.store.answers.append(
            Refused(code=RefusalCode.RELEASED, reason="none held")
        )
    )
    assert report.end is AttemptEnd.LOST
    assert world.files.deleted == [an_assignment().reservation.output_paths]


def test_an_attempt_whose_outputs_are_gone_does_not_commit() -> None:
    outputs = an_assignment().reservation.output_paths
    world, report = committed(lambda world: world.files.gone.update(outputs))
    assert world.store.commits == []
    assert report.end is AttemptEnd.LOST
    assert f"output {outputs[0]} was deleted, as if" in report.cause


def test_an_attempt_whose_outputs_are_gone_may_have_committed_before() -> None:
    def setup(world: World) -> None:
        world.files.gone.update(an_assignment().reservation.output_paths)
        mark = AttemptOutcome(attempt="attempt-1", end=AttemptEnd.COMMITTED)
        world.store.marks["attempt-1"] = mark

    world, report = committed(setup)
    assert (world.store.commits, report.end) == ([], AttemptEnd.COMMITTED)
    assert world.files.deleted == []


def test_outputs_are_looked_for_until_storage_answers() -> None:
    def setup(world: World) -> None:
        world.files.silent = 2

    world, report = committed(setup)
    assert (len(world.store.commits), report.end) == (1, AttemptEnd.COMMITTED)


def test_each_phase_of_a_traced_attempt_is_a_span_up_to_its_last() -> None:
    def traced(world: World) -> None:
        world.coordinator.jobs.append(replace(an_assignment(), trace="trace-1"))

    world = play(reported(1), traced)
    by_name = {name: times for _, name, times, _ in world.spans.sent}
    assert by_name.keys() == {"prepare", "rewrite", "verify", "commit"}
    assert {context for context, *_ in world.spans.sent} == {"trace-1"}
    begins = [by_name[name][0] for name in ("prepare", "rewrite", "verify", "commit")]
    ends = [by_name[name][1] for name in ("prepare", "rewrite", "verify")]
    assert begins == sorted(begins)
    assert ends == begins[1:]
    ((_, _, _, said),) = [each for each in world.spans.sent if each[1] == "commit"]
    assert said["neve.output_bytes"] == world.metrics.ended[0][2]
    assert world.coordinator.reports[0].trace == "trace-1"


def test_only_commits_count_bytes_and_every_attempt_its_waits() -> None:
    def refused(world: World) -> None:
        world.store.answers.append(Refused(code=RefusalCode.RELEASED, reason="none held"))

    world, _ = committed(lambda _: None)
    ((end, read_bytes, written_bytes, waited_s),) = world.metrics.ended
    (commit,) = world.store.commits
    assert (end, waited_s) == (AttemptEnd.COMMITTED, world.coordinator.reports[0].waited_s)
    assert read_bytes == sum(file.size_bytes for file in an_assignment().inputs) > 0
    assert written_bytes == sum(file.size_bytes for file in commit.outputs) > 0
    assert world.metrics.dropped == [commit.counts] != [RowCounts()]
    assert len(world.metrics.rewrites_s) == 1

    world, report = committed(refused)
    assert world.metrics.ended == [(AttemptEnd.LOST, 0, 0, report.waited_s)]
    assert world.metrics.dropped == [RowCounts()]
    assert len(world.metrics.rewrites_s) == 1


@pytest.mark.parametrize(
    "silence", [Unknown(reason="lost"), UnknownOutcomeError("lost"), UnavailableError("lost")]
)
def test_an_unknown_commit_is_looked_for_and_leaves_files_alone(
    silence: Unknown | Exception,
) -> None:
    def setup(world: World) -> None:
        world.store.answers.append(silence)
        mark = AttemptOutcome(attempt="attempt-1", end=AttemptEnd.COMMITTED)
        world.store.marks["attempt-1"] = mark

    world, report = committed(setup)
    assert report.end is AttemptEnd.COMMITTED
    assert len(world.store.commits) == 1
    assert world.files.deleted == []


def test_an_unknown_commit_without_a_mark_is_sent_again() -> None:
    world, report = committed(lambda world: world.store.answers.append(Unknown(reason="lost")))
    assert report.end is AttemptEnd.COMMITTED
    assert len(world.store.commits) == 2


def test_lost_races_are_tried_again() -> None:
    world, report = committed(lambda world: world.store.answers.append(ConflictError("busy")))
    assert (report.end, len(world.store.commits)) == (AttemptEnd.COMMITTED, 2)


def test_an_undecodable_store_fails_the_attempt_and_leaves_its_files() -> None:
    def setup(world: World) -> None:
        world.store.answers.append(MetadataError("format version 9"))
        world.store.marks["attempt-1"] = MetadataError("format version 9")

    world, report = committed(setup)
    assert report.end is AttemptEnd.FAILED
    assert world.files.deleted == [()]


def test_stop_gives_back_what_takes_too_long() -> None:
    async def script(world: World, service: CompactorService) -> None:
        await until(lambda: world.engine.running)
        await service.stop()
        assert world.coordinator.left

    def setup(world: World) -> None:
        world.engine.gate.clear()
        world.coordinator.jobs.append(an_assignment())
        world.settings = CompactorSettings(
            slots=1, beat_interval_s=0.01, take_wait_max_s=0.02, drain_timeout_s=0.03
        )

    world = play(script, setup)
    assert [report.end for report in world.coordinator.reports] == [AttemptEnd.DRAINED]


def test_stop_ends_an_engine_that_does_not_hear_of_the_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "CANCEL_MAX_S", 0.03)

    async def script(world: World, service: CompactorService) -> None:
        await until(lambda: world.engine.running)
        await service.stop(0.0)
        assert world.coordinator.left

    def setup(world: World) -> None:
        world.engine.gate.clear()
        world.engine.deaf = True
        world.coordinator.jobs.append(an_assignment())

    world = play(script, setup)
    assert [report.end for report in world.coordinator.reports] == [AttemptEnd.DRAINED]
    assert world.files.deleted == [an_assignment().reservation.output_paths]


def test_the_shortest_of_several_waits_decides_when_jobs_are_handed_back() -> None:
    async def script(world: World, service: CompactorService) -> None:
        await until(lambda: world.engine.running)
        patient = asyncio.create_task(service.stop(PATIENCE_S))
        given_up = asyncio.create_task(service.stop(0.0))
        await until(lambda: world.engine.cancelled)
        given_up.cancel()  # Whoever has asked need not live until the end.
        await service.stop(0.0)
        await patient

    def setup(world: World) -> None:
        world.engine.gate.clear()
        world.coordinator.jobs.append(an_assignment())

    world = play(script, setup)
    assert world.engine.cancelled == [an_assignment().reservation.attempt]
    assert [report.end for report in world.coordinator.reports] == [AttemptEnd.DRAINED]
    assert world.coordinator.left == [("c-1", "drained")]


def test_a_job_that_arrives_while_others_are_handed_back_is_handed_back_too() -> None:
    async def script(world: World, service: CompactorService) -> None:
        await until(lambda: world.coordinator.waiting)
        world.coordinator.on_its_way.append(an_assignment(attempt="late"))
        stopping = asyncio.create_task(service.stop(0.0))
        await until(lambda: ("jobs handed back", {"attempts": []}) in world.events)
        await until(lambda: world.coordinator.takes[-1].take in world.coordinator.waiting)
        world.coordinator.waiting[world.coordinator.takes[-1].take].set()
        await stopping

    def setup(world: World) -> None:
        world.settings = replace(world.settings, slots=1, take_wait_max_s=60.0)

    world = play(script, setup)
    assert [(report.attempt, report.end) for report in world.coordinator.reports] == [
        ("late", AttemptEnd.DRAINED)
    ]
    assert not world.engine.assigned


def test_stop_does_not_wait_for_a_coordinator_that_is_gone() -> None:
    async def script(world: World, service: CompactorService) -> None:
        await until(lambda: world.store.commits)
        world.coordinator.away = True
        world.engine.gate.set()
        await service.stop()

    def setup(world: World) -> None:
        world.coordinator.jobs.append(an_assignment())
        world.settings = CompactorSettings(
            slots=1, beat_interval_s=0.01, take_wait_max_s=0.02, drain_timeout_s=0.03
        )

    play(script, setup)


@pytest.mark.parametrize("on_its_way", [False, True])
def test_an_idle_slot_whose_engine_dies_withdraws_its_take(on_its_way: bool) -> None:
    def setup(world: World) -> None:
        world.settings = replace(world.settings, slots=1, take_wait_max_s=60.0)
        if on_its_way:
            world.coordinator.on_its_way.append(an_assignment(attempt="late"))

    async def script(world: World, _: CompactorService) -> None:
        await until(lambda: world.coordinator.waiting)
        world.engine.down.set()
        await until(lambda: len(world.coordinator.takes) >= 2)
        await until(lambda: world.coordinator.takes[-1].take in world.coordinator.waiting)
        world.coordinator.waiting[world.coordinator.takes[-1].take].set()

    world = play(script, setup)
    first, second = world.coordinator.takes[:2]
    assert world.coordinator.withdrawn == [first.take]
    assert second.take != first.take
    assert world.engine.starts >= 2
    assert [report.attempt for report in world.coordinator.reports] == ["late"] * on_its_way
