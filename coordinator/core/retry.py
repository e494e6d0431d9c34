"""Failures: who has to pause, for how long, and who is quarantined.

* A **compactor** pauses after failures in a row of different inputs, until it succeeds or
  time has passed; a first one is held against the inputs alone.
* **Inputs** (a tablet and its files) pause after each failure of exactly these; after
  `quarantine_failures` in a row they are quarantined until the operator lifts it, the
  table's settings change or a file is gone. An attempt that ended with its compactor
  counts as a failure, too, unless it was the first one in a row.
* A **table** pauses for one error class after failures of different inputs with it,
  no job of the table having succeeded in between.
* A **job** that the store has refused pauses from the second refusal on.
* A **file** that has ended the process that looked into it holds every job that reads it,
  quarantined like inputs that failed too often.
* A **request** whose own expression or plug-in has failed is given up at once: every try
  fails alike, and neither inputs nor table nor compactor are to blame.

A pause doubles from failure to failure up to a bound. A quarantine holds the inputs
that failed, not the tablet: as soon as the planner wants other files, those run.

`CrashHistory` remembers jobs that were under way when their compactor died. A pod that was
ended for its memory cannot say so: its attempts are lost like those of a machine that
failed. So the next attempt after a second death in a row is halved, as if it had run out of
memory, and its inputs pause, in the end for good, as if it had failed.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

from common.backoff import Backoff
from common.bounded_map import BoundedMap
from common.model.job import Job
from common.model.outcome import RefusalCode
from common.model.tablet import TabletId
from coordinator.core.limits import Limits

# ------------------------------------------------------------------------------------------- Pauses


JobInputs = tuple[TabletId, tuple[str, ...]]

PASSING = frozenset({"UnavailableError"})
"""Error classes that go away by themselves: inputs wait for the storage, and no failure counts."""
ERROR_CLASSES_MAX = 16
"""Error classes that are counted separately for one table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A pause until a time; `until_s` None: until an operator lifts it."""

    failures: int
    until_s: float | None
    reason: str
    of_file: bool = False
    """Whether it holds every job that reads the file, whatever else it reads."""
    waits: int = 0
    """Attempts in a row that the storage did not serve; they are no failures."""

    def holds(self, now_s: float) -> bool:
        """Return whether it is not over yet."""
        return self.until_s is None or now_s < self.until_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An attempt that failed, as far as retrying needs it."""

    compactor: str
    tablet: TabletId
    inputs: tuple[str, ...]
    error_class: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _StreakPause:
    """The pause for failures in a row of different inputs, and the inputs that failed last."""

    pause: Pause
    inputs: JobInputs


