"""How much of each group is under way, and whether one more job may start."""

from coordinator.core.limits import Limits


class Capacity:
    """Jobs under way and in flight, by a key of the caller's (a take, then an attempt).

    Always true: the totals of a group are those of its keys. A key enters once and
    leaves once, so that a repeated report cannot free a slot twice.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held: dict[str, tuple[str, int]] = {}
        self._jobs: dict[str, int] = {}
        self._input_bytes: dict[str, int] = {}

    def jobs(self, group: str) -> int:
        """Return how many jobs of a group are under way."""
        return self._jobs.get(group, 0)

    def input_bytes(self, group: str) -> int:
        """Return the input bytes of a group's jobs under way."""
        return self._input_bytes.get(group, 0)

    def full(self, group: str) -> str | None:
        """Return why no further job of a group may start, or None."""
        jobs, size = self.jobs(group), self.input_bytes(group)
        if jobs >= self._limits.running_jobs_max:
            return f"group {group} runs {jobs} jobs, as many as it may"
        if size >= self._limits.running_input_bytes_max:
            return f"group {group} has {size} input bytes under way, as many as it may"
        return None

    def fits(self, group: str, input_bytes: int) -> bool:
        """Return whether so many bytes more may be under way; alone, any number may."""
        most = self._limits.running_input_bytes_max
        return not self.jobs(group) or self.input_bytes(group) + input_bytes <= most

    def enter(self, key: str, group: str, input_bytes: int) -> None:
        """Count a job; the same key again changes nothing."""
        if key in self._held:
            return
        self._held[key] = (group, input_bytes)
        self._jobs[group] = self.jobs(group) + 1
        self._input_bytes[group] = self.input_bytes(group) + input_bytes

    def leave(self, key: str) -> None:
        """Count a job no longer; an unknown key changes nothing."""
        held = self._held.pop(key, None)
        if held is None:
            return
        group, input_bytes = held
        self._jobs[group] -= 1
        self._input_bytes[group] -= input_bytes
        if not self._jobs[group]:
            del self._jobs[group], self._input_bytes[group]

    def check(self) -> None:
        """Assert what is always true of the totals; for tests."""
        for group in {*self._jobs, *(group for group, _ in self._held.values())}:
            sizes = [size for where, size in self._held.values() if where == group]
            assert (self.jobs(group), self.input_bytes(group)) == (len(sizes), sum(sizes))
