"""Compaction as a fluid: work flows in, and flows out as fast as decisions allow. Virtual time.

The controller, the loop and its guard are the real ones. What the model leaves out: jobs have no
size, so that a slot more or less counts at once, and progress is told without delay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from common.spi.controller import Controller, ShareClass
from coordinator.core.control import MOVED_PER_INPUT, ClusterFacts, ControlLoop, ControlRules

MIB = 1024.0**2
GIB = 1024.0**3


@dataclass(kw_only=True)
class Fluid:
    """A cluster of `slots`, each of which rewrites `slot_bytes_s`, under a controller."""

    controller: Controller
    slots: int = 40
    slot_bytes_s: float = 4 * MIB
    period_s: float = 1.0
    memory_bytes: int = int(4 * GIB)
    bytes_s_max: float | None = None
    latency_limit_s: float | None = None
    latency: Callable[[float], float] = lambda _moved_bytes_s: 0.0
    """Bytes per second that rewrites move → how long readers wait."""
    backlog: float = 0.0
    done: float = 0.0
    now_s: float = 0.0
    running: list[float] = field(default_factory=list)
    """Slots in use, step by step."""
    backlogs: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    """Bytes moved per second, step by step."""

    def __post_init__(self) -> None:
        rules = ControlRules(
            period_s=self.period_s,
            bytes_s_max=self.bytes_s_max,
            foreground_limit_s=self.latency_limit_s,
            memory_bytes=self.memory_bytes,
            group_slots={"default": self.slots},
        )
        self.loop = ControlLoop(self.controller, rules)

    @property
    def capacity_bytes_s(self) -> float:
        """Input bytes per second with all slots."""
        return self.slots * self.slot_bytes_s

    def step(self, arriving_bytes_s: float) -> None:
        """Let one period pass."""
        self.backlog += arriving_bytes_s * self.period_s
        given = self.loop.slots_of("default")
        slots = float(self.slots if given is None else min(given, self.slots))
        wanted_slots = self.backlog / self.period_s / self.slot_bytes_s
        used = min(slots, wanted_slots)
        limit = self.loop.decision.bytes_s
        rewritten = used * self.slot_bytes_s
        if limit is not None:
            rewritten = min(rewritten, limit / MOVED_PER_INPUT)
        self.backlog -= rewritten * self.period_s
        self.done += rewritten * self.period_s
        self.now_s += self.period_s
        moved = rewritten * MOVED_PER_INPUT
        self.loop.latencies.note("t", self.latency(moved), 100, self.now_s)
        facts = ClusterFacts(
            backlog_bytes=self.backlog,
            done_bytes=self.done,
            group_slots={"default": self.slots},
            busy_slots=round(used),
        )
        decision = self.loop.look(facts, self.now_s)
        self.running.append(used)
        self.backlogs.append(self.backlog)
        self.shares.append(decision.shares[ShareClass.SYSTEM])
        self.rates.append(moved)

    def run(self, seconds: float, arriving: Callable[[float], float]) -> None:
        """Let time pass.

        Args:
            seconds: How long.
            arriving: Time → bytes per second that arrive.
        """
        for _ in range(round(seconds / self.period_s)):
            self.step(arriving(self.now_s))
