"""Attempts are found in the store, end, and are taken back; compactors come and go.

However an attempt ends, its slot is freed once, the store is asked to release the remaining
reservation, and the tablet is planned again. A compactor that
is silent or dead loses its attempts in the same way.
"""

from dataclasses import replace
from typing import assert_never

from common.model.job import analysis_id
from common.model.outcome import AttemptEnd
from common.model.tablet import Reservation, TabletId
from common.wire import AttemptProgress, AttemptReport, Heartbeat
from coordinator.core import actions as do
from coordinator.core import events as on
from coordinator.core.actions import Action
from coordinator.core.attempts import (
    Attempt,
    AttemptState,
    Compactor,
    Ending,
    SignOfLife,
    attempt_of_reservation,
    listed_attempt,
)
from coordinator.core.cluster_state import ClusterState
from coordinator.core.retry import Failure, Pause

MEMORY_ERRORS = frozenset({"MemoryShortError", "EngineDiedError"})
"""Error classes after which the next attempt holds half as much in memory."""
STALL_ERROR = "AttemptStalledError"
"""Error class of an attempt that its compactor gave up for lack of progress."""
METRICS_MAX = 100
"""Values of metrics that are kept of a heartbeat."""
REQUEST_ERROR = "TransformError"
"""Error class of an attempt whose request has a failing expression or plug-in."""

# ----------------------------------------------------------------- News of attempts, from all sides


def decide(cluster: ClusterState, event: on.AttemptEvent, now_s: float) -> list[Action]:
    """Return the actions that follow from an event about an attempt."""
    match event:
        case on.AttemptReported(report=report):
            return _attempt_reported(cluster, report, now_s)
        case on.AttemptSettled(attempt=attempt, end=end):
            return finish_attempt(cluster, attempt, end)
        case on.ReservationsFound():
            return _reservations_found(cluster, event, now_s)
        case on.AttemptCancelAsked():
            return _cancel_attempt(cluster, event, now_s)
        case _:
            assert_never(event)


def expire_attempts(cluster: ClusterState, now_s: float) -> list[Action]:
    """Advance attempts by time alone: doubt, grace, and unanswered releases."""
    limits = cluster.limits
    actions: list[Action] = []
    for attempt in cluster.attempts.unsettled():
        waited_s = now_s - attempt.state_since_s
        match attempt.state:
            case AttemptState.DOUBTFUL if waited_s >= limits.doubt_max_s:
                actions += lose_attempt(
                    cluster, attempt, "the store did not answer its reservation", now_s
                )
            case AttemptState.FOUND if waited_s >= limits.adopt_grace_s:
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
    """End an attempt as reported. If its release was requested, the store decides instead."""
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
        # Killed processes count as well, because memory may have been the cause.
        halvings += report.error_class in MEMORY_ERRORS
    cluster.crashes.note_halvings(attempt.tablet, attempt.inputs, halvings)
    ending = Ending(end=report.end, cause=report.cause, for_silence=False, halvings=halvings)
    return logs + release_attempt(cluster, attempt, ending, now_s)


def _note_stall(
    cluster: ClusterState, attempt: Attempt, report: AttemptReport, now_s: float
) -> tuple[list[Action], int]:
    """Pause only the compactor after a first stall: a second one may be the job's fault.

    Returns:
        Log actions, and how often the job is halved from now on.
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
    """Handle a scanned tablet: a compactor has to list each attempt that only the store knows."""
    present = {reservation.attempt for reservation in event.reservations}
    for attempt in cluster.attempts.of_tablet(event.tablet):
        if attempt.state is AttemptState.FOUND and attempt.id not in present:
            cluster.attempts.end(attempt.id, AttemptEnd.LOST)
            cluster.job_ends(attempt.id)
    actions: list[Action] = []
    for reservation in event.reservations:
        if _is_news(cluster, reservation):
            actions += _add_found_attempt(cluster, event.tablet, reservation, now_s)
    return actions


def _is_news(cluster: ClusterState, reservation: Reservation) -> bool:
    """Return whether a reservation is unknown here; one that was LOST may have arrived late.

    The reservation of an ended attempt was either read before the end, or a fail-over of the store
    has lost the end. The next read shows which.
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
    """Record a reservation as FOUND; end or adopt it at once if its compactor has reported it."""
    attempt = attempt_of_reservation(tablet, cluster.table_name(tablet.table), reservation, now_s)
    cluster.attempts.add(attempt)
    cluster.capacity.enter(attempt.id, attempt.group, attempt.input_bytes)
    report = cluster.reports.pop(attempt.id)
    if report is not None and report.end is not AttemptEnd.COMMITTED:
        return _end_as_reported(cluster, attempt, report, now_s)
    compactor = cluster.compactors.get(attempt.compactor)
    progress = None if compactor is None else compactor.lists(attempt.id)
    if compactor is not None and progress is not None:
        adopt_attempt(cluster, attempt, progress, compactor.incarnation, now_s)
    return []


