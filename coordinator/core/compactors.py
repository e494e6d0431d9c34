"""The living compactors, and their takes that wait for a job.

Both classes only store state. `compactor_events` decides on heartbeats and deaths, `assignment`
on takes.
"""

from dataclasses import dataclass, replace
from enum import Enum

from common.model.job import Job
from common.model.tablet import TabletId
from common.primitives import BoundedMap
from common.wire import AttemptProgress

# ------------------------------------------------------------------------------- Living compactors


INCARNATIONS_MAX = 8
"""Dead incarnations remembered per compactor, to recognise stragglers."""


class SignOfLife(Enum):
    """Meaning of a sign of life."""

    NEW = "new"
    """The first message, or the first one after a goodbye or a silence."""
    SAME = "same"
    REPLACED = "replaced"
    """A new process has this name: the attempts of the previous one are lost."""
    STRAGGLER = "straggler"
    """A late message of a dead process; ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compactor:
    """A compactor that is alive as far as the coordinator knows."""

    name: str
    incarnation: str
    group: str
    heard_s: float
    node: str = ""
    slots: int = 1
    draining: bool = False
    """Whether it was asked to drain, or reports that it is draining."""
    ready: bool = True
    """Whether its engine is or was running."""
    start_problem: str = ""
    """Why the last start of its engine failed; empty if the start succeeded or was not tried."""
    edition: str = ""
    listed: tuple[AttemptProgress, ...] = ()
    """Attempts in its last heartbeat."""

    def lists(self, attempt: str) -> AttemptProgress | None:
        """Return the progress of an attempt from the last heartbeat, or None if not listed."""
        return next((progress for progress in self.listed if progress.attempt == attempt), None)


class LivingCompactors:
    """The living compactors by name, and the dead incarnations of each name.

    Invariant: the incarnation of a living compactor is not among its dead ones.
    """

    def __init__(self, count_max: int) -> None:
        self._living: dict[str, Compactor] = {}
        self._dead: BoundedMap[str, tuple[str, ...]] = BoundedMap(count_max)
        self._lost: BoundedMap[str, str] = BoundedMap(count_max)
        """Name → incarnation of silent compactors, which may return."""

    def every(self) -> list[Compactor]:
        """Return the living compactors, ordered by name."""
        return [self._living[name] for name in sorted(self._living)]

    def of_group(self, group: str) -> list[Compactor]:
        """Return the living compactors of a group, ordered by name."""
        return [compactor for compactor in self.every() if compactor.group == group]

    def get(self, name: str) -> Compactor | None:
        """Return a living compactor, or None."""
        return self._living.get(name)

    def note(self, news: Compactor) -> SignOfLife:
        """Record a sign of life; a requested drain stays in force.

        Args:
            news: The compactor as described by the message that just arrived.
        """
        if news.incarnation in (self._dead.get(news.name) or ()):
            return SignOfLife.STRAGGLER
        before = self._living.get(news.name)
        if before is None:
            lost = self._lost.pop(news.name)
            self._living[news.name] = news
            if lost is not None and lost != news.incarnation:
                self.mark_dead(news.name, lost)
            return SignOfLife.NEW
        if before.incarnation != news.incarnation:
            self.mark_dead(before.name)
            self._living[news.name] = news
            return SignOfLife.REPLACED
        if before.draining and not news.draining:
            news = replace(news, draining=True)
        self._living[news.name] = news
        return SignOfLife.SAME

    def drain(self, name: str) -> bool:
        """Mark a compactor as draining; return whether it is alive."""
        compactor = self._living.get(name)
        if compactor is None:
            return False
        self._living[name] = replace(compactor, draining=True)
        return True

    def lose(self, name: str) -> None:
        """Remove a compactor that was silent for too long; if it returns, it counts as NEW."""
        self._lost.put(name, self._living.pop(name).incarnation)

    def mark_dead(self, name: str, incarnation: str = "") -> Compactor | None:
        """Record the confirmed death of a process: its messages are ignored from now on.

        Args:
            name: The compactor.
            incarnation: The process; empty means the one that is alive.

        Returns:
            The compactor if this process was the living one, else None.
        """
        living = self._living.get(name)
        dying = incarnation or (living.incarnation if living else "")
        if dying:
            known = [each for each in self._dead.get(name) or () if each != dying]
            self._dead.put(name, (*known, dying)[-INCARNATIONS_MAX:])
        if living is None or living.incarnation != dying:
            return None
        return self._living.pop(name)

    def silent(self, now_s: float, silence_max_s: float) -> list[Compactor]:
        """Return the compactors that have been silent for too long, ordered by name."""
        return [
            compactor for compactor in self.every() if now_s - compactor.heard_s >= silence_max_s
        ]

    def add_silence(self, gap_s: float) -> None:
        """Subtract a stall of the coordinator from the silence of every compactor."""
        for name, compactor in self._living.items():
            self._living[name] = replace(compactor, heard_s=compactor.heard_s + gap_s)


# ------------------------------------------------------------------------------------ Waiting takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """A call of a compactor with a free slot that waits for a job of its group."""

    take: str
    compactor: str
    incarnation: str
    group: str
    since_s: float
    actions: tuple[str, ...] = ()
    """Job actions that the compactor supports in addition to rewrites and drops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservingTake:
    """A take whose job is being reserved."""

    take: Take
    job: Job
    late: bool = False
    """Whether its wait has timed out: this is the last job that is tried for it."""
    left: bool = False
    """Whether the caller has left and does not wait for the answer."""


