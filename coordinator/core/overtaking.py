"""Jobs that do not fit beside what is under way: who may start before them, and how often.

The jobs of a group that are under way have at most so many input bytes together
(`Capacity`). Smaller jobs pass one that does not fit, so that no compactor waits for it,
but only `PASSED_MAX` of them: after that nothing that does not outrank it starts before
it, so that it fits in the end. Where nothing is under way any job fits.
"""

from collections.abc import Container

from common.model.job import Job
from coordinator.core.capacity import Capacity
from coordinator.core.job_queues import JobQueues

PASSED_MAX = 8


class Overtaking:
    """The job of each group that was passed last, and how often. Bounded by the groups."""

    def __init__(self, queues: JobQueues, capacity: Capacity) -> None:
        self._queues = queues
        self._capacity = capacity
        self._passed: dict[str, tuple[str, int]] = {}

    def waits_for(self, group: str) -> Job | None:
        """Return the queued job that no lower one may pass any more, or None."""
        name, times = self._passed.get(group, ("", 0))
        return self._queues.queue(group).get(name) if times >= PASSED_MAX else None

    def take(self, group: str, shut: Container[str] = ()) -> Job | None:
        """Take the next job of a group out that may start now, or None.

        Args:
            group: Of compactors that wait.
            shut: Tables that hand nothing out now.
        """
        first = self.waits_for(group)
        if first is not None and first.tablet.table in shut:
            first = None
        refused: list[str] = []

        def may_start(job: Job) -> bool:
            if first is not None and job.id != first.id and job.priority <= first.priority:
                return False
            if self._capacity.fits(group, job.input_bytes):
                return True
            refused.append(job.id)
            return False

        job = self._queues.take(group, may_start, shut)
        if job is None and not self._capacity.jobs(group):
            # The one that all wait for is not among the best any more.
            return self._queues.take(group, None, shut)
        if job is not None and refused and first is None:
            name, times = self._passed.get(group, ("", 0))
            self._passed[group] = (refused[0], times + 1 if name == refused[0] else 1)
        return job