class Retry:
    """All pauses. Bounded: what is forgotten is merely tried again."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._inputs: BoundedMap[JobInputs, Pause] = BoundedMap(limits.failures_max)
        self._classes: BoundedMap[str, dict[str, _StreakPause]] = BoundedMap(limits.failures_max)
        self._compactors: BoundedMap[str, _StreakPause] = BoundedMap(limits.failures_max)
        self._refusals: BoundedMap[str, Pause] = BoundedMap(limits.failures_max)
        self._requests: BoundedMap[str, Pause] = BoundedMap(limits.failures_max)
        self._tablets: BoundedMap[TabletId, tuple[JobInputs, ...]] = BoundedMap(limits.failures_max)
        self._waiting: BoundedMap[str, str] = BoundedMap(limits.failures_max)

    def note_failure(self, failure: Failure, now_s: float) -> Pause:
        """Note a failure; return the pause of its inputs."""
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
        """Note a failure that is the compactor's alone: nothing of the job is to blame."""
        inputs = (failure.tablet, failure.inputs)
        known = self._compactors.get(failure.compactor)
        count = _failures_in_a_row(known, inputs)
        reason = f"compactor {failure.compactor} failed {_times(count)}: {failure.cause}"
        until_s = now_s + (self.length_s(count - 1) if count > 1 else 0.0)
        row = Pause(failures=count, until_s=until_s, reason=reason)
        self._compactors.put(failure.compactor, _StreakPause(pause=row, inputs=inputs))

    def note_request_failure(self, request: str, cause: str) -> None:
        """Note a failure that is the request's own: none of its jobs is tried again."""
        self._requests.put(request, Pause(failures=1, until_s=None, reason=cause))

    def note_fatal_file(self, tablet: TabletId, path: str, cause: str) -> None:
        """Note that a file has ended the process that looked into it."""
        reason = f"quarantined, {cause}"
        pause = Pause(failures=1, until_s=None, reason=reason, of_file=True)
        self._note_inputs((tablet, (path,)), pause)

    def fatal_file(self, tablet: TabletId) -> str | None:
        """Return why nobody should look into the files of a tablet, or None."""
        return next((pause.reason for _, pause in self._fatal(tablet)), None)

    def _fatal(self, tablet: TabletId) -> Iterator[tuple[str, Pause]]:
        for inputs in self._tablets.get(tablet) or ():
            pause = self._inputs.get(inputs)
            if pause is not None and pause.of_file:
                yield inputs[1][0], pause

    def note_death(
        self, tablet: TabletId, inputs: tuple[str, ...], cause: str, now_s: float
    ) -> Pause:
        """Note that an attempt has ended with its compactor again; nobody else is to blame."""
        return self._pause_inputs((tablet, inputs), cause, now_s)

    def note_success(self, compactor: str, tablet: TabletId, inputs: tuple[str, ...]) -> None:
        """Note a success: what it touches starts anew."""
        self._inputs.pop((tablet, inputs))
        self._compactors.pop(compactor)
        self._classes.pop(tablet.table)
        self._waiting.pop(tablet.table)

    def note_cancelled(
        self, tablet: TabletId, inputs: tuple[str, ...], cause: str, now_s: float
    ) -> None:
        """Somebody cancelled a job: its inputs are left alone for a while."""
        until_s = now_s + self._limits.cancel_pause_s
        reason = f"a job on these files was cancelled: {cause}"
        self._note_inputs((tablet, inputs), Pause(failures=0, until_s=until_s, reason=reason))

    def note_refused(self, job: Job, code: RefusalCode, reason: str, now_s: float) -> Pause:
        """Note that the store did not allow a job; the first refusal costs no time."""
        count = _failure_count(self._refusals.get(job.id)) + 1
        limits = self._limits
        backoff = Backoff(base_s=limits.refusal_base_s, max_s=limits.refusal_max_s)
        until_s = now_s + backoff.wait_s(count - 1)
        pause = Pause(failures=count, until_s=until_s, reason=f"refused ({code}): {reason}")
        self._refusals.put(job.id, pause)
        return pause

    def note_allowed(self, job: Job) -> None:
        """Note that the store allowed a job after all."""
        self._refusals.pop(job.id)

    def pause_of(self, job: Job, now_s: float) -> Pause | None:
        """Return what keeps a job from being queued or handed out now, or None."""
        pauses = [self._inputs.get((job.tablet, job.inputs)), self._refusals.get(job.id)]
        pauses += self._of_table(job.tablet.table)
        pauses.append(self._of_request(job))
        pauses += [pause for path, pause in self._fatal(job.tablet) if path in job.inputs]
        holding = [pause for pause in pauses if pause is not None and pause.holds(now_s)]
        return max(holding, key=_lasts, default=None)

    def compactor(self, name: str, now_s: float) -> Pause | None:
        """Return the pause of a compactor, or None."""
        known = self._compactors.get(name)
        return known.pause if known is not None and known.pause.holds(now_s) else None

    def compactor_failures(self, name: str) -> int:
        """Return over how many different inputs attempts have failed on a compactor in a row."""
        known = self._compactors.get(name)
        return 0 if known is None else known.pause.failures

    def last_pause(self, tablet: TabletId, inputs: tuple[str, ...]) -> Pause | None:
        """Return the last pause of these inputs, over or not, or None."""
        return self._inputs.get((tablet, inputs))

    def of_tablet(self, tablet: TabletId, now_s: float) -> list[Pause]:
        """Return the pauses of inputs of a tablet and of its table, for people."""
        mine = [self._inputs.get(inputs) for inputs in self._tablets.get(tablet) or ()]
        both = [*mine, *self._of_table(tablet.table)]
        return [pause for pause in both if pause is not None and pause.holds(now_s)]

    def why_given_up(self, job: Job) -> str | None:
        """Return why a job is not tried any more, or None if it is.

        Its request has failed, or its inputs are quarantined.
        """
        fatal = [pause for path, pause in self._fatal(job.tablet) if path in job.inputs]
        pauses = [self._of_request(job), self._inputs.get((job.tablet, job.inputs)), *fatal]
        given_up = (each.reason for each in pauses if each is not None and each.until_s is None)
        return next(given_up, None)

    def quarantined(self) -> dict[TabletId, str]:
        """Return the tablets with quarantined inputs, and why."""
        return {inputs[0]: pause.reason for inputs, pause in self._inputs if pause.until_s is None}

    def waiting_for_storage(self) -> list[tuple[str, str]]:
        """Return the tables whose storage did not serve their last attempt, and what it said."""
        return list(self._waiting)

    def has_history(self, tablet: TabletId) -> bool:
        """Return whether inputs of a tablet have ever failed or been cancelled."""
        return tablet in self._tablets

    def keep(self, tablet: TabletId, paths: Container[str]) -> None:
        """Forget pauses over files that the tablet no longer has.

        Args:
            tablet: A tablet that was just planned.
            paths: Every file that its plan speaks of.
        """
        known = self._tablets.get(tablet) or ()
        kept = tuple(each for each in known if all(path in paths for path in each[1]))
        for inputs in known:
            if inputs not in kept:
                self._inputs.pop(inputs)
        self._tablets.pop(tablet)
        if kept:
            self._tablets.put(tablet, kept)

    def lift(self, tablet: TabletId) -> None:
        """Let a tablet be tried again at once."""
        for inputs in self._tablets.pop(tablet) or ():
            self._inputs.pop(inputs)
        self._classes.pop(tablet.table)

    def lift_table(self, table: str) -> None:
        """Let all of a table be tried again: its settings have changed, or it is gone."""
        for tablet in self.tablets_of(table):
            self.lift(tablet)
        self._classes.pop(table)
        self._waiting.pop(table)

    def tablets_of(self, table: str) -> list[TabletId]:
        """Return the tablets of a table of which inputs have failed or been cancelled."""
        return [tablet for tablet, _ in self._tablets if tablet.table == table]

    def _wait_for_storage(self, inputs: JobInputs, cause: str, now_s: float) -> Pause:
        known = self._inputs.get(inputs)
        failures, waits = _failure_count(known), 1 if known is None else known.waits + 1
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
        known = classes.pop(failure.error_class, None)
        count = _failures_in_a_row(known, inputs)
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
        """Return how long to pause after so many failures in a row."""
        limits = self._limits
        return Backoff(base_s=limits.backoff_base_s, max_s=limits.backoff_max_s).wait_s(failures)


