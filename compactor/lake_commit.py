"""The commit of an attempt at a lake table: what its rewrite hands over, and its publication.

The compactor's own process publishes, not the driver of Spark. `common.lake.rules` decides what
comes next; `LakePublisher` performs it: calls of the table's log in threads, with deadlines, and
changes of the store. Whatever was answered to a send, the log is asked for the attempt afterwards.
If the process dies after a send, the coordinator finds the attempt in the log and ends it.
"""

import asyncio
import pickle
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self, TypeVar, assert_never

import numpy as np

from common.control_settings import CatalogSettings
from common.errors import (
    CompactionError,
    ConflictError,
    MetadataError,
    RewriteError,
    UnavailableError,
)
from common.lake import rules
from common.lake.open import open_source, storage_options
from common.lake.source import Answer, Commit, LakeOutput, Planned, Snapshot, TableSource
from common.metadata.changes import Applied, Change, CommitAttempt, Outcome, Refused
from common.metadata.changes.lake import EndLakeAttempt, MarkPublishing
from common.metadata.store import TabletStore
from common.model.file import DataFile
from common.model.outcome import AttemptEnd, Refusal, RefusalCode, RowCounts
from common.model.table import LakeTable, Table
from common.parquet.location import lend
from common.primitives import Backoff, BoundedMap
from common.runtime import Clock
from common.storage_threads import StorageThreads
from common.telemetry import Log
from common.wire import Assignment
from compactor.core import CommitApplied, CommitRefused, OwnFiles

P = TypeVar("P")
T = TypeVar("T")
Call = Callable[[], object]

# ------------------------------------------------------------------- What a rewrite hands over


@dataclass(frozen=True, slots=True)
class LakeResult:
    """What the rewrite of a lake table's files hands over to the commit."""

    planned: Planned
    outputs: tuple[LakeOutput, ...]


def packed_result(result: LakeResult) -> bytes:
    """Return a result in few bytes: an attempt may leave out millions of positions."""
    gaps = {
        path: np.diff(positions, prepend=np.uint64(0))
        for path, positions in result.planned.positions.items()
    }
    packed = replace(result, planned=replace(result.planned, positions=gaps))
    return zlib.compress(pickle.dumps(packed), 1)


def unpacked_result(packed: bytes) -> LakeResult:
    """Return the result of `packed_result`."""
    result: LakeResult = pickle.loads(zlib.decompress(packed))
    positions = {
        path: np.cumsum(gaps, dtype=np.uint64) for path, gaps in result.planned.positions.items()
    }
    return replace(result, planned=replace(result.planned, positions=positions))


def require_same_table(lake: LakeTable, snapshot: Snapshot) -> None:
    """Refuse a version that must not be compacted.

    Raises:
        ConflictError: It belongs to another table than the one that was attached.
        RewriteError: Its features do not allow it.
    """
    if snapshot.table_id != lake.table_id:
        raise ConflictError(
            f"{lake.uri} has the table {snapshot.table_id} now, but {lake.table_id} was attached"
        )
    if snapshot.refusal:
        raise RewriteError(snapshot.refusal)


# ------------------------------------------------------------------------------------ Lent access


@dataclass(frozen=True, slots=True)
class Loan:
    """How a process of an attempt reaches the files of a lake table. It holds no secret.

    Each process asks the catalog itself: what it lends crosses no message and no disk.
    """

    table: LakeTable
    location: str
    access: CatalogSettings
    attempt: str

    @classmethod
    def of(cls, assignment: Assignment, access: CatalogSettings) -> Self:
        """Return the loan of an attempt at a lake table."""
        table = assignment.table
        assert table.lake is not None, table.name
        return cls(table.lake, table.location, access, assignment.reservation.attempt)

    def take(self) -> None:
        """Let this process reach the files with what the catalog of the table lends, if any."""
        if _loans.get(self.location) != self:
            source = open_source(
                self.table.format, self.table.uri, storage_options(self.access, self.table.uri)
            )
            lend(self.location, source.files)
            _loans.put(self.location, self)

    def around(self, run: Callable[[P, list[Call]], T]) -> Callable[[P, Sequence[Call]], T]:
        """Return a function that runs calls in tasks whose processes take the loan first."""
        return lambda plan, calls: run(plan, [partial(self.call, call) for call in calls])

    def call(self, call: Call) -> object:
        """Return the result of a call that needs the files."""
        self.take()
        return call()


LOANS_MAX = 64
_loans: BoundedMap[str, Loan] = BoundedMap(LOANS_MAX)
"""Loans that this process has taken, by location."""


# ------------------------------------------------------------------------------------- Publishing


