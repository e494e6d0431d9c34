"""Begins splits and merges, and takes their next steps: read, call the core, apply.

A step that the store refuses is not retried at once: the refusal is due to a change of a tablet,
which schedules the tablet again. At the latest, the full scan does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from common.errors import CompactionError
from common.metadata.changes import (
    AbandonOperation,
    Applied,
    BeginOperation,
    EndOperation,
    Outcome,
    Refused,
    StepOperation,
    Unknown,
)
from common.metadata.predicates import may_cross
from common.metadata.split_merge_predicates import operation_tablets
from common.model.job import Job
from common.model.table import Table
from common.model.tablet import Operation, OperationKind, Tablet, TabletId
from coordinator.context import ShellContext
from coordinator.core import events as on
from coordinator.core.split_merge import (
    AbandonStep,
    OperationChange,
    WaitForTablets,
    is_cutting,
    next_change,
    why_merge,
    why_split,
)
from coordinator.ports import PlanTablet, Submit
from coordinator.split_merge.key_sampling import choose_split_keys

StoreChange = BeginOperation | StepOperation | EndOperation | AbandonOperation

STEPS_MAX = 8
"""Maximum number of consecutive steps; an operation has three, and others may take some of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRules:
    """Settings of the operator."""

    lasts_max_s: float
    """Age at which an operation is abandoned, and the pause before the next one is begun by size
    in that tablet."""
    at_once_max: int
    """Maximum number of concurrent operations up to which new ones are begun by size."""


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """What an operation waits for, according to its last read."""

    table: Table
    operation: Operation
    tablets: tuple[TabletId, ...]
    waits: str


@dataclass(frozen=True, slots=True)
class LookResult:
    """The result of a look at an operation."""

    status: OperationStatus | None = None
    """Set while the operation is in progress."""
    look_again: bool = False
    """Whether to look again soon, for example after an unknown outcome."""
    abandoned: str = ""
    """Why the operation was abandoned; empty if it was not."""
    ended: bool = False


class FatalFiles(Protocol):
    """Remembers the files that crash every process that reads them."""

    def of(self, tablet: TabletId) -> str | None:
        """Return why the files of a tablet must not be read, or None."""
        ...

    def note(self, tablet: TabletId, path: str, cause: str) -> None:
        """Record a file; it is quarantined."""
        ...


