"""The wait before the next try. Pure: callers that want jitter add it."""

from dataclasses import dataclass

_DOUBLINGS_MAX = 60
"""Doublings after which the wait stops growing, to avoid an overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits that double with each consecutive failure, up to a bound."""

    base_s: float = 0.2
    """Wait after the first failure."""
    max_s: float = 15.0

    def wait_s(self, failures: int) -> float:
        """Return the wait before the next try: 0 before the first failure.

        Args:
            failures: Number of consecutive failures.
        """
        if failures < 1:
            return 0.0
        return min(self.base_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), self.max_s)
