"""Compactors come, beat, drain, fall silent and go."""

from dataclasses import replace
from typing import assert_never

from common.model.outcome import AttemptEnd
from common.wire import AttemptProgress
from coordinator.core import actions as do
from coordinator.core import events as on
from coordinator.core.actions import Action
from coordinator.core.attempt_release import lose_attempt, pause_log
from coordinator.core.attempts import (
    Attempt,
    AttemptState,
    listed_attempt,
)
from coordinator.core.cluster_state import ClusterState
from coordinator.core.compactors import Compactor, SignOfLife


def decide(books: ClusterState, event: on.CompactorEvent, now_s: float) -> list[Action]:
    """Return what follows from news of a compactor."""
    match event:
        case on.CompactorHeard():
            return _compactor_heard(books, event, now_s)
        case on.CompactorGone():
            return _compactor_gone(books, event, now_s)
        case on.DrainAsked(compactor=compactor):
            drains = books.compactors.drain(compactor)
            return answer_takes_with_nothing(books, compactor) if drains else []
        case _:
            assert_never(event)


def note_sign_of_life(
    books: ClusterState, news: Compactor, now_s: float
) -> tuple[SignOfLife, list[Action]]:
    """Note a sign of life; if it is of a new process, all of the old one is lost."""
    heard = books.compactors.hear(news)
    if heard is not SignOfLife.REPLACED:
        return heard, []
    lost = [
        attempt
        for attempt in books.attempts.of_compactor(news.name)
        if attempt.incarnation != news.incarnation and attempt.state is AttemptState.RUNNING
    ]
    return heard, _lose_with_process(
        books, lost, "its compactor was restarted", now_s
    ) + answer_takes_with_nothing(books, news.name, except_for=news.incarnation)


def lose_silent_compactors(books: ClusterState, now_s: float) -> list[Action]:
    """Give up the compactors that have been silent for too long."""
    actions: list[Action] = []
    for compactor in books.compactors.silent(now_s, books.limits.silence_max_s):
        books.compactors.lose(compactor.name)
        books.grants.lose(compactor.name)
        silence_s = round(now_s - compactor.heard_s, 1)
        fields = (("compactor", compactor.name), ("silence_s", silence_s))
        actions.append(do.Tell(event="compactor silent", fields=fields))
        actions += _lose_all(books, compactor.name, "its compactor fell silent", now_s)
    return actions


def answer_takes_with_nothing(
    books: ClusterState, compactor: str, *, except_for: str = ""
) -> list[Action]:
    """Answer the takes of a compactor with nothing.

    Args:
        books: Where the takes wait.
        compactor: Whose takes.
        except_for: An incarnation whose takes stay.
    """
    actions: list[Action] = []
    for take in books.takes.of_compactor(compactor, except_for):
        if books.takes.leave(take):
            books.takes.note_answer(take, "")
            actions.append(do.AnswerNothing(take=take))
    return actions


def _compactor_heard(books: ClusterState, event: on.CompactorHeard, now_s: float) -> list[Action]:
    news = Compactor(
        name=event.compactor,
        incarnation=event.incarnation,
        group=event.group,
        heard_s=now_s,
        node=event.node,
        slots=event.slots,
        draining=event.draining,
        listed=event.attempts,
    )
    heard, actions = note_sign_of_life(books, news, now_s)
    if heard is SignOfLife.STRAGGLER:
        return [do.AnswerBeat(compactor=event.compactor, cancel=(), drain=False)]
    actions += _compare_listing(books, event, now_s)
    books.grants.hear(event.compactor, event.group, event.attempts, now_s, books.is_running)
    compactor = books.compactors.get(event.compactor)
    assert compactor is not None
    if compactor.draining:
        actions += answer_takes_with_nothing(books, event.compactor)
    cancel = tuple(each.attempt for each in event.attempts if _must_cancel(books, event, each))
    answer = do.AnswerBeat(
        compactor=event.compactor,
        cancel=cancel,
        drain=compactor.draining,
        grants=books.grants.answer(event.attempts),
    )
    return [*actions, answer]


