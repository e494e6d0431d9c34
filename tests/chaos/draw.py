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
    READER = "reader"
    """A process that looks into files, or the one that forks them."""
    SUPERVISOR = "supervisor"
    """`neve up` starts another one then."""
    DISK = "disk"
    """Of the whole stack, its tables included."""


class How(StrEnum):
    """How it is hurt."""

    KILL = "kill"
    """SIGKILL."""
    FREEZE = "freeze"
    """SIGSTOP, and SIGCONT later."""
    FILL = "fill"
    """No byte is left for a while."""


GAP_MIN_S, GAP_MAX_S = 3.0, 8.0
SHORT_MIN_S, SHORT_MAX_S = 0.5, 3.0
LONG_MIN_S, LONG_MAX_S = 7.0, 10.0
"""Longer than a compactor may be silent, and than anybody waits for Redis."""
LONG_SHARE = 0.5
AIMED_SHARE = 0.5
LASTING = (How.FREEZE, How.FILL)
WAYS = {
    Part.READER: (How.KILL,),
    Part.SUPERVISOR: (How.KILL,),
    Part.DISK: (How.FILL,),
}
"""Of parts that are hurt in fewer ways than by death and by frost."""
TWO_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Harm:
    """One part hurt."""

    part: Part
    how: How
    which: int
    """Of several such processes, counted round."""
    lasts_s: float
    aimed: bool
    """Whether to wait a little until a job runs."""

    def __str__(self) -> str:
        length = f" {self.lasts_s:.1f} s" if self.how in LASTING else ""
        return f"{self.how} {self.part}{length}"


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at one moment: one harm, or two at once."""

    gap_s: float
    """Since the fault before."""
    harms: tuple[Harm, ...]


def draw(seed: int, *, redis_dies: bool, disk_fills: bool) -> Iterator[Fault]:
    """Yield faults without end.

    Args:
        seed: The same seed, the same faults.
        redis_dies: Whether Redis may be killed; frozen it may be in any case. On a full disk it
            may end, too.
        disk_fills: Whether the disk can be filled.
    """
    dice = random.Random(seed)
    unwanted = {
        *(() if redis_dies else ((Part.REDIS, How.KILL),)),
        *(() if redis_dies and disk_fills else ((Part.DISK, How.FILL),)),
    }
    harms = _harms(dice, unwanted)
    while True:
        count = 2 if dice.random() < TWO_SHARE else 1
        gap_s = dice.uniform(GAP_MIN_S, GAP_MAX_S)
        yield Fault(gap_s, tuple(next(harms) for _ in range(count)))


def _harms(dice: random.Random, unwanted: set[tuple[Part, How]]) -> Iterator[Harm]:
    every = [(part, how) for part in Part for how in WAYS.get(part, (How.KILL, How.FREEZE))]
    deck = [each for each in every if each not in unwanted]
    while True:
        dice.shuffle(deck)
        for part, how in deck:
            yield Harm(
                part=part,
                how=how,
                which=dice.randrange(8),
                lasts_s=_lasts_s(dice) if how in LASTING else 0.0,
                aimed=dice.random() < AIMED_SHARE,
            )


def _lasts_s(dice: random.Random) -> float:
    if dice.random() < LONG_SHARE:
        return dice.uniform(LONG_MIN_S, LONG_MAX_S)
    return dice.uniform(SHORT_MIN_S, SHORT_MAX_S)
