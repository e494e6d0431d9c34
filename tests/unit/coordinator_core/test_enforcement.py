"""What a decision changes in the core: turns of classes, slots, grants, the autoscaler."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any

import pytest

from common.model.group import CONTROL_SCOPE, LimitScope
from common.model.job import AGEING_PER_S, CLASS_WIDTH, Kind
from common.model.tablet import TabletId
from common.settings import AutoscalerSettings
from common.spi.controller import DEFAULT_SHARES, ControlDecision, ControlReadings, ShareClass
from coordinator.core import events as on
from coordinator.core.autoscaling import GroupLoad, demand
from coordinator.core.control import ClusterFacts, ControlLoop, ControlRules, GuardRules
from coordinator.core.limits import Limits
from coordinator.core.queue import PROBES_MAX
from coordinator.core.throttle import ScopeLimits
from coordinator.plugins.controllers import SharesController
from coordinator.registry import control_loop
from neve.service_settings import load_service_settings
from tests.support.planning import job
from tests.support.reservations import reservation_of
from tests.support.task_manager import TaskManager

pytestmark = pytest.mark.unit

MIB = 1024**2
RULES = ControlRules(
    guard=GuardRules(slew_shares_s=0.0, hysteresis=0.0), group_slots={"g": 10}, bytes_s_max=None
)


class Fixed:
    """A controller that says the same each time, until it is changed."""

    name = "fixed"

    def __init__(self, **given: Any) -> None:
        shares = {**DEFAULT_SHARES, **given.pop("shares", {})}
        self.decision = ControlDecision(shares=shares, **given)
        self.heard: list[ControlReadings] = []

    def decide(self, readings: ControlReadings) -> ControlDecision:
        self.heard.append(readings)
        return self.decision


def manager_of(controller: Fixed, rules: ControlRules = RULES, **limits: float) -> TaskManager:
    manager = TaskManager(ControlLoop(controller, rules), **limits)
    manager.tick()
    return manager


def test_shares_of_a_decision_order_the_classes_of_each_queue() -> None:
    controller = Fixed(shares={ShareClass.SYSTEM: 1000.0, ShareClass.USER: 250.0})
    manager = manager_of(controller)
    for number in range(60):
        manager.offer(f"s{number}", 10, 16 * MIB)
        manager.offer(f"u{number}", CLASS_WIDTH + 10, 16 * MIB, kind=Kind.USER)
    first = Counter(name[0] for name in manager.ask(50))
    assert first["s"] == pytest.approx(40, abs=2)
    controller.decision = Fixed(shares={ShareClass.SYSTEM: 100.0}).decision
    manager.tick()
    later = Counter(name[0] for name in manager.ask(50))
    assert later["u"] >= 40, "from the next job on"


def test_system_jobs_have_the_slots_of_the_decision_and_others_have_no_cap() -> None:
    controller = Fixed(slots=3)
    manager = manager_of(controller)
    for number in range(6):
        manager.offer(f"s{number}", 10)
    assert len(manager.ask(6)) == 3
    assert manager.explain("s5") == "the controller allows these jobs 3 slots (`neve control`)"
    manager.offer("asked", CLASS_WIDTH + 10, kind=Kind.USER)
    manager.offer("urgent", 2 * CLASS_WIDTH + 10)
    assert set(manager.begun[3:]) == {"asked", "urgent"}
    first = manager.begun[0]
    assert len(manager.finish(first)) == 1, "a slot that is free again is handed out"
    controller.decision = Fixed(slots=None).decision
    manager.tick()
    assert len(manager.ask(1)) + len(manager.running) >= 6


def test_attempts_of_a_coordinator_that_died_count_in_the_slots_of_the_decision() -> None:
    """Only their reservations are known, until their compactors are heard."""
    manager = manager_of(Fixed(slots=3))
    kinds = {"a": Kind.SYSTEM, "b": Kind.SYSTEM, "asked": Kind.USER}
    for name, kind in kinds.items():
        entry = reservation_of(job(name, kind=kind, group="g"), f"{name}-1", "c-1")
        event = on.ReservationsFound(tablet=TabletId("t", name.encode()), reservations=(entry,))
        assert manager.state.handle(event, 0.0) == []
    for number in range(3):
        manager.offer(f"s{number}", 10)
    assert manager.ask(3) == ["s0"], "two of three slots are taken"


def test_the_default_controller_delays_nothing_without_competing_classes() -> None:
    """As many jobs start as there are slots, and grants have no limit, whatever the backlog."""
    settings = load_service_settings(environ={}, flags=["groups.default.slots=20"])
    begun: dict[str, list[str]] = {}
    for controller in ("shares", "static"):
        control = replace(settings.control, controller=controller)
        manager = TaskManager(control_loop(replace(settings, control=control)))
        manager.tick()
        for number in range(10):
            manager.offer(f"s{number}", 10, 16 * MIB)
        begun[controller] = manager.ask(10)
        manager.tick()
        assert manager.state._cluster.grants.scopes.limit(CONTROL_SCOPE) is None
        assert manager.state._cluster.control.decision.slots is None
    assert len(begun["shares"]) == 10
    assert begun["shares"] == begun["static"]


def test_the_operators_limit_holds_in_full_while_shares_still_move() -> None:
    limited = ControlRules(bytes_s_max=8e6, group_slots={"g": 10})
    loop = ControlLoop(SharesController(600.0), limited)
    for second, backlog in enumerate([0.0, 1e12, 1e12, 0.0]):
        decision = loop.look(ClusterFacts(backlog_bytes=backlog, busy_slots=10), float(second))
        assert decision.bytes_s == 8e6
    assert loop.decision.shares[ShareClass.SYSTEM] > DEFAULT_SHARES[ShareClass.SYSTEM]


def test_a_flood_of_old_capped_jobs_keeps_no_request_waiting() -> None:
    manager = manager_of(Fixed(slots=1, shares={ShareClass.SYSTEM: 1000.0, ShareClass.USER: 10.0}))
    for number in range(2 * PROBES_MAX):
        manager.offer(f"s{number}", 5000)
    assert len(manager.ask(3)) == 1
    manager.now_s += CLASS_WIDTH / AGEING_PER_S  # All of them outrank a request now.
    manager.offer("asked", CLASS_WIDTH + 10, kind=Kind.USER)
    assert manager.begun[-1] == "asked"


class FullLoad:
    """Four slots that are never idle while there are jobs; each job moves its bytes in its time."""

    SLOTS, SLOT_BYTES_S = 4, 100 * MIB
    OWN = {  # noqa: RUF012  never changed
        ShareClass.SYSTEM: {"priority": 10},
        ShareClass.USER: {"priority": CLASS_WIDTH + 10, "kind": Kind.USER},
        ShareClass.URGENT: {"priority": 2 * CLASS_WIDTH + 10},
    }

    def __init__(self, shares: dict[ShareClass, float], seed: int) -> None:
        rules = ControlRules(base_shares={**DEFAULT_SHARES, **shares})
        self.manager = TaskManager(ControlLoop(None, rules))
        self.chance = random.Random(seed)
        self.waiting: Counter[ShareClass] = Counter()
        self.classes: dict[str, ShareClass] = {}
        self._ends: list[tuple[float, str]] = []

    def offer(self, share_class: ShareClass, count: int) -> None:
        """Have so many jobs of a class wait, of any size up to 96 MiB."""
        while self.waiting[share_class] < count:
            name = f"{share_class}-{len(self.classes)}"
            self.classes[name] = share_class
            self.waiting[share_class] += 1
            size = self.chance.randint(MIB, 96 * MIB)
            self.manager.offer(name, cost_bytes=size, **self.OWN[share_class])

    def run(self, seconds: float, depths: dict[ShareClass, int]) -> None:
        """Let time pass; so many jobs of each class always wait."""
        end_s = self.manager.now_s + seconds
        while self.manager.now_s < end_s:
            for share_class, count in depths.items():
                self.offer(share_class, count)
            self._begin(self.manager.ask(self.SLOTS - len(self._ends)))
            ended_s, name = heappop(self._ends)
            self.manager.tick(ended_s - self.manager.now_s)
            self.manager.finish(name)

    def _begin(self, names: list[str]) -> None:
        for name in names:
            self.waiting[self.classes[name]] -= 1
            lasts_s = self.manager.jobs[name].cost_bytes / self.SLOT_BYTES_S
            heappush(self._ends, (self.manager.now_s + lasts_s, name))

    def parts(self) -> dict[str, float]:
        """Return which part of the last minute's bytes each class was handed."""
        told = self.manager.state.control(self.manager.now_s)
        return {class_.name: class_.used for class_ in told.classes}


