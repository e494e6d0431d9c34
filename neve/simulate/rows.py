"""How many rows a merge leaves, as expected numbers: no key is ever drawn.

A file of a keyed table is known by three numbers:

    inserts   rows with keys that no other file had when they were written
    draws     writes that fell on keys of the tablet, whoever wrote them first
    deletes   those of the draws that are tombstones

All three add up when files are merged, whatever the order. How many rows are left follows from the
sums. Of `n` keys, `d` draws hit

    E(d) = n · (1 - (1 - 1/n)^d)

different ones: Cárdenas, "Analysis and performance of inverted data base structures", CACM 18(5),
1975. Keys that are drawn more often than others are taken class by class, by a Zipf law. The share
`inserts / n` of the keys that were hit is among the inserted rows, and replaces those.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import expm1, inf, log1p

# ------------------------------------------------------------------------ Keys and how many are hit


@lru_cache(maxsize=256)
def _zipf_classes(keys: int, skew: float) -> tuple[tuple[float, float], ...]:
    """Return classes of keys by rank: the first ranks alone, later ones with their neighbours.

    Each is its number of keys and the chance of one draw to hit one of them.
    """
    edges = [1]
    while edges[-1] <= keys:
        edges.append(min(max(edges[-1] + 1, edges[-1] * 5 // 4), keys + 1))
    masses = [_zipf_mass(low, high, skew) for low, high in pairwise(edges)]
    total = sum(masses)
    return tuple(
        (high - low, mass / total / (high - low))
        for (low, high), mass in zip(pairwise(edges), masses, strict=True)
    )


def _zipf_mass(first: int, behind: int, skew: float) -> float:
    """Return the sum of rank to the power of -skew, from one rank to before another."""
    if behind == first + 1:
        return float(first**-skew)
    # About the integral from half a rank before the first to half a rank behind the last.
    low, high = first - 0.5, behind - 0.5
    if abs(skew - 1.0) < 1e-9:
        return log1p((high - low) / low)
    return float((high ** (1.0 - skew) - low ** (1.0 - skew)) / (1.0 - skew))


@dataclass(frozen=True, slots=True)
class KeyPopulation:
    """The keys of a tablet on which updates and deletes fall."""

    keys: int
    """At the beginning; inserts bring more."""
    skew: float = 0.0
    """Exponent of the Zipf law by which keys are chosen; 0: all alike."""

    def hit(self, draws: float, keys: float) -> float:
        """Return the expected number of different keys that draws fall on.

        Args:
            draws: Number of writes.
            keys: Number of keys now. Those that came later are chosen like those before them.
        """
        if draws <= 0 or keys < 1:
            return 0.0
        if not self.skew:
            return -keys * expm1(draws * log1p(-1.0 / keys)) if keys > 1 else 1.0
        scale = keys / self.keys
        each = draws / scale
        classes = _zipf_classes(self.keys, self.skew)
        return -scale * sum(count * expm1(-each * chance) for count, chance in classes)


# --------------------------------------------------------------------------- What files are made of


@dataclass(slots=True)
class Content:
    """What is in one file of a keyed table; numbers are expected values. It never changes."""

    inserts: float
    draws: float = 0.0
    deletes: float = 0.0
    start: float = 0.0
    """Where its keys begin, as a share of the tablet's; keys lie evenly."""
    end: float = 1.0
    first: int = 0
    """Number of the oldest arrival in it."""
    last: int = 0
    """Number of the newest one."""
    deleted_from_s: float = inf
    """When the oldest tombstone in it was written."""
    deleted_to_s: float = -inf
    """When the newest one was."""

    @property
    def span(self) -> float:
        """The share of the tablet's keys between its first and its last one."""
        return self.end - self.start


def rows_in(
    inserts: float, draws: float, deletes: float, keys: float, population: KeyPopulation
) -> tuple[float, float]:
    """Return how many rows such writes leave, and how many of them are tombstones.

    Args:
        inserts: Rows with keys of their own.
        draws: Writes on keys of the tablet.
        deletes: Those of the draws that are tombstones.
        keys: Keys that there are in this range.
        population: How they are chosen.
    """
    if not draws:
        return inserts, 0.0
    hit = population.hit(draws, keys)
    replaced = min(1.0, inserts / keys) if keys else 0.0
    return inserts + hit * (1.0 - replaced), hit * deletes / draws


def merged(
    contents: Sequence[Content],
    keys: float,
    population: KeyPopulation,
    *,
    cuts: Sequence[float] = (),
    purged: float = 0.0,
) -> list[tuple[Content, float, float]]:
    """Return what a merge writes: for each output its content, its rows, and its tombstones.

    Args:
        contents: Of the inputs.
        keys: Keys of the whole tablet.
        population: How they are chosen.
        cuts: Where outputs are cut, as shares of the tablet's keys.
        purged: Share of the tombstones that go, and with them the rows that they delete; above 0
            only where nothing older lies outside.
    """
    low, high = min(content.start for content in contents), max(content.end for content in contents)
    edges = sorted({content.start for content in contents} | {content.end for content in contents})
    inner = [cut for cut in cuts if low < cut < high]
    outputs: list[tuple[Content, float, float]] = []
    for start, end in pairwise([low, *inner, high]):
        steps = [start, *(edge for edge in edges if start < edge < end), end]
        outputs.append(_merged_range(contents, steps, keys, population, purged))
    return [output for output in outputs if output[1] >= 0.5]


def _merged_range(
    contents: Sequence[Content],
    steps: Sequence[float],
    keys: float,
    population: KeyPopulation,
    purged: float,
) -> tuple[Content, float, float]:
    """Return one output; between two steps the same inputs have keys."""
    inserts = draws = deletes = rows = dead = 0.0
    for start, end in pairwise(steps):
        some, drawn, gone = _writes_between(contents, start, end)
        left, tombstones = rows_in(some, drawn, gone, keys * (end - start), population)
        inserts, draws, deletes = inserts + some, draws + drawn, deletes + gone
        rows, dead = rows + left, dead + tombstones
    if purged and deletes:
        # What is left are keys with one row each: from now on they are like inserted ones.
        rows, dead = rows - dead * purged, dead * (1.0 - purged)
        inserts = rows - dead
        draws = deletes = deletes * (1.0 - purged)
    content = Content(
        inserts,
        draws,
        deletes,
        start=steps[0],
        end=steps[-1],
        first=min(each.first for each in contents),
        last=max(each.last for each in contents),
        deleted_from_s=min(each.deleted_from_s for each in contents),
        deleted_to_s=max(each.deleted_to_s for each in contents),
    )
    return content, rows, dead


def _writes_between(
    contents: Sequence[Content], start: float, end: float
) -> tuple[float, float, float]:
    """Return the inserts, draws and deletes with keys in a range that no file ends in."""
    here = [
        (content, (end - start) / content.span)
        for content in contents
        if content.start <= start and end <= content.end and content.span > 0
    ]
    return (
        sum(each.inserts * share for each, share in here),
        sum(each.draws * share for each, share in here),
        sum(each.deletes * share for each, share in here),
    )