class Takes:
    """The takes that wait or reserve; each is answered once.

    Invariant: a take is in `_waiting` or in `_reserving`, never in both; at most `waiting_max`
    takes of a group wait. Answers are remembered for a while, so that a repeated call gets the
    same answer.
    """

    def __init__(self, waiting_max: int, answers_max: int) -> None:
        self._waiting_max = waiting_max
        self._waiting: dict[str, dict[str, Take]] = {}
        self._reserving: dict[str, ReservingTake] = {}
        self._answers: BoundedMap[str, str] = BoundedMap(answers_max)

    def known(self, take: str) -> bool:
        """Return whether a take waits or is reserving."""
        return self.waiting_take(take) is not None or take in self._reserving

    def answer(self, take: str) -> str | None:
        """Return the attempt that a take was answered with.

        An empty string means that the answer was no job, None that the take was not answered.
        """
        return self._answers.get(take)

    def waiting(self, group: str) -> list[Take]:
        """Return the waiting takes of a group in the order of arrival."""
        return list(self._waiting.get(group, {}).values())

    def waiting_take(self, take: str) -> Take | None:
        """Return a take if it waits, else None."""
        found = (takes.get(take) for takes in self._waiting.values())
        return next((each for each in found if each is not None), None)

    def groups(self) -> list[str]:
        """Return the groups with waiting takes, sorted by name."""
        return sorted(self._waiting)

    def all_waiting(self) -> list[Take]:
        """Return all waiting takes, ordered by group and arrival."""
        return [take for group in self.groups() for take in self.waiting(group)]

    def reserving(self) -> list[ReservingTake]:
        """Return the takes whose jobs are being reserved."""
        return list(self._reserving.values())

    def reserving_on(self, tablet: TabletId) -> list[ReservingTake]:
        """Return the takes whose jobs on a tablet are being reserved."""
        return [take for take in self._reserving.values() if take.job.tablet == tablet]

    def of_compactor(self, compactor: str, except_for: str = "") -> list[str]:
        """Return the ids of a compactor's takes, except those of one incarnation."""
        every = self.all_waiting() + [each.take for each in self.reserving()]
        return [
            take.take
            for take in every
            if take.compactor == compactor and take.incarnation != except_for
        ]

    def wait(self, take: Take) -> bool:
        """Add a waiting take; return False if the group has too many."""
        takes = self._waiting.setdefault(take.group, {})
        if len(takes) >= self._waiting_max:
            return False
        takes[take.take] = take
        return True

    def reserve(self, take: Take, job: Job) -> None:
        """Move a waiting take to the reserving ones, with the job that is being reserved."""
        self._stop_waiting(take)
        self._reserving[take.take] = ReservingTake(take=take, job=job)

    def reserved(self, take: str) -> ReservingTake | None:
        """Remove and return a take whose reservation was answered; None if it was not reserving."""
        return self._reserving.pop(take, None)

    def wait_again(self, take: Take) -> None:
        """Return a take without a job to the waiting ones, ahead of those that arrived later."""
        takes = self._waiting.get(take.group, {})
        ordered = sorted([*takes.values(), take], key=lambda each: each.since_s)
        self._waiting[take.group] = {each.take: each for each in ordered}

    def leave(self, take: str, *, wants_last: bool = False) -> bool:
        """End the wait of a take; return whether the take must be answered now.

        Args:
            take: The take.
            wants_last: Whether the take may still get the job that is being reserved for it.
        """
        waiting = self.waiting_take(take)
        if waiting is not None:
            self._stop_waiting(waiting)
            return True
        reserving = self._reserving.get(take)
        if reserving is not None:
            self._reserving[take] = replace(
                reserving, late=True, left=reserving.left or not wants_last
            )
        return False

    def note_answer(self, take: str, attempt: str) -> None:
        """Store the answer to a take; an empty attempt means no job."""
        self._answers.put(take, attempt)

    def check(self) -> None:
        """Assert the invariants of the takes; for tests."""
        waiting = [take.take for take in self.all_waiting()]
        assert len(waiting) == len(set(waiting))
        assert not set(waiting) & self._reserving.keys()
        assert all(self._waiting.values())

    def _stop_waiting(self, take: Take) -> None:
        takes = self._waiting[take.group]
        del takes[take.take]
        if not takes:
            del self._waiting[take.group]
