"""The bounded queues of compaction groups: the best job is taken, the worst is evicted.

Order: effective priority, then more files, then older (`rank_of`); classes of work share by weight,
and tables with nearly equal jobs take turns (`coordinator.core.queue_index`). The
bounds on jobs and bytes are strict: a new job is accepted only if it fits after the eviction of
lower-ranked jobs; otherwise the queue is unchanged. The queue ignores dependencies between jobs:
the caller offers only jobs that may run.
"""

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from common.errors import ConfigError
from common.model.job import AGEING_PER_S, Job, LaneClass, is_urgent, lane_class
from common.model.tablet import TabletId
from common.units import format_bytes, format_count
from coordinator.core.limits import Limits
from coordinator.core.queue_index import FairShare, JobIndex, QueueEntry, rank_of

# ---------------------------------------------------------------------------------------- Admission
# Admission of jobs to a queue: weight in bytes, and the answers to an offer. Values only.


AGEING_S = 1 / AGEING_PER_S
"""Seconds of waiting that count as one point of priority."""


# ------------------------------------------------------------------------------- Weight and answers


WEIGHT_TAX_BYTES = 1024**2
"""Bytes added to the size of a job, so that small jobs have a weight, too."""
FAN_IN_ENOUGH = 32
"""Number of inputs from which a job is always efficient enough."""


def job_weight(total_bytes: int, *, drops_only: bool = False) -> int:
    """Return the weight of a job: its size class, in steps of a factor of 4.

    From ScyllaDB's compaction manager, which runs at most one job of each weight on a shard:
    `int(log4(total + 1 MiB))`. A job that only drops files has weight 0 and is always admitted.

    Args:
        total_bytes: Total size of the inputs.
        drops_only: Whether the job rewrites nothing.
    """
    if drops_only:
        return 0
    # Integer arithmetic, because a floating-point logarithm of a power of 4 may be too small.
    return ((total_bytes + WEIGHT_TAX_BYTES).bit_length() - 1) // 2


def admits_weight(weight: int, running: Iterable[int], most: int = 1) -> bool:
    """Return whether the weights of the running jobs allow a job to start.

    Args:
        weight: Weight of the job.
        running: Weights of the jobs that run on the same volume.
        most: Maximum number of running jobs of one weight.
    """
    return weight == 0 or sum(other == weight for other in running) < most


def admits_fan_in(inputs: int, running: Iterable[int]) -> bool:
    """Return whether a job is efficient enough to start next to the running jobs.

    From ScyllaDB: a job with fewer inputs than a running job waits, because it can merge more
    inputs once that job is done. `FAN_IN_ENOUGH` inputs are always enough.

    Args:
        inputs: Number of inputs of the job.
        running: Number of inputs of each running job.
    """
    return inputs >= min(FAN_IN_ENOUGH, max(running, default=0))


JobFilter = Callable[[Job], bool]
"""Returns whether a job may be taken now."""
JOB_BYTES = 700
"""Memory of a queued job without its strings: objects and indexes (measured, see the tests)."""
TEXT_BYTES = 64
"""Memory of a string header and a tuple slot."""
TIME_BYTES = 32
"""Memory of a number and a tuple slot."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The job is queued; `evicted` were removed to make room, lowest rank first."""

    evicted: tuple[Job, ...] = ()


@dataclass(frozen=True, slots=True)
class Rejected:
    """The job is not queued, and the queue is unchanged.

    `code` is `too_large` (the job does not fit even into an empty queue) or `full`.
    """

    code: str
    reason: str


Admission = Accepted | Rejected


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """The result of replacing the queued jobs of a tablet."""

    kept: tuple[Job, ...] = ()
    """Jobs that were queued before and still are, with their age."""
    accepted: tuple[Job, ...] = ()
    removed: tuple[Job, ...] = ()
    """Jobs that were queued before and are no longer wanted."""
    rejected: tuple[tuple[Job, Rejected], ...] = ()
    evicted: tuple[Job, ...] = ()
    """Jobs of any tablet that were removed to make room for the accepted ones."""


