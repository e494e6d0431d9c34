"""Priorities: larger runs first, and every planner speaks the same scale.

Four classes, each a range of numbers, so that a priority alone tells its class:

    URGENT      30,000 …   somebody asked for it with the largest boost
    OVER_LIMIT  20,000 …   the tablet has more files than its table allows
    USER        10,000 …   somebody asked for it and waits
    SYSTEM           0 …   the service tidies up for its own reasons

Inside a class, more files in the tablet and in the job come first: such a job takes
the most work from readers. How a queue orders jobs of equal priority, and how old
ones rise, is the queue's affair.
"""

from enum import IntEnum

from common.model.job import Kind

CLASS_WIDTH = 10_000
"""Numbers per class; what would be more is cut to the last of its class."""
AGEING_PER_S = 0.1
"""Points that a queued job gains per second over one offered later, if nothing else is set.

A point is one file: beside an endless stream of jobs of the next higher class a job
waits for about 28 hours, not for ever.
"""
BOOST_MAX = 2 * CLASS_WIDTH
"""Of a request: lifts its jobs before all that the service wants for reasons of its own."""


class PriorityClass(IntEnum):
    """The classes, in order; a job of a higher one runs before any of a lower one."""

    SYSTEM = 0
    USER = 1
    OVER_LIMIT = 2
    URGENT = 3


def job_priority(kind: Kind, *, files_in_tablet: int, files_in_job: int, file_limit: int) -> int:
    """Return the priority of a job.

    Args:
        kind: Who wants the job. A user's job is never counted as over the limit:
            its request has a boost for that.
        files_in_tablet: All files of the tablet, candidates or not.
        files_in_job: The inputs of the job.
        file_limit: The table's limit of files per tablet; 0: no limit known.
    """
    if kind is Kind.USER:
        return _within(PriorityClass.USER, files_in_tablet + files_in_job)
    if 0 < file_limit < files_in_tablet:
        excess = files_in_tablet - file_limit
        return _within(PriorityClass.OVER_LIMIT, excess + files_in_job)
    return _within(PriorityClass.SYSTEM, files_in_tablet + files_in_job)


def cut_priority(files_in_job: int) -> int:
    """Return the priority of a job that cuts files where a tablet is being split.

    The best there is but for a boost: until it is done nothing else runs in that tablet.
    """
    return _within(PriorityClass.OVER_LIMIT, CLASS_WIDTH // 2 + files_in_job)


def class_of(priority: int) -> PriorityClass:
    """Return the class of a priority; a boost may have lifted it into a higher one."""
    return PriorityClass(min(max(priority // CLASS_WIDTH, 0), PriorityClass.URGENT))


def _within(rank: PriorityClass, points: int) -> int:
    return rank * CLASS_WIDTH + min(points, CLASS_WIDTH - 1)
