"""The life of one attempt on its compactor, as a state machine without I/O.

    preparing → rewriting → verifying → committing → reported        (a move commits at once)
                    │            │           │
                    └── failed, cancelled ───┴── refused, unknown

Two rules of the metadata protocol apply here. An attempt deletes its own outputs only if no commit
of it can ever have been executed. A commit with an unknown outcome is neither done nor refused: its
mark is looked for, and the commit is sent again until the store confirms or refuses it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol, Self, assert_never

from common.metadata.changes import CommitAttempt, RetagFiles
from common.model.file import DataFile
from common.model.group import DEFAULT_VOLUME
from common.model.job import JobAction, Kind
from common.model.outcome import AttemptEnd, DroppedRows, RefusalCode, RowCounts, Statistics
from common.model.table import Table
from common.primitives import Backoff
from common.wire import Assignment, AttemptProgress, AttemptReport

# ------------------------------------------------------------------------------------------ Actions
# Requests of an attempt. All but two are answered by exactly one event.


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Let the engine rewrite the inputs. Answer: RewriteDone or RewriteFailed."""


@dataclass(frozen=True, slots=True)
class CancelRewrite:
    """Let the engine end the rewrite soon. No answer: that to `Rewrite` follows in any case."""


@dataclass(frozen=True, slots=True)
class ApplyGrant:
    """Let the engine apply another grant. No answer."""

    bytes_s: float | None


@dataclass(frozen=True, slots=True)
class SendCommit:
    """Ask the store to commit. Answer: one of the four Commit… events."""

    commit: CommitAttempt | RetagFiles
    delay_s: float = 0.0
    lake: bytes = b""
    """Of a lake table: the outputs are published in its log; see `RewriteResult`."""


@dataclass(frozen=True, slots=True)
class ReadOutcome:
    """Ask the store how the attempt ended. Answer: OutcomeRead or OutcomeUnread."""

    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DeleteOutputs:
    """Delete files of this attempt that no commit can have named. Answer: OutputsDeleted."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SendReport:
    """Report to the coordinator, however long it takes. Answer: ReportDelivered."""

    report: AttemptReport


Action = (
    Rewrite | CancelRewrite | ApplyGrant | SendCommit | ReadOutcome | DeleteOutputs | SendReport
)


# ----------------------------------------------------------------------------------------- Progress
# Progress of a rewrite: reports of the engine, reports to the coordinator, and stalls.
#
# An engine sends many small progress reports. The coordinator gets one that only grows. An attempt
# whose numbers do not change for too long is given up. Values only: no clock, no I/O.


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteProgress:
    """The engine's progress with one attempt."""

    fraction: float
    bytes_done: int = 0
    rows_done: int = 0
    state: str = "rewriting"
    moved_bytes: int = 0
    waited_s: float = 0.0
    synced_bytes: int = 0
    sync_s: float = 0.0
    steps: int = 0
    """Work that the other numbers do not show; only its growth matters."""
    written_bytes: int = 0
    """Bytes of `moved_bytes` that were written to outputs."""

    def advanced(self, news: Self, bytes_max: int) -> Self:
        """Return the progress after a later or an older report; no number falls.

        Args:
            news: The report. Its state is handled by the caller, which knows the order of states.
            bytes_max: Size of the inputs, an upper bound.
        """
        return replace(
            self,
            fraction=max(self.fraction, min(news.fraction, 1.0)),
            bytes_done=max(self.bytes_done, min(news.bytes_done, bytes_max)),
            rows_done=max(self.rows_done, news.rows_done),
            moved_bytes=max(self.moved_bytes, news.moved_bytes),
            waited_s=max(self.waited_s, news.waited_s),
            synced_bytes=max(self.synced_bytes, news.synced_bytes),
            sync_s=max(self.sync_s, news.sync_s),
            steps=max(self.steps, news.steps),
            written_bytes=max(self.written_bytes, news.written_bytes),
        )


OnProgress = Callable[[RewriteProgress], None]
"""Called with the progress of a rewrite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHealth:
    """An engine's signs of life."""

    up: bool
    """Whether it has started; a starting engine is not expected to make progress."""
    signs: int = 0
    """Life signs so far. A healthy engine gives one every few seconds."""
    busy: frozenset[str] = frozenset()
    """Attempts whose tasks ran at the last life sign; others wait for a free core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteResult:
    """The engine's result: verified outputs with their statistics."""

    outputs: tuple[DataFile, ...]
    counts: RowCounts
    dropped: DroppedRows | None = None
    kernel: str = ""
    timings_s: dict[str, float] = field(default_factory=dict)
    statistics: Statistics | None = None
    """Result of an analysis, which writes nothing."""
    lake: bytes = b""
    """Of a lake table: the `LakeResult` for its commit, packed."""


