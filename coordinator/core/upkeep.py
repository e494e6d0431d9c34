"""What only time does: silence, grace, pauses that end, and deferred work that is due."""

from coordinator.core import actions as do
from coordinator.core.actions import Action
from coordinator.core.books import Books
from coordinator.core.deferral import table_of_place
from coordinator.core.endings import outwait
from coordinator.core.handout import answer_nothing
from coordinator.core.presence import silence


def tick(books: Books, now_s: float) -> list[Action]:
    """Return what follows from time alone."""
    books.grants.divide(now_s)
    return [
        *silence(books, now_s),
        *outwait(books, now_s),
        *_dismiss_old_takes(books, now_s),
        *_wake(books, now_s),
    ]


def mind_the_gap(books: Books, now_s: float) -> None:
    """Note the time of this turn; if we slept before it, that is nobody's silence.

    Heartbeats that came meanwhile wait in the inbox behind this very event.
    """
    if books.started_s is None:
        books.started_s = books.turned_s = now_s
    gap_s = now_s - books.turned_s
    books.turned_s = now_s
    if gap_s > books.limits.stall_max_s:
        books.compactors.forgive(gap_s)


def _dismiss_old_takes(books: Books, now_s: float) -> list[Action]:
    actions: list[Action] = []
    for take in books.takes.every():
        if now_s - take.since_s >= books.limits.take_wait_max_s:
            books.takes.leave(take.take)
            actions += answer_nothing(books, take.take)
    return actions


def _wake(books: Books, now_s: float) -> list[Action]:
    """Plan tablets again whose pause is over, whose queue has room, or that waited long."""
    left = books.limits.replans_per_turn_max
    tablets = books.alarms.due(now_s, left)
    for place in books.deferrals.places():
        count = min(_room(books, place), left - len(tablets))
        tablets += books.deferrals.pop(place, max(0, count))
        before_s = now_s - books.limits.deferral_max_s
        tablets += books.deferrals.pop(place, max(0, left - len(tablets)), before_s)
    return [do.Replan(tablet=tablet) for tablet in dict.fromkeys(tablets)]


def _room(books: Books, place: str) -> int:
    """Return for how many of the tablets that wait at a place there is room now."""
    table = table_of_place(place)
    if table is not None:
        return books.limits.replans_per_turn_max if books.hands_out(table) else 0
    queue, fraction = books.queues.queue(place), books.limits.drained_fraction
    if queue.size_bytes > fraction * queue.bytes_max or len(queue) > fraction * queue.count_max:
        return 0
    return max(1, int(queue.count_max * fraction) - len(queue))
