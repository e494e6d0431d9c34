"""The life of one attempt on its compactor, as a state machine without I/O.

    preparing → rewriting → verifying → committing → reported        (a move commits at once)
                    │            │           │
                    └── failed, cancelled ───┴── refused, unknown

Two rules of the metadata protocol apply here. An attempt deletes its own outputs only if no commit
of it can ever have been executed. A commit with an unknown outcome is neither done nor refused: its
mark is looked for, and the commit is sent again until the store confirms or refuses it.
"""

from dataclasses import replace
from typing import assert_never

from common.backoff import Backoff
from common.metadata.changes import CommitAttempt, RetagFiles
from common.model.job import JobAction, Kind
from common.model.outcome import AttemptEnd, RefusalCode, RowCounts
from common.wire import Assignment, AttemptReport
from compactor.core import actions as do
from compactor.core import events as on
from compactor.core.progress import AttemptPhase, Progress, RewriteResult

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
        self._cancel: on.CancelRequested | None = None
        self._commit: CommitAttempt | RetagFiles | None = None
        self._maybe_sent = False
        self._failures = 0
        """Answers of the store that made the attempt wait."""
        self._asked_s = now_s
        self._refused: on.CommitRefused | None = None
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

    def handle(self, event: on.Event, now_s: float) -> list[do.Action]:
        """Handle an event and return the next actions.

        Args:
            event: The event, in order of occurrence.
            now_s: Its time.
        """
        assert not self.over, (self.id, event)
        if isinstance(event, on.RewriteEvent):
            return self._rewriting(event, now_s)
        if isinstance(event, on.CommitEvent):
            return self._committing(event, now_s)
        if isinstance(event, on.OutcomeEvent):
            return self._resolving(event, now_s)
        if isinstance(event, on.OutputsDeleted):
            return [self._report(now_s)]
        self.over = True
        return []

    def _rewriting(self, event: on.RewriteEvent, now_s: float) -> list[do.Action]:
        match event:
            case on.AttemptStarted():
                return self._begun(now_s)
            case on.RewriteProgressed(progress):
                self.progress = self.progress.advanced(progress)
                return []
            case on.RewriteDone(result):
                return self._rewritten(result, now_s)
            case on.RewriteFailed():
                return self._rewrite_failed(event)
            case on.CancelRequested():
                return self._cancelled(event)
            case on.GrantReceived(bytes_s):
                self.progress = replace(self.progress, granted_bytes_s=bytes_s)
                return [do.ApplyGrant(bytes_s)]
            case _:
                assert_never(event)

    def _begun(self, now_s: float) -> list[do.Action]:
        job = self.assignment.job
        if job.action != JobAction.MOVE or job.kind is not Kind.SYSTEM:
            return [do.Rewrite()]
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

    def _committed_by(self, commit: CommitAttempt | RetagFiles, now_s: float) -> list[do.Action]:
        self._commit = commit
        self._asked_s = now_s
        self.progress = self.progress.at(AttemptPhase.COMMITTING)
        return [do.SendCommit(commit)]

    def _rewritten(self, result: RewriteResult, now_s: float) -> list[do.Action]:
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
        )
        return self._committed_by(commit, now_s)

    def _rewrite_failed(self, event: on.RewriteFailed) -> list[do.Action]:
        if self._cancel is not None:
            return self._give_up(self._cancel.end, "AttemptCancelledError", self._cancel.cause)
        return self._give_up(event.end, event.error_class, event.cause)

    def _cancelled(self, event: on.CancelRequested) -> list[do.Action]:
        if self.end is not None or self._commit is not None:
            # Once a commit is sent, only the store decides how the attempt ends.
            return []
        # A repeated request is passed on again, because the engine may have missed the first.
        self._cancel = self._cancel or event
        return [do.CancelRewrite()]

    def _committing(self, event: on.CommitEvent, now_s: float) -> list[do.Action]:
        assert self._commit is not None, self.id
        match event:
            case on.CommitApplied():
                return self._finished(AttemptEnd.COMMITTED, now_s)
            case on.CommitRefused():
                self._maybe_sent |= event.sent
                self._refused = event
                return [do.ReadOutcome()]
            case on.CommitUnknown(reason):
                self._maybe_sent = True
                self._error = ("UnknownOutcomeError", reason)
                self._failures += 1
                return [do.ReadOutcome(STORE_BACKOFF.wait_s(self._failures))]
            case on.CommitConflicted(reason):
                self._failures += 1
                if self._failures > CONFLICTS_MAX:
                    return self._give_up(AttemptEnd.FAILED, "ConflictError", reason)
                return [do.SendCommit(self._commit, STORE_BACKOFF.wait_s(self._failures))]
            case _:
                assert_never(event)

    def _resolving(self, event: on.OutcomeEvent, now_s: float) -> list[do.Action]:
        assert self._commit is not None, self.id
        if isinstance(event, on.OutcomeRead) and event.end is AttemptEnd.COMMITTED:
            return self._finished(AttemptEnd.COMMITTED, now_s)
        if self._refused is not None:
            return self._ended_by_refusal(self._refused, event)
        if isinstance(event, on.OutcomeRead) and event.end is not None:
            return self._give_up(event.end, "ConflictError", event.cause)
        if now_s - self._asked_s > RESOLVE_MAX_S:
            return self._give_up(AttemptEnd.LOST, *self._error)
        if isinstance(event, on.OutcomeReadFailed):
            self._failures += 1
            return [do.ReadOutcome(STORE_BACKOFF.wait_s(self._failures))]
        return [do.SendCommit(self._commit)]

    def _ended_by_refusal(
        self, refused: on.CommitRefused, outcome: on.OutcomeEvent
    ) -> list[do.Action]:
        """End after a refusal; the mark, if there is one, has the precise cause."""
        cause = f"commit refused ({refused.code}): {refused.reason}"
        if isinstance(outcome, on.OutcomeRead) and outcome.end is not None:
            return self._give_up(outcome.end, "ConflictError", f"{cause}; {outcome.cause}")
        # Any other refusal means that the attempt itself is at fault.
        end = _NOBODYS_FAILURE.get(refused.code, AttemptEnd.FAILED)
        if refused.code in _ENDS:  # It was ended otherwise, and its mark could not be read.
            end = AttemptEnd(refused.code.value)
        return self._give_up(end, "ConflictError", cause)

    def _finished(self, end: AttemptEnd, now_s: float) -> list[do.Action]:
        self.end = end
        self._error = ("", "")
        return [self._report(now_s)]

    def _give_up(self, end: AttemptEnd, error_class: str, cause: str) -> list[do.Action]:
        """End without a commit; own outputs are deleted if no commit can have been executed."""
        self.end = end
        self._error = (error_class, cause)
        paths = () if self._maybe_sent else self.assignment.reservation.output_paths
        return [do.DeleteOutputs(paths)]

    def _report(self, now_s: float) -> do.SendReport:
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
        return do.SendReport(report)
