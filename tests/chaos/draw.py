"""Which faults a run gets, and when: all of it follows from the seed.

The deck of all parts and ways is shuffled and dealt, again and again, so that a run
of some length has hurt every part in every way. Pure: the same seed draws the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Part(StrEnum):
    """What can be hurt."""

    COMPACTOR = "compactor"
    """The actor; its Spark dies with it."""
    DRIVER = "Spark driver"
    JVM = "Spark driver's JVM"
    EXECUTOR = "Spark executor"
    TASKS = "Spark task process"
    """The Python processes that an executor runs tasks in."""
    COORDINATOR = "coordinator"
    GATEWAY = "gateway"
    REDIS = "Redis"


class How(StrEnum):
    """How it is hurt."""

    KILL = "kill"
    """SIGKILL."""
    FREEZE = "freeze"
    """SIGSTOP, and SIGCONT later."""


GAP_MIN_S, GAP_MAX_S = 3.0, 8.0
SHORT_MIN_S, SHORT_MAX_S = 0.5, 3.0
LONG_MIN_S, LONG_MAX_S = 7.0, 10.0
"""Longer than a compactor may be silent, and than anybody waits for Redis."""
LONG_SHARE = 0.5
AIMED_SHARE = 0.5
TWO_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Harm:
    """One process hurt."""

    part: Part
    how: How
    which: int
    """Of several such processes, counted round."""
    frozen_s: float
    aimed: bool
    """Whether to wait a little until a job runs."""

    def __str__(self) -> str:
        length = f" {self.frozen_s:.1f} s" if self.how is How.FREEZE else ""
        return f"{self.how} {self.part}{length}"


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at one moment: one harm, or two at once."""

    gap_s: float
    """Since the fault before."""
    harms: tuple[Harm, ...]


def draw(seed: int, *, redis_dies: bool) -> Iterator[Fault]:
    """Yield faults without end.

    Args:
        seed: The same seed, the same faults.
        redis_dies: Whether Redis may be killed; frozen it may be in any case.
    """
    dice = random.Random(seed)
    harms = _harms(dice, redis_dies=redis_dies)
    while True:
        count = 2 if dice.random() < TWO_SHARE else 1
        gap_s = dice.uniform(GAP_MIN_S, GAP_MAX_S)
        yield Fault(gap_s, tuple(next(harms) for _ in range(count)))


def _harms(dice: random.Random, *, redis_dies: bool) -> Iterator[Harm]:
    deck = [(part, how) for part in Part for how in How]
    if not redis_dies:
        deck.remove((Part.REDIS, How.KILL))
    while True:
        dice.shuffle(deck)
        for part, how in deck:
            yield Harm(
                part=part,
                how=how,
                which=dice.randrange(8),
                frozen_s=_frozen_s(dice) if how is How.FREEZE else 0.0,
                aimed=dice.random() < AIMED_SHARE,
            )


def _frozen_s(dice: random.Random) -> float:
    if dice.random() < LONG_SHARE:
        return dice.uniform(LONG_MIN_S, LONG_MAX_S)
    return dice.uniform(SHORT_MIN_S, SHORT_MAX_S)
