"""The life cycle of an attempt as the coordinator knows it, and all attempts in progress.

    JobReserved ───────────────► RUNNING ──► RELEASING ──► over
    ReservationsFound ► FOUND ─────┘ └──────────┬──────────► over
                          └─────────────────────┤
    JobReserveUnknown ► DOUBTFUL ───────────────┘

The store is authoritative: an attempt has ended when the store, or the compactor that has written
to it, reports the end. This module holds the coordinator's view and what it waits for: attempts,
living compactors, and their takes. It only stores state: `attempt_events` decides on attempts,
heartbeats and deaths, `assignment` on takes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, StrEnum

from common.model.job import AttemptWork, Job, Kind
from common.model.outcome import AttemptEnd
from common.model.tablet import Reservation, TabletId
from common.primitives import BoundedMap, remove_from_index
from common.wire import Assignment, AttemptProgress, MetricValue
from coordinator.core.backlog import Progress


class AttemptState(StrEnum):
    """State of an attempt in progress."""

    FOUND = "found"
    """The store holds its reservation; no compactor has listed it so far."""
    DOUBTFUL = "doubtful"
    """Its reservation may have been written; it was not assigned to a compactor."""
    RUNNING = "running"
    """Assigned, or listed by a compactor."""
    RELEASING = "releasing"
    """Its release was requested; the store has not answered."""


NEXT_STATES = {
    AttemptState.FOUND: (AttemptState.RUNNING, AttemptState.RELEASING),
    AttemptState.DOUBTFUL: (AttemptState.RELEASING,),
    AttemptState.RUNNING: (AttemptState.RELEASING,),
    AttemptState.RELEASING: (),
}
"""Allowed transitions while the attempt is in progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The requested end of an attempt, until the store confirms it."""

    end: AttemptEnd
    cause: str
    for_silence: bool
    halvings: int = 0
    """How often the job ran out of memory, including this time; 0 means never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt in progress. `ending` is set exactly while it is RELEASING."""

    id: str
    tablet: TabletId
    table_name: str
    job_id: str
    kind: Kind
    group: str
    inputs: tuple[str, ...]
    compactor: str
    since_s: float
    state: AttemptState
    state_since_s: float
    input_bytes: int = 0
    """0 if only the store knows the attempt: it holds no sizes."""
    reason: str = ""
    incarnation: str = ""
    listed_s: float = 0.0
    """When the attempt was assigned, or last listed by its compactor."""
    unlisted_beats: int = 0
    progress: AttemptProgress | None = None
    request: str | None = None
    ending: Ending | None = None
    assignment: Assignment | None = None
    """Its assignment, while it is RUNNING and this coordinator has assigned it."""


def attempt_work(attempt: Attempt) -> AttemptWork:
    """Return what an attempt has done, from its last heartbeat."""
    progress, assignment = attempt.progress, attempt.assignment
    if progress is None:
        return AttemptWork()
    share = progress.bytes_done / progress.bytes_total if progress.bytes_total else 0.0
    return AttemptWork(
        read_share=min(max(share, 0.0), 1.0),
        written_bytes=max(0, progress.written_bytes),
        output_tags=() if assignment is None else assignment.job.output_tags,
    )


def attempt_of_job(
    job: Job, attempt: str, compactor: str, state: AttemptState, now_s: float
) -> Attempt:
    """Return the attempt of a job whose reservation was just requested."""
    return Attempt(
        id=attempt,
        tablet=job.tablet,
        table_name=job.table_name,
        job_id=job.id,
        kind=job.kind,
        group=job.group,
        inputs=job.inputs,
        compactor=compactor,
        since_s=now_s,
        state=state,
        state_since_s=now_s,
        input_bytes=job.input_bytes,
        reason=job.reason,
        request=job.request,
        listed_s=now_s,
    )


def attempt_of_reservation(
    tablet: TabletId, table_name: str, reservation: Reservation, now_s: float
) -> Attempt:
    """Return the attempt of a reservation that only the store knew."""
    return Attempt(
        id=reservation.attempt,
        tablet=tablet,
        table_name=table_name,
        job_id=reservation.job,
        kind=reservation.kind,
        group=reservation.group,
        inputs=reservation.inputs,
        compactor=reservation.compactor,
        since_s=reservation.since_s,
        state=AttemptState.FOUND,
        state_since_s=now_s,
        request=reservation.request,
        listed_s=now_s,
    )


class Attempts:
    """All attempts in progress, and a bounded memory of ended ones.

    Invariant: the indexes by tablet, by compactor and of the unsettled (all that are not RUNNING)
    hold the same attempts as `_attempts`; every change ends in `_put` or `_drop`. Iteration follows
    the order of arrival.
    """

    def __init__(self, ended_max: int) -> None:
        self._attempts: dict[str, Attempt] = {}
        self._by_tablet: dict[TabletId, dict[str, None]] = {}
        self._by_compactor: dict[str, dict[str, None]] = {}
        self._unsettled: dict[str, None] = {}
        self._ended: BoundedMap[str, AttemptEnd] = BoundedMap(ended_max)

    def __len__(self) -> int:
        return len(self._attempts)

    def __iter__(self) -> Iterator[Attempt]:
        return iter(list(self._attempts.values()))

    def get(self, attempt: str) -> Attempt | None:
        """Return an attempt in progress, or None."""
        return self._attempts.get(attempt)

    def ended(self, attempt: str) -> AttemptEnd | None:
        """Return how an attempt ended, if that is still remembered."""
        return self._ended.get(attempt)

    def of_tablet(self, tablet: TabletId) -> list[Attempt]:
        """Return the attempts on a tablet."""
        members = self._by_tablet.get(tablet)
        return [self._attempts[member] for member in members] if members else []

    def of_compactor(self, compactor: str) -> list[Attempt]:
        """Return the attempts that a compactor holds or may hold."""
        return [self._attempts[attempt] for attempt in self._by_compactor.get(compactor, {})]

    def unsettled(self) -> list[Attempt]:
        """Return the attempts that only time advances: all except the running ones."""
        return [self._attempts[attempt] for attempt in self._unsettled]

    def add(self, attempt: Attempt) -> None:
        """Add an unknown attempt, or replace a FOUND one by confirmed details."""
        before = self._attempts.get(attempt.id)
        assert before is None or before.state is AttemptState.FOUND, before
        if before is not None:
            self._drop(before)
        self._put(attempt)

    def update(self, attempt: Attempt) -> None:
        """Update an attempt; the transition between the states must be allowed."""
        before = self._attempts[attempt.id]
        assert attempt.state is before.state or attempt.state in NEXT_STATES[before.state], attempt
        assert (attempt.tablet, attempt.compactor) == (before.tablet, before.compactor), attempt
        self._put(attempt)

    def end(self, attempt: str, end: AttemptEnd) -> Attempt | None:
        """Record that an attempt has ended; return its last state, or None if it was unknown."""
        last = self._attempts.get(attempt)
        if last is not None:
            self._drop(last)
        if last is not None or self._ended.get(attempt) is None:
            self._ended.put(attempt, end)
        return last

    def doubt_end(self, attempt: str) -> None:
        """Forget that an attempt ended, because the store appears to hold it still."""
        self._ended.put(attempt, AttemptEnd.LOST)

    def check(self) -> None:
        """Assert the invariants of the indexes; for tests."""
        for index in (self._by_tablet, self._by_compactor):
            listed = [member for members in index.values() for member in members]
            assert sorted(listed) == sorted(self._attempts)
            assert all(index.values())
        for attempt in self._attempts.values():
            assert (attempt.state is AttemptState.RUNNING) == (attempt.id not in self._unsettled)
            assert (attempt.state is AttemptState.RELEASING) == (attempt.ending is not None)
        assert self._unsettled.keys() <= self._attempts.keys()

    def _put(self, attempt: Attempt) -> None:
        self._attempts[attempt.id] = attempt
        self._by_tablet.setdefault(attempt.tablet, {})[attempt.id] = None
        self._by_compactor.setdefault(attempt.compactor, {})[attempt.id] = None
        if attempt.state is AttemptState.RUNNING:
            self._unsettled.pop(attempt.id, None)
        else:
            self._unsettled[attempt.id] = None

    def _drop(self, attempt: Attempt) -> None:
        del self._attempts[attempt.id]
        self._unsettled.pop(attempt.id, None)
        remove_from_index(self._by_tablet, attempt.tablet, attempt.id)
        remove_from_index(self._by_compactor, attempt.compactor, attempt.id)


def listed_attempt(
    attempt: Attempt, progress: AttemptProgress, incarnation: str, now_s: float
) -> Attempt:
    """Return the attempt after its compactor has listed it: it certainly runs there."""
    was_found = attempt.state is AttemptState.FOUND
    return replace(
        attempt,
        state=AttemptState.RUNNING if was_found else attempt.state,
        state_since_s=now_s if was_found else attempt.state_since_s,
        incarnation=incarnation,
        listed_s=now_s,
        unlisted_beats=0,
        progress=progress,
    )


def work_done(attempts: Iterable[Attempt]) -> list[Progress]:
    """Return the work of each attempt, from its last heartbeat.

    An attempt that is being taken back has done nothing, unless the store reports a commit.
    """
    return [
        (attempt.tablet, attempt.id, attempt_work(attempt))
        for attempt in attempts
        if attempt.progress is not None and attempt.state is not AttemptState.RELEASING
    ]


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
    task_memory: str = ""
    """Memory of a task, and why it is that much."""
    metrics: tuple[MetricValue, ...] = ()
    """Metrics in its last heartbeat."""
    actions: tuple[str, ...] = ()
    """What it supports, as in `TakeRequest`."""

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
            earlier = [
                incarnation for incarnation in self._dead.get(name) or () if incarnation != dying
            ]
            self._dead.put(name, (*earlier, dying)[-INCARNATIONS_MAX:])
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
        matches = (takes.get(take) for takes in self._waiting.values())
        return next((waiting for waiting in matches if waiting is not None), None)

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
        takes = self.all_waiting() + [reserving.take for reserving in self.reserving()]
        return [
            take.take
            for take in takes
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
        ordered = sorted([*takes.values(), take], key=lambda waiting: waiting.since_s)
        self._waiting[take.group] = {waiting.take: waiting for waiting in ordered}

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