def _failure_count(pause: Pause | None) -> int:
    return 0 if pause is None else pause.failures


def _failures_in_a_row(known: _StreakPause | None, inputs: JobInputs) -> int:
    """Return how many different inputs have failed in a row, these included."""
    return 1 if known is None else known.pause.failures + (known.inputs != inputs)


def _lasts(pause: Pause) -> float:
    return float("inf") if pause.until_s is None else pause.until_s


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


# ------------------------------------------------------------------------------------ Crash history


@dataclass(frozen=True, slots=True)
class CrashRecord:
    """What is remembered of the inputs of a job."""

    count: int = 0
    """Attempts in a row that ended with their compactor."""
    halvings: int = 0
    """How often the job was halved, as far as compactors have reported."""

    @property
    def is_repeated(self) -> bool:
        """Whether it was not the first time."""
        return self.count > 1


class CrashHistory:
    """Crashes by inputs. Bounded: after it was forgotten, a crash counts as the first again."""

    def __init__(self, most: int) -> None:
        self._known: BoundedMap[JobInputs, CrashRecord] = BoundedMap(most)

    def note_death(self, tablet: TabletId, inputs: tuple[str, ...]) -> CrashRecord:
        """Note that an attempt has ended with its compactor; return what is known now."""
        known = self._known.get((tablet, inputs)) or CrashRecord()
        record = replace(known, count=known.count + 1)
        if record.is_repeated:
            record = replace(record, halvings=known.halvings + 1)
        self._known.put((tablet, inputs), record)
        return record

    def note_halvings(self, tablet: TabletId, inputs: tuple[str, ...], halvings: int) -> None:
        """Note how often a job was halved by now, so that later crashes count on from there."""
        if halvings:
            known = self._known.get((tablet, inputs)) or CrashRecord()
            self._known.put((tablet, inputs), replace(known, halvings=halvings))

    def forget(self, tablet: TabletId, inputs: tuple[str, ...]) -> None:
        """Begin anew: a job over these inputs has succeeded."""
        self._known.pop((tablet, inputs))
