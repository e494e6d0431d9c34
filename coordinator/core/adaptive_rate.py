"""The rate of a volume by how slow its storage is, as in Ambry. Pure.

    latency ≤ threshold    the greatest rate
    else                   least + (greatest - least) · threshold / latency

It falls at once and rises in steps: one quick answer does not undo many slow ones.
"""

from dataclasses import dataclass, replace
from typing import Self

STEPS = 10
"""Looks that it takes to rise from the least rate to the greatest."""


def desired_rate(
    latency: float, least: int, greatest: int, threshold: float, steepness: float = 1.0
) -> int:
    """Return the rate that a latency allows.

    Args:
        latency: Measured, in any unit.
        least: The lowest rate; not below the greatest: nothing adapts.
        greatest: The highest rate.
        threshold: Latency up to which all is well, in the same unit.
        steepness: Ambry's `k`; above 1 the curve jumps at the threshold.
    """
    if least >= greatest or latency <= threshold:
        return greatest
    wanted = int(least + (greatest - least) * threshold / latency / steepness)
    return min(max(wanted, least), greatest)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveRate:
    """A rate between two bounds that follows latency. `least` ≤ `rate` ≤ `greatest`, if it may."""

    least: int
    greatest: int
    threshold: float
    rate: int

    @classmethod
    def begin(cls, least: int, greatest: int, threshold: float) -> Self:
        """Begin at the greatest rate: nothing is known against it."""
        return cls(least=least, greatest=greatest, threshold=threshold, rate=greatest)

    def bounded(self, greatest: int) -> Self:
        """Return it under another greatest rate."""
        if greatest == self.greatest:
            return self
        rate = greatest if self.rate == self.greatest else min(self.rate, greatest)
        return replace(self, greatest=greatest, rate=max(rate, min(self.least, greatest)))

    def looked(self, latency: float | None) -> Self:
        """Return it after a look; None: nothing was measured, which speaks against nothing."""
        wanted = self.greatest
        if latency is not None:
            wanted = desired_rate(latency, self.least, self.greatest, self.threshold)
        step = max(1, (self.greatest - self.least) // STEPS)
        return replace(self, rate=min(wanted, self.rate + step))
