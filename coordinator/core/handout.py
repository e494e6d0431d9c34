"""Hand out: takes, and the answers of the store to their reservations.

A job leaves its queue when its reservation is asked for, and is handed out only
after the store has said yes. A take has one reservation in flight at most, and is
answered once.
"""

from dataclasses import replace
from typing import assert_never

from common.model.job import Job
from common.model.outcome import AttemptEnd
from coordinator.core import actions as do
from coordinator.core import events as on
from coordinator.core.actions import Action
from coordinator.core.books import Books
from coordinator.core.lifecycle import Attempt, AttemptState, Ending, of_job
from coordinator.core.liveness import Compactor
from coordinator.core.presence import greet
from coordinator.core.releasing import release
from coordinator.core.takes import Reserving, Take
from coordinator.core.volumes import shut_tables

TAKER_LEFT = "the taker left"
"""Cause of an attempt that nobody has begun: nobody waited for its job any more."""
LOOK_MAX = 64
"""Jobs that are passed over in one turn of a group because something holds them back."""


def decide(books: Books, event: on.TakeEvent, now_s: float) -> list[Action]:
    """Return what follows from a take, or from an answer to one of its reservations."""
    match event:
        case on.TakeAsked():
            return _asked(books, event, now_s)
        case on.TakeLate(take=take):
            return answer_nothing(books, take) if books.takes.leave(take, wants_last=True) else []
        case on.TakeLeft(take=take):
            return answer_nothing(books, take) if books.takes.leave(take) else []
        case on.JobReserved():
            return _reserved(books, event, now_s)
        case on.JobRefused():
            return _refused(books, event, now_s)
        case on.JobReserveUnknown():
            return _unknown(books, event, now_s)
        case _:
            assert_never(event)


def hand_out(books: Books, now_s: float) -> list[Action]:
    """Reserve jobs for waiting takes, as far as there are both; called in every turn."""
    actions: list[Action] = []
    for group in books.takes.groups():
        if group not in books.paused_groups and len(books.queues.queue(group)):
            actions += _hand_out_group(books, group, now_s)
    return actions


def answer_nothing(books: Books, take: str) -> list[Action]:
    """Answer a take with no job."""
    books.takes.note_answer(take, "")
    return [do.AnswerNothing(take=take)]


def _hand_out_group(books: Books, group: str, now_s: float) -> list[Action]:
    actions: list[Action] = []
    for take in books.takes.waiting(group):
        if books.retry.compactor(take.compactor, now_s) is not None:
            continue
        job = None if books.capacity.full(group) else _next_job(books, group, now_s)
        if job is None:
            break
        books.takes.reserve(take, job)
        books.capacity.enter(take.take, group, job.input_bytes)
        actions.append(do.Reserve(take=take.take, job=job, compactor=take.compactor))
    return actions


def _next_job(books: Books, group: str, now_s: float) -> Job | None:
    """Take the next job that nothing holds back; the others are planned again later."""
    for _ in range(LOOK_MAX):
        job = books.overtaking.take(group, shut_tables(books))
        if job is None:
            return None
        pause = books.retry.held(job, now_s)
        if pause is None:
            return job
        if pause.until_s is not None:
            books.alarms.set(job.tablet, pause.until_s)
    return None


def _asked(books: Books, event: on.TakeAsked, now_s: float) -> list[Action]:
    if books.takes.known(event.take):
        return []
    given = books.takes.answer(event.take)
    if given is not None:
        attempt = books.attempts.get(given)
        if attempt is not None and attempt.state is AttemptState.RUNNING:
            return [_assign(books, event.take, attempt, now_s)]
        return [do.AnswerNothing(take=event.take)]
    _, actions = greet(books, _sign_of_life(books, event, now_s), now_s)
    if not _welcome(books, event.compactor, event.incarnation):
        return actions + answer_nothing(books, event.take)
    take = Take(
        take=event.take,
        compactor=event.compactor,
        incarnation=event.incarnation,
        group=event.group,
        since_s=now_s,
    )
    waits = books.takes.wait(take)
    return actions if waits else actions + answer_nothing(books, event.take)