@pytest.mark.parametrize(
    ("system", "user", "urgent"), [(100.0, 1000.0, 300.0), (800.0, 100.0, 400.0)]
)
def test_over_a_minute_of_full_load_the_core_hands_out_bytes_within_a_tenth_of_the_shares(
    system: float, user: float, urgent: float
) -> None:
    shares = {ShareClass.SYSTEM: system, ShareClass.USER: user, ShareClass.URGENT: urgent}
    load = FullLoad(shares, seed=int(system))
    load.run(80, dict.fromkeys(shares, 5))
    parts = load.parts()
    for each, granted in shares.items():
        assert parts[each.value] == pytest.approx(granted / sum(shares.values()), rel=0.1), each


@pytest.mark.parametrize(
    ("flood", "other"),
    [(ShareClass.USER, ShareClass.SYSTEM), (ShareClass.SYSTEM, ShareClass.USER)],
)
def test_a_flood_of_one_class_leaves_the_other_its_part(
    flood: ShareClass, other: ShareClass
) -> None:
    """Hundreds of jobs wait of one class, and of the other only as many as it is handed."""
    shares = {flood: 300.0, other: 100.0}
    load = FullLoad(shares, seed=3)
    load.run(80, {flood: 300, other: 2})
    parts = load.parts()
    assert parts[other.value] == pytest.approx(0.25, rel=0.1)
    assert parts[flood.value] == pytest.approx(0.75, rel=0.1)


