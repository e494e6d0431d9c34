"""How long to wait before the next try. Pure: whoever wants jitter adds it."""

from dataclasses import dataclass

_DOUBLINGS_MAX = 60
"""Enough to reach any bound; more would overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits that double with every failure in a row, up to a bound."""

    base_s: float = 0.2
    """Wait after the first failure."""
    max_s: float = 15.0

    def wait_s(self, failures: int) -> float:
        """Return the wait before the next try: nothing before the first failure.

        Args:
            failures: How many tries in a row have failed.
        """
        if failures < 1:
            return 0.0
        return min(self.base_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), self.max_s)
