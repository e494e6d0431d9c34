"""Disturbances of a simulation: user requests, attempt failures, compactor losses.

This module has only the rules and the random draws. The service's own code decides the response.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random  # noqa: TID251  seeded by the specification: the same run every time

from common.model.job import BOOST_MAX
from neve.simulate.sections import Section

REQUESTS_MAX = 1_000_000
"""Maximum number of requests in one run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRule:
    """How often users request the compaction of a whole tablet."""

    every_s: float
    """Mean time between two requests."""
    boost: int = 0
    """Added to the priority of the requests' jobs."""


def read_requests(section: Section) -> RequestRule:
    """Read the section `requests` of a table.

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
    """Yield the times of requests and their tablet numbers: a Poisson process.

    Args:
        rule: The rate of requests.
        table: Name of the table.
        tablets: Number of tablets of the table.
        seed: Seed of the run.
        length_s: End of the requests, in seconds.
    """
    chance, at_s = Random(f"{seed}/{table}/requests"), 0.0
    while (at_s := at_s + chance.expovariate(1.0 / rule.every_s)) < length_s:
        yield round(at_s, 3), int(chance.random() * tablets)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRule:
    """The rates of attempt failures and compactor losses."""

    attempts: float = 0.0
    """Fraction of attempts that die after a random share of their bytes."""
    compactor_life_s: float = 0.0
    """Mean time until a compactor is lost with its running jobs; 0: no losses."""
    restart_s: float = 60.0
    """Time from the loss of a compactor until its replacement is ready."""


def read_failures(section: Section) -> FailureRule:
    """Read the section `cluster.failures`.

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
    """Draws failures and their times. The same seed gives the same failures."""

    def __init__(self, rule: FailureRule, seed: int) -> None:
        self.rule = rule
        self._attempts, self._losses = Random(f"{seed}/attempts"), Random(f"{seed}/compactors")

    def dies_after(self) -> float:
        """Return the fraction of bytes after which an attempt dies; 1: it does not die."""
        chance = self._attempts
        if not self.rule.attempts or chance.random() >= self.rule.attempts:
            return 1.0
        return chance.random()

    def next_loss_s(self, compactors: int) -> float:
        """Return the time until one of `compactors` compactors is lost."""
        return self._losses.expovariate(compactors / self.rule.compactor_life_s)

    def lost(self, compactors: int, most: int) -> int | None:
        """Return the index of the lost compactor; None if no running compactor is hit.

        Losses are drawn as if `most` compactors were always running; a loss of one that is not
        running has no effect.
        """
        drawn = int(self._losses.random() * most)
        return drawn if drawn < compactors else None
