"""The control loop: turn facts about the cluster into readings, and readings into a decision.

    facts ─► measured rates ─► readings ─► controller ─► guard ─► decision ─► history

A controller is a plug-in and may fail: the current decision then stays in force, and the status
shows the reason. All state is bounded, and none needs to survive a restart: the first decision is
made within a period, and rates are available again after a minute.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from common.spi.controller import (
    DEFAULT_SHARES,
    ControlDecision,
    Controller,
    ControlReadings,
    ForegroundLatency,
    ShareClass,
)
from coordinator.core.control.guard import SHARES_MAX, SHARES_MIN, GuardRules, guarded
from coordinator.core.control.measurements import (
    ClassUsage,
    ClusterFacts,
    ReaderLatencies,
    WorkRates,
    fractions,
)
from neve import api

HISTORY_STEP_S = 5.0
HISTORY_MAX = 720
"""Samples of one hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRules:
    """Settings of the operator, and the resources that can be divided."""

    period_s: float = 1.0
    base_shares: Mapping[ShareClass, float] = field(default_factory=lambda: DEFAULT_SHARES)
    guard: GuardRules = field(default_factory=GuardRules)
    bytes_s_max: float | None = None
    foreground_limit_s: float | None = None
    memory_bytes: int = 1
    group_slots: Mapping[str, int] = field(default_factory=dict)
    """Group → slots of the maximum number of compactors that the settings allow."""


# ------------------------------------------------------------------------------------- The loop


