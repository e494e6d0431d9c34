"""When files arrive, in which tablet, and how large: drawn from a seed or replayed.

Rates are piecewise constant: pieces last a quarter of an hour for the daily curve, and are cut at
the start and end of bursts. Within a piece, flushes are a Poisson process or arrive at equal
intervals. The rest of an interval at the end of a piece continues at the rate of the next piece, so
that the boundaries of pieces have no effect.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import cos, exp, pi
from random import Random  # noqa: TID251  seeded by the specification: the same run every time

from neve.simulate.recording import Recording
from neve.simulate.specification import DAY_S, ArrivalRule, TableRule

PIECE_S = 900.0
SIZE_FACTOR_MAX = 64.0
"""Limit of a file's size, as a multiple of the mean."""


@dataclass(slots=True)
class ArrivingFile:
    """A file from a writer. Row counts are numbers of writes, before duplicate keys merge."""

    size_bytes: int
    rows: float
    deletes: float
    updates: float
    late_s: float = 0.0


@dataclass(slots=True)
class Flush:
    """Files that arrive in one tablet at the same time."""

    at_s: float
    tablet: int
    files: list[ArrivingFile]


def flushes(table: TableRule, seed: int, length_s: float) -> Iterator[Flush]:
    """Yield all flushes of a table, ordered by time.

    Args:
        table: The table.
        seed: Seed of the run. Tables of a run draw independently of each other.
        length_s: End of the arrivals, in seconds.
    """
    chance = Random(f"{seed}/{table.name}")
    rule = table.arrivals
    if rule.recording is not None:
        yield from _played(rule, rule.recording, table.tablets, length_s)
        return
    choose = _TabletChoice(table, chance)
    for at_s in _times(rule, chance, length_s):
        files = [_file(rule, table.row_bytes, chance) for _ in range(rule.files)]
        yield Flush(at_s, choose.next(), files)


class _TabletChoice:
    """Chooses tablets: round-robin, uniformly, or by a Zipf distribution."""

    def __init__(self, table: TableRule, chance: Random) -> None:
        self._tablets, self._chance = table.tablets, chance
        self._in_turn = table.arrivals.regular and not table.tablet_skew
        self._turn = -1
        ranks = range(1, table.tablets + 1)
        self._weights = (
            list(accumulate(rank**-table.tablet_skew for rank in ranks))
            if table.tablet_skew
            else None
        )

    def next(self) -> int:
        if self._in_turn:
            self._turn = (self._turn + 1) % self._tablets
            return self._turn
        if self._weights is None:
            return int(self._chance.random() * self._tablets)
        drawn = self._chance.random() * self._weights[-1]
        return min(bisect_right(self._weights, drawn), self._tablets - 1)


def _file(rule: ArrivalRule, row_bytes: int, chance: Random) -> ArrivingFile:
    size = float(rule.size_bytes)
    if spread := rule.size_spread:
        # The mean of a log-normal distribution exceeds its median by a factor of exp(spread² / 2).
        size *= min(SIZE_FACTOR_MAX, exp(chance.gauss(0.0, spread) - spread * spread / 2))
    rows = max(1.0, size / row_bytes)
    is_late = rule.late > 0 and chance.random() < rule.late
    late_s = chance.random() * rule.late_max_s if is_late else 0.0
    size_bytes = max(1, round(size))
    return ArrivingFile(size_bytes, rows, rows * rule.deletes, rows * rule.updates, late_s)


# -------------------------------------------------------------------------------------------- Times


def _times(rule: ArrivalRule, chance: Random, length_s: float) -> Iterator[float]:
    """Yield the times of flushes."""
    needed = 1.0 if rule.regular else chance.expovariate(1.0)
    for begin_s, end_s in pairwise(_edges(rule, length_s)):
        rate = rate_at(rule, (begin_s + end_s) / 2)
        at_s = begin_s
        while rate > 0:
            step_s = needed / rate
            if at_s + step_s >= end_s:
                needed -= (end_s - at_s) * rate
                break
            at_s += step_s
            yield round(at_s, 3)
            needed = 1.0 if rule.regular else chance.expovariate(1.0)


def _edges(rule: ArrivalRule, length_s: float) -> list[float]:
    """Return the times at which the rate changes, from 0 to the end."""
    edges = {0.0, length_s}
    if rule.daily:
        edges.update(PIECE_S * at for at in range(1, int(length_s / PIECE_S) + 1))
    for burst in rule.bursts:
        edges.update((burst.at_s, burst.at_s + burst.length_s))
    return sorted(edge for edge in edges if edge <= length_s)


def rate_at(rule: ArrivalRule, at_s: float) -> float:
    """Return the flushes per second at a given time."""
    hour = at_s % DAY_S / 3600.0
    rate = rule.flushes_s * (1.0 + rule.daily * cos(2 * pi * (hour - rule.peak_hour) / 24.0))
    for burst in rule.bursts:
        if burst.at_s <= at_s < burst.at_s + burst.length_s:
            rate *= burst.times
    return rate


def _played(
    rule: ArrivalRule, recording: Recording, tablets: int, length_s: float
) -> Iterator[Flush]:
    """Yield the recorded arrivals; start over at the end of the recording."""
    begin_s = 0.0
    while begin_s < length_s:
        for arrival in recording.arrivals:
            if begin_s + arrival.at_s >= length_s:
                return
            rows = float(arrival.rows)
            deletes = float(arrival.tombstones) or rows * rule.deletes
            file = ArrivingFile(arrival.size_bytes, rows, deletes, rows * rule.updates)
            yield Flush(round(begin_s + arrival.at_s, 3), arrival.tablet % tablets, [file])
        begin_s += recording.length_s