# -------------------------------------------------------------------------------------------- Ports
# The interfaces that the compactor's service uses: the engine, and its own access to storage.


class Engine(Protocol):
    """Rewrites the files of assignments, several concurrently, up to its slots."""

    async def start(self) -> None:
        """Start the engine and wait until it is ready. A running engine is left as it is.

        Raises:
            ConfigError: It cannot start on this machine.
            EngineDiedError: It died while it started.
        """
        ...

    async def wait_down(self) -> None:
        """Wait until the engine is not ready: it died, and may be restarting."""
        ...

    async def run(self, assignment: Assignment, on_progress: OnProgress) -> RewriteResult:
        """Rewrite, verify, and return the outputs; nothing is committed here.

        Raises:
            RewriteError: The job failed; the class shows whether a retry may succeed.
        """
        ...

    async def cancel(self, attempt: str) -> None:
        """End an attempt soon; its `run` raises AttemptCancelledError."""
        ...

    async def grant(self, attempt: str, bytes_s: float | None) -> None:
        """Set an attempt's limit in bytes/s; None: no limit.

        The first limit is that of its assignment.
        """
        ...

    def health(self) -> EngineHealth:
        """Return the engine's signs of life."""
        ...

    async def restart(self, cause: str) -> None:
        """End the engine, whatever it does, and start it again, without waiting for the start.

        Every running attempt fails with EngineRestartedError.
        """
        ...

    async def stop(self) -> None:
        """End everything; no process is left."""
        ...

    @property
    def pid(self) -> int | None:
        """The process id of the driver, or None."""
        ...


class OwnFiles(Protocol):
    """The compactor's own access to storage: owners of locations, and deletion of outputs."""

    async def check_location(self, table: Table, *, again: bool = False) -> None:
        """Check that the table's location belongs to this store.

        Args:
            table: The table.
            again: Check even if a recent check was successful.

        Raises:
            InputError: It belongs to another store.
            UnavailableError: It has no owner now, or the storage does not answer.
        """
        ...

    async def missing(self, table: Table, paths: tuple[str, ...]) -> tuple[str, ...]:
        """Return the files that do not exist.

        Raises:
            UnavailableError: The storage does not answer.
        """
        ...

    async def delete(self, table: Table, paths: tuple[str, ...]) -> None:
        """Delete outputs of an attempt whose commit was never sent; missing ones are ignored.

        Files that cannot be deleted are left to the collector.
        """
        ...


# -------------------------------------------------------------------------- Progress of one attempt


class AttemptPhase(StrEnum):
    """The phase of an attempt in heartbeats; an attempt only moves forward."""

    PREPARING = "preparing"
    REWRITING = "rewriting"
    VERIFYING = "verifying"
    COMMITTING = "committing"


