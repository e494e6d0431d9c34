"""The bounded queues of compaction groups: the best job leaves, the worst makes room.

Order: effective priority, then more files, then older (`coordinator.core.queue.admission`).
Bounds are strict in jobs and in bytes: a newcomer is let in only if it fits after
jobs that rank below it have left; otherwise nothing changes. The queue does not look
at dependencies between jobs: whoever offers a job knows that it may run.
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
"""How many jobs `take` looks at for one that suits."""

_ACCEPTED = Accepted()


class JobQueue:
    """A bounded priority queue with two ends; jobs are known by id and by tablet.

    Always true: at most `count_max` jobs of at most `bytes_max` bytes are queued.
    """

    def __init__(
        self,
        bytes_max: int,
        count_max: int,
        *,
        ageing_s: float = AGEING_S,
        shares: FairShare | None = None,
    ) -> None:
        """Begin empty.

        Args:
            bytes_max: Most bytes, by `weight_bytes`.
            count_max: Most jobs.
            ageing_s: Seconds of waiting worth one point of priority.
            shares: Turns of tables at `take`, for this queue alone; None: by rank only.
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
        """Yield jobs by rank, best first; the queue must not change meanwhile."""
        return (entry.job for entry in self._index.best_first())

    @property
    def size_bytes(self) -> int:
        """The bytes of all queued jobs, by `weight_bytes`."""
        return self._index.size_bytes

    def unordered(self) -> Iterator[Job]:
        """Yield jobs in no order that means anything; the queue must not change meanwhile."""
        return (entry.job for entry in self._index)

    def entries(self) -> Iterator[QueueEntry]:
        """Yield what the queue knows of each job, best first; the queue must not change."""
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
        """Return how long the oldest job has waited; 0 if there is none. O(n)."""
        return max((now_s - entry.offered_s for entry in self._index), default=0.0)

    def offer(self, job: Job, now_s: float) -> Admission:
        """Queue a job, or say why not. A job that is queued already keeps its age.

        Args:
            job: Known by its id.
            now_s: The time now.
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
        """Take the best job out, or None: of the table whose turn it is, if tables share.

        Args:
            suits: May refuse a job now; then the best of the next `PROBES_MAX` that it allows goes.
            saturated: Tables of which no job is taken.
            barred: Classes of which it is not the turn; `suits` must refuse their jobs.
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
        """Take the job of the lowest rank out, or None."""
        entry = self._index.lowest()
        if entry is None:
            return None
        self.counts.evicted += 1
        return self._index.drop(entry)

    def remove(self, job_id: str) -> Job | None:
        """Take a job out wherever it is; None if it is not queued."""
        entry = self._index.by_id.get(job_id)
        if entry is None:
            return None
        self.counts.removed += 1
        return self._index.drop(entry)

    def remove_tablet(self, tablet: TabletId) -> tuple[Job, ...]:
        """Take all jobs of a tablet out and return them."""
        entries = self._index.entries_of(tablet)
        self.counts.removed += len(entries)
        return tuple(self._index.drop(entry) for entry in entries)

    def replace(self, tablet: TabletId, jobs: Iterable[Job], now_s: float) -> Replacement:
        """Make `jobs` the queued jobs of a tablet; unchanged ones keep age and place."""
        wanted = {job.id: job for job in jobs}
        assert all(job.tablet == tablet for job in wanted.values()), tablet
        before = {job.id: job for job in self.jobs_of(tablet)}
        removed = tuple(job for own, job in before.items() if own not in wanted)
        for job in removed:
            self.remove(job.id)
        answers = [(job, self.offer(job, now_s)) for job in wanted.values()]
        return replacement_of(answers, before=before, removed=removed, queued=self._index.by_id)

    def check(self) -> None:
        """Assert what is always true of the queue; for tests."""
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
        """Let an entry in if it fits after lower ones have left; all or nothing."""
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
        """Let a queued job take its new form; if there is no room for that, it leaves."""
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


# ----------------------- The queues of all groups, so that one plan replaces a tablet's jobs in all


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

    def take(
        self,
        group: str,
        suits: JobFilter | None = None,
        saturated: Container[str] = (),
        barred: Container[LaneClass] = (),
    ) -> Job | None:
        """Take the best job of a group out, or None; see `JobQueue.take`."""
        queue = self._queues.get(group)
        return None if queue is None else queue.take(suits, saturated, barred)

    def get(self, job_id: str) -> Job | None:
        """Return a queued job of any group, or None."""
        found = (queue.get(job_id) for queue in self._queues.values())
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

    def replace(self, tablet: TabletId, jobs: Iterable[Job], now_s: float) -> Replacement:
        """Make `jobs` the queued jobs of a tablet in all groups at once; none clears it."""
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
        """Assert what is always true of the queues; for tests."""
        ids = [job.id for _, queue in self for job in queue]
        assert len(ids) == len(set(ids))
        for _, queue in self:
            queue.check()