def test_what_other_classes_leave_a_class_of_few_shares_gets_at_once() -> None:
    load = FullLoad({ShareClass.SYSTEM: 1.0, ShareClass.USER: 10_000.0}, seed=4)
    load.run(20, {ShareClass.SYSTEM: 5, ShareClass.USER: 5})
    load.run(65, {ShareClass.SYSTEM: 5})
    assert load.parts()["system"] > 0.99
    load.run(80, {ShareClass.SYSTEM: 5, ShareClass.USER: 5})
    assert load.parts()["user"] > 0.99, "nothing was saved up, or is owed, for that"


def test_the_last_slot_is_never_taken_away() -> None:
    manager = manager_of(Fixed(slots=1))
    manager.offer("s0", 10)
    manager.offer("s1", 10)
    assert manager.ask(2) == ["s0"]
    assert manager.finish("s0") == ["s1"]


def test_the_bytes_handed_out_are_counted_by_class_and_told() -> None:
    manager = manager_of(Fixed())
    manager.offer("s0", 10, 100 * MIB)
    manager.offer("u0", CLASS_WIDTH, 50 * MIB, kind=Kind.USER)
    manager.ask(2)
    found = {class_.name: class_ for class_ in manager.state.control(manager.now_s).classes}
    assert found["system"].used_bytes == 204 * MIB
    assert found["user"].used_bytes == 104 * MIB
    assert found["system"].used == pytest.approx(204 / 308)
    assert found["user"].granted == pytest.approx(1000 / 11110)
    for _ in range(61):
        manager.tick()
    late = {class_.name: class_ for class_ in manager.state.control(manager.now_s).classes}
    assert (late["system"].used_bytes, late["system"].total_bytes) == (0, 204 * MIB)


def test_the_rate_of_a_decision_is_a_limit_of_all_attempts() -> None:
    scopes = ScopeLimits(Limits())
    assert scopes.rate(CONTROL_SCOPE) is None
    scopes.set_control(5e6)
    assert scopes.rate(CONTROL_SCOPE) == 5_000_000
    assert scopes.rate(LimitScope.parse("group:g")) is None
    scopes.set_explicit({})
    assert scopes.rate(CONTROL_SCOPE) == 5_000_000, "no operator's limit replaces it"
    scopes.set_control(None)
    assert scopes.rate(CONTROL_SCOPE) is None