class ControlLoop:
    """One controller with its inputs and decisions.

    Invariant: `decision` has shares for every class, each above 0.
    """

    def __init__(self, controller: Controller | None, rules: ControlRules) -> None:
        """Create a loop whose decision is the configured shares until the first look.

        Args:
            controller: The plug-in; None means that the configured shares stay in force.
            rules: Settings of the operator.
        """
        self.controller, self.rules = controller, rules
        self.decision = ControlDecision(shares=rules.base_shares, reasons=("no decision so far",))
        self.usage = ClassUsage()
        self.latencies = ReaderLatencies()
        self.history: deque[api.ControlPoint] = deque(maxlen=HISTORY_MAX)
        self.readings: ControlReadings | None = None
        """Readings of the last look."""
        self.failure = ""
        """Why the controller's last answer was rejected; empty if it was accepted."""
        self.failures = 0
        self._rates = WorkRates()
        self._living_slots: Mapping[str, int] = {}

    @property
    def name(self) -> str:
        """Name of the controller; empty if there is none."""
        return "" if self.controller is None else self.controller.name

    def is_due(self, now_s: float) -> bool:
        """Return whether a period has passed since the last look."""
        seen_s = self._rates.seen_s
        return seen_s is None or now_s - seen_s >= self.rules.period_s

    def look(self, facts: ClusterFacts, now_s: float) -> ControlDecision:
        """Take readings and return the decision that holds until the next look."""
        before_s = self._rates.seen_s
        self._rates = self._rates.seen(facts, now_s)
        self._living_slots = facts.group_slots
        passed_s = self.rules.period_s if before_s is None else now_s - before_s
        self.readings = self._readings(facts, now_s, passed_s)
        wanted = self._asked(self.readings)
        self.decision = guarded(wanted, self.readings, self.rules.guard)
        self._remember(facts, now_s)
        return self.decision

    def slots_of(self, group: str) -> int | None:
        """Return how many slots of a group compaction may use; None means all.

        The slots of a decision are divided between groups in proportion to their maximum slots.
        """
        slots, every = self.decision.slots, self._slots_max()
        if slots is None or not every:
            return None
        return max(1, round(slots * self._group_slots_max(group) / every))

    def _group_slots_max(self, group: str) -> int:
        configured = self.rules.group_slots.get(group, 0)
        return max(configured, self._living_slots.get(group, 0))

    def _slots_max(self) -> int:
        groups = {*self.rules.group_slots, *self._living_slots}
        return sum(self._group_slots_max(group) for group in groups)

    def _readings(self, facts: ClusterFacts, now_s: float, passed_s: float) -> ControlReadings:
        rates, rules = self._rates, self.rules
        slot_bytes_s = rates.slot_bytes_s
        return ControlReadings(
            time_s=now_s,
            period_s=passed_s,
            backlog_bytes=facts.backlog_bytes,
            table_backlogs=facts.table_backlogs,
            memory_bytes=rules.memory_bytes,
            rewrite_bytes_s=None if slot_bytes_s is None else slot_bytes_s * facts.busy_slots,
            slot_bytes_s=slot_bytes_s,
            arrival_bytes_s=rates.arrival_bytes_s,
            foreground=self._foreground(now_s),
            slots=sum(facts.group_slots.values()),
            busy_slots=facts.busy_slots,
            slots_max=self._slots_max(),
            bytes_s_max=rules.bytes_s_max,
            base_shares=rules.base_shares,
            queued_jobs=facts.queued_jobs,
            deepest_files=facts.deepest_files,
            garbage_fraction=facts.garbage_fraction,
            previous=self.decision if self.readings is not None else None,
        )

    def _foreground(self, now_s: float) -> ForegroundLatency | None:
        limit_s, worst = self.rules.foreground_limit_s, self.latencies.signal(now_s)
        if limit_s is None or worst is None:
            return None
        return ForegroundLatency(latency_s=worst[1], limit_s=limit_s)

    def _asked(self, readings: ControlReadings) -> ControlDecision:
        """Return the controller's decision, or the decision in force if the controller fails."""
        if self.controller is None:
            return ControlDecision(shares=self.rules.base_shares, bytes_s=self.rules.bytes_s_max)
        try:
            wanted = self.controller.decide(readings)
            require_sound(wanted)
        except Exception as error:  # A plug-in must not stop the coordinator.
            self.failure = f"{type(error).__name__}: {error}"
            self.failures += 1
            told = f"controller {self.name} failed, the last decision stays: {self.failure}"
            return replace(self.decision, reasons=(told,))
        self.failure = ""
        return wanted

    def _remember(self, facts: ClusterFacts, now_s: float) -> None:
        if self.history and now_s - self.history[-1].at_s < HISTORY_STEP_S:
            return
        decision, worst = self.decision, self.latencies.signal(now_s)
        self.history.append(
            api.ControlPoint(
                at_s=now_s,
                backlog_bytes=facts.backlog_bytes,
                shares=_by_name(decision.shares),
                used=_by_name(fractions(self.usage.last_minute(now_s))),
                bytes_s=decision.bytes_s,
                slots=decision.slots,
                busy_slots=facts.busy_slots,
                latency_s=None if worst is None else worst[1],
            )
        )


def _by_name(shares: Mapping[ShareClass, float]) -> dict[str, float]:
    return {each.value: share for each, share in shares.items()}


def require_sound(decision: ControlDecision) -> None:
    """Reject a decision that is invalid or would stop all work.

    Raises:
        ValueError: Names the invalid value.
    """
    for class_ in ShareClass:
        shares = decision.shares.get(class_, 0.0)
        if not SHARES_MIN <= shares <= SHARES_MAX:
            raise ValueError(
                f"shares of {class_} are {shares}, expected {SHARES_MIN:g} to {SHARES_MAX:g}"
            )
    if decision.bytes_s is not None and not 0 < decision.bytes_s < float("inf"):
        raise ValueError(f"bytes_s is {decision.bytes_s}, expected a rate above 0 or None")
    if decision.slots is not None and decision.slots < 1:
        raise ValueError(f"slots are {decision.slots}, expected at least 1 or None")
    for table, weight in decision.table_weights.items():
        if not 0 < weight < float("inf"):
            raise ValueError(f"weight of table {table!r} is {weight}, expected a number above 0")
