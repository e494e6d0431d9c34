"""Attempts end, are found in the store, and are taken back."""

from dataclasses import replace
from typing import assert_never

from common.model.outcome import AttemptEnd
from common.model.tablet import Reservation, TabletId
from common.wire import AttemptReport
from coordinator.core import events as on
from coordinator.core.actions import Action
from coordinator.core.attempt_release import (
    failure_log,
    finish_attempt,
    lose_attempt,
    pause_log,
    release_action,
    release_attempt,
)
from coordinator.core.attempts import (
    Attempt,
    AttemptState,
    Ending,
    attempt_of_reservation,
)
from coordinator.core.cluster_state import ClusterState
from coordinator.core.compactor_events import adopt_attempt, release_orphan
from coordinator.core.retry import Failure

MEMORY_ERRORS = frozenset({"MemoryShortError", "EngineDiedError"})
"""Classes of errors after which the next attempt holds half as much at a time."""
STALL_ERROR = "AttemptStalledError"
"""The class of error of an attempt that its compactor has given up for want of progress."""
REQUEST_ERROR = "TransformError"
"""The class of error of an attempt that its request's own expression or plug-in has failed."""


def decide(cluster: ClusterState, event: on.AttemptEvent, now_s: float) -> list[Action]:
    """Return what follows from news of an attempt."""
    match event:
        case on.AttemptReported(report=report):
            return _attempt_reported(cluster, report, now_s)
        case on.AttemptSettled(attempt=attempt, end=end):
            return finish_attempt(cluster, attempt, end)
        case on.ReservationsFound():
            return _reservations_found(cluster, event, now_s)
        case on.AttemptCancelAsked(attempt=attempt, cause=cause):
            return _cancel_attempt(cluster, attempt, cause, now_s)
        case _:
            assert_never(event)


def expire_attempts(cluster: ClusterState, now_s: float) -> list[Action]:
    """Move on what only time moves: doubt, grace, and releases without an answer."""
    limits = cluster.limits
    actions: list[Action] = []
    for attempt in cluster.attempts.unsettled():
        waited_s = now_s - attempt.state_since_s
        match attempt.state:
            case AttemptState.DOUBTFUL if waited_s >= limits.doubt_max_s:
                actions += lose_attempt(cluster, attempt, "its reservation got no answer", now_s)
            case AttemptState.FOUND if waited_s >= limits.adopt_grace_max_s:
                actions += release_orphan(cluster, attempt, "no compactor lists it", now_s)
            case AttemptState.RELEASING if waited_s >= limits.release_retry_s:
                cluster.attempts.update(replace(attempt, state_since_s=now_s))
                actions.append(release_action(attempt))
            case _:
                pass
    return actions


def _attempt_reported(cluster: ClusterState, report: AttemptReport, now_s: float) -> list[Action]:
    if report.attempt in cluster.transforming:
        cluster.transforming.pop(report.attempt)
        cluster.counters.rows_transformed += report.counts.rows_in
    cluster.grants.report(report.attempt, report.moved_bytes, report.waited_s)
    attempt = cluster.attempts.get(report.attempt)
    if attempt is not None:
        return _end_as_reported(cluster, attempt, report, now_s)
    if cluster.attempts.ended(report.attempt) is None:
        cluster.reports.put(report.attempt, report)
    return []


def _end_as_reported(
    cluster: ClusterState, attempt: Attempt, report: AttemptReport, now_s: float
) -> list[Action]:
    """Believe a report, unless the store has been asked already: then it decides."""
    if attempt.state is AttemptState.RELEASING:
        return []
    if report.end is AttemptEnd.COMMITTED:
        return finish_attempt(cluster, attempt.id, report.end)
    logs, halvings = list[Action](), report.halvings
    failed = report.end is AttemptEnd.FAILED
    if failed and report.error_class == STALL_ERROR:
        logs, halvings = _note_stall(cluster, attempt, report, now_s)
    elif failed and report.error_class == REQUEST_ERROR and attempt.request:
        cluster.retry.note_request_failure(attempt.request, report.cause)
        logs = [failure_log(attempt, _failure(attempt, report))]
    elif failed:
        logs = _note_failure(cluster, attempt, report, now_s)
        # Killed processes are counted, too: nobody can say that it was not for memory.
        halvings += report.error_class in MEMORY_ERRORS
    cluster.crashes.note_halvings(attempt.tablet, attempt.inputs, halvings)
    ending = Ending(end=report.end, cause=report.cause, for_silence=False, halvings=halvings)
    return logs + release_attempt(cluster, attempt, ending, now_s)


