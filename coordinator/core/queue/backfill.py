"""The capacity in use by each group, and the jobs that may still start.

The input bytes of the running jobs of a group are bounded (`Capacity`). Smaller jobs may overtake a
job that does not fit, so that no compactor idles. After `PASSED_MAX` of them, only jobs of a higher
priority may start before the waiting job, so that it eventually fits. In a group without running
jobs any job fits.
"""

from collections.abc import Container

from common.model.job import Job, LaneClass, is_urgent
from common.units import format_count
from coordinator.core.limits import Limits
from coordinator.core.queue.admission import JobFilter
from coordinator.core.queue.job_queue import JobQueues


class Capacity:
    """Running and reserving jobs, by a key that the caller chooses (a take, then an attempt).

    Invariant: the totals of a group equal the sums over its keys. A key enters once and leaves
    once, so that a repeated report cannot free a slot twice.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held: dict[str, tuple[str, int]] = {}
        self._jobs: dict[str, int] = {}
        self._input_bytes: dict[str, int] = {}

    def jobs(self, group: str) -> int:
        """Return the number of running jobs of a group."""
        return self._jobs.get(group, 0)

    def input_bytes(self, group: str) -> int:
        """Return the input bytes of a group's running jobs."""
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
        """Return whether a job of this size fits; a job that runs alone always fits."""
        most = self._limits.running_input_bytes_max
        return not self.jobs(group) or self.input_bytes(group) + input_bytes <= most

    def enter(self, key: str, group: str, input_bytes: int) -> None:
        """Count a job; a repeated key is ignored."""
        if key in self._held:
            return
        self._held[key] = (group, input_bytes)
        self._jobs[group] = self.jobs(group) + 1
        self._input_bytes[group] = self.input_bytes(group) + input_bytes

    def leave(self, key: str) -> None:
        """Stop counting a job; an unknown key is ignored."""
        held = self._held.pop(key, None)
        if held is None:
            return
        group, input_bytes = held
        self._jobs[group] -= 1
        self._input_bytes[group] -= input_bytes
        if not self._jobs[group]:
            del self._jobs[group], self._input_bytes[group]

    def check(self) -> None:
        """Assert the invariants of the totals; for tests."""
        for group in {*self._jobs, *(group for group, _ in self._held.values())}:
            sizes = [size for where, size in self._held.values() if where == group]
            assert (self.jobs(group), self.input_bytes(group)) == (len(sizes), sum(sizes))


PASSED_MAX = 8


class Backfill:
    """The last overtaken job of each group, with a count. Bounded by the number of groups."""

    def __init__(self, queues: JobQueues, capacity: Capacity) -> None:
        self._queues = queues
        self._capacity = capacity
        self._passed: dict[str, tuple[str, int]] = {}

    def waits_for(self, group: str) -> Job | None:
        """Return the queued job that no lower-ranked job may overtake any more, or None."""
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
        """Remove and return the next job of a group that may start now, or None.

        Args:
            group: The group of the waiting compactors.
            saturated: Tables whose jobs may not start now.
            only_urgent: Whether the free slots are reserved for urgent jobs.
            admits: Filter for the jobs that may start now; None means every job.
            barred: Classes whose jobs `admits` rejects.
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
            # The overtaken job is no longer among the probed ones; start the best job instead.
            return self._queues.take(group, None, saturated)
        if job is not None and refused and first is None:
            name, times = self._passed.get(group, ("", 0))
            self._passed[group] = (refused[0], times + 1 if name == refused[0] else 1)
        return job