def _sign_of_life(books: Books, event: on.TakeAsked, now_s: float) -> Compactor:
    """Return what a take says of its compactor; it says less than a heartbeat."""
    known = books.compactors.get(event.compactor)
    if known is not None and known.incarnation == event.incarnation:
        return replace(known, heard_s=now_s)
    return Compactor(
        name=event.compactor, incarnation=event.incarnation, group=event.group, heard_s=now_s
    )


def _welcome(books: Books, name: str, incarnation: str) -> bool:
    """Return whether a compactor may be given a job: it lives and does not drain."""
    compactor = books.compactors.get(name)
    return compactor is not None and compactor.incarnation == incarnation and not compactor.draining


def _reserved(books: Books, event: on.JobReserved, now_s: float) -> list[Action]:
    """The store holds the inputs for us: answer the take, or give them back."""
    reserving = _answered(books, event.take)
    books.retry.allowed(event.job)
    job, attempt = event.job, event.reservation.attempt
    known = books.attempts.get(attempt)
    found = known is not None and known.state is AttemptState.FOUND
    if not found and (known is not None or books.attempts.over(attempt) is not None):
        # Somebody else has ended it, or asked for that, before the answer came.
        return [do.Replan(tablet=job.tablet), *_wait_again(books, reserving)]
    running = of_job(job, attempt, event.reservation.compactor, AttemptState.RUNNING, now_s)
    take = None if reserving is None or reserving.left else reserving.take
    if take is None or not _welcome(books, take.compactor, take.incarnation):
        books.attempts.add(running)
        ending = Ending(end=AttemptEnd.LOST, cause=TAKER_LEFT, for_silence=False)
        answer = answer_nothing(books, event.take) if reserving is not None else []
        return release(books, running, ending, now_s) + answer
    running = replace(running, incarnation=take.incarnation)
    books.attempts.add(running)
    books.capacity.enter(attempt, job.group, job.input_bytes)
    books.takes.note_answer(take.take, attempt)
    return [_assign(books, take.take, running, now_s)]


def _assign(books: Books, take: str, attempt: Attempt, now_s: float) -> do.Assign:
    """Answer a take; the attempt begins with a grant, never without the limits it is under."""
    # Until every compactor has had the time to say what it holds, nobody knows what is free.
    young = now_s - (books.started_s or 0.0) < books.limits.unlisted_max_s
    blind = young or any(each.state is AttemptState.FOUND for each in books.attempts.restless())
    grant_bytes_s = books.grants.begin(
        attempt.id, attempt.compactor, books.scopes_of(attempt), now_s, blind=blind
    )
    return do.Assign(take=take, attempt=attempt.id, grant_bytes_s=grant_bytes_s)


def _refused(books: Books, event: on.JobRefused, now_s: float) -> list[Action]:
    """What we know of the tablet is stale: plan it again, and try the next job."""
    reserving = _answered(books, event.take)
    books.counters.refused += 1
    books.retry.refused(event.job, event.code, event.reason, now_s)
    return [do.Replan(tablet=event.job.tablet), *_wait_again(books, reserving)]


def _unknown(books: Books, event: on.JobReserveUnknown, now_s: float) -> list[Action]:
    """The inputs may be held: nobody is told of it, and it is released in a while."""
    reserving = _answered(books, event.take)
    compactor = reserving.take.compactor if reserving is not None else ""
    known = books.attempts.get(event.attempt)
    if known is None or known.state is AttemptState.FOUND:
        # The feed may have been faster, and shown it; nobody stands behind it all the same.
        doubtful = of_job(event.job, event.attempt, compactor, AttemptState.DOUBTFUL, now_s)
        books.attempts.add(doubtful)
    return _wait_again(books, reserving)


def _answered(books: Books, take: str) -> Reserving | None:
    books.capacity.leave(take)
    return books.takes.reserved(take)


def _wait_again(books: Books, reserving: Reserving | None) -> list[Action]:
    """Let a take whose reservation came to nothing wait for the next job."""
    if reserving is None:
        return []
    take = reserving.take
    if reserving.late or not _welcome(books, take.compactor, take.incarnation):
        return answer_nothing(books, take.take)
    books.takes.wait_again(take)
    return []