def _note_stall(
    cluster: ClusterState, attempt: Attempt, report: AttemptReport, now_s: float
) -> tuple[list[Action], int]:
    """Hold a first stall against the compactor alone: once is chance, twice may be the job.

    Returns:
        What to log, and how often the job is halved from now on.
    """
    cluster.counters.stalled += 1
    record = cluster.crashes.note_death(attempt.tablet, attempt.inputs)
    if record.is_repeated:
        halvings = max(record.halvings, report.halvings + 1)
        return _note_failure(cluster, attempt, report, now_s), halvings
    failure = _failure(attempt, report)
    cluster.retry.note_compactor_failure(failure, now_s)
    return [failure_log(attempt, failure)], report.halvings


def _failure(attempt: Attempt, report: AttemptReport) -> Failure:
    return Failure(
        compactor=report.compactor,
        tablet=attempt.tablet,
        inputs=attempt.inputs,
        error_class=report.error_class,
        cause=report.cause,
    )


def _note_failure(
    cluster: ClusterState, attempt: Attempt, report: AttemptReport, now_s: float
) -> list[Action]:
    failure = _failure(attempt, report)
    pause = cluster.retry.note_failure(failure, now_s)
    return [failure_log(attempt, failure), *pause_log(attempt, pause)]


def _reservations_found(
    cluster: ClusterState, event: on.ReservationsFound, now_s: float
) -> list[Action]:
    """A scan has read a tablet: what only the store knows has to be listed by a compactor."""
    present = {reservation.attempt for reservation in event.reservations}
    for attempt in cluster.attempts.of_tablet(event.tablet):
        if attempt.state is AttemptState.FOUND and attempt.id not in present:
            cluster.attempts.end(attempt.id, AttemptEnd.LOST)
            cluster.capacity.leave(attempt.id)
    actions: list[Action] = []
    for reservation in event.reservations:
        if _is_news(cluster, reservation):
            actions += _add_found_attempt(cluster, event.tablet, reservation, now_s)
    return actions


def _is_news(cluster: ClusterState, reservation: Reservation) -> bool:
    """Return whether a reservation is not known; one that was LOST may have come late.

    One that is over and there all the same was read before its end, or a fail-over has
    forgotten that end: the next reading tells.
    """
    if cluster.attempts.get(reservation.attempt) is not None:
        return False
    news = cluster.attempts.ended(reservation.attempt) in (None, AttemptEnd.LOST)
    if not news:
        cluster.attempts.doubt_end(reservation.attempt)
    return news


def _add_found_attempt(
    cluster: ClusterState, tablet: TabletId, reservation: Reservation, now_s: float
) -> list[Action]:
    """Note a reservation as FOUND; end or adopt it at once if its compactor has spoken."""
    found = attempt_of_reservation(tablet, cluster.table_name(tablet.table), reservation, now_s)
    cluster.attempts.add(found)
    cluster.capacity.enter(found.id, found.group, found.input_bytes)
    report = cluster.reports.pop(found.id)
    if report is not None and report.end is not AttemptEnd.COMMITTED:
        return _end_as_reported(cluster, found, report, now_s)
    compactor = cluster.compactors.get(found.compactor)
    progress = None if compactor is None else compactor.lists(found.id)
    if compactor is not None and progress is not None:
        adopt_attempt(cluster, found, progress, compactor.incarnation, now_s)
    return []


def _cancel_attempt(
    cluster: ClusterState, attempt_id: str, cause: str, now_s: float
) -> list[Action]:
    """Take an attempt back: the store first, the compactor hears of it at its next heartbeat."""
    attempt = cluster.attempts.get(attempt_id)
    if attempt is None or attempt.state is AttemptState.RELEASING:
        return []
    cluster.retry.note_cancelled(attempt.tablet, attempt.inputs, cause, now_s)
    ending = Ending(end=AttemptEnd.CANCELLED, cause=cause, for_silence=False)
    return release_attempt(cluster, attempt, ending, now_s)
