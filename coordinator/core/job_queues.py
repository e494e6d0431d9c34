"""The queues of all compaction groups, so that one plan replaces a tablet's jobs in all."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping

from common.model.job import Job
from common.model.tablet import TabletId
from coordinator.core.admission import Admission, Replacement, Suits
from coordinator.core.job_queue import JobQueue


class JobQueues:
    """One bounded queue per group, made when it is first needed.

    Always true: a job is in at most one of them.
    """

    def __init__(self, make: Callable[[str], JobQueue]) -> None:
        """Begin with no queue.

        Args:
            make: Returns an empty queue for a group of this name.
        """
        self._make = make
        self._queues: dict[str, JobQueue] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[tuple[str, JobQueue]]:
        """Yield groups and their queues, by name."""
        return iter(sorted(self._queues.items()))

    def queue(self, group: str) -> JobQueue:
        """Return the queue of a group, made now if there is none."""
        queue = self._queues.get(group)
        if queue is None:
            queue = self._queues[group] = self._make(group)
        return queue

    def offer(self, job: Job, now_s: float, boost: int = 0) -> Admission:
        """Queue a job in its group; it leaves any other group that it was queued in."""
        for group, queue in self._queues.items():
            if group != job.group:
                queue.remove(job.id)
        return self.queue(job.group).offer(job, now_s, boost)

    def take(self, group: str, suits: Suits | None = None, shut: Container[str] = ()) -> Job | None:
        """Take the best job of a group out, or None; see `JobQueue.take`."""
        queue = self._queues.get(group)
        return None if queue is None else queue.take(suits, shut)

    def get(self, job_id: str) -> Job | None:
        """Return a queued job of any group, or None."""
        found = (queue.get(job_id) for queue in self._queues.values())
        return next((job for job in found if job is not None), None)

    def remove(self, job_id: str) -> Job | None:
        """Take a job out of whichever group it is queued in; None if of none."""
        found = (queue.remove(job_id) for queue in self._queues.values())
        return next((job for job in found if job is not None), None)

    def remove_tablet(self, tablet: TabletId) -> tuple[Job, ...]:
        """Take all jobs of a tablet out of all groups."""
        return tuple(job for _, queue in self for job in queue.remove_tablet(tablet))

    def jobs_of(self, tablet: TabletId) -> tuple[Job, ...]:
        """Return the queued jobs of a tablet, in all groups."""
        return tuple(job for _, queue in self for job in queue.jobs_of(tablet))

    def ends_of(self, table: str) -> list[bytes]:
        """Return the ends of a table's tablets that have queued jobs, in any group."""
        return list(dict.fromkeys(end for _, queue in self for end in queue.ends_of(table)))

    def replace(
        self,
        tablet: TabletId,
        jobs: Iterable[Job],
        now_s: float,
        boosts: Mapping[str, int] | None = None,
    ) -> Replacement:
        """Make `jobs` the queued jobs of a tablet in all groups at once; none clears it."""
        wanted: dict[str, list[Job]] = {group: [] for group, _ in self}
        for job in jobs:
            wanted.setdefault(job.group, []).append(job)
        done = [
            self.queue(group).replace(tablet, theirs, now_s, boosts)
            for group, theirs in wanted.items()
            if theirs or self.queue(group).jobs_of(tablet)
        ]
        return Replacement(
            kept=tuple(job for each in done for job in each.kept),
            accepted=tuple(job for each in done for job in each.accepted),
            removed=tuple(job for each in done for job in each.removed),
            rejected=tuple(pair for each in done for pair in each.rejected),
            evicted=tuple(job for each in done for job in each.evicted),
        )

    def check(self) -> None:
        """Assert what is always true of the queues; for tests."""
        ids = [job.id for _, queue in self for job in queue]
        assert len(ids) == len(set(ids))
        for _, queue in self:
            queue.check()
