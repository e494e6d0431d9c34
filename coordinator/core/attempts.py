"""The life cycle of an attempt as the coordinator knows it, and all attempts in progress.

    JobReserved ───────────────► RUNNING ──► RELEASING ──► over
    ReservationsFound ► FOUND ─────┘ └──────────┬──────────► over
                          └─────────────────────┤
    JobReserveUnknown ► DOUBTFUL ───────────────┘

The store is authoritative: an attempt has ended when the store, or the compactor that has written
to it, reports the end. This module holds the coordinator's view and what it waits for.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from common.model.job import Job, Kind
from common.model.outcome import AttemptEnd
from common.model.tablet import Reservation, TabletId
from common.primitives import BoundedMap, remove_from_index
from common.wire import Assignment, AttemptProgress


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


def read_and_written(progress: AttemptProgress) -> tuple[float, int]:
    """Return the fraction of the inputs that is read, 0 to 1, and the bytes that are written.

    Compactors count reads and writes together; bytes beyond the inputs were written.
    """
    share = progress.bytes_done / progress.bytes_total if progress.bytes_total else 0.0
    written = max(0, progress.moved_bytes - progress.bytes_done)
    return min(max(share, 0.0), 1.0), written


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
        return [self._attempts[each] for each in self._by_compactor.get(compactor, {})]

    def unsettled(self) -> list[Attempt]:
        """Return the attempts that only time advances: all except the running ones."""
        return [self._attempts[each] for each in self._unsettled]

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
        known = self._attempts.get(attempt)
        if known is not None:
            self._drop(known)
        if known is not None or self._ended.get(attempt) is None:
            self._ended.put(attempt, end)
        return known

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
    found = attempt.state is AttemptState.FOUND
    return replace(
        attempt,
        state=AttemptState.RUNNING if found else attempt.state,
        state_since_s=now_s if found else attempt.state_since_s,
        incarnation=incarnation,
        listed_s=now_s,
        unlisted_beats=0,
        progress=progress,
    )


def done_shares(attempts: Iterable[Attempt]) -> list[tuple[TabletId, str, float]]:
    """Return tablet, id and done fraction (0 to 1) of each attempt, from its last heartbeat.

    An attempt that is being taken back counts as not done, unless the store reports a commit.
    """
    return [
        (attempt.tablet, attempt.id, attempt.progress.fraction)
        for attempt in attempts
        if attempt.progress is not None and attempt.state is not AttemptState.RELEASING
    ]