def _cancel_attempt(
    cluster: ClusterState, asked: on.AttemptCancelAsked, now_s: float
) -> list[Action]:
    """Cancel an attempt in the store first; the next heartbeat informs its compactor."""
    attempt = cluster.attempts.get(asked.attempt)
    if attempt is None or attempt.state is AttemptState.RELEASING:
        return []
    end = AttemptEnd.CONFLICTED
    if not asked.lost_input:
        end = AttemptEnd.CANCELLED
        cluster.retry.note_cancelled(attempt.tablet, attempt.inputs, asked.cause, now_s)
    ending = Ending(end=end, cause=asked.cause, for_silence=False)
    return release_attempt(cluster, attempt, ending, now_s)


# ------------------------------------------------------------------------- The end of an attempt


def release_attempt(
    cluster: ClusterState, attempt: Attempt, ending: Ending, now_s: float
) -> list[Action]:
    """Ask the store to release an attempt's reservation; its slot is free from now on.

    Args:
        cluster: State that contains the attempt.
        attempt: An attempt in progress that is not being released.
        ending: The end to write.
        now_s: The current time.
    """
    releasing = replace(
        attempt,
        state=AttemptState.RELEASING,
        state_since_s=now_s,
        ending=ending,
        assignment=None,
    )
    cluster.attempts.update(releasing)
    cluster.job_ends(attempt.id)
    return [release_action(releasing)]


def lose_attempt(
    cluster: ClusterState, attempt: Attempt, cause: str, now_s: float, *, halvings: int = 0
) -> list[Action]:
    """Release an attempt that no living compactor runs."""
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
    """Return the log entry of a failed attempt."""
    fields = (
        ("tablet", str(attempt.tablet)),
        ("attempt", attempt.id),
        ("compactor", failure.compactor),
        ("error", failure.error_class),
        ("cause", failure.cause),
    )
    return do.WriteLog(event="attempt failed", fields=fields)


def pause_log(attempt: Attempt, pause: Pause) -> list[Action]:
    """Return the log entry of a pause that an operator has to lift; others are not logged."""
    if pause.until_s is not None:
        return []
    fields = (("tablet", str(attempt.tablet)), ("job", attempt.job_id), ("reason", pause.reason))
    return [do.WriteLog(event="job quarantined", fields=fields)]


def finish_attempt(cluster: ClusterState, attempt: str, end: AttemptEnd) -> list[Action]:
    """Record that an attempt has ended; a repeated call changes nothing.

    The change feed shows that a reservation is gone, often before the release is answered, but not
    the reason. In that case, the counters count the requested end.
    """
    ended = cluster.attempts.end(attempt, end)
    if ended is None:
        return []
    cluster.job_ends(attempt)
    asked = ended.ending if end is AttemptEnd.LOST else None
    counted = end if asked is None else asked.end
    _count(cluster, counted)
    _note_work(
        cluster, ended, committed=end is AttemptEnd.COMMITTED, failed=counted is AttemptEnd.FAILED
    )
    cluster.backlogs.settle(ended.tablet, attempt, committed=end is AttemptEnd.COMMITTED)
    if end is AttemptEnd.COMMITTED:
        cluster.counters.committed_bytes[ended.group] += ended.input_bytes
        cluster.retry.note_success(ended.compactor, ended.tablet, ended.inputs)
        cluster.crashes.forget(ended.tablet, ended.inputs)
        if ended.job_id == analysis_id(ended.tablet):
            cluster.wanted_analyses.pop(ended.tablet)
    return [do.Replan(tablet=ended.tablet)]


def _note_work(cluster: ClusterState, ended: Attempt, *, committed: bool, failed: bool) -> None:
    """Record the work of an attempt; one of an earlier coordinator may be long done."""
    is_own = ended.since_s >= (cluster.started_s or 0.0)
    size_bytes = ended.input_bytes if committed and is_own else 0
    cluster.series.note_end(ended.id, ended.tablet.table, ended.group, size_bytes, failed=failed)


def _count(cluster: ClusterState, end: AttemptEnd) -> None:
    counters = cluster.counters
    counters.committed += end is AttemptEnd.COMMITTED
    counters.released += end is not AttemptEnd.COMMITTED
    counters.failed += end is AttemptEnd.FAILED
    counters.cancelled += end is AttemptEnd.CANCELLED