def test_jobs_of_every_group_share_the_rate_of_the_decision() -> None:
    manager = manager_of(Fixed(bytes_s=50e6))
    manager.offer("a", 10)
    manager.offer("b", 10, group="h")
    manager.ask(1)
    manager.ask(1, group="h")
    scopes = {scope.kind: scope for scope in manager.state.status(0.0).scopes}
    assert scopes["control"].rate_bytes_s == 50_000_000
    assert scopes["control"].attempts == 2
    assert scopes["control"].granted_bytes_s is not None
    assert scopes["control"].granted_bytes_s <= 50e6


def test_without_a_rate_no_limit_is_shown() -> None:
    manager = manager_of(Fixed())
    manager.offer("a", 10)
    manager.ask(1)
    assert {scope.kind for scope in manager.state.status(0.0).scopes} == {"group", "volume"}


def test_readers_that_wait_lower_what_attempts_may_move() -> None:
    rules = ControlRules(
        guard=GuardRules(bytes_s_min=1e6),
        group_slots={"g": 4},
        bytes_s_max=100e6,
        foreground_limit_s=0.1,
    )
    manager = manager_of(Fixed(bytes_s=100e6), rules)
    manager.tick()
    assert manager.state.control(manager.now_s).bytes_s == 100e6
    for _ in range(60):
        report = on.LatencyReported(table="t", latency_s=0.4, reads=20)
        manager.state.handle(report, manager.now_s)
        manager.tick()
    lowered = manager.state.control(manager.now_s)
    assert lowered.bytes_s == pytest.approx(1e6, rel=0.1)
    assert lowered.latencies_s == {"trips": pytest.approx(0.4)}
    for _ in range(300):
        manager.tick()
    assert manager.state.control(manager.now_s).bytes_s == 100e6


def test_table_weights_of_a_decision_multiply_those_of_the_settings() -> None:
    controller = Fixed(table_weights={"b": 4.0})
    manager = manager_of(controller)
    for name in ("a", "b"):
        manager.table(name, "default")
    for number in range(100):
        manager.offer(f"a{number}", 10, 16 * MIB, table="a")
        manager.offer(f"b{number}", 10, 16 * MIB, table="b")
    manager.tick()
    first = Counter(name[0] for name in manager.ask(50))
    assert first["b"] == pytest.approx(40, abs=2)
    controller.decision = Fixed().decision
    manager.tick()
    assert Counter(name[0] for name in manager.ask(50))["b"] == pytest.approx(25, abs=3)


def test_what_a_controller_hears_is_what_the_cluster_has() -> None:
    controller = Fixed()
    manager = manager_of(controller)
    for number in range(3):
        manager.offer(f"s{number}", 10, 100 * MIB)
    manager.ask(2)
    manager.tick()
    heard = controller.heard[-1]
    assert (heard.busy_slots, heard.slots, heard.slots_max, heard.queued_jobs) == (2, 2, 10, 1)
    manager.finish("s0")
    for _ in range(9):
        manager.tick()
    done = controller.heard[-1]
    assert done.slot_bytes_s is not None
    assert done.slot_bytes_s > 0


def test_the_autoscaler_goes_by_the_slots_of_the_decision() -> None:
    load = GroupLoad(group="g", count_min=0, count_max=20, slots=2, queued_jobs=100, slots_wanted=7)
    found = demand(load, AutoscalerSettings(), 1)
    assert (found.wanted, found.reason) == (4, "the controller wants 7 slots (`neve control`)")
    manager = manager_of(Fixed(slots=7))
    assert manager.state.slots_wanted("g") == 7
    assert manager_of(Fixed()).state.slots_wanted("g") is None


def test_a_volume_runs_few_jobs_of_one_weight_and_those_of_others_go_on() -> None:
    manager = TaskManager(volume_weight_max=1)
    manager.table("t1", volume="disk")
    for number in range(3):
        manager.offer(f"large{number}", 50, 900 * MIB, table="t1")
        manager.offer(f"small{number}", 10, 20 * MIB, table="t1")
    assert sorted(manager.ask(6)) == ["large0", "small0"]
    told = "volume disk runs 1 job of similar size, its limit"
    assert manager.explain("large1") == told
    assert manager.finish("small0") == ["small1"]
    assert manager.finish("large0") == ["large1"]


def test_without_a_setting_any_number_of_one_weight_runs() -> None:
    manager = TaskManager()
    for number in range(5):
        manager.offer(f"j{number}", 10, 900 * MIB)
    assert len(manager.ask(5)) == 5
