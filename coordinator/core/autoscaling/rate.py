"""How fast a compactor of a group rewrites, measured. Pure.

    rate = slots · input bytes committed / slot-seconds that were busy

Both sums decay alike, so that old work counts less and less: after `DECAY_S`, to 1/e. Bytes count
when a job commits and its slot-seconds as they pass, so the rate of a group whose first long job
still runs is not known.
"""

from dataclasses import dataclass, replace
from math import exp

DECAY_S = 600.0
BUSY_MIN_S = 1.0
"""Less than that says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteRate:
    """What a group has done lately."""

    seen_s: float | None = None
    committed_bytes: int = 0
    """The group's counter when it was last seen."""
    done_bytes: float = 0.0
    busy_s: float = 0.0

    def seen(self, committed_bytes: int, busy_slots: int, now_s: float) -> "RewriteRate":
        """Return the rate after a look at the group.

        Args:
            committed_bytes: Input bytes of all commits so far; a lower number is a new count.
            busy_slots: Slots with a job now.
            now_s: The time now.
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
        """Return what a compactor with all its slots busy rewrites per second; None: not known."""
        if not self.done_bytes or self.busy_s < BUSY_MIN_S:
            return None
        return slots * self.done_bytes / self.busy_s
