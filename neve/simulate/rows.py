"""The expected number of rows after a merge; no keys are drawn.

A file of a keyed table is described by three numbers:

    inserts   rows with keys that were new when they were written
    draws     writes to the tablet's key population, with or without an earlier row
    deletes   the draws that are tombstones

Merges add up all three numbers, in any order. The number of remaining rows follows from the sums.
Of `n` keys, `d` draws hit

    E(d) = n · (1 - (1 - 1/n)^d)

different keys: Cárdenas, "Analysis and performance of inverted data base structures", CACM 18(5),
1975. For skewed draws, the sum runs over classes of keys of a Zipf distribution. Of the keys that
were hit, a fraction `inserts / n` belongs to inserted rows and replaces them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import expm1, inf, log1p

# ------------------------------------------------------------------------------------ Keys and hits


@lru_cache(maxsize=256)
def _zipf_classes(keys: int, skew: float) -> tuple[tuple[float, float], ...]:
    """Return classes of keys by rank: single keys for the first ranks, then growing ranges.

    A class is its number of keys and the probability that a draw hits one specific key of it.
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
    """Return the sum of rank^-skew over the ranks from `first` to before `behind`."""
    if behind == first + 1:
        return float(first**-skew)
    # Approximated by the integral from half a rank before the first to half a rank after the last.
    low, high = first - 0.5, behind - 0.5
    if abs(skew - 1.0) < 1e-9:
        return log1p((high - low) / low)
    return float((high ** (1.0 - skew) - low ** (1.0 - skew)) / (1.0 - skew))


@dataclass(frozen=True, slots=True)
class KeyPopulation:
    """The keys of a tablet that updates and deletes choose from."""

    keys: int
    """Initial number of keys; inserts add more."""
    skew: float = 0.0
    """Exponent of the Zipf distribution of chosen keys; 0: uniform."""

    def hit(self, draws: float, keys: float) -> float:
        """Return the expected number of different keys that draws hit.

        Args:
            draws: Number of writes.
            keys: Current number of keys. Keys that were added later follow the same distribution.
        """
        if draws <= 0 or keys < 1:
            return 0.0
        if not self.skew:
            return -keys * expm1(draws * log1p(-1.0 / keys)) if keys > 1 else 1.0
        scale = keys / self.keys
        mean_draws = draws / scale
        classes = _zipf_classes(self.keys, self.skew)
        return -scale * sum(count * expm1(-mean_draws * chance) for count, chance in classes)


# --------------------------------------------------------------------------------- Content of files


@dataclass(slots=True)
class Content:
    """The content of one file of a keyed table, as expected values. It never changes."""

    inserts: float
    draws: float = 0.0
    deletes: float = 0.0
    start: float = 0.0
    """Start of its key range, as a fraction of the tablet's; keys are evenly spread."""
    end: float = 1.0
    first: int = 0
    """Number of its oldest arrival."""
    last: int = 0
    """Number of its newest arrival."""
    deleted_from_s: float = inf
    """When its oldest tombstone was written."""
    deleted_to_s: float = -inf
    """When its newest tombstone was written."""

    @property
    def span(self) -> float:
        """The length of its key range, as a fraction of the tablet's."""
        return self.end - self.start


def rows_in(
    inserts: float, draws: float, deletes: float, keys: float, population: KeyPopulation
) -> tuple[float, float]:
    """Return the number of rows after these writes, and the number of tombstones among them.

    Args:
        inserts: Rows with new keys.
        draws: Writes to the key population of the tablet.
        deletes: Draws that are tombstones.
        keys: Number of keys in this range.
        population: The keys and their distribution.
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
    """Return the outputs of a merge, each with its content, rows and tombstones.

    Args:
        contents: Contents of the inputs.
        keys: Number of keys of the whole tablet.
        population: The keys and their distribution.
        cuts: Boundaries of outputs, as fractions of the tablet's key range.
        purged: Fraction of the tombstones to drop, with the rows that they delete; above 0 only if
            no older file is outside the merge.
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
    """Return one output; between two adjacent steps, the set of inputs with keys is constant."""
    inserts = draws = deletes = rows = dead = 0.0
    for start, end in pairwise(steps):
        writes, drawn, gone = _writes_between(contents, start, end)
        left, tombstones = rows_in(writes, drawn, gone, keys * (end - start), population)
        inserts, draws, deletes = inserts + writes, draws + drawn, deletes + gone
        rows, dead = rows + left, dead + tombstones
    if purged and deletes:
        # The remaining keys have one row each, so they count as inserts from now on.
        rows, dead = rows - dead * purged, dead * (1.0 - purged)
        inserts = rows - dead
        draws = deletes = deletes * (1.0 - purged)
    content = Content(
        inserts,
        draws,
        deletes,
        start=steps[0],
        end=steps[-1],
        first=min(content.first for content in contents),
        last=max(content.last for content in contents),
        deleted_from_s=min(content.deleted_from_s for content in contents),
        deleted_to_s=max(content.deleted_to_s for content in contents),
    )
    return content, rows, dead


def _writes_between(
    contents: Sequence[Content], start: float, end: float
) -> tuple[float, float, float]:
    """Return the inserts, draws and deletes in a key range that contains no file boundary."""
    shares = [
        (content, (end - start) / content.span)
        for content in contents
        if content.start <= start and end <= content.end and content.span > 0
    ]
    return (
        sum(content.inserts * share for content, share in shares),
        sum(content.draws * share for content, share in shares),
        sum(content.deletes * share for content, share in shares),
    )