def replacement_of(
    answers: Iterable[tuple[Job, Admission]],
    *,
    before: Container[str],
    removed: tuple[Job, ...],
    queued: Container[str],
) -> Replacement:
    """Return the result of a replacement.

    Args:
        answers: The wanted jobs, each with the answer of the queue.
        before: Ids of the jobs that were queued before.
        removed: The jobs that are no longer wanted.
        queued: Ids of the jobs that are queued now; an accepted job may have been evicted again.
    """
    ordered = list(answers)
    inside = [job for job, _ in ordered if job.id in queued]
    return Replacement(
        kept=tuple(job for job in inside if job.id in before),
        accepted=tuple(job for job in inside if job.id not in before),
        removed=removed,
        rejected=tuple((job, why) for job, why in ordered if isinstance(why, Rejected)),
        evicted=tuple(
            job for _, answer in ordered if isinstance(answer, Accepted) for job in answer.evicted
        ),
    )


@dataclass(slots=True)
class QueueCounts:
    """Event counts of a queue since its creation."""

    accepted: int = 0
    rejected: int = 0
    evicted: int = 0
    taken: int = 0
    removed: int = 0


def weight_bytes(job: Job) -> int:
    """Return the approximate memory of a queued job, including its share of the indexes."""
    inputs = job.inputs
    size = JOB_BYTES + sum(map(len, inputs)) + TEXT_BYTES * len(inputs)
    size += len(job.reason) + len(job.tablet.end) + len(job.group)
    if job.depends_on or job.cuts or job.cuts_at_s or job.output_tags:
        size += sum(map(len, job.depends_on)) + sum(map(len, job.cuts))
        size += sum(len(name) + len(value) + TEXT_BYTES for name, value in job.output_tags)
        size += TEXT_BYTES * (len(job.depends_on) + len(job.cuts) + len(job.output_tags))
        size += TIME_BYTES * len(job.cuts_at_s)
    return size


def reject_too_large(job: Job, size_bytes: int, bytes_max: int) -> Rejected:
    """Reject a job that exceeds the bound of the queue on its own."""
    weight, bound = format_bytes(size_bytes), format_bytes(bytes_max)
    reason = f"queue {job.group}: the job needs {weight} of memory, the limit is {bound}"
    return Rejected("too_large", reason)


def reject_full(job: Job, count: int, size_bytes: int) -> Rejected:
    """Reject a job because too few lower-ranked jobs could make room for it."""
    held = f"{format_count(count, 'job')}, {format_bytes(size_bytes)}"
    reason = f"queue {job.group} is full ({held}), and too few of its jobs rank below the new job"
    return Rejected("full", reason)


def require_bounds(bytes_max: int, count_max: int) -> None:
    """Reject bounds that would admit no job.

    Raises:
        ConfigError: One of them is not positive.
    """
    if bytes_max <= 0 or count_max <= 0:
        message = f"queue: bounds are {bytes_max} bytes and {count_max} jobs, expected at least 1"
        raise ConfigError(message)


# ---------------------------------------------------------------------------------------- Job queue


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

    def in_order_of_start(self) -> Iterator[QueueEntry]:
        """Yield entries in the order in which `take` returns their jobs if nothing else changes.

        The first entry costs O(n), each further one as much as a `take`.
        """
        return self._index.in_order_of_start()

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
            opened = (other for other in self.entries() if other.job.tablet.table not in saturated)
            entry = next((other for other in islice(opened, PROBES_MAX) if suits(other.job)), None)
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
        removed = tuple(job for job_id, job in before.items() if job_id not in wanted)
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
        evicted = tuple(index.drop(lowest) for lowest in leaving)
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
        matches = (queue.get(job_id) for queue in self._queues.values())
        return next((job for job in matches if job is not None), None)

    def remove(self, job_id: str) -> Job | None:
        """Remove and return a job of any group, or None if it is not queued."""
        removed = (queue.remove(job_id) for queue in self._queues.values())
        return next((job for job in removed if job is not None), None)

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


# ----------------------------------------------------------------------------------------- Backfill
# The capacity in use by each group, and the jobs that may still start.
#
# The input bytes of the running jobs of a group are bounded (`Capacity`). Smaller jobs may overtake
# a job that does not fit, so that no compactor idles. After `PASSED_MAX` of them, only jobs of a
# higher priority may start before the waiting job, so that it eventually fits. In a group without
# running jobs any job fits.


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
        if jobs >= self._limits.running_max:
            return f"group {group} runs {format_count(jobs, 'job')}, its limit"
        if size >= self._limits.running_bytes_max:
            return f"group {group} runs jobs with {size} of input, its limit"
        return None

    def fits(self, group: str, input_bytes: int) -> bool:
        """Return whether a job of this size fits; a job that runs alone always fits."""
        most = self._limits.running_bytes_max
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
