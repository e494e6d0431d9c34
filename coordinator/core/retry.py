"""Failures: pauses, their length, and quarantine.

* A **compactor** pauses after consecutive failures of different inputs, until it succeeds or the
  pause ends; a first failure counts against the inputs only.
* **Inputs** (a tablet and its files) pause after each failure of exactly these inputs. After
  `quarantine_failures` consecutive failures they are quarantined until the operator lifts the
  quarantine, the table's settings change, or a file is gone. An attempt that was lost with its
  compactor also counts as a failure, except for the first one in a row.
* A **table** pauses for one error class after failures of different inputs with this class, if no
  job of the table has succeeded in between.
* A **job** that the store has refused pauses from the second refusal on.
* A **file** that has crashed the process that read it blocks every job that reads it; it is
  quarantined like inputs that failed too often.
* A **job** that an operator has paused waits until the operator resumes it or one of its files is
  gone. The planner may want other jobs on the same files.
* A **request** whose own expression or plug-in has failed is given up at once: every retry would
  fail, and the failure is not due to inputs, table or compactor.

The length of a pause doubles with each failure up to a bound. A quarantine applies to the failed
inputs, not to the tablet: if the planner wants other files, they are compacted.

`CrashHistory` remembers jobs that were running when their compactor died. A pod that was killed for
its memory use cannot report this, so its attempts are lost like those of a failed machine.
Therefore the next attempt after a second consecutive death is halved, as if the job had run out of
memory. Its inputs pause, and are finally quarantined, as if the job had failed.
"""

from collections import OrderedDict
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import islice

from common.model.job import Job
from common.model.outcome import RefusalCode
from common.model.tablet import TabletId
from common.primitives import Backoff, BoundedMap
from coordinator.core.limits import Limits

# ------------------------------------------------------------------------------------------- Pauses


JobInputs = tuple[TabletId, tuple[str, ...]]

PASSING = frozenset({"UnavailableError"})
"""Transient error classes: inputs wait for the storage, and no failure is counted."""
ERROR_CLASSES_MAX = 16
"""Error classes that are counted separately for one table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A pause until a time, or until an operator lifts it if `until_s` is None."""

    failures: int
    until_s: float | None
    reason: str
    of_file: bool = False
    """Whether the pause applies to every job that reads the file."""
    waits: int = 0
    """Consecutive attempts that the storage did not serve; they do not count as failures."""

    def holds(self, now_s: float) -> bool:
        """Return whether the pause is still in force."""
        return self.until_s is None or now_s < self.until_s


PAUSED_JOB = Pause(
    failures=0, until_s=None, reason="a job is paused by the operator (`neve job resume`)"
)
"""The pause of a job that an operator has paused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The facts about a failed attempt that retries depend on."""

    compactor: str
    tablet: TabletId
    inputs: tuple[str, ...]
    error_class: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _StreakPause:
    """The pause for consecutive failures of different inputs, and the last failed inputs."""

    pause: Pause
    inputs: JobInputs


