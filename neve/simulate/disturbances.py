"""What disturbs a simulation: requests of users, attempts that die, compactors that are lost.

Rules and chance only. What the service makes of it is decided elsewhere, by its own code.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random  # noqa: TID251  seeded by the specification: the same run every time

from common.model.job import BOOST_MAX
from neve.simulate.sections import Section

REQUESTS_MAX = 1_000_000
"""That may be made in one run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRule:
    """How often somebody asks for a whole tablet of a table."""

    every_s: float
    """Between two requests, on average."""
    boost: int = 0
    """Added to the priority of their jobs."""


def read_requests(section: Section) -> RequestRule:
    """Return what the section `requests` of a table says.

    Raises:
        RequestError: Names the key, its value and what was expected.
    """
    rule = RequestRule(
        every_s=section.duration_s("every", 3600.0, least=0.1, most=1e9),
        boost=section.count("boost", 0, least=0, most=BOOST_MAX),
    )
    section.close()
    return rule


def submissions(
    rule: RequestRule, table: str, tablets: int, seed: int, length_s: float
) -> Iterator[tuple[float, int]]:
    """Yield when requests are made, and the numbers of their tablets: a Poisson process.

    Args:
        rule: How often.
        table: Name of the table.
        tablets: How many it has.
        seed: Of the run.
        length_s: Until when.
    """
    chance, at_s = Random(f"{seed}/{table}/requests"), 0.0
    while (at_s := at_s + chance.expovariate(1.0 / rule.every_s)) < length_s:
        yield round(at_s, 3), int(chance.random() * tablets)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRule:
    """How often attempts and compactors die."""

    attempts: float = 0.0
    """Share of the attempts that die when a part of their bytes is moved, by chance which."""
    compactor_life_s: float = 0.0
    """Mean time until a compactor is lost, with all that it runs; 0: none is."""
    restart_s: float = 60.0
    """From the loss of a compactor until there is another one in its place."""


def read_failures(section: Section) -> FailureRule:
    """Return what the section `cluster.failures` says.

    Raises:
        RequestError: Names the key, its value and what was expected.
    """
    lives = "compactor_life" in section
    rule = FailureRule(
        attempts=section.number("attempts", 0.0, least=0.0, most=0.9),
        compactor_life_s=section.duration_s("compactor_life", 60.0, least=60.0, most=1e9)
        if lives
        else 0.0,
        restart_s=section.duration_s("restart", 60.0, least=0.0, most=86_400.0),
    )
    section.close()
    return rule


class Failures:
    """Draws what dies, and when. The same seed gives the same deaths."""

    def __init__(self, rule: FailureRule, seed: int) -> None:
        self.rule = rule
        self._attempts, self._losses = Random(f"{seed}/attempts"), Random(f"{seed}/compactors")

    def dies_after(self) -> float:
        """Return after which share of its bytes an attempt dies; 1: it does not."""
        chance = self._attempts
        if not self.rule.attempts or chance.random() >= self.rule.attempts:
            return 1.0
        return chance.random()

    def next_loss_s(self, compactors: int) -> float:
        """Return the time until one of so many compactors is lost."""
        return self._losses.expovariate(compactors / self.rule.compactor_life_s)

    def lost(self, compactors: int, most: int) -> int | None:
        """Return which of the compactors that are there is lost; None: the one is not there.

        Losses are drawn as if there were always `most`, and those of the others have no effect.
        """
        drawn = int(self._losses.random() * most)
        return drawn if drawn < compactors else None
