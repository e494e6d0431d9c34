"""Admission of jobs to a queue: rank, weight in bytes, and the answers to an offer. Values only.

The rank is one integer per job, fixed when the job is offered. Effective priority = planner's
priority - age points, where the time of the offer counts one point per `AGEING_S`. A job that is
offered later starts lower. This has the same effect as raising all queued jobs, but no key has to
change. The points are integers, so jobs offered within one step tie; ties are broken by the number
of files and then by age.
"""

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

from common.errors import ConfigError
from common.model.job import AGEING_PER_S, Job
from common.units import format_bytes, format_count

# --------------------------------------------------------------------------------------------- Rank


AGEING_S = 1 / AGEING_PER_S
"""Seconds of waiting that count as one point of priority."""

_FILES_BITS = 24
_ARRIVAL_BITS = 48  # enough for a hundred thousand offers a second, for 89 years
_FILES_MAX = (1 << _FILES_BITS) - 1


def rank_of(effective: int, files: int, arrival: int) -> int:
    """Return one integer that orders by priority, then by more files, then by earlier arrival.

    Args:
        effective: Planner's priority - age points; may be negative.
        files: Number of inputs.
        arrival: Arrival number, unique in the queue.
    """
    assert files <= _FILES_MAX, files
    upper = (effective << _FILES_BITS) + files
    return (upper << _ARRIVAL_BITS) - arrival


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
    return weight == 0 or sum(each == weight for each in running) < most


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
    known = list(answers)
    inside = [job for job, _ in known if job.id in queued]
    return Replacement(
        kept=tuple(job for job in inside if job.id in before),
        accepted=tuple(job for job in inside if job.id not in before),
        removed=removed,
        rejected=tuple((job, why) for job, why in known if isinstance(why, Rejected)),
        evicted=tuple(
            job for _, answer in known if isinstance(answer, Accepted) for job in answer.evicted
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
