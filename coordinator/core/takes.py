"""The takes: compactors that wait for a job, in order of arrival, and what they got."""

from dataclasses import dataclass, replace

from common.bounded_map import BoundedMap
from common.model.job import Job
from common.model.tablet import TabletId


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """A compactor with a free slot that waits for a job of a group."""

    take: str
    compactor: str
    incarnation: str
    group: str
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserving:
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
        self._reserving: dict[str, Reserving] = {}
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
        """Return the groups that somebody waits for, by name."""
        return sorted(self._waiting)

    def every(self) -> list[Take]:
        """Return all waiting takes, by group and arrival."""
        return [take for group in self.groups() for take in self.waiting(group)]

    def reserving(self) -> list[Reserving]:
        """Return the takes whose jobs are being reserved."""
        return list(self._reserving.values())

    def reserving_on(self, tablet: TabletId) -> list[Reserving]:
        """Return the takes whose jobs on a tablet are being reserved."""
        return [each for each in self._reserving.values() if each.job.tablet == tablet]

    def of_compactor(self, compactor: str, except_for: str = "") -> list[str]:
        """Return the ids of a compactor's takes, but not those of one incarnation."""
        every = self.every() + [each.take for each in self.reserving()]
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
        self._reserving[take.take] = Reserving(take=take, job=job)

    def reserved(self, take: str) -> Reserving | None:
        """The reservation is answered; return what was asked, None if it was not."""
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
        waiting = [take.take for take in self.every()]
        assert len(waiting) == len(set(waiting))
        assert not set(waiting) & self._reserving.keys()
        assert all(self._waiting.values())

    def _stop_waiting(self, take: Take) -> None:
        takes = self._waiting[take.group]
        del takes[take.take]
        if not takes:
            del self._waiting[take.group]