def adopt_attempt(
    cluster: ClusterState,
    attempt: Attempt,
    progress: AttemptProgress,
    incarnation: str,
    now_s: float,
) -> None:
    """Record that a compactor lists an attempt, so the attempt runs there."""
    cluster.attempts.update(listed_attempt(attempt, progress, incarnation, now_s))
    cluster.capacity.enter(attempt.id, attempt.group, attempt.input_bytes)


def release_orphan(
    cluster: ClusterState, attempt: Attempt, cause: str, now_s: float
) -> list[Action]:
    """Release a reservation that only the store knows, because no compactor lists it."""
    cluster.counters.orphaned += 1
    fields = (("tablet", str(attempt.tablet)), ("attempt", attempt.id))
    event = do.WriteLog(event="reservation orphaned", fields=fields)
    return [event, *lose_attempt(cluster, attempt, cause, now_s)]


# ------------------------------------------ News of compactors: heartbeats, drains, silence, deaths


def decide_on_compactor(
    cluster: ClusterState, event: on.CompactorEvent, now_s: float
) -> list[Action]:
    """Handle an event of a compactor; return the resulting actions."""
    match event:
        case on.CompactorHeard(beat=beat):
            return _compactor_heard(cluster, beat, now_s)
        case on.CompactorGone():
            return _compactor_gone(cluster, event, now_s)
        case on.DrainAsked(compactor=compactor):
            drains = cluster.compactors.drain(compactor)
            return answer_takes_with_nothing(cluster, compactor) if drains else []
        case _:
            assert_never(event)


def note_sign_of_life(
    cluster: ClusterState, news: Compactor, now_s: float
) -> tuple[SignOfLife, list[Action]]:
    """Record a sign of life; if it comes from a new process, the old one's attempts are lost.

    Ray may restart a process before it reports the death of the previous one.
    """
    sign = cluster.compactors.note(news)
    if sign is not SignOfLife.REPLACED:
        return sign, []
    lost = [
        attempt
        for attempt in cluster.attempts.of_compactor(news.name)
        if attempt.incarnation != news.incarnation and attempt.state is AttemptState.RUNNING
    ]
    return sign, [
        _log_gone(news.name, "it was started again"),
        *_lose_with_process(cluster, lost, "its compactor was restarted", now_s),
        *answer_takes_with_nothing(cluster, news.name, except_for=news.incarnation),
    ]


def lose_silent_compactors(cluster: ClusterState, now_s: float) -> list[Action]:
    """Drop the compactors that have been silent for too long, and lose their attempts."""
    actions: list[Action] = []
    for compactor in cluster.compactors.silent(now_s, cluster.limits.silence_max_s):
        cluster.compactors.lose(compactor.name)
        cluster.grants.lose(compactor.name)
        silence_s = round(now_s - compactor.heard_s, 1)
        fields = (("compactor", compactor.name), ("silence_s", silence_s))
        actions.append(do.WriteLog(event="compactor silent", fields=fields))
        actions += _lose_all(cluster, compactor.name, "its compactor fell silent", now_s)
    return actions


def answer_takes_with_nothing(
    cluster: ClusterState, compactor: str, *, except_for: str = ""
) -> list[Action]:
    """Answer the takes of a compactor with nothing.

    Args:
        cluster: The coordinator's memory.
        compactor: The compactor whose takes are answered.
        except_for: An incarnation whose takes keep waiting.
    """
    actions: list[Action] = []
    for take in cluster.takes.of_compactor(compactor, except_for):
        if cluster.takes.leave(take):
            cluster.takes.note_answer(take, "")
            actions.append(do.AnswerNothing(take=take))
    return actions


def _compactor_heard(cluster: ClusterState, beat: Heartbeat, now_s: float) -> list[Action]:
    news = Compactor(
        name=beat.compactor,
        incarnation=beat.incarnation,
        group=beat.group,
        heard_s=now_s,
        node=beat.node,
        slots=beat.slots,
        draining=beat.draining,
        ready=beat.ready,
        start_problem=beat.start_problem,
        edition=beat.edition,
        task_memory=beat.task_memory,
        actions=beat.actions,
        listed=beat.attempts,
        metrics=beat.metrics[:METRICS_MAX],
    )
    sign, actions = note_sign_of_life(cluster, news, now_s)
    if sign is SignOfLife.STRAGGLER:
        return [do.AnswerBeat(compactor=beat.compactor, cancel=(), drain=False)]
    actions += _compare_listing(cluster, beat, now_s)
    cluster.grants.note_heartbeat(
        beat.compactor, beat.group, beat.attempts, now_s, cluster.is_running
    )
    compactor = cluster.compactors.get(beat.compactor)
    assert compactor is not None
    if compactor.draining:
        actions += answer_takes_with_nothing(cluster, beat.compactor)
    cancel = tuple(
        attempt.attempt for attempt in beat.attempts if _must_cancel(cluster, beat, attempt)
    )
    answer = do.AnswerBeat(
        compactor=beat.compactor,
        cancel=cancel,
        drain=compactor.draining,
        grants=cluster.grants.answer(beat.attempts),
    )
    return [*actions, answer]


