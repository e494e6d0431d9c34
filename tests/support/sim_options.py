"""What one seed draws: sizes, and *which* faults (a swarm: every seed leaves some out)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from random import Random

from coordinator.core.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Sizes and faults of one run. Times in seconds of simulated time."""

    tables: int = 1
    tablets: int = 2
    """Per table."""
    compactors: int = 2
    slots: int = 1
    appenders: int = 1
    readers: int = 1
    busy_s: float = 60.0
    queue_jobs_max: int = 100
    rewrite_max_s: float = 2.0
    feed_s: float = 0.3
    """How often coordinators read the change feed; slow: they plan from old readings."""
    lose: float = 0.0
    """Probability that a message, or its answer, is lost."""
    double: float = 0.0
    lead_s: float = 2.0
    """How often coordinators look whether they still lead; slow: ghosts live longer."""
    latency_max_s: float = 0.02
    store_lost: float = 0.0
    store_late: float = 0.0
    store_tries: int = 6
    """Tries of one change: with few, outcomes stay unknown."""
    fails: float = 0.0
    compactor_dies: bool = False
    compactor_freezes: bool = False
    coordinator_dies: bool = False
    ghost: bool = False
    operators: bool = False
    """Groups are paused, compactors drained, attempts cancelled."""

    @property
    def calm(self) -> bool:
        """Whether nothing ever goes wrong."""
        unsafe = (self.lose, self.double, self.store_lost, self.store_late, self.fails)
        untouched = not self.compactor_freezes and not self.operators
        return not any(unsafe) and self.crash_free and untouched

    @property
    def crash_free(self) -> bool:
        """Whether nobody dies and no write arrives after it was given up."""
        return not (self.compactor_dies or self.coordinator_dies or self.ghost or self.store_late)

    def __str__(self) -> str:
        """Name what differs from the defaults."""
        default = Options()
        return ", ".join(
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(default, field.name)
        )


def draw_options(seed: int) -> Options:
    """Return the options of a seed; every fifth run is calm."""
    dice = Random(f"options {seed}")
    faults = seed % 5 != 0

    def maybe(value: float) -> float:
        return value if faults and dice.random() < 0.4 else 0.0

    return Options(
        tables=dice.choice((1, 1, 2)),
        tablets=dice.choice((1, 1, 2, 3)),
        compactors=dice.randint(1, 4),
        slots=dice.choice((1, 1, 2)),
        appenders=dice.randint(1, 3),
        readers=dice.choice((0, 1)),
        busy_s=dice.choice((30.0, 60.0)),
        queue_jobs_max=dice.choice((1, 2, 100)),
        rewrite_max_s=dice.choice((0.5, 2.0, 12.0)),
        feed_s=dice.choice((0.3, 0.3, 3.0)),
        lead_s=dice.choice((2.0, 10.0)),
        latency_max_s=dice.choice((0.005, 0.05)) if not faults else dice.choice((0.02, 0.5)),
        lose=maybe(0.05),
        double=maybe(0.1),
        store_lost=maybe(0.03),
        store_late=maybe(0.03),
        store_tries=dice.choice((1, 2, 6)) if faults else 6,
        fails=maybe(0.2),
        compactor_dies=bool(maybe(1.0)),
        compactor_freezes=bool(maybe(1.0)),
        coordinator_dies=bool(maybe(1.0)),
        ghost=bool(maybe(1.0)),
        operators=dice.random() < 0.2,
    )


def sim_limits(options: Options) -> Limits:
    """Return limits in which everything happens within seconds."""
    return Limits(
        queue_jobs_max=options.queue_jobs_max,
        silence_max_s=8.0,
        stall_max_s=4.0,
        unlisted_max_s=4.0,
        adopt_grace_max_s=6.0,
        doubt_max_s=4.0,
        release_retry_s=2.0,
        take_wait_max_s=30.0,
        backoff_base_s=0.5,
        backoff_max_s=8.0,
        cancel_pause_s=5.0,
        deferral_max_s=20.0,
    )