class Retry:
    """All pauses. Bounded: an evicted pause only causes an earlier retry."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._inputs: BoundedMap[JobInputs, Pause] = BoundedMap(limits.failures_max)
        self._classes: BoundedMap[str, dict[str, _StreakPause]] = BoundedMap(limits.failures_max)
        self._compactors: BoundedMap[str, _StreakPause] = BoundedMap(limits.failures_max)
        self._refusals: BoundedMap[str, Pause] = BoundedMap(limits.failures_max)
        self._requests: BoundedMap[str, Pause] = BoundedMap(limits.failures_max)
        self._tablets: BoundedMap[TabletId, tuple[JobInputs, ...]] = BoundedMap(limits.failures_max)
        self._waiting: BoundedMap[str, str] = BoundedMap(limits.failures_max)
        self._paused: BoundedMap[TabletId, dict[str, Job]] = BoundedMap(limits.failures_max)

    def pause_job(self, job: Job) -> None:
        """Pause a job until `resume_job`, or until a file of it is gone."""
        self._set_paused(job.tablet, {**(self._paused.get(job.tablet) or {}), job.id: job})

    def resume_job(self, job_id: str) -> Job | None:
        """End the pause of a job and return the job, or None if it is not paused."""
        found = next((job for job in self.paused_jobs() if job.id == job_id), None)
        if found is not None:
            others = {job.id: job for job in self.paused_jobs(found.tablet) if job is not found}
            self._set_paused(found.tablet, others)
        return found

    def paused_jobs(self, tablet: TabletId | None = None) -> list[Job]:
        """Return the jobs of a tablet, or of every tablet, that operators have paused."""
        if tablet is not None:
            return list((self._paused.get(tablet) or {}).values())
        return [job for _, jobs in self._paused for job in jobs.values()]

    def forget_paused(self, tablet: TabletId) -> None:
        """Remove the paused jobs of a tablet that is gone."""
        self._paused.pop(tablet)

    def _set_paused(self, tablet: TabletId, jobs: dict[str, Job]) -> None:
        self._paused.pop(tablet)
        if jobs:
            self._paused.put(tablet, jobs)

    def note_failure(self, failure: Failure, now_s: float) -> Pause:
        """Record a failure; return the pause of its inputs."""
        inputs = (failure.tablet, failure.inputs)
        passes = failure.error_class in PASSING
        if passes:
            pause = self._wait_for_storage(inputs, failure.cause, now_s)
        else:
            pause = self._pause_inputs(inputs, failure.cause, now_s)
        self._pause_class(inputs, failure, now_s)
        self.note_compactor_failure(failure, now_s)
        return pause

    def note_compactor_failure(self, failure: Failure, now_s: float) -> None:
        """Record a failure that counts against the compactor only, and not against the job."""
        inputs = (failure.tablet, failure.inputs)
        previous = self._compactors.get(failure.compactor)
        count = _failures_in_a_row(previous, inputs)
        reason = f"compactor {failure.compactor} failed {_times(count)}: {failure.cause}"
        until_s = now_s + (self.length_s(count - 1) if count > 1 else 0.0)
        row = Pause(failures=count, until_s=until_s, reason=reason)
        self._compactors.put(failure.compactor, _StreakPause(pause=row, inputs=inputs))

    def note_request_failure(self, request: str, cause: str) -> None:
        """Record a failure that the request itself causes: its jobs are not retried."""
        self._requests.put(request, Pause(failures=1, until_s=None, reason=cause))

    def note_fatal_file(self, tablet: TabletId, path: str, cause: str) -> None:
        """Record that a file has crashed the process that read it."""
        reason = f"quarantined, {cause}"
        pause = Pause(failures=1, until_s=None, reason=reason, of_file=True)
        self._note_inputs((tablet, (path,)), pause)

    def fatal_file(self, tablet: TabletId) -> str | None:
        """Return why the files of a tablet must not be read, or None."""
        return next((pause.reason for _, pause in self._fatal(tablet)), None)

    def _fatal(self, tablet: TabletId) -> Iterator[tuple[str, Pause]]:
        for inputs in self._tablets.get(tablet) or ():
            pause = self._inputs.get(inputs)
            if pause is not None and pause.of_file:
                yield inputs[1][0], pause

    def note_death(
        self, tablet: TabletId, inputs: tuple[str, ...], cause: str, now_s: float
    ) -> Pause:
        """Record a repeated loss of an attempt with its compactor; counts against inputs only."""
        return self._pause_inputs((tablet, inputs), cause, now_s)

    def note_success(self, compactor: str, tablet: TabletId, inputs: tuple[str, ...]) -> None:
        """Record a success: the counts of its inputs, compactor and table are reset."""
        self._inputs.pop((tablet, inputs))
        self._compactors.pop(compactor)
        self._classes.pop(tablet.table)
        self._waiting.pop(tablet.table)

    def note_cancelled(
        self, tablet: TabletId, inputs: tuple[str, ...], cause: str, now_s: float
    ) -> None:
        """Record that a job was cancelled: its inputs pause."""
        until_s = now_s + self._limits.cancel_pause_s
        reason = f"a job on these files was cancelled: {cause}"
        self._note_inputs((tablet, inputs), Pause(failures=0, until_s=until_s, reason=reason))

    def note_refused(self, job: Job, code: RefusalCode, reason: str, now_s: float) -> Pause:
        """Record that the store refused a job; the first refusal causes no pause."""
        count = _failure_count(self._refusals.get(job.id)) + 1
        limits = self._limits
        backoff = Backoff(base_s=limits.refusal_base_s, max_s=limits.refusal_max_s)
        until_s = now_s + backoff.wait_s(count - 1)
        pause = Pause(failures=count, until_s=until_s, reason=f"refused ({code}): {reason}")
        self._refusals.put(job.id, pause)
        return pause

    def note_allowed(self, job: Job) -> None:
        """Record that the store has accepted a job."""
        self._refusals.pop(job.id)

    def pause_of(self, job: Job, now_s: float) -> Pause | None:
        """Return the pause that blocks a job from being queued or assigned now, or None.

        If several pauses apply, the longest is returned.
        """
        pauses = [self._inputs.get((job.tablet, job.inputs)), self._refusals.get(job.id)]
        pauses += self._of_table(job.tablet.table)
        pauses.append(self._of_request(job))
        pauses.append(PAUSED_JOB if job.id in (self._paused.get(job.tablet) or ()) else None)
        pauses += [pause for path, pause in self._fatal(job.tablet) if path in job.inputs]
        holding = [pause for pause in pauses if pause is not None and pause.holds(now_s)]
        return max(holding, key=_lasts, default=None)

    def compactor(self, name: str, now_s: float) -> Pause | None:
        """Return the pause of a compactor, or None."""
        streak = self._compactors.get(name)
        return streak.pause if streak is not None and streak.pause.holds(now_s) else None

    def compactor_failures(self, name: str) -> int:
        """Return the number of consecutive failures of different inputs on a compactor."""
        streak = self._compactors.get(name)
        return 0 if streak is None else streak.pause.failures

    def last_pause(self, tablet: TabletId, inputs: tuple[str, ...]) -> Pause | None:
        """Return the last pause of these inputs, even if it has ended, or None."""
        return self._inputs.get((tablet, inputs))

    def of_tablet(self, tablet: TabletId, now_s: float) -> list[Pause]:
        """Return the current pauses of a tablet's inputs and of its table, for display."""
        of_inputs = [self._inputs.get(inputs) for inputs in self._tablets.get(tablet) or ()]
        both = [*of_inputs, *self._of_table(tablet.table)]
        return [pause for pause in both if pause is not None and pause.holds(now_s)]

    def why_given_up(self, job: Job) -> str | None:
        """Return why a job is no longer retried, or None.

        The reason is a failed request, quarantined inputs or a quarantined file.
        """
        fatal = [pause for path, pause in self._fatal(job.tablet) if path in job.inputs]
        pauses = [self._of_request(job), self._inputs.get((job.tablet, job.inputs)), *fatal]
        given_up = (pause.reason for pause in pauses if pause is not None and pause.until_s is None)
        return next(given_up, None)

    def quarantined(self) -> dict[TabletId, str]:
        """Return the tablets with quarantined inputs, and the reasons."""
        return {inputs[0]: pause.reason for inputs, pause in self._inputs if pause.until_s is None}

    def waiting_for_storage(self) -> list[tuple[str, str]]:
        """Return the tables whose last attempt found the storage unavailable, with the errors."""
        return list(self._waiting)

    def has_history(self, tablet: TabletId) -> bool:
        """Return whether inputs of a tablet have failed, were cancelled or are paused."""
        return tablet in self._tablets or tablet in self._paused

    def keep(self, tablet: TabletId, paths: Container[str]) -> None:
        """Remove the pauses of inputs with files that the tablet no longer has.

        Args:
            tablet: A tablet that was just planned.
            paths: Every file that the plan mentions, and the busy files.
        """
        waiting = self.paused_jobs(tablet)
        still = {job.id: job for job in waiting if all(path in paths for path in job.inputs)}
        if len(still) < len(waiting):
            self._set_paused(tablet, still)
        failed = self._tablets.get(tablet) or ()
        kept = tuple(inputs for inputs in failed if all(path in paths for path in inputs[1]))
        for inputs in failed:
            if inputs not in kept:
                self._inputs.pop(inputs)
        self._tablets.pop(tablet)
        if kept:
            self._tablets.put(tablet, kept)

    def lift(self, tablet: TabletId) -> None:
        """Lift the pauses of a tablet, so that it is retried at once."""
        for inputs in self._tablets.pop(tablet) or ():
            self._inputs.pop(inputs)
        self._classes.pop(tablet.table)

    def lift_table(self, table: str) -> None:
        """Lift all pauses of a table after its settings have changed or it was dropped."""
        for tablet in self.tablets_of(table):
            self.lift(tablet)
        self._classes.pop(table)
        self._waiting.pop(table)

    def tablets_of(self, table: str) -> list[TabletId]:
        """Return the tablets of a table with inputs that have failed or were cancelled."""
        return [tablet for tablet, _ in self._tablets if tablet.table == table]

    def _wait_for_storage(self, inputs: JobInputs, cause: str, now_s: float) -> Pause:
        previous = self._inputs.get(inputs)
        failures, waits = _failure_count(previous), 1 if previous is None else previous.waits + 1
        pause = Pause(
            failures=failures,
            until_s=now_s + self.length_s(waits),
            reason=f"waits for storage, tried {_times(waits)}: {cause}",
            waits=waits,
        )
        self._note_inputs(inputs, pause)
        self._waiting.put(inputs[0].table, cause)
        return pause

    def _pause_inputs(self, inputs: JobInputs, cause: str, now_s: float) -> Pause:
        count = _failure_count(self._inputs.get(inputs)) + 1
        reason = f"failed {_times(count)}: {cause}"
        pause = self._after(count, reason, now_s)
        if count >= self._limits.quarantine_failures:
            pause = Pause(failures=count, until_s=None, reason=f"quarantined, {reason}")
        self._note_inputs(inputs, pause)
        return pause

    def _note_inputs(self, inputs: JobInputs, pause: Pause) -> None:
        self._inputs.put(inputs, pause)
        others = [
            listed
            for listed in self._tablets.get(inputs[0]) or ()
            if listed != inputs and listed in self._inputs
        ]
        self._tablets.put(inputs[0], (*others, inputs))

    def _pause_class(self, inputs: JobInputs, failure: Failure, now_s: float) -> None:
        table = failure.tablet.table
        classes = self._classes.get(table) or {}
        previous = classes.pop(failure.error_class, None)
        count = _failures_in_a_row(previous, inputs)
        reason = f"jobs of this table failed {_times(count)} in a row with {failure.error_class}"
        beyond = count - self._limits.class_failures + 1
        until_s = now_s + (self.length_s(beyond) if beyond > 0 else 0.0)
        pause = Pause(failures=count, until_s=until_s, reason=reason)
        newest = list(classes.items())[-(ERROR_CLASSES_MAX - 1) :]
        entry = _StreakPause(pause=pause, inputs=inputs)
        self._classes.put(table, {**dict(newest), failure.error_class: entry})

    def _of_request(self, job: Job) -> Pause | None:
        return None if job.request is None else self._requests.get(job.request)

    def _of_table(self, table: str) -> list[Pause]:
        return [class_.pause for class_ in (self._classes.get(table) or {}).values()]

    def _after(self, failures: int, reason: str, now_s: float) -> Pause:
        return Pause(failures=failures, until_s=now_s + self.length_s(failures), reason=reason)

    def length_s(self, failures: int) -> float:
        """Return the length of the pause after a number of consecutive failures."""
        limits = self._limits
        return Backoff(base_s=limits.backoff_base_s, max_s=limits.backoff_max_s).wait_s(failures)


