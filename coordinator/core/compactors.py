"""The living compactors, and their takes that wait for a job.

Both are memories without decisions. What follows from a heartbeat or a death stands in
`compactor_events`, what follows from a take in `assignment`.
"""

from dataclasses import dataclass, replace
from enum import Enum

from common.bounded_map import BoundedMap
from common.model.job import Job
from common.model.tablet import TabletId
from common.wire import AttemptProgress

# ------------------------------------------------------------------------------------- Who is alive


INCARNATIONS_MAX = 8
"""Dead incarnations of one compactor that are remembered, so that stragglers are known."""


class SignOfLife(Enum):
    """What a sign of life means."""

    NEW = "new"
    """The first one, also the first after a goodbye or silence."""
    SAME = "same"
    REPLACED = "replaced"
    """Another process under this name: whatever the one before held is lost."""
    STRAGGLER = "straggler"
    """Sent by a process that is dead: it means nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compactor:
    """A compactor that lives, as far as we know."""

    name: str
    incarnation: str
    group: str
    heard_s: float
    node: str = ""
    slots: int = 1
    draining: bool = False
    """It was asked to drain, or reports that it does."""
    ready: bool = True
    """Whether its engine is up, or has been."""
    start_problem: str = ""
    """Why its engine did not start when it last tried; empty: it did, or has not tried."""
    edition: str = ""
    listed: tuple[AttemptProgress, ...] = ()
    """What its last heartbeat listed."""

    def lists(self, attempt: str) -> AttemptProgress | None:
        """Return the progress of an attempt in the last heartbeat, or None."""
        return next((progress for progress in self.listed if progress.attempt == attempt), None)


class LivingCompactors:
    """The living compactors by name, and the dead incarnations of each name.

    Always true: the incarnation of a living compactor is not among its dead ones.
    """

    def __init__(self, count_max: int) -> None:
        self._living: dict[str, Compactor] = {}
        self._dead: BoundedMap[str, tuple[str, ...]] = BoundedMap(count_max)
        self._lost: BoundedMap[str, str] = BoundedMap(count_max)
        """Names of silent compactors and their incarnations: they may wake."""

    def every(self) -> list[Compactor]:
        """Return the living compactors, by name."""
        return [self._living[name] for name in sorted(self._living)]

    def of_group(self, group: str) -> list[Compactor]:
        """Return the living compactors of a group, by name."""
        return [compactor for compactor in self.every() if compactor.group == group]

    def get(self, name: str) -> Compactor | None:
        """Return a living compactor, or None."""
        return self._living.get(name)

    def note(self, news: Compactor) -> SignOfLife:
        """Note a sign of life; a drain that was asked for stays.

        Args:
            news: The compactor as its message shows it, heard now.
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
        """Let a compactor take nothing more; return whether it lives."""
        compactor = self._living.get(name)
        if compactor is None:
            return False
        self._living[name] = replace(compactor, draining=True)
        return True

    def lose(self, name: str) -> None:
        """Drop a living compactor that was silent too long; if it wakes, it is NEW."""
        self._lost.put(name, self._living.pop(name).incarnation)

    def mark_dead(self, name: str, incarnation: str = "") -> Compactor | None:
        """Note that a process is dead for sure: its messages count no more.

        Args:
            name: The compactor.
            incarnation: The process; empty: whichever lives.

        Returns:
            The compactor, if it was this process that lived.
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
        """Return the compactors unheard of for too long, by name."""
        return [
            compactor for compactor in self.every() if now_s - compactor.heard_s >= silence_max_s
        ]

    def add_silence(self, gap_s: float) -> None:
        """Take a time in which the coordinator itself stood still off everybody's silence."""
        for name, compactor in self._living.items():
            self._living[name] = replace(compactor, heard_s=compactor.heard_s + gap_s)


# ------------------------------------------------------------------------------ Who waits for a job


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """A compactor with a free slot that waits for a job of a group."""

    take: str
    compactor: str
    incarnation: str
    group: str
    since_s: float
    actions: tuple[str, ...] = ()
    """What it can do besides rewrites and drops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservingTake:
    """A take whose job is being reserved."""

    take: Take
    job: Job
    late: bool = False
    """Its time is up: this is the last job that is tried for it."""
    left: bool = False
    """Nobody waits for the answer any more."""


class Takes:
    """Every take is waiting or reserving, and answered once.

    Always true: a take is in `_waiting` or in `_reserving`, never in both; at most
    `waiting_max` of a group wait. Answers are remembered for a while, so that a repeated
    call gets the same one.
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
        """Return the attempt that answered a take, empty for nothing; None: not answered."""
        return self._answers.get(take)

    def waiting(self, group: str) -> list[Take]:
        """Return the takes of a group that wait, first come first."""
        return list(self._waiting.get(group, {}).values())

    def waiting_take(self, take: str) -> Take | None:
        """Return a take if it waits, else None."""
        found = (takes.get(take) for takes in self._waiting.values())
        return next((each for each in found if each is not None), None)

    def groups(self) -> list[str]:
        """Return the groups with waiting takes, by name."""
        return sorted(self._waiting)

    def all_waiting(self) -> list[Take]:
        """Return all waiting takes, by group and arrival."""
        return [take for group in self.groups() for take in self.waiting(group)]

    def reserving(self) -> list[ReservingTake]:
        """Return the takes whose jobs are being reserved."""
        return list(self._reserving.values())

    def reserving_on(self, tablet: TabletId) -> list[ReservingTake]:
        """Return the takes whose jobs on a tablet are being reserved."""
        return [take for take in self._reserving.values() if take.job.tablet == tablet]

    def of_compactor(self, compactor: str, except_for: str = "") -> list[str]:
        """Return the ids of a compactor's takes, but not those of one incarnation."""
        every = self.all_waiting() + [each.take for each in self.reserving()]
        return [
            take.take
            for take in every
            if take.compactor == compactor and take.incarnation != except_for
        ]

    def wait(self, take: Take) -> bool:
        """Let a take wait; return whether there is room for it."""
        takes = self._waiting.setdefault(take.group, {})
        if len(takes) >= self._waiting_max:
            return False
        takes[take.take] = take
        return True

    def reserve(self, take: Take, job: Job) -> None:
        """A waiting take's job is being reserved."""
        self._stop_waiting(take)
        self._reserving[take.take] = ReservingTake(take=take, job=job)

    def reserved(self, take: str) -> ReservingTake | None:
        """Take a take out whose reservation was answered; None if none was asked for."""
        return self._reserving.pop(take, None)

    def wait_again(self, take: Take) -> None:
        """Let a take that got nothing wait again, before those that came after it."""
        takes = self._waiting.get(take.group, {})
        ordered = sorted([*takes.values(), take], key=lambda each: each.since_s)
        self._waiting[take.group] = {each.take: each for each in ordered}

    def leave(self, take: str, *, wants_last: bool = False) -> bool:
        """End a take's wait; return whether it has to be answered now.

        Args:
            take: The take.
            wants_last: Whether it may still get the job that is being reserved for it.
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
        """Remember what a take was answered; an empty attempt means nothing."""
        self._answers.put(take, attempt)

    def check(self) -> None:
        """Assert what is always true of the takes; for tests."""
        waiting = [take.take for take in self.all_waiting()]
        assert len(waiting) == len(set(waiting))
        assert not set(waiting) & self._reserving.keys()
        assert all(self._waiting.values())

    def _stop_waiting(self, take: Take) -> None:
        takes = self._waiting[take.group]
        del takes[take.take]
        if not takes:
            del self._waiting[take.group]
