"""The bounded queues of compaction groups: the best job is taken, the worst is evicted.

Order: effective priority, then more files, then older (`coordinator.core.queue.admission`). The
bounds on jobs and bytes are strict: a new job is accepted only if it fits after the eviction of
lower-ranked jobs; otherwise the queue is unchanged. The queue ignores dependencies between jobs:
the caller offers only jobs that may run.
"""

from collections.abc import Callable, Container, Iterable, Iterator
from itertools import islice

from common.errors import ConfigError
from common.model.job import Job, LaneClass, lane_class
from common.model.tablet import TabletId
from coordinator.core.queue.admission import (
    AGEING_S,
    Accepted,
    Admission,
    JobFilter,
    QueueCounts,
    Replacement,
    rank_of,
    reject_full,
    reject_too_large,
    replacement_of,
    require_bounds,
    weight_bytes,
)
from coordinator.core.queue.fair_share import FairShare
from coordinator.core.queue.job_index import JobIndex, QueueEntry

# --------------------------------------------------------------------------- The queue of one group


PROBES_MAX = 64
"""Number of jobs that `take` examines to find a suitable one."""

_ACCEPTED = Accepted()


class JobQueue:
    """A bounded double-ended priority queue, with access by job id and by tablet.

    Invariant: at most `count_max` jobs of at most `bytes_max` bytes in total are queued.
    """

    def __init__(
        self,
        bytes_max: int,
        count_max: int,
        *,
        ageing_s: float = AGEING_S,
        shares: FairShare | None = None,
    ) -> None:
        """Create an empty queue.

        Args:
            bytes_max: Maximum total memory, measured by `weight_bytes`.
            count_max: Maximum number of jobs.
            ageing_s: Seconds of waiting that count as one point of priority.
            shares: Fair shares that `take` applies, owned by this queue; None means rank only.
        """
        require_bounds(bytes_max, count_max)
        if not ageing_s > 0:
            raise ConfigError(f"queue: ageing_s is {ageing_s}, expected more than 0")
        self.bytes_max, self.count_max = bytes_max, count_max
        self.counts = QueueCounts()
        self._ageing_s = ageing_s
        self._shares = shares
        self._index = JobIndex(shares)
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._index.by_id

    def __iter__(self) -> Iterator[Job]:
        """Yield jobs in descending order of rank; the queue must not change meanwhile."""
        return (entry.job for entry in self._index.best_first())

    @property
    def size_bytes(self) -> int:
        """Memory of all queued jobs, measured by `weight_bytes`."""
        return self._index.size_bytes

    def unordered(self) -> Iterator[Job]:
        """Yield jobs in an arbitrary order; the queue must not change meanwhile."""
        return (entry.job for entry in self._index)

    def entries(self) -> Iterator[QueueEntry]:
        """Yield entries in descending order of rank; the queue must not change meanwhile."""
        return self._index.best_first()

    def get(self, job_id: str) -> Job | None:
        """Return a queued job, or None."""
        entry = self._index.by_id.get(job_id)
        return None if entry is None else entry.job

    def jobs_of(self, tablet: TabletId) -> tuple[Job, ...]:
        """Return the queued jobs of a tablet."""
        return tuple(entry.job for entry in self._index.entries_of(tablet))

    def ends_of(self, table: str) -> list[bytes]:
        """Return the ends of a table's tablets that have queued jobs."""
        return self._index.ends_of(table)

    def oldest_age_s(self, now_s: float) -> float:
        """Return how long the oldest job has waited, or 0 if the queue is empty. O(n)."""
        return max((now_s - entry.offered_s for entry in self._index), default=0.0)

    def offer(self, job: Job, now_s: float) -> Admission:
        """Queue a job, or return why it was rejected. A job that is already queued keeps its age.

        Args:
            job: The job, identified by its id.
            now_s: The current time.
        """
        present = self._index.by_id.get(job.id)
        if present is not None:
            return self._update(present, job)
        self._arrivals += 1
        return self._admit(self._entry(job, now_s, self._arrivals))

    def take(
        self,
        suits: JobFilter | None = None,
        saturated: Container[str] = (),
        barred: Container[LaneClass] = (),
    ) -> Job | None:
        """Remove and return the best job, or None; with fair shares, the job that has the turn.

        Args:
            suits: Filter. If it rejects the first job, the best suitable one among the first
                `PROBES_MAX` jobs is taken.
            saturated: Tables whose jobs are not taken.
            barred: Classes that do not get a turn; `suits` must reject their jobs.
        """
        entry = self._index.next(saturated, barred)
        if entry is not None and suits is not None and not suits(entry.job):
            opened = (each for each in self.entries() if each.job.tablet.table not in saturated)
            entry = next((each for each in islice(opened, PROBES_MAX) if suits(each.job)), None)
        if entry is None:
            return None
        if self._shares is not None:
            self._shares.charge(entry.lane, entry.job.tablet.table, entry.job.cost_bytes)
        self.counts.taken += 1
        return self._index.drop(entry)

    def evict(self) -> Job | None:
        """Remove and return the job with the lowest rank, or None."""
        entry = self._index.lowest()
        if entry is None:
            return None
        self.counts.evicted += 1
        return self._index.drop(entry)

    def remove(self, job_id: str) -> Job | None:
        """Remove and return a job, or None if it is not queued."""
        entry = self._index.by_id.get(job_id)
        if entry is None:
            return None
        self.counts.removed += 1
        return self._index.drop(entry)

    def remove_tablet(self, tablet: TabletId) -> tuple[Job, ...]:
        """Remove and return all jobs of a tablet."""
        entries = self._index.entries_of(tablet)
        self.counts.removed += len(entries)
        return tuple(self._index.drop(entry) for entry in entries)

    def replace(self, tablet: TabletId, jobs: Iterable[Job], now_s: float) -> Replacement:
        """Replace the queued jobs of a tablet by `jobs`; unchanged jobs keep their age and rank."""
        wanted = {job.id: job for job in jobs}
        assert all(job.tablet == tablet for job in wanted.values()), tablet
        before = {job.id: job for job in self.jobs_of(tablet)}
        removed = tuple(job for own, job in before.items() if own not in wanted)
        for job in removed:
            self.remove(job.id)
        answers = [(job, self.offer(job, now_s)) for job in wanted.values()]
        return replacement_of(answers, before=before, removed=removed, queued=self._index.by_id)

    def check(self) -> None:
        """Assert the invariants of the queue; for tests."""
        assert len(self) <= self.count_max
        assert self.size_bytes <= self.bytes_max
        self._index.check()

    def _entry(self, job: Job, offered_s: float, arrival: int) -> QueueEntry:
        aged = job.priority - int(offered_s // self._ageing_s)
        rank = rank_of(aged, len(job.inputs), arrival)
        return QueueEntry(
            job, rank, weight_bytes(job), arrival, offered_s, job.priority, lane_class(job)
        )

    def _admit(self, entry: QueueEntry) -> Admission:
        """Add an entry if it fits after the eviction of lower-ranked ones; all or nothing."""
        index = self._index
        spare_bytes = self.bytes_max - index.size_bytes - entry.weight_bytes
        spare_jobs = self.count_max - len(index) - 1
        if spare_bytes >= 0 and spare_jobs >= 0:
            index.put(entry)
            self.counts.accepted += 1
            return _ACCEPTED
        if entry.weight_bytes > self.bytes_max:
            self.counts.rejected += 1
            return reject_too_large(entry.job, entry.weight_bytes, self.bytes_max)
        leaving = index.lowest_below(entry.rank, -spare_bytes, -spare_jobs)
        if leaving is None:
            self.counts.rejected += 1
            return reject_full(entry.job, len(index), index.size_bytes)
        evicted = tuple(index.drop(each) for each in leaving)
        index.put(entry)
        self.counts.accepted += 1
        self.counts.evicted += len(evicted)
        return Accepted(evicted)

    def _update(self, present: QueueEntry, job: Job) -> Admission:
        """Replace a queued job by its new version; if that does not fit, the job is removed."""
        entry = self._entry(job, present.offered_s, present.arrival)
        if entry.rank != present.rank or entry.priority != present.priority:
            self._index.drop(present)
            return self._admit(entry)
        self._index.swap(present, job, entry.weight_bytes)
        evicted = self._shrink()
        return Accepted(evicted) if evicted else _ACCEPTED

    def _shrink(self) -> tuple[Job, ...]:
        evicted: list[Job] = []
        while self.size_bytes > self.bytes_max or len(self) > self.count_max:
            job = self.evict()
            assert job is not None
            evicted.append(job)
        return tuple(evicted)


# ------------------------------------------------------------------------- The queues of all groups


class JobQueues:
    """One bounded queue per group, created on first use.

    Invariant: a job is in at most one queue.
    """

    def __init__(self, make: Callable[[str], JobQueue]) -> None:
        """Create an instance without queues.

        Args:
            make: Creates an empty queue for the group of this name.
        """
        self._make = make
        self._queues: dict[str, JobQueue] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[tuple[str, JobQueue]]:
        """Yield groups and their queues, ordered by name."""
        return iter(sorted(self._queues.items()))

    def queue(self, group: str) -> JobQueue:
        """Return the queue of a group; create it if it does not exist."""
        queue = self._queues.get(group)
        if queue is None:
            queue = self._queues[group] = self._make(group)
        return queue

    def take(
        self,
        group: str,
        suits: JobFilter | None = None,
        saturated: Container[str] = (),
        barred: Container[LaneClass] = (),
    ) -> Job | None:
        """Remove and return the best job of a group, or None; see `JobQueue.take`."""
        queue = self._queues.get(group)
        return None if queue is None else queue.take(suits, saturated, barred)

    def get(self, job_id: str) -> Job | None:
        """Return a queued job of any group, or None."""
        found = (queue.get(job_id) for queue in self._queues.values())
        return next((job for job in found if job is not None), None)

    def remove_tablet(self, tablet: TabletId) -> tuple[Job, ...]:
        """Remove and return the jobs of a tablet in all groups."""
        return tuple(job for _, queue in self for job in queue.remove_tablet(tablet))

    def jobs_of(self, tablet: TabletId) -> tuple[Job, ...]:
        """Return the queued jobs of a tablet in all groups."""
        return tuple(job for _, queue in self for job in queue.jobs_of(tablet))

    def ends_of(self, table: str) -> list[bytes]:
        """Return the ends of a table's tablets that have queued jobs in any group."""
        return list(dict.fromkeys(end for _, queue in self for end in queue.ends_of(table)))

    def replace(self, tablet: TabletId, jobs: Iterable[Job], now_s: float) -> Replacement:
        """Replace the queued jobs of a tablet in all groups; an empty `jobs` removes them."""
        wanted: dict[str, list[Job]] = {group: [] for group, _ in self}
        for job in jobs:
            wanted.setdefault(job.group, []).append(job)
        done = [
            self.queue(group).replace(tablet, theirs, now_s)
            for group, theirs in wanted.items()
            if theirs or self.queue(group).jobs_of(tablet)
        ]
        return Replacement(
            kept=tuple(job for replacement in done for job in replacement.kept),
            accepted=tuple(job for replacement in done for job in replacement.accepted),
            removed=tuple(job for replacement in done for job in replacement.removed),
            rejected=tuple(pair for replacement in done for pair in replacement.rejected),
            evicted=tuple(job for replacement in done for job in replacement.evicted),
        )

    def check(self) -> None:
        """Assert the invariants of the queues; for tests."""
        ids = [job.id for _, queue in self for job in queue]
        assert len(ids) == len(set(ids))
        for _, queue in self:
            queue.check()