def _failure_count(pause: Pause | None) -> int:
    return 0 if pause is None else pause.failures


def _failures_in_a_row(previous: _StreakPause | None, inputs: JobInputs) -> int:
    """Return the number of consecutive failures of different inputs, including these."""
    return 1 if previous is None else previous.pause.failures + (previous.inputs != inputs)


def _lasts(pause: Pause) -> float:
    return float("inf") if pause.until_s is None else pause.until_s


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


# ------------------------------------------------------------------------------------ Crash history


@dataclass(frozen=True, slots=True)
class CrashRecord:
    """Crashes of the inputs of a job."""

    count: int = 0
    """Consecutive attempts that were lost with their compactor."""
    halvings: int = 0
    """How often the job was halved, including halvings that compactors have reported."""

    @property
    def is_repeated(self) -> bool:
        """Whether more than one attempt was lost."""
        return self.count > 1


class CrashHistory:
    """Crashes by inputs. Bounded: after an eviction, the next crash counts as the first one."""

    def __init__(self, most: int) -> None:
        self._records: BoundedMap[JobInputs, CrashRecord] = BoundedMap(most)

    def note_death(self, tablet: TabletId, inputs: tuple[str, ...]) -> CrashRecord:
        """Record that an attempt was lost with its compactor; return the updated record."""
        previous = self._records.get((tablet, inputs)) or CrashRecord()
        record = replace(previous, count=previous.count + 1)
        if record.is_repeated:
            record = replace(record, halvings=previous.halvings + 1)
        self._records.put((tablet, inputs), record)
        return record

    def note_halvings(self, tablet: TabletId, inputs: tuple[str, ...], halvings: int) -> None:
        """Record how often a job was halved; later crashes continue from this count."""
        if halvings:
            record = self._records.get((tablet, inputs)) or CrashRecord()
            self._records.put((tablet, inputs), replace(record, halvings=halvings))

    def forget(self, tablet: TabletId, inputs: tuple[str, ...]) -> None:
        """Remove the record of inputs after a job on them has succeeded."""
        self._records.pop((tablet, inputs))


