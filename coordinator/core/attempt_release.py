"""How attempts end: the slot is freed once, the store is told, the tablet is planned again."""

from dataclasses import replace

from common.model.outcome import AttemptEnd
from coordinator.core import actions as do
from coordinator.core.actions import Action
from coordinator.core.attempts import (
    Attempt,
    AttemptState,
    Ending,
)
from coordinator.core.cluster_state import ClusterState
from coordinator.core.retry import Failure, Pause


def release_attempt(
    cluster: ClusterState, attempt: Attempt, ending: Ending, now_s: float
) -> list[Action]:
    """Ask the store to give an attempt's reservation up; its slot is free from now on.

    Args:
        cluster: Where the attempt is known.
        attempt: One that is not over and not being released.
        ending: What to write as its end.
        now_s: The time now.
    """
    releasing = replace(
        attempt,
        state=AttemptState.RELEASING,
        state_since_s=now_s,
        ending=ending,
        assignment=None,
    )
    cluster.attempts.update(releasing)
    cluster.capacity.leave(attempt.id)
    return [release_action(releasing)]


def lose_attempt(
    cluster: ClusterState, attempt: Attempt, cause: str, now_s: float, *, halvings: int = 0
) -> list[Action]:
    """Release an attempt behind which nobody stands."""
    ending = Ending(end=AttemptEnd.LOST, cause=cause, for_silence=True, halvings=halvings)
    return release_attempt(cluster, attempt, ending, now_s)


def release_action(attempt: Attempt) -> do.Release:
    """Return the action that asks for the release of a RELEASING attempt."""
    assert attempt.ending is not None, attempt
    return do.Release(
        tablet=attempt.tablet,
        attempt=attempt.id,
        end=attempt.ending.end,
        cause=attempt.ending.cause,
        for_silence=attempt.ending.for_silence,
        halvings=attempt.ending.halvings,
    )


def failure_log(attempt: Attempt, failure: Failure) -> Action:
    """Return the news of an attempt that has failed."""
    fields = (
        ("tablet", str(attempt.tablet)),
        ("attempt", attempt.id),
        ("compactor", failure.compactor),
        ("error", failure.error_class),
        ("cause", failure.cause),
    )
    return do.Tell(event="attempt failed", fields=fields)


def pause_log(attempt: Attempt, pause: Pause) -> list[Action]:
    """Return the news of a pause that somebody has to lift; of others there is none."""
    if pause.until_s is not None:
        return []
    fields = (("tablet", str(attempt.tablet)), ("job", attempt.job_id), ("reason", pause.reason))
    return [do.Tell(event="job quarantined", fields=fields)]


def finish_attempt(cluster: ClusterState, attempt: str, end: AttemptEnd) -> list[Action]:
    """Note that an attempt is over; a repetition changes nothing."""
    known = cluster.attempts.end(attempt, end)
    if known is None:
        return []
    cluster.capacity.leave(attempt)
    _count(cluster, end)
    if end is AttemptEnd.COMMITTED:
        cluster.retry.note_success(known.compactor, known.tablet, known.inputs)
        cluster.crashes.forget(known.tablet, known.inputs)
    return [do.Replan(tablet=known.tablet)]


def _count(cluster: ClusterState, end: AttemptEnd) -> None:
    counters = cluster.counters
    counters.committed += end is AttemptEnd.COMMITTED
    counters.released += end is not AttemptEnd.COMMITTED
    counters.failed += end is AttemptEnd.FAILED
    counters.cancelled += end is AttemptEnd.CANCELLED
