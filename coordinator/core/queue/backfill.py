"""How much of each group is under way, and which job may start beside it.

The jobs of a group that are under way have at most so many input bytes together
(`Capacity`). Smaller jobs pass one that does not fit, so that no compactor waits for it,
but only `PASSED_MAX` of them: after that nothing that does not outrank it starts before
it, so that it fits in the end. Where nothing is under way any job fits.
"""

from collections.abc import Container

from common.model.job import Job, LaneClass, is_urgent
from common.units import format_count
from coordinator.core.limits import Limits
from coordinator.core.queue.admission import JobFilter
from coordinator.core.queue.job_queue import JobQueues


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
            return f"group {group} runs {format_count(jobs, 'job')}, its limit"
        if size >= self._limits.running_input_bytes_max:
            return f"group {group} runs jobs with {size} of input, its limit"
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


PASSED_MAX = 8


class Backfill:
    """The job of each group that was passed last, and how often. Bounded by the groups."""

    def __init__(self, queues: JobQueues, capacity: Capacity) -> None:
        self._queues = queues
        self._capacity = capacity
        self._passed: dict[str, tuple[str, int]] = {}

    def waits_for(self, group: str) -> Job | None:
        """Return the queued job that no lower one may pass any more, or None."""
        name, times = self._passed.get(group, ("", 0))
        return self._queues.queue(group).get(name) if times >= PASSED_MAX else None

    def take(
        self,
        group: str,
        saturated: Container[str] = (),
        *,
        only_urgent: bool = False,
        admits: JobFilter | None = None,
        barred: Container[LaneClass] = (),
    ) -> Job | None:
        """Take the next job of a group out that may start now, or None.

        Args:
            group: Of compactors that wait.
            saturated: Tables that hand nothing out now.
            only_urgent: Whether the free slots are kept for urgent jobs.
            admits: Says whether a job may start beside the others; None: any may.
            barred: Classes none of whose jobs it admits.
        """
        first = self.waits_for(group)
        if first is not None and first.tablet.table in saturated:
            first = None
        refused: list[str] = []

        def may_start(job: Job) -> bool:
            if only_urgent and not is_urgent(job):
                return False
            passes = first is not None and job.id != first.id and job.priority <= first.priority
            if passes or (admits is not None and not admits(job)):
                return False
            if self._capacity.fits(group, job.input_bytes):
                return True
            refused.append(job.id)
            return False

        job = self._queues.take(group, may_start, saturated, barred)
        if job is None and not self._capacity.jobs(group):
            # The one that all wait for is not among the best any more.
            return self._queues.take(group, None, saturated)
        if job is not None and refused and first is None:
            name, times = self._passed.get(group, ("", 0))
            self._passed[group] = (refused[0], times + 1 if name == refused[0] else 1)
        return job