# ----------------------------------------------------------------------------------------- Deferral
# Tablets to be replanned when a queue has room, or at a certain time.


STALE_ENTRIES_MAX = 64
"""Cancelled timers that are tolerated before the heap is rebuilt."""
_TABLE_PREFIX, _WINDOW_PREFIX = "table:", "window:"


def wait_queue_of_table(table: str) -> str:
    """Return the wait queue for tablets of a paused table; no group has such a name."""
    return _TABLE_PREFIX + table


def table_of_wait_queue(wait_queue: str) -> str | None:
    """Return the table of a wait queue, or None if the wait queue belongs to a group."""
    return wait_queue.removeprefix(_TABLE_PREFIX) if wait_queue.startswith(_TABLE_PREFIX) else None


def wait_queue_of_window(table: str, group: str) -> str:
    """Return the wait queue for tablets whose jobs wait for a window.

    Args:
        table: Id of the table, if its window is closed; empty: that of the group is.
        group: Group of the jobs.
    """
    return f"{_WINDOW_PREFIX}{table}:{group}"


def window_of_wait_queue(wait_queue: str) -> tuple[str, str] | None:
    """Return the table and group of a wait queue for a window; the table may be empty."""
    if not wait_queue.startswith(_WINDOW_PREFIX):
        return None
    table, _, group = wait_queue.removeprefix(_WINDOW_PREFIX).rpartition(":")
    return table, group


