"""How long to wait before the next try."""

from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits that double with every failure up to a bound, and start over after a success."""

    first_s: float = 0.2
    longest_s: float = 15.0
    failures: int = 0

    def failed(self) -> Self:
        """Return the back-off after one more failure."""
        return replace(self, failures=self.failures + 1)

    def succeeded(self) -> Self:
        """Return the back-off after a success."""
        return replace(self, failures=0) if self.failures else self

    def wait_s(self, chance: float = 1.0) -> float:
        """Return the wait before the next try: nothing before the first failure.

        Args:
            chance: From 0 to 1; spreads callers that failed together over half the wait.
        """
        if not self.failures:
            return 0.0
        whole_s = self.first_s * 2.0 ** min(self.failures - 1, 32)
        return min(whole_s, self.longest_s) * (0.5 + 0.5 * chance)
