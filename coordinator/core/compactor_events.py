"""Compactors appear, send heartbeats, drain, fall silent and disappear."""

from dataclasses import replace
from typing import assert_never

from common.model.outcome import AttemptEnd
from common.wire import AttemptProgress, Heartbeat
from coordinator.core import actions as do
from coordinator.core import events as on
from coordinator.core.actions import Action
from coordinator.core.attempt_events import (
    adopt_attempt,
    lose_attempt,
    pause_log,
    release_orphan,
)
from coordinator.core.attempts import Attempt, AttemptState
from coordinator.core.cluster_state import ClusterState
from coordinator.core.compactors import Compactor, SignOfLife


def decide(cluster: ClusterState, event: on.CompactorEvent, now_s: float) -> list[Action]:
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
        listed=beat.attempts,
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
    listing = {each.attempt: each for each in beat.attempts}
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
    if beats < limits.unlisted_beats_max or absent_s < limits.unlisted_max_s:
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