def _compare_listing(cluster: ClusterState, beat: Heartbeat, now_s: float) -> list[Action]:
    """Compare the attempts that a compactor lists with those that the coordinator expects."""
    listing = {progress.attempt: progress for progress in beat.attempts}
    actions: list[Action] = []
    for attempt in cluster.attempts.of_compactor(beat.compactor):
        progress = listing.get(attempt.id)
        match attempt.state:
            case AttemptState.FOUND | AttemptState.RUNNING if progress is not None:
                adopt_attempt(cluster, attempt, progress, beat.incarnation, now_s)
            case AttemptState.FOUND | AttemptState.RUNNING:
                actions += _note_unlisted(cluster, attempt, now_s)
            case _:
                pass
    return actions


def _note_unlisted(cluster: ClusterState, attempt: Attempt, now_s: float) -> list[Action]:
    """Count a heartbeat that does not list an attempt; after a few, the attempt is lost.

    Its assignment or its report was then lost on the way. A FOUND attempt does not wait for the
    end of its grace period in this case. The grace period is for compactors that have not sent a
    heartbeat so far, and restarts with every coordinator: if coordinators kept failing, it would
    never end.
    """
    beats = attempt.unlisted_beats + 1
    limits, absent_s = cluster.limits, now_s - attempt.listed_s
    if beats < limits.lost_answer_beats or absent_s < limits.unlisted_max_s:
        cluster.attempts.update(replace(attempt, unlisted_beats=beats))
        return []
    cause = "its compactor does not list it"
    if attempt.state is AttemptState.FOUND:
        return release_orphan(cluster, attempt, cause, now_s)
    return lose_attempt(cluster, attempt, cause, now_s)


def _must_cancel(cluster: ClusterState, beat: Heartbeat, progress: AttemptProgress) -> bool:
    """Return whether a compactor runs an attempt that has ended or is being released."""
    attempt = cluster.attempts.get(progress.attempt)
    if attempt is not None:
        return attempt.state is AttemptState.RELEASING or attempt.compactor != beat.compactor
    return cluster.attempts.ended(progress.attempt) not in (None, AttemptEnd.COMMITTED)


def _compactor_gone(cluster: ClusterState, event: on.CompactorGone, now_s: float) -> list[Action]:
    """Handle the confirmed death of a process; another process of the same name is unaffected."""
    living = cluster.compactors.get(event.compactor)
    dead = cluster.compactors.mark_dead(event.compactor, event.incarnation)
    if dead is None and living is not None:
        return []
    cluster.grants.lose(event.compactor)
    lost = _lose_all(cluster, event.compactor, event.cause, now_s)
    if dead is None and not lost:
        return []
    return [_log_gone(event.compactor, event.cause), *lost]


def _log_gone(compactor: str, cause: str) -> do.WriteLog:
    fields = (("compactor", compactor), ("cause", cause))
    return do.WriteLog(event="compactor gone", fields=fields)


def _lose_all(cluster: ClusterState, compactor: str, cause: str, now_s: float) -> list[Action]:
    lost = [
        attempt
        for attempt in cluster.attempts.of_compactor(compactor)
        if attempt.state in (AttemptState.RUNNING, AttemptState.FOUND)
    ]
    return _lose_with_process(cluster, lost, cause, now_s) + answer_takes_with_nothing(
        cluster, compactor
    )


def _lose_with_process(
    cluster: ClusterState, lost: list[Attempt], cause: str, now_s: float
) -> list[Action]:
    """Lose the attempts of a dead process and count the death; see `CrashHistory`."""
    actions: list[Action] = []
    for attempt in lost:
        record, halvings = cluster.crashes.note_death(attempt.tablet, attempt.inputs), 0
        if record.is_repeated:
            halvings = record.halvings
            pause = cluster.retry.note_death(attempt.tablet, attempt.inputs, cause, now_s)
            actions += pause_log(attempt, pause)
        actions += lose_attempt(cluster, attempt, cause, now_s, halvings=halvings)
    return actions
