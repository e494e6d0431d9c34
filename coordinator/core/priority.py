"""The order of a queue: one integer per job, fixed when the job is offered.

Effective priority = planner's priority + boost - age points, where the time of the
offer counts one point per `AGEING_S`. A job offered later starts lower, which is the
same as everything already queued rising, and nothing has to be re-keyed. The points
are whole, so that jobs offered within one step still tie, and ties are settled by
number of files and then by age.
"""

from common.model.job import AGEING_PER_S

AGEING_S = 1 / AGEING_PER_S
"""Seconds of waiting that are worth one point of priority."""

_FILES_BITS = 24
_ARRIVAL_BITS = 48  # enough for a hundred thousand offers a second, for 89 years
_FILES_MAX = (1 << _FILES_BITS) - 1


def rank_of(effective: int, files: int, arrival: int) -> int:
    """Return one integer that orders by priority, then more files, then earlier arrival.

    Args:
        effective: Planner's priority + boost - age points; may be negative.
        files: Number of inputs.
        arrival: A number that no other job in the queue has.
    """
    assert files <= _FILES_MAX, files
    upper = (effective << _FILES_BITS) + files
    return (upper << _ARRIVAL_BITS) - arrival
