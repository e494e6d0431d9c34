"""The life of an attempt as the coordinator knows it, and all attempts that have not ended.

    JobReserved ───────────────► RUNNING ──► RELEASING ──► over
    ReservationsFound ► FOUND ─────┘ └──────────┬──────────► over
                          └─────────────────────┤
    JobReserveUnknown ► DOUBTFUL ───────────────┘

The store is the truth: an attempt has ended when the store, or the compactor that has written
to it, says so. What is kept here is what the coordinator knows and what it waits for.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from common.bounded_map import BoundedMap
from common.indexes import remove_from_index
from common.model.job import Job, Kind
from common.model.outcome import AttemptEnd
from common.model.tablet import Reservation, TabletId
from common.wire import Assignment, AttemptProgress


class AttemptState(StrEnum):
    """What is known of an attempt that has not ended."""

    FOUND = "found"
    """The store holds it; no compactor has listed it to us yet."""
    DOUBTFUL = "doubtful"
    """Its reservation may have been written; no compactor was given it."""
    RUNNING = "running"
    """Handed out, or listed by a compactor."""
    RELEASING = "releasing"
    """Its release was requested; the store has not answered."""


NEXT_STATES = {
    AttemptState.FOUND: (AttemptState.RUNNING, AttemptState.RELEASING),
    AttemptState.DOUBTFUL: (AttemptState.RELEASING,),
    AttemptState.RUNNING: (AttemptState.RELEASING,),
    AttemptState.RELEASING: (),
}
"""State → states that may follow while the attempt is not over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an attempt shall end, until the store confirms that it has."""

    end: AttemptEnd
    cause: str
    for_silence: bool
    halvings: int = 0
    """How often the job ran out of memory, this time included; 0: it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt that is not over. `ending` is set exactly while it is RELEASING."""

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
    """0 where only the store's word is known: it does not hold sizes."""
    reason: str = ""
    incarnation: str = ""
    listed_s: float = 0.0
    """When its compactor last listed it, or it was handed out."""
    unlisted_beats: int = 0
    progress: AttemptProgress | None = None
    request: str | None = None
    ending: Ending | None = None
    assignment: Assignment | None = None
    """What its compactor was given, while it is RUNNING and this coordinator has handed it out."""


def read_and_written(progress: AttemptProgress) -> tuple[float, int]:
    """Return the share of the inputs that is read, 0 to 1, and the bytes that are written.

    Compactors count what they move as a whole: what is beyond the inputs was written.
    """
    share = progress.bytes_done / progress.bytes_total if progress.bytes_total else 0.0
    written = max(0, progress.moved_bytes - progress.bytes_done)
    return min(max(share, 0.0), 1.0), written


def attempt_of_job(
    job: Job, attempt: str, compactor: str, state: AttemptState, now_s: float
) -> Attempt:
    """Return the attempt of a job that we have just tried to reserve."""
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
    """Return the attempt behind a reservation that only the store knew."""
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
    """All attempts that are not over, and a bounded memory of those that are.

    Always true: the indexes by tablet, by compactor and of the unsettled (all that are
    not RUNNING) hold the same attempts as `_attempts`; every change ends in `_put` or
    `_drop`. Iteration is in the order of arrival.
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
        """Return an attempt that is not over, or None."""
        return self._attempts.get(attempt)

    def ended(self, attempt: str) -> AttemptEnd | None:
        """Return how an attempt ended, as far as it is remembered."""
        return self._ended.get(attempt)

    def of_tablet(self, tablet: TabletId) -> list[Attempt]:
        """Return the attempts on a tablet."""
        members = self._by_tablet.get(tablet)
        return [self._attempts[member] for member in members] if members else []

    def of_compactor(self, compactor: str) -> list[Attempt]:
        """Return the attempts that a compactor holds or may hold."""
        return [self._attempts[each] for each in self._by_compactor.get(compactor, {})]

    def unsettled(self) -> list[Attempt]:
        """Return the attempts that only time moves on: all but the running ones."""
        return [self._attempts[each] for each in self._unsettled]

    def add(self, attempt: Attempt) -> None:
        """Note an attempt that was not known, or is known as FOUND and now for sure."""
        before = self._attempts.get(attempt.id)
        assert before is None or before.state is AttemptState.FOUND, before
        if before is not None:
            self._drop(before)
        self._put(attempt)

    def update(self, attempt: Attempt) -> None:
        """Note news of an attempt; its state must be one that may follow."""
        before = self._attempts[attempt.id]
        assert attempt.state is before.state or attempt.state in NEXT_STATES[before.state], attempt
        assert (attempt.tablet, attempt.compactor) == (before.tablet, before.compactor), attempt
        self._put(attempt)

    def end(self, attempt: str, end: AttemptEnd) -> Attempt | None:
        """Note that an attempt is over; return what was known of it, or None."""
        known = self._attempts.get(attempt)
        if known is not None:
            self._drop(known)
        if known is not None or self._ended.get(attempt) is None:
            self._ended.put(attempt, end)
        return known

    def doubt_end(self, attempt: str) -> None:
        """Note that an attempt which is over may not be: the store seems to hold it still."""
        self._ended.put(attempt, AttemptEnd.LOST)

    def check(self) -> None:
        """Assert what is always true of the indexes; for tests."""
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
    """Return the attempt after its compactor has listed it: it runs there for sure."""
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
    """Return tablet, id and done share (0 to 1) of each attempt, as its last heartbeat told.

    An attempt that is being taken back has done nothing, unless the store says that it committed.
    """
    return [
        (attempt.tablet, attempt.id, attempt.progress.fraction)
        for attempt in attempts
        if attempt.progress is not None and attempt.state is not AttemptState.RELEASING
    ]