CALL_BACKOFF, CONFLICT_BACKOFF = Backoff(), Backoff(base_s=0.02, max_s=2.0)
"""Pauses after a failure of the log or the store, and after another writer was faster."""
CALL_TRIES_MAX = 8
"""Some 30 s in all, so that no hour of rewriting is lost because a storage restarts."""
TABLES_MAX = 64
"""Tables whose newest version is kept in memory, so that only what is new is read."""
_CODES: dict[rules.PublishEnd, RefusalCode] = {
    rules.PublishEnd.REFUSED: RefusalCode.CONFLICTED,
    rules.PublishEnd.CONFLICTED: RefusalCode.CONFLICTED,
    rules.PublishEnd.RELEASED: RefusalCode.RELEASED,
    rules.PublishEnd.TOO_OLD: RefusalCode.OVERDUE,
    rules.PublishEnd.FAILED: RefusalCode.FAILED,
    rules.PublishEnd.CANNOT_TELL: RefusalCode.LOST,
}


@dataclass(slots=True)
class _Log:
    """The log of one table, as this process has read it."""

    source: TableSource
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One attempt publishes at a time: several would only be in each other's way."""
    head: Snapshot | None = None


@dataclass(frozen=True, slots=True)
class _Job:
    """An attempt that publishes."""

    assignment: Assignment
    commit: CommitAttempt
    result: LakeResult
    log: _Log

    @property
    def attempt(self) -> str:
        return self.assignment.reservation.attempt

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(output.path for output in self.result.outputs)