class OperationSteps:
    """Takes steps. Stateless."""

    def __init__(
        self,
        context: ShellContext,
        plan: PlanTablet,
        why_given_up: Callable[[Job], str | None],
        rules: OperationRules,
        fatal_files: FatalFiles,
        *,
        submit: Submit = lambda _event: None,
    ) -> None:
        """Create steps that change the context's store and report through `submit`."""
        self._context = context
        self._submit = submit
        self._plan = plan
        self._why_given_up = why_given_up
        self._fatal_files = fatal_files
        self.rules = rules

    async def look(self, tablet: TabletId, table: Table) -> LookResult:
        """Take all possible steps of the operation in a tablet.

        Raises:
            MetadataError: The store did not answer as it should.
        """
        for _ in range(STEPS_MAX):
            tablets = await self._read_all_tablets(tablet)
            if tablets is None:
                return LookResult(ended=True)
            operation = tablets[0].operation
            assert operation is not None, tablet
            change = await self._next_change(tablets, table)
            ids = tuple(each.id for each in tablets)
            if isinstance(change, WaitForTablets):
                return LookResult(OperationStatus(table, operation, ids, change.reason))
            outcome = await self._take(change, operation, ids)
            if isinstance(outcome, Unknown):
                return LookResult(
                    OperationStatus(table, operation, ids, outcome.reason), look_again=True
                )
            if not isinstance(outcome, Applied):
                return LookResult(OperationStatus(table, operation, ids, outcome.reason))
            if isinstance(change, AbandonStep):
                return LookResult(abandoned=change.reason)
        return LookResult(look_again=True)

    async def split(self, tablet: TabletId, table: Table) -> bool:
        """Begin the split of a tablet that has grown too large; return whether it began."""
        read = await self._context.store.tablet(tablet)
        now_s = await self._context.store.now_s()
        rest_s = self.rules.lasts_max_s
        if read is None or (why := why_split(read, table, now_s, rest_s)) is None:
            return False
        if (cause := self._fatal_files.of(tablet)) is not None:
            self._context.log("a quarantined tablet is not split", tablet=str(tablet), cause=cause)
            return False
        note = partial(self._fatal_files.note, tablet)
        context = self._context
        keys = await choose_split_keys(
            read, table, context.log, fatal=note, threads=context.threads
        )
        if not keys:
            self._context.log("no key splits a tablet", tablet=str(tablet), wanted=why)
            return False
        if any(file.open and may_cross(file, keys[0]) for file in read.files.values()):
            self._context.log("a file still written crosses", tablet=str(tablet), wanted=why)
            return False
        return await self._begin(OperationKind.SPLIT, (tablet,), why, keys[0])

    async def merge(self, left: TabletId, right: TabletId, table: Table) -> bool:
        """Begin the merge of two small neighbours; return whether it began."""
        one, other = await self._context.store.tablets([left, right])
        now_s = await self._context.store.now_s()
        if one is None or other is None:
            return False
        why = why_merge(one, other, table, now_s, self.rules.lasts_max_s)
        if why is None:
            return False
        return await self._begin(OperationKind.MERGE, (left, right), why)

    async def _read_all_tablets(self, tablet: TabletId) -> list[Tablet] | None:
        """Return all tablets of the operation in a tablet, read together; None without one."""
        store = self._context.store
        read = await store.tablet(tablet)
        if read is None or read.operation is None:
            return None
        ids = operation_tablets(read)
        if ids is None:  # The left tablet of a merge; its right neighbour refers to both.
            ids = (tablet, *await store.tablet_ids(tablet.table, after=tablet.end, count=1))
        found = [each for each in await store.tablets(ids) if each is not None]
        own = [each for each in found if _is_of(each, read.operation)]
        return own or None

    async def _next_change(self, tablets: list[Tablet], table: Table) -> OperationChange:
        now_s = await self._context.store.now_s()
        stuck = (
            self._why_stuck(tablets[0], table, now_s) if is_cutting(tablets[0].operation) else ""
        )
        return next_change(tablets, now_s, lasts_max_s=self.rules.lasts_max_s, stuck=stuck)

    def _why_stuck(self, tablet: Tablet, table: Table, now_s: float) -> str:
        """Return why a cutting job is no longer retried; empty if there is no such job."""
        try:
            jobs = self._plan(tablet, table, now_s).jobs
        except CompactionError:
            return ""  # Planning reports the error; the time limit ends the operation.
        reasons = (self._why_given_up(job) for job in jobs)
        return next((why for why in reasons if why is not None), "")

    async def _take(
        self, change: OperationChange, operation: Operation, tablets: tuple[TabletId, ...]
    ) -> Outcome:
        assert not isinstance(change, WaitForTablets), change
        store_change = change.change if isinstance(change, AbandonStep) else change
        outcome = await self._context.apply_or_unknown(store_change)
        why = change.reason if isinstance(change, AbandonStep) else ""
        self._submit_step(
            type(store_change).__name__, operation.operation_id, tablets, outcome, why
        )
        self._context.log(
            "operation moves on" if isinstance(outcome, Applied) else "operation step not taken",
            operation=operation.operation_id,
            kind=operation.kind.value,
            tablets=", ".join(map(str, tablets)),
            step=type(change).__name__,
            found_step=operation.step.value,
            cause=change.reason
            if isinstance(change, AbandonStep)
            else getattr(outcome, "reason", ""),
        )
        return outcome

    async def _begin(
        self,
        kind: OperationKind,
        tablets: tuple[TabletId, ...],
        why: str,
        at: bytes | None = None,
    ) -> bool:
        name = self._context.ids.next("op")
        change = BeginOperation(kind=kind, tablets=tablets, operation=name, at=at, reason=why)
        outcome = await self._context.apply_or_unknown(change)
        begun = isinstance(outcome, Applied)
        self._submit_step(f"Begin{kind.value.capitalize()}", name, tablets, outcome, why)
        self._context.log(
            f"{kind.value} begins" if begun else f"{kind.value} not begun",
            operation=name,
            tablets=", ".join(map(str, tablets)),
            cause=why if begun else getattr(outcome, "reason", ""),
        )
        return begun

    def _submit_step(
        self, step: str, operation: str, tablets: tuple[TabletId, ...], outcome: Outcome, why: str
    ) -> None:
        code, reason = "", why
        if not isinstance(outcome, Applied):
            code = outcome.code if isinstance(outcome, Refused) else "unknown"
            reason = outcome.reason
        event = on.StepAnswered(tablets=tablets, of=operation, step=step, code=code, reason=reason)
        self._submit(event)


def _is_of(tablet: Tablet, operation: Operation) -> bool:
    present = tablet.operation
    return present is not None and present.operation_id == operation.operation_id