def _compare_listing(books: ClusterState, event: on.CompactorHeard, now_s: float) -> list[Action]:
    """Compare what a compactor lists with what we think that it holds."""
    listing = {each.attempt: each for each in event.attempts}
    actions: list[Action] = []
    for attempt in books.attempts.of_compactor(event.compactor):
        progress = listing.get(attempt.id)
        match attempt.state:
            case AttemptState.FOUND | AttemptState.RUNNING if progress is not None:
                adopt_attempt(books, attempt, progress, event.incarnation, now_s)
            case AttemptState.FOUND | AttemptState.RUNNING:
                actions += _note_unlisted(books, attempt, now_s)
            case _:
                pass
    return actions


def adopt_attempt(
    books: ClusterState, attempt: Attempt, progress: AttemptProgress, incarnation: str, now_s: float
) -> None:
    """Note that a compactor lists an attempt: it runs there."""
    books.attempts.update(listed_attempt(attempt, progress, incarnation, now_s))
    books.capacity.enter(attempt.id, attempt.group, attempt.input_bytes)


def release_orphan(books: ClusterState, attempt: Attempt, cause: str, now_s: float) -> list[Action]:
    """Give up a reservation that only the store knows: nobody stands behind it."""
    books.counters.orphaned += 1
    fields = (("tablet", str(attempt.tablet)), ("attempt", attempt.id))
    tell = do.Tell(event="reservation orphaned", fields=fields)
    return [tell, *lose_attempt(books, attempt, cause, now_s)]


def _note_unlisted(books: ClusterState, attempt: Attempt, now_s: float) -> list[Action]:
    """An attempt is not listed: after a few times its answer, or its report, was lost.

    One that only the store knows does not wait for its grace then: that is for compactors
    that have not spoken yet, and begins anew with every coordinator, so that while they
    die one after the other it would never be over.
    """
    beats = attempt.unlisted_beats + 1
    limits, absent_s = books.limits, now_s - attempt.listed_s
    if beats < limits.unlisted_beats_max or absent_s < limits.unlisted_max_s:
        books.attempts.update(replace(attempt, unlisted_beats=beats))
        return []
    cause = "its compactor does not list it"
    if attempt.state is AttemptState.FOUND:
        return release_orphan(books, attempt, cause, now_s)
    return lose_attempt(books, attempt, cause, now_s)


def _must_cancel(books: ClusterState, event: on.CompactorHeard, progress: AttemptProgress) -> bool:
    """Return whether a compactor holds an attempt that is over, or soon will be."""
    attempt = books.attempts.get(progress.attempt)
    if attempt is not None:
        return attempt.state is AttemptState.RELEASING or attempt.compactor != event.compactor
    return books.attempts.over(progress.attempt) not in (None, AttemptEnd.COMMITTED)


def _compactor_gone(books: ClusterState, event: on.CompactorGone, now_s: float) -> list[Action]:
    """A process is dead for sure; of another one that lives by now nothing is lost."""
    living = books.compactors.get(event.compactor)
    buried = books.compactors.bury(event.compactor, event.incarnation)
    if buried is None and living is not None:
        return []
    books.grants.lose(event.compactor)
    lost = _lose_all(books, event.compactor, event.cause, now_s)
    if buried is None and not lost:
        return []
    fields = (("compactor", event.compactor), ("cause", event.cause))
    return [do.Tell(event="compactor gone", fields=fields), *lost]


def _lose_all(books: ClusterState, compactor: str, cause: str, now_s: float) -> list[Action]:
    lost = [
        attempt
        for attempt in books.attempts.of_compactor(compactor)
        if attempt.state in (AttemptState.RUNNING, AttemptState.FOUND)
    ]
    return _lose_with_process(books, lost, cause, now_s) + answer_takes_with_nothing(
        books, compactor
    )


def _lose_with_process(
    books: ClusterState, lost: list[Attempt], cause: str, now_s: float
) -> list[Action]:
    """Lose attempts whose process is gone; see `deaths`."""
    actions: list[Action] = []
    for attempt in lost:
        death, halvings = books.deaths.died(attempt.tablet, attempt.inputs), 0
        if death.again:
            halvings = death.halvings
            pause = books.retry.died(attempt.tablet, attempt.inputs, cause, now_s)
            actions += pause_log(attempt, pause)
        actions += lose_attempt(books, attempt, cause, now_s, halvings=halvings)
    return actions
