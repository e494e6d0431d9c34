"""Measured rewrite rate of a compactor of a group. Pure.

    rate = slots · input bytes committed / slot-seconds that were busy

Both sums decay equally, so older work counts less: after `DECAY_S`, 1/e of it. Bytes count when a
job commits, slot-seconds as they pass. The rate of a group whose first long job still runs is
therefore unknown.
"""

from dataclasses import dataclass, replace
from math import exp

DECAY_S = 600.0
BUSY_MIN_S = 1.0
"""Less busy time gives no reliable rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteRate:
    """Recent work of a group."""

    seen_s: float | None = None
    committed_bytes: int = 0
    """The group's counter at the last update."""
    done_bytes: float = 0.0
    busy_s: float = 0.0

    def seen(self, committed_bytes: int, busy_slots: int, now_s: float) -> "RewriteRate":
        """Return the updated rate.

        Args:
            committed_bytes: Input bytes of all commits so far; a lower number restarts the count.
            busy_slots: Slots with a job now.
            now_s: The current time.
        """
        if self.seen_s is None:
            return replace(self, seen_s=now_s, committed_bytes=committed_bytes)
        passed_s = max(0.0, now_s - self.seen_s)
        kept = exp(-passed_s / DECAY_S)
        new_bytes = max(0, committed_bytes - self.committed_bytes)
        return RewriteRate(
            seen_s=now_s,
            committed_bytes=committed_bytes,
            done_bytes=self.done_bytes * kept + new_bytes,
            busy_s=self.busy_s * kept + busy_slots * passed_s,
        )

    def bytes_s(self, slots: int) -> float | None:
        """Return what a fully busy compactor rewrites per second; None if unknown."""
        if not self.done_bytes or self.busy_s < BUSY_MIN_S:
            return None
        return slots * self.done_bytes / self.busy_s