_ORDER = tuple(AttemptPhase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of one attempt. Its numbers never fall, and no phase is repeated."""

    attempt: str
    bytes_total: int
    since_s: float
    state: AttemptPhase = AttemptPhase.PREPARING
    engine: RewriteProgress = RewriteProgress(fraction=0.0)
    """The engine's reports, without its state."""
    volume: str = DEFAULT_VOLUME
    granted_bytes_s: float | None = None
    """The only number that may fall. None: no limit."""

    @property
    def work(self) -> tuple[object, ...]:
        """All values that change while work is done, or while it waits for its part of a limit."""
        engine = self.engine
        done = (engine.bytes_done, engine.rows_done, engine.moved_bytes, engine.synced_bytes)
        return (self.state, engine.fraction, engine.waited_s, engine.steps, *done)

    def at(self, state: AttemptPhase) -> Self:
        """Return the progress in a later state; an earlier one changes nothing."""
        if _ORDER.index(state) <= _ORDER.index(self.state):
            return self
        return replace(self, state=state)

    def advanced(self, news: RewriteProgress) -> Self:
        """Return the progress after a report of the engine, which may be late."""
        is_known = news.state in set(_ORDER[:-1])
        moved = self.at(AttemptPhase(news.state)) if is_known else self
        return replace(moved, engine=self.engine.advanced(news, self.bytes_total))

    def message(self, quiet_s: float = 0.0) -> AttemptProgress:
        """Return the progress in the form of a heartbeat.

        Args:
            quiet_s: Time without progress.
        """
        engine = self.engine
        return AttemptProgress(
            attempt=self.attempt,
            state=self.state.value,
            fraction=engine.fraction,
            bytes_done=engine.bytes_done,
            bytes_total=self.bytes_total,
            rows_done=engine.rows_done,
            since_s=self.since_s,
            volume=self.volume,
            granted_bytes_s=self.granted_bytes_s,
            moved_bytes=engine.moved_bytes,
            waited_s=engine.waited_s,
            synced_bytes=engine.synced_bytes,
            sync_s=engine.sync_s,
            quiet_s=quiet_s,
            written_bytes=engine.written_bytes,
        )


# --------------------------------------------------------------------------------- Stalled attempts


CHECK_GAP_MAX_S = 3.0
"""A longer gap between two checks does not count as time without progress."""
_ENGINE_KEY = ""
"""Key of the engine itself, in addition to those of attempts."""


@dataclass(frozen=True, slots=True)
class _Observation:
    """The last observed value, and the time for which it has not changed."""

    what: object
    quiet_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Attempts to give up, together with the engine."""

    cause: str
    attempts: tuple[str, ...]
    """The stalled ones; other attempts on the same engine are affected without fault."""


class StallWatch:
    """Checks an engine and its attempts at intervals."""

    def __init__(self, stall_s: float) -> None:
        """Create a watch without observations.

        Args:
            stall_s: Time without progress that counts as a stall; 0: never.
        """
        self._stall_s = stall_s
        self._seen: dict[str, _Observation] = {}
        self._looked_s: float | None = None

    def quiet_s(self, attempt: str) -> float:
        """Return how long an attempt has made no progress."""
        seen = self._seen.get(attempt)
        return 0.0 if seen is None else seen.quiet_s

    def look(self, held: Sequence[Progress], health: EngineHealth, now_s: float) -> Stall | None:
        """Return what has stalled, or None.

        Args:
            held: The attempts that are not over.
            health: Health of the engine.
            now_s: The time now.
        """
        gap_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        watched = [progress for progress in held if progress.state is not AttemptPhase.COMMITTING]
        now_seen = {progress.attempt: progress.work for progress in watched} | {
            _ENGINE_KEY: health.signs
        }
        passed_s = gap_s if health.up and gap_s <= CHECK_GAP_MAX_S else 0.0
        self._seen = {key: self._aged(key, work, passed_s) for key, work in now_seen.items()}
        stall = self._stall(watched, health) if self._stall_s and health.up else None
        if stall is not None:
            self._seen = {}
        return stall

    def _aged(self, key: str, work: object, passed_s: float) -> _Observation:
        seen = self._seen.get(key)
        if seen is None or seen.what != work:
            return _Observation(work)
        return replace(seen, quiet_s=seen.quiet_s + passed_s)

    def _stall(self, watched: list[Progress], health: EngineHealth) -> Stall | None:
        if (silent_s := self.quiet_s(_ENGINE_KEY)) >= self._stall_s:
            cause = f"the Spark driver has sent no life sign for {silent_s:.0f} s"
            return Stall(cause=cause, attempts=tuple(progress.attempt for progress in watched))
        stalled = [
            progress for progress in watched if self._stands_still(progress, watched, health)
        ]
        if not stalled:
            return None
        listing = ", ".join(f"{progress.attempt} ({progress.state})" for progress in stalled)
        longest_s = max(self.quiet_s(progress.attempt) for progress in stalled)
        cause = f"no progress for {longest_s:.0f} s: {listing}"
        return Stall(cause=cause, attempts=tuple(progress.attempt for progress in stalled))

    def _stands_still(
        self, progress: Progress, watched: list[Progress], health: EngineHealth
    ) -> bool:
        if self.quiet_s(progress.attempt) < self._stall_s:
            return False
        if progress.state is not AttemptPhase.REWRITING or progress.attempt in health.busy:
            return True
        others = [other.attempt for other in watched if other.attempt != progress.attempt]
        return all(self.quiet_s(other) >= self._stall_s for other in others)


# ------------------------------------------------------------------------------------------- Events
# Events of an attempt, in the past tense.


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """The compactor holds the assignment and has a free slot for it."""


@dataclass(frozen=True, slots=True)
class RewriteProgressed:
    """The engine reported progress."""

    progress: RewriteProgress


@dataclass(frozen=True, slots=True)
class RewriteDone:
    """The engine has written and verified the outputs."""

    result: RewriteResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteFailed:
    """The engine has failed; the inputs are unchanged."""

    error_class: str
    cause: str
    end: AttemptEnd = AttemptEnd.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested:
    """The coordinator takes the attempt back, or the compactor stops."""

    cause: str
    end: AttemptEnd = AttemptEnd.CANCELLED


@dataclass(frozen=True, slots=True)
class GrantReceived:
    """The coordinator set the attempt's limit in bytes/s; None: no limit."""

    bytes_s: float | None


@dataclass(frozen=True, slots=True)
class CommitApplied:
    """The store, or the log of a lake table, has replaced the inputs by the outputs."""

    outputs: tuple[DataFile, ...] | None = None
    """The outputs that were committed; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRefused:
    """The store refused the commit.

    `sent`: an `EXEC` of it was sent before without a known answer.
    """

    code: RefusalCode
    reason: str
    sent: bool = False


@dataclass(frozen=True, slots=True)
class CommitUnknown:
    """The store did not answer: the commit may have been made, or may still be on its way."""

    reason: str


@dataclass(frozen=True, slots=True)
class CommitConflicted:
    """Nothing was written: a requirement failed on every try of the store."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRead:
    """The store returned how the attempt ended. `end` None: it has no mark."""

    end: AttemptEnd | None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class OutcomeReadFailed:
    """The store did not answer."""

    reason: str


@dataclass(frozen=True, slots=True)
class OutputsDeleted:
    """The attempt's own outputs are gone, or left to the collector."""


@dataclass(frozen=True, slots=True)
class ReportDelivered:
    """The coordinator has accepted the report."""


RewriteEvent = (
    AttemptStarted
    | RewriteProgressed
    | RewriteDone
    | RewriteFailed
    | CancelRequested
    | GrantReceived
)
CommitEvent = CommitApplied | CommitRefused | CommitUnknown | CommitConflicted
OutcomeEvent = OutcomeRead | OutcomeReadFailed
EndEvent = OutputsDeleted | ReportDelivered
Event = RewriteEvent | CommitEvent | OutcomeEvent | EndEvent


# ------------------------------------------------------------------------------------------ Attempt


STORE_BACKOFF = Backoff()
CONFLICTS_MAX = 8
"""Rounds of conflicts at commit before the attempt fails; each has tries of its own."""
RESOLVE_MAX_S = 12 * 3600.0
"""How long an unknown commit is retried. Its mark may expire sooner if the store was silent for
long. Then the attempt counts as lost, and its outputs are left to the collector."""
_ENDS = frozenset(RefusalCode(end.value) for end in AttemptEnd if end is not AttemptEnd.COMMITTED)
_NOBODYS_FAILURE = {
    RefusalCode.RELEASED: AttemptEnd.LOST,
    RefusalCode.RESURFACE: AttemptEnd.CONFLICTED,
}
"""Outcomes after refusals that do not blame inputs, job or compactor: the attempt was released, or
a file was added that may hold older rows of keys that it has dropped."""


class AttemptStateMachine:
    """One attempt: handles events and returns the next actions.

    At most one action that awaits an answer is open at a time. `progress` may be read at any
    time; nothing else may be changed from outside.
    """

    def __init__(self, assignment: Assignment, now_s: float) -> None:
        reservation = assignment.reservation
        self.assignment = assignment
        self.progress = Progress(
            attempt=reservation.attempt,
            bytes_total=sum(file.size_bytes for file in (*assignment.inputs, *assignment.analyzed)),
            since_s=now_s,
            volume=assignment.table.settings.volume,
            granted_bytes_s=assignment.grant_bytes_s,
        )
        self.end: AttemptEnd | None = None
        """Its outcome, known before it is reported."""
        self.over = False
        """Whether the coordinator has the report; nothing happens after that."""
        self._cancel: CancelRequested | None = None
        self._commit: CommitAttempt | RetagFiles | None = None
        self._maybe_sent = False
        self._failures = 0
        """Answers of the store that made the attempt wait."""
        self._asked_s = now_s
        self._refused: CommitRefused | None = None
        self._error = ("", "")

    @property
    def id(self) -> str:
        """The attempt's id: its fencing token."""
        return self.assignment.reservation.attempt

    @property
    def rewriting(self) -> bool:
        """Whether the engine, and not the store, still decides its outcome."""
        return self.end is None and self._commit is None

    @property
    def committed_bytes(self) -> tuple[int, int]:
        """Bytes of the inputs that were replaced, and of the outputs that replaced them."""
        if self.end is not AttemptEnd.COMMITTED or not isinstance(self._commit, CommitAttempt):
            return 0, 0
        if self._commit.statistics is not None:
            return 0, 0
        return self.progress.bytes_total, sum(output.size_bytes for output in self._commit.outputs)

    @property
    def committed_counts(self) -> RowCounts:
        """Row counts of the commit."""
        if self.end is AttemptEnd.COMMITTED and isinstance(self._commit, CommitAttempt):
            return self._commit.counts
        return RowCounts()

    @property
    def cancel_asked(self) -> bool:
        """Whether a cancellation was requested; the rewrite need not begin."""
        return self._cancel is not None

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Handle an event and return the next actions.

        Args:
            event: The event, in order of occurrence.
            now_s: Its time.
        """
        assert not self.over, (self.id, event)
        if isinstance(event, RewriteEvent):
            return self._rewriting(event, now_s)
        if isinstance(event, CommitEvent):
            return self._committing(event, now_s)
        if isinstance(event, OutcomeEvent):
            return self._resolving(event, now_s)
        if isinstance(event, OutputsDeleted):
            return [self._report(now_s)]
        self.over = True
        return []

    def _rewriting(self, event: RewriteEvent, now_s: float) -> list[Action]:
        match event:
            case AttemptStarted():
                return self._begun(now_s)
            case RewriteProgressed(progress):
                self.progress = self.progress.advanced(progress)
                return []
            case RewriteDone(result):
                return self._rewritten(result, now_s)
            case RewriteFailed():
                return self._rewrite_failed(event)
            case CancelRequested():
                return self._cancelled(event)
            case GrantReceived(bytes_s):
                self.progress = replace(self.progress, granted_bytes_s=bytes_s)
                return [ApplyGrant(bytes_s)]
            case _:
                assert_never(event)

    def _begun(self, now_s: float) -> list[Action]:
        job = self.assignment.job
        if job.action != JobAction.MOVE or job.kind is not Kind.SYSTEM:
            return [Rewrite()]
        if self._cancel is not None:
            return self._give_up(self._cancel.end, "AttemptCancelledError", self._cancel.cause)
        move = RetagFiles(
            tablet=job.tablet,
            attempt=self.id,
            tags=job.output_tags,
            elapsed_s=now_s - self.progress.since_s,
            reason=job.reason,
            inputs=self.assignment.reservation.inputs,
        )
        return self._committed_by(move, now_s)

    def _committed_by(
        self, commit: CommitAttempt | RetagFiles, now_s: float, lake: bytes = b""
    ) -> list[Action]:
        self._commit = commit
        self._asked_s = now_s
        self.progress = self.progress.at(AttemptPhase.COMMITTING)
        return [SendCommit(commit, lake=lake)]

    def _rewritten(self, result: RewriteResult, now_s: float) -> list[Action]:
        if self._cancel is not None:
            # The engine finished before the cancellation reached it.
            return self._give_up(self._cancel.end, "AttemptCancelledError", self._cancel.cause)
        assert result.counts.balanced, (self.id, result.counts)
        job = self.assignment.job
        commit = CommitAttempt(
            tablet=job.tablet,
            attempt=self.id,
            outputs=result.outputs,
            counts=result.counts,
            dropped=result.dropped,
            outside=tuple(file.path for file in self.assignment.outside),
            elapsed_s=now_s - self.progress.since_s,
            reason=job.reason,
            statistics=result.statistics,
            expected_bytes=job.expected_bytes or job.input_bytes,
            expected_files=job.outputs_expected if job.action == JobAction.REWRITE else 0,
            expected_s=job.expected_s,
        )
        return self._committed_by(commit, now_s, result.lake)

    def _rewrite_failed(self, event: RewriteFailed) -> list[Action]:
        if self._cancel is not None:
            return self._give_up(self._cancel.end, "AttemptCancelledError", self._cancel.cause)
        return self._give_up(event.end, event.error_class, event.cause)

    def _cancelled(self, event: CancelRequested) -> list[Action]:
        if self.end is not None or self._commit is not None:
            # Once a commit is sent, only the store decides how the attempt ends.
            return []
        # A repeated request is passed on again, because the engine may have missed the first.
        self._cancel = self._cancel or event
        return [CancelRewrite()]

    def _committing(self, event: CommitEvent, now_s: float) -> list[Action]:
        assert self._commit is not None, self.id
        match event:
            case CommitApplied(outputs):
                if outputs is not None and isinstance(self._commit, CommitAttempt):
                    self._commit = replace(self._commit, outputs=outputs)
                return self._finished(AttemptEnd.COMMITTED, now_s)
            case CommitRefused():
                self._maybe_sent |= event.sent
                self._refused = event
                return [ReadOutcome()]
            case CommitUnknown(reason):
                self._maybe_sent = True
                self._error = ("UnknownOutcomeError", reason)
                self._failures += 1
                return [ReadOutcome(STORE_BACKOFF.wait_s(self._failures))]
            case CommitConflicted(reason):
                self._failures += 1
                if self._failures > CONFLICTS_MAX:
                    return self._give_up(AttemptEnd.FAILED, "ConflictError", reason)
                return [SendCommit(self._commit, STORE_BACKOFF.wait_s(self._failures))]
            case _:
                assert_never(event)

    def _resolving(self, event: OutcomeEvent, now_s: float) -> list[Action]:
        assert self._commit is not None, self.id
        if isinstance(event, OutcomeRead) and event.end is AttemptEnd.COMMITTED:
            return self._finished(AttemptEnd.COMMITTED, now_s)
        if self._refused is not None:
            return self._ended_by_refusal(self._refused, event)
        if isinstance(event, OutcomeRead) and event.end is not None:
            return self._give_up(event.end, "ConflictError", event.cause)
        if now_s - self._asked_s > RESOLVE_MAX_S:
            return self._give_up(AttemptEnd.LOST, *self._error)
        if isinstance(event, OutcomeReadFailed):
            self._failures += 1
            return [ReadOutcome(STORE_BACKOFF.wait_s(self._failures))]
        return [SendCommit(self._commit)]

    def _ended_by_refusal(self, refused: CommitRefused, outcome: OutcomeEvent) -> list[Action]:
        """End after a refusal; the mark, if there is one, has the precise cause."""
        cause = f"commit refused ({refused.code}): {refused.reason}"
        if isinstance(outcome, OutcomeRead) and outcome.end is not None:
            return self._give_up(outcome.end, "ConflictError", f"{cause}; {outcome.cause}")
        # Any other refusal means that the attempt itself is at fault.
        end = _NOBODYS_FAILURE.get(refused.code, AttemptEnd.FAILED)
        if refused.code in _ENDS:  # It was ended otherwise, and its mark could not be read.
            end = AttemptEnd(refused.code.value)
        return self._give_up(end, "ConflictError", cause)

    def _finished(self, end: AttemptEnd, now_s: float) -> list[Action]:
        self.end = end
        self._error = ("", "")
        return [self._report(now_s)]

    def _give_up(self, end: AttemptEnd, error_class: str, cause: str) -> list[Action]:
        """End without a commit; own outputs are deleted if no commit can have been executed."""
        self.end = end
        self._error = (error_class, cause)
        paths = () if self._maybe_sent else self.assignment.reservation.output_paths
        return [DeleteOutputs(paths)]

    def _report(self, now_s: float) -> SendReport:
        assert self.end is not None, self.id
        done = None
        if self.end is AttemptEnd.COMMITTED and isinstance(self._commit, CommitAttempt):
            done = self._commit
        error_class, cause = self._error
        report = AttemptReport(
            compactor=self.assignment.reservation.compactor,
            attempt=self.id,
            end=self.end,
            halvings=self.assignment.halvings,
            error_class=error_class,
            cause=cause,
            counts=done.counts if done else RowCounts(),
            outputs=tuple(file.path for file in done.outputs) if done else (),
            elapsed_s=now_s - self.progress.since_s,
            moved_bytes=self.progress.engine.moved_bytes,
            waited_s=self.progress.engine.waited_s,
            trace=self.assignment.trace,
        )
        return SendReport(report)