def is_group_queue(wait_queue: str) -> bool:
    """Return whether the tablets of a wait queue wait for room in the queue of a group."""
    return not wait_queue.startswith((_TABLE_PREFIX, _WINDOW_PREFIX))


class Deferrals:
    """Tablets whose jobs were shed or are held back, in one wait queue per cause, oldest first.

    A wait queue is named after a group, by `wait_queue_of_table` after a table whose jobs are not
    assigned, or by `wait_queue_of_window`. Invariant: a tablet is in at most one wait queue; a wait
    queue holds at most `count_max` tablets and drops its oldest beyond that.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self.full_since_s: dict[str, float] = {}
        """Group → when its queue first shed a job, until the queue is half empty again."""
        # Oldest first. OrderedDict, because a dict finds its first key slowly after many removals.
        self._wait_queues: dict[str, OrderedDict[TabletId, float]] = {}
        self._wait_queue_of: dict[TabletId, str] = {}

    def __len__(self) -> int:
        return len(self._wait_queue_of)

    def since_s(self, tablet: TabletId) -> float | None:
        """Return when a tablet began to wait, or None if it does not wait."""
        wait_queue = self._wait_queue_of.get(tablet)
        return None if wait_queue is None else self._wait_queues[wait_queue][tablet]

    def wait_queue_of(self, tablet: TabletId) -> str | None:
        """Return the wait queue of a tablet, or None."""
        return self._wait_queue_of.get(tablet)

    def of_table(self, table: str) -> list[TabletId]:
        """Return the tablets of a table in any wait queue."""
        return [tablet for tablet in self._wait_queue_of if tablet.table == table]

    def count(self, wait_queue: str) -> int:
        """Return the number of tablets in a wait queue."""
        return len(self._wait_queues.get(wait_queue, ()))

    def wait_queues(self) -> list[str]:
        """Return the names of all wait queues, sorted."""
        return sorted(self._wait_queues)

    def defer(self, tablet: TabletId, wait_queue: str, now_s: float) -> TabletId | None:
        """Put a tablet into a wait queue; a tablet that already waits keeps its start time.

        Returns:
            The tablet that was dropped to make room, if any.
        """
        since_s = self.since_s(tablet)
        self.discard(tablet)
        tablets = self._wait_queues.setdefault(wait_queue, OrderedDict())
        tablets[tablet] = now_s if since_s is None else since_s
        self._wait_queue_of[tablet] = wait_queue
        if len(tablets) <= self._count_max:
            return None
        forgotten = next(iter(tablets))
        self.discard(forgotten)
        return forgotten

    def discard(self, tablet: TabletId) -> None:
        """Remove a tablet from its wait queue."""
        wait_queue = self._wait_queue_of.pop(tablet, None)
        if wait_queue is not None:
            tablets = self._wait_queues[wait_queue]
            del tablets[tablet]
            if not tablets:
                del self._wait_queues[wait_queue]

    def pop(self, wait_queue: str, count: int, before_s: float | None = None) -> list[TabletId]:
        """Remove and return the first tablets of a wait queue.

        Args:
            wait_queue: The wait queue.
            count: Maximum number of tablets.
            before_s: Only tablets that began to wait at or before this time; None means all.
        """
        chosen = [
            tablet
            for tablet, since_s in islice(self._wait_queues.get(wait_queue, {}).items(), count)
            if before_s is None or since_s <= before_s
        ]
        for tablet in chosen:
            self.discard(tablet)
        return chosen


class ReplanTimers:
    """Times at which tablets are to be replanned: one per tablet, the earliest."""

    def __init__(self) -> None:
        self._times: dict[TabletId, float] = {}
        self._heap: list[tuple[float, TabletId]] = []

    def set(self, tablet: TabletId, at_s: float) -> None:
        """Schedule the replanning of a tablet; an earlier time that is already set stays."""
        if at_s < self._times.get(tablet, float("inf")):
            self._times[tablet] = at_s
            heappush(self._heap, (at_s, tablet))
        if len(self._heap) > 2 * len(self._times) + STALE_ENTRIES_MAX:
            self._heap = [(time_s, tablet_id) for tablet_id, time_s in self._times.items()]
            heapify(self._heap)

    def discard(self, tablet: TabletId) -> None:
        """Cancel the timer of a tablet."""
        self._times.pop(tablet, None)

    def due(self, now_s: float, count: int) -> list[TabletId]:
        """Remove and return the tablets that are due, at most `count`."""
        chosen: list[TabletId] = []
        while self._heap and self._heap[0][0] <= now_s and len(chosen) < count:
            at_s, tablet = heappop(self._heap)
            if self._times.get(tablet) == at_s:
                del self._times[tablet]
                chosen.append(tablet)
        return chosen