class LakePublisher:
    """Publishes the outputs of attempts at lake tables. It keeps the newest versions of tables."""

    def __init__(
        self,
        *,
        store: TabletStore,
        files: OwnFiles,
        clock: Clock,
        log: Log,
        catalog: CatalogSettings,
        sources: Callable[[str, str, Mapping[str, str]], TableSource] = open_source,
    ) -> None:
        """Create a publisher that has read nothing.

        Args:
            store: Holds reservations and marks.
            files: Tells whether outputs exist.
            clock: Tells the age of attempts.
            log: Gets each end.
            catalog: How logs are reached, and for how long they are waited for.
            sources: Opens the source of a table.
        """
        self._store, self._files = store, files
        self._clock, self._log = clock, log
        self._sources = sources
        self._catalog = catalog
        self._threads = StorageThreads(deadline_s=catalog.answer_max_s)
        self._logs: BoundedMap[str, _Log] = BoundedMap(TABLES_MAX)

    async def publish(
        self, assignment: Assignment, commit: CommitAttempt, packed: bytes
    ) -> CommitApplied | CommitRefused:
        """Publish the outputs of an attempt, and end it in the store if they are committed.

        Args:
            assignment: Its assignment.
            commit: What a commit of a native table would have written.
            packed: Its `LakeResult`.
        """
        table = assignment.table
        assert table.lake is not None, table.name
        try:
            log = self._log_of(table, table.lake)
        except CompactionError as error:
            return CommitRefused(code=RefusalCode.FAILED, reason=str(error))
        job = _Job(assignment, commit, unpacked_result(packed), log)
        async with job.log.turn:
            end = await self._end_of(job)
        self._log(
            "attempt published",
            attempt=job.attempt,
            ending=end.ending.value,
            version=end.version,
            cause=end.reason,
        )
        if end.ending is rules.PublishEnd.COMMITTED:
            return await self._committed(job, end)
        return CommitRefused(code=_CODES[end.ending], reason=end.reason, sent=end.was_sent)

    def _log_of(self, table: Table, lake: LakeTable) -> _Log:
        known = self._logs.get(table.id)
        if known is None:
            options = storage_options(self._catalog, lake.uri)
            known = _Log(self._sources(lake.format, lake.uri, options))
            self._logs.put(table.id, known)
            lend(table.location, known.source.files)  # Outputs are looked for in this process.
        return known

    async def _end_of(self, job: _Job) -> rules.EndPublishing:
        """Take one step after the other until the attempt has an end."""
        try:
            await self._called(job, job.log.source.require_conditions, job.attempt)
        except CompactionError as error:
            return rules.EndPublishing(rules.PublishEnd.FAILED, str(error))
        state = rules.Publishing(
            planned=job.result.planned,
            outputs=job.result.outputs,
            started_at_s=job.assignment.reservation.since_s,
        )
        step: rules.PublishStep = rules.LoadHead()
        while not isinstance(step, rules.EndPublishing):
            event = await self._perform(job, step)
            if isinstance(event, rules.SendAnswered) and event.answer is not Answer.COMMITTED:
                await asyncio.sleep(CONFLICT_BACKOFF.wait_s(state.tries))
            state, step = rules.next_step(state, event, self._clock.now_s())
        return step

    async def _perform(self, job: _Job, step: rules.PublishStep) -> rules.PublishEvent:
        source = job.log.source
        try:
            match step:
                case rules.LoadHead():
                    job.log.head = await self._called(job, source.load, job.log.head)
                    return rules.HeadLoaded(job.log.head)
                case rules.LookForAttempt(since):
                    sighting = await self._called(job, source.look, job.attempt, job.outputs, since)
                    return rules.Looked(sighting)
                case rules.ReadDeletes(files):
                    positions = {
                        file.path: await self._called(job, source.positions, file) for file in files
                    }
                    return rules.DeletesRead(positions)
                case rules.MarkReservation():
                    return await self._marked(job)
                case rules.SendVersion(head, verdict):
                    return await self._sent(job, head, verdict)
                case rules.EndPublishing():
                    raise AssertionError(step)
                case _:
                    assert_never(step)
        except CompactionError as error:
            return rules.StepFailed(str(error))

    async def _called(self, job: _Job, work: Callable[..., T], *values: object) -> T:
        """Return what a call of the log returns; repeat it while the storage does not answer."""
        failures = 0
        while True:
            try:
                return await self._threads.run(
                    job.assignment.table.location, partial(work, *values)
                )
            except UnavailableError:
                failures += 1
                if failures >= CALL_TRIES_MAX:
                    raise
            await asyncio.sleep(CALL_BACKOFF.wait_s(failures))

    async def _marked(self, job: _Job) -> rules.PublishEvent:
        """Mark the reservation. Without it, or without its outputs, the attempt must not send."""
        assert job.log.head is not None, "a try begins with the head"
        mark = MarkPublishing(
            tablet=job.commit.tablet,
            attempt=job.attempt,
            planned=job.result.planned.version,
            base=job.log.head.last_version,
            outputs=job.outputs,
        )
        outcome = await self._applied(mark, partial(self._refused_without_outputs, job))
        if isinstance(outcome, Refused):
            self._log("attempt may not publish", attempt=job.attempt, cause=outcome.reason)
        return rules.Marked(isinstance(outcome, Applied))

    async def _refused_without_outputs(self, job: _Job) -> Refusal | None:
        """Refuse an attempt whose outputs were deleted: a store that went back still holds it."""
        missing = await self._files.missing(job.assignment.table, job.outputs)
        if not missing:
            return None
        reason = f"output {missing[0]} was deleted, as if the attempt had been released"
        return Refusal(RefusalCode.LOST, reason)

    async def _sent(self, job: _Job, head: Snapshot, verdict: rules.Verdict) -> rules.SendAnswered:
        """Send once. Without an answer it is unknown whether the version was created."""
        commit = Commit(
            base=head,
            attempt=job.attempt,
            outputs=verdict.outputs,
            removed=verdict.removed,
            deletes=verdict.deletes,
            now_s=self._clock.now_s(),
            sequence=job.result.planned.version,
        )
        location, send = job.assignment.table.location, job.log.source.send
        try:
            return rules.SendAnswered(await self._threads.run(location, send, commit))
        except CompactionError as error:
            self._log("commit not answered", attempt=job.attempt, cause=str(error))
            return rules.SendAnswered(Answer.UNKNOWN)

    async def _applied(
        self, change: Change, confirm: Callable[[], Awaitable[Refusal | None]] | None = None
    ) -> Outcome:
        """Apply a change that may be repeated until the store has answered.

        Raises:
            MetadataError: The store has not answered for long.
            UnavailableError: The same, or the storage does not answer.
        """
        failures = 0
        while True:
            try:
                outcome = await self._store.apply(change, confirm=confirm)
                if isinstance(outcome, Applied | Refused):
                    return outcome
                error: CompactionError = MetadataError(outcome.reason)
            except (MetadataError, UnavailableError) as raised:
                error = raised
            failures += 1
            if failures >= CALL_TRIES_MAX:
                raise error
            await asyncio.sleep(CALL_BACKOFF.wait_s(failures))

    async def _committed(self, job: _Job, end: rules.EndPublishing) -> CommitApplied:
        """End a committed attempt in the store. If that fails, the coordinator's follower does."""
        outputs = tuple(file for file in job.commit.outputs if file.path in end.committed)
        inputs = _replaced_inputs(job, end.committed)
        counts = job.commit.counts
        if len(outputs) < len(job.commit.outputs):
            rows_in = sum(file.rows for file in inputs)
            rows_out = sum(file.rows for file in outputs)
            counts = RowCounts(
                rows_in=rows_in, rows_out=rows_out, tombstones_dropped=rows_in - rows_out
            )
        change = EndLakeAttempt(
            tablet=job.commit.tablet,
            attempt=job.attempt,
            end=AttemptEnd.COMMITTED,
            version=end.version,
            outputs=outputs,
            inputs=inputs,
            counts=counts,
            reason=job.commit.reason,
            expected_bytes=job.commit.expected_bytes,
            expected_files=job.commit.expected_files,
            expected_s=job.commit.expected_s,
        )
        try:
            outcome = await self._applied(change)
        except (MetadataError, UnavailableError) as error:
            self._log("commit not recorded", attempt=job.attempt, cause=str(error))
        else:
            if isinstance(outcome, Refused):
                self._log("commit not recorded", attempt=job.attempt, cause=outcome.reason)
        return CommitApplied(outputs)


def _replaced_inputs(job: _Job, committed: frozenset[str]) -> tuple[DataFile, ...]:
    """Return the inputs that a version has replaced, and those without a live row."""
    used = {path for output in job.result.outputs for path in output.inputs}
    replaced = {
        path for output in job.result.outputs if output.path in committed for path in output.inputs
    }
    return tuple(
        file for file in job.assignment.inputs if file.path in replaced or file.path not in used
    )
