"""How a queue judges a job: its rank, its weight in bytes, and the answers to an offer.

The rank is one integer per job, fixed when the job is offered. Effective priority = planner's
priority - age points, where the time of the offer counts one point per `AGEING_S`. A
job offered later starts lower, which is the same as everything already queued rising, and
nothing has to be re-keyed. The points are whole, so that jobs offered within one step still
tie, and ties are settled by number of files and then by age. Values only.
"""

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

from common.errors import ConfigError
from common.model.job import AGEING_PER_S, Job
from common.units import format_bytes, format_count

# --------------------------------------------------------------------------------------------- Rank


AGEING_S = 1 / AGEING_PER_S
"""Seconds of waiting that are worth one point of priority."""

_FILES_BITS = 24
_ARRIVAL_BITS = 48  # enough for a hundred thousand offers a second, for 89 years
_FILES_MAX = (1 << _FILES_BITS) - 1


def rank_of(effective: int, files: int, arrival: int) -> int:
    """Return one integer that orders by priority, then more files, then earlier arrival.

    Args:
        effective: Planner's priority - age points; may be negative.
        files: Number of inputs.
        arrival: A number that no other job in the queue has.
    """
    assert files <= _FILES_MAX, files
    upper = (effective << _FILES_BITS) + files
    return (upper << _ARRIVAL_BITS) - arrival


# ------------------------------------------------------------------------------- Weight and answers


WEIGHT_TAX_BYTES = 1024**2
"""Added to a job's bytes, so that small ones have a weight, too."""
FAN_IN_ENOUGH = 32
"""A job of so many inputs is efficient enough, whatever runs."""


def job_weight(total_bytes: int, *, drops_only: bool = False) -> int:
    """Return the weight of a job: how large it is, in steps of a factor of 4.

    From ScyllaDB's compaction manager, which lets at most one job of each weight run on a shard:
    `int(log4(total + 1 MiB))`. A job that only drops files weighs nothing and is always admitted.

    Args:
        total_bytes: Of all inputs.
        drops_only: Whether nothing is rewritten.
    """
    if drops_only:
        return 0
    # By whole numbers: the logarithm of a power of 4 may come out a little too small.
    return ((total_bytes + WEIGHT_TAX_BYTES).bit_length() - 1) // 2


def admits_weight(weight: int, running: Iterable[int], most: int = 1) -> bool:
    """Return whether a job may start beside those that run, by their weights.

    Args:
        weight: Of the job.
        running: Weights of what runs at the same place.
        most: Jobs of one weight at a time.
    """
    return weight == 0 or sum(each == weight for each in running) < most


def admits_fan_in(inputs: int, running: Iterable[int]) -> bool:
    """Return whether a job is efficient enough to start beside those that run.

    From ScyllaDB: a job of fewer inputs than one that runs waits, since more inputs will have come
    when that is done; `FAN_IN_ENOUGH` inputs are always enough.

    Args:
        inputs: Of the job.
        running: Inputs of each job that runs at the same place.
    """
    return inputs >= min(FAN_IN_ENOUGH, max(running, default=0))


JobFilter = Callable[[Job], bool]
"""Says whether a job may be taken now."""
JOB_BYTES = 700
"""A queued job without its texts: objects, heaps and indexes (measured, see the tests)."""
TEXT_BYTES = 64
"""Header of one text and its place in a tuple."""
TIME_BYTES = 32
"""A number and its place in a tuple."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The job is queued; `evicted` had to leave for it, lowest first."""

    evicted: tuple[Job, ...] = ()


@dataclass(frozen=True, slots=True)
class Rejected:
    """The job is not queued and nothing has changed.

    `code` is `reject_too_large` (no room even in an empty queue) or `reject_full`.
    """

    code: str
    reason: str


Admission = Accepted | Rejected


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """What replacing the jobs of a tablet did, for the store's and the operator's eyes."""

    kept: tuple[Job, ...] = ()
    """Were queued and still are, with their age."""
    accepted: tuple[Job, ...] = ()
    removed: tuple[Job, ...] = ()
    """Were queued and are no longer wanted."""
    rejected: tuple[tuple[Job, Rejected], ...] = ()
    evicted: tuple[Job, ...] = ()
    """Had to leave for the accepted ones, whatever tablet they are of."""


def replacement_of(
    answers: Iterable[tuple[Job, Admission]],
    *,
    before: Container[str],
    removed: tuple[Job, ...],
    queued: Container[str],
) -> Replacement:
    """Return what a replacement did.

    Args:
        answers: The jobs wanted, each with what the queue said to it.
        before: Ids that were queued before.
        removed: The jobs no longer wanted.
        queued: Ids that are queued now: one that was let in may have left for a later one.
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
    """How often things have happened to a queue since it was made."""

    accepted: int = 0
    rejected: int = 0
    evicted: int = 0
    taken: int = 0
    removed: int = 0


def weight_bytes(job: Job) -> int:
    """Return about how much memory a queued job takes, its share of the indexes included."""
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
    """Refuse a job that no queue of this bound could hold."""
    weight, bound = format_bytes(size_bytes), format_bytes(bytes_max)
    reason = f"queue {job.group}: the job needs {weight} of memory, the limit is {bound}"
    return Rejected("too_large", reason)


def reject_full(job: Job, count: int, size_bytes: int) -> Rejected:
    """Refuse a job for which not enough others would have to make room."""
    held = f"{format_count(count, 'job')}, {format_bytes(size_bytes)}"
    reason = f"queue {job.group} is full ({held}), and too few of its jobs rank below the new job"
    return Rejected("full", reason)


def require_bounds(bytes_max: int, count_max: int) -> None:
    """Refuse bounds that would let nothing in.

    Raises:
        ConfigError: One of them is not positive.
    """
    if bytes_max <= 0 or count_max <= 0:
        message = f"queue: bounds are {bytes_max} bytes and {count_max} jobs, expected at least 1"
        raise ConfigError(message)
